"""One model over several devices: a runner whose parts run one after the other, with rows between them on the host.

Each device has the weights, states and pages of its layers only. Which pages and states a sequence has is decided once
for all parts, so stored prefixes, forks, saved states and preemption work as on one device.
"""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np

from ..models.registry import Model
from ..ops.adapted import AdaptedOps
from ..ops.batch import Batch
from ..ops.cut import cut
from ..ops.parts import Part
from .adapters import NO_ADAPTERS, Adapters
from .cache.config import CacheConfig, CacheOptions
from .cache.kv import PageTables
from .cache.pager import Copy
from .runner import (
    NOTHING,
    Arrays,
    Logits,
    PartRunner,
    Share,
    StateArrays,
    fitted,
    store_of,
    unadapted,
)
from .sampling_params import SamplingParams
from .step_result import PendingStep, SamplingInputs

MakePart = Callable[[Share], PartRunner]  # a GpuRunner or HostRunner with this share


def parts_of(model: Model, starts: Sequence[int], adapters: Adapters = NO_ADAPTERS) -> list[Part]:
    """A model cut before these layers; the factors of adapters lie where the matrices do."""
    factors, _ = adapters.factors(model)
    if not factors:
        return cut(model, starts, unadapted)
    return cut(model, starts, lambda g: AdaptedOps(g, factors, g.input("adapters", np.float32, (adapters.rank,))))


class SplitRunner:
    """Steps of a model that lies on several devices, as a `Runner`.

    A token needs all parts one after the other, and the first of them needs the token before: so no step is submitted
    ahead.
    """

    ahead = 0

    def __init__(
        self,
        model: Model,
        parts: Sequence[Part],
        make: Sequence[MakePart],
        *,
        chunk_size: int = 512,
        adapters: Adapters = NO_ADAPTERS,
        names: Sequence[str] = (),
        **options: Unpack[CacheOptions],
    ) -> None:
        self.model = model
        self.layout = tuple(parts)
        self.names = names  # of what lies where, for people
        self.adapters = adapters
        self.cache_config = config = CacheConfig.of(model, chunk_size=chunk_size, **options)
        self.vocabulary = model.vocabulary
        self.slots = config.slots
        self.chunk_size = chunk_size
        self.context = config.context if model.caches else None
        self.page_and_state_bytes = config.each(model.caches, model.states)
        tables = PageTables.of(model.caches, config)
        self.store = store_of(model, config, tables, self._copy_pages)
        self.parts: list[PartRunner] = []
        try:
            for part, one in zip(parts, make, strict=True):
                self.parts.append(one(Share(part, tables, self.store)))
        except BaseException:
            self.close()
            raise

    @property
    def compile_seconds(self) -> float:
        """Spent so far on recording plans and compiling their shaders, by all parts."""
        return sum(part.compile_seconds for part in self.parts)

    def prepare(self, batch: Batch) -> Batch:
        """The batch with a place for all that it writes."""
        return self.store.prepare(batch)

    def submit(self, batch: Batch, sampling: SamplingInputs) -> PendingStep:
        arrived = self._forward(batch)
        return self.parts[-1].submit(batch, sampling, arrived)

    def step(self, batch: Batch) -> Logits:
        batch = self.prepare(batch)
        return self.parts[-1].run(batch, "logits", self._forward(batch))

    def hidden(self, batch: Batch) -> Logits:
        batch = self.prepare(batch)
        return self.parts[-1].run(batch, "hidden", self._forward(batch))

    def remember(self, slot: int, ids: Sequence[int], params: SamplingParams) -> None:
        self.parts[-1].remember(slot, ids, params)

    def fitted(self, length: int, states: StateArrays) -> StateArrays | None:
        return fitted(self.model, self.cache_config, length, states)

    def read_state(self, slot: int) -> StateArrays:
        arrays: dict[str, Any] = {}
        for part in self.parts:
            arrays |= part.read_state(slot)
        return arrays

    def write_state(self, slot: int, length: int, states: StateArrays) -> None:
        self.store.begin(slot, length)
        for part in self.parts:
            part.put_state(slot, states)

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def _forward(self, batch: Batch) -> Arrays:
        """What arrives at the last part."""
        arrived = NOTHING
        for part in self.parts[:-1]:
            arrived = arrived | part.forward(batch, arrived).wait()
        return arrived

    def _copy_pages(self, copies: Sequence[Copy], window: int = 0) -> None:
        for part in self.parts:
            part.copy_pages(copies, window)
