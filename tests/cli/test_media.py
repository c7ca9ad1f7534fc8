"""Files of what was produced: the numbers in a wav, the pixels in a png."""

from __future__ import annotations

import struct
import wave
import zlib
from pathlib import Path

import numpy as np
import pytest

from podium.cli.media import encode_png, write_payload, write_wav
from podium.payloads import Audio, Image, Text


def read_wav(path: Path) -> tuple[int, np.ndarray]:
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        return file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")


def test_a_wav_has_the_rate_the_frames_and_the_loudness_of_the_sound(tmp_path: Path) -> None:
    times = np.arange(24_000, dtype=np.float32) / 24_000
    write_wav(tmp_path / "tone.wav", Audio(0.5 * np.sin(2 * np.pi * 440 * times).astype(np.float32), 24_000))

    rate, samples = read_wav(tmp_path / "tone.wav")
    loudness = np.sqrt(np.mean(np.square(samples / 32767.0)))
    assert (rate, len(samples)) == (24_000, 24_000)
    assert loudness == pytest.approx(0.5 / np.sqrt(2), rel=1e-3)
    assert samples.max() == pytest.approx(0.5 * 32767, abs=1)


def test_a_wav_clips_what_is_too_loud_and_silences_what_is_no_number(tmp_path: Path) -> None:
    write_wav(tmp_path / "loud.wav", Audio(np.array([2.0, -2.0, np.nan, np.inf, 0.0], dtype=np.float32), 8000))

    assert read_wav(tmp_path / "loud.wav")[1].tolist() == [32767, -32767, 0, 32767, 0]


def test_sound_without_samples_is_an_empty_wav(tmp_path: Path) -> None:
    write_wav(tmp_path / "empty.wav", Audio(np.zeros(0, dtype=np.float32), 8000))

    assert len(read_wav(tmp_path / "empty.wav")[1]) == 0


@pytest.mark.parametrize(("channels", "colour"), [(1, 0), (3, 2), (4, 6)])
def test_a_png_has_the_pixels_of_the_image(channels: int, colour: int) -> None:
    pixels = np.arange(2 * 3 * channels, dtype=np.uint8).reshape(2, 3, channels)
    data = encode_png(Image(pixels))

    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">IIBB", data[16:26]) == (3, 2, 8, colour)
    length = struct.unpack(">I", data[33:37])[0]
    rows = zlib.decompress(data[41 : 41 + length])
    assert rows == b"".join(b"\x00" + row.tobytes() for row in pixels)
    assert struct.unpack(">I", data[41 + length : 45 + length])[0] == zlib.crc32(data[37 : 41 + length])


def test_the_ending_of_a_file_says_its_kind(tmp_path: Path) -> None:
    payloads = [Text("hé"), Audio(np.zeros(3, dtype=np.float32), 8000), Image(np.zeros((1, 1, 3), dtype=np.uint8))]

    paths = [write_payload(tmp_path, "it", payload) for payload in payloads]

    assert paths == [tmp_path / "it.txt", tmp_path / "it.wav", tmp_path / "it.png"]
    assert all(path is not None and path.exists() for path in paths)
    assert (tmp_path / "it.txt").read_text(encoding="utf-8") == "hé"


def test_what_has_no_kind_of_file_is_not_written(tmp_path: Path) -> None:
    assert write_payload(tmp_path, "it", [1, 2]) is None
    assert list(tmp_path.iterdir()) == []
