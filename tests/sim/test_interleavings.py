"""Over a thousand seeded worlds: many requests with contents of their own, through random graphs on the real core.

What replicas deliver is cut anywhere, repeated, overlapping, out of order, and of several requests in one batch; strays
are among it. The truth is known from outside: what each job made. Nobody may get anything else.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest

from podium.core.effects import (
    Effect,
    EmitOutput,
    EndInput,
    EndRequest,
    FeedJob,
    Outcome,
    ReleasePayloads,
    StartJob,
)
from podium.core.events import Event, Finish, FinishReason, JobOutput, RequestSubmitted, StageProduced, StageStarted
from podium.core.graph import EdgeMode, Limits, Source, Stage
from podium.core.identity import MAIN, JobKey, Payload, ReplicaKey
from tests.support.core_world import World, make_stage

SEEDS = 1200
BLOCKS = 8
"""The seeds run in so many tests, for the sake of several processors."""
IDS = ("r1", "r11", "r10", "r", "r1-1", "1", "main", "thinker")
"""Ids that contain each other, or look like other names."""


class Chunk(NamedTuple):
    """One chunk of one job as it was delivered once; a repetition has another `delivery`."""

    request: str
    stage: str
    number: int
    delivery: int

    @property
    def content(self) -> str:
        return f"{self.request}/{self.stage}/{self.number}"


def contents_of(request: str, stage: str, count: int) -> list[str]:
    """All that one job makes."""
    return [f"{request}/{stage}/{number}" for number in range(count)]


class Job:
    """One job at its replica: what it makes altogether, and how much of that it has made."""

    def __init__(self, start: StartJob, size: int) -> None:
        self.key = start.job
        self.replica = start.replica
        self.size = size
        self.made = 0
        self.has_finished = False
        self.inputs: dict[str, list[Payload]] = {one.source: list(one.payloads) for one in start.inputs}
        self.ended = {one.source for one in start.inputs if one.finish is not None}
        assert all(one.sequence == 0 for one in start.inputs)

    @property
    def is_input_whole(self) -> bool:
        return self.ended == self.inputs.keys()


class Delivery(NamedTuple):
    """Something that a replica is about to say."""

    replica: ReplicaKey
    said: JobOutput | StageStarted


class Shuffle:
    """One world: a graph, requests, and replicas that deliver everything at least once, in any way."""

    def __init__(self, seed: int, stages: Sequence[Stage], *, replicas: int = 1) -> None:
        self.random = random.Random(seed)
        self.stages = {stage.name: stage for stage in stages}
        self.world = World(*stages, replicas=replicas)
        self.replicas = replicas
        self.submissions: list[RequestSubmitted] = []
        self.jobs: dict[JobKey, Job] = {}
        self.sizes: dict[tuple[str, str], int] = {}
        self.delivered: list[Chunk] = []
        self.mixed_batches = 0
        self._pending: list[Delivery] = []
        self._waiting: list[RequestSubmitted] = []
        self._seen = 0

    def plan_request(self, request_id: str, outputs: tuple[str, ...] | None, sizes: dict[str, int]) -> None:
        """Have a request submitted at some time; `sizes` says how many chunks each stage makes for it."""
        ticket = len(self.submissions) + 1
        self.world.tickets[request_id] = ticket
        self.submissions.append(RequestSubmitted(ticket=ticket, request_id=request_id, prompt=None, outputs=outputs))
        self._waiting.append(self.submissions[-1])
        self.sizes.update({(request_id, stage): size for stage, size in sizes.items()})

    def run(self) -> None:
        """Let everything happen, some of it at the same time, until nothing is left to happen."""
        while self._waiting or self._pending:
            events: list[Event] = [
                self._waiting.pop(self.random.randrange(len(self._waiting)))
                for _ in range(self.random.randint(0, min(2, len(self._waiting))))
            ]
            count = self.random.randint(0 if events else 1, 5)
            events += self._batched([self._draw() for _ in range(min(count, len(self._pending)))])
            self.random.shuffle(events)
            self.world.tell(*events)
            self._read()

    def _draw(self) -> Delivery:
        """Any pending delivery: what a job said last may arrive first."""
        return self._pending.pop(self.random.randrange(len(self._pending)))

    def _batched(self, drawn: Sequence[Delivery]) -> list[Event]:
        """What is said by one replica goes into one event, whichever requests it is about."""
        outputs: dict[ReplicaKey, list[JobOutput]] = defaultdict(list)
        events: list[Event] = []
        for delivery in drawn:
            if isinstance(delivery.said, StageStarted):
                events.append(delivery.said)
            else:
                outputs[delivery.replica].append(delivery.said)
        self.mixed_batches += sum(len({output.job.request for output in batch}) > 1 for batch in outputs.values())
        return events + [StageProduced(replica, tuple(batch)) for replica, batch in outputs.items()]

    def _read(self) -> None:
        fresh, self._seen = self.world.effects[self._seen :], len(self.world.effects)
        for effect in fresh:
            match effect:
                case StartJob(job=key):
                    assert key not in self.jobs
                    self._check_is_ready(effect)
                    job = self.jobs[key] = Job(effect, self.sizes[key.request, key.stage])
                    self._pending.append(Delivery(job.replica, StageStarted(job.replica, key)))
                    self._work(job)
                case FeedJob(job=key, source=source, sequence=sequence, payloads=payloads):
                    job = self.jobs[key]
                    assert (effect.replica, sequence) == (job.replica, len(job.inputs[source]))
                    assert source not in job.ended
                    job.inputs[source] += payloads
                    self._work(job)
                case EndInput(job=key, source=source):
                    job = self.jobs[key]
                    assert source not in job.ended
                    job.ended.add(source)
                    self._work(job)
                case _:
                    pass

    def _check_is_ready(self, start: StartJob) -> None:
        """A streaming source has given something, or has ended; a complete one has ended; and all of them so."""
        stage = self.stages[start.job.stage]
        assert [one.source for one in start.inputs] == [source.stage for source in stage.sources]
        for source, given in zip(stage.sources, start.inputs, strict=True):
            has_begun = source.mode is EdgeMode.STREAMING and given.payloads
            assert stage.prewarm or has_begun or given.finish is not None, f"{start.job} started too early"

    def _work(self, job: Job) -> None:
        """Make some more of the job's chunks: all of them, and the finish, once its input is whole."""
        first = job.made
        job.made = job.size if job.is_input_whole else self.random.randint(first, job.size)
        bounds = sorted({first, job.made, *self.random.choices(range(first, job.made + 1), k=2)})
        for start, end in pairwise(bounds):
            self._deliver(job, start, end)
        if job.is_input_whole and not job.has_finished:
            job.has_finished = True
            self._deliver(job, self.random.randint(0, job.size), job.size, Finish(FinishReason.STOP))
        if job.made and self.random.random() < 0.4:  # again, and overlapping with what was said before
            start, end = sorted(self.random.choices(range(job.made + 1), k=2))
            self._deliver(job, start, end)
        if self.random.random() < 0.1:
            self._stray(job)

    def _deliver(self, job: Job, start: int, end: int, finish: Finish | None = None) -> None:
        payloads = tuple(self._chunk(job.key, number) for number in range(start, end))
        self._pending.append(Delivery(job.replica, JobOutput(job.key, start, payloads, finish)))

    def _stray(self, job: Job) -> None:
        """Something of another attempt, or of a replica that does not have the job, with a number that would fit."""
        slot = (job.replica.slot + 1) % self.replicas
        replica = job.replica._replace(slot=slot) if slot != job.replica.slot else job.replica._replace(generation=7)
        if self.random.random() < 0.5:
            replica, key = job.replica, JobKey(job.key.request, job.key.stage, MAIN, job.key.attempt + 1000)
        else:
            key = job.key
        self._pending.append(Delivery(replica, JobOutput(key, job.made, (self._chunk(key, -1),))))

    def _chunk(self, key: JobKey, number: int) -> Chunk:
        self.delivered.append(Chunk(key.request, key.stage, number, len(self.delivered)))
        return self.delivered[-1]

    # What came of it

    def emitted(self, request_id: str, stage: str) -> list[str]:
        return [text_of(payload) for payload in self.world.emitted(request_id, stage)]

    def needed(self, submission: RequestSubmitted) -> set[str]:
        wanted = {
            stage.name
            for stage in self.stages.values()
            if stage.output is not None and (submission.outputs is None or stage.output in submission.outputs)
        }
        for name in reversed(list(self.world.core.statistics().stages)):
            if name in wanted:
                wanted.update(source.stage for source in self.stages[name].sources)
        return wanted

    def check(self) -> None:
        """Every request has got its own, all of it, in order, once; and nothing else was made of it."""
        for submission in self.submissions:
            self._check_client(submission)
            started = [job.key.stage for job in self.jobs.values() if job.key.request == submission.request_id]
            assert Counter(started) == Counter(self.needed(submission))
        for job in self.jobs.values():
            assert job.is_input_whole
            for source, payloads in job.inputs.items():
                made = contents_of(job.key.request, source, self.sizes[job.key.request, source])
                assert [text_of(payload) for payload in payloads] == made, f"{job.key} was fed {payloads}"
        self._check_payloads()
        statistics = self.world.core.statistics()
        assert statistics.is_idle, statistics
        assert statistics.counters.completed == len(self.submissions)

    def _check_client(self, submission: RequestSubmitted) -> None:
        request_id = submission.request_id
        emits = [one for one in self.world.effects if isinstance(one, EmitOutput) and one.ticket == submission.ticket]
        sequence = 0
        for emit in emits:
            assert emit.sequence == sequence, f"{request_id}: a gap before {emit}"
            sequence += len(emit.payloads) + (emit.finish is not None)
        finals = {name for name in self.needed(submission) if self._is_wanted(submission, name)}
        for name in finals:
            assert self.emitted(request_id, name) == contents_of(request_id, name, self.sizes[request_id, name])
        assert {emit.stage for emit in emits} == finals
        assert Counter(emit.stage for emit in emits if emit.finish is not None) == Counter(finals)
        assert [emit.request_finished for emit in emits] == [False] * (len(emits) - 1) + [True]
        assert [one.outcome for one in self.world.terminals(request_id)] == [Outcome.COMPLETED]
        assert isinstance(self._last_of(submission.ticket), EndRequest)

    def _is_wanted(self, submission: RequestSubmitted, name: str) -> bool:
        output = self.stages[name].output
        return output is not None and (submission.outputs is None or output in submission.outputs)

    def _last_of(self, ticket: int) -> Effect:
        return [one for one in self.world.effects if isinstance(one, EmitOutput | EndRequest) and one.ticket == ticket][
            -1
        ]

    def _check_payloads(self) -> None:
        """Each delivered payload was either used, or released once."""
        used: set[int] = set()
        released: Counter[int] = Counter()
        for effect in self.world.effects:
            if isinstance(effect, ReleasePayloads):
                released.update(delivery_of(payload) for payload in effect.payloads)
            elif isinstance(effect, EmitOutput | FeedJob):
                used.update(delivery_of(payload) for payload in effect.payloads)
            elif isinstance(effect, StartJob):
                used.update(delivery_of(payload) for one in effect.inputs for payload in one.payloads)
        assert max(released.values(), default=1) == 1, "released twice"
        assert used.isdisjoint(released), "released what was used"
        assert used | released.keys() == {chunk.delivery for chunk in self.delivered}, "kept by nobody"


def text_of(payload: Payload) -> str:
    assert isinstance(payload, Chunk)
    return payload.content


def delivery_of(payload: Payload) -> int:
    assert isinstance(payload, Chunk)
    return payload.delivery


def draw_stages(draw: random.Random, mode: EdgeMode | None = None) -> list[Stage]:
    """A graph of two to five stages, each of use; `mode` is for all edges, or drawn for each."""
    names = [f"s{number}" for number in range(draw.randint(2, 5))]
    sources: dict[str, list[str]] = {}
    for number, name in enumerate(names):
        sources[name] = draw.sample(names[:number], k=min(number, draw.choice((0, 1, 1, 1, 2, 3))))
    consumed = {source for listed in sources.values() for source in listed}
    return [
        make_stage(
            name,
            *(Source(source, mode or draw.choice(list(EdgeMode))) for source in sources[name]),
            output=f"out of {name}" if name not in consumed or draw.random() < 0.4 else None,
            prewarm=draw.random() < 0.2,
            limits=Limits(max_inflight=draw.choice((1, 2, 64))),
        )
        for name in names
    ]


def shuffled_world(seed: int, mode: EdgeMode | None = None) -> Shuffle:
    """The world of a seed, run to its end. `mode` changes the edges and nothing else of the plan."""
    draw = random.Random(f"plan {seed}")
    stages = draw_stages(random.Random(f"graph {seed}"), mode)
    outputs = [stage.output for stage in stages if stage.output is not None]
    consumed = {source.stage for stage in stages for source in stage.sources}
    shuffle = Shuffle(seed, stages, replicas=draw.randint(1, 3))
    for request_id in draw.sample(IDS, k=draw.randint(3, 8)):
        wanted = None if draw.random() < 0.5 else tuple(draw.sample(outputs, k=draw.randint(1, len(outputs))))
        sizes = {stage.name: draw.choice((1, 2, 3, 7) if stage.name in consumed else (0, 1, 4, 20)) for stage in stages}
        shuffle.plan_request(request_id, wanted, sizes)
    shuffle.run()
    return shuffle


def for_each_seed(seeds: Sequence[int], check: Callable[[int], None]) -> None:
    """Run a check on seeds; a failure says on which."""
    for seed in seeds:
        try:
            check(seed)
        except Exception as failure:
            raise AssertionError(f"seed {seed}: {type(failure).__name__}: {failure}") from failure


@pytest.mark.rule("ORCH-INV-103", "ORCH-INV-104", "ORCH-INV-110", "ORCH-INV-107", "ORCH-INV-106", "ORCH-INV-101")
@pytest.mark.case("B008", "B025", "B103", "B021")
@pytest.mark.parametrize("block", range(BLOCKS))
def test_everybody_gets_their_own(block: int) -> None:
    def check(seed: int) -> None:
        shuffled_world(seed).check()

    for_each_seed(range(block, SEEDS, BLOCKS), check)


@pytest.mark.rule("ORCH-INV-116")
@pytest.mark.case("B062", "B031")
def test_streaming_or_not_the_same_comes_out() -> None:
    def check(seed: int) -> None:
        chunked, whole = (shuffled_world(seed, mode) for mode in (EdgeMode.STREAMING, EdgeMode.COMPLETE))
        whole.check()
        assert [one.request_id for one in chunked.submissions] == [one.request_id for one in whole.submissions]
        for one in chunked.submissions:
            for stage in chunked.stages:
                assert chunked.emitted(one.request_id, stage) == whole.emitted(one.request_id, stage)

    for_each_seed(range(SEEDS, SEEDS + 150), check)


@pytest.mark.rule("ORCH-INV-104")
@pytest.mark.case("B105")
@pytest.mark.parametrize("capacity", [1, 2, 8])
def test_a_limit_on_streams_is_none_on_the_chunks_of_one(capacity: int) -> None:
    """Twenty chunks reach the end of a chain whose stages take so many jobs at a time; and three more requests do."""
    limits = Limits(max_inflight=capacity)
    stages = [
        make_stage("a", limits=limits),
        make_stage("b", Source("a", EdgeMode.STREAMING), limits=limits),
        make_stage("c", Source("b", EdgeMode.STREAMING), output="out", limits=limits),
    ]
    for seed in range(20):
        shuffle = Shuffle(seed, stages)
        for request_id in ("one", "two", "three", "four"):
            shuffle.plan_request(request_id, None, {"a": 20, "b": 20, "c": 20})
        shuffle.run()
        shuffle.check()


def test_the_check_sees_a_chunk_of_somebody_else() -> None:
    """One swapped payload in one forwarded chunk of a good world is found."""
    shuffle = shuffled_world(3)
    shuffle.check()
    stolen = next(chunk for chunk in shuffle.delivered if chunk.request == shuffle.submissions[0].request_id)
    for index, effect in enumerate(shuffle.world.effects):
        ticket = shuffle.submissions[1].ticket
        if isinstance(effect, EmitOutput) and effect.ticket == ticket and effect.payloads:
            payloads = (stolen, *effect.payloads[1:])
            shuffle.world.effects[index] = EmitOutput(ticket, effect.stage, effect.sequence, payloads, effect.at)
            break
    with pytest.raises(AssertionError):
        shuffle.check()


def test_the_worlds_are_as_wild_as_they_claim() -> None:
    """Over the seeds there are joins, repetitions, strays, early starts, and batches of several requests."""
    seen: Counter[str] = Counter()
    for seed in range(100):
        shuffle = shuffled_world(seed)
        counters = shuffle.world.core.statistics().counters
        seen["dropped"] += counters.dropped
        seen["joins"] += any(len(stage.sources) > 1 for stage in shuffle.stages.values())
        seen["strays"] += any(chunk.number < 0 for chunk in shuffle.delivered)
        seen["repeated"] += len(shuffle.delivered) - len({chunk.content for chunk in shuffle.delivered})
        seen["early starts"] += any(isinstance(effect, FeedJob) for effect in shuffle.world.effects)
        seen["mixed batches"] += shuffle.mixed_batches
    expected = ("dropped", "joins", "strays", "repeated", "early starts", "mixed batches")
    assert all(seen[name] > 20 for name in expected), seen
