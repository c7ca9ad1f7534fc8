"""What runs in vLLM's worker processes: calls that always answer, and changes of weights. No vLLM is needed here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from podium.backends.vllm import weights
from podium.backends.vllm.worker_calls import run


class Worker:
    """What a worker of vLLM has."""

    rank = 3

    def add(self, one: int, *, other: int = 1) -> int:
        return one + other

    def fail(self) -> NoReturn:
        raise LookupError("nothing is there")

    def give_itself(self) -> Worker:
        return self


def rank_of(worker: Worker, factor: int) -> list[int]:
    return [worker.rank * factor]


@pytest.mark.parametrize(
    ("method", "args", "kwargs", "answer"),
    [
        ("add", (1,), {}, (True, 2)),
        ("add", [1], {"other": 5}, (True, 6)),
        (f"{__name__}:rank_of", (2,), {}, (True, [6])),
        ("fail", (), {}, (False, "LookupError: nothing is there")),
        ("add", (), {}, (False, "TypeError: Worker.add() missing 1 required positional argument: 'one'")),
        (
            "multiply",
            (),
            {},
            (False, "AttributeError: the worker has no method 'multiply'; name one, or package.module:function"),
        ),
        ("no.module:f", (), {}, (False, "ModuleNotFoundError: No module named 'no'")),
        (f"{__name__}:nothing", (), {}, (False, "KeyError: 'nothing'")),
    ],
)
@pytest.mark.rule("ORCH-INV-231")
def test_a_call_always_answers(
    method: str, args: tuple[object, ...], kwargs: dict[str, object], answer: tuple[bool, object]
) -> None:
    assert run(Worker(), method, args, kwargs) == answer


def test_what_cannot_be_sent_is_told_and_not_returned() -> None:
    """vLLM's engine process would hang on it."""
    is_ok, reason = run(Worker(), "give_itself", (), {})
    assert not is_ok
    assert str(reason).startswith("it returned a Worker that cannot be sent: ")


def make_worker() -> SimpleNamespace:
    """A worker with a model of three weights, one of which is packed away."""
    import torch  # noqa: PLC0415 - only here

    model = torch.nn.Module()
    model.norm = torch.nn.Parameter(torch.arange(1.0, 5.0))
    model.embed = torch.nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16))
    model.packed = torch.nn.Parameter(torch.empty(0))
    return SimpleNamespace(model_runner=SimpleNamespace(model=model))


def norm_of(worker: SimpleNamespace) -> list[float]:
    values: list[float] = worker.model_runner.model.norm.detach().tolist()
    return values


def test_weights_are_named_unless_they_are_packed() -> None:
    worker = make_worker()
    assert weights.names(worker) == ["embed", "norm"]
    assert weights.names(worker, "n*") == ["norm"]


def test_scaling_and_noise_change_weights_in_place() -> None:
    worker, other = make_worker(), make_worker()
    same = worker.model_runner.model.norm
    weights.scale(worker, "norm", 2.0)
    assert norm_of(worker) == [2.0, 4.0, 6.0, 8.0]
    assert worker.model_runner.model.norm is same
    weights.scale(other, "norm", 2.0)
    for one in (worker, other):
        weights.perturb(one, "norm", 0.1, seed=7)
        weights.perturb(one, "embed", 0.1, seed=7)
    assert norm_of(worker) == norm_of(other) != [2.0, 4.0, 6.0, 8.0]
    assert weights.digest(worker) == weights.digest(other)


def test_what_is_kept_comes_back_bit_by_bit() -> None:
    worker = make_worker()
    with pytest.raises(ValueError, match="nothing is kept; call keep first"):
        weights.restore(worker)
    with pytest.raises(ValueError, match=r"no weight that can be changed fits x\* or packed"):
        weights.keep(worker, "x*", "packed")
    before = weights.digest(worker)
    assert weights.keep(worker, "*") == ["embed", "norm"]
    weights.perturb(worker, "norm", 0.5, seed=1)
    weights.scale(worker, "embed", 3.0)
    assert weights.digest(worker) != before
    assert weights.restore(worker) == ["embed", "norm"]
    assert weights.digest(worker) == before


def test_a_file_is_loaded_whole_or_not_at_all(tmp_path: Path) -> None:
    import torch  # noqa: PLC0415 - only here
    from safetensors.torch import save_file  # noqa: PLC0415 - only here

    worker = make_worker()
    good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
    save_file({"norm": torch.zeros(4)}, good)
    save_file({"embed": torch.zeros(2, 3), "norm": torch.zeros(5)}, bad)
    before = weights.digest(worker)
    with pytest.raises(ValueError, match=r"'norm' has the shape \(4,\), in the file it is \(5,\)"):
        weights.load(worker, str(bad))
    assert weights.digest(worker) == before
    assert weights.load(worker, str(good)) == ["norm"]
    assert norm_of(worker) == [0.0] * 4


@pytest.mark.parametrize(
    ("name", "message"),
    [("nrom", "the model has no weight 'nrom'; `names` tells them"), ("packed", "vLLM has packed 'packed'")],
)
def test_what_cannot_be_changed_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        weights.scale(make_worker(), name, 2.0)
