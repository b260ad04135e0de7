"""States in float16: logits stay near those of float32, and numpy, the GPU and saved states agree."""

import numpy as np
import pytest

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.runner import prefill
from rwkv_gpu.engine.sampling import SamplingParams
from rwkv_gpu.errors import BadInput
from tests.engine.test_engine import drive, ids_of, small, tokens

# RWKV-7, and RWKV-6 with other kernels; Mamba-2; gated delta nets with a convolution; a state that stays float32.
KINDS = ("rwkv7", "rwkv6", "mamba2", "qwen35", "mamba")


def apart(found, exact) -> float:
    """The rms of the difference relative to the spread of the logits."""
    return float(np.sqrt(((found - exact) ** 2).mean()) / exact.std())


@pytest.mark.parametrize("name", KINDS)
def test_logits_by_single_tokens_are_near_those_of_float32(name):
    ids = ids_of(60)
    exact, found = (prefill(small(f"tiny-{name}.gguf", states=kind), ids, chunk_size=1) for kind in ("f32", "f16"))
    assert apart(found, exact) < 2e-3
    assert (apart(found, exact) > 0) == (name != "mamba")


@pytest.mark.parametrize("name", KINDS[:4])
@pytest.mark.parametrize("chunk", [1, 7])
def test_the_gpu_rounds_as_numpy_does(name, chunk, adapter):
    """Sums differ in their order, so that a number may be rounded to either of two neighbours."""
    ids = ids_of(20)
    wanted = prefill(small(f"tiny-{name}.gguf", states="f16", chunk_size=chunk), ids, chunk_size=chunk)
    runner = small(f"tiny-{name}.gguf", adapter, states="f16", chunk_size=chunk)
    found = prefill(runner, ids, chunk_size=chunk)
    runner.close()
    assert apart(found, wanted) < 1e-3


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_a_saved_state_is_float32_with_numbers_of_float16(where, adapter):
    ids = ids_of(24)
    runner = small("tiny-rwkv7.gguf", adapter if where == "gpu" else None, states="f16")
    engine = Engine(runner)
    number = engine.add(Request(ids, SamplingParams(temperature=0, max_tokens=4), keep=True))
    answer = tokens(drive(engine)[number])
    _, arrays = engine.export([*ids, *answer])
    for state in runner.model.states:
        own = arrays[state.name]
        assert own.dtype == np.float32
        assert (len(state.shape) == 3) == np.array_equal(own, own.astype(np.float16)), state.name
    runner.close()


def test_matrices_take_half_of_the_memory():
    whole, half = (small("tiny-rwkv7.gguf", states=kind) for kind in ("f32", "f16"))
    matrices = sum(state.nbytes() for state in whole.model.states if len(state.shape) == 3)
    assert whole.page_and_state_bytes[1] - half.page_and_state_bytes[1] == matrices // 2 > 0


def test_another_type_is_refused():
    with pytest.raises(BadInput, match="states is 'f8'; known: f32, f16"):
        small("tiny-rwkv7.gguf", states="f8")
