"""SentencePiece's character map: a double-array trie of byte sequences and their replacements.

A unit has 32 bits: its label in bits 0 to 7, an end-of-sequence flag in bit 8, and the offset of its children in bits
10 to 30 (times 256 if bit 9 is set). The unit of an end has bit 31 set, and the position of the replacement.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rwkv_gpu.errors import BadFile
from rwkv_gpu.gguf.cursor import shown
from rwkv_gpu.text.vocabulary import PREFIX

_KEY = PREFIX + "precompiled_charsmap"
_ENDS, _FAR, _VALUE = 1 << 8, 1 << 9, 1 << 31


class CharacterMap:
    """Replaces the longest matching sequence of bytes. Without a map, replaces nothing."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        data = _read(metadata)
        cut = 4 + int.from_bytes(data[:4], "little")
        self._replacements = data[cut:]
        units = np.frombuffer(data[4:cut], "<u4", count=(cut - 4) // 4)
        offsets = units >> 10 << np.where(units & _FAR, 8, 0).astype(np.uint32)
        children = np.arange(len(units), dtype=np.uint32) ^ offsets
        ends = children[(units & (_ENDS | _VALUE)) == _ENDS]
        if (ends >= len(units)).any() or ((units[ends] & ~np.uint32(_VALUE)) >= len(self._replacements)).any():
            raise BadFile(f"{_KEY} is damaged: a replacement lies beyond its end")
        self._labels = (units & (_VALUE | 0xFF)).tolist()
        self._ends = ((units & _ENDS) > 0).tolist()
        self._children = children.tolist()
        self._values = (units & ~np.uint32(_VALUE)).tolist()

    def same(self, letters: bytes) -> bytes:
        """A pattern for those of `letters` (ASCII) that stay unchanged: no ASCII sequence begins with them."""
        root = self._children[0] if self._labels else 0
        begin = bytes(letter for letter in letters if self._has(root, letter))
        stay = [letter for letter in begin if not self._ends[root ^ letter]]
        stay = [letter for letter in stay if not any(self._has(self._children[root ^ letter], c) for c in range(128))]
        return _any_of(bytes(set(letters) - set(begin))) + b"|" + _any_of(bytes(stay)) + b"(?=[\\x00-\\x7f])"

    def _has(self, node: int, byte: int) -> bool:
        return byte > 0 and node ^ byte < len(self._labels) and bool(self._labels[node ^ byte] == byte)

    def longest(self, text: bytes, start: int) -> tuple[int, bytes]:
        """The end of the longest sequence at `start`, and its replacement. The end is `start` if there is none."""
        labels, children, count = self._labels, self._children, len(self._labels)
        found, value = start, 0
        node = children[0] if count else 0
        for at in range(start, len(text)):
            byte = text[at]
            node ^= byte
            if not byte or node >= count or labels[node] != byte:
                break
            ends = self._ends[node]
            node = children[node]
            if ends:
                found, value = at + 1, self._values[node]
        if found == start:
            return start, b""
        return found, self._replacements[value : self._replacements.index(0, value)]


def _any_of(letters: bytes) -> bytes:
    return b"[" + re.escape(letters) + b"]" if letters else b"(?!)"


def _read(metadata: Mapping[str, Any]) -> bytes:
    """The bytes of the map: a size, that many bytes of units, and zero-terminated replacements."""
    value = np.asarray(metadata.get(_KEY, np.zeros(4, np.uint8)))
    if value.ndim != 1 or value.dtype not in (np.uint8, np.int8):
        raise BadFile(f"{_KEY} must be an array of bytes, not {shown(metadata[_KEY])}")
    data = value.tobytes()
    if _KEY in metadata and (4 + int.from_bytes(data[:4], "little") >= len(data) or data[-1]):
        raise BadFile(f"{_KEY} is cut short: it has {len(data)} bytes")
    return data
