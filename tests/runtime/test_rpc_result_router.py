"""Answers reach the waiter of their call, once."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from podium.errors import EngineStoppedError
from podium.runtime.host import DEAD
from podium.runtime.rpc_result_router import RpcResultRouter


def test_an_answer_reaches_its_waiter() -> None:
    router: RpcResultRouter[str] = RpcResultRouter()
    (first, one), (second, other) = router.open(), router.open()
    assert first != second
    assert len(router) == 2
    assert repr(router) == "<RpcResultRouter 2 calls open>"
    router.resolve(second, "second")
    router.resolve(first, "first")
    assert (one.result(0), other.result(0)) == ("first", "second")
    assert len(router) == 0


@pytest.mark.case("B102")
def test_a_late_or_second_answer_reaches_nobody() -> None:
    router: RpcResultRouter[str] = RpcResultRouter()
    call, answer = router.open()
    router.forget(call)
    router.forget(call)
    router.resolve(call, "late")
    next_call, next_answer = router.open()
    assert next_call != call, "a correlation id is used once"
    router.resolve(call, "late again")
    assert not answer.done()
    assert not next_answer.done()
    assert len(router) == 1


def test_an_answer_for_a_waiter_that_gave_up_is_dropped() -> None:
    router: RpcResultRouter[str] = RpcResultRouter()
    call, answer = router.open()
    assert answer.cancel()
    router.resolve(call, "late")
    assert len(router) == 0


@pytest.mark.rule("ORCH-INV-304")
def test_the_end_reaches_every_waiter() -> None:
    router: RpcResultRouter[str] = RpcResultRouter()
    answers = [router.open()[1] for _ in range(3)]
    assert answers[0].cancel()
    router.fail_everything(DEAD)
    for answer in answers[1:]:
        with pytest.raises(EngineStoppedError, match="internal error"):
            answer.result(0)
    assert len(router) == 0
    raised = {id(answer.exception(0)) for answer in answers[1:]}
    assert len(raised) == 2, "each waiter has an exception of its own"


def test_waiters_may_leave_while_the_end_is_told() -> None:
    """Threads that forget their calls meanwhile do not disturb it; each that is left hears of the end."""
    router: RpcResultRouter[str] = RpcResultRouter()
    calls = [router.open() for _ in range(2000)]

    def leave() -> None:
        for call, _ in reversed(calls):
            router.forget(call)

    leaving = threading.Thread(target=leave)
    leaving.start()
    router.fail_everything(DEAD)
    leaving.join()
    assert len(router) == 0
    assert all(is_told_or_open(answer) for _, answer in calls)


def is_told_or_open(answer: Future[str]) -> bool:
    return not answer.done() or isinstance(answer.exception(0), EngineStoppedError)
