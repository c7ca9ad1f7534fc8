"""What stages produce for clients: text, audio and images, and how pieces of one stream join into a whole.

These types are for backends, processors and callers. The core never looks inside a payload, and this module knows
nothing of requests or stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt


class Text(msgspec.Struct, frozen=True):
    """A piece of text, with the token ids that it was decoded from where the engine has them."""

    text: str
    token_ids: tuple[int, ...] = ()


class Audio(msgspec.Struct, frozen=True, eq=False):
    """A piece of sound: `samples` is float32 of shape (frames,) in [-1, 1]; `sample_rate` is in Hz."""

    samples: npt.NDArray[np.float32]
    sample_rate: int

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self.samples) / self.sample_rate


class Image(msgspec.Struct, frozen=True, eq=False):
    """A picture: `pixels` is uint8 of shape (height, width, channels), channels 1, 3 or 4."""

    pixels: npt.NDArray[np.uint8]


class SegmentEnd(msgspec.Struct, frozen=True):
    """Stands in a stream where one segment of it ends (a turn of a session, say) and the stage goes on.

    It travels in order like any payload: consumers may act on it, and callers get an item with `segment_finished`. It
    says nothing about the end of a stage, or of the request.
    """


class Bundle(msgspec.Struct, frozen=True, eq=False):
    """What a request (`main`) and each of its companions made, by role and then by source, joined to wholes.

    The roles are in their order, `main` first. A source that made nothing has None.
    """

    parts: Mapping[str, Mapping[str, object]]


class Label(msgspec.Struct, frozen=True):
    """Says which way a request goes on, where a hosted function makes it: one of the `labels` of its stage.

    The function backend takes it out of the outputs; the last one that a job gave is that of its finish.
    """

    label: str


def join(pieces: Sequence[object]) -> object:
    """The whole that `pieces` of one stream make: texts and sounds are concatenated, anything else becomes a list.

    A single piece is its own whole; no piece at all is None. Ends of segments leave no trace. Sounds must share one
    sample rate (ValueError).
    """
    pieces = [piece for piece in pieces if not isinstance(piece, SegmentEnd)]
    if not pieces:
        return None
    if len(pieces) == 1:
        return pieces[0]
    texts = [piece for piece in pieces if isinstance(piece, Text)]
    if len(texts) == len(pieces):
        return Text(
            "".join(piece.text for piece in texts),
            tuple(token for piece in texts for token in piece.token_ids),
        )
    sounds = [piece for piece in pieces if isinstance(piece, Audio)]
    if len(sounds) == len(pieces):
        rates = {sound.sample_rate for sound in sounds}
        if len(rates) != 1:
            raise ValueError(f"cannot join sounds of different sample rates: {sorted(rates)} Hz")
        return Audio(np.concatenate([sound.samples for sound in sounds]), rates.pop())
    return list(pieces)
