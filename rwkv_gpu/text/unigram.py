"""PLaMo's tokenizer: splits a text so that the sum of scores is best; characters without a token become bytes."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from rwkv_gpu.text.base import Tokenizer
from rwkv_gpu.text.interruption import steps
from rwkv_gpu.text.raw_bpe import read_bytes
from rwkv_gpu.text.utf8 import decode_leniently
from rwkv_gpu.text.vocabulary import Defaults, Kind, byte_of, read_scores, read_vocabulary

DEFAULTS = Defaults(bos=1, eos=2)
SCALE = 10_000  # scores are compared as integers in units of 1/SCALE
OF_BYTES = 10_000_000  # cost of a character encoded as bytes
MAX_COST = 20_000_000  # tokens with this cost or more are not used
MARK = "\ufeff"  # byte order mark, which is not text
_CUT = Kind.BYTE, Kind.CONTROL, Kind.UNKNOWN  # kinds of tokens that plain text never becomes


class UnigramTokenizer(Tokenizer):
    """Finds the cheapest path through a text, from its end."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        vocabulary = read_vocabulary(metadata, DEFAULTS)
        super().__init__(vocabulary)
        self._bytes = read_bytes(vocabulary.ids)
        self._pieces: dict[str, tuple[int, int] | None] = {}  # cost and id; None marks a proper prefix of tokens
        scores = read_scores(metadata, len(vocabulary)).tolist()
        for token, (text, kind, score) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, scores, strict=True)):
            cost = _cost(score)
            if kind not in _CUT and cost < MAX_COST:
                self._pieces[text] = cost, token
                for end in range(1, len(text)):
                    self._pieces.setdefault(text[:end], None)

    def _text_of(self, token: int) -> bytes:
        text = self.vocabulary.tokens[token]
        return byte_of(text) if self.vocabulary.kinds[token] == Kind.BYTE else text.encode()

    def _encode_plain(self, text: bytes, *, opening: bool) -> Iterable[int]:  # noqa: ARG002
        characters = decode_leniently(text).removeprefix(MARK)
        ends, tokens = self._cheapest(characters)
        ids: list[int] = []
        at = 0
        while at < len(characters):
            token = tokens[at]
            raw = characters[at].encode("utf-8", "surrogatepass") if token < 0 else b""
            ids += [self._bytes[byte] for byte in raw] if raw else [token]
            at = ends[at]
        return ids

    def _cheapest(self, text: str) -> tuple[list[int], list[int]]:
        """For each character, the end and id of the first token on the cheapest path from there.

        If several are equally cheap, the longest token is taken. The id of a character encoded as bytes is -1.
        """
        count = len(text)
        ends, tokens, costs = [*range(1, count + 1)], [-1] * count, [0] * (count + 1)
        for start in steps(range(count - 1, -1, -1)):
            best = costs[start + 1] + OF_BYTES
            for end in range(start + 1, count + 1):
                piece = text[start:end]
                if piece not in self._pieces:
                    break
                found = self._pieces[piece]
                if found is not None and found[0] + costs[end] <= best:
                    best, ends[start], tokens[start] = found[0] + costs[end], end, found[1]
            costs[start] = best
        return ends, tokens


def _cost(score: float) -> int:
    """Converts a score to an integer cost; halves are rounded away from zero."""
    return -int(math.copysign(math.floor(abs(score) * SCALE + 0.5), score))
