"""Small models of every architecture that travel with the project: a bare clone is held against llama.cpp, too."""

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.models.registry import MODELS
from tests.golden_files import OWN

RMS = 2e-5  # float32 sums in another order, over logits of deviation 2.5
F16_RMS = 2e-3  # keys and values are rounded to float16
RECORDED = sorted(path.stem.removeprefix("tiny-") for path in OWN.glob("*.npz"))


def test_there_is_a_record_of_every_architecture():
    assert set(MODELS) == set(RECORDED)


@pytest.mark.parametrize("arch", RECORDED)
def test_logits_equal_those_of_llama_cpp(opening, arch):
    record = np.load(OWN / f"tiny-{arch}.npz")
    ids = record["tokens"].tolist()
    for kv, bound in (("f32", RMS), ("f16", F16_RMS)):
        with rwkv_gpu.load(OWN / f"tiny-{arch}.gguf", kv=kv, context=64, **opening) as llm:
            for chunk in (40, 7, 1):
                error = llm.logits(ids, chunk_size=chunk) - record["exact_logits"]
                assert np.sqrt(np.mean(error.astype(np.float64) ** 2)) < bound
