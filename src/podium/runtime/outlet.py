"""The way back from the driver to callers: one crossing into a caller's loop for a whole burst of outputs.

It knows which stream a ticket belongs to, and forgets it with its terminal. It does not keep a stream alive: one that
nobody holds any more cancels its request.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque

from podium.core.effects import EmitOutput, EndRequest, Outcome, ReplyAbort, ReplyControl
from podium.errors import ErrorRecord
from podium.runtime.driver import CallerEffect
from podium.runtime.request_stream import RequestStream, StreamEffect
from podium.runtime.rpc_result_router import RpcResultRouter

LETTER_LIMIT = 1 << 20
"""Effects that may be on their way to one loop; a caller whose loop takes none for so long loses its streams."""


class Mailbox:
    """Everything on its way to one caller's loop. `put` belongs to the driver's thread, the rest to the caller's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._letters: deque[tuple[RequestStream, StreamEffect]] = deque()
        self._is_scheduled = False

    def __repr__(self) -> str:
        return f"<Mailbox {len(self._letters)} letters>"

    def try_put(self, stream: RequestStream, effect: StreamEffect) -> bool:
        """Take one effect along with the next `send`.

        Refuses when the loop is closed, and everything that waited there with it, and output when the mailbox is full.
        """
        if self._loop.is_closed():
            self._letters.clear()
            return False
        if len(self._letters) >= LETTER_LIMIT and isinstance(effect, EmitOutput):
            return False
        self._letters.append((stream, effect))
        return True

    def send(self) -> None:
        """Wake the loop for what was put in, unless it is about to look anyway."""
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # it was closed just now
                self._letters.clear()

    def _drain(self) -> None:
        self._is_scheduled = False
        for _ in range(len(self._letters)):
            stream, effect = self._letters.popleft()
            stream.take(effect)


class CallerOutlet:
    """Delivers the core's effects to streams and to those who wait for an answer."""

    def __init__(self, aborts: RpcResultRouter[ReplyAbort], controls: RpcResultRouter[ReplyControl]) -> None:
        self._aborts = aborts
        self._controls = controls
        self._streams: dict[int, tuple[weakref.ref[RequestStream], Mailbox]] = {}
        self._mailboxes: dict[asyncio.AbstractEventLoop, Mailbox] = {}
        self._unsent: dict[int, Mailbox] = {}
        self._answers: list[ReplyAbort | ReplyControl] = []

    def __repr__(self) -> str:
        return f"<CallerOutlet {len(self._streams)} streams>"

    def __len__(self) -> int:
        return len(self._streams)

    def register(self, stream: RequestStream) -> None:
        """Let a stream, iterated on the running loop, get what the core has for its ticket."""
        loop = asyncio.get_running_loop()
        mailbox = self._mailboxes.get(loop)
        if mailbox is None:
            self._forget_closed_loops()
            mailbox = self._mailboxes.setdefault(loop, Mailbox(loop))
        self._streams[stream.ticket] = (weakref.ref(stream), mailbox)

    def forget(self, ticket: int) -> None:
        """Deliver nothing for a ticket any more."""
        self._streams.pop(ticket, None)

    def deliver(self, effect: CallerEffect) -> None:
        """Hand on towards the caller; `flush` sends it."""
        if isinstance(effect, ReplyAbort | ReplyControl):
            self._answers.append(effect)
            return
        if isinstance(effect, EmitOutput):
            found = self._streams.get(effect.ticket)
        else:
            found = self._streams.pop(effect.ticket, None)
        if found is None:
            return
        stream, mailbox = found[0](), found[1]
        if stream is None:
            return
        self._unsent[id(mailbox)] = mailbox
        if not mailbox.try_put(stream, effect):
            self.forget(effect.ticket)
            stream.cancel_request()
            mailbox.try_put(stream, _failed(stream, stream.too_slow()))

    def flush(self) -> None:
        """Wake the loops of those who got something, once each: waking in between would cost the driver its turn.

        Answers go last: when a pause or an abort returns, the outputs before it are on their way to their streams.
        """
        while self._unsent:
            self._unsent.popitem()[1].send()
        answers, self._answers = self._answers, []
        for answer in answers:
            if isinstance(answer, ReplyAbort):
                self._aborts.resolve(answer.call, answer)
            else:
                self._controls.resolve(answer.call, answer)

    def fail_everything(self, error: ErrorRecord) -> None:
        """End every stream and every waiter with `error`: the loop does not run any more."""
        self.flush()  # the turn that broke did not come to it
        for ticket in list(self._streams):
            found = self._streams.pop(ticket, None)  # its caller may forget it meanwhile, in another thread
            stream = found[0]() if found is not None else None
            if found is not None and stream is not None:
                found[1].try_put(stream, _failed(stream, error))
                found[1].send()
        self._aborts.fail_everything(error)
        self._controls.fail_everything(error)

    def _forget_closed_loops(self) -> None:
        for loop in list(self._mailboxes):  # a copy: callers of other threads come and go
            if loop.is_closed():
                self._mailboxes.pop(loop, None)


def _failed(stream: RequestStream, error: ErrorRecord) -> EndRequest:
    return EndRequest(stream.ticket, stream.request_id, Outcome.FAILED, 0.0, error)
