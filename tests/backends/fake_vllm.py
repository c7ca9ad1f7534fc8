"""Stands in for a loaded vLLM engine: the same calls, one token a step, and tests decide what is confirmed or fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import NamedTuple

from podium.backends.vllm.engine import Adapter, EngineFeatures
from podium.backends.vllm.options import VllmOptions, VllmParams
from podium.errors import InvalidRequestError, StartError


class Plan(NamedTuple):
    """An input item: the tokens of the answer, each a text; None goes on for ever."""

    answer: tuple[str, ...] | None
    finish: str = "stop"
    meets_stop_text: bool = False


class FakeEngine:
    """`core` is what the engine process knows, `registered` what the output processor knows."""

    def __init__(self) -> None:
        self.core: dict[str, tuple[Plan, int]] = {}
        self.registered: dict[str, Plan] = {}
        self.sent: list[str] = []
        self.held_back: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.unconfirmable: Exception | None = None
        self.unsendable: set[str] = set()
        self.death: Exception | None = None
        self.may_step = True
        self.is_shut_down = False
        self.processes = SimpleNamespace(pids=(1234,))
        self.received = 0
        self._changed = asyncio.Event()
        self._confirms = True
        self._calls: list[asyncio.Future[None]] = []
        self.features = EngineFeatures(max_loras=2, can_profile=True, can_free_memory=True)
        self.is_paused = False
        self.aborted: list[str] = []
        self.told: list[str] = []
        self.failures: dict[str, Exception] = {}
        self.answers: list[tuple[bool, object]] = [(True, None)]
        self.loras: set[int] = set()
        self.seeds: list[int | None] = []

    def make_request(
        self, name: str, inputs: Sequence[object], params: VllmParams, adapter: Adapter | None
    ) -> SimpleNamespace:
        plan = inputs[0]
        self.seeds.append(params.seed)
        if not isinstance(plan, Plan):
            raise ValueError(f"cannot tokenize {plan!r}")  # noqa: TRY004 - as vLLM does
        if plan.answer == ():
            raise InvalidRequestError.because("the prompt is empty; give some text")
        return SimpleNamespace(request_id=f"{name}-internal", name=name, prompt_token_ids=[1, 2, 3], plan=plan)

    def register(self, request: SimpleNamespace) -> None:
        self.registered[request.request_id] = request.plan

    async def send(self, request: SimpleNamespace) -> None:
        if request.name in self.unsendable:
            raise OSError("the pipe is full")
        self.sent.append(f"add {request.name}")
        self.core[request.request_id] = (request.plan, 0)
        self._changed.set()

    async def send_abort(self, request_ids: list[str]) -> None:
        self.sent += [f"abort {request_id.removesuffix('-internal')}" for request_id in request_ids]
        for request_id in request_ids:
            self.core.pop(request_id, None)

    async def confirm(self) -> int:
        if self.unconfirmable is not None:
            raise self.unconfirmable
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls.append(call)
        if self._confirms:
            call.set_result(None)
        await call
        return self.received

    def hold_confirmations(self) -> None:
        """Confirm nothing until `confirm_all`."""
        self._confirms = False

    def confirm_all(self) -> None:
        """Confirm what waits, and whatever comes."""
        self._confirms = True
        for call in self._calls:
            if not call.done():
                call.set_result(None)

    def fail_calls(self, error: Exception) -> None:
        for call in self._calls:
            if not call.done():
                call.set_exception(error)

    def die(self, error: Exception) -> None:
        self.death = error
        self._changed.set()

    def step(self) -> None:
        """Let one step happen that `may_step` had forbidden."""
        self.may_step = True
        self._changed.set()

    async def receive(self) -> tuple[list[SimpleNamespace], list[str]]:
        while self.death is None and not self.aborted and not (self.core and self.may_step and not self.is_paused):
            self._changed.clear()
            await self._changed.wait()
        if self.death is not None:
            raise self.death
        if self.aborted:
            aborted, self.aborted = self.aborted, []
            self.received += 1
            return [self._aborted(request_id) for request_id in aborted], []
        await asyncio.sleep(0)
        outputs, aborts = [], []
        for request_id, (plan, position) in list(self.core.items()):
            last = plan.answer is not None and position + 1 >= len(plan.answer)
            text = "x" if plan.answer is None else plan.answer[position]
            self.core[request_id] = (plan, position + 1)
            outputs.append(fake_output(request_id, text, plan.finish if last else None))
            if last and plan.meets_stop_text:
                aborts.append(request_id)
            elif last:
                del self.core[request_id]
            if last:
                del self.registered[request_id]
        self.received += 1
        return outputs, aborts

    def _aborted(self, request_id: str) -> SimpleNamespace:
        del self.registered[request_id]
        return fake_output(request_id, "", "abort", ())

    def forget(self, request_id: str) -> list[SimpleNamespace]:
        del self.registered[request_id]
        text, token_ids = self.held_back.get(request_id, ("", ()))
        return [fake_output(request_id, text, "abort", token_ids)]

    async def _answer(self, told: str) -> None:
        """Be told something: answer as a confirmation does, or fail as the test wants."""
        self.told.append(told)
        if told.split(maxsplit=1)[0] in self.failures:
            raise self.failures[told.split(maxsplit=1)[0]]
        await self.confirm()

    async def pause(self, mode: str) -> int:
        self.is_paused = True
        if mode == "abort":
            self.aborted += self.core
            self.core.clear()
            self._changed.set()
        await self._answer(f"pause {mode}")
        return self.received + bool(self.aborted)

    async def resume(self) -> None:
        await self._answer("resume")
        self.is_paused = False
        self._changed.set()

    async def sleep(self, level: int) -> None:
        await self._answer(f"sleep {level}")

    async def wake_up(self, tags: Sequence[str]) -> None:
        await self._answer(f"wake_up {','.join(tags)}")

    async def reset_prefix_cache(self, *, with_running: bool) -> bool:
        await self._answer(f"reset_prefix_cache {with_running}")
        return with_running or not self.core

    async def reset_mm_cache(self) -> None:
        await self._answer("reset_mm_cache")

    async def reset_encoder_cache(self) -> None:
        await self._answer("reset_encoder_cache")

    async def run_in_workers(
        self, method: str, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> list[tuple[bool, object]]:
        await self._answer(f"run {method} {tuple(args)} {dict(kwargs)}")
        return self.answers

    async def profile(self, *, is_start: bool) -> None:
        await self._answer(f"profile {is_start}")

    async def add_lora(self, adapter: Adapter) -> bool:
        await self._answer(f"add_lora {adapter.name}")
        self.loras.add(adapter.number)
        return True

    async def remove_lora(self, adapter: Adapter) -> bool:
        await self._answer(f"remove_lora {adapter.name}")
        if adapter.number not in self.loras:
            return False
        self.loras.remove(adapter.number)
        return True

    async def list_loras(self) -> frozenset[int]:
        await self._answer("list_loras")
        return frozenset(self.loras)

    def shutdown(self, timeout_s: float) -> None:
        self.is_shut_down = True


def fake_output(
    request_id: str, text: str, finish: str | None, token_ids: tuple[int, ...] | None = None
) -> SimpleNamespace:
    tokens = tuple(map(ord, text)) or (0,) if token_ids is None else token_ids
    completion = SimpleNamespace(text=text, token_ids=tokens, finish_reason=finish)
    return SimpleNamespace(request_id=request_id.removesuffix("-internal"), outputs=[completion])


class FakeStart:
    """Takes the place of `Start`: at once, or not before it is abandoned."""

    engine: FakeEngine
    hangs = False

    def __init__(self, stage: str, options: VllmOptions) -> None:
        self._stage = stage
        self._abandoned = threading.Event()

    def abandon(self) -> float:
        self._abandoned.set()
        return 5.0

    def run(self) -> FakeEngine:
        if self.hangs:
            self._abandoned.wait()
        if self._abandoned.is_set():
            raise StartError(self._stage, "the start was abandoned")
        return self.engine
