"""The ops of recurrent models recorded: what looks back in time, by segment."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..gpu.cost import ContextCost
from ..gpu.plan import Slice
from ..gpu.shader import Constant
from .integers import LAYING, IntegerRecorder
from .late import LOADS, Late
from .linear import HeldProducts
from .mixing import GRAIN, Mixing
from .values import ALIGN, Integers, Operand, Value, stack
from .vocabulary import Mixed, State, Weight

BLOCK_FLOATS = 512  # tokens of a block times head size: as much as 16 KiB of workgroup memory holds
TILES = 4  # of 4 columns, that a lane holds of each of its rows of the state where subgroups can sum over lanes
LANES = 256  # of a workgroup, that any device can run
ABSENT = 0xFFFFFFFF  # as a place in a stack
MIXES = 6  # at most, of one norm
SOFTWARE_ROWS = 2048  # software Vulkan silently stops an invocation after 65,535 turns of its loops, 20 or so a row


class RecurrentRecorder(IntegerRecorder):
    """Ops that read segments and states."""

    @property
    def row_segment(self) -> Value:
        """The segment of each row. [T]"""
        return self.input("row_segment", np.uint32, (self.rows,))

    def norm_shift_mix(
        self, x: Value, weight: Weight, bias: Weight, eps: float, mix: Weight, state: State
    ) -> tuple[Value, ...]:
        whole, parts = stack(self.rows, [mix.shape[1]] * mix.shape[0])
        norm = partial(self._norm_shift_mix, x, weight, bias, eps, mix, state, whole)
        few = self.alone or (self.single and self.rows <= self.tuning.token_shift_rows)
        if not (self.tuning.fuses_token_shift and few and mix.shape[1] % GRAIN == 0):
            self.hold_or_round(norm, whole, self.states[state.name], {p.offset // 4: p.shape[1] for p in parts})
            return parts
        self.hold(
            Mixing(
                partial(norm, None),
                whole,
                state=self.states[state.name],
                x=x,
                normed=Value(x.shape),
                gain=self.vector(weight),
                shift=self.vector(bias),
                mix=self.vector(mix),
                segments=self.segments,
                rows=self.rows,
                parts=len(parts),
                eps=float(eps),
            )
        )
        return parts

    def _norm_shift_mix(
        self,
        x: Value,
        weight: Weight,
        bias: Weight,
        eps: float,
        mix: Weight,
        state: State,
        y: Value,
        integers: Integers | None,
    ) -> None:
        mixes, width = mix.shape
        parts: tuple[str, ...] = ("rwkv/shift_output/floats",)
        also: dict[str, Operand] = {}
        constants: dict[str, Constant] = {}
        if integers:
            apart = _apart(Value((self.rows, width))) // 4
            starts = tuple(integers.starts.get(m * apart, ABSENT) for m in range(MIXES))
            parts, also = ("rwkv/shift_output/quantise", *LAYING), {"quantised": integers.value}
            constants = integers.constants | {"STARTS": starts}
        self.record(
            weight.name,
            ("rwkv/norm_shift_mix", f"lib/lanes/{self.tuning.reduce}", *parts),
            {"D": width, "MIXES": mixes, "EPS": float(eps), "WG": self.tuning.row_lanes} | constants,
            also
            | {
                "x": x,
                "weight": self.vector(weight),
                "bias": self.vector(bias),
                "mix": self.vector(mix),
                "segments": self.segments,
                "row_segment": self.row_segment,
                "state": self.states[state.name],
                "y": y,
            },
            groups=self.rows,
            fixed_bytes=(mixes + 2) * width * 4,
        )

    def time_mix(self, x: Mixed[Value], vectors: Weight, eps: float, state: State) -> Value:
        heads, size, _ = state.shape
        if (self.single or self.alone) and self.tuning.state_lanes_per_row:
            return self._time_mix_soon(x, vectors, eps, state)
        assert not self.device.capabilities.software or self.rows <= SOFTWARE_ROWS, f"over {SOFTWARE_ROWS} rows"
        y = Value(x.r.shape)
        rkv = self._stacked({"R": x.r, "K": x.k, "V": x.v})
        given = {"W": x.w, "A": x.a, "G": x.gate, "VG": x.v_gate}
        gates = self._stacked({name: value for name, value in given.items() if value is not None})
        operands: dict[str, Value | Slice] = {
            "rkv": rkv["R"].root,
            "gates": gates["W"].root,
            "vectors": self.vector(vectors),
            "segments": self.segments,
            "state": self.states[state.name],
            "y": y,
        }
        if x.v_gate is not None:
            assert x.v_first is not None, "a value gate needs the value of the first layer"
            operands["v_first"] = x.v_first
        split, rows = self._spread(size)
        parts = (
            "rwkv/gate/gate" if x.gate is not None else "rwkv/gate/none",
            "rwkv/value/first_layer" if x.v_gate is not None else "rwkv/value/own",
            "rwkv/row_sum/subgroup" if split > 1 else "rwkv/row_sum/lane",
            {1: "rwkv/tile/one_row", 4: "rwkv/tile/four_rows"}[rows],
            "lib/lanes/plain",
        )
        constants: dict[str, Constant] = {
            "H": heads, "N": size, "EPS": float(eps), "BLOCK": BLOCK_FLOATS // size,
            "SPLIT": split, "WG": size // rows * split,
        }  # fmt: skip
        self.record(
            state.name,
            ("rwkv/time_mix", *parts),
            {**constants, **{name: _part(value) for name, value in {**rkv, **gates}.items()}},
            operands,
            groups=self.max_segments * heads,
            fixed_bytes=5 * heads * size * 4,
            row_flops=heads * size * size * 8,
            context_cost=ContextCost(sequence_bytes=2 * 4 * heads * size * size),
        )
        return y

    def _time_mix_soon(self, x: Mixed[Value], vectors: Weight, eps: float, state: State) -> Value:
        """For one row of each sequence, once it is known what its reader wants."""
        y = Value(x.r.shape)
        mix = partial(self._time_mix_one, x, vectors, eps, state, y)
        self.hold_or_round(mix, y, self.states[state.name], {0: y.shape[1]})
        return y

    def _time_mix_one(
        self, x: Mixed[Value], vectors: Weight, eps: float, state: State, y: Value, integers: Integers | None
    ) -> None:
        """Second halves of LoRAs are computed on the way, where they are held back."""
        heads, size, _ = state.shape
        lanes_per_row, rows = self._spread_one(size)
        late = self._late(x, size, lanes_per_row)
        rkv = self._stacked({"R": x.r, "K": x.k, "V": x.v})
        constants: dict[str, Constant] = {
            "H": heads, "N": size, "EPS": float(eps), "LANES_PER_ROW": lanes_per_row, "ROWS": rows,
            "WG": size // rows * lanes_per_row,
            "SUBGROUP": self.device.capabilities.subgroup_width,
        }  # fmt: skip
        operands: dict[str, Operand] = {
            "rkv": rkv["R"].root, "vectors": self.vector(vectors), "state": self.states[state.name], "y": y,
            "segment" if self.rows == 1 else "segments": self.segments,
        }  # fmt: skip
        if x.v_first is not None:
            operands["v_first"] = x.v_first
        if integers:
            operands["quantised"] = integers.value
            constants |= integers.constants
        if late:
            constants |= late.constants(lanes_per_row)
            operands |= late.operands(vectors, heads * size)
        else:
            given = [x.w, x.a, x.gate, x.v_gate]
            gates = self._stacked({str(m): value for m, value in enumerate(given) if value is not None})
            places = {m: value.offset // 16 for m, value in gates.items()}
            constants["GATES"] = tuple(places.get(str(m), ABSENT) for m in range(len(given)))
            operands["stack"] = gates["0"].root
        self.record(
            state.name,
            (
                "rwkv/time_mix_decode",
                "rwkv/decode/single_row" if self.rows == 1 else "rwkv/decode/several_rows",
                *(late.parts if late else ("rwkv/decode/gates",)),
                "rwkv/decode/first_layer_value" if x.v_first is not None else "rwkv/decode/own_value",
                "lib/sum/subgroup" if lanes_per_row > 1 else "lib/sum/single_lane",
                *(("rwkv/decode/quantise", *LAYING[:2]) if integers else ("rwkv/decode/floats",)),
                "lib/lanes/plain",
            ),
            {**constants, **{name: value.offset // 16 for name, value in rkv.items()}},
            operands,
            groups=self.rows * heads,
            fixed_bytes=5 * heads * size * 4 + (late.nbytes if late else 0),
            row_flops=heads * size * (size * 8 + 2 * sum(late.ranks if late else ())),
            context_cost=ContextCost(sequence_bytes=2 * 4 * heads * size * size),
        )

    def _late(self, x: Mixed[Value], head_size: int, lanes_per_row: int) -> Late | None:
        """The second halves of LoRAs that nobody has computed yet, where the time mix of so few rows does it faster."""
        held = self.held(x.w)
        if self.rows > self.tuning.lora_fusion_rows or not isinstance(held, HeldProducts):
            return None
        late = Late.of(held, (x.w, x.a, x.gate, x.v_gate), self.weights)
        if late is None or head_size * lanes_per_row * late.turns(lanes_per_row) > LOADS:
            return None
        self.take(held)
        return late

    def pick(self, x: Value) -> Value:
        if self.alone:
            self.continue_picked()
            return x  # whatever is asked for, there is no other row
        y = Value((self.max_outputs, x.shape[1]))
        self.record(
            "",
            ("dense/pick", "lib/lanes/plain"),
            {"D": x.shape[1], "WG": self.tuning.map_lanes},
            {"x": x, "output_rows": self.input("output_rows", np.uint32, (self.max_outputs,)), "y": y},
            groups=self.max_outputs,
        )
        self.continue_picked()
        return y

    def _spread(self, head_size: int) -> tuple[int, int]:
        """Lanes for a row of the state, and rows for a lane."""
        if self.tuning.reduce == "workgroup":
            return 1, 1
        split = min(head_size // (4 * TILES), self.device.capabilities.subgroup_size)
        # In software loads cost most, and the rows of a lane share them.
        many = self.tuning.reduce == "one_subgroup" or head_size * split > LANES
        return split, 4 if many else 1

    def _spread_one(self, head_size: int) -> tuple[int, int]:
        """The same for one row of each sequence, where lanes that share a row of the state have its channel, too."""
        can = self.device.capabilities
        lanes_per_row, rows = min(self.tuning.state_lanes_per_row, can.subgroup_width), self.tuning.state_rows_per_lane
        while head_size // rows * lanes_per_row > can.max_invocations:
            rows *= 2
        return lanes_per_row, rows

    def _stacked(self, values: dict[str, Value]) -> dict[str, Value]:
        """The same values, of one shape, as parts of one stack; copied where they lie otherwise."""
        given: Sequence[Value] = list(values.values())
        apart = _apart(given[0])
        if any(v.base is None or v.base is not given[0].base or v.offset % apart for v in given):
            given = self.copied(given)
        return dict(zip(values, given, strict=True))


def _apart(value: Value) -> int:
    """The bytes between parts of its shape in a stack."""
    return -(-value.shape[0] * value.row_bytes // ALIGN) * ALIGN


def _part(value: Value) -> int:
    """Which part of a stack it is, where all have its shape."""
    return value.offset // _apart(value)
