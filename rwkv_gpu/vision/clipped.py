"""Products whose inputs and results are clipped, as in the vision towers of Gemma 4. Models are not aware of them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..gguf.file import GGUFFile
from ..models.layered import normed
from ..models.tensors import Tensors
from ..ops.vocabulary import Activation, AnyNorm, Ops, Weight

F32_MAX = 3.4028235e38


@dataclass(frozen=True)
class Clip:
    """The bounds of the input of a matrix, and of its product."""

    read: tuple[float, float]
    made: tuple[float, float]


Clips = Mapping[str, Clip]  # by name of the matrix


def clips_of(file: GGUFFile, tensors: Tensors) -> dict[str, Clip]:
    """The clips of a projector file, by matrix."""
    found: dict[str, Clip] = {}
    for name in file.tensors:
        stem = name.removesuffix(".weight")
        keys = [f"{stem}.{which}" for which in ("input_min", "input_max", "output_min", "output_max")]
        if stem == name or not any(key in tensors for key in keys):
            continue
        low, high, least, most = (_bound(file, tensors, key) for key in keys)
        found[name] = Clip((low, high), (least, most))
    return found


def _bound(file: GGUFFile, tensors: Tensors, name: str) -> float:
    """The number in a tensor; if the tensor is missing, a bound that no float exceeds."""
    if name not in tensors:
        return -F32_MAX if name.endswith("_min") else F32_MAX
    tensor = file.tensors[name]
    tensors.skip(name)
    number = float(file.values(tensor).reshape(-1)[0]) if math.prod(tensor.shape) == 1 else math.nan
    if not abs(number) <= F32_MAX:
        raise tensors.bad(f"tensor '{name}'", f"{number} in {list(tensor.shape)}", "one finite number")
    return number


class ClippedOps:
    """The vocabulary with clipped products; passes other ops on to `ops`."""

    def __init__(self, ops: Any, clips: Clips) -> None:
        self._ops = ops
        self._clips = clips

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def linear(
        self,
        x: Any,
        weight: Weight,
        *,
        then: Activation = "none",
        bias: Weight | None = None,
        add: Any = None,
        norm: AnyNorm | None = None,
        scale: float = 1.0,
    ) -> Any:
        g, clip = self._ops, self._clips.get(weight.name)
        if clip is None:
            return g.linear(x, weight, then=then, bias=bias, add=add, norm=norm, scale=scale)
        y = g.clip(g.linear(g.clip(normed(g, x, norm), *clip.read), weight), *clip.made)
        y = y if bias is None else g.shift_columns(y, bias)
        y = y if then == "none" else g.activate(y, then)
        y = y if scale == 1 else g.scale(y, scale)
        return y if add is None else g.add(y, add)

    linears = Ops.linears  # uses `linear` of this class


def with_clips(g: Any, clips: Clips) -> Any:
    """The vocabulary with these clips; `g` itself if there are none."""
    return ClippedOps(g, clips) if clips else g
