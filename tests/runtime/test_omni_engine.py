"""The engine for synchronous callers: results in input order, one failure alone, and nobody left waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from podium.core.effects import AbortStatus, Outcome
from podium.core.events import FinishReason
from podium.core.graph import Balance
from podium.errors import (
    EngineStoppedError,
    InvalidRequestError,
    StageFailedError,
    StageUnavailableError,
    StartError,
)
from podium.payloads import Text
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.omni_engine import OmniEngine
from podium.runtime.outputs import OmniResult
from podium.testing.fake_backend import FakeOptions, Loading, Script, Then
from tests.support.core_world import make_stage
from tests.support.shell_world import CHAIN, GUARD_S, ShellWorld, WatchedBackend, limited, nothing_left


@contextmanager
def serving(world: ShellWorld) -> Iterator[OmniEngine]:
    with nothing_left(), OmniEngine(AsyncOmniEngine(world.parts())) as engine:
        yield engine


def texts(results: list[OmniResult]) -> list[object]:
    return [result.outputs.get("text") for result in results]


@pytest.mark.rule("ORCH-INV-103")
def test_results_come_in_the_order_of_the_prompts() -> None:
    with serving(ShellWorld(*CHAIN)) as engine:
        results = engine.generate([f"p{number}" for number in range(40)], max_concurrency=7)
        assert texts(results) == [Text(f"p{number}") for number in range(40)]
        assert {result.outcome for result in results} == {Outcome.COMPLETED}
        assert {result.finish_reasons["speech"] for result in results} == {FinishReason.STOP}
        assert repr(engine).startswith("<OmniEngine of <AsyncOmniEngine thinker talker vocoder, serving>")
        assert engine.generate([]) == []


@pytest.mark.rule("ORCH-INV-201")
@pytest.mark.case("B002")
@pytest.mark.case("B079")
def test_one_that_fails_fails_alone() -> None:
    with serving(ShellWorld(*CHAIN)) as engine:
        results = engine.generate(["a", "fail", "b", "refuse", "raise", "c"])
        assert texts(results) == [Text("a"), None, Text("b"), None, None, Text("c")]
        assert [type(result.error) for result in results] == [
            type(None),
            StageFailedError,
            type(None),
            InvalidRequestError,
            StageFailedError,
            type(None),
        ]
        assert results[1].outcome is Outcome.FAILED
        core = engine.statistics().core
        assert (core.counters.completed, core.counters.failed) == (3, 3)
        assert engine.check_health().is_ready


@pytest.mark.case("B047")
def test_the_loss_of_one_replica_costs_its_request_only() -> None:
    """And with no replica left, the call raises."""
    world = ShellWorld(limited(make_stage("solo", output="text"), max_inflight=1), replicas=2)
    with serving(world) as engine:
        results = engine.generate(["die", "well"])
        assert isinstance(results[0].error, StageUnavailableError)
        assert (results[1].error, results[1].outputs) == (None, {"text": Text("well")})
        assert engine.check_health().is_ready, "one of two is left"
        with pytest.raises(StageUnavailableError, match="stage 'solo'"):
            engine.generate(["die", "die"])
        assert not engine.check_health().is_ready


@pytest.mark.case("B076")
def test_parameters_are_for_all_or_one_entry_each() -> None:
    seen: list[object] = []

    class Noting(WatchedBackend):
        def submit(self, task: object) -> None:
            seen.append(task)
            super().submit(task)  # type: ignore[arg-type]

    with serving(ShellWorld(make_backend={"solo": Noting})) as engine:
        engine.generate(["a", "b"], params={"solo": {"seed": 4}}, max_concurrency=1)
        engine.generate(["a", "b"], params=[{"solo": {"seed": 5}}, None], max_concurrency=1)
        assert [task.params.seed for task in seen] == [4, 4, 5, 0]  # type: ignore[attr-defined]
        with pytest.raises(InvalidRequestError, match="params: there are 1 entries for 2 prompts"):
            engine.generate(["a", "b"], params=[None])
        assert len(seen) == 4


@pytest.mark.rule("ORCH-INV-005")
@pytest.mark.parametrize(
    ("prompts", "arguments", "message"),
    [
        ("hello", {}, "prompts: is a str; pass a list, with one prompt"),
        (["a"], {"max_concurrency": 0}, "max_concurrency: 0 makes no sense"),
        (["a"], {"max_concurrency": "4"}, "max_concurrency: '4' makes no sense; it must be a whole number"),
        (["a"], {"params": 5}, "params: is of type int; pass one mapping, or a list"),
        (["a"], {"priority": "high"}, "priority: 'high' is no whole number"),
        (["a"], {"deadline_s": 0}, "deadline_s: 0 is no positive number"),
        (["a"], {"outputs": ["video"]}, "outputs: this pipeline has no output 'video'"),
        (["a"], {"params": {"nobody": {}}}, "params: unknown stage 'nobody'"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_as_a_whole(
    prompts: list[object], arguments: Mapping[str, object], message: str
) -> None:
    with serving(ShellWorld()) as engine:
        with pytest.raises(InvalidRequestError, match=message):
            engine.generate(prompts, **arguments)  # type: ignore[arg-type]
        assert engine.statistics().core.counters.submitted == 0


def test_a_bad_item_is_refused_alone() -> None:
    with serving(ShellWorld()) as engine:
        results = engine.generate(["a", 7, "b"], params=[None, None, {"solo": {"sed": 1}}])
        assert texts(results) == [Text("a"), None, None]
        assert [result.error is None for result in results] == [True, False, False]
        assert "prompt: is of type int" in str(results[1].error)
        assert all(result.outcome is Outcome.FAILED for result in results[1:])


@pytest.mark.parametrize("shown", [True, False])
def test_the_progress_is_shown_when_asked_for(shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ShellWorld()) as engine:
        before = set(threading.enumerate())
        engine.generate(["a", "b"], progress=shown)
        for thread in set(threading.enumerate()) - before:
            thread.join(GUARD_S)  # rich does not wait for the thread that draws its bar
    out, err = capsys.readouterr()
    assert out == ""
    assert ("requests" in err) is shown


def test_everything_else_is_as_in_the_asynchronous_engine() -> None:
    with serving(ShellWorld()) as engine:
        assert engine.abort("nobody")["nobody"].status is AbortStatus.UNKNOWN
        assert engine.abort([]).records == ()
        assert engine.statistics().streams == 0
        with pytest.raises(InvalidRequestError, match="wait: 'never'"):
            engine.abort("x", wait="never")


# Its life


def test_nothing_runs_before_its_start() -> None:
    with nothing_left():
        engine = OmniEngine(AsyncOmniEngine(ShellWorld().parts()))
        for call in (lambda: engine.generate(["a"]), engine.check_health, engine.statistics):
            assert isinstance(call, Callable)  # type: ignore[arg-type]
            with pytest.raises(EngineStoppedError, match="the engine is not started"):
                call()
        engine.shutdown()
        engine.shutdown()
        with pytest.raises(EngineStoppedError):
            engine.start()


def test_an_engine_that_nobody_used_leaves_no_thread() -> None:
    with nothing_left():
        OmniEngine(AsyncOmniEngine(ShellWorld().parts()))


def test_a_second_start_leaves_the_first_alone() -> None:
    with serving(ShellWorld()) as engine:
        with pytest.raises(EngineStoppedError, match="an engine starts once; this one is serving"):
            engine.start()
        assert texts(engine.generate(["a"])) == [Text("a")]


@pytest.mark.rule("ORCH-INV-301")
def test_a_start_that_fails_leaves_nothing() -> None:
    world = ShellWorld(make_backend={"solo": lambda stage, _: WatchedBackend(stage, FakeOptions(load=Loading.FAIL))})
    with nothing_left():
        engine = OmniEngine(AsyncOmniEngine(world.parts()))
        with pytest.raises(StartError, match="stage 'solo' did not start"):
            engine.start()
        with pytest.raises(EngineStoppedError, match="the engine is shut down"):
            engine.generate(["a"])
        engine.shutdown()


def test_a_shutdown_with_a_wrong_limit_changes_nothing() -> None:
    with serving(ShellWorld()) as engine:
        with pytest.raises(InvalidRequestError, match="timeout_s: 0 is no positive number of seconds"):
            engine.shutdown(0)
        assert texts(engine.generate(["a"])) == [Text("a")]


@pytest.mark.rule("ORCH-INV-302", "ORCH-INV-304")
def test_a_shutdown_answers_who_is_generating_in_another_thread() -> None:
    world = ShellWorld()
    results: list[OmniResult] = []
    with nothing_left():
        engine = OmniEngine(AsyncOmniEngine(world.parts()))
        engine.start()
        other = threading.Thread(target=lambda: results.extend(engine.generate(["half"] * 20)))
        other.start()
        while world.of("solo").times_told("submit") < 20:
            pass
        engine.shutdown()
        other.join(20)
        assert not other.is_alive()
    assert len(results) == 20
    assert {type(result.error) for result in results} == {EngineStoppedError}
    assert {result.outputs["text"] for result in results if result.outputs} <= {Text("half "), Text("half way")}


@pytest.mark.rule("ORCH-INV-302")
def test_many_threads_may_shut_it_down() -> None:
    with nothing_left():
        engine = OmniEngine(AsyncOmniEngine(ShellWorld().parts()))
        engine.start()
        threads = [threading.Thread(target=engine.shutdown) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        with pytest.raises(EngineStoppedError, match="the engine is shut down"):
            engine.statistics()


def test_many_threads_may_generate() -> None:
    with serving(ShellWorld(*CHAIN)) as engine:
        got: dict[int, list[object]] = {}

        def run(first: int) -> None:
            got[first] = texts(engine.generate([f"p{first + number}" for number in range(10)]))

        threads = [threading.Thread(target=run, args=(first,)) for first in range(0, 80, 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert got == {first: [Text(f"p{first + number}") for number in range(10)] for first in range(0, 80, 10)}


@pytest.mark.rule("ORCH-INV-212")
def test_an_interrupt_cancels_what_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does while a caller waits."""
    world = ShellWorld(scripts={"x": (Script(outputs=(Text("x"),), then=Then.HANG),)})
    with serving(world) as engine:
        results = threading.Event()

        def interrupted(self: object, timeout: float | None = None) -> object:
            results.set()
            while world.of("solo").times_told("submit") < 3:
                pass
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr("concurrent.futures._base.Future.result", interrupted)
            with pytest.raises(KeyboardInterrupt):
                engine.generate(["x"] * 3)
        assert results.is_set()
        while not (core := engine.statistics().core).is_idle:
            pass
        assert core.counters.cancelled == 3


@pytest.mark.rule("ORCH-INV-118")
def test_prompts_of_one_affinity_go_to_one_replica() -> None:
    world = ShellWorld(make_stage("a", output="text", balance=Balance.AFFINITY), replicas=4)
    with serving(world) as engine:
        engine.generate(["x"] * 12, affinity="talk")
        with pytest.raises(InvalidRequestError, match="affinity"):
            engine.generate(["x"], affinity=7)  # type: ignore[arg-type]
    starts = [[told for told in world.of("a", slot).told if told.method == "submit"] for slot in range(4)]
    assert sorted(map(len, starts)) == [0, 0, 0, 12]


@pytest.mark.rule("ORCH-INV-114")
def test_every_prompt_has_so_many_samples() -> None:
    with serving(ShellWorld(*CHAIN)) as engine:
        results = engine.generate(["a", "b"], n=2, group="batch")
        assert [[sample.outputs["text"] for sample in result.samples] for result in results] == [
            [Text("a")] * 2,
            [Text("b")] * 2,
        ]
        with pytest.raises(InvalidRequestError, match="n: 0 makes no sense"):
            engine.generate(["a"], n=0)
        assert engine.abort(None, group="batch").records == ()
        assert engine.abort("a", samples=[0])["a"].status is AbortStatus.UNKNOWN
