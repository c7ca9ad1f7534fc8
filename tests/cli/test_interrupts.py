"""Ctrl-C: the first asks, the second quits; elsewhere nothing is touched."""

from __future__ import annotations

import asyncio
import signal

from podium.cli.interrupts import Interrupts


async def test_the_first_asks_and_every_further_one_quits() -> None:
    asked, quits = asyncio.Event(), asyncio.Event()

    with Interrupts(on_first=asked.set, on_second=quits.set) as interrupts:
        signal.raise_signal(signal.SIGINT)
        await asked.wait()
        assert not quits.is_set()
        signal.raise_signal(signal.SIGINT)
        await quits.wait()

    assert interrupts.count == 2
    assert repr(interrupts) == "<Interrupts count=2>"


async def test_the_first_does_what_was_said_last() -> None:
    early, late = asyncio.Event(), asyncio.Event()

    with Interrupts(on_first=early.set) as interrupts:
        interrupts.on_first = late.set
        signal.raise_signal(signal.SIGINT)
        await late.wait()

    assert not early.is_set()


def test_outside_the_main_thread_nothing_is_handled() -> None:
    async def enter() -> int:
        with Interrupts(on_first=lambda: None) as interrupts:
            return interrupts.count

    async def main() -> int:
        return await asyncio.to_thread(asyncio.run, enter())

    assert asyncio.run(main()) == 0
