"""`podium generate voice` as a process of its own: what a program, and what a person at a terminal, gets of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from podium.payloads import Audio
from tests.real.processes import descendants, still_running
from tests.real.speech_figures import measure

QUESTION = "Why is the sky blue?"

pytestmark = pytest.mark.timeout(600)


@contextlib.contextmanager
def podium(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, running in `folder` as a group of its own; it is killed if it outlives the block."""
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("podium")), "generate", "voice", QUESTION, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def read_wav(path: Path) -> Audio:
    with wave.open(str(path), "rb") as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
    return Audio(samples.astype(np.float32) / 32767.0, 24_000)


def test_json_is_one_document_with_text_path_and_timings(tmp_path: Path) -> None:
    """And standard error has progress, and nothing that a user has to worry about."""
    with podium(tmp_path, "--json", "--out", "made", "--param", "thinker.max_tokens=48") as process:
        stdout, stderr = process.communicate(timeout=240)
    document = json.loads(stdout)
    assert process.returncode == 0
    assert document["outcome"] == "completed"
    assert document["error"] is None
    assert "sky" in document["text"].lower()
    assert document["files"] == {"text": "made/text.txt", "speech": "made/speech.wav"}
    assert (tmp_path / "made" / "text.txt").read_text(encoding="utf-8") == document["text"]
    speech = read_wav(tmp_path / "made" / "speech.wav")
    assert measure(speech).is_speech
    timings = document["timings"]
    assert timings["audio_s"] == pytest.approx(speech.duration_s)
    assert 1.5 < len(document["text"].split()) / speech.duration_s < 4.5
    assert 0 < timings["first_text_s"] < timings["first_speech_s"] <= timings["total_s"]
    assert document["usage"]["text"]["completion_tokens"] <= 48
    check_progress(stderr.decode())


def check_progress(said: str) -> None:
    lines = said.splitlines()
    assert any("thinker: ready" in line for line in lines), said
    strange = [line for line in lines if not any(f"{stage}: " in line for stage in ("thinker", "speaker"))]
    assert strange == [], "warnings of libraries, or worse"


@pytest.mark.rule("ORCH-INV-205")
def test_ctrl_c_saves_what_was_produced_and_leaves_no_process(tmp_path: Path) -> None:
    """It goes to every process of the terminal, as the terminal does it."""
    endless = ("--param", "thinker.max_tokens=1500", "--param", "thinker.ignore_eos=true")
    with podium(tmp_path, *endless) as process:
        assert process.stdout is not None
        streamed = process.stdout.read(1)  # the engine is up, and answers
        deadline = time.monotonic() + 60
        while len(streamed.split()) < 10:
            assert time.monotonic() < deadline
            streamed += process.stdout.read(1)
        processes = descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        rest, stderr = process.communicate(timeout=60)
        assert still_running(processes) == {}
    assert process.returncode == 130, stderr.decode()
    text = (tmp_path / "podium-out" / "text.txt").read_text(encoding="utf-8")
    assert (streamed + rest).decode().rstrip("\n") == text.rstrip("\n")
    assert "aborted" in stderr.decode()
    assert "Traceback" not in stderr.decode()
