"""A time mix with one row per sequence, fused with the second halves of LoRAs."""

from collections.abc import Mapping

import numpy as np
import pytest

from rwkv_gpu.gguf.formats import Format
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.weights import BY_NAME, Weights, upload_together
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.tuning import Tuning
from rwkv_gpu.measure.trials import Stored
from rwkv_gpu.ops.vocabulary import Mixed, State
from tests.ops.test_recurrent import Case, batch_of, mix_case, mix_inputs, normal

SOME = ((3, 7, 1), (0, 5, 1), (6, 0, 1), (1, 9, 1))  # (slot, start, tokens), slots out of order
OUTER = {"w": "decay", "a": "sigmoid", "gate": "none", "v_gate": "sigmoid"}
RANKS = (96, 72, 320, 32)
FLOATS = ("F32", "F16", "BF16")


def one(device: Device, rows: int = 2, lora_fusion_rows: int = 4) -> Tuning:
    """Returns a tuning whose lanes share rows of a state with subgroups; without them, the kernel for prompts."""
    lanes_per_row = 8 if device.capabilities.subgroup else 0
    return default_tuning(device.capabilities).changed(
        state_lanes_per_row=lanes_per_row,
        state_rows_per_lane=rows,
        lora_rows=lora_fusion_rows,
    )


class LoraCase(Case):
    """LoRAs and a time mix. The matrices of a format are in one buffer, as in a model."""

    single = True

    def __init__(
        self, formats: Mapping[str, Format], *, heads: int = 3, size: int = 64, ranks: tuple[int, ...] = RANKS
    ) -> None:
        width = heads * size
        self.stored = {
            f"{which}{half}": Stored.of(normal(*shape, seed=i) / np.sqrt(np.float32(shape[-1])))
            for i, (which, rank) in enumerate(zip(formats, ranks, strict=False))
            for half, shape in ((1, (rank, width)), (2, (width, rank)))
        }
        for i, (which, fmt) in enumerate(formats.items()):
            rank = self.stored[f"{which}2"].shape[1]
            if fmt.block > 1:
                self.stored[f"{which}2"] = Stored.random(fmt, width, rank, seed=i)
            else:
                self.stored[f"{which}2"] = kept(self.stored[f"{which}2"].values, fmt)
        self.biased = [which for which in formats if which != "gate"]
        vectors = normal(5, width)
        vectors[1] = np.abs(vectors[1])
        self.stored |= {f"{which}0": Stored.of(normal(width, seed=5)) for which in self.biased}
        self.stored["vectors"] = Stored.of(vectors)
        self.formats = formats
        weights = {name: stored.values for name, stored in self.stored.items()}
        super().__init__(self.say, weights, [State("wkv", (heads, size, size))])

    def say(self, g, w, s, x, **inputs):
        lows = g.linears([x] * len(self.formats), [w[f"{which}1"] for which in self.formats])
        made = g.linears(
            lows,
            [w[f"{which}2"] for which in self.formats],
            then=[OUTER[which] for which in self.formats],
            bias=[w[f"{which}0"] if which in self.biased else None for which in self.formats],
        )
        if "v_gate" not in self.formats:
            inputs.pop("v_first")
        mixed = Mixed(**inputs, **dict(zip(self.formats, made, strict=True)))
        return {"y": g.time_mix(mixed, w["vectors"], 64e-5, s["wkv"])}

    def load(self, device: Device) -> Weights:
        return upload_together(device, {name: (one.format, one.raw, one.shape) for name, one in self.stored.items()})

    def inputs(self, rows: int) -> dict[str, np.ndarray]:
        heads, size, _ = self.states["wkv"].shape
        mixed = mix_inputs(rows, heads, size)
        return {"x": normal(rows, heads * size, seed=40)} | {name: mixed[name] for name in ("r", "k", "v", "v_first")}

    def names(self, device: Device, rows: int, tuning: Tuning) -> list[str]:
        """Returns the dispatches of its plan."""
        plan, _, _ = self.record(device, self.inputs(rows), rows, tuning)
        return [dispatch.pipeline.name for dispatch in plan.dispatches]


def kept(values: np.ndarray, fmt: Format) -> Stored:
    """Rounds floats to a float format."""
    if fmt.name == "BF16":
        halves = (values.view(np.uint32) >> 16).astype(np.uint16)
        return Stored(fmt, halves.view(np.uint8).reshape(len(values), -1), values.shape)
    return Stored.of(values.astype({"F32": np.float32, "F16": np.float16}[fmt.name]))


def alike(name: str, *, without: tuple[str, ...] = ()) -> dict[str, Format]:
    return {which: BY_NAME[name] for which in OUTER if which not in without}


@pytest.mark.parametrize("size", [16, 48, 64, 80, 128, 256])  # ARWKV has heads of any multiple of 16
@pytest.mark.parametrize("shared", [1, 4])
def test_a_row_for_each_sequence_equals_the_reference(device, size, shared):
    heads = 2 if size % 32 else 3  # the vectors of the case are stored as rows of a matrix, in runs of 32
    for gate, first in ((True, False), (False, True)):
        case = mix_case(heads, size, gate=gate, first=first)
        case.single = True
        for sequences in (SOME[:1], SOME, SOME[2:]):
            steps = [(batch_of(sequences), mix_inputs(len(sequences), heads, size, seed=i)) for i in range(2)]
            case.assert_same(device, steps, rows=1 if len(sequences) == 1 else 5, tuning=one(device, shared))


@pytest.mark.parametrize("name", [*FLOATS, "Q8_0"])
def test_loras_within_a_time_mix_equal_the_reference(device, name):
    tuning = one(device)
    for without in ((), ("v_gate",), ("gate", "v_gate")):
        case = LoraCase(alike(name, without=without), ranks=(96, 64, 320, 32))
        for rows in (1, 4):
            fused = "lora_gates" in case.names(device, rows, tuning)[-1]
            assert fused == (name in FLOATS and tuning.recurrence.state_lanes_per_row > 0), f"{rows} rows"
            steps = [(batch_of(SOME[:count]), case.inputs(count)) for count in {rows, rows - 1} - {0}]
            case.assert_same(device, steps, rows=rows, tuning=tuning)


@pytest.mark.parametrize("name", ["F32", "F16"])
def test_loras_of_any_rank_and_heads_of_128_are_computed_within_a_time_mix(device, name):
    for size, shared, ranks in ((64, 1, (4, 36, 100, 8)), (128, 2, (32, 32, 64, 32)), (64, 4, (8, 8, 8, 8))):
        case = LoraCase(alike(name), heads=2, size=size, ranks=ranks)
        tuning = one(device, shared)
        if tuning.recurrence.state_lanes_per_row:
            *before, last = case.names(device, 1, tuning)
            assert "lora_gates" in last and sum("linear" in name for name in before) == 1
        case.assert_same(device, [(batch_of(SOME[:1]), case.inputs(1))], rows=1, tuning=tuning)


def test_loras_have_a_dispatch_of_their_own_where_a_time_mix_cannot_compute_them(fast_device):
    mixed = alike("F16") | {"gate": BY_NAME["F32"]}
    odd, many = LoraCase(alike("F16"), ranks=(6, 7, 32, 32)), LoraCase(alike("F16"))
    for case, rows in ((LoraCase(mixed), 1), (LoraCase(alike("Q8_0"), ranks=(32,) * 4), 1), (odd, 1), (many, 5)):
        names = case.names(fast_device, rows, one(fast_device))
        assert ".gates." in names[-1] and sum("linear" in name for name in names) > 1
        steps = [(batch_of(SOME[:1]), case.inputs(1))]
        case.assert_same(fast_device, steps, rows=rows, tuning=one(fast_device))
