"""What is shown while an engine starts: a line per stage on a terminal, plain lines in a log."""

from __future__ import annotations

import io
import logging

from rich.console import Console

from podium.cli.start_progress import StartProgress


def test_on_a_terminal_each_stage_has_a_line_that_goes_away() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100, color_system=None)

    with StartProgress(console, ["thinker", "speaker"]) as progress:
        progress("thinker", "loading [weights]")
        progress("late", "joined")
        progress.refresh()
        shown = written.getvalue()
        progress.end()
        assert written.getvalue().endswith("\x1b[2K"), "the lines are taken away"

    assert "waiting" in shown
    assert "loading [weights]" in shown
    assert "joined" in shown


def test_in_a_log_each_message_is_a_line() -> None:
    written = io.StringIO()

    with StartProgress(Console(file=written, force_terminal=False), ["thinker"]) as progress:
        progress("thinker", "loading [weights]")

    (line,) = written.getvalue().splitlines()
    assert line.strip().endswith("s  thinker: loading [weights]")


def test_what_a_backend_logs_of_its_start_is_shown_until_the_end() -> None:
    """Such as the conversion of weights, which takes most of a minute."""
    written = io.StringIO()
    log = logging.getLogger("podium.progress")
    level = log.level

    with StartProgress(Console(file=written, force_terminal=False), ["thinker"]) as progress:
        log.info("stage 'thinker': converting", extra={"stage": "thinker", "doing": "converting"})
        log.info("what no stage says")
        progress.end()
        log.info("stage 'thinker': too late", extra={"stage": "thinker", "doing": "too late"})

    (line,) = written.getvalue().splitlines()
    assert line.endswith("thinker: converting")
    assert (log.handlers, log.level) == ([], level)
