"""What callers get: the items of a request's stream, and the whole result of a request that nobody streamed.

Plain frozen records; nothing here waits or asks an engine.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from podium.core.effects import AbortRecord, AbortStatus, ControlRecord, Outcome, StageTimings
from podium.core.events import FinishReason
from podium.core.graph import Modality
from podium.core.identity import Payload
from podium.errors import PodiumError


class OmniOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a request's stream, numbered from 0 without gaps, whatever sample it belongs to.

    `index` is that of its sample, from 0; a request with n > 1 has n of them.
    An item either carries a piece of output (`delta`), or says that an output is finished: then `stage_finished` is
    set and `delta` is None; `finish_reason`, `usage` (counts, for instance of tokens) and `timings` are there; and
    when it was aborted, `partial` is everything that its stage had generated. Where a stage ends a segment and goes
    on, an item without `delta` has `segment_finished`. `request_finished` stands on the last item. `at` is when the
    item left the core, in seconds on the engine's monotonic clock. `weights_version` names the weights of its stage
    that made it; 0 are those that the stage started with. `label` stands on the end of an output whose stage chooses
    the way, and names it.
    """

    request_id: str
    stage: str
    output: str
    modality: Modality
    sequence: int
    at: float
    index: int = 0
    delta: Payload = None
    partial: Payload = None
    segment_finished: bool = False
    stage_finished: bool = False
    request_finished: bool = False
    finish_reason: FinishReason | None = None
    usage: Mapping[str, int] = {}
    label: str | None = None
    timings: StageTimings | None = None
    weights_version: int = 0


class SampleResult(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of a request as a whole; the fields are as those of OmniResult."""

    index: int
    outputs: Mapping[str, Payload]
    finish_reasons: Mapping[str, FinishReason]
    usage: Mapping[str, Mapping[str, int]]


class OmniResult(msgspec.Struct, frozen=True, kw_only=True):
    """One request as a whole. `outputs` has the joined payload of each output that was asked for, None when empty.

    With n > 1 `samples` has every sample by its index, and `outputs`, `finish_reasons` and `usage` are those of the
    first.

    `timeline` has the timings of every stage that was planned. An item of a batch that failed has its `error` and
    whatever arrived before.
    """

    request_id: str
    outputs: Mapping[str, Payload]
    finish_reasons: Mapping[str, FinishReason]
    usage: Mapping[str, Mapping[str, int]]
    timeline: Mapping[str, StageTimings]
    outcome: Outcome
    error: PodiumError | None = None
    samples: tuple[SampleResult, ...] = ()


class AbortReport(msgspec.Struct, frozen=True):
    """What came of an abort: one record for each id that was asked for, in that order."""

    records: tuple[AbortRecord, ...]

    def __getitem__(self, request_id: str) -> AbortRecord:
        """The record of one id; raises KeyError for an id that was not asked for."""
        for record in self.records:
            if record.request_id == request_id:
                return record
        raise KeyError(request_id)

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """The ids whose stop was not confirmed."""
        failed = (AbortStatus.UNCONFIRMED, AbortStatus.FAILED)
        return tuple(record.request_id for record in self.records if record.status in failed)


class ControlReport(msgspec.Struct, frozen=True):
    """What came of a control call that succeeded: one record for each replica, in the order of the stages.

    `not_applicable` are stages whose engines have nothing of the kind, in a call that named no stages.
    """

    records: tuple[ControlRecord, ...]
    not_applicable: tuple[str, ...] = ()

    def __getitem__(self, stage: str) -> list[Payload]:
        """What the replicas of a stage answered, by slot."""
        return [record.value for record in self.records if record.stage == stage]

    @property
    def is_true(self) -> bool:
        """Whether no replica answered False: whether a reset was done everywhere, for instance."""
        return all(record.value is not False for record in self.records)
