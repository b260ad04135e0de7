"""Attention over pages: the GPU equals the reference for all lengths, head sizes, windows and page orders."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Slice
from rwkv_gpu.gpu.weights import upload_weights
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.measure.cases.attention import blocks_of
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.kv_format import BLOCK, KV_FORMATS, KVType, hadamard
from rwkv_gpu.ops.memory import Caches, Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import PAGE, Attention, Cache, HeadNorms, LateTemperature, Rope, Temperature, Weight, Yarn
from tests.cases import slow_unless
from tests.recording import POISON, named

Arrays = dict[str, np.ndarray]
SLOTS = 5
# Softmax sums up to thousands of float32 products of size 1, in another order; exp is accurate to some last places.
# A number between two quants may be rounded to either, and lanes that share keys in blocks round queries to 8 bits.
TOLERANCE = {"f32": 1e-4, "f16": 2e-4, "q8": 4e-3, "q4": 4e-2}
UNITS_TOLERANCE = 1e-3  # for prompts on matrix units, where exponentials are float16
ROPE = Rope("neox", 64, 10000.0)


@dataclass(frozen=True)
class Case:
    """Attention heads of one kind over a pool of pages."""

    heads: int = 4
    kv_heads: int = 2
    size: int = 64
    window: int = 0
    rope: Rope = ROPE
    normed: bool = False
    kind: KVType = "f32"
    option: str = ""  # of OPTIONS
    context: int = 1024

    @property
    def cache(self) -> Cache:
        return Cache("kv", self.kv_heads, self.size)

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.kind]

    @property
    def pool(self) -> int:
        """The number of pages, which is more than all sequences need."""
        return SLOTS * self.context // PAGE + 3

    def weights(self) -> Arrays:
        dims = self.rope.dims // 2
        norms = {name: 1 + normal(self.size, seed=i) / 4 for i, name in enumerate(("q_norm", "k_norm"))}
        sinks = np.linspace(-3, 6, self.heads, dtype=np.float32)
        norms["short_norm"] = normal(20)
        factors = np.linspace(1, 8, dims, dtype=np.float32)
        return norms | {"factors": factors, "sinks": sinks, "biases": 2 * normal(32 * self.heads, seed=5)}

    def says(self, g, w, q, k, v, **_):
        norms = HeadNorms(1e-6, w["q_norm"], w["k_norm"]) if self.normed else None
        how = Attention(self.heads, self.rope, self.size**-0.5, self.window, norms)
        how = OPTIONS[self.option](how, w) if self.option else how
        if how.head:
            counts = self.heads, self.kv_heads, self.kv_heads
            cut = [g.resize_heads(x, n, how.head) for x, n in zip((q, k, v), counts, strict=True)]
            q, k, v = (g.resize_heads(x, n, self.size) for x, n in zip(cut, counts, strict=True))
        y = g.attention(q, k, v, self.cache, how)
        # A layer that shares the cache attends with the same queries.
        return g.add(y, g.attention(q, None, None, self.cache, how)) if "a cache" in self.option else y

    def inputs(self, rows: int, seed: int = 0) -> Arrays:
        widths = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}
        return {n: normal(rows, h * self.size, seed=seed + i) for i, (n, h) in enumerate(widths.items())}

    def tables(self) -> dict[int, list[int]]:
        """Returns the pages of each slot, in shuffled order."""
        order = np.random.default_rng(3).permutation(self.pool)
        each = self.context // PAGE
        return {slot: order[slot * each : (slot + 1) * each].tolist() for slot in range(SLOTS)}

    def pages(self) -> tuple[np.ndarray, ...]:
        """Returns keys and values for all pages, filled with NaN."""
        fmt = KV_FORMATS[self.kind]
        shape = self.pool, PAGE, self.kv_heads, fmt.width(self.size)
        nan = 0xFFFFFFFF if fmt.quantised else np.nan  # scales that are NaN
        return np.full(shape, nan, fmt.dtype), np.full(shape, nan, fmt.dtype)

    def stored(self, arrays: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
        """Returns the arrays by cache."""
        return {"kv": tuple(arrays)}

    def batch(self, sequences: Sequence[tuple[int, int, int]]) -> Batch:
        """Returns a batch from (slot, start, tokens), with only the pages that it needs."""
        batch = Batch.of([(slot, start, [0] * count) for slot, start, count in sequences])
        ends = {s.slot: -(-(s.start + s.count) // PAGE) for s in batch.segments}
        return batch.placed({slot: self.tables()[slot][:pages] for slot, pages in ends.items()})

    def on_cpu(self, steps: Sequence[tuple[Batch, Arrays]]) -> tuple[list[np.ndarray], tuple[np.ndarray, ...]]:
        """Returns the results of each step, and the pages after the last."""
        pages = self.pages()
        ys = []
        for batch, inputs in steps:
            reference = Reference(self.weights(), {}, batch, self.stored(pages))
            ys.append(self.says(reference, named(self.weights()), **inputs))
        return ys, pages


class OnGpu:
    """A case with its pages on a device, and plans for all row counts."""

    def __init__(self, case: Case, device: Device, pages: tuple[np.ndarray, ...] | None = None, **tuning: int) -> None:
        self.case, self.device = case, device
        self.tuning = default_tuning(device.capabilities).changed(**tuning)
        self.weights = upload_weights(device, case.weights())
        self.buffers = [device.upload(each, "kv") for each in pages or case.pages()]
        self.scratch = Scratch(device)

    def step(self, batch: Batch, inputs: Arrays, spare: int = 3) -> np.ndarray:
        """Runs one step in a plan for `spare` more rows. Values beyond the step must not change."""
        case, device = self.case, self.device
        stored = tuple(Slice(buffer, 0, buffer.nbytes) for buffer in self.buffers)
        recorder = Recorder(
            device, self.weights, batch.rows + spare, self.scratch,
            self.tuning,
            max_segments=min(batch.rows + spare, SLOTS),
            caches=Caches(case.stored(stored), case.kind, case.context // PAGE), single=batch.single,
        )  # fmt: skip
        given = {n: recorder.input(n, np.float32, (recorder.rows, a.shape[1])) for n, a in inputs.items()}
        plan = recorder.finish({"y": case.says(recorder, named(case.weights()), **given)})
        for buffer in self.scratch.buffers:
            device.write(buffer, np.full(buffer.nbytes // 4, POISON, np.uint32))
        plan.run(batch.rows, inputs | batch.arrays(), len(batch.segments))
        beyond = plan.read("y", plan.rows)[batch.rows :]
        assert np.all(beyond.view(np.uint32) == POISON), "wrote rows that this step does not have"
        return plan.read("y", batch.rows)

    def pages(self) -> tuple[np.ndarray, ...]:
        return tuple(
            np.frombuffer(self.device.read(buffer), pages.dtype)[: pages.size].reshape(pages.shape)
            for buffer, pages in zip(self.buffers, self.case.pages(), strict=True)
        )


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def history(case: Case, length: int, step: int = 0, slot: int = 2) -> list[tuple[Batch, Arrays]]:
    """Returns a sequence of that length. Its last `step` rows (all, for 0) are a separate step."""
    first = length - (step or length)
    cuts = [(0, first), (first, length)] if first else [(0, length)]
    inputs = case.inputs(length)
    return [(case.batch([(slot, a, b - a)]), {n: x[a:b] for n, x in inputs.items()}) for a, b in cuts]


def assert_same(
    case: Case,
    device: Device,
    steps: Sequence[tuple[Batch, Arrays]],
    units: float = UNITS_TOLERANCE,
    past: int = 0,
    **tuning: int,
) -> None:
    """Checks that both interpreters give the same results and pages. Unowned pages must not change.

    The GPU gets the pages of earlier steps (`past`) from the reference, which avoids compiling plans for them.
    """
    expected, pages = case.on_cpu(steps)
    gpu = OnGpu(case, device, case.on_cpu(steps[:past])[1], **tuning)
    tolerance = units if device.capabilities.fragment and case.kind == "f16" else case.tolerance
    for (batch, inputs), y in zip(steps[past:], expected[past:], strict=True):
        np.testing.assert_allclose(gpu.step(batch, inputs), y, rtol=tolerance, atol=tolerance)
    for mine, theirs in zip(gpu.pages(), pages, strict=True):
        if KV_FORMATS[case.kind].quantised:
            assert np.mean(mine != theirs) < 0.01, "a few numbers lie between two quants"
            continue
        atol = 2e-6 if case.kind == "f32" else 2e-3  # float32 errors change the rounding to float16
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=atol, equal_nan=True)


# Several at a time, as each shader takes its time to compile.
OPTIONS = {
    "capped scores, sinks, a temperature, norms": lambda how, w: replace(
        how,
        softcap=1.5,
        sinks=w["sinks"],
        temperature=Temperature(0.5, 32, 1),
        norms=HeadNorms(1e-6, w["q_norm"], w["k_norm"]),
    ),
    "chunks, no rotation, norms without weight, normed values": lambda how, _: replace(
        how, chunk=100, rope=None, norms=HeadNorms(1e-6, v=True)
    ),
    "norms after the rotation, a cache that is read": lambda how, w: replace(
        how, sinks=w["sinks"], norms=HeadNorms(1e-6, w["q_norm"], w["k_norm"], turned=True)
    ),
    "scores that lose by distance, a late temperature": lambda how, _: replace(
        how, alibi=8.0, rope=None, temperature=LateTemperature(32)
    ),
    "by relative position": lambda how, w: replace(how, biases=w["biases"], rope=None),
    "padded": lambda how, w: replace(how, head=20, norms=HeadNorms(1e-6, w["short_norm"], w["short_norm"])),
    "only values normed": lambda how, _: replace(how, norms=HeadNorms(1e-6, v=True, qk=False)),
    "both sides": lambda how, _: replace(how, causal=False),
    "both sides, by distance": lambda how, _: replace(how, causal=False, alibi=8.0, rope=None),
    "both sides, by relative position": lambda how, w: replace(how, causal=False, biases=w["biases"], rope=None),
    "ahead": lambda how, _: replace(how, causal=False, ahead=True),
    "ahead in images": lambda how, _: replace(how, causal=False, ahead=True, ends="ends"),
    "bounded": lambda how, _: replace(how, causal=False, bounds="bounds"),
}


@pytest.mark.parametrize(("kind", "size"), [("q8", 128), ("q4", 96)])
def test_quantised_keys_and_values_equal_the_reference(fast_device, kind, size):
    """Tested in a prompt, and in decode with lanes that read their own keys, and with lanes that share them."""
    case = Case(heads=4, kv_heads=2, size=size, rope=Rope("neox", size, 1e4), kind=kind, context=256, normed=size > 64)
    for step, lanes_per_key in ((40, 0), (1, 0), (1, 4)):
        how = {"lanes_per_key": lanes_per_key, "run_length": 32 if lanes_per_key else 64}
        how |= {"decode_lanes": max(8, fast_device.capabilities.subgroup_width), "last_workgroup_reduces": False}
        more = [(case.batch([(2, 130, 1)]), case.inputs(1, seed=7))] if step == 1 else []
        assert_same(case, fast_device, [*history(case, 130, step), *more], **how)


def test_the_first_of_the_largest_numbers_gives_a_block_its_sign(fast_device):
    """The rotation spreads a value of one dim evenly over its block, whose numbers then are equally large."""
    case = Case(rope=Rope("neox", 64, 1e4), kind="q4", context=64)
    inputs = case.inputs(40)
    blocks = np.zeros_like(inputs["v"]).reshape(-1, BLOCK)
    blocks[np.arange(len(blocks)), np.arange(len(blocks)) % BLOCK] = np.where(np.arange(len(blocks)) % 3, 3, -3)
    inputs["v"] = blocks.reshape(inputs["v"].shape)
    scales = np.unique(np.abs(hadamard(BLOCK) * 3)) / 8
    assert len(scales) == 1
    assert_same(case, fast_device, [(case.batch([(2, 0, 40)]), inputs)])
    fmt = KV_FORMATS["q4"]
    written = fmt.load(fmt.store(blocks[:, None]), BLOCK).reshape(blocks.shape) @ hadamard(BLOCK)
    first = np.sign((blocks @ hadamard(BLOCK))[:, :1])
    large = np.abs(written) > 7.5 * scales
    assert (large == (np.sign(written) == first)).all()


@pytest.mark.parametrize("option", list(OPTIONS)[:5])
def test_every_option_equals_the_reference(fast_device, option):
    """Tested in a prompt, and in decode with separate and with shared keys, and with several runs."""
    case = Case(heads=4, kv_heads=1, size=24, rope=Rope("neox", 16, 10000.0), option=option, context=256)
    for length, step in ((130, 40), (130, 1)):
        for lanes_per_key, joins in ((0, False), (8, False), (8, True)) if step == 1 else ((0, False),):
            how = {"lanes_per_key": lanes_per_key, "run_length": 64 if lanes_per_key == 0 else 16}
            how |= {"decode_lanes": max(8, fast_device.capabilities.subgroup_width), "last_workgroup_reduces": joins}
            assert_same(case, fast_device, history(case, length, step), past=step == 1, **how)


def test_every_head_has_a_slope_of_its_own(fast_device):
    """The number of heads is not a power of 2, so there are unused slots. Also tested far into a context."""
    case = Case(heads=6, kv_heads=2, size=32, option=list(OPTIONS)[3])
    for step in (1, 40):
        assert_same(case, fast_device, history(case, 1000, step))


def test_options_of_attention_work_on_a_device_with_few_bindings(device):
    case = Case(heads=2, kv_heads=1, size=32, rope=Rope("normal", 32, 1e4), option=next(iter(OPTIONS)), context=256)
    for step in (1, 40):
        assert_same(case, device, history(case, 250, step), run_length=64)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("option", "window"),
    [
        ("both sides", 0),
        ("both sides", 25),
        ("both sides, by distance", 0),
        ("both sides, by relative position", 0),
        ("ahead", 25),
    ],
)
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_attention_to_both_sides_equals_the_reference(fast_device, kind, option, window):
    """A step has whole texts of different lengths, a few rows with many pages, and texts of one token."""
    case = Case(option=option, window=window, kind=kind)
    for texts in ([(2, 0, 150), (0, 0, 1), (1, 0, 33)], [(1, 0, 9)], [(0, 0, 1), (2, 0, 1)]):
        batch = case.batch(texts)
        assert_same(case, fast_device, [(batch, case.inputs(batch.rows))])


@pytest.mark.parametrize(("kind", "size"), [("f32", 64), ("f16", 64), ("f16", 40)])
def test_rows_attend_within_their_bounds(fast_device, kind, size):
    """Blocks of a text extend over several pages and over rows of several workgroups; also single rows, and one whole
    text.
    """
    case = Case(heads=2, kv_heads=2, size=size, rope=Rope("neox", 32, 1e4), option="bounded", kind=kind)
    for lengths in ((1, 70, 3, 64, 9), (200,), (1,) * 5, (1,)):
        bounds = blocks_of(lengths)
        batch = replace(case.batch([(1, 0, len(bounds))]), extra_inputs={"bounds": bounds})
        assert_same(case, fast_device, [(batch, case.inputs(batch.rows) | batch.extra_inputs)])


@pytest.mark.parametrize("window", [0, 25])
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_rows_of_images_attend_to_all_of_their_image(fast_device, kind, window):
    """Images extend over several pages. Texts are around and between them. Steps have several sequences."""
    case = Case(option="ahead in images", window=window, kind=kind)
    steps = []
    for parts in ([(2, 0, [3, 70, 1, 9]), (0, 0, [-1])], [(0, 1, [-40]), (2, 83, [-2, 50, 20, -5]), (1, 0, [33])]):
        batch = case.batch([(slot, start, sum(map(abs, lengths))) for slot, start, lengths in parts])
        ends = [ends_of(start, lengths) for _, start, lengths in parts]
        batch = replace(batch, extra_inputs={"ends": np.concatenate(ends)})
        steps.append((batch, case.inputs(batch.rows) | batch.extra_inputs))
    assert_same(case, fast_device, steps)


def ends_of(start: int, lengths: Sequence[int]) -> np.ndarray:
    """Returns the position after the last that each row sees, for images of these lengths; negative: texts. [T, 1]"""
    ends: list[int] = []
    for length in lengths:
        at = start + len(ends)
        ends += [at + length] * length if length > 0 else range(at + 1, at - length + 1)
    return np.array(ends, np.float32)[:, None]


def test_heads_that_are_padded_have_the_norms_of_their_own_numbers(fast_device):
    case = Case(heads=2, kv_heads=1, size=32, rope=Rope("neox", 20, 1e4), option="padded", context=64)
    for step in (1, 20):
        assert_same(case, fast_device, history(case, 30, step))


def test_a_norm_of_values_alone_equals_the_reference(fast_device):
    case = Case(heads=2, kv_heads=1, size=32, option="only values normed", context=64)
    assert_same(replace(case, rope=Rope("normal", 32, 1e4)), fast_device, history(case, 30))


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 129, 1000])
def test_a_prompt_in_one_step_equals_the_reference(device, length, kind):
    case = Case(kind=kind)
    assert_same(case, device, history(case, length))


@pytest.mark.parametrize(
    "case",
    [Case(), Case(heads=2, kv_heads=1, window=700), Case(option="capped scores, sinks, a temperature, norms")],
    ids=["all", "window", "sinks"],
)
def test_a_prompt_of_few_rows_on_matrix_units_is_split_into_runs(fast_device, case):
    """Tested far into a context, with runs that see nothing, and with rows of several sequences."""
    if not fast_device.capabilities.fragment:
        pytest.skip("this device is not opened with matrix units")
    case = replace(case, kind="f16")
    starts = {3: (0, 33), 0: (700, 1), 4: (600, 55)}
    before = case.batch([(slot, 0, start) for slot, (start, _) in starts.items() if start])
    mixed = case.batch([(slot, start, count) for slot, (start, count) in starts.items()])
    several = [(b, case.inputs(b.rows, seed=s)) for s, b in enumerate((before, mixed))]
    for steps in (history(case, 1000, 40), history(case, 60, 30), several):
        assert_same(case, fast_device, steps, prompts_on_matrix_units=True)


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("length", [1, 2, 64, 65, 256, 257, 1000])
def test_attention_of_the_last_token_of_a_context_equals_the_reference(device, length, kind):
    case = Case(kind=kind)
    assert_same(case, device, history(case, length, step=1))


@pytest.mark.parametrize(
    ("pairing", "size"),
    slow_unless(
        # The smallest and the largest, one without a power of 2 as divisor, and each number of rows per workgroup.
        (("neox", 8), ("neox", 80), ("neox", 256), ("neox", 512), ("normal", 72)),
        [
            *(("neox", size) for size in (8, 48, 64, 72, 80, 96, 128, 256, 512)),
            *(("normal", size) for size in (8, 72, 512)),
        ],
    ),
)
def test_every_head_size_and_pairing_equals_the_reference(device, size, pairing):
    case = Case(size=size, rope=Rope(pairing, size, 10000.0), context=256)
    for step in (1, 7):
        assert_same(case, device, history(case, 140, step))


@pytest.mark.parametrize(
    ("sharing", "size"),
    slow_unless(
        ((1, 64), (3, 64), (8, 64), (17, 64), (8, 512)),
        [(1, 64), (2, 64), (3, 64), (4, 64), (7, 64), (8, 64), (17, 64), (8, 256), (8, 512)],
    ),
)
def test_every_ratio_of_heads_equals_the_reference(device, sharing, size):
    case = Case(heads=2 * sharing, kv_heads=2, size=size, rope=Rope("normal", size, 500000.0), context=256)
    for step in (1, 19):
        assert_same(case, device, history(case, 100, step))


@pytest.mark.parametrize("window", slow_unless((1, 65), (1, 64, 65, 300)))
def test_a_window_hides_earlier_positions(device, window):
    case = Case(heads=2, kv_heads=1, window=window)
    for step in (1, 150):
        assert_same(case, device, history(case, 600, step))


ROPES = {
    "part of a head": Rope("neox", 24, 10000.0),
    "part of a head in neighbours": Rope("normal", 20, 10000.0),
    "linear": Rope("normal", 64, 10000.0, scale=0.25),
    "yarn": Rope("neox", 64, 1e6, scale=0.25, yarn=Yarn(256), magnitude=1.139),
    "factors": Rope("normal", 64, 5e5, factors=Weight("factors", (32,))),
}


@pytest.mark.parametrize(
    ("rope", "normed"),
    [
        *((rope, False) for rope in ROPES),
        pytest.param("part of a head", True, marks=pytest.mark.slow),
        ("yarn", True),
    ],
)
def test_every_rotation_equals_the_reference(device, rope, normed):
    case = Case(heads=2, kv_heads=1, rope=ROPES[rope], normed=normed, context=256)
    for step in (1, 30):
        assert_same(case, device, history(case, 130, step))


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_sequences_of_different_lengths_equal_the_reference(device, kind):
    case = Case(kind=kind, context=512)
    lengths = {3: (0, 33), 0: (70, 1), 4: (0, 255), 1: (127, 2), 2: (65, 64)}
    before = case.batch([(slot, 0, start) for slot, (start, _) in lengths.items() if start])
    mixed = case.batch([(slot, start, count) for slot, (start, count) in lengths.items()])
    assert_same(case, device, [(b, case.inputs(b.rows, seed=s)) for s, b in enumerate((before, mixed))])


def each_of_several() -> list[tuple[Batch, Arrays]]:
    """Returns sequences of many lengths. Their last rows form a step."""
    case = Case()
    lengths = {3: 1000, 0: 1, 4: 257, 1: 64, 2: 65}
    before = case.batch([(slot, 0, n - 1) for slot, n in lengths.items() if n > 1])
    last = case.batch([(slot, n - 1, 1) for slot, n in lengths.items()])
    assert last.single
    return [(b, case.inputs(b.rows, seed=s)) for s, b in enumerate((before, last))]


def test_one_row_of_each_of_several_sequences_equals_the_reference(device):
    assert_same(Case(), device, each_of_several())


def test_any_number_of_lanes_gives_the_same_result(fast_device):
    case = Case(size=48, rope=Rope("neox", 48, 10000.0), context=512)
    for lanes, step in itertools.product((8, 32, 256), (1, 40)):
        assert_same(case, fast_device, history(case, 300, step), workgroup_lanes=lanes)


@pytest.mark.parametrize("length", [1, 64, 65, 129, 1000])
def test_runs_of_any_length_give_the_same_result(fast_device, length):
    case = Case()
    for run in (64, 128, 512):
        assert_same(case, fast_device, history(case, length, step=1), run_length=run)


LONG_HEADS = Case(kind="f16", size=128, rope=Rope("normal", 128, 5e5))
# Lanes share keys: the case, its length, lanes per key, lanes in all, keys at a time.
SHARING = {
    "the first token": (LONG_HEADS, 1, 8, 32, 2),
    "a run and one more": (LONG_HEADS, 33, 8, 32, 2),
    "many runs": (LONG_HEADS, 500, 8, 32, 2),
    "a head alone": (Case(heads=2, size=24, rope=Rope("neox", 24, 1e4)), 70, 8, 8, 4),
    "three heads": (Case(heads=6, size=48, rope=ROPES["part of a head"], normed=True), 70, 2, 16, 2),
    "five heads": (Case(heads=5, kv_heads=1, kind="f16"), 70, 8, 16, 1),
    "eight heads": (Case(heads=8, kv_heads=1, rope=ROPES["part of a head in neighbours"], normed=True), 70, 8, 16, 1),
    "seventeen heads": (Case(heads=17, kv_heads=1, size=80, rope=Rope("neox", 80, 1e4)), 70, 8, 8, 1),
    "as many keys at a time as lanes": (
        Case(heads=4, kv_heads=1, size=32, rope=Rope("neox", 32, 1e4), kind="f16"),
        70,
        8,
        16,
        4,
    ),
    "a window, and blocks of positions longer than pages": (Case(window=100), 300, 2, 64, 8),
    "more keys at a time than lanes": (Case(heads=4, kv_heads=1, kind="q4"), 200, 2, 8, 8),
    "joined at once": (Case(kind="f16"), 300, 8, 32, 2),
    "joined as soon as one run is too long": (Case(kind="f16"), 127, 8, 32, 2),
    "joined in a window of more than a run": (Case(window=100), 300, 8, 32, 2),
    "a window of one": (Case(window=1), 66, 4, 8, 1),
}


@pytest.mark.parametrize(
    "what", slow_unless(SHARING.keys() - {"a head alone", "eight heads", "as many keys at a time as lanes"}, SHARING)
)
def test_lanes_that_share_keys_give_the_same_result(fast_device, what):
    case, length, lanes_per_row, lanes, prefetch_depth = SHARING[what]
    subgroup_width = fast_device.capabilities.subgroup_width
    if subgroup_width < lanes_per_row:
        pytest.skip("no lanes that surely share a subgroup")
    how = {
        "lanes_per_key": lanes_per_row,
        "decode_lanes": max(lanes, subgroup_width),
        "prefetch_keys": prefetch_depth,
        "run_length": 32,
    }
    how["last_workgroup_reduces"] = what.startswith("joined")
    before = history(case, length, step=1)
    more = [(case.batch([(2, at, 1)]), case.inputs(1, seed=at)) for at in (length, length + 1)]
    assert_same(case, fast_device, [*before, *more], past=len(before) - 1, **how)


def test_lanes_that_share_keys_give_the_same_result_for_several_sequences(fast_device):
    if fast_device.capabilities.subgroup_width < 8:
        pytest.skip("no lanes that surely share a subgroup")
    for joins in (False, True):
        assert_same(
            Case(),
            fast_device,
            each_of_several(),
            past=1,
            lanes_per_key=8,
            decode_lanes=64,
            run_workgroups=8,
            last_workgroup_reduces=joins,
        )


def test_thousands_of_positions_equal_the_reference(fast_device):
    case = Case(heads=2, kv_heads=1, context=8192)
    assert_same(case, fast_device, [*history(case, 4000, 40), (case.batch([(2, 4000, 1)]), case.inputs(1))])


def test_frequencies_of_yarn_keep_fast_rotations():
    rope = ROPES["yarn"]
    plain = Rope("neox", 64, 1e6).frequencies()
    kept = np.array(rope.frequencies()) / plain
    assert kept[0] == 1
    assert kept[-1] == 0.25
    assert np.all(np.diff(kept) <= 0)
