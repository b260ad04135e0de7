"""Recurrent ops: the GPU equals the reference, sequences are independent, and chunks do not change results."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from rwkv_gpu.gguf.formats import FORMATS
from rwkv_gpu.gguf.planes import dequantise_rows
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Plan, Slice
from rwkv_gpu.gpu.weights import Weights, upload_tensor, upload_weights
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.gemm_config import gemv
from rwkv_gpu.kernels.tuning import Tuning
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.memory import Scratch
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import Mixed, State
from tests.gguf.blocks import mild_rows
from tests.recording import KERNEL_OF, POISON, gemm_configs, named, tunings

ROWS, SEGMENTS, SLOTS = 1000, 5, 14
LENGTHS = (1, 31, 33, 255, 256, 257, 1000)
RAGGED = ((3, 0, 33), (0, 5, 1), (6, 0, 255), (1, 9, 17), (5, 1, 2))  # (slot, start, tokens), slots out of order
# Sums over a head and products of a few hundred float32 rounded in another order, and a norm over them.
TOLERANCE = 2e-4

BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}

Arrays = dict[str, np.ndarray]
Says = Callable[..., dict[str, Any]]  # (ops, weights, states, **inputs) -> outputs


def batch_of(sequences: Sequence[tuple[int, int, int]], outputs: tuple[int, ...] = ()) -> Batch:
    """Returns a batch from (slot, start, tokens)."""
    batch = Batch.of([(slot, start, [0] * count) for slot, start, count in sequences])
    return Batch(batch.ids, batch.segments, outputs or batch.outputs)


class Case:
    """A model function with its parameters, states and inputs, run by both interpreters."""

    single = False  # whether every sequence has one row
    tolerance = TOLERANCE

    def __init__(self, says: Says, weights: Arrays, states: Sequence[State]) -> None:
        self.says = says
        self.weights = weights
        self.states = {state.name: state for state in states}

    def load(self, device: Device) -> Weights:
        """Loads the parameters on a device."""
        return upload_weights(device, self.weights)

    def slots(self, seed: int = 0) -> Arrays:
        """Returns random states for every slot."""
        return {name: normal(SLOTS, *state.shape, seed=seed) for name, state in self.states.items()}

    def on_cpu(self, slots: Arrays, steps: Sequence[tuple[Batch, Arrays]]) -> tuple[list[Arrays], Arrays]:
        """Returns the outputs of each step, and the states after the last."""
        slots = {name: array.copy() for name, array in slots.items()}
        outputs = []
        for batch, inputs in steps:
            reference = Reference(self.weights, slots, batch)
            outputs.append(self.says(reference, named(self.weights), self.states, **inputs))
        return outputs, slots

    def record(
        self, device: Device, inputs: Arrays, rows: int = ROWS, tuning: Tuning | None = None
    ) -> tuple[Plan, Scratch, dict[str, Slice]]:
        """Returns the plan, its scratch memory and its states."""
        scratch = Scratch(device)
        buffers = {
            name: device.buffer(SLOTS * int(np.prod(state.shape)) * 4, "states") for name, state in self.states.items()
        }
        slices = {name: Slice(buffer, 0, buffer.nbytes) for name, buffer in buffers.items()}
        recorder = Recorder(
            device,
            self.load(device),
            rows,
            scratch,
            tuning or default_tuning(device.capabilities),
            states=slices,
            max_segments=SEGMENTS,
            single=self.single,
        )
        values = {name: recorder.input(name, array.dtype, (rows, *array.shape[1:])) for name, array in inputs.items()}
        return recorder.finish(self.says(recorder, named(self.weights), self.states, **values)), scratch, slices

    def on_gpu(
        self,
        device: Device,
        slots: Arrays,
        steps: Sequence[tuple[Batch, Arrays]],
        rows: int = ROWS,
        tuning: Tuning | None = None,
    ) -> tuple[list[Arrays], Arrays]:
        """Returns the same as `on_cpu`, over poisoned memory. Memory outside the step must not change."""
        plan, scratch, slices = self.record(device, steps[0][1], rows, tuning)
        for name, array in slots.items():
            device.write(slices[name].buffer, array)
        outputs = []
        for batch, inputs in steps:
            for buffer in scratch.buffers:
                device.write(buffer, np.full(buffer.nbytes // 4, POISON, np.uint32))
            plan.run(batch.rows, inputs | batch.arrays(), len(batch.segments), len(batch.outputs))
            counts = {
                name: batch.rows if plan.outputs[name].shape[0] == rows else len(batch.outputs) for name in plan.outputs
            }
            outputs.append({name: plan.read(name, count) for name, count in counts.items()})
            for name, count in counts.items():
                beyond = plan.read(name, plan.outputs[name].shape[0])[count:]
                assert np.all(beyond.view(np.uint32) == POISON), f"{name}: wrote rows that this step does not have"
        after = {
            name: np.frombuffer(device.read(slices[name].buffer), np.float32).reshape(array.shape)
            for name, array in slots.items()
        }
        return outputs, after

    def assert_same(self, device: Device, steps: Sequence[tuple[Batch, Arrays]], **how: Any) -> None:
        """Checks that outputs and states of both interpreters agree, and that other slots do not change."""
        slots = self.slots()
        expected, expected_after = self.on_cpu(slots, steps)
        got, after = self.on_gpu(device, slots, steps, **how)
        for step, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
            for name in theirs:
                np.testing.assert_allclose(
                    mine[name], theirs[name], self.tolerance, self.tolerance, err_msg=f"{name}, step {step}"
                )
        idle = sorted(set(range(SLOTS)) - {s.slot for batch, _ in steps for s in batch.segments})
        for name, array in slots.items():
            np.testing.assert_allclose(after[name], expected_after[name], self.tolerance, self.tolerance, err_msg=name)
            assert np.array_equal(after[name][idle], array[idle]), f"{name}: touched a slot of no sequence"

    def assert_same_in_pieces(self, device: Device, inputs: Arrays, edges: Sequence[int], **how: Any) -> None:
        """Checks that steps that end at these rows of a sequence equal one step, to the bit."""
        [whole], after_whole = self.on_gpu(device, self.slots(), [(batch_of([(3, 0, edges[-1])]), inputs)], **how)
        steps = [(batch_of([(3, a, b - a)]), part(inputs, slice(a, b))) for a, b in itertools.pairwise(edges)]
        pieces, after = self.on_gpu(device, self.slots(seed=9), steps, **how)
        for name in whole:
            assert np.array_equal(np.concatenate([piece[name] for piece in pieces]), whole[name])
        for name in after:
            assert np.array_equal(after[name][3], after_whole[name][3])

    def assert_nan_stays_apart(self, device: Device, inputs: Arrays, **how: Any) -> None:
        """Checks that a sequence of NaN, between two others, does not change these."""
        count = (len(next(iter(inputs.values()))) - 9) // 2
        batch, slots, bad = batch_of([(3, 1, count), (2, 1, 9), (4, 0, count)]), self.slots(), range(count, count + 9)
        sick_inputs, sick_slots = ({n: array.copy() for n, array in some.items()} for some in (inputs, slots))
        for array in sick_inputs.values():
            array[bad] = np.nan
        for array in sick_slots.values():
            array[[2, 4]] = np.nan  # sequence 4 begins, so it does not read its state
        [healthy], after_healthy = self.on_gpu(device, slots, [(batch, inputs)], **how)
        [sick], after_sick = self.on_gpu(device, sick_slots, [(batch, sick_inputs)], **how)
        for name in healthy:
            assert np.array_equal(np.delete(sick[name], bad, 0), np.delete(healthy[name], bad, 0))
        for name in after_sick:
            assert np.array_equal(np.delete(after_sick[name], 2, 0), np.delete(after_healthy[name], 2, 0))

    def assert_reads_one_state_and_writes_another(self, device: Device, inputs: Arrays) -> None:
        """Checks that the states that a step reads stay as they are if it writes other ones."""
        slots, batch = self.slots(), batch_of([(3, 1, 31), (2, 1, len(next(iter(inputs.values()))) - 31)])
        apart = batch.placed(states={3: (3, 6), 2: (2, 0)})
        [there], after_there = self.on_gpu(device, slots, [(batch, inputs)])
        [other], after_other = self.on_gpu(device, slots, [(apart, inputs)])
        _, on_cpu = self.on_cpu(slots, [(apart, inputs)])
        for name in there:
            assert np.array_equal(other[name], there[name])
        for name, array in slots.items():
            assert np.array_equal(after_other[name][[6, 0]], after_there[name][[3, 2]])
            assert np.array_equal(after_other[name][[1, 2, 3, 4, 5]], array[[1, 2, 3, 4, 5]])
            np.testing.assert_allclose(on_cpu[name], after_other[name], self.tolerance, self.tolerance)


class PackedCase(Case):
    """A case with some matrices in Q8_0, for integer kernels."""

    def __init__(self, says: Says, weights: Arrays, states: Sequence[State], packed: Sequence[str]) -> None:
        if packed:
            self.tolerance = 2e-3  # rows are rounded to 16 bits, three times one after another
        fmt = BY_NAME["Q8_0"]
        shapes = {name: weights[name].shape for name in packed}
        self.raw = {name: mild_rows(fmt, *shape, seed=len(name), size=0.002) for name, shape in shapes.items()}
        floats = {name: dequantise_rows(fmt, raw).reshape(shapes[name]) for name, raw in self.raw.items()}
        super().__init__(says, weights | floats, states)

    def load(self, device: Device) -> Weights:
        weights = upload_weights(device, {name: w for name, w in self.weights.items() if name not in self.raw})
        for name, raw in self.raw.items():
            weights.add(name, upload_tensor(device, BY_NAME["Q8_0"], raw, self.weights[name].shape))
        return weights


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def part(inputs: Arrays, rows: slice) -> Arrays:
    return {name: array[rows] for name, array in inputs.items()}


def test_a_batch_lays_its_sequences_end_to_end():
    batch = Batch.of([(3, 0, [7, 8, 9]), (0, 5, [1]), (6, 2, [4, 4])])
    arrays = batch.arrays()
    assert batch.rows == 6
    assert arrays["ids"].tolist() == [7, 8, 9, 1, 4, 4]
    assert arrays["segments"][:, :6].tolist() == [[0, 3, 0, 3, 3, 0], [3, 1, 5, 0, 0, 0], [4, 2, 2, 6, 6, 0]]
    assert arrays["row_segment"].tolist() == [0, 0, 0, 1, 2, 2]
    assert arrays["output_rows"].tolist() == [2, 3, 5]
    assert Batch.of([(0, 0, [1, 2])], every=True).outputs == (0, 1)


# ---------------------------------------------------------------- norm, shift, mix


def shift_case(width: int, mixes: int) -> Case:
    weights = {"weight": normal(width) + 1, "bias": normal(width, seed=1), "mix": normal(mixes, width, seed=2)}

    def says(g, w, s, x):
        ys = g.norm_shift_mix(x, w["weight"], w["bias"], 1e-5, w["mix"], s["shift"], rows=mixes == 1)
        return {f"y{i}": y for i, y in enumerate(ys)}

    return Case(says, weights, [State("shift", (width,))])


def shift_inputs(rows: int, width: int) -> Arrays:
    return {"x": normal(rows, width, seed=3) * 3 + 1}


@pytest.mark.parametrize("mixes", [1, 5, 6])
@pytest.mark.parametrize("width", [64, 320])
def test_shift_equals_the_reference_over_ragged_segments(device, width, mixes):
    batch = batch_of(RAGGED)
    for tuning in tunings(device).values():
        shift_case(width, mixes).assert_same(device, [(batch, shift_inputs(batch.rows, width))], tuning=tuning)


@pytest.mark.parametrize("rows", LENGTHS)
def test_shift_equals_the_reference_over_one_segment(device, rows):
    for start in (0, 1):
        steps = [(batch_of([(2, start, rows)]), shift_inputs(rows, 96))]
        shift_case(96, 2).assert_same(device, steps)


# ---------------------------------------------------------------- time mix


def mix_case(heads: int, size: int, *, gate: bool = True, first: bool = False) -> Case:
    width = heads * size
    vectors = normal(5, width)
    vectors[1] = np.abs(vectors[1])  # k_a, from 0 to 1 or a bit more
    without = set() if gate else {"gate"}
    without |= {"v_gate", "v_first"} if first else set()

    def says(g, parameters, states, /, **x):
        taken = {name: value for name, value in x.items() if name not in without}
        return {"y": g.time_mix(Mixed(**taken), parameters["vectors"], 64e-5, states["wkv"])}

    return Case(says, {"vectors": vectors}, [State("wkv", (heads, size, size))])


def mix_inputs(rows: int, heads: int, size: int, seed: int = 0) -> Arrays:
    """Returns inputs as in a model: decays near 1, rates between 0 and 1."""
    shape = rows, heads * size
    names = "r", "k", "v", "gate", "v_first"
    rates = {"a": 1.0, "v_gate": 1.0, "w": -2.0}
    inputs = {name: normal(*shape, seed=seed + 10 + i) for i, name in enumerate(names)}
    for i, (name, shift) in enumerate(rates.items()):
        inputs[name] = 1 / (1 + np.exp(-normal(*shape, seed=seed + 20 + i) - np.float32(shift)))
    inputs["w"] = np.exp(np.float32(-0.606531) * inputs["w"])
    return inputs


@pytest.mark.covering(1)
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("heads", [1, 2, 3, 5])
def test_time_mix_equals_the_reference_over_ragged_segments(device, heads, size):
    batch = batch_of(RAGGED)
    mix_case(heads, size).assert_same(device, [(batch, mix_inputs(batch.rows, heads, size))])


@pytest.mark.parametrize("rows", LENGTHS)
def test_time_mix_equals_the_reference_over_one_segment(device, rows):
    for start in (0, 1):
        mix_case(2, 64).assert_same(device, [(batch_of([(4, start, rows)]), mix_inputs(rows, 2, 64))])


@pytest.mark.parametrize("size", [64, 128])
def test_time_mix_is_the_same_in_every_tuning(device, size):
    batch = batch_of(RAGGED)
    for tuning in tunings(device).values():
        mix_case(2, size).assert_same(device, [(batch, mix_inputs(batch.rows, 2, size))], tuning=tuning)


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_time_mix_does_without_a_gate_and_without_a_first_value(device, gate, first):
    batch = batch_of([(1, 0, 9), (0, 3, 1)])
    mix_case(2, 64, gate=gate, first=first).assert_same(device, [(batch, mix_inputs(batch.rows, 2, 64))])


def test_time_mix_of_zero_keys_is_finite(device):
    inputs = mix_inputs(9, 2, 64)
    inputs["k"][:] = 0
    mix_case(2, 64).assert_same(device, [(batch_of([(1, 0, 9)]), inputs)])


def test_time_mix_stays_finite_and_near_the_reference_over_4096_tokens(device):
    steps = [(batch_of([(2, 1000 * i, n)]), mix_inputs(n, 2, 64, seed=i)) for i, n in enumerate((1000,) * 4 + (96,))]
    mix_case(2, 64).assert_same(device, steps)


# ---------------------------------------------------------------- both


@pytest.mark.parametrize("kind", ["shift", "mix"])
def test_token_by_token_steps_equal_one_at_once_to_the_bit(device, kind):
    tuning = default_tuning(device.capabilities).changed(chunk_tokens=0)
    case = shift_case(128, 6) if kind == "shift" else mix_case(2, 64)
    inputs = shift_inputs(600, 128) if kind == "shift" else mix_inputs(600, 2, 64)
    case.assert_same_in_pieces(device, inputs, [0, 1, 2, 33, 34, 290, 547, 600], tuning=tuning)


@pytest.mark.parametrize("kind", ["shift", "mix"])
def test_a_sequence_of_nan_touches_no_other(device, kind):
    case = shift_case(128, 6) if kind == "shift" else mix_case(2, 64)
    case.assert_nan_stays_apart(device, shift_inputs(89, 128) if kind == "shift" else mix_inputs(89, 2, 64))


@pytest.mark.parametrize("kind", ["shift", "mix"])
def test_a_step_leaves_the_state_that_it_reads_whole_where_it_writes_another(device, kind):
    case = shift_case(128, 6) if kind == "shift" else mix_case(2, 64)
    inputs = shift_inputs(40, 128) if kind == "shift" else mix_inputs(40, 2, 64)
    case.assert_reads_one_state_and_writes_another(device, inputs)


@pytest.mark.parametrize("kind", ["shift", "mix"])
def test_a_new_sequence_does_not_see_the_earlier_state_of_its_slot(device, kind):
    case = shift_case(128, 6) if kind == "shift" else mix_case(2, 64)
    inputs = shift_inputs(5, 128) if kind == "shift" else mix_inputs(5, 2, 64)
    nan = {name: np.full_like(array, np.nan) for name, array in case.slots().items()}
    steps = [(batch_of([(3, 0, 5)]), inputs)]
    [clean], _ = case.on_gpu(device, case.slots(), steps)
    [dirty], after = case.on_gpu(device, nan, steps)
    for name in clean:
        assert np.array_equal(dirty[name], clean[name])
    assert all(np.isfinite(array[3]).all() for array in after.values())


# ---------------------------------------------------------------- pick


@pytest.mark.parametrize("width", [96, 33])
def test_ops_after_pick_run_over_the_picked_rows(device, width):
    weights = {"weight": normal(width), "w": normal(33, width)}

    def says(g, w, _, x):
        x = g.pick(g.rms_norm(x, w["weight"], 1e-5))
        return {"x": x, "y": g.linear(g.rms_norm(x, w["weight"], 1e-5), w["w"])}

    case = Case(says, weights, [])
    for outputs in [(11,), (11, 3, 0), (0, 1, 2, 3, 4)]:
        case.assert_same(device, [(batch_of([(0, 0, 12)], outputs), {"x": normal(12, width)})], rows=20)


# ---------------------------------------------------------------- norm, shift and mix ahead of products


def ahead_case(width: int, says: Callable[..., Any]) -> Case:
    """Returns products of mixed rows. The last product adds x, as in a layer."""
    weights = {"weight": normal(width) + 1, "bias": normal(width, seed=1), "mix": normal(2, width, seed=2)}
    halves = {"half": normal(80, width, seed=7).astype(np.float16)}
    weights |= halves | {"first": normal(width, width, seed=5) / 8, "second": normal(width, width, seed=6) / 8}

    def layer(g, w, s, x):
        with g.layer(0):
            mixed = g.norm_shift_mix(x, w["weight"], w["bias"], 1e-5, w["mix"], s["shift"])
            return says(g, w, x, *mixed)

    return Case(layer, weights, [State("shift", (width,))])


def mixed_by_all(g, w, x, a, b):
    first, second, half = g.linears([a, b, a], [w["first"], w["second"], w["half"]])
    return {"first": first, "half": half, "y": g.linear(second, w["first"], add=x)}


def mixed_by_some(g, w, x, a, b):
    """A model in which a product reads one mixed row, and an elementwise op the other."""
    first = g.linear(a, w["first"])
    return {"first": first, "b": g.activate(b, "relu2"), "y": g.linear(first, w["second"], add=x)}


def never_added(g, w, _, a, b):
    return dict(zip(("first", "second"), g.linears([a, b], [w["first"], w["second"]]), strict=True))


def added_at_once(g, w, x, a, b):
    """A model in which the product that adds x, and would save the state, also reads a mixed row."""
    return {"first": g.linear(b, w["first"]), "y": g.linear(a, w["second"], add=x)}


def moved(steps: Sequence[tuple[int, int, int]]) -> list[tuple[Batch, Arrays]]:
    """Returns steps of one row, each with its position, and the states that it reads and writes."""
    batches = [
        batch_of([(written, start, 1)]).placed(states={written: (read, written)}) for start, read, written in steps
    ]
    return [(batch, {"x": normal(1, 192, seed=40 + i) * 3 + 1}) for i, batch in enumerate(batches)]


# Models, and their separate norms: products norm only if all readers are products and another one adds x.
ASKED = ((mixed_by_all, 0), (mixed_by_some, 1), (never_added, 1), (added_at_once, 1))


MIXERS = [kind for kind, kernel in KERNEL_OF.items() if kernel.fuses_norm and not kernel.integers_only]
# One configuration of each kernel, and of the first one with subgroups, too.
FIRST_MIXERS = [*{KERNEL_OF[kind].name: kind for kind in reversed(MIXERS)}.values(), "gemv_subgroup"]
every_mixer = pytest.mark.parametrize(
    "mixers", [FIRST_MIXERS, pytest.param(MIXERS, marks=pytest.mark.slow)], ids=["first", "all"]
)


@every_mixer
@pytest.mark.parametrize(("says", "norms"), ASKED)
def test_norms_and_token_shifts_in_products_equal_the_reference(device, mixers, says, norms):
    steps = moved([(0, 3, 3), (1, 3, 3), (2, 3, 5), (3, 5, 0), (9, 6, 6)])
    case = ahead_case(192, says)
    for tuning in mixing(device, mixers):
        case.assert_same(device, steps, rows=1, tuning=tuning)
        plan, _, _ = case.record(device, {"x": normal(1, 192)}, 1, tuning)
        assert sum("norm_shift_mix" in dispatch.name for dispatch in plan.dispatches) == norms


@pytest.mark.parametrize(("says", "norms"), ASKED)
def test_products_norm_and_mix_rows_of_several_sequences(fast_device, says, norms):
    case = ahead_case(192, says)
    case.single = True
    x = {"x": normal(3, 192, seed=40) * 3 + 1}
    three = batch_of([(3, 0, 1), (5, 3, 1), (6, 2, 1)]).placed(states={3: (3, 3), 5: (2, 5), 6: (6, 6)})
    two = batch_of([(5, 4, 1), (3, 1, 1)])
    tuning = mixing(fast_device, ["gemv"])[0].only(gemv(32, 8, 2, 2)).changed(token_shift_rows=3)
    case.assert_same(fast_device, [(three, x), (two, part(x, slice(1, 3)))], rows=3, tuning=tuning)
    plan, _, _ = case.record(fast_device, x, 3, tuning)
    assert sum("norm_shift_mix" in dispatch.name for dispatch in plan.dispatches) == norms


def mixing(device: Device, kinds: Sequence[str] = FIRST_MIXERS) -> list[Tuning]:
    """Returns each kernel that norms while reading, in these configurations."""
    plain, shapes = default_tuning(device.capabilities), gemm_configs(device)
    exact = [shapes[name] for name in kinds if name in shapes and shapes[name].activations != "int8"]
    return [plain.only(config).changed(fuses_token_shift=True) for config in exact]


def two_halves(g, w, s, x):
    """Products add to a row, which is normed afterwards."""
    with g.layer(0):
        a, b = g.norm_shift_mix(x, w["weight"], w["bias"], 1e-5, w["mix"], s["one"])
        early, half = g.linears([a, b], [w["first"], w["half"]])
        x = g.linear(early, w["second"], add=x)
        a, b = g.norm_shift_mix(x, w["bias"], w["weight"], 1e-5, w["mix"], s["two"])
        first, late = g.linears([a, b], [w["second"], w["half"]])
        return {"half": half, "first": first, "late": late, "y": g.linear(first, w["first"], add=x)}


@every_mixer
@pytest.mark.parametrize("packed", [(), ("first", "second")], ids=["floats", "integers"])
def test_products_that_add_give_the_next_norm_its_row_statistics(device, mixers, packed):
    weights = ahead_case(192, two_halves).weights
    case = PackedCase(two_halves, weights, [State("one", (192,)), State("two", (192,))], packed)
    steps = moved([(0, 3, 3), (1, 3, 5), (7, 6, 6)])
    fused, kernels = [], set()
    for tuning in mixing(device, mixers):
        case.assert_same(device, steps, rows=1, tuning=tuning)
        plan, _, _ = case.record(device, steps[0][1], 1, tuning)
        fused.append(any("load" in dispatch.pipeline.name for dispatch in plan.dispatches))
        kernels |= {kernel for dispatch in plan.dispatches for kernel in dispatch.name.split() if "gem" in kernel}
    can = device.capabilities
    assert any(fused) == (can.subgroup and can.max_storage_buffers >= 10)
    assert ("gemv_single_pass.q8_0" in kernels) == (can.subgroup and bool(packed))
