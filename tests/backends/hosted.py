"""Functions that tests host. Blocking ones wait for a gate that the test opens; nothing here takes time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import ClassVar

import msgspec

from podium.payloads import Label, Text
from podium.stage_function import StageFunction

NOT_CALLABLE = 7


class Stuck:
    """An item at which the function waits: until the gate opens, or for ever if it is async."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.gate = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.gate.wait(20), "the test did not open the gate"


class Wrong:
    """An item that makes the function raise `error`."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def handle(item: object) -> None:
    if isinstance(item, Wrong):
        raise item.error
    if isinstance(item, Stuck):
        item.wait()


def echo(item: object) -> object:
    handle(item)
    return item


def letters(item: Text) -> Iterator[Text]:
    handle(item)
    for letter in item.text:
        yield Text(letter)


def forever(item: object) -> Iterator[object]:
    handle(item)
    while True:
        yield item


async def async_echo(item: object) -> object:
    if isinstance(item, Stuck):
        await asyncio.Event().wait()
    handle(item)
    await asyncio.sleep(0)
    return item


async def async_letters(item: object) -> AsyncIterator[object]:
    if isinstance(item, Stuck):
        yield Text("begun")
        await asyncio.Event().wait()
    handle(item)
    assert isinstance(item, Text)
    for letter in item.text:
        await asyncio.sleep(0)
        yield Text(letter)


async def async_forever(item: object) -> AsyncIterator[object]:
    while True:
        yield item


def hides_that_it_is_async(item: object) -> object:
    return async_echo(item)


def nothing(item: object) -> None:
    return None


def sparse(item: object) -> Iterator[object]:
    yield None
    yield item
    yield None


class TwiceParams(msgspec.Struct, frozen=True, kw_only=True):
    times: int = 2
    word: str = ""


class Twice(StageFunction):
    params_type: ClassVar[type[msgspec.Struct] | None] = TwiceParams

    def __init__(self, sign: str = "") -> None:
        self.sign = sign
        self.thread = threading.current_thread().name

    def __call__(self, item: Text, *, params: TwiceParams) -> Text:
        return Text((item.text + params.word + self.sign) * params.times)


class Counter(StageFunction):
    """Each job counts for itself."""

    closed: ClassVar[list[str]] = []

    def for_job(self) -> Callable[..., object]:
        seen: list[object] = []

        def count(item: object) -> int:
            seen.append(item)
            return len(seen)

        return count

    def close(self) -> None:
        self.closed.append(threading.current_thread().name)


class AsyncTwice(Twice):
    async def __call__(self, item: Text, *, params: TwiceParams) -> Text:  # type: ignore[override]
        return super().__call__(item, params=params)


twice = Twice("!")


class Prefix:
    """A class without anything of podium."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def __call__(self, item: Text) -> Text:
        return Text(self.prefix + item.text)


def make_prefix(prefix: str = "") -> Callable[[Text], Text]:
    return Prefix(prefix)


def make_nothing() -> int:
    return NOT_CALLABLE


class Broken:
    def __init__(self) -> None:
        raise RuntimeError("no weights")

    def __call__(self, item: object) -> object:
        return item


class SlowToLoad(StageFunction):
    """Its construction waits for the gate."""

    stuck: ClassVar[Stuck] = Stuck()
    closed: ClassVar[list[SlowToLoad]] = []

    def __init__(self) -> None:
        self.stuck.wait()

    def __call__(self, item: object) -> object:
        return item

    def close(self) -> None:
        self.closed.append(self)
        raise RuntimeError("closing went wrong")


FOREVER = Text("∞")

cleaned: list[object] = []


def forever_or_letters(item: Text) -> Iterator[object]:
    yield from forever(item) if item is FOREVER else letters(item)


async def async_forever_or_letters(item: object) -> AsyncIterator[object]:
    async for output in async_forever(item) if item is FOREVER else async_letters(item):
        await asyncio.sleep(0)
        yield output


async def async_with_cleanup(item: object) -> AsyncIterator[object]:
    try:
        yield item
        await asyncio.Event().wait()
    finally:
        cleaned.append(item)


def fails_at_cleanup(item: object) -> Iterator[object]:
    try:
        while True:
            yield item
    finally:
        handle(Wrong(ValueError("cleanup failed")))


async def async_fails_at_cleanup(item: object) -> AsyncIterator[object]:
    try:
        yield item
        await asyncio.Event().wait()
    finally:
        handle(Wrong(ValueError("cleanup failed")))


def sort(item: object) -> Iterator[object]:
    """Say which way, twice, around an output."""
    yield Label("left")
    yield item
    yield Label("right")
