"""Judges the journal of a world again: the same events must break no rule, whatever the core answers to them today.

A journal outlives the drawing of worlds: what a seed stands for changes with them, what happened once does not.
"""

from __future__ import annotations

from pathlib import Path

from podium.errors import InternalError
from podium.runtime.journal import open_journal
from podium.testing.simulation.ledger import Ledger
from podium.testing.simulation.payload_account import PayloadAccount


def judge_journal(path: str | Path) -> list[str]:
    """What is wrong with the core's answers to the events of a journal that was written with its payloads.

    Raises ConfigurationError when the file is no journal, of another format, or damaged.
    """
    core, records = open_journal(path)
    ledger, payloads = Ledger(), PayloadAccount(core.graph)
    for number, record in enumerate(records, 2):
        if record is None:
            ledger.violations.append(f"line {number} is incomplete")
            break
        try:
            effects = core.step(record.events, record.now)
        except InternalError as error:
            ledger.violations.append(f"line {number} broke the core: {error}")
            break
        for observer in (ledger, payloads):
            observer.on_step(record.events, record.now, effects)
    ledger.check_end()
    return [*ledger.violations, *payloads.find_violations()]
