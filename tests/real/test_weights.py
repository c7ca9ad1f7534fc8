"""The weights of the voice pipeline's thinker, converted for real: once, whole, and right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from podium.pipelines import smollm2
from podium.pipelines.smollm2 import Manifest, count_parameters, find_source, is_whole, prepare_smollm2

pytestmark = pytest.mark.timeout(300)


def test_the_weights_are_whole_and_ready_at_once() -> None:
    directory = prepare_smollm2()
    assert is_whole(directory, find_source())
    manifest = msgspec.json.decode((directory / "podium.json").read_bytes(), type=Manifest)
    assert manifest.parameters == count_parameters(directory) == 134_515_008
    assert set(manifest.files) >= {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
    said: list[str] = []
    assert prepare_smollm2(said.append) == directory
    assert said == []


def test_the_weights_are_in_float32_and_as_the_source_has_them() -> None:
    directory = prepare_smollm2()
    config = json.loads((directory / "config.json").read_text())
    assert config["dtype"] == "float32"
    gguf = pytest.importorskip("gguf")
    safetensors = pytest.importorskip("safetensors.numpy")
    converted = safetensors.load_file(directory / "model.safetensors")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(find_source()).tensors}
    for name, other in {
        "blk.7.ffn_down.weight": "model.layers.7.mlp.down_proj.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }.items():
        source = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
        assert (source.reshape(converted[other].shape) == converted[other]).all(), name


def test_a_damaged_directory_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversion itself, from nothing that can be used: half a minute."""
    target = tmp_path / "models" / "smollm2-135m-instruct"
    shutil.copytree(prepare_smollm2(), target, ignore=shutil.ignore_patterns("*.safetensors"))
    (target / "model.safetensors").write_bytes(b"half of it")
    leftover = tmp_path / "models" / ".smollm2-135m-instruct-killed"
    leftover.mkdir()
    monkeypatch.setenv("PODIUM_CACHE", str(tmp_path))
    said: list[str] = []
    assert prepare_smollm2(said.append) == target
    assert is_whole(target, find_source())
    assert said[0] == smollm2.ANNOUNCEMENT
    assert said[-1] == f"converted: {target}"
    left = {path.name for path in (tmp_path / "models").iterdir()}
    assert left == {"smollm2-135m-instruct", "smollm2-135m-instruct.lock"}


def test_the_process_of_a_conversion_reports_and_fails_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real process, on a file that is no model: what it says goes on, its last words are the error."""
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"no model")
    said: list[str] = []
    with pytest.raises(RuntimeError, match=r"SmolLM2-135M could not be converted \(exit code 1\): .+"):
        smollm2._convert_in_process(bad, tmp_path, said.append, lambda: False)
    with pytest.raises(RuntimeError, match="was abandoned"):
        smollm2._convert_in_process(bad, tmp_path, said.append, lambda: True)
