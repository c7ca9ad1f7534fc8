"""Samples and companions through a whole engine of a pipeline file: what callers see of rules 112 to 115."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from podium import AsyncOmniEngine
from podium.core.effects import Outcome
from podium.errors import InvalidRequestError, StageFailedError, WaitTimeoutError
from podium.payloads import Bundle, Text
from tests.support.shell_world import GUARD_S, nothing_left, settled

HERE = "tests.contract.test_shell_siblings"

PIPELINE = f"""\
name: guided
companions: {HERE}:companions
stages:
  thinker:
    kind: function
    produces: text
    backend: function
    options: {{function: "{HERE}:think"}}
    replicas: 2
    limits: {{max_inflight: 4, max_queued: 4}}
  painter:
    kind: function
    produces: text
    output: picture
    sources: {{thinker: complete}}
    processor: bundle
    joins: true
    backend: function
    options: {{function: "{HERE}:paint", blocking: false}}
    limits: {{bundle_timeout_s: 0.05}}
"""


def companions(prompt: str, params: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """`a | b | c` asks for `a` with the companions `b` and `c`."""
    if prompt == "nonsense":
        raise InvalidRequestError.because("prompt: cannot be guided; write another")
    roles = ("negative", "style")
    return dict(zip(roles, prompt.split(" | ")[1:], strict=False))


async def think(prompt: str) -> Text:
    text = prompt.split(" | ", maxsplit=1)[0]
    if text == "fail":
        raise LookupError(text)
    if text == "hang":
        await asyncio.Event().wait()
    return Text(text.upper())


def paint(bundle: Bundle) -> Text:
    parts: Any = bundle.parts
    return Text(" ".join(f"{role}={made['thinker'].text}" for role, made in parts.items()))


@pytest.mark.rule("ORCH-INV-112", "ORCH-INV-113")
async def test_a_request_is_painted_with_its_companions() -> None:
    with nothing_left():
        async with asyncio.timeout(GUARD_S), AsyncOmniEngine.from_pipeline(PIPELINE) as engine:
            result = await engine.generate("cat | dog | oil").collect()
            assert result.outputs == {"picture": Text("main=CAT negative=DOG style=OIL")}
            assert list(result.timeline) == ["thinker", "painter"]
            alone = await engine.generate("cat").collect()
            assert alone.outputs == {"picture": Text("main=CAT")}
            await settled(engine)


@pytest.mark.rule("ORCH-INV-114")
async def test_every_sample_has_companions_of_its_own() -> None:
    with nothing_left():
        async with asyncio.timeout(GUARD_S), AsyncOmniEngine.from_pipeline(PIPELINE) as engine:
            result = await engine.generate("cat | dog", n=3).collect()
            pictures = [sample.outputs["picture"] for sample in result.samples]
            assert pictures == [Text("main=CAT negative=DOG")] * 3
            assert (await settled(engine)).counters.completed == 1


@pytest.mark.rule("ORCH-INV-113")
async def test_a_companion_that_fails_fails_its_request_only() -> None:
    with nothing_left():
        async with asyncio.timeout(GUARD_S), AsyncOmniEngine.from_pipeline(PIPELINE) as engine:
            failing, other = engine.generate("cat | fail", request_id="mine"), engine.generate("cat | dog")
            with pytest.raises(StageFailedError) as caught:
                await failing.collect()
            assert (caught.value.request_id, caught.value.record.stage) == ("mine", "thinker")
            assert (await other.collect()).outcome is Outcome.COMPLETED
            await settled(engine)


@pytest.mark.rule("ORCH-INV-113", "ORCH-INV-204")
@pytest.mark.case("B009")
async def test_a_companion_that_makes_no_progress_has_a_limit() -> None:
    with nothing_left():
        async with asyncio.timeout(GUARD_S), AsyncOmniEngine.from_pipeline(PIPELINE) as engine:
            with pytest.raises(WaitTimeoutError, match="companions negative at stage 'painter'"):
                await engine.generate("cat | hang").collect()
            await settled(engine)


@pytest.mark.rule("ORCH-INV-005")
async def test_a_prompt_that_cannot_be_expanded_touches_nothing() -> None:
    async with asyncio.timeout(GUARD_S), AsyncOmniEngine.from_pipeline(PIPELINE) as engine:
        with pytest.raises(InvalidRequestError, match="prompt: cannot be guided"):
            engine.generate("nonsense")
        assert (await engine.statistics()).core.counters.submitted == 0


@pytest.mark.rule("ORCH-INV-112", "ORCH-INV-118")
@pytest.mark.case("B061")
async def test_siblings_that_find_no_room_are_refused_together() -> None:
    with nothing_left():
        async with asyncio.timeout(GUARD_S), AsyncOmniEngine.from_pipeline(PIPELINE) as engine:
            with pytest.raises(Exception, match="14 jobs are too many for stage 'thinker', where 4 may wait"):
                await engine.generate("cat | dog", n=7).collect()
            assert (await engine.generate("cat | dog", n=6).collect()).outcome is Outcome.COMPLETED
            await settled(engine)


@pytest.mark.rule("ORCH-INV-207", "ORCH-INV-210")
@pytest.mark.case("B092")
async def test_an_abort_reaches_every_sibling() -> None:
    with nothing_left():
        async with asyncio.timeout(GUARD_S), AsyncOmniEngine.from_pipeline(PIPELINE) as engine:
            stream = engine.generate("hang | hang", request_id="mine", n=2)
            report = await engine.abort("mine")
            assert [record.status for record in report.records] == ["aborted"]
            assert (await stream.collect()).outcome is Outcome.ABORTED
            figures = await settled(engine)
            assert all(stage.running == stage.queued == 0 for stage in figures.stages.values())
