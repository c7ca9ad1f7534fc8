"""The clock of a running engine, and the store of references."""

from __future__ import annotations

from podium.ports.environment import Clock, PayloadStore
from podium.runtime.clock import MonotonicClock, ReferenceStore


def test_time_does_not_go_back() -> None:
    clock: Clock = MonotonicClock()
    times = [clock.now() for _ in range(100)]
    assert times == sorted(times)


def test_the_store_counts_what_nobody_got() -> None:
    store = ReferenceStore()
    port: PayloadStore = store
    assert store.released == 0
    port.release(("a", "b"))
    port.release(())
    port.release(["c"])
    assert store.released == 3
