"""The memory that plans use: states, caches, sampler state, and scratch buffers for intermediates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..gpu.device import Buffer, Device
from ..gpu.plan import Slice
from .kv_format import KVFormat, KVType, kv_format
from .sampler_state import GpuSamplerState
from .vocabulary import Cache, StateType

MAX_SEGMENTS = 256  # default maximum of sequences in one step


@dataclass(frozen=True)
class Caches:
    """The memory of keys and values by cache, their format, and the maximum number of pages of a sequence."""

    places: Mapping[str, tuple[Slice, ...]]  # by cache: keys, and values if it stores them
    kind: KVType  # the format that the user chose
    max_pages: int
    context: int = 0  # maximum positions of a sequence
    windows: tuple[int, ...] = ()  # windows of caches that keep only a window, and have separate pages

    def format_of(self, cache: Cache) -> KVFormat:
        """The format of a cache."""
        return kv_format(self.kind, cache)

    def window_of(self, cache: Cache) -> int:
        """The window whose pages hold a cache; 0: the pages of all positions."""
        return cache.window if cache.window in self.windows else 0


NO_CACHES = Caches({}, "f32", 0)


@dataclass(frozen=True)
class Memory:
    """Memory that outlives a step."""

    states: Mapping[str, Slice] = field(default_factory=dict)  # by name
    caches: Caches = NO_CACHES
    sampler_state: GpuSamplerState | None = None
    state_type: StateType = "f32"  # of the matrices of heads


class Scratch:
    """Buffers that plans of one device share for their intermediates: plans run one after the other."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.buffers: list[Buffer] = []

    def take(self, sizes: Sequence[int]) -> list[Buffer]:
        """Assigns a different buffer to each size: the smallest that fits, else a new one."""
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
