"""Every eps of a model decides what it says, in models whose rows are as small as that: none can be wrong unseen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import MODELS, Model, load_model
from tests.golden.record import QUIET
from tests.golden_files import OWN
from tests.models.session import OnCpu, feed, float_weights

EXACT = 1e-5  # rms against llama.cpp's logits, of deviation 1 to 2
SEEN = 0.01


class OneEps:
    """Ops as they are, but for the eps that is given `nth`: it is a 64th of what the model says."""

    def __init__(self, ops: Any, nth: int) -> None:
        self._ops, self._nth, self.count = ops, nth, 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        op = getattr(self._ops, name)
        return lambda *args, **named: op(
            *(self._changed(arg) for arg in args), **{key: self._changed(arg) for key, arg in named.items()}
        )

    def _changed(self, arg: Any) -> Any:
        eps = arg if isinstance(arg, float) else getattr(arg, "eps", 0.0)
        if not eps or getattr(arg, "norms", arg) is None:  # an attention that norms no heads has no use for it
            return arg
        self.count += 1
        if self.count - 1 != self._nth:
            return arg
        return eps / 64 if isinstance(arg, float) else replace(arg, eps=eps / 64)


class Changed:
    """A model that speaks to its ops through `OneEps`."""

    def __init__(self, model: Model, nth: int) -> None:
        self._model, self._nth, self.count = model, nth, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, g: Any, ids: Any) -> Any:
        ops = OneEps(g, self._nth)
        logits = self._model.forward(ops, ids)
        self.count = ops.count
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
    """The ops that norm: in products, of heads, before experts, and layer norms. Other models say the same ops."""
    assert {name.removeprefix("quiet-") for name in QUIET} == {"llama", "qwen3", "qwen3moe", "rwkv7"} <= MODELS.keys()
