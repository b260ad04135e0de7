"""Latent attention and per-head products: the GPU equals the reference, and numpy equals attention over heads."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

from rwkv_gpu.gguf.formats import FORMATS
from rwkv_gpu.gpu.weights import upload_together
from rwkv_gpu.kernels.defaults import default_tuning, gpu_tuning
from rwkv_gpu.kernels.expert_config import ExpertMatrixTile, expert_gemm_matrix
from rwkv_gpu.kernels.registry import expert_trials
from rwkv_gpu.measure.trials import Stored
from rwkv_gpu.ops.kv_format import KV_FORMATS
from rwkv_gpu.ops.latent_partition import decode_partition, latent_bytes, prompt_partition
from rwkv_gpu.ops.memory import Scratch
from rwkv_gpu.ops.paged import rotate, warmth
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import NO_KEY, PAGE, Cache, KeyIndex, LatentAttention, Rope, Temperature, Weight, Yarn
from tests.ops.test_attention import UNITS_TOLERANCE, Case, OnGpu, assert_same, history, normal
from tests.recording import ABLE, POISON

ROPE = Rope("normal", 16, 10000.0)
HALVES = Rope("neox", 16, 10000.0)
SOFTWARE = replace(ABLE, software=True, max_invocations=256)
BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}


@dataclass(frozen=True)
class Latent(Case):
    """Heads that attend to one latent."""

    heads: int = 5
    kv_heads: int = 1
    size: int = 48  # C + R
    latent: int = 32
    nope: int = 24  # dims of a head of q_rope before those that rotate
    rope: Rope | None = ROPE
    temperature: Temperature | None = None
    sinks: bool = False
    on_matrix_units: bool = False

    @property
    def cache(self) -> Cache:
        return Cache("kv", 1, self.size, self.latent)

    @property
    def tolerance(self) -> float:
        # A norm in another order may round a float16 the other way: by 2^-10 of 2, in one position of many.
        # On matrix units, queries and exponentials are float16, too: scores of 10 have errors of some 2^-11 of that.
        return 2e-2 if self.on_matrix_units else {"f32": 1e-4, "f16": 1e-3}[self.kind]

    def weights(self):
        return {"norm": 1 + normal(self.latent) / 4, "sinks": np.linspace(-3, 6, self.heads, dtype=np.float32)}

    def how(self, w):
        sinks = w["sinks"] if self.sinks else None
        return LatentAttention(self.heads, self.rope, 0.2, w["norm"], 1e-6, self.temperature, sinks)

    def says(self, g, w, q, q_rope, z):
        return g.latent_attention(q, q_rope, z, self.cache, self.how(w))

    def inputs(self, rows, seed=0):
        turning = self.nope + self.size - self.latent
        widths = {"q": self.heads * self.latent, "q_rope": self.heads * turning, "z": self.size}
        return {name: normal(rows, width, seed=seed + i) for i, (name, width) in enumerate(widths.items())}

    def pages(self):
        return super().pages()[:1]


CASES = {
    "plain": Latent(),
    "halves": Latent(kind="f16"),
    "odd width": Latent(heads=3, size=40, rope=Rope("normal", 8, 1e4)),
    "long queries": Latent(heads=21, size=96, latent=64, nope=6, rope=Rope("neox", 32, 1e4), kind="f16"),
    "true size": Latent(heads=4, size=576, latent=512, nope=128, rope=Rope("normal", 64, 1e6), kind="f16"),
    "without rope": Latent(rope=None),
    "warm": Latent(temperature=Temperature(0.5, 16)),
    "sinks": Latent(sinks=True),
    "yarn": Latent(rope=Rope("normal", 16, 1e4, 1 / 40, Yarn(64), magnitude=1.2)),
}


@pytest.mark.parametrize("name", CASES)
def test_latent_attention_in_numpy_equals_attention_over_heads_that_share_one_key(name):
    """There are 71 positions, the last in its own step. The values are a part of the keys."""
    case = replace(CASES[name], kind="f32")
    steps = history(case, 71, 1)
    found, [latents] = case.on_cpu(steps)
    batch, inputs = steps[1]
    keys = latents[list(batch.segments[0].pages)].reshape(-1, case.size)[:71]
    r = inputs["q_rope"].reshape(1, case.heads, -1)[..., case.nope :]
    if case.rope:
        r = rotate(r, case.rope, np.array([70]), None)
    q = np.concatenate([inputs["q"].reshape(1, case.heads, -1), r], axis=-1)[0]
    scale = 0.2 * (warmth(case.temperature, np.array([70])) if case.temperature else 1)
    p = np.exp(scale * (q @ keys.T))
    more = np.exp(case.weights()["sinks"])[:, None] if case.sinks else 0
    expected = (p / (p.sum(axis=-1, keepdims=True) + more)) @ keys[:, : case.latent]
    np.testing.assert_allclose(found[1].reshape(case.heads, -1), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("length", "step"), [(70, 0), (150, 20), (131, 1)])
def test_latent_attention_on_the_gpu_equals_the_reference(fast_device, name, length, step):
    case = replace(CASES[name], on_matrix_units=fast_device.capabilities.fragment > 0)
    # Long queries have large scores, and large errors if queries are float16: see `tolerance`.
    units = {"long queries": 2e-3, "true size": 6e-3}
    steps = history(case, length, step)
    assert_same(case, fast_device, steps, units=units.get(name, UNITS_TOLERANCE), run_length=64)


MATRIX_CASES = {  # by heads: the width in two parts of 18 fragments each, as in GLM-4.7-Flash
    "one query tile": Latent(8, size=288, latent=256, rope=Rope("normal", 32, 1e4), kind="f16"),
    "two query tiles": Latent(13, size=288, latent=256, rope=Rope("normal", 32, 1e4), kind="f16"),
    "four parts of the width": Latent(13, size=320, latent=288, rope=Rope("normal", 32, 1e4), kind="f16"),
    "more heads than a workgroup has": Latent(19, size=48, latent=40, rope=Rope("neox", 8, 1e4), kind="f16"),
}


@pytest.mark.parametrize("name", MATRIX_CASES)
@pytest.mark.parametrize(("length", "step"), [(150, 20), (331, 1)])
@pytest.mark.parametrize("prefetch", [0, 1])
def test_latent_attention_on_matrix_units_equals_the_reference(fast_device, name, length, step, prefetch):
    """Scores differ widely, so sums are scaled down on the way. There are one, few, and many runs."""
    if not fast_device.capabilities.fragment:
        pytest.skip("this device is not opened with matrix units")
    # In a short context each page has its own lane; in a long one, lanes have several pages.
    case = replace(MATRIX_CASES[name], on_matrix_units=True, context=(1024, 8192)[prefetch])
    steps = history(case, length, step)
    for _, inputs in steps:
        inputs["q"] *= 3
    # Scores deviate by 10. As float16, queries and keys change them by 2^-11 of that, and weights by as much: 0.5%.
    for groups, least in ((1, 16), (8, 64), (64, 16)) if step == 1 else ((1, 16),):
        how = {"latent_workgroups": groups, "latent_run_length": least, "latent_prefetch": prefetch}
        assert_same(case, fast_device, steps, units=0.02, **how)


@pytest.mark.parametrize(("length", "step"), [(150, 20), (131, 1)])
def test_latent_attention_is_the_same_in_every_mode(device, length, step):
    assert_same(CASES["halves"], device, history(CASES["halves"], length, step), run_length=64)


@pytest.mark.parametrize("single", [True, False])
def test_sequences_look_at_their_own_latents_only(fast_device, single):
    """Three sequences share a step. All other positions in the pages are NaN."""
    case, lengths = Latent(), {0: 65, 2: 3, 4: 140}
    before = [step for slot, length in lengths.items() for step in history(case, length, slot=slot)]
    counts = dict.fromkeys(lengths, 1) if single else {0: 3, 2: 1, 4: 17}
    batch = case.batch([(slot, lengths[slot], count) for slot, count in counts.items()])
    assert_same(case, fast_device, [*before, (batch, case.inputs(batch.rows, seed=9))], run_length=64)


@dataclass(frozen=True)
class Chosen(Latent):
    """Latent attention to keys that an indexer chooses."""

    index_heads: int = 3
    index_size: int = 32
    index_rope: Rope | None = HALVES
    count: int = 24
    last: bool = False  # True if the last dims of the indexer rotate
    whole: bool = False  # True if queries, keys and weights of the indexer are small integers, so that scores are exact

    @property
    def index(self) -> Cache:
        return Cache("index", 1, self.index_size, self.index_size)

    def pages(self):
        empty = np.full((self.pool, PAGE, 1, self.index_size), np.nan, KV_FORMATS[self.kind].dtype)
        return (*super().pages(), empty)

    def stored(self, arrays):
        return {"kv": tuple(arrays[:1]), "index": tuple(arrays[1:])}

    def inputs(self, rows, seed=0):
        widths = {"iq": self.index_heads * self.index_size, "ik": self.index_size, "iw": self.index_heads}
        index = {name: normal(rows, width, seed=seed + 7 + i) for i, (name, width) in enumerate(widths.items())}
        return super().inputs(rows, seed) | {n: np.rint(x / 2) if self.whole else x for n, x in index.items()}

    def says(self, g, w, q, q_rope, z, iq, ik, iw):
        how = KeyIndex(self.index_heads, self.index_rope, self.count, self.last)
        chosen = g.choose_keys(iq, ik, iw, self.index, how)
        return g.latent_attention(q, q_rope, z, self.cache, self.how(w), chosen=chosen)


CHOSEN = {
    "turned": Chosen(),
    # Ties are frequent: the earlier position is chosen.
    "ties": Chosen(kind="f16", index_rope=None, whole=True, count=40, index_heads=2),
    "the last dims turn, sinks": Chosen(index_rope=Rope("normal", 16, 1e4), last=True, sinks=True),
    "neighbours, 21 heads": Chosen(heads=21, index_rope=Rope("normal", 32, 1e4), count=70),
}


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize(("length", "step"), [(70, 0), (150, 20), (331, 1)])
def test_attention_to_chosen_keys_on_the_gpu_equals_the_reference(fast_device, name, length, step):
    """Some rows have fewer positions than are chosen."""
    assert_same(CHOSEN[name], fast_device, history(CHOSEN[name], length, step))


@pytest.mark.parametrize("single", [True, False])
def test_sequences_choose_among_their_own_keys(fast_device, single):
    """All other positions in the pages are NaN."""
    case, lengths = CHOSEN["turned"], {0: 65, 2: 3, 4: 140}
    before = [step for slot, length in lengths.items() for step in history(case, length, slot=slot)]
    counts = dict.fromkeys(lengths, 1) if single else {0: 3, 2: 1, 4: 17}
    batch = case.batch([(slot, lengths[slot], count) for slot, count in counts.items()])
    assert_same(case, fast_device, [*before, (batch, case.inputs(batch.rows, seed=9))])


@pytest.mark.parametrize("on_gpu", [False, True])
def test_an_indexer_that_keeps_all_keys_changes_nothing(fast_device, on_gpu):
    case = replace(CHOSEN["turned"], count=200)
    steps, plain = history(case, 150, 20), Latent()
    dense = [(batch, {name: inputs[name] for name in ("q", "q_rope", "z")}) for batch, inputs in steps]
    expected, _ = plain.on_cpu(dense)
    gpu = OnGpu(case, fast_device)
    found = [gpu.step(*step) for step in steps] if on_gpu else case.on_cpu(steps)[0]
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_the_chosen_keys_are_those_with_the_largest_scores():
    """By the definition, in float64."""
    case = replace(CHOSEN["turned"], index_rope=None)
    [(batch, inputs)] = history(case, 90)
    how = KeyIndex(case.index_heads, None, case.count)
    reference = Reference(case.weights(), {}, batch, case.stored(case.pages()))
    chosen = reference.choose_keys(inputs["iq"], inputs["ik"], inputs["iw"], case.index, how)
    q, k, w = (inputs[name].astype(np.float64) for name in ("iq", "ik", "iw"))
    for t in range(90):
        scores = np.maximum(q[t].reshape(case.index_heads, -1) @ k[: t + 1].T, 0).T @ w[t]
        best = sorted(np.argsort(-scores, kind="stable")[: case.count].tolist())
        assert chosen[t, 0].tolist() == best + [NO_KEY] * (case.count - len(best))


class ReadByHead(Latent):
    """Latent attention, followed by a product of each head with its own matrix."""

    def weights(self):
        return {**super().weights(), "v_up": V_UP.values.reshape(V_UP.shape)}

    def says(self, g, w, q, q_rope, z):
        return g.head_linear(super().says(g, w, q, q_rope, z), w["v_up"])


V_UP = Stored.random(BY_NAME["Q8_0"], 5, 24, 32)


@pytest.mark.parametrize("length", [70, 331, 600])
def test_a_product_by_head_joins_the_runs_of_one_row(fast_device, length):
    """Contexts have one run, as many runs as lanes share, and more."""
    if not fast_device.capabilities.subgroup:
        pytest.skip("this device has no subgroups")
    case = ReadByHead()
    steps = history(case, length, 1)
    expected, _ = case.on_cpu(steps)
    gpu = OnGpu(case, fast_device)
    gpu.tuning = gpu_tuning(replace(fast_device.capabilities, software=False)).changed(run_length=32)
    tensors = {"norm": (BY_NAME["F32"], Stored.of(case.weights()["norm"]).raw, (32,))}
    gpu.weights = upload_together(fast_device, tensors | {"v_up": (V_UP.format, V_UP.raw, V_UP.shape)})
    gpu.step(*steps[0])
    for spare in (0, 3):  # a plan of one row reduces runs there
        np.testing.assert_allclose(gpu.step(*steps[1], spare=spare), expected[1], rtol=1e-3, atol=1e-3)


def test_workgroups_have_room_on_every_device():
    """WebGPU guarantees 16 KiB. This is enough for any number of heads, and every head is in a block."""
    can = replace(ABLE, max_workgroup_memory=16 << 10, max_invocations=256)
    for heads, tuning in itertools.product((1, 3, 16, 20, 40, 64, 128), (gpu_tuning(can), default_tuning(SOFTWARE))):
        cache = Cache("kv", 1, 576, 512)
        for partition in (
            prompt_partition(heads, cache, tuning, can),
            decode_partition(heads, cache, 1, 64, tuning, can),
        ):
            assert latent_bytes(partition.queries, partition.keys, partition.chunk) <= 16 << 10
            assert partition.queries // 4 * max(16, partition.keys // 4) <= partition.lanes <= 256
            assert partition.queries % 4 == 0


def test_few_sequences_are_cut_into_enough_runs_for_a_large_device():
    cache, can = Cache("kv", 1, 576, 512), replace(ABLE, subgroup_size=32, subgroup_width=32)
    assert decode_partition(20, cache, 1, 512, gpu_tuning(can), can).runs == 256
    assert decode_partition(20, cache, 64, 512, gpu_tuning(can), can).shares.even == 8
    assert decode_partition(20, cache, 1, 2, gpu_tuning(can), can).runs == 1


FORMATS_OF_ROWS = {64: ("Q5_0", "Q8_0", "F16"), 256: ("Q4_K",), 20: ("F32",)}


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize(("width", "stride"), [(64, 80), (256, 264), (20, 26)])
def test_products_by_head_equal_the_reference(fast_device, rows, width, stride):
    """The formats are those of such rows in files. Strides are whole vec4s, or not."""
    can = fast_device.capabilities
    allowed = 1e-3 if can.fragment and rows > 1 else 1e-4  # of float16 on matrix units
    for name in FORMATS_OF_ROWS[width]:
        products_by_head(fast_device, default_tuning(can), name, rows, width, stride, allowed)


def test_products_by_head_are_the_same_in_every_mode(device):
    products_by_head(device, default_tuning(device.capabilities), "Q8_0", 3, 64, 80, 1e-4)


def test_every_kernel_of_experts_computes_products_by_head(fast_device):
    for kernel, config in expert_trials(fast_device.capabilities).values():
        tuning = default_tuning(fast_device.capabilities).only_experts(config)
        for stride in (64, 80, 81) if config.fragment else (80,):
            products_by_head(fast_device, tuning, "Q8_0", 5, 64, stride, 10 * kernel.tolerance.result)


@pytest.mark.parametrize(("width", "stride"), [(90, 100), (192, 256), (320, 320)])
@pytest.mark.parametrize("most", [16, 32])
def test_tiles_for_batches_compute_products_by_head(fast_device, most, width, stride):
    """The products have fewer or more columns than a tile, and rows that do or do not fill the last tile."""
    can = fast_device.capabilities
    if not can.fragment:
        pytest.skip("this device is not opened with matrix units")
    config = default_tuning(replace(can, software=False)).expert_config(most, heads=True)
    tuning = default_tuning(can).only_experts(config)
    for rows in (config.tb, config.tb + 3):
        products_by_head(fast_device, tuning, "F32" if width == 90 else "Q8_0", rows, width, stride, 1e-3)


def test_subgroups_divide_no_more_columns_than_a_head_has():
    tile = expert_gemm_matrix(16, 32, ExpertMatrixTile(1, 1, 2, 4, columns=256))
    for width, columns, subgroups in ((64, 64, 1), (192, 192, 3), (512, 256, 4)):
        found = tile.within(width)
        assert (found.columns, found.along_k, found.wg) == (columns, subgroups, 64 * subgroups)
    pair = expert_gemm_matrix(16, 32, ExpertMatrixTile(2, 2, 4, 2))
    assert pair.within(24) == pair  # x is rounded by 64 columns


def products_by_head(device, tuning, name, rows, width, stride, tolerance):
    stored = Stored.random(BY_NAME[name], 3, 70, width)
    x = normal(rows, 3 * stride)
    expected = Reference({"w": stored.values}).head_linear(x, Weight("w", stored.shape))
    recorder = Recorder(
        device,
        upload_together(device, {"w": (stored.format, stored.raw, stored.shape)}),
        rows + 2,
        Scratch(device),
        tuning,
    )
    given = recorder.input("x", np.float32, (rows + 2, x.shape[1]))
    plan = recorder.finish({"y": recorder.head_linear(given, Weight("w", stored.shape))})
    for buffer in recorder.scratch.buffers:
        device.write(buffer, np.full(buffer.nbytes // 4, POISON, np.uint32))
    plan.run(rows, {"x": x})
    np.testing.assert_allclose(plan.read("y", rows), expected, rtol=0, atol=tolerance * np.abs(expected).max())
