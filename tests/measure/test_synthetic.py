"""Synthetic models have random weights in the shapes of real models."""

import re

import numpy as np
import pytest

from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.planes import dequantise_rows
from rwkv_gpu.llm.drafts import joined_head
from rwkv_gpu.measure.quants import QUANTS
from rwkv_gpu.measure.shapes import (
    SHAPES,
    bert,
    delta_nets,
    experts,
    gemma4,
    hybrid,
    latent,
    mamba,
    routed,
    rwkv6,
    rwkv7,
    shared_experts,
    sizes,
    transformer,
)
from rwkv_gpu.measure.synthetic import BY_NAME, SCALES, named, noise, open_synthetic, pattern, write
from rwkv_gpu.models.registry import is_encoder, load_model
from tests.cases import each

TINY = rwkv7(2, 256, 8, 8, 8, 16, vocabulary=300)
TINY_MIXTURE = transformer("qwen3moe", 300, sizes(2, 256, 256, 4, 2, 64) | experts(4, 2, 256), "output")
TINY_LATENT = latent(
    2, 256, 256, 4, 300, 32, 64, experts(4, 2, 64), shared=1, q_rank=256, rank=256, rotary=16, sigmoid=True
)
TINIES = {
    "gpt-oss": routed("gpt-oss", 300, sizes(2, 96, 64, 4, 2, 32) | experts(4, 2, 64)),
    "gemma4": gemma4(
        4, 256, 256, 4, 2, 1, period=2, window=64, per_layer=32, shared=2, of_experts=experts(4, 2, 32), values=True,
        vocabulary=300, size=32, full_size=64,
    ),
    "rwkv7": TINY, "rwkv6": rwkv6(2, 512, 8, 16, vocabulary=300),
    "qwen3moe": TINY_MIXTURE,
    "latent": TINY_LATENT, "bert": bert(2, 96, 256, 4, 300), "nomic-bert": bert(2, 256, 256, 4, 300, arch="nomic-bert"),
    "embeddinggemma": transformer(
        "gemma-embedding", 300, sizes(2, 256, 288, 4, 1, 64), known={"dense_2": (512, 256), "dense_3": (256, 512)}
    ),
    "hybrid": hybrid(
        "nemotron_h_moe", 300, "mea", sizes(3, 256, 64, 4, 2, 64) | mamba(8, 64, 32, 2) | shared_experts(4, 2, 64, 64),
        r"output|ffn_gate_inp|exp_probs_b\.bias",
    ),
    "delta nets": delta_nets(
        "qwen35moe", 300, sizes(4, 256, 256, 4, 1, 64) | experts(4, 2, 256), 4, key_heads=2, state=64
    ),
}  # fmt: skip
# Published millions of parameters of encoders whose names have no size, or a rounded one.
MILLIONS = {
    "all-minilm-l6-v2": 22.6, "bge-large-en-v1.5": 334, "bge-m3": 567, "nomic-embed-text-v1.5": 137,
    "embeddinggemma-300m": 308,
}  # fmt: skip


@pytest.mark.long
@each("name", [name for name in SHAPES if name not in MILLIONS])
def test_every_shape_is_a_model_of_the_size_in_its_name(name):
    with open_synthetic(name) as file:
        load_model(file)
        parameters = sum(np.prod(tensor.shape) for tensor in file.tensors.values())
    [billions] = re.findall(r"-([\d.]+)b", name)
    assert parameters / 1e9 == pytest.approx(float(billions), rel=0.05, abs=0.1)  # gpt-oss-20b has 20.9


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("name", MILLIONS)
def test_every_encoder_is_one_of_its_size(name, quant):
    with open_synthetic(f"{name}-{quant}") as file:
        assert is_encoder(load_model(file))
        parameters = sum(np.prod(tensor.shape) for tensor in file.tensors.values())
    assert parameters / 1e6 == pytest.approx(MILLIONS[name], rel=0.005)


def test_the_sizes_of_all_encoders_are_checked():
    encoders = ("bert", "nomic-bert", "gemma-embedding")
    assert {name for name, shape in SHAPES.items() if shape.arch in encoders} == MILLIONS.keys()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("qwen3.5-9b", "qwen35.rope.dimension_sections"),
        ("qwen3.5-35b-a3b", "qwen35moe.rope.dimension_sections"),
        ("nemotron3-nano-32b", "nemotron_h_moe.attention.layer_norm_epsilon"),
    ],
)
def test_a_file_has_all_keys_that_llama_cpp_requires(name, key):
    """We do not need these keys, but with them both programs can be measured on the same file."""
    with open_synthetic(name) as file:
        assert key in file.metadata


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("shape", TINIES.values(), ids=TINIES)
def test_a_written_file_gives_the_same_data_as_reading_without_one(tmp_path, shape, quant):
    source = noise("tiny", shape, QUANTS[quant])
    write(tmp_path / "tiny.gguf", source)
    data = (tmp_path / "tiny.gguf").read_bytes()
    assert len(data) == source.nbytes
    with GGUFFile.open(tmp_path / "tiny.gguf") as file:
        load_model(file)
    rng = np.random.default_rng(0)
    for start in rng.integers(0, source.nbytes, 20).tolist():
        count = min(int(rng.integers(1, 1 << 16)), source.nbytes - start)
        assert source.read(start, count) == data[start : start + count]


@pytest.mark.parametrize("name", SCALES)
def test_random_blocks_are_weights_around_zero(name):
    weights = dequantise_rows(BY_NAME[name], pattern(name, 1024, "matrix").reshape(-1, BY_NAME[name].nbytes))
    uneven = 0.06 if name == "Q5_0" else 0.01  # its quants range from -16 to 15
    assert abs(weights.mean()) < uneven * weights.std()
    assert weights.std() * np.sqrt(1024) == pytest.approx(0.5, rel=0.02)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones():
    assert named("RWKV7-2.9B") == named("rwkv7-2.9b-q4_k_m")
    with pytest.raises(BadInput, match="known: rwkv7-0.1b"):
        named("gpt-5")


def test_a_model_of_low_rank_queries_needs_their_rank():
    """The shapes of tensors imply it, too, but llama.cpp does not load a file without the key."""
    assert TINY_LATENT.header()["deepseek2.attention.q_lora_rank"] == 256
    assert "deepseek2.attention.q_lora_rank" not in SHAPES["deepseek-v2-lite-16b"].header()


def test_models_may_have_a_head_in_their_file_or_another():
    for name, layers in (("qwen3.5-9b-mtp-q4_k_m", 32), ("glm-4.7-flash-30b-mtp", 47)):
        with open_synthetic(name) as file:
            head = load_model(file).file_head
            assert (head.count, head.fault, head.head.index) == (1, "", layers)
    for model, kind, layers in (("gpt-oss-20b", "eagle3", 24), ("qwen3-8b", "dflash", 36)):
        with open_synthetic(model) as file, open_synthetic(f"{model}-{kind}") as other:
            assert joined_head(other, file, load_model(file))[1].index == layers
