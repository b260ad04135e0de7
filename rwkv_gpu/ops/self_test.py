"""The self test at start: compares kernels that drivers may get wrong with plain ones."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..gguf.formats import FORMATS
from ..gpu.device import Device
from ..gpu.plan import Plan
from ..gpu.weights import Weights, upload_tensor
from ..kernels.defaults import default_tuning, on_matrix_units
from ..kernels.gemm_config import GemmConfig, SelfTest, gemv
from ..kernels.tuned import Tuned
from ..kernels.tuning import GemmLimits, Tuning
from .memory import Scratch
from .recorder import Recorder, finish_together
from .values import Value
from .vocabulary import Weight

FLOATS = gemv(64, 16, 2, 1)  # a configuration that every device computes correctly
OUT, WIDTH = 74, 2048
SCALES = {"Q4_K": (0, (0.01, 0.05)), "Q6_K": (208, (0.01,))}  # offset and values of the scales in a block


def tuning_for(device: Device, tuned: Tuned | None = None) -> Tuning:
    """The tuning of a device, from `tune` or the default; without integer kernels if the driver gets them wrong."""
    return checked_tuning(device, tuned.tuning if tuned else default_tuning(device.capabilities))


def checked_tuning(device: Device, tuning: Tuning) -> Tuning:
    """A tuning found earlier, with matrix units if they have been enabled since; without wrong integer kernels."""
    can = device.capabilities
    if can.fragment and not tuning.on_matrix_units:
        tuning = on_matrix_units(tuning, can)
    return tuning if integers_work(device, tuning) else without_integers(tuning)


def integers_work(device: Device, tuning: Tuning) -> bool:
    """True if integer kernels agree with float ones, for every config that must be tried at start."""
    kinds: dict[object, tuple[GemmConfig, SelfTest]] = {}
    for config in tuning.configs:
        tried = config.tried_at_start
        if tried and (how := tried.entry.self_test):
            kinds.setdefault((tried.kernel, how.kind(tried)), (tried, how))
    return not kinds or _integers_agree(device, list(kinds.values()))


def without_integers(tuning: Tuning) -> Tuning:
    """The tuning without kernels that quantise x to integers."""
    products = tuple(row for row in tuning.gemm_table if not row[1].tried_at_start)
    *experts, (limits, last) = tuning.expert_table
    kept = (row for row in experts if not row[1].tried_at_start)
    return replace(
        tuning,
        gemm_table=products or ((GemmLimits(), FLOATS),),
        expert_table=(*kept, (limits, last.of_floats)),  # the last row is the fallback
    )


def _integers_agree(device: Device, tests: Sequence[tuple[GemmConfig, SelfTest]]) -> bool:
    """A product over gated pairs, or one matrix if the kernel has no pairs, with partly filled workgroups."""
    trials = [(name, config, how) for name in SCALES for config, how in tests]
    tensors = {name: _random_matrix(device, name) for name in SCALES}
    recorded = [
        _recorded(device, tensors[name], config, how.rows, how.pairs(own))
        for name, own, how in trials
        for config in (FLOATS, own)
    ]
    answers = iter(_answer(plan) for plan in finish_together(recorded))
    for (_, config, _), floats, integers in zip(trials, answers, answers, strict=False):
        off = np.abs(floats - integers).max()
        if not (np.isfinite(integers).all() and off < config.tolerance.gated * np.abs(floats).max()):
            return False
    return True


def _random_matrix(device: Device, name: str) -> Weights:
    """A matrix of random blocks with small scales."""
    fmt = next(fmt for fmt in FORMATS.values() if fmt.name == name)
    raw = np.random.default_rng(0).integers(0, 256, (OUT, fmt.row_bytes(WIDTH)), np.uint8)
    at, scales = SCALES[name]
    blocks = raw.reshape(-1, fmt.nbytes)
    blocks[:, at : at + 2 * len(scales)] = np.array(scales, np.float16).view(np.uint8)
    weights = Weights(device)
    weights.add("w", upload_tensor(device, fmt, raw, (OUT, WIDTH)))
    return weights


def _recorded(
    device: Device, weights: Weights, config: GemmConfig, rows: int, pairs: bool
) -> tuple[Recorder, dict[str, Value]]:
    tuning = default_tuning(device.capabilities).only(config)
    recorder = Recorder(device, weights, rows, Scratch(device), tuning)
    x, weight = recorder.input("x", np.float32, (rows, WIDTH)), Weight("w", (OUT, WIDTH))
    return recorder, {"y": recorder.glu(x, weight, "silu") if pairs else recorder.linear(x, weight)}


def _answer(plan: Plan) -> npt.NDArray[np.float32]:
    x = np.random.default_rng(1).standard_normal((plan.rows, WIDTH), dtype=np.float32) / 64
    plan.run(plan.rows, {"x": x})
    return plan.read("y", plan.rows)
