"""The memory that plans use: states, caches, what sampling remembers, and scratch buffers for intermediates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..gpu.device import Buffer, Device
from ..gpu.plan import Slice
from .kv_format import KVFormat, KVType, kv_format
from .sampler_state import GpuSamplerState
from .vocabulary import Cache

MAX_SEGMENTS = 64  # sequences in one step, unless a caller says otherwise


@dataclass(frozen=True)
class Caches:
    """Where keys and values lie, by cache, how they are stored, and how many pages one sequence may have."""

    places: Mapping[str, tuple[Slice, ...]]  # for each cache what it stores
    kind: KVType  # as it was asked for
    max_pages: int
    context: int = 0  # positions that the model is opened with
    windows: tuple[int, ...] = ()  # of caches that keep no more, and so have pages of their own

    def format_of(self, cache: Cache) -> KVFormat:
        """How a cache is stored."""
        return kv_format(self.kind, cache)

    def window_of(self, cache: Cache) -> int:
        """Whose pages hold a cache: 0 is those of all positions."""
        return cache.window if cache.window in self.windows else 0


NO_CACHES = Caches({}, "f32", 0)


@dataclass(frozen=True)
class Memory:
    """What lives longer than a step."""

    states: Mapping[str, Slice] = field(default_factory=dict)  # by name
    caches: Caches = NO_CACHES
    sampler_state: GpuSamplerState | None = None


class Scratch:
    """Buffers that plans of one device share for their intermediates: plans run one after the other."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.buffers: list[Buffer] = []

    def take(self, sizes: Sequence[int]) -> list[Buffer]:
        """A buffer for each size, each used once: the tightest that fits, else a new one."""
        free = sorted(self.buffers, key=lambda buffer: buffer.nbytes)
        taken: dict[int, Buffer] = {}
        for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
            fits = next((buffer for buffer in free if buffer.nbytes >= sizes[index]), None)
            if fits is None:
                fits = self._device.buffer(sizes[index], "scratch")
                self.buffers.append(fits)
            else:
                free.remove(fits)
            taken[index] = fits
        return [taken[index] for index in range(len(sizes))]
