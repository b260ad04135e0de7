"""Special tokens are found as if each were searched for in turn, the longest first, in time linear in the text."""

import random
import time
from types import SimpleNamespace

from rwkv_gpu.text.special import SpecialTokens
from rwkv_gpu.text.vocabulary import Kind

LETTERS = (" a", "  \n", "ab ", "aab", "<|x", "\xff^]-\\")


def finder(tokens: list[bytes]) -> SpecialTokens:
    return SpecialTokens(SimpleNamespace(kinds=[Kind.USER_DEFINED] * len(tokens)), tokens.__getitem__)


def in_turn(tokens: list[bytes], text: bytes) -> list[bytes | int]:
    """Returns the parts of a text, by cutting it at each token in turn."""
    parts: list[bytes | int] = [text]
    for token in sorted(range(len(tokens)), key=lambda token: (-len(tokens[token]), token)):
        cut: list[bytes | int] = []
        for part in parts:
            pieces = part.split(tokens[token]) if isinstance(part, bytes) else [part]
            for number, piece in enumerate(pieces):
                cut += [token] * (number > 0) + [piece] * (piece != b"")
        parts = cut
    return parts


def test_tokens_are_found_as_if_the_longest_were_searched_for_first():
    for seed in range(3000):
        rng = random.Random(seed)
        letters = rng.choice(LETTERS)
        tokens = {"".join(rng.choices(letters, k=rng.randrange(1, 6))).encode("latin-1") for _ in range(5)}
        tokens |= {b" " * count for count in range(2, rng.randrange(2, 8))}
        order = sorted(tokens)
        rng.shuffle(order)
        text = "".join(rng.choices(letters, k=rng.randrange(40))).encode("latin-1")
        assert finder(order).split(text, parse=False) == in_turn(order, text), (order, text)


def test_a_long_run_of_spaces_takes_little_time_however_many_tokens_are_spaces():
    special, text = finder([b" " * count for count in range(2, 32)]), b" " * 300_000

    def seconds() -> float:
        started = time.process_time()
        assert len(special.split(text, parse=False)) == 9678
        return time.process_time() - started

    assert any(seconds() < 1 for _ in range(4))  # 0.02 s; at each byte for each token it takes 4
