"""Small models of every architecture that travel with the project: a bare clone is held against llama.cpp, too."""

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.models.registry import MODELS
from tests.gguf.writer import F32, U32, number_key, text_key, with_keys, written
from tests.golden.record import QUIET, SCALED
from tests.golden_files import OWN

RMS = 2e-5  # float32 sums in another order, over logits of deviation 2.5
F16_RMS = 2e-3  # keys and values are rounded to float16
RECORDED = sorted(path.stem for path in OWN.glob("tiny-*.npz"))


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x.astype(np.float64) ** 2)))


def test_there_is_a_record_of_every_architecture():
    assert {f"tiny-{arch}" for arch in MODELS} == set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_logits_equal_those_of_llama_cpp(opening, name, rounding):
    record = np.load(OWN / f"{name}.npz")
    ids = record["tokens"].tolist()
    for kv, bound in (("f32", RMS), ("f16", F16_RMS)):
        with rwkv_gpu.load(OWN / f"{name}.gguf", kv=kv, context=64, **opening) as llm:
            for chunk in (40, 7, 1):
                assert rms(llm.logits(ids, chunk_size=chunk) - record["exact_logits"]) < bound + rounding


@pytest.mark.parametrize("name", QUIET)
def test_logits_equal_those_of_llama_cpp_where_eps_decides(opening, name, rounding):
    record = np.load(OWN / f"{name}.npz")
    with rwkv_gpu.load(OWN / f"{name}.gguf", kv="f32", context=64, **opening) as llm:
        for chunk in (16, 7, 1):
            got = llm.logits(record["tokens"].tolist(), chunk_size=chunk)
            assert rms(got - record["exact_logits"]) < RMS + rounding


def keys_of(arch: str, values: dict[str, int | float | str]) -> list[bytes]:
    kinds = {int: U32, float: F32}
    return [
        text_key(f"{arch}.{key}", value)
        if isinstance(value, str)
        else number_key(f"{arch}.{key}", kinds[type(value)], value)
        for key, value in values.items()
    ]


@pytest.mark.parametrize("name", SCALED)
def test_scaled_positions_equal_those_of_llama_cpp(opening, name, tmp_path):
    arch, keys = SCALED[name]
    plain, record = np.load(OWN / f"tiny-{arch}.npz"), np.load(OWN / f"scaled-{name}.npz")
    assert rms(plain["exact_logits"] - record["exact_logits"]) > 0.1, "the scaling would not be seen"
    path = written(tmp_path, with_keys((OWN / f"tiny-{arch}.gguf").read_bytes(), keys_of(arch, keys)))
    with rwkv_gpu.load(path, kv="f32", context=64, **opening) as llm:
        assert rms(llm.logits(record["tokens"].tolist()) - record["exact_logits"]) < RMS
