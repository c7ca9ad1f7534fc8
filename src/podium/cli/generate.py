"""`podium generate`: runs one request, streams its text, saves what it produced, and ends with its timeline.

Text goes to standard output, everything else to standard error; with `--json` standard output gets one document.
"""

from __future__ import annotations

import asyncio
import errno
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

from podium import bootstrap
from podium.cli.arguments import check_journal, complete_pipeline, parse_outputs, parse_params, read_prompt
from podium.cli.engine import Engine, Stream, open_engine
from podium.cli.interrupts import Interrupts
from podium.cli.problems import INTERRUPTED_EXIT, Problem, print_problem, problem_of
from podium.cli.result import Result
from podium.cli.start_progress import StartProgress
from podium.core.effects import Outcome
from podium.errors import PodiumError, RequestError
from podium.runtime.config import PipelineConfig
from podium.runtime.preparation import RequestPreparation, checked_limit_s

ABORT_TIMEOUT_S = 10.0
"""For how long an interrupted request may take to stop, and then to hand over what it has."""


class Order(NamedTuple):
    """One request, as it was typed."""

    prompt: object
    outputs: tuple[str, ...] | None
    params: Mapping[str, Mapping[str, object]]
    deadline_s: float | None
    priority: int
    request_id: str | None
    samples: int
    journal: Path | None


def generate(
    pipeline: Annotated[
        str,
        typer.Argument(
            help="A shipped pipeline (see `podium pipelines`) or the path of a file.", autocompletion=complete_pipeline
        ),
    ],
    prompt: Annotated[str | None, typer.Argument(help="The prompt; `-` reads it from standard input.")] = None,
    messages: Annotated[Path | None, typer.Option(help="Chat messages in a JSON file, instead of PROMPT.")] = None,
    out: Annotated[Path, typer.Option(help="Where to save what is produced.")] = Path("podium-out"),
    outputs: Annotated[str | None, typer.Option(help="Which outputs, as in text,speech. [default: all]")] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(help="A sampling parameter of a stage, as in thinker.max_tokens=64. May be repeated."),
    ] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds that the request may take.")] = None,
    n: Annotated[int, typer.Option("--n", help="How many samples; each is saved to files of its own.")] = 1,
    priority: Annotated[int, typer.Option(help="Lower goes first where stages are full.")] = 0,
    request_id: Annotated[str | None, typer.Option(help="An id of your own. [default: a generated one]")] = None,
    journal: Annotated[Path | None, typer.Option(help="Write every step to a file, for `podium replay`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Run one request and stream its text; speech and text are saved, Ctrl-C saves what is there."""
    view = View(out, as_json=as_json)
    result = Result(pipeline, n)
    try:
        order = Order(
            prompt=read_prompt(prompt, messages),
            outputs=parse_outputs(outputs),
            params=parse_params(param or []),
            deadline_s=deadline,
            priority=priority,
            request_id=request_id,
            samples=n,
            journal=check_journal(journal),
        )
        config = bootstrap.load_pipeline(pipeline)
        bootstrap.check_requirements(config)
        check_order(config, order)
    except PodiumError as error:
        result.problem = problem_of(error)
        view.finish(result)
    else:
        asyncio.run(run_order(config, order, result, view))
    raise typer.Exit(exit_code_of(result))


class View:
    """Shows one request: streams its text, saves its files, prints its report."""

    def __init__(self, folder: Path, *, as_json: bool) -> None:
        self.console = Console(stderr=True)
        self._folder = folder
        self._as_json = as_json
        self._is_line_open = False
        self._is_reported = False
        self._shown: Problem | None = None

    def __repr__(self) -> str:
        return f"<View folder={self._folder} as_json={self._as_json}>"

    def show(self, text: str) -> None:
        """Print text as it comes."""
        if text and not self._as_json:
            self._write(text)
            self._is_line_open = not text.endswith("\n")

    def note(self, text: str) -> None:
        """Say something beside the text."""
        self._end_line()
        self.console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def note_shutdown(self) -> None:
        """Say why nothing happens at once."""
        self.note("shutting down; Ctrl-C again quits at once")

    def finish(self, result: Result) -> None:
        """Save what was produced and print the report, once; a problem that turns up later is printed then."""
        if not self._is_reported:
            self._is_reported = True
            self._end_line()
            self._save(result)
            if self._as_json:
                self._write(json.dumps(result.to_json(), indent=2) + "\n")
            elif result.timeline:
                self.console.print(result.to_table())
                for line in result.summary():
                    self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        if result.problem is not None and result.problem is not self._shown:
            self._shown = result.problem
            print_problem(self.console, result.problem)

    def _save(self, result: Result) -> None:
        try:
            result.save(self._folder)
        except OSError as error:
            message = f"cannot save to {self._folder}: {error.strerror}"
            result.problem = result.problem or Problem("not_saved", message, 1, hint="choose another --out")
        if result.mismatches:
            result.problem = result.problem or Problem("not_saved", "; ".join(result.mismatches), 1)

    def _end_line(self) -> None:
        if self._is_line_open:
            self.show("\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def check_order(config: PipelineConfig, order: Order) -> None:
    """Raise InvalidRequestError for what the engine would refuse anyway, before it takes its time to start."""
    preparation = RequestPreparation(bootstrap.assemble(config), None)
    preparation.prompt(order.prompt)
    preparation.outputs(order.outputs)
    preparation.params(order.params)
    preparation.companions(order.prompt, order.params, preparation.samples(order.samples))
    if order.deadline_s is not None:
        checked_limit_s(order.deadline_s, "--deadline")


async def run_order(config: PipelineConfig, order: Order, result: Result, view: View) -> None:
    """Start an engine, run one request on it, report, and shut the engine down. Errors go into `result`."""
    task = asyncio.current_task()
    assert task is not None
    with Interrupts(on_first=task.cancel) as interrupts:
        try:
            with StartProgress(view.console, [stage.name for stage in config.stages]) as progress:
                async with open_engine(result.pipeline, journal=order.journal, on_progress=progress) as engine:
                    progress.end()
                    await run_request(engine, order, result, view, interrupts)
                    interrupts.on_first = view.note_shutdown
                    view.finish(result)
        except PodiumError as error:
            result.problem = result.problem or problem_of(error)
        except asyncio.CancelledError:
            if not interrupts.count:
                raise
            result.was_interrupted = True
        view.finish(result)


async def run_request(engine: Engine, order: Order, result: Result, view: View, interrupts: Interrupts) -> None:
    """Run one request to its end. The first Ctrl-C aborts it; then its end has a limit."""
    stop = asyncio.Event()
    interrupts.on_first = stop.set
    try:
        stream = engine.generate(
            order.prompt,
            outputs=order.outputs,
            params=order.params,
            deadline_s=order.deadline_s,
            priority=order.priority,
            request_id=order.request_id,
            n=order.samples,
        )
    except RequestError as error:
        result.problem = problem_of(error)
        return
    result.request_id = stream.request_id
    is_pipe_broken = False
    try:
        async with asyncio.TaskGroup() as group, asyncio.timeout(None) as limit:
            stopping = group.create_task(_stop_when_asked(stop, engine, result, view, limit))
            await _read(stream, result, view)
            stopping.cancel()
    except* TimeoutError:
        result.problem = result.problem or Problem("wait_timeout", "the aborted request did not end in time", 124)
    except* BrokenPipeError:
        is_pipe_broken = True
    if is_pipe_broken:
        raise BrokenPipeError(errno.EPIPE, "standard output was closed")


async def _read(stream: Stream, result: Result, view: View) -> None:
    try:
        async for output in stream:
            view.show(result.take(output))
    except RequestError as error:
        result.problem = problem_of(error)
    result.outcome = stream.outcome
    result.timeline = dict(stream.timeline)


async def _stop_when_asked(
    stop: asyncio.Event, engine: Engine, result: Result, view: View, limit: asyncio.Timeout
) -> None:
    await stop.wait()
    result.was_interrupted = True
    view.note("stopping; Ctrl-C again quits at once")
    assert result.request_id is not None
    try:
        await engine.abort([result.request_id], wait="stopped", timeout_s=ABORT_TIMEOUT_S)
    except RequestError as error:
        result.problem = problem_of(error)
    limit.reschedule(asyncio.get_running_loop().time() + ABORT_TIMEOUT_S)


def exit_code_of(result: Result) -> int:
    """130 for an interrupted request, otherwise that of its problem, or 0."""
    if result.was_interrupted or (result.outcome is Outcome.ABORTED and result.problem is None):
        return INTERRUPTED_EXIT
    return 0 if result.problem is None else result.problem.exit_code
