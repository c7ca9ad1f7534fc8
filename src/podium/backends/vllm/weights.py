"""Changes weights of a running engine where they are: functions for `collective_rpc` and `update_weights`.

Each is called by its path, as in `podium.backends.vllm.weights:perturb`, with the worker of vLLM first. Pause before,
and reset the prefix cache afterwards: neither happens by itself. Importing this module imports no engine.
"""

from __future__ import annotations

import fnmatch
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_BACKUP = "_podium_weights"


def names(worker: object, pattern: str = "*") -> list[str]:
    """The weights that can be changed here, of those whose names fit `pattern` (as for file names).

    On a CPU vLLM packs the matrices of linear layers when it loads them; these cannot be changed, and are left out.
    Norms and embeddings always can.
    """
    return sorted(
        name for name, weight in _weights(worker).items() if fnmatch.fnmatch(name, pattern) and weight.numel()
    )


def digest(worker: object, pattern: str = "*") -> str:
    """A fingerprint of the weights whose names fit `pattern`: the same bits give the same."""
    state = hashlib.sha256()
    for name in names(worker, pattern):
        state.update(name.encode())
        state.update(_weights(worker)[name].detach().contiguous().cpu().flatten().view(_byte_type()).numpy().tobytes())
    return state.hexdigest()


def scale(worker: object, name: str, factor: float) -> None:
    """Multiply a weight by `factor`. Raises ValueError when there is none that can be changed."""
    with _no_gradients():
        _weight(worker, name).mul_(factor)


def perturb(worker: object, name: str, amount: float, seed: int) -> None:
    """Add normal noise of `amount` times the weight's own standard deviation; a seed adds the same everywhere."""
    import torch  # noqa: PLC0415 - in the worker only

    weight = _weight(worker, name)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32)
    with _no_gradients():
        weight.add_((noise * (amount * weight.float().std().item())).to(weight.device, weight.dtype))


def load(worker: object, path: str) -> list[str]:
    """Copy every tensor of a safetensors file over the weight of its name; returns the names.

    Raises ValueError, and has changed nothing, when a name or a shape does not fit.
    """
    from safetensors.torch import load_file  # noqa: PLC0415 - in the worker only

    fresh = load_file(path)
    for name, tensor in fresh.items():
        weight = _weight(worker, name)
        if weight.shape != tensor.shape:
            raise ValueError(f"'{name}' has the shape {tuple(weight.shape)}, in the file it is {tuple(tensor.shape)}")
    with _no_gradients():
        for name, tensor in fresh.items():
            _weight(worker, name).copy_(tensor)
    return sorted(fresh)


def keep(worker: object, *patterns: str) -> list[str]:
    """Keep a copy of the weights that fit, in the worker, for `restore`; returns their names."""
    kept = {name: _weights(worker)[name].detach().clone() for pattern in patterns for name in names(worker, pattern)}
    if not kept:
        raise ValueError(f"no weight that can be changed fits {' or '.join(patterns)}")
    vars(worker)[_BACKUP] = kept
    return sorted(kept)


def restore(worker: object) -> list[str]:
    """Put back, bit by bit, what `keep` has kept; returns the names. Raises ValueError when nothing is kept."""
    kept: dict[str, Tensor] = vars(worker).get(_BACKUP, {})
    if not kept:
        raise ValueError("nothing is kept; call keep first")
    with _no_gradients():
        for name, weight in kept.items():
            _weight(worker, name).copy_(weight)
    return sorted(kept)


def _weights(worker: object) -> dict[str, Tensor]:
    model = worker.model_runner.model  # type: ignore[attr-defined]
    return dict(model.named_parameters())


def _weight(worker: object, name: str) -> Tensor:
    weight = _weights(worker).get(name)
    if weight is None:
        raise ValueError(f"the model has no weight '{name}'; `names` tells them")
    if not weight.numel():
        raise ValueError(f"vLLM has packed '{name}' for this device; it cannot be changed in place")
    return weight


def _byte_type() -> torch.dtype:
    import torch  # noqa: PLC0415 - in the worker only

    return torch.uint8


def _no_gradients() -> torch.no_grad:
    import torch  # noqa: PLC0415 - in the worker only

    return torch.no_grad()
