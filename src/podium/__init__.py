"""podium: engine orchestration for omni-modal inference.

The names below are the public API; they are loaded when they are first used, so that `import podium` costs nothing and
needs no engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from podium import compiled

if TYPE_CHECKING:
    from podium.bootstrap import AsyncOmniEngine, OmniEngine
    from podium.core.events import FinishReason
    from podium.core.graph import Modality
    from podium.payloads import Audio, Image, Text
    from podium.prompts import Continuation, TokenPrompt
    from podium.runtime.outputs import AbortReport, ControlReport, OmniOutput, OmniResult, SampleResult

compiled.install()

__version__ = "0.1.0"

_HOMES = {
    "AbortReport": "podium.runtime.outputs",
    "AsyncOmniEngine": "podium.bootstrap",
    "Audio": "podium.payloads",
    "Continuation": "podium.prompts",
    "ControlReport": "podium.runtime.outputs",
    "FinishReason": "podium.core.events",
    "Image": "podium.payloads",
    "Modality": "podium.core.graph",
    "OmniEngine": "podium.bootstrap",
    "OmniOutput": "podium.runtime.outputs",
    "OmniResult": "podium.runtime.outputs",
    "SampleResult": "podium.runtime.outputs",
    "Text": "podium.payloads",
    "TokenPrompt": "podium.prompts",
}

__all__ = [
    "AbortReport",
    "AsyncOmniEngine",
    "Audio",
    "Continuation",
    "ControlReport",
    "FinishReason",
    "Image",
    "Modality",
    "OmniEngine",
    "OmniOutput",
    "OmniResult",
    "SampleResult",
    "Text",
    "TokenPrompt",
]


def __getattr__(name: str) -> object:
    """Load a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'podium' has no attribute '{name}'")
    return vars(import_module(_HOMES[name]))[name]
