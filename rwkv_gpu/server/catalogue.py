"""The models that a server offers: finds, loads and unloads them, and counts their users."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.errors import BadFile, Closed, OutOfMemory, RwkvGpuError
from rwkv_gpu.llm.catalogue import packaged
from rwkv_gpu.llm.hub_names import is_model, is_preset, parts
from rwkv_gpu.llm.model import LLM
from rwkv_gpu.llm.preset import read_preset
from rwkv_gpu.llm.store import Store

from . import collector
from .call import Call
from .defaults import Defaults
from .errors import ApiError
from .folder import models_of

LISTING_SECONDS = 1.0  # seconds for which the listing of a folder is reused
PATIENCE = 30.0  # seconds to wait for the memory of a model in use
RETRIES = (1, 2, 4, 8, 15, 30)  # seconds between attempts to reload a model whose engine was lost
NO_DEFAULTS = Defaults()
LOG = logging.getLogger("rwkv_gpu.server")
Progress = Callable[[int, int], None]  # bytes loaded, and total
Load = Callable[[str, Progress], LLM]  # a path, or the name of a repository


class LoadFailed(ApiError):
    """A model cannot be loaded. The exception has the reason."""

    def __init__(self, status: int, message: str, error: RwkvGpuError) -> None:
        super().__init__(status, message, code="model_load_failed", retry_after=5 if status == 503 else None)
        self.error = error


@dataclass(eq=False)
class ServedModel:
    """A model that the server offers, with its load state."""

    name: str
    path: str
    aliases: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))
    llm: LLM | None = None
    done: int = 0  # bytes loaded so far
    total: int = 0
    error: BaseException | None = None  # why the last load failed
    leases: int = 0  # number of requests that use it now
    used: float = 0.0  # time of the last request's end, or of loading
    loading: asyncio.Task[LLM] | None = None
    keep_alive: float | None = None  # seconds that it stays loaded without requests, if a client set it
    timer: asyncio.TimerHandle | None = None  # fires when it is to be unloaded

    @property
    def nbytes(self) -> int:
        """Bytes of its files; of a preset, those of its model."""
        path, size = Path(self.path), 0
        if is_preset(path):
            with suppress(BadFile):
                path = Path(read_preset(path).base)
        for part in parts(path.name):
            with suppress(OSError):  # deleted meanwhile
                size += path.with_name(part).stat().st_size
        return size

    @property
    def state(self) -> str:
        """unloaded, loading, ready or failed"""
        if self.llm is not None:
            return "ready"
        if self.loading is not None:
            return "loading"
        return "failed" if self.error is not None else "unloaded"


def _warm(model: ServedModel, done: "Future[None]") -> None:
    """Handles the end of a warm-up. If it failed, each request prepares what it needs."""
    error = done.exception()
    fields = {"model": model.name}
    if error is None:
        LOG.info("model warm", extra={"fields": fields})
    elif not isinstance(error, Closed):
        LOG.warning("model not warm", extra={"fields": {**fields, "error": str(error)}})


class Catalogue:
    """Finds models by name, loads them at first use, and unloads idle ones. All methods run in one event loop."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        load: Load,
        *,
        folder: Path | None = None,
        store: Store | None = None,
        max_loaded: int | None = None,
        keep_alive: float | None = None,
        warmup: bool = False,
        own_process: bool = False,
        any_name: bool = False,
        defaults: Defaults = NO_DEFAULTS,
    ) -> None:
        self._named = list(models)
        self._found: dict[str, ServedModel] = {}  # found in the folder
        self._load = load
        self._folder = folder
        self._store = store  # the folder of downloaded models, if they are served
        self._read_at = -LISTING_SECONDS  # time of the last listing of the folder
        self._max_loaded = max_loaded  # maximum loaded models
        self._warmup = warmup  # whether a model is warmed up after loading
        # Whether the process does nothing but serve, so that its memory may be configured
        self._own_process = own_process
        if own_process:
            collector.share_arenas()
        self._any_name = any_name  # whether a single model answers to any name
        self._defaults = defaults
        self._loads = asyncio.Lock()
        self._idle = asyncio.Event()  # set when a model in use becomes idle
        self._keep_alive = keep_alive  # seconds that an idle model stays loaded; None is until its memory is needed

    @property
    def first(self) -> ServedModel | None:
        """The model that is loaded at start; models of the folder are loaded at first use."""
        return self._named[0] if self._named else None

    @property
    def models(self) -> list[ServedModel]:
        """All models, in order. The folders are listed again, as files may change."""
        listed = self._folder is not None or self._store is not None
        if listed and time.monotonic() > self._read_at + LISTING_SECONDS:
            self._read_at = time.monotonic()
            files = {} if self._folder is None else models_of(self._folder)
            files = {**self._stored(), **files}
            taken = {model.name for model in self._named}
            for name in [*self._found]:
                gone = name not in files or files[name] != self._found[name].path
                if gone and self._found[name].state in ("unloaded", "failed"):
                    del self._found[name]
            for name, path in files.items():
                if name not in taken and name not in self._found:
                    self._found[name] = ServedModel(name, path)
        return [*self._named, *self._found.values()]

    def _stored(self) -> dict[str, str]:
        """Paths of downloaded models, by name."""
        found = [] if self._store is None else self._store.models()
        models = [one for one in found if one.complete and (is_preset(one.paths[0]) or is_model(str(one.paths[0])))]
        return {one.name: str(one.paths[0]) for one in models}

    def refresh(self) -> None:
        """Lists the folders again at the next request."""
        self._read_at = -math.inf

    def has(self, name: str) -> bool:
        """True if a model has this name, or answers to any name."""
        try:
            self.find(name, strict=True)
        except ApiError:
            return False
        return True

    def find(self, name: str | None, *, strict: bool = False) -> ServedModel:
        """The model with that name or alias; by default the first. `NAME:latest`, as in ollama, means NAME.

        The short name of a popular model finds the file that has it. With `strict`, the name must be that of a model.
        """
        known = self._known(name) or self.models
        if name is None and known:
            return known[0]
        for wanted in () if name is None else (name, name.removesuffix(":latest")):
            for model in known:
                if wanted == model.name or wanted in model.aliases:
                    return model
        entry = None if name is None else packaged().entry(name)
        for model in known:
            if entry is not None and Path(model.path).name.lower() == entry.file.lower():
                return model
        path = None if name is None or self._store is None else self._store.find(name)
        for model in known:
            if path is not None and Path(model.path) == path:
                return model
        if self._any_name and len(known) == 1 and not strict:
            return known[0]
        asked = "no model here" if name is None else f"no model {name[:100]!r} here"
        message = f"there is {asked}; there are: {', '.join(model.name for model in known) or 'none'}"
        raise ApiError(404, message, code="model_not_found", param="model")

    def _known(self, name: str | None) -> list[ServedModel]:
        """Finds a model without listing the folder."""
        if name is None:
            return self._named[:1]
        return [model for model in (*self._named, *self._found.values()) if name == model.name or name in model.aliases]

    async def lease(self, model: ServedModel, call: Call) -> LLM:
        """Returns the loaded model, which stays loaded until the call ends."""
        model.leases += 1
        if model.timer is not None:
            model.timer.cancel()
        call.at_end.append(lambda: self._release(model))
        return await self.loaded(model)

    def _release(self, model: ServedModel) -> None:
        """Handles the end of a request that used a model."""
        model.leases -= 1
        if not model.leases:
            self._idle.set()
            self._rest(model)

    def _rest(self, model: ServedModel) -> None:
        """Starts the unload timer of an idle model."""
        model.used = time.monotonic()
        if model.timer is not None:
            model.timer.cancel()
        seconds = self._lifetime(model)
        if math.isfinite(seconds):
            loop = asyncio.get_running_loop()
            model.timer = loop.call_later(seconds, lambda: asyncio.ensure_future(self.unload(model)))

    def _lifetime(self, model: ServedModel) -> float:
        """Seconds that a model stays loaded without requests."""
        seconds = self._keep_alive if model.keep_alive is None else model.keep_alive
        return math.inf if seconds is None else seconds

    def seconds_left(self, model: ServedModel) -> float:
        """Seconds until a loaded model is unloaded if no request comes."""
        idle = 0.0 if model.leases else time.monotonic() - model.used
        return max(0.0, self._lifetime(model) - idle)

    async def loaded(self, model: ServedModel) -> LLM:
        """Returns the model, loading it if needed.

        Several callers can await one load; cancelling one does not end it.
        """
        if model.llm is not None:
            return model.llm
        if model.loading is None:
            model.loading = asyncio.create_task(self._loading(model))
            # Retrieves the result if no caller awaits it
            model.loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(model.loading)

    async def preloaded(self, model: ServedModel) -> None:
        """Loads a model for later requests; an error is logged, and becomes the model's state."""
        with suppress(LoadFailed):
            await self.loaded(model)

    async def unload(self, model: ServedModel) -> bool:
        """Frees the memory of a model; False if it is in use, loading or not loaded.

        As in Ollama, this resets the keep-alive time that a client has set.
        """
        if model.leases or model.loading is not None:
            return False
        model.keep_alive = None
        if model.llm is None:
            return False
        llm, model.llm = model.llm, None
        LOG.info("model unloaded", extra={"fields": {"model": model.name}})
        await asyncio.to_thread(llm.close)
        del llm  # drops the reference, so that it can be garbage-collected
        await self._collect()
        return True

    async def _collect(self) -> None:
        if self._own_process:
            await asyncio.to_thread(collector.freeze_objects)

    async def _loading(self, model: ServedModel) -> LLM:
        began = time.monotonic()
        LOG.info("model loading", extra={"fields": {"model": model.name, "path": model.path}})
        try:
            model.llm = await self._make_room_and_load(model)
        except BaseException as error:
            model.error = error
            LOG.error("model failed to load", extra={"fields": {"model": model.name, "error": str(error)}})
            if isinstance(error, RwkvGpuError):
                message = f"the model {model.name} cannot be loaded: {error}"
                raise LoadFailed(503 if isinstance(error, OutOfMemory) else 500, message, error) from error
            raise
        finally:
            model.loading = None
        model.error = None
        self._defaults.apply(model.llm, model.path, (model.name, *model.aliases))
        llm, seconds = model.llm, round(time.monotonic() - began, 3)
        LOG.info("model ready", extra={"fields": {"model": model.name, "seconds": seconds}})
        if self._warmup:
            warm = llm.begin_work(Engine.warm_up)
            warm.add_done_callback(partial(_warm, model))
            if self._own_process:
                warm.add_done_callback(lambda _: collector.freeze_objects())
        await self._collect()
        if model.llm is llm and not model.leases:  # unused, for example the first model before any request
            self._rest(model)
        return llm

    async def _make_room_and_load(self, model: ServedModel) -> LLM:
        """Loads a model. If memory is short, unloads idle ones first, the least recently used first."""

        def progress(done: int, total: int) -> None:
            model.done, model.total = done, total

        # Otherwise two loads might take the same memory
        async with self._loads if self._max_loaded is not None else nullcontext():
            while self._max_loaded is not None and self._loaded_count() >= self._max_loaded:
                if not await self._make_room():
                    raise OutOfMemory(f"{self._max_loaded} models are loaded and in use, which is the limit")
            while True:
                try:
                    return await asyncio.to_thread(self._load, model.path, progress)
                except OutOfMemory:
                    if not await self._make_room():
                        raise

    async def _make_room(self) -> bool:
        """Waits for an idle model and unloads it; False if none is loaded, or all are in use for too long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while not await self._unload_oldest():
            if not self._loaded_count() or loop.time() >= end:
                return False
            self._idle.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), end - loop.time())
        return True

    def _loaded_count(self) -> int:
        return sum(model.llm is not None for model in (*self._named, *self._found.values()))

    async def _unload_oldest(self) -> bool:
        every = (*self._named, *self._found.values())
        idle = [model for model in every if model.llm is not None and not model.leases]
        return bool(idle) and await self.unload(min(idle, key=lambda model: model.used))

    async def lost(self, model: ServedModel, llm: LLM) -> None:
        """Handles the loss of a model's engine: frees its memory, and loads it again."""
        if model.llm is not llm:
            return  # already handled for another request
        model.llm = None
        LOG.error("engine lost", extra={"fields": {"model": model.name}})
        await asyncio.to_thread(llm.close)
        for seconds in (*RETRIES, None):
            try:
                await self.loaded(model)
                return
            except LoadFailed:
                if seconds is None:
                    return  # the next request tries again
                await asyncio.sleep(seconds)

    @property
    def has_store(self) -> bool:
        """True if a loaded model has a store of states."""
        return any(model.llm is not None and model.llm.states is not None for model in self.models)

    async def store_states(self, seconds: float) -> None:
        """Writes the states of all conversations to the store, for at most `seconds`."""
        loaded = [model.llm for model in self.models if model.llm is not None]
        done = await asyncio.gather(
            *(asyncio.to_thread(llm.store_states, seconds) for llm in loaded), return_exceptions=True
        )
        for error in done:
            if isinstance(error, Exception):  # the states are lost with the engine
                LOG.error("states not stored", extra={"fields": {"error": str(error)}})

    async def close(self) -> None:
        """Frees all memory; callers waiting for an answer get `Closed`."""
        for model in (*self._named, *self._found.values()):
            if model.timer is not None:
                model.timer.cancel()
            if model.loading is not None:
                await asyncio.wait([model.loading])
            if model.llm is not None:
                await asyncio.to_thread(model.llm.close)
                model.llm = None
