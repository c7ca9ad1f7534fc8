"""Brings up vLLM in a thread of its own: model, environment, configuration, processes; or leaves nothing behind.

With `engine`, the only module that knows where things are in vLLM.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from podium.backends.vllm.engine import Engine, EngineFeatures, end_context
from podium.backends.vllm.environment import applied, environment_for
from podium.backends.vllm.options import PREPARER, VllmOptions
from podium.backends.vllm.processes import ProcessTree
from podium.backends.vllm.prompts import PromptRenderer
from podium.errors import PodiumError, StartError
from podium.options import import_callable

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.renderers import BaseRenderer
    from vllm.v1.engine.core_client import AsyncMPClient
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.engine.output_processor import OutputProcessor

progress_log = logging.getLogger("podium.progress")
"""What takes more than two seconds says so here, at level INFO; records have the `stage`, and what it is `doing`."""

VLLM_VERSION = "0.32."

_INSTALL = (
    "install it: `pip install 'podium[vllm]'` on a GPU machine, `make install` in podium's sources on a CPU machine"
)
_REMOVE_TORCHVISION = (
    "these builds break vLLM and text models need none: `pip uninstall torchvision torchaudio torchcodec`"
)
_WATCH_S = 0.05
_PROCESSES_END_S = 30.0
_PREPARATION_END_S = 2.0


class _Parts(NamedTuple):
    config: VllmConfig
    renderer: BaseRenderer
    inputs: InputProcessor
    outputs: OutputProcessor


class Start:
    """One start of an engine: runs in a thread, and can be abandoned from another at any time."""

    def __init__(self, stage: str, options: VllmOptions) -> None:
        self._stage = stage
        self._options = options
        self._abandoned = threading.Event()
        self._lock = threading.Lock()
        self._has_processes = False

    def abandon(self) -> float:
        """End the start: `run` raises soon and leaves no process. Returns for how many seconds to wait for that.

        An import cannot be interrupted; but no process is started after it, so nobody has to wait for it.
        """
        with self._lock:
            self._abandoned.set()
            return _PROCESSES_END_S if self._has_processes else _PREPARATION_END_S

    def run(self) -> Engine:
        """Bring the engine up; blocks for half a minute and more. Raises StartError with the remedy."""
        model = resolve_model(self._stage, self._options.model, self._report, self._abandoned.is_set)
        cores = frozenset(os.sched_getaffinity(0))
        values = environment_for(self._options, model_is_local=Path(model).is_dir(), cores=cores)
        with applied(values, self._abandoned.is_set), terminal_interrupts_blocked():
            self._report("importing vLLM")
            import_vllm(self._stage)
            self._check_abandoned()
            return self._start(model)

    def _start(self, model: str) -> Engine:
        parts = _configure(self._stage, self._options, model)
        with self._lock:
            self._check_abandoned()
            self._has_processes = True
        self._report("starting vLLM's engine processes")
        core = self._start_core(parts)
        try:
            self._check_abandoned()
            model_config = parts.config.model_config
            prompts = PromptRenderer(
                self._options,
                parts.renderer.get_tokenizer(),
                max_model_len=model_config.max_model_len,
                vocabulary_size=model_config.get_vocab_size(),
            )
            engine = Engine(
                core=core,
                inputs=parts.inputs,
                outputs=parts.outputs,
                renderer=parts.renderer,
                prompts=prompts,
                features=features_of(parts.config),
            )
        except BaseException:  # whatever it is, no process may be left
            core.shutdown(timeout=0)
            raise
        return engine

    def _start_core(self, parts: _Parts) -> AsyncMPClient:
        """Start vLLM's processes; if the start is abandoned they are killed, which ends vLLM's own wait for them."""
        from vllm.v1.engine.core_client import AsyncMPClient  # noqa: PLC0415 - with the engine only
        from vllm.v1.executor import Executor  # noqa: PLC0415 - with the engine only

        from podium.backends.vllm.guard import guarded  # noqa: PLC0415 - with the engine only

        core = AsyncMPClient.__new__(AsyncMPClient)
        finished = threading.Event()
        watch = threading.Thread(
            target=self._kill_if_abandoned, args=(core, finished), daemon=True, name="vllm-start-watch"
        )
        watch.start()
        try:
            core.__init__(
                vllm_config=parts.config,
                executor_class=guarded(Executor.get_class(parts.config)),
                log_stats=False,
                renderer=parts.renderer,
            )
        except Exception as error:  # vLLM's own code, or a process of it that ended
            if "resources" in vars(core):
                end_context(core)
            self._check_abandoned()
            reason = f"{error}; VLLM_LOGGING_LEVEL=INFO shows vLLM's own log"
            raise StartError(self._stage, reason) from error
        finally:
            finished.set()
            watch.join()
        return core

    def _kill_if_abandoned(self, core: AsyncMPClient, finished: threading.Event) -> None:
        while not self._abandoned.wait(_WATCH_S):
            if finished.is_set():
                return
        while not finished.wait(_WATCH_S):
            resources = vars(core).get("resources")
            if resources is not None and resources.engine_manager is not None:
                ProcessTree(resources.engine_manager.processes).kill(_WATCH_S)

    def _report(self, message: str) -> None:
        progress_log.info("stage '%s': %s", self._stage, message, extra={"stage": self._stage, "doing": message})

    def _check_abandoned(self) -> None:
        if self._abandoned.is_set():
            raise StartError(self._stage, "the start was abandoned")


def resolve_model(stage: str, model: str, progress: Callable[[str], None], is_abandoned: Callable[[], bool]) -> str:
    """The directory or hub name that `model` stands for; prepares it when it names a function. Raises StartError."""
    if PREPARER.fullmatch(model):
        prepare = import_callable(model, "options.model")
        try:
            return str(prepare(progress, is_abandoned))
        except (PodiumError, OSError, RuntimeError) as error:
            raise StartError(stage, f"the model could not be prepared: {error}") from error
    path = Path(model).expanduser()
    if model.startswith(("/", ".", "~")) and not path.is_dir():
        raise StartError(stage, f"options.model: there is no directory {path}; give one that has a config.json")
    return str(path) if path.is_dir() else model


def import_vllm(stage: str) -> None:
    """Import vLLM, or raise StartError that says how to get it, or how to mend it."""
    if find_spec("vllm") is None:
        raise StartError(stage, f"vLLM is not installed; {_INSTALL}")
    try:
        vllm = import_module("vllm")
        import_module("vllm.v1.engine.core_client")
    except Exception as error:  # a broken installation raises whatever it likes
        reason = f"vLLM cannot be imported: {error}"
        is_torchvision = any(name in str(error) for name in ("torchvision", "torchaudio", "torchcodec"))
        raise StartError(stage, f"{reason}; {_REMOVE_TORCHVISION if is_torchvision else _INSTALL}") from error
    if not vllm.__version__.startswith(VLLM_VERSION):
        progress_log.warning(
            "stage '%s': made for vLLM %sx, found %s; it may not work", stage, VLLM_VERSION, vllm.__version__
        )


def _configure(stage: str, options: VllmOptions, model: str) -> _Parts:
    """The configuration, and the parts that run in this process."""
    from vllm.config import ProfilerConfig  # noqa: PLC0415 - with the engine only
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415 - with the engine only
    from vllm.renderers import renderer_from_config  # noqa: PLC0415 - with the engine only
    from vllm.usage.usage_lib import UsageContext  # noqa: PLC0415 - with the engine only
    from vllm.v1.engine.input_processor import InputProcessor  # noqa: PLC0415 - with the engine only
    from vllm.v1.engine.output_processor import OutputProcessor  # noqa: PLC0415 - with the engine only

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for name in options.engine_args:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean '{close[0]}'?" if close else "see vLLM's documentation of its engine arguments"
            raise StartError(stage, f"options.engine_args: vLLM has no argument '{name}'; {remedy}")
    try:
        arguments = engine_arguments(options, model)
        if options.profile_dir is not None:
            arguments["profiler_config"] = ProfilerConfig(profiler="torch", torch_profiler_dir=options.profile_dir)
        config = AsyncEngineArgs(**arguments).create_engine_config(UsageContext.ENGINE_CONTEXT)
    except (ValueError, OSError, RuntimeError, TypeError) as error:
        raise StartError(stage, f"vLLM does not take these options: {error}") from error
    renderer = renderer_from_config(config)
    return _Parts(
        config=config,
        renderer=renderer,
        inputs=InputProcessor(config, renderer),
        outputs=OutputProcessor(
            renderer.tokenizer, log_stats=False, stream_interval=config.scheduler_config.stream_interval
        ),
    )


def features_of(config: VllmConfig) -> EngineFeatures:
    """What of the control calls an engine of this configuration can do."""
    lora = config.lora_config
    return EngineFeatures(
        max_loras=0 if lora is None else lora.max_cpu_loras or lora.max_loras,
        can_profile=config.profiler_config is not None and config.profiler_config.profiler is not None,
        can_free_memory=bool(config.model_config.enable_sleep_mode),
    )


def engine_arguments(options: VllmOptions, model: str) -> dict[str, object]:
    """What vLLM's `AsyncEngineArgs` gets; what `options` leaves open is left to vLLM."""
    optional = {
        "max_model_len": options.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "enable_prefix_caching": options.prefix_caching,
        "quantization": options.quantization,
        "enable_lora": None if options.max_loras is None else True,
        "max_loras": options.max_loras,
    }
    return {
        "model": model,
        "dtype": options.dtype,
        "enforce_eager": options.enforce_eager,
        "tensor_parallel_size": options.tensor_parallel_size,
        "trust_remote_code": options.trust_remote_code,
        "seed": options.seed,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        **{name: value for name, value in optional.items() if value is not None},
        **options.engine_args,
    }


@contextmanager
def terminal_interrupts_blocked() -> Iterator[None]:
    """Let processes that this thread starts ignore Ctrl-C.

    A terminal sends it to all processes alike; but the engine must live on to hand over what an interrupted request has
    made. The signal mask is inherited by processes, and belongs to one thread here.
    """
    resource_tracker.ensure_running()  # would unblock the signal, if it were started later
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
