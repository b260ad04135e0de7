"""Every eps of a model changes its output, because rows are as small as eps: a wrong one cannot stay unnoticed."""

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Capabilities
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.registry import gemm_trials
from rwkv_gpu.kernels.tuning import Tuning
from rwkv_gpu.measure import plans
from rwkv_gpu.models.registry import MODELS, Model, load_model
from tests.golden.record import QUIET
from tests.golden_files import OWN, TINY
from tests.models.session import OnCpu, feed, float_weights
from tests.recording import ABLE

EXACT = 1e-5  # rms against llama.cpp's logits, of deviation 1 to 2
SEEN = 0.01


class OneEps:
    """Wraps ops and replaces the `nth` eps by a 64th of its value."""

    def __init__(self, ops: Any, nth: int) -> None:
        self._ops, self._nth, self.count = ops, nth, 0
        self.said: set[float] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        op = getattr(self._ops, name)
        return lambda *args, **named: op(
            *(self._changed(arg) for arg in args), **{key: self._changed(arg) for key, arg in named.items()}
        )

    def _changed(self, arg: Any) -> Any:
        """Returns the argument with a replaced eps, if it contains that eps."""
        if isinstance(arg, float):
            self.said.add(arg)
            self.count += arg > 0
            return arg / 64 if arg > 0 and self.count - 1 == self._nth else arg
        if not is_dataclass(arg) or isinstance(arg, type):
            return arg
        parts = {field.name: getattr(arg, field.name) for field in fields(arg)}
        new = {name: self._changed(part) for name, part in parts.items() if name == "eps" or is_dataclass(part)}
        changed = {name: part for name, part in new.items() if part is not parts[name]}
        return replace(arg, **changed) if changed else arg


class Changed:
    """A model that calls its ops through `OneEps`."""

    def __init__(self, model: Model, nth: int) -> None:
        self._model, self._nth, self.count = model, nth, 0
        self.said: set[float] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, g: Any, ids: Any) -> Any:
        ops = OneEps(g, self._nth)
        logits = self._model.forward(ops, ids)
        self.count, self.said = ops.count, ops.said
        return logits


@pytest.mark.parametrize("name", QUIET)
def test_each_eps_of_a_model_is_seen_in_its_logits(name):
    record = np.load(OWN / f"{name}.npz")
    with GGUFFile.open(OWN / f"{name}.gguf") as file:
        model = load_model(file)
        weights = float_weights(file, model)

    def off_by(changed: Changed) -> float:
        logits = feed(OnCpu(changed, weights), record["tokens"], [len(record["tokens"])])
        return float(np.sqrt(np.mean((logits - record["exact_logits"]).astype(np.float64) ** 2)))

    as_it_is = Changed(model, -1)
    assert off_by(as_it_is) < EXACT
    assert as_it_is.count >= 5
    for nth in range(as_it_is.count):
        assert off_by(Changed(model, nth)) > SEEN, f"eps {nth} of {as_it_is.count}"


def test_every_way_to_norm_has_a_quiet_model():
    """The ops that norm: in products, of heads, before experts, and layer norms. Other models use the same ops."""
    assert {name.removeprefix("quiet-") for name in QUIET} == {"llama", "qwen3", "qwen3moe", "rwkv7"} <= MODELS.keys()


COMPILED = re.compile(r"const (\w*EPS\w*) = f32\(([^)]*)\)")
ODD = float(np.float32(0.00123))  # a value that no code has as a constant
WITHOUT_EPS = "tiny-deepseek4", "tiny-glm5next"  # their gates after a block add no eps


def with_odd_eps(name: str) -> GGUFFile:
    """Returns a golden model whose eps is ODD."""
    file = GGUFFile.open(OWN / f"{name}.gguf")
    file.override({key: ODD for key in file.metadata if key.endswith("epsilon")})
    return file


def compiled(file: GGUFFile, can: Capabilities, tuning: Tuning, step: plans.Step) -> set[float]:
    """Returns every eps in the shader text of a step."""
    dispatches, _ = plans.dispatches_of(file, can, tuning, step)
    return {float(eps) for one in dispatches for _, eps in COMPILED.findall(one.linked.source)}


@pytest.mark.parametrize("name", TINY)
def test_kernels_have_only_the_eps_of_the_model(name, monkeypatch):
    """The shaders contain only the model's eps, so no lowering drops it or uses its own."""
    with with_odd_eps(name) as file:
        model = Changed(load_model(file), -1)
        monkeypatch.setattr(plans, "load_model", lambda _: model)
        for limits in ("default", "h200", "apple"):
            for step in (plans.Step(1), plans.Step(64, prefill=True)):
                can = LIMITS[limits]
                found = compiled(file, can, default_tuning(can), step)
                assert np.float32(ODD) in np.float32([*found])
                none = {0.0} if name in WITHOUT_EPS else set()
                assert found <= model.said | none, limits


@pytest.mark.parametrize("kernel", gemm_trials(ABLE))
def test_every_kernel_of_a_product_takes_the_eps_of_the_norm_before_it(kernel):
    with with_odd_eps("tiny-qwen3") as file:
        tuning = default_tuning(ABLE).only(gemm_trials(ABLE)[kernel][1])
        for step in (plans.Step(1), plans.Step(64, prefill=True)):
            assert compiled(file, ABLE, tuning, step) == {float(np.float32(ODD))}
