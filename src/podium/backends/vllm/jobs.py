"""One job on vLLM: what it made, and which of it was not taken yet.

Plain bookkeeping: nothing here waits, sends, or knows of the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from podium.core.events import Finish, FinishReason, JobOutput
from podium.core.identity import JobKey
from podium.errors import ErrorRecord
from podium.payloads import Text
from podium.ports.stage_backend import JobFailed

_FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "repetition": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
}


class RunningJob:
    """Collects the pieces of one answer. Tokens that are not readable yet wait for the text that they become."""

    def __init__(self, key: JobKey, request_id: str, *, prompt_tokens: int, lora: str | None = None) -> None:
        """`request_id` is vLLM's own name for the job; `lora` is the adapter that it uses."""
        self.key = key
        self.lora = lora
        self.request_id = request_id
        self.stopping = asyncio.Lock()
        self.taken = asyncio.Event()
        self.taken.set()
        self._prompt_tokens = prompt_tokens
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._shown_token_count = 0
        self._untaken: list[Text] = []
        self._sequence = 0
        self._finish: Finish | None = None
        self._error: ErrorRecord | None = None

    def __repr__(self) -> str:
        state = "failed" if self._error else self._finish.reason if self._finish else "running"
        return f"<RunningJob {self.key} {state} tokens={len(self._token_ids)} untaken={len(self._untaken)}>"

    @property
    def is_over(self) -> bool:
        """Whether it finished or failed by itself."""
        return self._finish is not None or self._error is not None

    @property
    def has_output(self) -> bool:
        """Whether there is something to take."""
        return bool(self._untaken) or self.is_over

    @property
    def everything(self) -> Text:
        """All that was generated so far."""
        return Text("".join(self._texts), tuple(self._token_ids))

    def add(self, text: str, token_ids: Sequence[int]) -> None:
        """Take in what one step made, for `take` to hand out."""
        self.add_unseen(text, token_ids)
        if text:
            self._show(text)

    def add_unseen(self, text: str, token_ids: Sequence[int]) -> None:
        """Take in what counts for `everything` only."""
        if text:
            self._texts.append(text)
        self._token_ids += token_ids

    def end(self, reason: str) -> None:
        """Finish, for vLLM's `reason`."""
        if self._shown_token_count < len(self._token_ids):
            self._show("")
        usage = {"prompt_tokens": self._prompt_tokens, "completion_tokens": len(self._token_ids)}
        self._finish = Finish(_FINISH_REASONS.get(reason, FinishReason.ERROR), usage)

    def fail(self, error: ErrorRecord) -> None:
        """End with an error; it replaces what was not taken yet."""
        self._error = error

    def take(self) -> JobOutput | JobFailed:
        """Hand out what was not taken yet, and with it the end, when there is one."""
        self.taken.set()
        if self._error is not None:
            return JobFailed(self.key, self._error)
        pieces, self._untaken = tuple(self._untaken), []
        output = JobOutput(self.key, self._sequence, pieces, self._finish)
        self._sequence += len(pieces)
        return output

    def _show(self, text: str) -> None:
        self._untaken.append(Text(text, tuple(self._token_ids[self._shown_token_count :])))
        self._shown_token_count = len(self._token_ids)
