"""A value that was changed, cut, moved or written by others counts as absent."""

import random

import pytest

from rwkv_gpu.stores import MemoryStore
from rwkv_gpu.stores.sealed import SealedStore

SECRET = b"a secret of sixteen bytes"


@pytest.mark.long
def test_a_hundred_thousand_mutants_are_refused():
    plain = MemoryStore()
    sealed = SealedStore(plain, SECRET)
    key = sealed.key(b"a text")
    sealed.put(key, b"the state of a conversation" * 4)
    [value] = plain.get([key])
    draw = random.Random(7)
    for n in range(100_000):
        mutant = bytearray(value)
        kind = n % 4
        if kind == 0:
            mutant[draw.randrange(len(mutant))] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del mutant[draw.randrange(len(mutant)) :]
        elif kind == 2:
            mutant[draw.randrange(len(mutant)) : 0] = bytes([draw.randrange(256)])
        else:
            at, other = draw.sample(range(len(mutant)), 2)
            mutant[at], mutant[other] = mutant[other], mutant[at]
        if bytes(mutant) == value:
            continue
        plain.put(key, bytes(mutant))
        assert sealed.get([key]) == [None]
    plain.put(key, value)
    assert sealed.get([key]) == [b"the state of a conversation" * 4]


def test_a_value_cannot_be_read_under_another_key_or_secret():
    plain = MemoryStore()
    sealed = SealedStore(plain, SECRET)
    mine, yours = sealed.key(b"mine"), sealed.key(b"yours")
    sealed.put(mine, b"my state")
    plain.put(yours, plain.get([mine])[0])
    assert sealed.get([mine, yours]) == [b"my state", None]
    other = SealedStore(plain, SECRET + b"!")
    assert other.get([mine]) == [None]
    assert other.key(b"mine") != mine


def test_parts_of_a_key_cannot_run_into_each_other():
    sealed = SealedStore(MemoryStore(), SECRET)
    assert sealed.key(b"ab", b"c") != sealed.key(b"a", b"bc")
    assert sealed.key(b"a", b"") != sealed.key(b"a")
