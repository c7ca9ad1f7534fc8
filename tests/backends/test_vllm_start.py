"""How a vLLM engine is brought up, as far as that needs no vLLM: models, broken installations, signals, processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from podium.backends.vllm.options import VllmOptions
from podium.backends.vllm.start import Start, import_vllm, resolve_model, terminal_interrupts_blocked
from podium.errors import StartError

START = "podium.backends.vllm.start"


def prepare_here(progress: Callable[[str], None], is_abandoned: Callable[[], bool]) -> Path:
    progress("preparing")
    return Path("/prepared") / str(is_abandoned())


def prepare_badly(progress: Callable[[str], None], is_abandoned: Callable[[], bool]) -> Path:
    raise RuntimeError("the disk is full: make room")


def never() -> bool:
    return False


def test_a_model_is_a_directory_a_name_or_what_a_function_prepares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prepares", sys.modules[__name__])
    said: list[str] = []
    assert resolve_model("s", str(tmp_path), said.append, never) == str(tmp_path)
    assert resolve_model("s", "someone/model", said.append, never) == "someone/model"
    assert said == []
    assert resolve_model("s", "prepares:prepare_here", said.append, never) == "/prepared/False"
    assert said == ["preparing"]


def test_a_model_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prepares", sys.modules[__name__])
    with pytest.raises(
        StartError, match=r"stage 's' did not start: options.model: there is no directory /nowhere; give"
    ):
        resolve_model("s", "/nowhere", print, never)
    with pytest.raises(StartError, match="could not be prepared: the disk is full: make room"):
        resolve_model("s", "prepares:prepare_badly", print, never)


def test_a_missing_or_broken_vllm_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> Callable[[str], types.ModuleType]:
        def import_module(name: str) -> types.ModuleType:
            raise error

        return import_module

    monkeypatch.setattr(f"{START}.find_spec", lambda name: None)
    with pytest.raises(StartError, match=r"vLLM is not installed; install it: `pip install 'podium\[vllm\]'`"):
        import_vllm("s")
    monkeypatch.setattr(f"{START}.find_spec", lambda name: object())
    monkeypatch.setattr(f"{START}.import_module", fail(RuntimeError("operator torchvision::nms does not exist")))
    with pytest.raises(
        StartError, match=r"torchvision::nms does not exist; these builds break vLLM .*: `pip uninstall torchvision"
    ):
        import_vllm("s")
    monkeypatch.setattr(f"{START}.import_module", fail(ImportError("libfoo.so is missing")))
    with pytest.raises(StartError, match=r"cannot be imported: libfoo.so is missing; install it"):
        import_vllm("s")


def test_another_version_of_vllm_is_tried_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vllm = types.ModuleType("vllm")
    vars(vllm)["__version__"] = "0.99.1"
    monkeypatch.setattr(f"{START}.find_spec", lambda name: object())
    monkeypatch.setattr(f"{START}.import_module", lambda name: vllm)
    import_vllm("s")
    assert "made for vLLM 0.32.x, found 0.99.1" in caplog.text


def test_interrupts_are_blocked_for_what_is_started_only() -> None:
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with terminal_interrupts_blocked():
        inside = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    outside = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (inside.stdout.strip(), outside.stdout.strip()) == ("True", "False")
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.rule("ORCH-INV-302")
def test_a_start_that_was_abandoned_before_it_had_processes_starts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_slowly(stage: str) -> None:
        assert starting.abandon() == pytest.approx(2.0)

    monkeypatch.setattr(f"{START}.import_vllm", import_slowly)
    monkeypatch.setattr(f"{START}._configure", lambda *arguments: pytest.fail("it went on"))
    starting = Start("s", VllmOptions(model=str(tmp_path)))
    with pytest.raises(StartError, match="was abandoned"):
        starting.run()


@pytest.mark.rule("ORCH-INV-302")
def test_a_process_tree_ends_with_all_that_it_started() -> None:
    pytest.importorskip("psutil")
    from podium.backends.vllm.processes import ProcessTree  # noqa: PLC0415 - needs psutil

    code = (
        "import subprocess, sys; "
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE); "
        "print(child.pid, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        tree = ProcessTree([Joinable(process)])
        assert set(tree.pids) == {process.pid, grandchild}
        tree.kill(5.0)
        assert tree.pids == ()
        assert process.returncode == -signal.SIGKILL
        tree.kill(5.0)


class Joinable:
    """A subprocess as `multiprocessing` would show it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def join(self, timeout: float | None = None) -> None:
        self._process.wait(timeout)
