"""Checks that a kernel configuration gives numpy's result on rows of the model's weights, before it is timed."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gguf.file import GGUFFile, TensorInfo
from ..gpu.device import Device
from ..kernels.defaults import default_tuning
from ..kernels.expert_config import ExpertConfig
from ..kernels.gemm_config import GemmConfig
from ..ops.vocabulary import Rms, Routing
from .trials import Stored, Trial, answer, difference, expected

OUT, EXPERTS, USED = 130, 5, 2  # rows of a matrix, not a multiple of any block; few experts
# Tolerances relative to the largest result: other order of sums; halves; x as integers, rounded by 1/254 of the
# maximum of 32.
EXACT, HALVES = 1e-4, 5e-3
INTEGERS = {"int16": 2e-4, "int8": 3e-2}

Floats = npt.NDArray[np.float32]


def sample(file: GGUFFile, tensor: TensorInfo, first: int) -> Stored:
    """The first rows of a tensor, or experts."""
    shape = (min(first, tensor.shape[0]), *tensor.shape[1:])
    row_bytes = tensor.format.row_bytes(shape[-1])
    raw = np.frombuffer(file.read(tensor, 0, int(np.prod(shape[:-1])) * row_bytes), np.uint8)
    return Stored(tensor.format, raw.reshape(-1, row_bytes), shape)


def matrix_samples(file: GGUFFile) -> list[Stored]:
    """Samples of one matrix of each format: the narrowest that is large enough."""
    matrices = [t for t in file.tensors.values() if len(t.shape) == 2 and t.shape[0] >= OUT]
    by_format = {t.type: t for t in sorted(matrices, key=lambda t: -t.shape[-1])}
    return [sample(file, tensor, OUT) for tensor in by_format.values()]


def expert_samples(file: GGUFFile) -> Iterator[tuple[Stored, Stored, Stored]]:
    """Samples of gate, up and down of one layer, for each format of down.

    A missing tensor is replaced by another: up by the fused gate-and-up matrix, gate by up.
    """
    seen = set()
    for name, tensor in file.tensors.items():
        if name.endswith("ffn_down_exps.weight") and tensor.type not in seen:
            seen.add(tensor.type)
            names = [name.replace("down", what) for what in ("gate_up", "up", "gate")]
            there = [sample(file, file.tensors[one], EXPERTS) for one in names if one in file.tensors]
            yield there[-1], there[0], sample(file, tensor, EXPERTS)


def linear_is_right(device: Device, shape: GemmConfig, samples: Iterable[Stored]) -> bool:
    """Checks a product and, if the kernel supports it, one with a norm prologue."""
    tuning = default_tuning(device.capabilities).only(shape)
    allowed = INTEGERS.get(shape.activations, HALVES if shape.tile == "f16" else EXACT)
    rows = min(2 * shape.tb + 1, 70)

    def compute(g: Any, w: Any, x: Any) -> Any:
        return g.linear(x, w["w"], norm=Rms(w["gain"], 1e-6) if "gain" in w else None)

    return all(
        _is_right(
            device, Trial("linear", "", "", tuning, compute, {"x": _normal(rows, one.shape[-1])}, weights, allowed)
        )
        for one in samples
        for weights in _with_norm(one)[: 1 + shape.norms]
    )


def _with_norm(matrix: Stored) -> list[Mapping[str, Stored]]:
    """The weights of a product, and of one with a norm prologue."""
    return [{"w": matrix}, {"w": matrix, "gain": Stored.of(1 + 0.1 * _normal(matrix.shape[-1]))}]


def experts_are_right(device: Device, shape: ExpertConfig, samples: Iterable[tuple[Stored, Stored, Stored]]) -> bool:
    """Checks both products of a mixture of experts."""
    tuning = default_tuning(device.capabilities).only_experts(shape)
    allowed = INTEGERS["int16"] if shape.kernel == "moe/expert_gemv_int" else EXACT

    def compute(g: Any, w: Any, x: Any, experts: Any, shares: Any) -> Any:
        routing, pairs = Routing(experts, shares), w["gate"].shape[1] == 2 * w["down"].shape[2]
        inner = g.expert_glu(x, w["gate"], None if pairs else w["up"], routing, "silu")
        return g.expert_sum(inner, w["down"], routing, add=x)

    named = (dict(zip(("gate", "up", "down"), three, strict=True)) for three in samples)
    return all(
        _is_right(device, Trial("experts", "", "", tuning, compute, _routed(one["gate"]), one, allowed))
        for one in named
    )


def _routed(gate: Stored) -> dict[str, npt.NDArray[Any]]:
    """Rows, and their chosen experts."""
    rows, rng = 9, np.random.default_rng(0)
    experts, _, width = gate.shape
    return {
        "x": _normal(rows, width),
        "experts": np.array([rng.permutation(experts)[:USED] for _ in range(rows)], np.uint32),
        "shares": rng.random((rows, USED), np.float32),
    }


def _is_right(device: Device, trial: Trial) -> bool:
    return difference(answer(device, trial), expected(trial)) <= trial.allowed


def close(found: Floats, wanted: Floats, allowed: float) -> bool:
    """True if all numbers are finite and within tolerance."""
    return difference(found, wanted) <= allowed


def _normal(*shape: int) -> Floats:
    return np.random.default_rng(0).standard_normal(shape, np.float32)
