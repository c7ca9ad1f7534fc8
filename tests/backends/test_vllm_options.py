"""What the vLLM backend lets a user say, and how it refuses the rest; nothing here needs vLLM."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from podium.backends.vllm import VllmBackend, VllmOptions, VllmParams
from podium.backends.vllm.environment import applied, environment_for
from podium.backends.vllm.start import engine_arguments
from podium.errors import ConfigurationError, InvalidRequestError

MODEL = VllmOptions(model="somewhere")


@pytest.mark.rule("ORCH-INV-300")
def test_every_bad_option_is_named_with_a_remedy() -> None:
    with pytest.raises(ConfigurationError) as caught:
        VllmBackend.parse_options({"chatt": True, "dtype": "float64", "max_model_len": 0, "threads": False})
    found = {fault.where: f"{fault.problem}; {fault.remedy}" for fault in caught.value.faults}
    assert found["options.chatt"] == "is unknown; did you mean 'chat'?"
    assert "invalid enum value 'float64'" in found["options.dtype"]
    assert "expected `int` >= 1" in found["options.max_model_len"]
    assert "options.threads" in found
    assert found["options.model"].startswith("is missing")


def test_a_system_prompt_without_chat_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="system_prompt: has no effect without `chat`; set `chat: true`"):
        VllmBackend.parse_options({"model": "somewhere", "system_prompt": "Be brief."})
    options = VllmBackend.parse_options({"model": "somewhere", "system_prompt": "Be brief.", "chat": True})
    assert options.system_prompt == "Be brief."


def test_a_model_that_is_prepared_must_be_importable() -> None:
    assert VllmBackend.parse_options({"model": "podium.pipelines.voice:prepare_smollm2"}).model
    with pytest.raises(ConfigurationError, match=r"did you mean 'podium.pipelines.voice:prepare_smollm2'"):
        VllmBackend.parse_options({"model": "podium.pipelines.voice:prepare_smolm2"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temprature": 1}, "params.temprature: is unknown; did you mean 'temperature'"),
        ({"temperature": -0.1}, "params.temperature: expected `float` >= 0"),
        ({"temperature": "hot"}, "params.temperature: expected `float`, got `str`"),
        ({"temperature": float("nan")}, "params.temperature"),
        ({"top_p": 0}, "params.top_p: expected `float` > 0"),
        ({"top_p": 1.5}, "params.top_p: expected `float` <= 1"),
        ({"top_k": -1}, "params.top_k: expected `int` >= 0"),
        ({"min_p": 2}, "params.min_p"),
        ({"max_tokens": 0}, "params.max_tokens: expected `int` >= 1"),
        ({"max_tokens": 1.5}, "params.max_tokens"),
        ({"seed": -1}, "params.seed: expected `int` >= 0"),
        ({"seed": 2**63}, "params.seed"),
        ({"presence_penalty": 3}, "params.presence_penalty: expected `float` <= 2"),
        ({"repetition_penalty": 0}, "params.repetition_penalty: expected `float` > 0"),
        ({"stop": ""}, "params.stop"),
        ({"stop_token_ids": [-1]}, "params.stop_token_ids"),
        ({"ignore_eos": 1}, "params.ignore_eos: expected `bool`"),
        ({"min_tokens": 5, "max_tokens": 4}, "params.min_tokens: 5 is more than max_tokens; give at most 4"),
    ],
)
@pytest.mark.rule("ORCH-INV-005")
def test_bad_parameters_are_refused_by_name(values: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        VllmBackend.parse_params(MODEL, values)
    assert message in str(caught.value)
    assert caught.value.status == 400


def test_good_parameters_are_taken() -> None:
    params = VllmBackend.parse_params(MODEL, {"temperature": 0, "stop": ["a", "b"], "seed": 0, "top_k": 40})
    assert params == VllmParams(temperature=0.0, stop=("a", "b"), seed=0, top_k=40)
    assert VllmBackend.parse_params(MODEL, {"stop": "end"}).stops == ("end",)
    assert VllmBackend.parse_params(MODEL, {}) == VllmParams()


def test_options_are_what_vllm_gets_and_the_rest_is_left_to_it() -> None:
    assert engine_arguments(MODEL, "/models/m") == {
        "model": "/models/m",
        "dtype": "auto",
        "enforce_eager": False,
        "tensor_parallel_size": 1,
        "trust_remote_code": False,
        "seed": 0,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    options = VllmOptions(model="m", max_model_len=8, prefix_caching=False, engine_args={"block_size": 32, "seed": 7})
    arguments = engine_arguments(options, "m")
    assert (arguments["max_model_len"], arguments["enable_prefix_caching"]) == (8, False)
    assert (arguments["block_size"], arguments["seed"]) == (32, 7)


def test_the_environment_follows_the_options() -> None:
    plain = environment_for(MODEL, model_is_local=False, cores=frozenset({0, 1}))
    assert plain["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"
    assert not {"HF_HUB_OFFLINE", "TORCHDYNAMO_DISABLE", "VLLM_CPU_OMP_THREADS_BIND"} & plain.keys()
    options = VllmOptions(model="m", enforce_eager=True, kv_cache_gib=3, threads=2)
    full = environment_for(options, model_is_local=True, cores=frozenset({7, 5, 6}))
    assert (full["HF_HUB_OFFLINE"], full["TORCHDYNAMO_DISABLE"]) == ("1", "1")
    assert (full["VLLM_CPU_KVCACHE_SPACE"], full["VLLM_CPU_OMP_THREADS_BIND"]) == ("3", "5,6")
    written = environment_for(VllmOptions(model="m", threads="0-3"), model_is_local=True, cores=frozenset())
    assert written["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"


def test_what_the_user_has_set_is_kept_and_nothing_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.delenv("VLLM_NO_USAGE_STATS", raising=False)
    with applied({"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}, lambda: False):
        assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
        assert os.environ["VLLM_NO_USAGE_STATS"] == "1"
        with pytest.raises(TimeoutError, match="another vLLM engine was starting"), applied({}, lambda: True):
            pytest.fail("two starts at a time")
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert "VLLM_NO_USAGE_STATS" not in os.environ


@pytest.mark.rule("ORCH-INV-007")
def test_nothing_of_this_imports_an_engine() -> None:
    code = "import sys, podium.backends.vllm, podium.pipelines.voice; print({'vllm', 'torch'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
