"""The models that a server offers: which there are, which are loaded, and who uses them now."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.llm import LLM

from .call import Call
from .errors import ApiError

RETRIES = (1, 2, 4, 8, 15, 30)  # seconds between attempts to load a model whose engine was lost
LOG = logging.getLogger("rwkv_gpu.server")
Progress = Callable[[int, int], None]  # bytes that are loaded, and all
Load = Callable[[str, Progress], LLM]  # a path, or the name of a repository


@dataclass(eq=False)
class ServedModel:
    """A model that the server offers, and its weights while they are loaded."""

    name: str
    path: str
    aliases: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))
    llm: LLM | None = None
    done: int = 0  # bytes loaded so far
    total: int = 0
    error: BaseException | None = None  # why the last load failed
    leases: int = 0  # requests that use it now
    used: float = 0.0  # when a request last ended
    loading: asyncio.Task[LLM] | None = None

    @property
    def state(self) -> str:
        """unloaded, loading, ready or failed"""
        if self.llm is not None:
            return "ready"
        if self.loading is not None:
            return "loading"
        return "failed" if self.error is not None else "unloaded"

    def release(self) -> None:
        """A request that used it has ended."""
        self.leases -= 1
        self.used = time.monotonic()


class Catalogue:
    """Finds models by name, and loads them at first use. All its methods run in one event loop."""

    def __init__(self, models: Sequence[ServedModel], load: Load) -> None:
        self.models = list(models)
        self._load = load

    def find(self, name: str | None) -> ServedModel:
        """The model of that name or alias; the first where none is named. `NAME:latest` is what ollama calls NAME."""
        if name is None:
            return self.models[0]
        for wanted in (name, name.removesuffix(":latest")):
            for model in self.models:
                if wanted == model.name or wanted in model.aliases:
                    return model
        known = ", ".join(model.name for model in self.models)
        raise ApiError(
            404, f"there is no model {name[:100]!r} here; there are: {known}", code="model_not_found", param="model"
        )

    async def lease(self, model: ServedModel, call: Call) -> LLM:
        """The loaded model, which stays loaded until the call ends."""
        model.leases += 1
        call.at_end.append(model.release)
        return await self.loaded(model)

    async def loaded(self, model: ServedModel) -> LLM:
        """The model, loaded now where it is not. Many may wait for one load; who leaves does not end it."""
        if model.llm is not None:
            return model.llm
        if model.loading is None:
            model.loading = asyncio.create_task(self._loading(model))
            model.loading.add_done_callback(lambda task: task.cancelled() or task.exception())  # that nobody waits for
        return await asyncio.shield(model.loading)

    async def _loading(self, model: ServedModel) -> LLM:
        def progress(done: int, total: int) -> None:
            model.done, model.total = done, total

        began = time.monotonic()
        LOG.info("model loading", extra={"fields": {"model": model.name, "path": model.path}})
        try:
            model.llm = await asyncio.to_thread(self._load, model.path, progress)
        except BaseException as error:
            model.error = error
            LOG.error("model failed to load", extra={"fields": {"model": model.name, "error": str(error)}})
            raise
        finally:
            model.loading = None
        model.error = None
        seconds = round(time.monotonic() - began, 3)
        LOG.info("model ready", extra={"fields": {"model": model.name, "seconds": seconds}})
        return model.llm

    async def lost(self, model: ServedModel, llm: LLM) -> None:
        """The engine of a model has died: its memory is given back, and it is loaded anew."""
        if model.llm is not llm:
            return  # another request has said so
        model.llm = None
        LOG.error("engine lost", extra={"fields": {"model": model.name}})
        await asyncio.to_thread(llm.close)
        for seconds in (*RETRIES, None):
            try:
                await self.loaded(model)
                return
            except RwkvGpuError:
                if seconds is None:
                    return  # the next request tries
                await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Gives back all memory; whoever waits for an answer gets `Closed`."""
        for model in self.models:
            if model.loading is not None:
                await asyncio.wait([model.loading])
            if model.llm is not None:
                await asyncio.to_thread(model.llm.close)
                model.llm = None
