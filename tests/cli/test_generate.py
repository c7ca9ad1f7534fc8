"""`podium generate`, with an engine that follows a script: what goes where, what is saved, and how it ends."""

from __future__ import annotations

import json
import signal
import wave
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner
from typer.testing import Result as Invocation

from podium.cli import generate as verb
from podium.cli.main import app
from podium.core.effects import Outcome
from podium.core.events import FinishReason
from podium.errors import (
    DeadlineExceededError,
    ErrorKind,
    ErrorRecord,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    PodiumError,
    Scope,
    StageUnavailableError,
    StartError,
    StopUnconfirmedError,
)
from podium.payloads import Text
from podium.runtime.outputs import OmniOutput
from tests.cli.fake_engine import RATE, FakeEngine, finish, speech, text

Run = Callable[..., Invocation]


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def good_engine() -> FakeEngine:
    return FakeEngine(
        text("Hello "), speech(0.5), text("world."), finish("thinker"), speech(1.0, level=-0.25), finish("speaker")
    )


def error_record(kind: ErrorKind, message: str, **fields: object) -> ErrorRecord:
    return ErrorRecord(kind=kind, scope=Scope.REQUEST, message=message, **fields)  # type: ignore[arg-type]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run `podium generate echo …` on an engine, with files in the test's own folder."""

    def invoke(engine: FakeEngine, *arguments: str, stdin: str = "") -> Invocation:
        monkeypatch.setattr(verb, "open_engine", engine.open)
        monkeypatch.setenv("COLUMNS", "200")
        command = ["generate", "echo", "--out", str(tmp_path / "out"), *arguments]
        return CliRunner().invoke(app, command, input=stdin, catch_exceptions=False)

    return invoke


def test_text_goes_to_stdout_and_everything_else_to_stderr(run: Run, tmp_path: Path) -> None:
    result = run(good_engine(), "hi")

    assert result.exit_code == 0
    assert result.stdout == "Hello world.\n"
    lines = [" ".join(line.split()) for line in result.stderr.splitlines()]
    assert "thinker 0.00 s 0.10 s 0.25 s 1.00 s stop" in lines
    assert "speaker 0.25 s 0.50 s 0.75 s 2.00 s stop" in lines
    assert "first text 0.25 s · first speech 0.75 s · audio 1.50 s · real-time factor 1.33" in lines
    assert f"saved {tmp_path}/out/text.txt, {tmp_path}/out/speech.wav" in lines
    assert "request generated-1: completed" in lines


def test_what_looks_like_markup_is_shown_as_it_is(run: Run, tmp_path: Path) -> None:
    engine = good_engine()
    result = run(engine, "hi", "--request-id", "[/b][red]x", "--out", str(tmp_path / "[/i]"))

    assert result.exit_code == 0
    assert "request [/b][red]x: completed" in result.stderr
    assert f"saved {tmp_path}/[/i]/text.txt" in result.stderr


def test_starting_is_shown_on_stderr(run: Run) -> None:
    result = run(good_engine(), "hi")

    assert "thinker: loading [weights]" in result.stderr
    assert "speaker: loading [weights]" in result.stderr


def test_files_hold_what_was_produced(run: Run, tmp_path: Path) -> None:
    run(good_engine(), "hi")

    assert (tmp_path / "out" / "text.txt").read_text(encoding="utf-8") == "Hello world."
    with wave.open(str(tmp_path / "out" / "speech.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        assert file.getnframes() == round(1.5 * RATE)


def test_json_is_one_document(run: Run, tmp_path: Path) -> None:
    result = run(good_engine(), "hi", "--json")

    assert json.loads(result.stdout) == {
        "pipeline": "echo",
        "request_id": "generated-1",
        "outcome": "completed",
        "text": "Hello world.",
        "files": {"text": f"{tmp_path}/out/text.txt", "speech": f"{tmp_path}/out/speech.wav"},
        "finish_reasons": {"text": "stop", "speech": "stop"},
        "usage": {"text": {"pieces": 2}, "speech": {"pieces": 2}},
        "timings": {
            "first_text_s": pytest.approx(0.25),
            "first_speech_s": pytest.approx(0.75),
            "total_s": pytest.approx(2.0),
            "audio_s": pytest.approx(1.5),
            "real_time_factor": pytest.approx(2.0 / 1.5),
            "stages": {
                "thinker": {
                    "queued_s": 0.0,
                    "started_s": pytest.approx(0.1),
                    "first_output_s": pytest.approx(0.25),
                    "finished_s": 1.0,
                },
                "speaker": {
                    "queued_s": pytest.approx(0.25),
                    "started_s": 0.5,
                    "first_output_s": 0.75,
                    "finished_s": 2.0,
                },
            },
        },
        "error": None,
    }


@pytest.mark.case("B076")
def test_everything_that_was_typed_reaches_the_engine(run: Run, tmp_path: Path) -> None:
    engine = good_engine()
    run(
        engine,
        "hi",
        *("--outputs", "text, speech", "--deadline", "2.5", "--priority", "-1", "--request-id", "mine"),
        *("--param", "thinker.delay_s=5", "--param", "speaker.tone_s=0.5"),
        *("--journal", str(tmp_path / "logs" / "steps.journal")),
    )

    assert engine.opened == [("echo", tmp_path / "logs" / "steps.journal")]
    assert engine.calls == [
        {
            "prompt": "hi",
            "outputs": ("text", "speech"),
            "params": {"thinker": {"delay_s": 5}, "speaker": {"tone_s": 0.5}},
            "deadline_s": 2.5,
            "priority": -1,
            "request_id": "mine",
            "n": 1,
        }
    ]


def test_nothing_typed_is_nothing_set(run: Run) -> None:
    engine = good_engine()
    run(engine, "hi")

    (call,) = engine.calls
    assert (call["outputs"], call["params"], call["deadline_s"], call["request_id"]) == (None, {}, None, None)


def test_the_prompt_comes_from_standard_input_or_a_file(run: Run, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    (tmp_path / "chat.json").write_text(json.dumps(messages), encoding="utf-8")
    engine = good_engine()

    run(engine, "-", stdin="from a pipe")
    run(engine, "--messages", str(tmp_path / "chat.json"))

    assert [call["prompt"] for call in engine.calls] == ["from a pipe", messages]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "prompt: give either PROMPT or --messages FILE.json"),
        (["hi", "--messages", "x.json"], "prompt: give either PROMPT or --messages FILE.json"),
        (["--messages", "none.json"], "--messages none.json: cannot be read: No such file or directory;"),
        (["hi", "--outputs", ","], "--outputs: names no output; give names like text,speech or leave it out"),
        (["hi", "--param", "seed=1"], "--param seed=1: is not stage.name=value;"),
        (["hi", "--param", "a.b"], "--param a.b: is not stage.name=value;"),
        (["hi", "--journal", "/dev/null/steps"], "--journal /dev/null/steps: cannot be written: File exists;"),
        (["hi", "--deadline", "0"], "--deadline: 0.0 is no positive number of seconds"),
        (["hi", "--outputs", "video"], "outputs: this pipeline has no output 'video'; ask for some of: text, speech"),
        (["hi", "--param", "thinkr.delay_s=1"], "params: unknown stage 'thinkr'; did you mean 'thinker'?"),
        (["hi", "--param", "a.b={"], "--param a.b={: the value cannot be read;"),
    ],
)
def test_what_was_typed_wrong_is_one_line_and_exit_code_2(run: Run, arguments: list[str], message: str) -> None:
    engine = good_engine()
    result = run(engine, *arguments)

    assert (result.exit_code, result.stdout, engine.calls) == (2, "", [])
    assert result.stderr.startswith(f"error: invalid_request: {message}")
    assert len(result.stderr.splitlines()) == 1


def test_messages_that_are_no_json_are_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_text("[{", encoding="utf-8")
    result = run(good_engine(), "--messages", str(tmp_path / "chat.json"), "--json")

    error = json.loads(result.stdout)["error"]
    assert error["kind"] == "invalid_request"
    assert "is not JSON" in error["message"]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            InvalidRequestError.because("output 'video': there is none; use one of: text, speech"),
            2,
            "error: invalid_request: output 'video': there is none; use one of: text, speech",
        ),
        (
            StageUnavailableError(error_record(ErrorKind.REPLICA_LOST, "the process died", stage="thinker")),
            69,
            "error: replica_lost in stage 'thinker': the process died (see the log above for what the stage said)",
        ),
        (
            OverloadedError(error_record(ErrorKind.OVERLOADED, "4096 requests are open", retry_after_s=1.5)),
            75,
            "error: overloaded: 4096 requests are open (try again in 1.5 s)",
        ),
        (
            DeadlineExceededError(error_record(ErrorKind.DEADLINE_EXCEEDED, "the deadline of 2 s passed")),
            124,
            "error: deadline_exceeded: the deadline of 2 s passed (raise --deadline)",
        ),
    ],
)
def test_a_failed_request_ends_with_one_line_and_its_exit_code(
    run: Run, error: PodiumError, code: int, line: str
) -> None:
    result = run(FakeEngine(text("Hel"), error, outcome=Outcome.FAILED), "hi")

    assert (result.exit_code, result.stdout) == (code, "Hel\n")
    assert result.stderr.splitlines()[-1] == line


def test_a_failed_request_is_one_document_with_what_came_before(run: Run, tmp_path: Path) -> None:
    lost = StageUnavailableError(error_record(ErrorKind.REPLICA_LOST, "the engine process died", stage="thinker"))
    result = run(FakeEngine(text("Hel"), lost, outcome=Outcome.FAILED), "hi", "--json")

    document = json.loads(result.stdout)
    assert (document["outcome"], document["text"]) == ("failed", "Hel")
    assert document["files"] == {"text": f"{tmp_path}/out/text.txt"}
    assert document["finish_reasons"] == {"text": None}
    assert document["error"] == {
        "kind": "replica_lost",
        "message": "the engine process died",
        "stage": "thinker",
        "hint": "see the log above for what the stage said",
        "status": 503,
        "exit_code": 69,
        "faults": [],
    }


def test_an_engine_that_does_not_start(run: Run) -> None:
    engine = good_engine()
    engine.start_error = StartError("thinker", "no weights")
    result = run(engine, "hi", "--json")

    document = json.loads(result.stdout)
    assert result.exit_code == 69
    assert (document["outcome"], document["text"], document["files"]) == (None, None, {})
    assert document["error"]["message"] == "stage 'thinker' did not start: no weights"


def test_an_engine_that_fails_to_shut_down_is_told_after_the_report(run: Run) -> None:
    engine = good_engine()
    engine.close_error = InternalError("a table is not empty")
    result = run(engine, "hi", "--json")

    assert json.loads(result.stdout)["outcome"] == "completed"
    assert result.exit_code == 70
    assert "error: internal: a table is not empty" in result.stderr


def test_a_faulty_pipeline_file_is_refused_with_its_faults(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("nam: mine\nstages: {}\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["generate", str(file), "hi", "--json"])

    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["kind"]) == (2, "configuration")
    assert [(fault["line"], fault["where"]) for fault in error["faults"]] == [(1, "nam"), (2, "stages")]


def test_missing_modules_are_told_before_anything_starts(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\nrequires: [no_such_module]\ninstall: make it\nstages:\n"
        "  a: {kind: function, produces: text, output: text, backend: function, options: {function: 'operator:neg'}}\n",
        encoding="utf-8",
    )
    result = CliRunner().invoke(app, ["generate", str(file), "hi"])

    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: configuration: pipeline 'mine': 1 fault",
        "  requires: not installed: no_such_module; install what it needs: make it",
    ]


def test_a_folder_that_cannot_be_written_fails_after_the_text(run: Run, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("in the way", encoding="utf-8")
    result = run(good_engine(), "hi")

    assert (result.exit_code, result.stdout) == (1, "Hello world.\n")
    assert result.stderr.splitlines()[-1] == (
        f"error: not_saved: cannot save to {tmp_path}/out: File exists (choose another --out)"
    )


def test_an_output_that_is_not_what_its_stage_declares_is_no_success(run: Run, tmp_path: Path) -> None:
    plain = [msgspec.structs.replace(text(""), delta=word) for word in ("HI", "THERE")]
    result = run(FakeEngine(*plain, finish("thinker"), speech(0.5), finish("speaker")), "hi")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == (
        "error: not_saved: stage 'thinker' gave str as the output 'text', which is text; give podium.Text"
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["speech.wav"], "the rest is saved"


@pytest.mark.rule("ORCH-INV-205", "ORCH-INV-207")
def test_ctrl_c_aborts_and_saves_what_was_produced(run: Run, tmp_path: Path) -> None:
    engine = FakeEngine(outcome=Outcome.ABORTED)
    engine.script = (
        text("Hello "),
        speech(0.5),
        interrupt,
        engine.aborted,
        finish("thinker", FinishReason.ABORT, partial=Text("Hello wor")),
        finish("speaker", FinishReason.ABORT),
    )
    result = run(engine, "hi")

    assert (result.exit_code, result.stdout) == (130, "Hello \nwor\n")
    assert engine.aborts == [(("generated-1",), "stopped")]
    assert (tmp_path / "out" / "text.txt").read_text(encoding="utf-8") == "Hello wor"
    assert (tmp_path / "out" / "speech.wav").exists()
    assert "stopping; Ctrl-C again quits at once" in result.stderr
    assert not engine.is_open


def test_ctrl_c_in_json_is_still_one_document(run: Run) -> None:
    engine = FakeEngine(outcome=Outcome.ABORTED)
    engine.script = (text("Hel"), interrupt, engine.aborted, finish("thinker", FinishReason.ABORT))
    result = run(engine, "hi", "--json")

    document = json.loads(result.stdout)
    assert (result.exit_code, document["outcome"], document["text"]) == (130, "aborted", "Hel")
    assert document["finish_reasons"] == {"text": "abort"}


def test_ctrl_c_while_the_engine_starts_gives_up(run: Run) -> None:
    engine = good_engine()
    engine.while_starting = interrupt
    result = run(engine, "hi", "--json")

    document = json.loads(result.stdout)
    assert (result.exit_code, document["outcome"], engine.calls) == (130, None, [])


def test_an_abort_that_is_not_confirmed_is_told_and_ends(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "ABORT_TIMEOUT_S", 0.0)
    record = error_record(ErrorKind.STOP_UNCONFIRMED, "stage 'thinker' did not confirm")
    engine = FakeEngine(outcome=None)
    engine.abort_error = StopUnconfirmedError(record)
    engine.script = (text("Hel"), interrupt, engine.aborted, finish("thinker"), *[lambda: None] * 50)
    result = run(engine, "hi")

    assert result.exit_code == 130
    assert "error: stop_unconfirmed: stage 'thinker' did not confirm" in result.stderr


def test_a_reader_that_went_away_ends_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_pipe(view: verb.View, shown: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(verb.View, "show", break_pipe)
    engine = good_engine()
    result = run(engine, "hi")

    assert result.exit_code == 1
    assert not engine.is_open


def sample(output: OmniOutput, index: int) -> OmniOutput:
    return msgspec.structs.replace(output, index=index)


@pytest.mark.rule("ORCH-INV-114")
def test_each_sample_is_saved_and_the_first_is_shown(run: Run, tmp_path: Path) -> None:
    engine = FakeEngine(
        sample(text("One"), 1), text("Zero"), speech(0.5), sample(speech(1.0), 1), sample(finish("thinker"), 1),
        finish("thinker"), finish("speaker"), sample(finish("speaker"), 1),
    )  # fmt: skip
    result = run(engine, "hi", "--n", "2")

    assert result.exit_code == 0
    assert engine.calls[0]["n"] == 2
    assert result.stdout == "Zero\n"
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"text-0.txt", "text-1.txt", "speech-0.wav", "speech-1.wav"}
    assert (tmp_path / "out" / "text-1.txt").read_text(encoding="utf-8") == "One"
    assert "text-1.txt" in result.stderr


def test_json_has_every_sample(run: Run, tmp_path: Path) -> None:
    engine = FakeEngine(text("Zero"), sample(text("One"), 1), finish("thinker"), sample(finish("thinker"), 1))
    document = json.loads(run(engine, "hi", "--n", "2", "--json").stdout)

    assert document["text"] == "Zero"
    assert [one["text"] for one in document["samples"]] == ["Zero", "One"]
    assert document["samples"][1]["files"] == {"text": f"{tmp_path}/out/text-1.txt"}
    assert document["samples"][1]["finish_reasons"] == {"text": "stop"}


def test_a_number_of_samples_that_makes_no_sense(run: Run) -> None:
    engine = good_engine()
    result = run(engine, "hi", "--n", "0")

    assert result.exit_code == 2
    assert "n: 0 makes no sense" in result.stderr
    assert engine.opened == []
