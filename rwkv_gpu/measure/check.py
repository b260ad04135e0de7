"""Whether a kernel shape gives what numpy does, on rows of the model's own weights: asked of every candidate first."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..gguf.file import GGUFFile, TensorInfo
from ..gguf.formats import Format
from ..gguf.planes import dequantise_rows
from ..gpu.device import Device
from ..gpu.weights import BY_NAME, Weights, upload_tensor
from ..kernels.defaults import default_tuning
from ..kernels.expert_config import ExpertConfig
from ..kernels.gemm_config import MANY, GemmConfig
from ..kernels.tuning import Tuning
from ..ops.memory import Scratch
from ..ops.recorder import Recorder
from ..ops.reference import Reference
from ..ops.vocabulary import Rms, Routing, Weight

OUT, EXPERTS, USED = 130, 5, 2  # rows of a matrix, no multiple of any block; and few experts
# Of the largest result. Sums in another order; halves; x as integers: bytes round by 1/254 of the largest of 32.
EXACT, HALVES = 1e-4, 5e-3
INTEGERS = {"int16": 2e-4, "int8": 3e-2}

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sample:
    """Rows of a tensor as they lie in a file."""

    format: Format
    raw: npt.NDArray[np.uint8]  # [rows, bytes of a row]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, file: GGUFFile, tensor: TensorInfo, first: int) -> "Sample":
        """The first rows, or experts."""
        shape = (min(first, tensor.shape[0]), *tensor.shape[1:])
        row_bytes = tensor.format.row_bytes(shape[-1])
        raw = np.frombuffer(file.read(tensor, 0, int(np.prod(shape[:-1])) * row_bytes), np.uint8)
        return cls(tensor.format, raw.reshape(-1, row_bytes), shape)

    @property
    def values(self) -> Floats:
        """What they say."""
        return dequantise_rows(self.format, self.raw).reshape(self.shape)


def matrix_samples(file: GGUFFile) -> list[Sample]:
    """Of the narrowest matrix of each format that has enough rows."""
    matrices = [t for t in file.tensors.values() if len(t.shape) == 2 and t.shape[0] >= OUT]
    by_format = {t.type: t for t in sorted(matrices, key=lambda t: -t.shape[-1])}
    return [Sample.of(file, tensor, OUT) for tensor in by_format.values()]


def expert_samples(file: GGUFFile) -> Iterator[tuple[Sample, Sample, Sample]]:
    """Gate, up and down of one layer for each format that down has. What is missing is stood for by what is there: up
    by the matrix that holds gate and up, gate by up.
    """
    seen = set()
    for name, tensor in file.tensors.items():
        if name.endswith("ffn_down_exps.weight") and tensor.type not in seen:
            seen.add(tensor.type)
            names = [name.replace("down", what) for what in ("gate_up", "up", "gate")]
            there = [Sample.of(file, file.tensors[one], EXPERTS) for one in names if one in file.tensors]
            yield there[-1], there[0], Sample.of(file, tensor, EXPERTS)


def linear_is_right(device: Device, shape: GemmConfig, samples: Iterable[Sample]) -> bool:
    """A product, and where the kernel can do it one that norms its input on the way."""
    tuning = default_tuning(device.capabilities).only(shape)
    allowed = HALVES if shape.tile == "f16" else EXACT
    allowed = INTEGERS.get(shape.activations, allowed)
    rows = min(2 * shape.tb + 1, 70)
    norms = (False, True) if shape.norms else (False,)
    return all(_product(device, tuning, one, rows, norm, allowed) for one in samples for norm in norms)


def _product(device: Device, tuning: Tuning, sample: Sample, rows: int, norm: bool, allowed: float) -> bool:
    width = sample.shape[-1]
    x, gains = _normal(rows, width), 1 + 0.1 * _normal(width)
    weights = Weights(device)
    weights.add("w", upload_tensor(device, sample.format, sample.raw, sample.shape))
    weights.add("gain", upload_tensor(device, BY_NAME["F32"], gains.view(np.uint8).reshape(1, -1), (width,)))
    w, rms = Weight("w", sample.shape), Rms(Weight("gain", (width,)), 1e-6) if norm else None
    g = Recorder(device, weights, rows, Scratch(device), tuning)
    plan = g.finish({"y": g.linear(g.input("x", np.float32, x.shape), w, norm=rms)})
    plan.run(rows, {"x": x})
    wanted = Reference({"w": sample.values, "gain": gains}).linear(x, w, norm=rms)
    return close(plan.read("y", rows), wanted, allowed)


def experts_are_right(device: Device, shape: ExpertConfig, samples: Iterable[tuple[Sample, Sample, Sample]]) -> bool:
    """Both products of a mixture of experts."""
    tuning = replace(default_tuning(device.capabilities), experts=((MANY, shape),), experts_short=())
    allowed = INTEGERS["int16"] if shape.kernel == "moe/expert_gemv_int" else EXACT
    named = (dict(zip(("gate", "up", "down"), three, strict=True)) for three in samples)
    return all(_mixture(device, tuning, one, allowed) for one in named)


def _mixture(device: Device, tuning: Tuning, samples: dict[str, Sample], allowed: float) -> bool:
    rows, rng = 9, np.random.default_rng(0)
    experts, _, width = samples["gate"].shape
    weights = Weights(device)
    for name, one in samples.items():
        weights.add(name, upload_tensor(device, one.format, one.raw, one.shape))
    inputs = {
        "x": _normal(rows, width),
        "experts": np.array([rng.permutation(experts)[:USED] for _ in range(rows)], np.uint32),
        "shares": rng.random((rows, USED), np.float32),
    }
    gate, other, down = (Weight(name, one.shape) for name, one in samples.items())
    up = None if gate.shape[1] == 2 * down.shape[2] else other
    g = Recorder(device, weights, rows, Scratch(device), tuning)
    x, chosen, shares = (g.input(name, array.dtype, array.shape) for name, array in inputs.items())
    routing = Routing(chosen, shares)
    plan = g.finish({"y": g.expert_sum(g.expert_glu(x, gate, up, routing, "silu"), down, routing, add=x)})
    plan.run(rows, inputs)
    reference, given = (
        Reference({n: one.values for n, one in samples.items()}),
        Routing(inputs["experts"], inputs["shares"]),
    )
    inner = reference.expert_glu(inputs["x"], gate, up, given, "silu")
    return close(plan.read("y", rows), reference.expert_sum(inner, down, given, add=inputs["x"]), allowed)


def close(found: Floats, wanted: Floats, allowed: float) -> bool:
    """Whether all numbers are numbers, and near enough."""
    return bool(np.isfinite(found).all() and np.abs(found - wanted).max() <= allowed * np.abs(wanted).max())


def _normal(*shape: int) -> Floats:
    return np.random.default_rng(0).standard_normal(shape, np.float32)
