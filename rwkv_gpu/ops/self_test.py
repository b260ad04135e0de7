"""Kernels that a driver may get wrong, tried against the plain ones before anything relies on them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..gguf.formats import FORMATS
from ..gpu.device import Device
from ..gpu.weights import Weights, upload_tensor
from ..kernels.defaults import default_tuning, on_matrix_units
from ..kernels.gemm_config import MANY, GemmConfig, gemv, gemv_int
from ..kernels.tuned import Tuned
from ..kernels.tuning import Tuning
from .memory import Scratch
from .recorder import Recorder
from .vocabulary import Weight

ROUNDED = {"int8": 5e-2, "int16": 1e-3}  # what rows of x as integers may be off by
INTEGERS = ("linear/gemv_int", "linear/skinny_gemm", "linear/gemm_int8")
ROWS = 3  # of x, where a kernel takes several
SCALES = {"Q4_K": (0, (0.01, 0.05)), "Q6_K": (208, (0.01,))}  # of a block: where they lie, and what they are


def tuning_for(device: Device, tuned: Tuned | None = None) -> Tuning:
    """The device's constants, or those that were found for it; integers only where a driver gets them right."""
    can = device.capabilities
    tuning = tuned.tuning if tuned else default_tuning(can)
    if can.fragment and not tuning.on_matrix_units:  # tuned without them, and now asked for
        tuning = on_matrix_units(tuning, can)
    return tuning if integers_work(device, tuning) else without_integers(tuning)


def integers_work(device: Device, tuning: Tuning) -> bool:
    """Whether rows of x as integers give what floats do, in every config that the tuning has for them.

    Of skinny_gemm, whose configs are many, one for each way to read x is tried: compiling takes most of the time.
    """
    every = [config for _, config in (*tuning.linear_packed, *tuning.linear_sized) if config.kernel in INTEGERS]
    for _, config in tuning.experts:
        if config.kernel == "moe/expert_gemv_int":  # which makes integers of x and multiplies them by the same parts
            every.append(
                gemv_int(
                    config.wg, config.lanes_per_row, config.r, subgroup_width=config.subgroup_width, max_workgroups=MANY
                )
            )
    ways = {
        (config.kernel, config.reads_quantised, config.copies)
        if config.kernel == "linear/skinny_gemm"
        else config: config
        for config in every
    }
    return not ways or all(_integers_agree(device, list(ways.values()), name) for name in SCALES)


def without_integers(tuning: Tuning) -> Tuning:
    """The same with floats for all rows of x."""
    sized = tuple(one for one in tuning.linear_sized if one[1].kernel not in INTEGERS)
    *few, (most, tile) = tuning.experts
    experts = (*(one for one in few if one[1].kernel != "moe/expert_gemv_int"), (most, tile.of_floats))
    return replace(tuning, linear_packed=(), linear_sized=sized, experts=experts)


def _integers_agree(device: Device, configs: Sequence[GemmConfig], name: str) -> bool:
    """Over gate and up in pairs, or alone where the kernel has no pairs, with rows that fill no workgroup."""
    rng = np.random.default_rng(0)
    fmt = next(fmt for fmt in FORMATS.values() if fmt.name == name)
    raw = rng.integers(0, 256, (74, fmt.row_bytes(2048)), np.uint8)
    at, scales = SCALES[name]
    blocks = raw.reshape(-1, fmt.nbytes)
    blocks[:, at : at + 2 * len(scales)] = np.array(scales, np.float16).view(np.uint8)
    weights = Weights(device)
    weights.add("w", upload_tensor(device, fmt, raw, (74, 2048)))
    x = rng.standard_normal((ROWS, 2048), dtype=np.float32) / 64
    for config in configs:
        rows = 1 if config.kernel == "linear/gemv_int" else ROWS
        pairs = not (config.kernel == "linear/gemv_int" and config.prefetch_depth > 1)
        floats, integers = (_products(device, weights, s, x[:rows], pairs) for s in (gemv(64, 16, 2, 1), config))
        off = np.abs(floats - integers).max()
        if not (np.isfinite(integers).all() and off < ROUNDED[config.activations] * np.abs(floats).max()):
            return False
    return True


def _products(device: Device, weights: Weights, config: GemmConfig, x: np.ndarray, pairs: bool) -> np.ndarray:
    tuning = default_tuning(device.capabilities).only(config)
    recorder = Recorder(device, weights, len(x), Scratch(device), tuning)
    rows, weight = recorder.input("x", np.float32, x.shape), Weight("w", weights["w"].shape)
    y = recorder.glu(rows, weight, "silu") if pairs else recorder.linear(rows, weight)
    plan = recorder.finish({"y": y})
    plan.run(len(x), {"x": x})
    return plan.read("y", len(x))
