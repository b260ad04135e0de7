"""The dense ops recorded: embedding, norms, matrices, element by element."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..gpu.plan import Slice
from ..gpu.shader import Constant
from .recording import Recording, Value
from .vocabulary import Activation, Weight


class DenseRecorder(Recording):
    """Ops that treat every row alike."""

    def embed(self, weight: Weight, ids: Value) -> Value:
        y = Value((self.rows, weight.shape[1]))
        for shard in self.weights[weight.name].shards:
            self.record(
                weight.name,
                ("embed", *shard.parts, "lanes/plain"),
                {"D": weight.shape[1], "WG": self.tuning.map_lanes, "FIRST": shard.first, "ROWS": shard.rows}
                | shard.constants,
                {"w": shard.slice, "ids": ids, "y": y},
                groups=self.rows,
                fixed_bytes=0,
            )
        return y

    def layer_norm(self, x: Value, weight: Weight, bias: Weight, eps: float) -> Value:
        return self._norm("norm_layer", x, {"weight": weight, "bias": bias}, eps)

    def rms_norm(self, x: Value, weight: Weight, eps: float) -> Value:
        return self._norm("norm_rms", x, {"weight": weight}, eps)

    def linear(
        self,
        x: Value,
        weight: Weight,
        *,
        then: Activation = "none",
        bias: Weight | None = None,
        add: Value | None = None,
    ) -> Value:
        out, width = weight.shape
        y = Value((self.rows, out))
        operands: dict[str, Value | Slice] = {"x": x, "y": y}
        if bias is not None:
            operands["bias"] = self.vector(bias)
        if add is not None:
            operands["residual"] = add
        parts = (
            "x/vec4" if width % 4 == 0 else "x/scalar",
            f"then/{then}",
            "bias/vector" if bias else "bias/none",
            "residual/rows" if add else "residual/none",
            f"lanes/{self.tuning.reduce}",
        )
        for shard in self.weights[weight.name].shards:
            self.record(
                weight.name,
                ("linear_vec", *shard.parts, *parts),
                {"K": width, "M": out, "WG": self.tuning.row_lanes, "FIRST": shard.first, "ROWS": shard.rows}
                | shard.constants,
                {"w": shard.slice, **operands},
                groups=shard.rows * self.rows,
                row_flops=2 * shard.rows * width,
            )
        return y

    def linears(
        self,
        xs: Sequence[Value],
        weights: Sequence[Weight],
        *,
        then: Sequence[Activation] | None = None,
        bias: Sequence[Weight | None] | None = None,
    ) -> tuple[Value, ...]:
        thens = then or ["none"] * len(weights)
        biases = bias or [None] * len(weights)
        rows = zip(xs, weights, thens, biases, strict=True)
        return tuple(self.linear(x, w, then=t, bias=b) for x, w, t, b in rows)

    def activate(self, x: Value, then: Activation) -> Value:
        return self._map(("map_unary", f"then/{then}", "lanes/plain"), {"x": x})

    def add(self, x: Value, y: Value) -> Value:
        return self._map(("map_binary", "binary/add", "lanes/plain"), {"x": x, "z": y})

    def mul(self, x: Value, y: Value) -> Value:
        return self._map(("map_binary", "binary/mul", "lanes/plain"), {"x": x, "z": y})

    def softmax(self, x: Value) -> Value:
        y = Value(x.shape)
        return self.by_row("softmax", y, {"x": x, "y": y}, {"D": x.shape[1]})

    def argmax(self, x: Value) -> Value:
        y = Value((self.rows,), np.uint32)
        return self.by_row("argmax", y, {"x": x, "y": y}, {"D": x.shape[1]})

    def vector(self, weight: Weight) -> Slice:
        """A float32 parameter as kernels read it whole."""
        [shard] = self.weights[weight.name].shards
        return shard.slice

    def by_row(
        self,
        kernel: str,
        y: Value,
        operands: Mapping[str, Value | Slice],
        constants: Mapping[str, Constant],
        name: str = "",
    ) -> Value:
        """A workgroup for each row, reduced over its lanes."""
        shader = (kernel, f"lanes/{self.tuning.reduce}")
        self.record(name, shader, {"WG": self.tuning.row_lanes, **constants}, operands, groups=self.rows)
        return y

    def _norm(self, kernel: str, x: Value, vectors: Mapping[str, Weight], eps: float) -> Value:
        y = Value(x.shape)
        operands: dict[str, Value | Slice] = {
            "x": x,
            "y": y,
            **{name: self.vector(vector) for name, vector in vectors.items()},
        }
        return self.by_row(kernel, y, operands, {"D": x.shape[1], "EPS": float(eps)}, vectors["weight"].name)

    def _map(self, shader: tuple[str, ...], inputs: Mapping[str, Value]) -> Value:
        x = inputs["x"]
        y = Value(x.shape)
        lanes = self.tuning.map_lanes
        groups = -(-math.prod(x.shape) // lanes)
        self.record("", shader, {"D": x.shape[1], "WG": lanes}, {**inputs, "y": y}, groups=groups)
        return y
