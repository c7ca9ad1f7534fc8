"""Plants faults in the core, one at a time, and sees that each is found: `make mutate`.

The faults are data: `mutants.toml`. Each is planted in a copy of the sources, never in the checkout, and hunted by one
hunter after another, the fastest first, until one finds it; a hunter that does not end has found it too. What nobody
finds survives: then a test is missing, or the entry says in `survives` why there can be none.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = ROOT / "tools" / "mutants.toml"
CORE = Path("podium", "core")
MEMORY_LIMIT_KIB = 4_000_000
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
    """A command that fails where there is a fault. `{own}` is the tests of the mutated file, `{scratch}` a folder."""

    name: str
    command: tuple[str, ...]
    timeout_s: float
    not_verdicts: tuple[int, ...] = ()
    """Exit codes that say nothing about the fault: then the hunter itself is wrong."""


@dataclass(frozen=True)
class Verdict:
    """What came of one mutant: `killer` is the hunter that found it, None when it survived."""

    mutant: Mutant
    killer: str | None
    seconds: float


def pytest_hunter(name: str, *arguments: str, timeout_s: float) -> Hunter:
    command = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments)
    return Hunter(name, command, timeout_s, not_verdicts=(3, 4, 5))


PODIUM = (sys.executable, "-c", "from podium.cli.main import app; app()")
WORLDS = ("loss", "failing-stops", "late", "drain", "join", "weights")
MACHINE = "tests/core/test_state_machine.py"
SUITE = ("tests/core", "tests/contract", "tests/cases")
HUNTERS = (
    pytest_hunter("its own tests", "{own}", "--timeout=30", timeout_s=180),
    pytest_hunter("other tests of the core", *SUITE, f"--ignore={MACHINE}", "--timeout=60", timeout_s=600),
    pytest_hunter("the random machine", MACHINE, timeout_s=600),
    Hunter(
        "the explorer",
        (*PODIUM, "explore", "--max-states=3000", "--journals={scratch}", *(f"--world={one}" for one in WORLDS)),
        timeout_s=600,
        not_verdicts=(2,),
    ),
    Hunter("the simulation", (*PODIUM, "simulate", "--seeds=300", "--jobs=1"), timeout_s=600, not_verdicts=(2,)),
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


class Ground:
    """A copy of the sources, in which one mutant at a time is planted."""

    def __init__(self, folder: Path) -> None:
        self._source = folder / "src"
        self._scratch = folder / "scratch"
        shutil.copytree(ROOT / "src", self._source, ignore=NOT_COPIED)
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(self._source)], check=True)

    def hunt(self, hunter: Hunter, own: str) -> bool:
        """Whether `hunter` finds a fault."""
        command = [part.format(own=own, scratch=self._scratch) for part in hunter.command]
        limited = ("sh", "-c", f'ulimit -v {MEMORY_LIMIT_KIB}; exec "$@"', "sh")
        process = subprocess.Popen(
            [*limited, *command],
            cwd=ROOT,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=hunter.timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return True
        if process.returncode in hunter.not_verdicts:
            raise UnfitError(f"{hunter.name}: exit code {process.returncode} of {' '.join(command)}\n{output}")
        return process.returncode != 0

    def judge(self, mutant: Mutant) -> Verdict:
        """Plant a mutant, and let one hunter after another look for it."""
        target = self._source / CORE / mutant.file
        original = target.read_text(encoding="utf-8")
        began = time.monotonic()
        self._write(target, mutant.planted(original))
        try:
            own = f"tests/core/test_{target.stem}.py"
            killer = next((hunter.name for hunter in HUNTERS if self.hunt(hunter, own)), None)
        finally:
            self._write(target, original)
        return Verdict(mutant, killer, time.monotonic() - began)

    def check(self) -> None:
        """See that nobody finds anything where nothing is planted.

        Raises:
            UnfitError: Somebody does.
        """
        question = [sys.executable, "-c", "import podium.core.state as one; print(one.__file__)"]
        asked = subprocess.run(question, cwd=ROOT, env=self._environment(), capture_output=True, text=True, check=True)
        if Path(asked.stdout.strip()) != self._source / CORE / "state.py":
            raise UnfitError(f"the hunters would look at {asked.stdout.strip()}, where nothing is planted")
        for hunter in HUNTERS[1:]:
            if self.hunt(hunter, ""):
                raise UnfitError(f"{hunter.name}: a fault is found where none was planted; repair that first")

    def _environment(self) -> Mapping[str, str]:
        return os.environ | {
            "PYTHONPATH": str(self._source),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PODIUM_PURE": "1",
            "PODIUM_HYPOTHESIS": "once",
        }

    @staticmethod
    def _write(target: Path, text: str) -> None:
        # Compiled files are told apart by size and second: one of another mutant could pass for this one's.
        for compiled in target.parent.glob(f"__pycache__/{target.stem}.*"):
            compiled.unlink()
        target.write_text(text, encoding="utf-8")


def judge_all(mutants: Sequence[Mutant], jobs: int) -> list[Verdict]:
    """Judge every mutant, `jobs` at a time, each in a copy of its own; the verdicts in the order of `mutants`."""
    with tempfile.TemporaryDirectory(prefix="podium-mutants-") as folder, ThreadPoolExecutor(jobs) as threads:
        grounds: queue.SimpleQueue[Ground] = queue.SimpleQueue()
        for number in range(jobs):
            grounds.put(Ground(Path(folder, str(number))))

        def judge(mutant: Mutant | None) -> Verdict | None:
            ground = grounds.get()
            try:
                if mutant is None:
                    ground.check()
                    return None
                verdict = ground.judge(mutant)
            finally:
                grounds.put(ground)
            told = f"killed by {verdict.killer}" if verdict.killer is not None else "SURVIVES"
            print(f"{mutant.file:18} {mutant.name:42} {verdict.seconds:6.1f} s  {told}", file=sys.stderr, flush=True)
            return verdict

        return [verdict for verdict in threads.map(judge, [None, *mutants]) if verdict is not None]


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
