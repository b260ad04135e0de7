"""The dense ops recorded: embedding, norms, element by element."""

import math
from collections.abc import Mapping

import numpy as np

from ..gpu.plan import Slice
from ..gpu.shader import Constant
from .recording import Recording
from .values import Operand, Value
from .vocabulary import NUMBER, NUMBERS, Activation, LayerNorm, Weight


class DenseRecorder(Recording):
    """Ops that treat every row alike."""

    def embed(self, weight: Weight, ids: Value, *, norm: LayerNorm | None = None) -> Value:
        shards = self.weights[weight.name].shards
        if norm and len(shards) > 1:
            return self.layer_norm(self.embed(weight, ids), norm.weight, norm.bias, norm.eps)
        y = Value((self.rows, weight.shape[1]))
        operands: dict[str, Operand] = {"ids": ids, "y": y}
        if self.sampler_state:
            operands["sampled"] = self.sampler_state.sampled
        constants: dict[str, Constant] = {"D": weight.shape[1], "WG": self.tuning.map_lanes}
        kernels, lanes = ["dense/embed"], "plain"
        if norm:
            kernels, lanes = (
                ["dense/embed_norm", "dense/norm/row", f"dense/norm/{_reads(weight.shape[1])}"],
                self.tuning.reduce,
            )
            constants |= {"WG": self._norm_lanes(weight.shape[1]), "EPS": float(norm.eps)}
            operands |= {"weight": self.vector(norm.weight), "bias": self.vector(norm.bias)}
        for shard in shards:
            self.record(
                weight.name,
                (
                    *kernels,
                    "dense/ids/sampled" if self.sampler_state else "dense/ids/uploaded",
                    *shard.parts,
                    f"lib/lanes/{lanes}",
                ),
                constants | {"FIRST": shard.first, "ROWS": shard.rows} | shard.constants,
                operands | {"w": shard.slice},
                groups=self.rows,
                fixed_bytes=0,
            )
        return y

    def layer_norm(self, x: Value, weight: Weight, bias: Weight, eps: float) -> Value:
        reads = _reads(x.shape[1])
        shader = ("dense/layer_norm", "dense/norm/row", f"dense/norm/{reads}", f"lib/rows/{reads}")
        vectors = {"weight": weight, "bias": bias}
        return self._norm(shader, x, vectors, eps, {"WG": self._norm_lanes(x.shape[1]), "PADDED": 0})

    def rms_norm(self, x: Value, weight: Weight, eps: float) -> Value:
        return self._norm(("dense/rms_norm",), x, {"weight": weight}, eps)

    def activate(self, x: Value, then: Activation) -> Value:
        return self._map(
            ("dense/map_unary", "lib/activation", "lib/lanes/plain"), {"x": x}, {"THEN": NUMBER[then]} | NUMBERS
        )

    def add(self, x: Value, y: Value) -> Value:
        return self._map(("dense/map_binary", "dense/binary/add", "lib/lanes/plain"), {"x": x, "z": y})

    def mul(self, x: Value, y: Value) -> Value:
        return self._map(("dense/map_binary", "dense/binary/mul", "lib/lanes/plain"), {"x": x, "z": y})

    def softmax(self, x: Value) -> Value:
        y = Value(x.shape)
        return self.by_row(("dense/softmax",), y, {"x": x, "y": y}, {"D": x.shape[1]})

    def argmax(self, x: Value) -> Value:
        y = Value((self.rows,), np.uint32)
        return self.by_row(("dense/argmax",), y, {"x": x, "y": y}, {"D": x.shape[1]})

    def by_row(
        self,
        shader: tuple[str, ...],
        y: Value,
        operands: Mapping[str, Value | Slice],
        constants: Mapping[str, Constant],
        name: str = "",
    ) -> Value:
        """A workgroup for each row, reduced over its lanes."""
        parts = (*shader, f"lib/lanes/{self.tuning.reduce}")
        self.record(name, parts, {"WG": self.tuning.row_lanes, **constants}, operands, groups=self.rows)
        return y

    def _norm_lanes(self, width: int) -> int:
        """Lanes that norm a row by fours, no more than it has."""
        if self.tuning.reduce != "subgroup":
            return self.tuning.row_lanes
        return min(self.tuning.row_lanes, -(-width // 4 // 32) * 32)

    def _norm(
        self,
        shader: tuple[str, ...],
        x: Value,
        vectors: Mapping[str, Weight],
        eps: float,
        constants: Mapping[str, Constant] | None = None,
    ) -> Value:
        y = Value(x.shape)
        operands: dict[str, Value | Slice] = {
            "x": x,
            "y": y,
            **{name: self.vector(vector) for name, vector in vectors.items()},
        }
        constants = {"D": x.shape[1], "EPS": float(eps), **(constants or {})}
        return self.by_row(shader, y, operands, constants, vectors["weight"].name)

    def _map(
        self, shader: tuple[str, ...], inputs: Mapping[str, Value], constants: Mapping[str, Constant] | None = None
    ) -> Value:
        x = inputs["x"]
        y = Value(x.shape)
        lanes = self.tuning.map_lanes
        groups = -(-math.prod(x.shape) // lanes)
        self.record("", shader, {"D": x.shape[1], "WG": lanes, **(constants or {})}, {**inputs, "y": y}, groups=groups)
        return y


def _reads(width: int) -> str:
    """The part that reads rows of that width."""
    return "scalar" if width % 4 else "vec4"
