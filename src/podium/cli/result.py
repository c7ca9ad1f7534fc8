"""What came of one request: its outputs put together, its files, its timings; as a JSON document and as a table.

It takes outputs as they come and computes; it prints nothing and knows no engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text as Styled

from podium.cli.media import write_payload
from podium.cli.problems import Problem
from podium.core.effects import Outcome, StageTimings
from podium.core.events import FinishReason
from podium.core.graph import Modality
from podium.payloads import Audio, Image, Text, join
from podium.runtime.outputs import OmniOutput

_KINDS: dict[Modality, type] = {Modality.TEXT: Text, Modality.SPEECH: Audio, Modality.IMAGE: Image}


class FinalOutput:
    """One output of one sample of the request, by the name a client asks for it; its file is called `file_name`."""

    def __init__(self, name: str, stage: str, modality: Modality, file_name: str | None = None) -> None:
        self.name = name
        self.file_name = file_name or name
        self.stage = stage
        self.modality = modality
        self.finish_reason: FinishReason | None = None
        self.usage: dict[str, int] = {}
        self.file: Path | None = None
        self._pieces: list[object] = []
        self._partial: object = None
        self._characters = 0  # of text so far: joining the pieces each time would cost more with every one

    def __repr__(self) -> str:
        return f"<FinalOutput {self.name} pieces={len(self._pieces)} finish={self.finish_reason}>"

    def take(self, output: OmniOutput) -> str:
        """Add a piece, or the finish; return the text that it adds."""
        added = ""
        if output.delta is not None:
            self._pieces.append(output.delta)
            added = output.delta.text if isinstance(output.delta, Text) else ""
        if output.partial is not None:
            self._partial = output.partial
            added = output.partial.text[self._characters :] if isinstance(output.partial, Text) else ""
        if output.finish_reason is not None:
            self.finish_reason = output.finish_reason
            self.usage = dict(output.usage)
        self._characters += len(added)
        return added

    @property
    def whole(self) -> object:
        """Everything of it: what an aborted stage handed over at the end covers its pieces."""
        if self._partial is not None:
            return self._partial
        try:
            return join(self._pieces)
        except ValueError:  # sounds of different rates; `mismatch` says so
            return self._pieces

    @property
    def text(self) -> str:
        """Its text, empty for anything else."""
        whole = self.whole
        return whole.text if isinstance(whole, Text) else ""

    @property
    def audio_s(self) -> float | None:
        """The length of its sound in seconds; None for anything else."""
        whole = self.whole
        return whole.duration_s if isinstance(whole, Audio) else None

    @property
    def mismatch(self) -> str | None:
        """How its pieces are not what its stage declares, with the remedy; None when they are."""
        kind = _KINDS.get(self.modality)
        pieces = self._pieces if self._partial is None else [self._partial]
        strange = sorted({type(piece).__name__ for piece in pieces if kind is not None and not isinstance(piece, kind)})
        if kind is Audio and not strange and isinstance(self.whole, list):
            return (
                f"stage '{self.stage}' gave sounds of different sample rates as the output '{self.name}'; give one rate"
            )
        if kind is None or not strange:
            return None
        gave = f"stage '{self.stage}' gave {', '.join(strange)} as the output '{self.name}'"
        return f"{gave}, which is {self.modality}; give podium.{kind.__name__}"


class Result:
    """One request, from its first output to its report. `outputs` are those of the first sample, by stage; `samples`
    has those of all.
    """

    def __init__(self, pipeline: str, samples: int = 1) -> None:
        self.pipeline = pipeline
        self.request_id: str | None = None
        self.outcome: Outcome | None = None
        self.problem: Problem | None = None
        self.was_interrupted = False
        self.samples: list[dict[str, FinalOutput]] = [{} for _ in range(max(samples, 1))]
        self.outputs = self.samples[0]
        self.timeline: dict[str, StageTimings] = {}

    def __repr__(self) -> str:
        return f"<Result {self.request_id} {self.outcome} outputs={','.join(self.outputs)}>"

    def take(self, output: OmniOutput) -> str:
        """Add an output; return the text to show for it, which is empty unless it belongs to the first text output of
        the first sample.
        """
        sample = self.samples[output.index]
        if output.stage not in sample:
            name = output.output if len(self.samples) == 1 else f"{output.output}-{output.index}"
            sample[output.stage] = FinalOutput(output.output, output.stage, output.modality, name)
        text = sample[output.stage].take(output)
        first = next((one for one in self.outputs.values() if one.modality is Modality.TEXT), None)
        return text if first is sample[output.stage] else ""

    def save(self, folder: Path) -> None:
        """Write a file for each output that has anything. Raises OSError."""
        for output in self._everything():
            folder.mkdir(parents=True, exist_ok=True)
            output.file = write_payload(folder, output.file_name, output.whole)

    @property
    def mismatches(self) -> list[str]:
        """For each output that is not what its stage declares, how."""
        return list(dict.fromkeys(one.mismatch for one in self._everything() if one.mismatch is not None))

    @property
    def text(self) -> str | None:
        """The first text output; None without one."""
        return _text_of(self.outputs)

    def first_output_s(self, modality: Modality) -> float | None:
        """From the submission to the first output of that kind, in seconds."""
        stages = [one.stage for one in self.outputs.values() if one.modality is modality]
        return min(_present(self._since_submission(stage, "first_output_at") for stage in stages), default=None)

    @property
    def total_s(self) -> float | None:
        """From the submission to the last finish of a stage, in seconds."""
        return max(_present(self._since_submission(stage, "finished_at") for stage in self.timeline), default=None)

    @property
    def audio_s(self) -> float | None:
        """The length of all sound, in seconds; None without any."""
        lengths = _present(one.audio_s for one in self._everything())
        return sum(lengths) if lengths else None

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work for a second of sound: from the submission to the last finish of a stage that speaks."""
        spoken = [one.stage for one in self.outputs.values() if one.audio_s]
        finish_s = max(_present(self._since_submission(stage, "finished_at") for stage in spoken), default=None)
        return finish_s / self.audio_s if finish_s is not None and self.audio_s else None

    def to_json(self) -> dict[str, object]:
        """The document of `--json`; times are seconds since the submission. With several samples it has them all in
        `samples`, and the first at its top.
        """
        samples = [_sample_to_json(one) for one in self.samples]
        return {
            "pipeline": self.pipeline,
            "request_id": self.request_id,
            "outcome": self.outcome,
            **samples[0],
            **({"samples": samples} if len(samples) > 1 else {}),
            "timings": {
                "first_text_s": self.first_output_s(Modality.TEXT),
                "first_speech_s": self.first_output_s(Modality.SPEECH),
                "total_s": self.total_s,
                "audio_s": self.audio_s,
                "real_time_factor": self.real_time_factor,
                "stages": {stage: self._stage_times(stage) for stage in self.timeline},
            },
            "error": None if self.problem is None else self.problem.to_json(),
        }

    def to_table(self) -> Table:
        """The timeline: a row for each stage, seconds since the submission."""
        title = Styled(f"request {self.request_id}: {self.outcome or 'not accepted'}", "table.title")
        table = Table("stage", box=box.SIMPLE_HEAD, title=title)
        for column in ("queued", "started", "first output", "finished", "finish"):
            table.add_column(column, justify="right")
        for stage in self.timeline:
            reason = self.outputs[stage].finish_reason if stage in self.outputs else None
            table.add_row(stage, *(_seconds(value) for value in self._stage_times(stage).values()), reason or "-")
        return table

    def summary(self) -> list[str]:
        """The figures below the table, and where the files are."""
        figures = [
            ("first text", self.first_output_s(Modality.TEXT), "{:.2f} s"),
            ("first speech", self.first_output_s(Modality.SPEECH), "{:.2f} s"),
            ("audio", self.audio_s, "{:.2f} s"),
            ("real-time factor", self.real_time_factor, "{:.2f}"),
        ]
        line = " · ".join(f"{name} {form.format(value)}" for name, value, form in figures if value is not None)
        saved = ", ".join(str(one.file) for one in self._everything() if one.file is not None)
        return [text for text in (line, f"saved {saved}" if saved else "") if text]

    def _everything(self) -> list[FinalOutput]:
        return [output for sample in self.samples for output in sample.values()]

    def _stage_times(self, stage: str) -> dict[str, float | None]:
        stations = ("queued_at", "started_at", "first_output_at", "finished_at")
        return {f"{name.removesuffix('_at')}_s": self._since_submission(stage, name) for name in stations}

    def _since_submission(self, stage: str, station: str) -> float | None:
        timings = self.timeline.get(stage)
        if timings is None:
            return None
        at: float | None = msgspec.structs.asdict(timings)[station]
        return None if at is None else at - timings.submitted_at


def _text_of(sample: Mapping[str, FinalOutput]) -> str | None:
    return next((one.text for one in sample.values() if one.modality is Modality.TEXT), None)


def _sample_to_json(sample: Mapping[str, FinalOutput]) -> dict[str, object]:
    return {
        "text": _text_of(sample),
        "files": {one.name: str(one.file) for one in sample.values() if one.file is not None},
        "finish_reasons": {one.name: one.finish_reason for one in sample.values()},
        "usage": {one.name: one.usage for one in sample.values()},
    }


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
