"""Tries whether a driver's matrix units compute correctly, in a separate process, as a faulty driver may crash.

    python -m rwkv_gpu.ops.matrix_units_trial INDEX      the index of an adapter, as `rwkv-gpu devices` lists them

The exit status is 0 if all results are right. If only kernels with a separate verdict are wrong, it is `PARTLY_RIGHT`
plus a bit for each of them, else 1. The output lists the errors. Sizes exceed one tile in every direction, rows differ
by twelve orders of magnitude, and everything is computed several times: staging through workgroup memory is formally a
race in naga 29, which does not mark pointers of cooperative matrices as NonPrivate.
"""

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gguf.formats import FORMATS, Format
from ..gguf.planes import dequantise_rows
from ..gpu.adapters import list_adapters
from ..gpu.device import Buffer, Device
from ..gpu.plan import Slice
from ..gpu.weights import Weights, upload_tensor, upload_weights
from ..kernels.defaults import default_tuning
from ..kernels.gemm_config import UNLIMITED
from .batch import Batch
from .driver_verdict import APART, PARTLY_RIGHT
from .memory import Caches, Scratch
from .recorder import Recorder, finish_together
from .reference import Reference
from .values import Value
from .vocabulary import PAGE, Attention, Cache, Gating, LatentAttention, Rope, State, StateSpace, Weight

Array = npt.NDArray[np.float32]
REPEATS = 3
# Tolerance relative to the largest result. Rounding is 1/2048 per factor; a wrong layout or a lost fragment exceeds it.
TOLERANCE = 4e-3

BLOCK_SCALES = {"Q4_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,)}  # offsets of the scales in a block
SIZES = ((150, 200, 512), (70, 90, 256))  # rows of x, rows and columns of W


@dataclass(frozen=True)
class WrongResult:
    """A wrong result of a device, and its error."""

    what: str
    off: float

    def __str__(self) -> str:
        return f"{self.what} {'is not a number' if np.isnan(self.off) else f'is off by {self.off:.0%}'}"


@dataclass(frozen=True)
class Trial:
    """A recorded step with its expected results. `state` is a buffer with its contents before and after."""

    what: str
    recorder: Recorder
    y: Value
    count: int  # rows
    inputs: Mapping[str, npt.NDArray[Any]]
    expected: Array
    segments: int = 0
    state: tuple[Buffer, Array, Array] | None = None


def wrong_answers(device: Device) -> Iterator[WrongResult]:
    """Yields all wrong results of a device with matrix units, except of kernels with a separate verdict."""
    yield from _wrong(_products(device), _batches(device), _experts(device), _heads(device), _attention(device))


def wrong_apart(device: Device, name: str) -> Iterator[WrongResult]:
    """Yields wrong results of one kernel of `APART`, which can be disabled separately."""
    trials = {"latents_on_matrix_units": _latents, "state_space_on_matrix_units": _state_space}
    yield from _wrong(trials[name](device))


def _wrong(*trials: Iterator[Trial]) -> Iterator[WrongResult]:
    for what, computed, expected in _answers(list(itertools.chain(*trials))):
        scale = np.abs(expected).max(axis=-1, keepdims=True)
        off = float((np.abs(computed - expected) / scale).max())
        if not off < TOLERANCE:
            yield WrongResult(what, off)


def _answers(trials: Sequence[Trial]) -> Iterator[tuple[str, Array, Array]]:
    """Runs trials in order, as each may continue the one before. All shaders compile in parallel."""
    plans = finish_together([(one.recorder, {"y": one.y}) for one in trials])
    for one, plan in zip(trials, plans, strict=True):
        for _ in range(REPEATS):
            if one.state:
                plan.device.write(one.state[0], one.state[1])
            plan.run(one.count, one.inputs, one.segments)
            yield one.what, plan.read("y", one.count).reshape(one.expected.shape), one.expected
            if one.state:
                buffer, _, after = one.state
                yield (
                    f"the state of {one.what}",
                    np.frombuffer(plan.device.read(buffer), np.float32).reshape(after.shape),
                    after,
                )


def _products(device: Device) -> Iterator[Trial]:
    """Products of prompts by the kernels of the default tuning, with and without split columns."""
    rng, table = np.random.default_rng(0), default_tuning(device.capabilities).gemm_table
    tiles = {
        replace(config, fill=0, at_a_time=0)
        for limits, config in table
        if config.fragment and limits.max_rows == UNLIMITED
    }
    formats = {fmt.name: fmt for fmt in FORMATS.values()}
    for name in ("F16", *BLOCK_SCALES):
        for count, out, width in SIZES:
            raw = _random_blocks(formats[name], out, width, rng)
            w = dequantise_rows(formats[name], raw)
            x = rng.standard_normal((count, width), np.float32) * 10.0 ** rng.integers(-6, 6, (count, 1))
            weights = Weights(device)
            weights.add("w", upload_tensor(device, formats[name], raw, (out, width)))
            for tile, fill in itertools.product(tiles, (0, 40)):
                tuning = default_tuning(device.capabilities).only(replace(tile, fill=fill))
                recorder = Recorder(device, weights, count, Scratch(device), tuning)
                y = recorder.linear(recorder.input("x", np.float32, x.shape), Weight("w", w.shape))
                yield Trial(f"a product of {name}", recorder, y, count, {"x": x}, x @ w.T)


def _batches(device: Device) -> Iterator[Trial]:
    """Products at batch sizes, by the kernels of the default tuning."""
    rng, fmt = np.random.default_rng(3), next(fmt for fmt in FORMATS.values() if fmt.name == "Q4_K")
    out, width = 200, 1280
    raw = _random_blocks(fmt, out, width, rng)
    w = dequantise_rows(fmt, raw)
    weights = Weights(device)
    weights.add("w", upload_tensor(device, fmt, raw, (out, width)))
    table = default_tuning(device.capabilities).gemm_table
    for config in dict.fromkeys(config for limits, config in table if config.fragment and limits.max_rows < UNLIMITED):
        count = config.tb - 3
        x = rng.standard_normal((count, width), np.float32) * 10.0 ** rng.integers(-6, 6, (count, 1))
        tuning = default_tuning(device.capabilities).only(config)
        recorder = Recorder(device, weights, count, Scratch(device), tuning)
        y = recorder.linear(recorder.input("x", np.float32, x.shape), Weight("w", w.shape))
        yield Trial(f"a product of {count} rows", recorder, y, count, {"x": x}, x @ w.T)


def _random_blocks(fmt: Format, out: int, width: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    raw: npt.NDArray[np.uint8]
    if fmt.name == "F16":
        raw = (rng.standard_normal((out, width)) / 8).astype(np.float16).view(np.uint8)
        return raw
    raw = rng.integers(0, 256, (out, fmt.row_bytes(width)), np.uint8)
    blocks = raw.reshape(-1, fmt.nbytes)
    for at in BLOCK_SCALES[fmt.name]:
        blocks[:, at : at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    return raw


def _experts(device: Device) -> Iterator[Trial]:
    """Products with experts, with more choices of an expert than fit in a tile of the default tuning."""
    rng = np.random.default_rng(1)
    experts, inner, width, used = 4, 64, 128, 2

    def normal(*shape: int) -> npt.NDArray[np.float16]:
        found: npt.NDArray[np.float16] = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float16)
        return found

    arrays: dict[str, npt.NDArray[np.float16] | Array] = {
        "router": normal(experts, width).astype(np.float32),
        "gate": normal(experts, inner, width),
        "up": normal(experts, inner, width),
        "down": normal(experts, width, inner),
    }
    weights = {name: Weight(name, array.shape) for name, array in arrays.items()}

    def mixture(g: Recorder | Reference, x: object) -> object:
        routing = g.route(x, weights["router"], Gating(used, normalise=True))  # type: ignore[arg-type]
        h = g.expert_glu(x, weights["gate"], weights["up"], routing, "silu")  # type: ignore[arg-type]
        return g.expert_sum(h, weights["down"], routing)  # type: ignore[arg-type]

    reference = Reference({name: array.astype(np.float32) for name, array in arrays.items()})
    uploaded, tuning = upload_weights(device, arrays), default_tuning(device.capabilities)
    tiles = {
        config: limits.max_choices
        for limits, config in tuning.expert_table
        if config.fragment and not limits.heads and not limits.floats
    }
    for config, most in tiles.items():
        count = int(min(most, config.tb + 13)) * experts // used
        x = rng.standard_normal((count, width), np.float32)
        recorder = Recorder(device, uploaded, count, Scratch(device), tuning)
        y = mixture(recorder, recorder.input("x", np.float32, x.shape))
        what, expected = f"a mixture of experts, {config.tb} choices a tile", np.asarray(mixture(reference, x))
        yield Trial(what, recorder, y, count, {"x": x}, expected)  # type: ignore[arg-type]


def _heads(device: Device) -> Iterator[Trial]:
    """Per-head products at batch sizes, with more rows than fit in a tile."""
    rng, heads, out, width = np.random.default_rng(6), 3, 70, 320
    w = (rng.standard_normal((heads, out, width)) / 16).astype(np.float16)
    tuning = default_tuning(device.capabilities)
    weights, weight = upload_weights(device, {"w": w}), Weight("w", w.shape)
    for config in dict.fromkeys(config for limits, config in tuning.expert_table if limits.heads and config.fragment):
        count = config.tb + 3
        x = rng.standard_normal((count, heads * width), np.float32)
        recorder = Recorder(device, weights, count, Scratch(device), tuning.only_experts(config))
        y = recorder.head_linear(recorder.input("x", np.float32, x.shape), weight)
        expected = np.asarray(Reference({"w": w.astype(np.float32)}).head_linear(x, weight))
        yield Trial(f"a product by head of {count} rows", recorder, y, count, {"x": x}, expected)


def _attention(device: Device) -> Iterator[Trial]:
    """Attention of two prompts over several pages, their continuation, and decode."""
    heads, kv_heads, size, pages = 8, 2, 64, 4
    rng = np.random.default_rng(2)
    cache, how = Cache("kv", kv_heads, size), Attention(heads, Rope("neox", size, 1e4), size**-0.5)
    shape = 2 * pages, PAGE, kv_heads, size
    stored = np.zeros(shape, np.float16), np.zeros(shape, np.float16)
    buffers = [device.upload(one, "kv") for one in stored]
    keys, values = (Slice(buffer, 0, buffer.nbytes) for buffer in buffers)
    caches = Caches({"kv": (keys, values)}, "f16", pages)
    tables = {slot: list(range(slot * pages, (slot + 1) * pages)) for slot in range(2)}
    scratch = Scratch(device)
    tuning = default_tuning(device.capabilities).changed(matrix_decode_positions=1, matrix_decode_sharing=1)
    for steps in ([(0, 0, 130), (1, 0, 40)], [(1, 40, 75), (0, 130, 50)], [(0, 180, 1), (1, 115, 1)]):
        batch = Batch.of([(slot, start, [0] * count) for slot, start, count in steps]).placed(tables)
        widths = {"q": heads, "k": kv_heads, "v": kv_heads}
        x = {name: rng.standard_normal((batch.rows, n * size), np.float32) for name, n in widths.items()}
        recorder = Recorder(
            device, Weights(device), batch.rows, scratch, tuning, max_segments=2, caches=caches, single=batch.single,
        )  # fmt: skip
        given = [recorder.input(name, np.float32, array.shape) for name, array in x.items()]
        y = recorder.attention(given[0], given[1], given[2], cache, how)
        reference = Reference({}, {}, batch, {"kv": stored})
        expected = np.asarray(reference.attention(x["q"], x["k"], x["v"], cache, how))
        yield Trial("attention", recorder, y, batch.rows, x | batch.arrays(), expected, len(batch.segments))


def _latents(device: Device) -> Iterator[Trial]:
    """Latent attention of two prompts over several pages, and decode, with the sizes of GLM-4.7-Flash."""
    rng, side, pages = np.random.default_rng(4), device.capabilities.fragment, 4
    heads, latent, rotary = side + 4, 32 * side, 4 * side
    cache = Cache("kv", 1, latent + rotary, latent)
    arrays = {"norm": np.ones(latent, np.float32)}
    how = LatentAttention(heads, Rope("normal", rotary, 1e4), cache.size**-0.5, Weight("norm", (latent,)), 1e-6)
    stored = np.zeros((2 * pages, PAGE, 1, cache.size), np.float16)
    buffer = device.upload(stored, "kv")
    caches = Caches({"kv": (Slice(buffer, 0, buffer.nbytes),)}, "f16", pages)
    tables = {slot: list(range(slot * pages, (slot + 1) * pages)) for slot in range(2)}
    weights, scratch = upload_weights(device, arrays), Scratch(device)
    for steps in ([(0, 0, 130), (1, 0, 40)], [(0, 130, 1), (1, 40, 1)]):
        batch = Batch.of([(slot, start, [0] * count) for slot, start, count in steps]).placed(tables)
        widths = {"q": heads * latent, "q_rope": heads * rotary, "z": cache.size}
        x = {name: rng.standard_normal((batch.rows, width), np.float32) for name, width in widths.items()}
        recorder = Recorder(
            device, weights, batch.rows, scratch, default_tuning(device.capabilities),
            max_segments=2, caches=caches, single=batch.single,
        )  # fmt: skip
        given = [recorder.input(name, np.float32, array.shape) for name, array in x.items()]
        y = recorder.latent_attention(given[0], given[1], given[2], cache, how)
        reference = Reference(arrays, {}, batch, {"kv": (stored,)})
        expected = np.asarray(reference.latent_attention(x["q"], x["q_rope"], x["z"], cache, how))
        what, inputs = "attention over latents", x | batch.arrays()
        yield Trial(what, recorder, y, batch.rows, inputs, expected, len(batch.segments))


def _state_space(device: Device) -> Iterator[Trial]:
    """Mamba-2 over prompts of two sequences and their continuation: results of rows, and final states."""
    heads, size, columns = 3, 32, 128
    rng = np.random.default_rng(5)
    arrays = {"bias": rng.standard_normal(heads, np.float32), "d": rng.standard_normal(heads, np.float32)}
    arrays["a"] = -np.abs(rng.standard_normal(heads, np.float32))
    how = StateSpace(*(Weight(name, (heads,)) for name in ("bias", "a", "d")))
    state, inner = State("ssm", (heads, size, columns)), heads * size
    weights, scratch = upload_weights(device, arrays), Scratch(device)
    for segments in ([(0, 0, 130), (1, 0, 40)], [(1, 40, 75), (0, 130, 50)]):
        batch = Batch.of([(slot, start, [0] * count) for slot, start, count in segments])
        widths = {"xbc": inner + 2 * columns, "projected": inner + heads}
        x = {name: rng.standard_normal((batch.rows, width), np.float32) for name, width in widths.items()}
        before = rng.standard_normal((2, *state.shape), np.float32)
        held = device.upload(before, "states")
        recorder = Recorder(
            device, weights, batch.rows, scratch, default_tuning(device.capabilities),
            states={"ssm": Slice(held, 0, held.nbytes)}, max_segments=2, single=False,
        )  # fmt: skip
        given = [recorder.input(name, np.float32, array.shape) for name, array in x.items()]
        y, after = recorder.ssd(given[0], given[1], how, state, groups=1), before.copy()
        expected = np.asarray(
            Reference(arrays, {"ssm": after}, batch).ssd(x["xbc"], x["projected"], how, state, groups=1)
        )
        yield Trial(
            "Mamba-2 by chunks", recorder, y, batch.rows, x | batch.arrays(),
            expected.reshape(1, -1),  # gates make single rows small
            len(batch.segments), (held, before, after),
        )  # fmt: skip


def main(index: str) -> int:
    """The exit status of the trial."""
    with Device(list_adapters()[int(index)], matrix_units=True) as device:
        if found := next(wrong_answers(device), None):
            print(found)
            return 1
        apart = {name: next(wrong_apart(device, name), None) for name in APART}
    for wrong in filter(None, apart.values()):
        print(wrong)
    bits = sum(1 << bit for bit, wrong in enumerate(apart.values()) if wrong)
    return PARTLY_RIGHT + bits if bits else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
