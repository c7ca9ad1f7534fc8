"""The LoRA adapters of one engine, by the names that callers use.

vLLM unloads an adapter by itself when there are too many, and loads one again that it was told to unload while a job
uses it. Both is refused before it can happen, so that what is listed here is what the workers have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec

from podium.backends.control_errors import failed, pending, rejected, translated
from podium.backends.pausing import NoArguments
from podium.backends.vllm.engine import Adapter, Engine
from podium.core.identity import Payload
from podium.errors import InvalidRequestError, UnsupportedError
from podium.options import read_params

_Name = Annotated[str, msgspec.Meta(min_length=1)]


class AddArguments(msgspec.Struct, frozen=True):
    """A new adapter: its name, and the directory that has it in PEFT's format."""

    name: _Name
    path: _Name


class RemoveArguments(msgspec.Struct, frozen=True):
    """The name of an adapter."""

    name: _Name


class Adapters:
    """What is loaded, and how many jobs use it."""

    def __init__(self, stage: str, engine: Callable[[], Engine]) -> None:
        """`engine` gives the live engine, or raises BackendDead."""
        self._stage = stage
        self._engine = engine
        self._loaded: dict[str, Adapter] = {}
        self._changing: set[str] = set()
        self._users: Counter[str] = Counter()
        self._last_number = 0

    def find(self, name: str) -> Adapter:
        """The adapter of that name; raises InvalidRequestError when there is none."""
        adapter = self._loaded.get(name)
        if adapter is None or name in self._changing:
            known = ", ".join(sorted(self._loaded)) or "none; add one with add_lora"
            raise InvalidRequestError.because(f"params.lora: there is no adapter '{name}'; there is {known}")
        return adapter

    def note_begin(self, name: str | None) -> None:
        """A job begins that uses the adapter."""
        if name is not None:
            self._users[name] += 1

    def note_end(self, name: str | None) -> None:
        """A job is over that used the adapter."""
        if name is not None:
            self._users[name] -= 1

    async def add(self, arguments: Mapping[str, Payload]) -> None:
        """Load an adapter in each worker."""
        wanted = read_params(AddArguments, arguments, "add_lora")
        name, engine = wanted.name, self._usable_engine()
        self._check_room(name, engine.features.max_loras)
        if not (Path(wanted.path) / "adapter_config.json").is_file():
            raise InvalidRequestError.because(
                f"add_lora.path: there is no adapter_config.json in '{wanted.path}'; name a directory that has one",
                stage=self._stage,
            )
        self._last_number += 1
        adapter = Adapter(name, self._last_number, wanted.path)
        with self._changing_one(name), translated(self._stage, f"load the adapter '{name}'"):
            if not await engine.add_lora(adapter):
                raise failed(self._stage, f"stage '{self._stage}' did not load the adapter '{name}'")
            self._loaded[name] = adapter

    async def remove(self, arguments: Mapping[str, Payload]) -> None:
        """Unload an adapter; not while jobs use it."""
        name = read_params(RemoveArguments, arguments, "remove_lora").name
        engine = self._usable_engine()
        if name not in self._loaded or name in self._changing:
            raise rejected(self._stage, f"stage '{self._stage}' has no adapter '{name}'")
        if self._users[name]:
            message = f"{self._users[name]} jobs of stage '{self._stage}' use the adapter '{name}'"
            raise pending(self._stage, f"{message}; abort them, or try again later")
        with self._changing_one(name), translated(self._stage, f"unload the adapter '{name}'"):
            if not await engine.remove_lora(self._loaded[name]):
                raise failed(self._stage, f"stage '{self._stage}' did not unload the adapter '{name}'")
            del self._loaded[name], self._users[name]

    async def list(self, arguments: Mapping[str, Payload]) -> list[str]:
        """The names of the adapters that the workers say they have."""
        read_params(NoArguments, arguments, "list_loras")
        engine = self._usable_engine()
        with translated(self._stage, "list its adapters"):
            there = await engine.list_loras()
        return sorted(name for name, adapter in self._loaded.items() if adapter.number in there)

    def _usable_engine(self) -> Engine:
        engine = self._engine()
        if not engine.features.max_loras:
            message = f"stage '{self._stage}' was started without LoRA; set its option max_loras"
            raise UnsupportedError.because(message, stage=self._stage)
        return engine

    def _check_room(self, name: str, limit: int) -> None:
        if name in self._loaded or name in self._changing:
            message = f"stage '{self._stage}' has an adapter '{name}' already"
            raise rejected(self._stage, f"{message}; remove it first, or take another name")
        if len(self._loaded.keys() | self._changing) >= limit:
            raise rejected(
                self._stage, f"stage '{self._stage}' has {limit} adapters; remove one, or raise its option max_loras"
            )

    @contextmanager
    def _changing_one(self, name: str) -> Iterator[None]:
        self._changing.add(name)
        try:
            yield
        finally:
            self._changing.discard(name)
