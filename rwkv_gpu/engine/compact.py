"""Saved keys and values in q8: about half the bytes of f16, at the error of `--kv q8`. Runners take them back."""

from collections.abc import Sequence

from ..ops.kv_format import KV_FORMATS, kv_format
from ..ops.vocabulary import Cache
from .cache.kv import names
from .runner import StateArrays

Q8 = KV_FORMATS["q8"]


class Compact:
    """Quantises the keys and values of saved states. Recurrent states and latents stay as they are."""

    def __init__(self, caches: Sequence[Cache]) -> None:
        quantised = [cache for cache in caches if kv_format("q8", cache) is Q8]
        self._sizes = {name: cache.size for cache in quantised for name in names(cache)}

    def nbytes(self, states: StateArrays) -> int:
        """Bytes of a state in this form."""
        return sum(self._nbytes(name, states) for name in states)

    def _nbytes(self, name: str, states: StateArrays) -> int:
        array, size = states[name], self._sizes.get(name)
        return array.nbytes if size is None else array.size // size * Q8.nbytes(size)

    def __call__(self, states: StateArrays) -> StateArrays:
        """A state in this form."""
        return {name: Q8.store(array) if name in self._sizes else array for name, array in states.items()}
