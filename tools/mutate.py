"""Plants faults in the core, one at a time, and sees that each is found: `make mutate`.

The faults are data: `mutants.toml`. Each is planted in a copy of the sources, never in the checkout, and hunted by one
hunter after another, the fastest first, until one finds it; a hunter that does not end has found it too. What nobody
finds survives: then a test is missing, or the entry says in `survives` why there can be none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = ROOT / "tools" / "mutants.toml"
CORE = Path("podium", "core")
MEMORY_LIMIT = 4 * 2**30
SPAWNS = multiprocessing.get_context("spawn")
FORKS = multiprocessing.get_context("forkserver")
# What every process of pytest needs, imported once: a hunt begins in a tenth of the time.
FORKS.set_forkserver_preload([
    "_hypothesis_pytestplugin", "anyio.pytest_plugin", "hypothesis.stateful", "msgspec", "platformdirs.pytest_plugin",
    "pytest_cov.plugin", "pytest_timeout", "unittest.mock", "xdist.looponfail", "xdist.plugin",
])  # fmt: skip
PYTEST = (
    "-x",
    "-q",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore:Module already imported:pytest.PytestAssertRewriteWarning",
)
LEAST_KILLED = 0.95
NOT_COPIED = shutil.ignore_patterns("_native", "__pycache__")


class UnfitError(Exception):
    """The faults cannot be planted, or the hunters find something where nothing was planted."""


@dataclass(frozen=True)
class Mutant:
    """A fault: `find`, which is once in `file` of the core, becomes `replace`, and `rule` is not kept any more."""

    name: str
    file: str
    rule: str
    breaks: str
    find: str
    replace: str
    survives: str = ""

    def misfit(self, source: str) -> str | None:
        """Why it cannot be planted in `source`; None when it can."""
        times = source.count(self.find)
        if times != 1:
            return f"{self.name}: its text is {times} times in {self.file}, and has to be there once"
        try:
            compile(self.planted(source), self.file, "exec")
        except SyntaxError as error:
            return f"{self.name}: with it {self.file} is no Python: {error}"
        return f"{self.name}: it changes nothing" if self.find == self.replace else None

    def planted(self, source: str) -> str:
        return source.replace(self.find, self.replace)


@dataclass(frozen=True)
class Hunter:
    """Tests, or a verb of podium, that fail where there is a fault.

    In `arguments`, `{own}` is the tests of the mutated file, and `{scratch}` a folder.
    """

    name: str
    program: Literal["pytest", "podium"]
    arguments: tuple[str, ...]
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Verdict:
    """What came of one mutant: `killer` is the hunter that found it, None when it survived."""

    mutant: Mutant
    killer: str | None
    seconds: float


NO_VERDICT = {"pytest": (3, 4, 5), "podium": (2,)}
"""Exit codes that say nothing about the fault: then the hunter itself is wrong."""
WORLDS = ("loss", "failing-stops", "late", "drain", "join", "weights")
MACHINE = "tests/core/test_state_machine.py"
SUITE = ("tests/core", "tests/contract", "tests/cases", f"--ignore={MACHINE}", "--timeout=60")
HUNTERS = (
    Hunter("its own tests", "pytest", ("{own}", "--timeout=30"), timeout_s=180.0),
    Hunter("other tests of the core", "pytest", SUITE),
    Hunter("the random machine", "pytest", (MACHINE,)),
    Hunter(
        "the explorer",
        "podium",
        ("explore", "--max-states=1000", "--journals={scratch}", *(f"--world={one}" for one in WORLDS)),
    ),
    Hunter("the simulation", "podium", ("simulate", "--seeds=300", "--jobs=1")),
)


def read(path: Path = MUTANTS) -> list[Mutant]:
    """All planted faults.

    Raises:
        UnfitError: A name comes twice.
    """
    with path.open("rb") as file:
        mutants = [Mutant(**entry) for entry in tomllib.load(file)["mutant"]]
    twice = [name for name, times in Counter(mutant.name for mutant in mutants).items() if times > 1]
    if twice:
        raise UnfitError(f"names that come twice: {', '.join(twice)}")
    return mutants


def misfits(mutants: Iterable[Mutant], source: Path = ROOT / "src") -> list[str]:
    """Every mutant that cannot be planted in `source`, and why."""
    found = (mutant.misfit((source / CORE / mutant.file).read_text(encoding="utf-8")) for mutant in mutants)
    return [misfit for misfit in found if misfit is not None]


def run_hunter(program: str, arguments: Sequence[str], source: str, output: str) -> None:
    """Be the process of a hunter, alone in its group, over the podium in `source`. Exits with its code."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    told = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(told, 1)
    os.dup2(told, 2)
    os.environ.update(PYTHONPATH=source, PODIUM_PURE="1", PODIUM_HYPOTHESIS="once")
    if program != "pytest":
        command = "from podium.cli.main import app; app()"
        os.execv(sys.executable, [sys.executable, "-c", command, *arguments])  # noqa: S606 - there is nothing to quote
    sys.path.insert(0, source)
    sys.exit(pytest.main([*PYTEST, *arguments]))


class Ground:
    """A copy of the sources, in which one mutant at a time is planted, and hunted by `hunters`."""

    def __init__(self, folder: Path, hunters: Sequence[Hunter] = HUNTERS) -> None:
        self._hunters = hunters
        self._source = folder / "src"
        self._scratch = folder / "scratch"
        self._output = folder / "output"
        shutil.copytree(ROOT / "src", self._source, ignore=NOT_COPIED)

    def hunt(self, hunter: Hunter, own: str = "") -> bool:
        """Whether `hunter` finds a fault.

        Raises:
            UnfitError: It could not even look.
        """
        arguments = [part.format(own=own, scratch=self._scratch) for part in hunter.arguments]
        process = FORKS.Process(
            target=run_hunter, args=(hunter.program, arguments, str(self._source), str(self._output))
        )
        process.start()
        try:
            process.join(hunter.timeout_s)
            code = process.exitcode
        finally:
            with contextlib.suppress(ProcessLookupError):  # nothing of it is left, or it has no group of its own yet
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.kill()
            process.join()
        if code in NO_VERDICT[hunter.program]:
            raise UnfitError(f"{hunter.name}: exit code {code}\n{self._output.read_text(encoding='utf-8')}")
        return code != 0

    def judge(self, mutant: Mutant) -> Verdict:
        """Plant a mutant, and let one hunter after another look for it."""
        target = self._source / CORE / mutant.file
        original = target.read_text(encoding="utf-8")
        began = time.monotonic()
        self._write(target, mutant.planted(original))
        try:
            own = f"tests/core/test_{target.stem}.py"
            killer = next((hunter.name for hunter in self._hunters if self.hunt(hunter, own)), None)
        finally:
            self._write(target, original)
        return Verdict(mutant, killer, time.monotonic() - began)

    def check(self) -> None:
        """See that nobody finds anything where nothing is planted.

        Raises:
            UnfitError: Somebody does.
        """
        for hunter in self._hunters[1:]:
            if self.hunt(hunter):
                told = self._output.read_text(encoding="utf-8")
                raise UnfitError(f"{hunter.name}: a fault is found where none was planted; repair that first\n{told}")

    @staticmethod
    def _write(target: Path, text: str) -> None:
        # Compiled files are told apart by size and second: one of another mutant could pass for this one's.
        for compiled in target.parent.glob(f"__pycache__/{target.stem}.*"):
            compiled.unlink()
        target.write_text(text, encoding="utf-8")


def judge_all(mutants: Sequence[Mutant], jobs: int, hunters: Sequence[Hunter] = HUNTERS) -> list[Verdict]:
    """Judge every mutant, `jobs` at a time, each process on a ground of its own; the verdicts in their order.

    Raises:
        UnfitError: Something is found where nothing was planted, or a hunter cannot look.
    """
    with (
        tempfile.TemporaryDirectory(prefix="podium-mutants-") as folder,
        ProcessPoolExecutor(jobs, SPAWNS, enter_ground, (folder, hunters)) as workers,
    ):
        hunts = [workers.submit(use_ground, mutant) for mutant in (None, *mutants)]
        try:
            for hunt in as_completed(hunts):
                tell(hunt.result())
        finally:
            workers.shutdown(wait=False, cancel_futures=True)
        return [verdict for hunt in hunts if (verdict := hunt.result()) is not None]


_GROUNDS: list[Ground] = []
"""The ground of this process, once it has one."""


def enter_ground(folder: str, hunters: Sequence[Hunter]) -> None:
    """Begin to work in a process of its own."""
    _GROUNDS.append(Ground(Path(folder, str(os.getpid())), hunters))


def use_ground(mutant: Mutant | None) -> Verdict | None:
    """Judge a mutant; with None see that the ground is clean."""
    if mutant is not None:
        return _GROUNDS[0].judge(mutant)
    _GROUNDS[0].check()
    return None


def tell(verdict: Verdict | None) -> None:
    """Say on standard error what came of a mutant, or of none."""
    if verdict is None:
        print("nothing is found where nothing was planted", file=sys.stderr, flush=True)
        return
    mutant = verdict.mutant
    what = f"killed by {verdict.killer}" if verdict.killer is not None else "SURVIVES"
    print(f"{mutant.file:18} {mutant.name:42} {verdict.seconds:6.1f} s  {what}", file=sys.stderr, flush=True)


def report(verdicts: Sequence[Verdict], seconds: float) -> str:
    """The figures, and every survivor."""
    killed = [verdict for verdict in verdicts if verdict.killer is not None]
    killers = Counter(verdict.killer for verdict in killed)
    lines = [f"{killers[hunter.name]:4} killed by {hunter.name}" for hunter in HUNTERS if killers[hunter.name]]
    for verdict in verdicts:
        if verdict.killer is None:
            mutant = verdict.mutant
            lines.append(f"{mutant.file}: {mutant.name} survives ({mutant.rule}: {mutant.breaks}); {reason_of(mutant)}")
    share = len(killed) / len(verdicts)
    return "\n".join([*lines, f"{len(killed)}/{len(verdicts)} killed ({share:.1%}) in {seconds:.0f} s"])


def report_as_json(verdicts: Sequence[Verdict], seconds: float) -> str:
    """The same as a document."""
    rows = [
        {
            "name": verdict.mutant.name,
            "file": verdict.mutant.file,
            "rule": verdict.mutant.rule,
            "breaks": verdict.mutant.breaks,
            "killer": verdict.killer,
            "survives": verdict.mutant.survives if verdict.killer is None else "",
            "seconds": round(verdict.seconds, 1),
        }
        for verdict in verdicts
    ]
    killed = sum(verdict.killer is not None for verdict in verdicts)
    return json.dumps({"killed": killed, "total": len(rows), "seconds": round(seconds), "mutants": rows}, indent=2)


def reason_of(mutant: Mutant) -> str:
    return mutant.survives or "nobody has said why: a test is missing"


def is_good(verdicts: Sequence[Verdict]) -> bool:
    """Whether enough was killed, and each survivor has its reason."""
    survivors = [verdict.mutant for verdict in verdicts if verdict.killer is None]
    return len(survivors) <= (1 - LEAST_KILLED) * len(verdicts) and all(mutant.survives for mutant in survivors)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description="Plants faults in the core.")
    parser.add_argument("names", nargs="*", help="only these mutants, or those of these files, such as fence.py")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        mutants = read()
        unfit = misfits(mutants)
        chosen = [one for one in mutants if not options.names or {one.name, one.file} & set(options.names)]
        if unfit or not chosen:
            raise UnfitError("\n".join(unfit) or f"no mutant or file is called {' or '.join(options.names)}")
        verdicts = judge_all(chosen, options.jobs)
    except UnfitError as error:
        print(error, file=sys.stderr)
        return 2
    seconds = time.monotonic() - began
    print(report_as_json(verdicts, seconds) if options.json else report(verdicts, seconds))
    return 0 if is_good(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
