"""A journal has every step, and a core that is run on it again answers the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from podium.core.effects import Effect, EmitOutput, StartJob
from podium.core.events import (
    AbortRequested,
    AckLevel,
    Event,
    Finish,
    FinishReason,
    InputAppended,
    JobOutput,
    ReplicaJoined,
    ReplicaLost,
    RequestSubmitted,
    ShutdownRequested,
    StageProduced,
    StageStarted,
    StageStopped,
)
from podium.core.graph import Graph
from podium.core.identity import JobKey, ReplicaKey
from podium.core.orchestrator import Orchestrator
from podium.errors import ConfigurationError
from podium.payloads import Audio, Text
from podium.runtime import journal
from podium.runtime.host import STOPPED
from podium.runtime.journal import Journal, replay
from tests.support.broken_core import BrokenCore
from tests.support.core_world import a_loss, make_stage, streaming

GRAPH = Graph([make_stage("a", output="text"), make_stage("b", streaming("a"), output="speech")])
A, B = ReplicaKey("a", 0, 0), ReplicaKey("b", 0, 0)


class Recorded:
    """A core whose every step goes to a journal, as the driver does it."""

    def __init__(self, journal: Journal) -> None:
        self.core = Orchestrator(GRAPH)
        self._journal = journal
        self._now = 100.0
        self._tickets = 0
        journal.on_start(self.core)

    def tell(self, *events: Event, after_s: float = 0.1) -> list[Effect]:
        self._now += after_s
        effects = self.core.step(events, self._now)
        self._journal.on_step(events, self._now, effects)
        self._journal.on_cost(len(events), 0.0)
        return effects

    def submit(self, prompt: object = "the prompt", *, input_open: bool = False) -> JobKey:
        self._tickets += 1
        request = RequestSubmitted(
            ticket=self._tickets,
            request_id=f"r{self._tickets}",
            prompt=prompt,
            params={"a": "parameters", "b": None},
            input_open=input_open,
            deadline=self._now + 1 / 3,
        )
        return next(effect.job for effect in self.tell(request) if isinstance(effect, StartJob))

    def produce(
        self, replica: ReplicaKey, job: JobKey, *payloads: object, at: int = 0, last: bool = False
    ) -> list[Effect]:
        finish = Finish(FinishReason.STOP, {"n": 1}) if last else None
        return self.tell(StageProduced(replica, (JobOutput(job, at, payloads, finish),)))

    def serve_one(self, *payloads: object) -> None:
        """One request from begin to end."""
        job = self.submit()
        effects = self.produce(A, job, *payloads, last=True)
        follower = next(effect.job for effect in effects if isinstance(effect, StartJob))
        self.produce(B, follower, *payloads, last=True)


@contextmanager
def recorded(path: Path, **options: object) -> Iterator[Recorded]:
    journal = Journal(path, **options)  # type: ignore[arg-type]
    try:
        world = Recorded(journal)
        world.tell(ReplicaJoined(A), ReplicaJoined(B))
        yield world
    finally:
        journal.on_end()


def everything(world: Recorded) -> None:
    """Requests that end in every way, with every kind of event that has payloads."""
    world.serve_one("hello", "world")
    job = world.submit(input_open=True)
    world.tell(StageStarted(A, job), InputAppended(2, "r2", ("more",), last=True))
    world.produce(A, job, "part")
    world.tell(AbortRequested(1, ("r2", "nobody"), AckLevel.STOPPED, 1e6))
    for effect in world.tell(StageStopped(A, job, "part of it")):
        assert not isinstance(effect, StartJob)
    for number in (3, 4):
        world.submit()
        world.tell(after_s=50.0)  # its deadline passes
        assert world.core.statistics().counters.failed == number - 2
    world.submit()
    world.tell(ReplicaLost(A, a_loss()))
    world.tell(ShutdownRequested(STOPPED))


@pytest.mark.rule("ORCH-INV-003")
@pytest.mark.parametrize("keeps_payloads", [False, True])
def test_a_replay_gives_the_same(tmp_path: Path, keeps_payloads: bool) -> None:
    with recorded(tmp_path / "j", keeps_payloads=keeps_payloads) as world:
        everything(world)
    report = replay(tmp_path / "j")
    assert report.differences == ()
    assert report.is_same
    assert not report.is_cut
    assert report.steps > 12
    assert report.events >= report.steps - 3


def test_payloads_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    with recorded(tmp_path / "j") as world:
        everything(world)
    bare = (tmp_path / "j").read_text()
    assert not any(word in bare for word in ("hello", "the prompt", "parameters", "more", "part of it"))
    with recorded(tmp_path / "k", keeps_payloads=True) as world:
        everything(world)
    whole = (tmp_path / "k").read_text()
    assert all(word in whole for word in ("hello", "the prompt", "parameters", "more", "part of it"))


@pytest.mark.parametrize(
    "payload",
    [
        Text("hello", (1, 2)),
        Audio(np.array([0.25, -1.0], dtype=np.float32), 24_000),
        np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::-1],
        {"a": [1, 2.5, None]},
        b"bytes",
        object(),
    ],
    ids=lambda payload: type(payload).__name__,
)
def test_payloads_that_are_kept_replay_too(tmp_path: Path, payload: object) -> None:
    with recorded(tmp_path / "j", keeps_payloads=True) as world:
        world.serve_one(payload)
    assert replay(tmp_path / "j").is_same


def test_arrays_are_written_with_type_and_shape(tmp_path: Path) -> None:
    with recorded(tmp_path / "j", keeps_payloads=True) as world:
        world.serve_one(np.array([[1, 2]], dtype=np.int16))
    assert '{"dtype":"int16","shape":[1,2],"base64":"AQACAA=="}' in (tmp_path / "j").read_text()


def test_steps_in_which_nothing_happened_are_not_written(tmp_path: Path) -> None:
    with recorded(tmp_path / "j") as world:
        before = (tmp_path / "j").read_bytes()
        world.tell()
        assert (tmp_path / "j").read_bytes() == before


def test_each_line_is_there_as_soon_as_it_happened(tmp_path: Path) -> None:
    """After a crash, the file has everything but what is being written."""
    with recorded(tmp_path / "j") as world:
        world.submit()
        assert replay(tmp_path / "j").steps == 2


# What a replay finds


def test_a_different_answer_is_found(tmp_path: Path) -> None:
    with recorded(tmp_path / "j") as world:
        world.serve_one("x")
    lines = (tmp_path / "j").read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace('"job":["r1"', '"job":["r9"')
    (tmp_path / "j").write_text("".join(lines))
    report = replay(tmp_path / "j")
    assert not report.is_same
    (difference,) = report.differences
    assert difference.line == 3
    assert '"r9"' in difference.recorded
    assert '"r1"' in difference.replayed


def test_differences_have_a_limit(tmp_path: Path) -> None:
    with recorded(tmp_path / "j") as world:
        for _ in range(10):
            world.serve_one("x")
    lines = [line.partition('"effects":') for line in (tmp_path / "j").read_text().splitlines(keepends=True)]
    (tmp_path / "j").write_text("".join(f"{begin}{key}{end.replace('main', 'other')}" for begin, key, end in lines))
    report = replay(tmp_path / "j", max_differences=3)
    assert len(report.differences) == 3
    assert report.steps == report.differences[-1].line - 1 < 20
    assert len(replay(tmp_path / "j").differences) == 20


@pytest.mark.rule("ORCH-INV-203")
def test_the_step_that_broke_the_core_breaks_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded(tmp_path / "j") as world:
        world.submit()
        world._journal.on_step([ReplicaLost(A, a_loss())], 200.0, ())

    monkeypatch.setattr(journal, "Orchestrator", lambda *arguments: BrokenCore(Orchestrator(*arguments), ReplicaLost))
    report = replay(tmp_path / "j")
    (difference,) = report.differences
    assert (difference.line, difference.recorded) == (4, "[]")
    assert difference.replayed == "the step raised InternalError: the planted fault"


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_last_line_that_was_cut_is_said(tmp_path: Path, cut: int) -> None:
    with recorded(tmp_path / "j") as world:
        world.serve_one("x")
    whole = (tmp_path / "j").read_bytes().rstrip(b"\n")
    (tmp_path / "j").write_bytes(whole[:-cut])
    report = replay(tmp_path / "j")
    assert report.is_cut
    assert report.is_same
    assert report.steps == whole.count(b"\n") - 1


def test_a_damaged_line_in_the_middle_is_refused(tmp_path: Path) -> None:
    with recorded(tmp_path / "j") as world:
        world.serve_one("x")
    lines = (tmp_path / "j").read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:20] + b"\n"
    (tmp_path / "j").write_bytes(b"".join(lines))
    with pytest.raises(ConfigurationError, match=r"line 3 is damaged.*keep only the lines before it"):
        replay(tmp_path / "j")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no journal of podium"),
        (b"hello\n", "is no journal of podium"),
        (b"\xff\xfe\x00\n", "is no journal of podium"),
        (b"[]\n", "is no journal of podium"),
        (b'{"format": 1}\n', "is no journal of podium"),
        (
            b'{"format": 2, "anything": "else"}\n',
            "has format 2, not 1; replay it with the podium version that wrote it",
        ),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        replay(tmp_path / "j")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="cannot be read: No such file or directory; give the path of a journal"
    ):
        replay(tmp_path / "nothing")


# Writing


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"cannot be written: .*; give a path that can be written"):
        Journal(tmp_path / "file" / "j")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        Journal(tmp_path)


def test_folders_are_made(tmp_path: Path) -> None:
    with recorded(tmp_path / "some" / "where" / "j"):
        pass
    assert replay(tmp_path / "some" / "where" / "j").is_same


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_at_its_limit_is_continued_and_each_replays_by_itself(tmp_path: Path) -> None:
    with recorded(tmp_path / "j", max_bytes=6000, max_files=3) as world:
        for _ in range(60):
            world.serve_one("x")
        world.tell(ReplicaLost(A, a_loss()))
    assert files_of(tmp_path) == ["j", "j.1", "j.2"]
    for name in files_of(tmp_path):
        report = replay(tmp_path / name)
        assert report.is_same, name
        assert report.steps >= 1
        assert not report.is_cut
    assert (tmp_path / "j.1").stat().st_size < 12_000


def test_it_is_continued_only_when_nothing_is_under_way(tmp_path: Path) -> None:
    with recorded(tmp_path / "j", max_bytes=2000, max_files=2) as world:
        job = world.submit()
        for number in range(10):
            world.produce(A, job, "x", at=number)
        assert files_of(tmp_path) == ["j"], "a request is open"
        world.tell(ShutdownRequested(STOPPED))
        world.tell(StageStopped(A, job))
    assert len(files_of(tmp_path)) == 1, "its successor has not ended"


def test_what_is_never_idle_has_an_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with recorded(tmp_path / "j", max_bytes=1000) as world:
        job = world.submit()
        for number in range(100):
            world.produce(A, job, "x", at=number)
        size = (tmp_path / "j").stat().st_size
        assert 4000 < size < 8000
    assert "is full and was never idle; it is closed" in caplog.text
    report = replay(tmp_path / "j")
    assert report.is_same
    assert not report.is_cut


def test_a_disk_that_fails_ends_the_journal_not_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with recorded(tmp_path / "j") as world:

        def fail(line: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(world._journal, "_write", fail)
        world.submit()
        world.submit()
    assert caplog.text.count("No space left on device") == 1
    assert repr(world._journal).startswith("<Journal ")


def test_a_rotation_that_fails_ends_the_journal_not_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", fail)
    with recorded(tmp_path / "j", max_bytes=1000) as world:
        for _ in range(10):
            world.serve_one("x")
    assert caplog.text.count("cannot be written and is closed") == 1


def test_the_header_is_enough_to_begin(tmp_path: Path) -> None:
    with recorded(tmp_path / "j"):
        pass
    header = msgspec.json.decode((tmp_path / "j").read_bytes().splitlines()[0])
    assert header["format"] == 1
    assert [stage["name"] for stage in header["stages"]] == ["a", "b"]
    assert header["limits"]["max_requests"] > 0


def test_a_long_life_replays(tmp_path: Path) -> None:
    with recorded(tmp_path / "j") as world:
        for number in range(50):
            world.serve_one(*("x" * (1 + number % 4)))
            if number % 7 == 3:
                world.submit()
                world.tell(after_s=1.0)
        assert any(isinstance(effect, EmitOutput) for effect in world.produce(A, world.submit(), "y"))
    report = replay(tmp_path / "j")
    assert report.is_same
    assert report.steps > 150
