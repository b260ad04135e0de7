"""Intermediate values share memory."""

from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.gpu.liveness import Lifetime, assign

lives = st.lists(
    st.builds(
        lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
        st.integers(1, 1000),
        st.integers(0, 40),
        st.integers(0, 10),
    ),
    max_size=60,
)


@given(lives)
def test_values_that_live_at_once_never_share(values):
    slots = assign(values).slots
    for i, a in enumerate(values):
        for j in range(i):
            b = values[j]
            if a.first <= b.last and b.first <= a.last:
                assert slots[i] != slots[j]


@given(lives)
def test_every_slot_holds_its_largest_value_exactly(values):
    result = assign(values)
    for slot, size in enumerate(result.sizes):
        assert size == max(v.nbytes for v, s in zip(values, result.slots, strict=True) if s == slot)


@given(lives)
def test_sharing_never_takes_more_memory(values):
    assert assign(values).nbytes <= sum(value.nbytes for value in values)


def test_a_chain_of_layers_needs_two_slots():
    chain = [Lifetime(100, step, step + 1) for step in range(50)]
    assert assign(chain).nbytes == 200


def test_overlapping_buffers_have_memory_of_their_own_if_that_takes_little():
    layers = [Lifetime(100, at, at + 1, overlapping=at % 2 == 1) for at in range(12)]
    slots = assign(layers, 600).slots
    assert all(slots.count(slots[i]) == 1 for i in range(1, 12, 2))
    assert assign(layers, 599) == assign([Lifetime(100, at, at + 1) for at in range(12)])
