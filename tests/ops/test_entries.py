"""Compressed attention: the GPU equals the reference, and numpy equals the definition in float64."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from rwkv_gpu.ops.kv_format import KV_FORMATS
from rwkv_gpu.ops.paged import rotate
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import PAGE, Attention, Cache, KeyIndex, Rope, Weight
from tests.ops.test_attention import Case, assert_same, history, normal

ROPE = Rope("normal", 16, 1e4)


@dataclass(frozen=True)
class Entries(Case):
    """Heads that attend to a window, and to entries of `ratio` positions each."""

    heads: int = 6
    kv_heads: int = 1
    size: int = 32
    window: int = 24
    rope: Rope = ROPE
    ratio: int = 4
    count: int = 0  # entries that are chosen; 0 is all

    @property
    def blocks(self) -> int:
        return 2 if self.ratio == 4 else 1

    @property
    def near(self) -> Cache:
        return Cache("near", 1, self.size, self.size, self.window)

    @property
    def rows(self) -> Cache:
        wide = 2 * self.blocks * self.size
        return Cache("rows", 1, wide, wide, self.blocks * self.ratio)

    @property
    def far(self) -> Cache:
        return Cache("far", 1, self.size, self.size, stride=self.ratio)

    @property
    def tolerance(self) -> float:
        return {"f32": 1e-4, "f16": 2e-3}[self.kind]

    def weights(self):
        bias = normal(self.ratio * self.blocks * self.size, seed=4)
        return {"sinks": np.linspace(-3, 6, self.heads, dtype=np.float32), "bias": bias}

    def pages(self):
        dtype, each = KV_FORMATS[self.kind].dtype, PAGE // self.far.step
        shapes = (PAGE, self.size), (PAGE, self.rows.size), (each, self.size)
        return tuple(np.full((self.pool, count, 1, width), np.nan, dtype) for count, width in shapes)

    def stored(self, arrays):
        return {name: (array,) for name, array in zip(("near", "rows", "far"), arrays, strict=True)}

    def inputs(self, rows, seed=0):
        widths = {"q": self.heads * self.size, "key": self.size, "row": self.rows.size, "by_head": self.heads}
        return {name: normal(rows, width, seed=seed + i) for i, (name, width) in enumerate(widths.items())}

    def says(self, g, w, q, key, row, by_head):
        how = Attention(self.heads, None, 0.2, self.window, sinks=w["sinks"])
        g.write_entries(key, self.near, self.rope)
        g.write_entries(row, self.rows)
        g.write_entries(g.compress(self.rows, w["bias"], self.ratio), self.far, self.rope)
        q = g.turn_heads(q, self.heads, self.rope, self.near)
        chosen = None
        if self.count:
            chosen = g.choose_keys(q, None, by_head, self.far, KeyIndex(self.heads, None, self.count))
        y = g.compressed_attention(q, self.near, self.far, how, chosen=chosen)
        return g.turn_heads(y, self.heads, self.rope, self.near, back=True)


CASES = {
    "overlapping blocks": Entries(),
    "chosen entries": Entries(count=5),
    "long blocks": Entries(ratio=128, rope=Rope("neox", 8, 1e4)),
    "halves": Entries(count=7, kind="f16"),
    "many heads": Entries(heads=21, size=64, ratio=128),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("length", "step"), [(3, 0), (150, 20), (331, 1), (384, 1)])
def test_compressed_attention_on_the_gpu_equals_the_reference(fast_device, name, length, step):
    """The first rows have no complete entry. Some steps complete one, others do not."""
    assert_same(CASES[name], fast_device, history(CASES[name], length, step))


@pytest.mark.parametrize(("length", "step"), [(150, 20), (132, 1)])
def test_compressed_attention_is_the_same_in_every_mode(device, length, step):
    assert_same(CASES["chosen entries"], device, history(CASES["chosen entries"], length, step))


@pytest.mark.parametrize("single", [True, False])
def test_sequences_attend_to_their_own_entries(fast_device, single):
    """All other positions in the pages are NaN."""
    case, lengths = CASES["chosen entries"], {0: 65, 2: 3, 4: 143}
    before = [step for slot, length in lengths.items() for step in history(case, length, slot=slot)]
    counts = dict.fromkeys(lengths, 1) if single else {0: 3, 2: 1, 4: 17}
    batch = case.batch([(slot, lengths[slot], count) for slot, count in counts.items()])
    assert_same(case, fast_device, [*before, (batch, case.inputs(batch.rows, seed=9))])


@pytest.mark.parametrize("ratio", [4, 128])
def test_entries_are_weighted_means_of_blocks(ratio):
    """By the definition, in float64: overlapping blocks read the block before, too, which the first one lacks."""
    case = replace(CASES["overlapping blocks"], ratio=ratio)
    [(batch, inputs)] = history(case, 300)
    reference = Reference(case.weights(), {}, batch, case.stored(case.pages()))
    reference.write_entries(inputs["row"], case.rows)
    bias = Weight("bias", (ratio * case.blocks * case.size,))
    found = reference.compress(case.rows, bias, ratio)
    half = case.blocks * case.size
    values, gates = inputs["row"][:, :half].astype(np.float64), inputs["row"][:, half:].astype(np.float64)
    gates = gates + np.resize(case.weights()["bias"].reshape(ratio, half), gates.shape)
    for end in range(ratio, 300, ratio):
        parts = [(slice(end - ratio, end), slice(half - case.size, half))]
        if ratio == 4 and end > ratio:
            parts.append((slice(end - 2 * ratio, end - ratio), slice(0, case.size)))
        v, e = (np.concatenate([f(x[part]) for part in parts]) for f, x in ((np.array, values), (np.exp, gates)))
        np.testing.assert_allclose(found[end - 1], (v * e).sum(axis=0) / e.sum(axis=0), atol=1e-5)
    assert not found[np.arange(300) % ratio != ratio - 1].any()


def test_an_entry_is_rotated_by_its_first_position():
    case = CASES["overlapping blocks"]
    [(batch, inputs)] = history(case, 90)
    arrays = case.pages()
    reference = Reference(case.weights(), {}, batch, case.stored(arrays))
    reference.write_entries(inputs["key"], case.far, ROPE)
    own = arrays[2].reshape(-1, case.size)[batch.segments[0].entries(case.far)]
    assert len(own) == 22
    last = inputs["key"][3:90:4]
    np.testing.assert_array_equal(own[:, :16], last[:, :16])
    turned = rotate(last[:, None, 16:], ROPE, np.arange(0, 88, 4), None)[:, 0]
    np.testing.assert_allclose(own[:, 16:], turned, atol=1e-6)


def test_heads_that_are_turned_and_turned_back_are_unchanged(device):
    case = Turned()
    [(batch, inputs)] = history(case, 150)
    assert_same(case, device, [(batch, inputs)])
    found, _ = case.on_cpu([(batch, inputs)])
    np.testing.assert_allclose(found[0], inputs["q"], atol=1e-5)


class Turned(Entries):
    """Queries that are turned to their positions, and back."""

    def inputs(self, rows, seed=0):
        return {"q": super().inputs(rows, seed)["q"]}

    def says(self, g, _, q):
        q = g.turn_heads(q, self.heads, self.rope, self.near)
        return g.turn_heads(q, self.heads, self.rope, self.near, back=True)
