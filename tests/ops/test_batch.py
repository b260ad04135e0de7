"""Arrays of batches: unchanged arrays are reused in the next step, and all values are those of the batch."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rwkv_gpu.ops.batch import Batch, BatchArrays
from rwkv_gpu.ops.vocabulary import PAGE

WINDOW = 40


def decode(slots, start, pages=2, **more):
    """Returns a step of decode. Each sequence has its own pages, window pages and state."""
    first = 10 * np.array(slots)
    places = [
        (tuple(range(at, at + pages)), (slot, slot + 1), ((WINDOW, tuple(range(at, at + pages))),), ())
        for slot, at in zip(slots, first.tolist(), strict=True)
    ]
    return Batch.of([(slot, start, [7]) for slot in slots], placements=places, **more)


def test_a_step_of_decode_has_the_arrays_of_the_one_before_but_for_positions():
    arrays = BatchArrays()
    before, after = ({**arrays.of(decode([3, 1], start))} for start in (5, 6))
    same = {name for name in before if before[name] is after[name]}
    assert same == {"row_segment", "slots", "output_rows", "pages", f"pages.{WINDOW}"}
    assert all(not before[name].flags.writeable for name in same)
    assert after["places"].tolist() == [[6, 30 * PAGE + 6], [6, 10 * PAGE + 6]]
    assert after["segments"][:, :6].tolist() == [[0, 1, 6, 3, 4, 0], [1, 1, 6, 1, 2, 0]]


@pytest.mark.parametrize(
    ("following", "changed"),
    [
        (decode([3, 1], 6, pages=3), {"pages", f"pages.{WINDOW}"}),
        (decode([1, 3], 6), {"slots", "pages", f"pages.{WINDOW}"}),
        (decode([3], 6), {"slots", "pages", f"pages.{WINDOW}", "row_segment", "output_rows"}),
        (decode([3, 1], 6, wanted=[1, 0]), {"output_rows"}),
    ],
)
def test_a_changed_array_is_rebuilt(following, changed):
    arrays = BatchArrays()
    before = {**arrays.of(decode([3, 1], 5))}
    after = arrays.of(following)
    always = {"ids", "segments", "lengths", "places", f"places.{WINDOW}"}
    assert {name for name in before if before[name] is not after[name]} == changed | always


def test_parts_of_a_model_share_the_arrays_of_a_step_but_not_with_other_adapters():
    arrays, batch = BatchArrays(), decode([3, 1], 5)
    assert arrays.of(batch) is arrays.of(batch)
    adapted = replace(batch, adapters=np.ones((2, 4), np.float32))
    assert arrays.of(adapted)["adapters"] is adapted.adapters
    assert "adapters" not in arrays.of(batch)


@given(st.lists(st.tuples(st.permutations([0, 1, 2]), st.integers(1, 3), st.integers(0, 2 * PAGE - 1)), min_size=1))
def test_arrays_do_not_depend_on_earlier_steps(steps):
    arrays = BatchArrays()
    for slots, count, start in steps:
        batch = decode(slots[:count], start)
        for name, array in batch.arrays().items():
            np.testing.assert_array_equal(arrays.of(batch)[name], array)
