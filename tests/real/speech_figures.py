"""What can be measured of a sound to tell speech from silence, tones and noise. No model is needed for it.

Speech is voiced in part, at the pitch of a voice, and its loudness rises and falls a few times a second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from podium.payloads import Audio

Samples = npt.NDArray[np.float64]

FRAME_S = 0.04
STEP_S = 0.01
ACTIVE_DB = -35.0
RISE_DB = 6.0
VOICE_HZ = (60.0, 400.0)
VOICED_CORRELATION = 0.5


class SpeechFigures(NamedTuple):
    """`active_share` of the frames are near the loudest one; `voiced_share` of those have the pitch of a voice.

    `rises_per_s` counts how often the loudness goes up by 6 dB and down again: syllables, about. `pitch_spread` is the
    standard deviation of the pitch, in semitones.
    """

    rms: float
    peak: float
    active_share: float
    voiced_share: float
    rises_per_s: float
    pitch_spread: float

    @property
    def is_speech(self) -> bool:
        return (
            self.rms > 0.005
            and self.active_share > 0.3
            and self.voiced_share > 0.3
            and 1.5 < self.rises_per_s < 10.0
            and self.pitch_spread > 0.5
        )


def measure(audio: Audio) -> SpeechFigures:
    """The figures of a sound of at least a second."""
    samples = audio.samples.astype(np.float64)
    frames = _frames(samples, audio.sample_rate)
    loudness = _decibels(frames)
    is_active = loudness > loudness.max() + ACTIVE_DB
    pitch, correlation = _pitch(frames[is_active], audio.sample_rate)
    voiced = pitch[correlation > VOICED_CORRELATION]
    return SpeechFigures(
        rms=float(np.sqrt(np.mean(samples**2))),
        peak=float(np.abs(samples).max()),
        active_share=float(is_active.mean()),
        voiced_share=len(voiced) / max(1, len(pitch)),
        rises_per_s=_count_rises(loudness) / audio.duration_s,
        pitch_spread=float(np.std(12 * np.log2(voiced))) if len(voiced) else 0.0,
    )


def _frames(samples: Samples, rate: int) -> Samples:
    size, step = int(FRAME_S * rate), int(STEP_S * rate)
    return np.lib.stride_tricks.sliding_window_view(samples, size)[::step]


def _decibels(frames: Samples) -> Samples:
    power: Samples = np.mean(frames**2, axis=1)
    return 10 * np.log10(power + 1e-10)


def _pitch(frames: Samples, rate: int) -> tuple[Samples, Samples]:
    """For each frame the pitch in Hz, and how well the frame repeats itself at it (1: perfectly)."""
    centred = frames - frames.mean(axis=1, keepdims=True)
    size = centred.shape[1]
    power = np.abs(np.fft.rfft(centred, 2 * size, axis=1)) ** 2
    correlation = np.fft.irfft(power, axis=1)[:, :size]
    overlap = 1.0 - np.arange(size) / size
    correlation = correlation / (correlation[:, :1] * overlap + 1e-12)
    shortest, longest = int(rate / VOICE_HZ[1]), int(rate / VOICE_HZ[0])
    lags = correlation[:, shortest:longest]
    best = (lags >= 0.9 * lags.max(axis=1, keepdims=True)).argmax(axis=1)  # the first; its multiples repeat it
    return rate / (best + shortest), np.take_along_axis(lags, best[:, None], axis=1)[:, 0]


def _count_rises(loudness: Samples) -> int:
    """How often it rises by so many decibels from a valley, before it falls by as many."""
    floor = np.maximum(loudness, loudness.max() + ACTIVE_DB)
    count, is_rising, extreme = 0, True, floor[0]
    for level in floor:
        if is_rising and level > extreme + RISE_DB:
            count, is_rising, extreme = count + 1, False, level
        elif not is_rising and level < extreme - RISE_DB:
            is_rising, extreme = True, level
        else:
            extreme = min(extreme, level) if is_rising else max(extreme, level)
    return count
