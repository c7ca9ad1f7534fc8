"""Language models on vLLM: a backend on vLLM's own engine core, input processor and output processor.

Importing this package imports neither vllm nor torch; that happens when a backend loads. The package knows nothing of
pipelines or transports.
"""

from podium.backends.vllm.backend import VllmBackend
from podium.backends.vllm.options import VllmOptions, VllmParams

__all__ = ["VllmBackend", "VllmOptions", "VllmParams"]
