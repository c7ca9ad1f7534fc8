"""What the model knows of control: open calls, what each replica has confirmed, and what a stage is shown to be.

What is shown is never believed: whenever a barrier moves, every live replica must have confirmed it by its last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from podium.core.effects import CallReplica, ReplyControl
from podium.core.events import CallReturned, ControlRequested
from podium.core.identity import ReplicaKey
from podium.core.lifecycle import SLEEPY, BarrierState, FenceState, ReplicaState
from podium.core.operations import (
    BARRIER_METHODS,
    BeginUpdate,
    CallMethod,
    CommitUpdate,
    HoldPolicy,
    Pause,
    PauseMode,
    RollBackUpdate,
    Sleep,
)
from podium.core.statistics import Statistics

OWN_METHODS = BARRIER_METHODS | {"update_weights"}


class Standing(StrEnum):
    """What a replica has last confirmed; FRESH came up in a closed stage, and has never had work."""

    WORKING = "working"
    QUIET = "quiet"
    FRESH = "fresh"
    UNKNOWN = "unknown"


ABLE = frozenset({Standing.WORKING, Standing.FRESH})
"""Those that run steps when they have work."""


@dataclass
class ControlModel:
    """One control call, until it is answered."""

    event: ControlRequested
    pending: dict[int, CallReplica] = field(default_factory=dict)


class ControlWatch:
    """Follows control calls, replicas' confirmations and the weights. Knows nothing of requests."""

    def __init__(self, stages: Mapping[str, object]) -> None:
        self.calls: dict[int, ControlModel] = {}
        self.barriers = dict.fromkeys(stages, BarrierState.OPEN)
        self.versions = dict.fromkeys(stages, 0)
        self.is_shut = False
        self._stages = tuple(stages)
        self._standings: dict[ReplicaKey, Standing] = {}
        self._asleep: dict[ReplicaKey, frozenset[str]] = {}
        self._doubtful: dict[ReplicaKey, frozenset[str]] = {}
        self._replica_versions: dict[ReplicaKey, int] = {}
        self.frozen: set[str] = set()
        """The stages where jobs stand still, or may."""
        self._thawing: dict[str, int] = {}
        """The stages whose replicas are told to let go what stands still, each with the call that wants it."""
        self._held: dict[str, HoldPolicy] = {}
        self._targets: dict[str, int] = {}
        self._newest_call = 0
        self._moves: list[tuple[str, BarrierState, BarrierState]] = []
        self.answered: set[int] = set()
        """The calls that were answered in this step."""

    # Questions

    def is_open(self, stage: str) -> bool:
        """Whether the stage is shown to work."""
        return self.barriers[stage] is BarrierState.OPEN

    def refuses(self, stage: str) -> bool:
        """Whether new work for the stage is refused rather than held."""
        return not self.is_open(stage) and self._held.get(stage) is HoldPolicy.REFUSE

    def may_start(self, stage: str) -> bool:
        """Whether a job may start: the stage works, or drains."""
        drains = self.barriers[stage] is BarrierState.CLOSING and stage not in self.frozen
        return self.is_open(stage) or drains

    def takes_work(self, replica: ReplicaKey) -> bool:
        """Whether the replica has the weights of its stage."""
        return self._replica_versions.get(replica, 0) == self.versions[replica.stage]

    def is_accepted(self, event: ControlRequested) -> bool:
        """Whether the stages are ones that can be meant."""
        return bool(event.stages) and set(event.stages) <= set(self._stages) and not self.is_shut

    # Events and effects

    def take_request(self, event: ControlRequested) -> None:
        """Somebody wants something of the engine."""
        self.calls[event.call] = ControlModel(event)
        operation = event.operation
        if self.is_accepted(event) and isinstance(operation, Pause | Sleep):
            for stage in event.stages:
                if self.barriers[stage] not in SLEEPY:
                    self._held[stage] = operation.held
                    if operation.mode is PauseMode.KEEP:
                        self.frozen.add(stage)

    def take_return(self, event: CallReturned) -> int | None:
        """A replica answered; returns the call that waits for that, if any."""
        for call in self.calls.values():
            sent = call.pending.get(event.call)
            if sent is not None and sent.replica == event.replica:
                del call.pending[event.call]
                if event.error is None:
                    self._confirm(sent)
                self._note_thaw(call, sent.replica.stage)
                return call.event.call
        return None

    def _confirm(self, sent: CallReplica) -> None:
        tags = sent.arguments.get("tags", ())
        asleep = self._asleep.get(sent.replica, frozenset())
        match sent.method:
            case "pause":
                self._standings[sent.replica] = Standing.QUIET
            case "resume":
                self._standings[sent.replica] = Standing.WORKING
            case "sleep" if isinstance(tags, tuple):
                self._asleep[sent.replica] = asleep.union(tags)
            case "wake_up" if isinstance(tags, tuple):
                self._asleep[sent.replica] = asleep.difference(tags)
                self._doubtful[sent.replica] = self._doubtful.get(sent.replica, frozenset()).difference(tags)
            case _:
                pass

    def take_join(self, replica: ReplicaKey) -> None:
        """A replica came up."""
        self._standings[replica] = Standing.WORKING if self.is_open(replica.stage) else Standing.FRESH

    def take_loss(self, replica: ReplicaKey) -> None:
        """A replica is gone."""
        for table in (self._standings, self._asleep, self._doubtful, self._replica_versions):
            table.pop(replica, None)
        for call in self.calls.values():
            rest = {number: sent for number, sent in call.pending.items() if sent.replica != replica}
            was_awaited, call.pending = len(rest) < len(call.pending), rest
            if was_awaited:
                self._note_thaw(call, replica.stage)

    def _note_thaw(self, call: ControlModel, stage: str) -> None:
        """What stood still may go on to drain once every replica was told so, as far as it is still there."""
        standings = {standing for replica, standing in self._standings.items() if replica.stage == stage}
        if self._thawing.get(stage) == call.event.call and standings <= ABLE:
            self.frozen.discard(stage)

    def check_call(self, effect: CallReplica) -> None:
        """A replica is called."""
        assert effect.replica in self._standings, "a replica was called that is gone"
        assert effect.call > self._newest_call, "a number of a call was used twice"
        self._newest_call = effect.call
        stage = effect.replica.stage
        open_calls = [call for call in self.calls.values() if stage in call.event.stages and _calls(call, effect)]
        assert open_calls, "a replica was called for nobody"
        if effect.method in ("pause", "resume"):
            self._standings[effect.replica] = Standing.UNKNOWN
        if effect.method == "resume" and self.barriers[stage] is BarrierState.CLOSING:
            self._thawing[stage] = open_calls[-1].event.call
        tags = effect.arguments.get("tags", ())
        if effect.method == "sleep" and isinstance(tags, tuple):
            self._doubtful[effect.replica] = self._doubtful.get(effect.replica, frozenset()).union(tags)
        open_calls[-1].pending[effect.call] = effect

    def check_reply(self, effect: ReplyControl) -> None:
        """A call is answered: once, with one record for each replica, and well only when all of them are."""
        call = self.calls.pop(effect.call, None)
        assert call is not None, "a control call was answered that nobody made, or twice"
        self.answered.add(effect.call)
        self._thawing = {stage: number for stage, number in self._thawing.items() if number != effect.call}
        replicas = [(record.stage, record.replica) for record in effect.records]
        assert len(replicas) == len(set(replicas)), "a replica has two records"
        assert all(record.ok == (record.error is None) for record in effect.records)
        if effect.error is None:
            assert all(record.ok for record in effect.records), "a call that failed somewhere was called a success"
            assert call.pending == {}, "a call was answered with success before everybody had confirmed"
            self._succeed(call.event)

    def _succeed(self, event: ControlRequested) -> None:
        operation = event.operation
        for stage in event.stages:
            if isinstance(operation, BeginUpdate):
                assert operation.version > self.versions[stage], "an update to a version that is not newer"
                self._targets[stage] = operation.version
            elif isinstance(operation, CommitUpdate):
                self.versions[stage] = self._targets.pop(stage)
                for replica in self._standings:
                    if replica.stage == stage:
                        self._replica_versions[replica] = self.versions[stage]
            elif isinstance(operation, RollBackUpdate):
                self._targets.pop(stage, None)

    # What is shown

    def look(self, statistics: Statistics) -> set[str]:
        """Note what stages are shown to be after this step; returns those that just opened."""
        self._moves = [
            (name, self.barriers[name], stage.barrier)
            for name, stage in statistics.stages.items()
            if stage.barrier is not self.barriers[name]
        ]
        for name, _, after in self._moves:
            self.barriers[name] = after
            if after is BarrierState.OPEN:
                self.frozen.discard(name)
        return {name for name, _, after in self._moves if after is BarrierState.OPEN}

    def _check_move(self, stage: str, before: BarrierState, after: BarrierState) -> None:
        replicas = [replica for replica in self._standings if replica.stage == stage]
        standings = {self._standings[replica] for replica in replicas}
        if after is BarrierState.OPEN:
            assert standings <= ABLE, f"{stage} was opened before all had confirmed: {self._standings}"
        elif after is BarrierState.QUIESCED and before is BarrierState.CLOSING:
            assert standings <= {Standing.QUIET, Standing.FRESH}, f"{stage} is not quiet: {standings}"
        elif after is BarrierState.QUIESCED:
            asleep = {tag for table in (self._asleep, self._doubtful) for one in replicas for tag in table.get(one, ())}
            assert not asleep, f"{stage} is not awake: {asleep}"

    def check(self, statistics: Statistics, now: float, *, is_expired: bool) -> None:
        """What has to hold after every step: every move of a barrier was confirmed, among others."""
        for move in self._moves:
            self._check_move(*move)
        for call in self.calls.values():
            assert not is_expired or call.event.deadline > now, "a control call was not answered in time"
        for name, stage in statistics.stages.items():
            is_settled = stage.fence is FenceState.SETTLED
            assert is_settled == (name not in self._targets), f"the fence of {name} is shown as {stage.fence}"
            assert is_settled or not self.is_open(name), f"{name} works with weights of no known version"
            assert stage.weights_version == self.versions[name]
            for replica in stage.replicas:
                key = ReplicaKey(name, replica.slot, replica.generation)
                assert frozenset(replica.asleep) == self._asleep.get(key, frozenset()), f"{key} is not so asleep"
                is_live = replica.state is ReplicaState.LIVE
                assert replica.takes_work == (is_live and self.takes_work(key))


def _calls(call: ControlModel, effect: CallReplica) -> bool:
    """Whether a control call can be what a replica is called for."""
    operation = call.event.operation
    return effect.method == operation.method if isinstance(operation, CallMethod) else effect.method in OWN_METHODS
