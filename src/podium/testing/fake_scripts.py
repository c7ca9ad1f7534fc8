"""What can be said to the fake backend: scripts for its jobs and its calls, its options, and what it declares.

Plain data, so that it works wherever the backend runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from podium.core.identity import Payload
from podium.core.operations import PauseMode

CALLS = frozenset(
    {
        *("sleep", "wake_up", "reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache", "collective_rpc"),
        *("update_weights", "start_profile", "stop_profile", "add_lora", "remove_lora", "list_loras"),
    }
)
SLEEP_LEVELS: Mapping[int, frozenset[str]] = {
    0: frozenset({"scheduling"}),
    1: frozenset({"weights", "cache"}),
    2: frozenset({"weights", "cache"}),
}


class Then(StrEnum):
    """What a job does after the outputs of a script."""

    GO_ON = "go_on"
    """Take the next input; finish at the end of the input."""

    FINISH = "finish"
    """Finish now, whatever input comes."""

    HANG = "hang"
    """Give nothing more, until it is stopped."""

    FAIL = "fail"
    """Fail, as a stage does that raised."""

    REFUSE = "refuse"
    """Raise InvalidRequestError from `submit` or `feed`."""

    RAISE = "raise"
    """Raise ValueError from `submit` or `feed`."""

    DIE = "die"
    """Take the whole backend down."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """An input item that says what to do. Any other item is given back as the output.

    With `announce` the job is reported as taken up. Stopping it fails `stop_failures` times before it succeeds; with
    `hang_stop` it does not return. Its finish carries the last `label` that a script had.
    """

    outputs: tuple[Payload, ...] = ()
    then: Then = Then.GO_ON
    announce: bool = False
    stop_failures: int = 0
    hang_stop: bool = False
    label: str | None = None


class Loading(StrEnum):
    """What `load` does."""

    SUCCEED = "succeed"
    FAIL = "fail"
    HANG = "hang"


class Answer(StrEnum):
    """How a control call ends."""

    RETURN = "return"
    """As it does without a script: see `FakeBackend.call`."""

    HANG = "hang"
    """Not, until `release_calls`, or a call that releases; then it returns."""

    RELEASE = "release"
    """As without a script; and lets every call return that hangs."""

    FAIL = "fail"
    """With RuntimeError."""

    UNSUPPORTED = "unsupported"
    """With UnsupportedError."""

    DIE = "die"
    """Not: the whole backend goes down."""


class CallScript(msgspec.Struct, frozen=True, kw_only=True):
    """What one control call does: after `turns` turns of the loop it ends as `then` says. `value` replaces its own."""

    then: Answer = Answer.RETURN
    turns: int = 0
    value: Payload = None


class FakeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """With `by_hand`, submitted input does nothing of its own: the test calls `produce`, `finish`, `fail`.

    `calls` has scripts for the first calls of a method, in order; later ones do what they do without a script.
    """

    load: Loading = Loading.SUCCEED
    by_hand: bool = False
    calls: dict[str, tuple[CallScript, ...]] = {}


class PauseArguments(msgspec.Struct, frozen=True):
    """The arguments of `pause`."""

    mode: PauseMode


class TagArguments(msgspec.Struct, frozen=True):
    """The arguments of `wake_up`; none are all."""

    tags: tuple[str, ...] = ()


class SleepArguments(TagArguments, frozen=True, kw_only=True):
    """The arguments of `sleep`."""

    level: int


class FakeParams(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that mean nothing."""

    seed: int = 0
