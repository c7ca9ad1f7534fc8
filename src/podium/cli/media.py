"""Writes what a request produced: text as UTF-8, speech as 16-bit PCM wav, images as png.

Only the standard library is used. Names of files come from the caller.
"""

from __future__ import annotations

import struct
import wave
import zlib
from pathlib import Path

import numpy as np

from podium.payloads import Audio, Image, Text

_PNG_COLOURS = {1: 0, 3: 2, 4: 6}


def write_payload(folder: Path, name: str, payload: object) -> Path | None:
    """Write a payload as `folder/name` with the ending of its kind; None for a payload that has no kind of file."""
    if isinstance(payload, Text):
        path = folder / f"{name}.txt"
        path.write_text(payload.text, encoding="utf-8", errors="replace")
    elif isinstance(payload, Audio):
        path = folder / f"{name}.wav"
        write_wav(path, payload)
    elif isinstance(payload, Image):
        path = folder / f"{name}.png"
        path.write_bytes(encode_png(payload))
    else:
        return None
    return path


def write_wav(path: Path, audio: Audio) -> None:
    """Write one channel of 16-bit PCM at the sound's own rate; samples outside [-1, 1] are clipped, NaN is silence."""
    samples = np.clip(np.nan_to_num(audio.samples, nan=0.0), -1.0, 1.0)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(audio.sample_rate)
        file.writeframes(np.rint(samples * 32767.0).astype("<i2").tobytes())


def encode_png(image: Image) -> bytes:
    """The image as a png: 8 bits per channel; grey, RGB or RGBA by the number of channels."""
    height, width, channels = image.pixels.shape
    rows = b"".join(b"\x00" + row.tobytes() for row in np.ascontiguousarray(image.pixels))
    header = struct.pack(">IIBBBBB", width, height, 8, _PNG_COLOURS[channels], 0, 0, 0)
    chunks = [_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows)), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
