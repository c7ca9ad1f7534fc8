"""Control for synchronous callers: every method there is, with the same arguments, waited for."""

from __future__ import annotations

import inspect
import threading

import pytest

from podium.errors import ControlError, EngineStoppedError, InvalidRequestError, UnsupportedError
from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.runtime.engine_control import EngineControl
from podium.runtime.omni_engine import OmniEngine
from tests.support.core_world import make_stage
from tests.support.shell_world import CALL_FAILS, ShellWorld, nothing_left

METHODS = [name for name in vars(EngineControl) if not name.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
def test_each_method_is_there_with_the_same_arguments(name: str) -> None:
    theirs, ours = vars(EngineControl)[name], getattr(OmniEngine, name)
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert ours.__doc__ == f"As AsyncOmniEngine.{name}."
    assert inspect.iscoroutinefunction(theirs)
    assert not inspect.iscoroutinefunction(ours)


@pytest.mark.rule("ORCH-INV-239")
def test_a_step_of_training_by_a_synchronous_caller() -> None:
    world = ShellWorld(make_stage("solo", output="text"))
    with nothing_left(), OmniEngine(AsyncOmniEngine(world.parts())) as engine:
        for version in (1, 2):
            engine.pause_generation("abort")
            engine.sleep(1)
            assert engine.sleeping() == {"solo": {0: ("cache", "weights")}}
            engine.wake_up()
            engine.begin_weight_update(version)
            engine.update_weights("load", args=(f"/weights/{version}",))
            engine.commit_weight_update()
            assert engine.reset_prefix_cache().is_true
            assert engine.is_paused()
            engine.resume_generation()
            assert (engine.is_paused(), engine.weights_versions()) == (False, {"solo": version})
        assert engine.collective_rpc("m")["solo"] == [[{"method": "m", "args": (), "kwargs": {}}]]


@pytest.mark.rule("ORCH-INV-231")
def test_errors_are_those_of_the_asynchronous_engine() -> None:
    world = ShellWorld()
    with nothing_left():
        engine = OmniEngine(AsyncOmniEngine(world.parts()))
        with pytest.raises(EngineStoppedError):
            engine.pause_generation()
        with engine:
            world.of("solo").script_calls("list_loras", CALL_FAILS)
            with pytest.raises(ControlError, match="'list_loras' failed at stage 'solo'"):
                engine.list_loras()
            with pytest.raises(UnsupportedError):
                engine.sleep(9)
            with pytest.raises(InvalidRequestError):
                engine.pause_generation("stop")
        with pytest.raises(EngineStoppedError):
            engine.resume_generation()


def test_one_thread_waits_while_another_resumes() -> None:
    world = ShellWorld()
    with nothing_left(), OmniEngine(AsyncOmniEngine(world.parts())) as engine:
        engine.pause_generation("wait")
        results: list[object] = []
        waiting = threading.Thread(target=lambda: results.extend(engine.generate(["held"])))
        waiting.start()
        while not engine.statistics().core.held:
            pass
        assert results == []
        engine.resume_generation()
        waiting.join()
        assert len(results) == 1
