"""Small models of every architecture, included in the repository, are compared with llama.cpp's records."""

from typing import Any

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.formats import FORMATS
from rwkv_gpu.models.registry import MODELS
from tests.cases import slow_unless
from tests.conftest import MODES
from tests.gguf.writer import F32, U32, number_key, text_key, with_keys, written
from tests.golden.record import LONG, QUIET, SCALED
from tests.golden_files import EMBEDDING, GENERATIVE, OWN, RANKING, RECOMBINED, TINY

RMS = 2e-5  # float32 sums in another order, over logits of deviation 2.5
LONG_RMS = 3e-4  # llama.cpp rotates positions by float32 angles
MARGIN = 0.02  # gap between the two most likely tokens below which a device that rounds may choose the other
F16_RMS = 4e-3  # keys and values are rounded to float16, which changes some models twice as much as others
OTHER_BOUNDS = {  # with keys and values in float32, and in float16
    # 27 random layers amplify rounding: router logits change by up to 0.05, and two rows use another expert.
    "tiny-deepseek2-lite": (1e-4, 2.5e-2),
    "tiny-gemma": (1e-3, 1.6e-2),  # llama.cpp computes GELU by a table of float16; its logits are larger, too
    **dict.fromkeys(("tiny-bloom", "tiny-codeshell", "tiny-falcon", "tiny-gptneox", "tiny-phi2"), (1e-3, F16_RMS)),
    **dict.fromkeys(("tiny-grok", "tiny-mpt", "tiny-spark2_5", "tiny-starcoder2"), (1e-3, F16_RMS)),
    "tiny-gemma3n": (2e-4, 3e-2),  # few gates are open, and a norm enlarges their results, and the rounding errors
    "tiny-gpt-oss": (RMS, 8e-3),  # YaRN scales q and k, so that scores are 1.8 times as large
}
MIXED = "mixed-llama", "codebooks-llama"  # formats that no other model has
# Kernels are tested in every mode. So are these whole models: attention, experts, recurrence. The others run in
# numpy and in the users' mode.
IN_EVERY_MODE = ("tiny-llama", "tiny-qwen3moe", "tiny-rwkv7")
IN_TWO = "cpu", "fast"  # in numpy and in the users' mode: the logits of short texts are tested in every mode
# Other models that run on the GPU have their kernels.
IN_NUMPY = (
    *("tiny-deepseek2-lite", "tiny-exaone", "tiny-exaone4", "tiny-gemma", "tiny-glm4", "tiny-hunyuan-dense"),
    *("tiny-internlm2", "tiny-minicpm", "tiny-olmo3", "tiny-seed_oss", "tiny-smollm3"),
    *("tiny-glm4moe", "tiny-llama-experts", "tiny-llama4", "tiny-qwen2", "tiny-qwen3", "tiny-ernie4_5"),
    # Other models test their kernels: Gemma 2, models with experts, or Llama.
    *("tiny-gemma3", "tiny-gemma4", "tiny-lfm2", "tiny-mistral3", "tiny-olmo2"),
    # Other models test their experts or hybrid layers.
    *("tiny-granite", "tiny-granite_swa", "tiny-nemotron_h", "tiny-plm", "tiny-qwen35", "tiny-hrm_text"),
    # Models that only recombine parts of others. The exceptions have gated heads, limited gates, a router that reads
    # the layer's input, norms after a sum of experts and a feed-forward, ALiBi, or layer norms (with biases, without,
    # and before experts).
    *(
        f"tiny-{arch}"
        for arch in RECOMBINED - {"cohere2", "cohere2moe", "grok", "laguna", "mpt", "phi2", "smallthinker", "step35"}
    ),
)
# Other models compile the same kernels, so these run on a GPU with --slow only.
IN_OTHER_MODES = ("tiny-llama", "checked"), ("tiny-llama", "portable"), ("tiny-rwkv7", "portable")
SLOW_ON_GPU = (
    *("tiny-arwkv7", "tiny-cohere2", "tiny-cohere2moe", "tiny-falcon-h1", "tiny-gemma4-experts"),
    *("tiny-deci", "tiny-granitehybrid", "tiny-laguna", "tiny-qwen35moe", "tiny-smallthinker"),
)
RUNS = slow_unless(
    lambda name, mode: mode == "cpu" or (mode == "fast" and name not in SLOW_ON_GPU) or (name, mode) in IN_OTHER_MODES,
    (
        (name, mode)
        for name in GENERATIVE
        for mode in ("cpu", *(MODES if name in IN_EVERY_MODE else () if name in IN_NUMPY else ("fast",)))
    ),
)
# Whole models on a GPU; `make test` otherwise runs only kernels there.
IN_MAKE_TEST = (
    ("tiny-llama", "fast"),
    ("tiny-rwkv7", "fast"),
)
RUNS = [pytest.param(*run, marks=pytest.mark.quick) if run in IN_MAKE_TEST else run for run in RUNS]
LONG_IN_NUMPY = [
    name for name in GENERATIVE if (OWN / f"{name}.long.npz").exists() and name.removeprefix("tiny-") not in LONG
]
# Encoders that run in the users' mode: distances, windows, experts without gates, matrices at the end.
EMBEDDING_ON_GPU = "tiny-jina-bert-v2", "tiny-modern-bert", "tiny-nomic-bert-moe", "dense-gemma-embedding"
EMBEDDING_RUNS = [(name, mode) for name in EMBEDDING for mode in (IN_TWO if name in EMBEDDING_ON_GPU else ("cpu",))]
EMBEDDING_IN_EVERY_MODE = slow_unless([("tiny-bert", "fast")], [("tiny-bert", mode) for mode in MODES])


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x.astype(np.float64) ** 2)))


def test_there_is_a_record_of_every_architecture():
    """Some architectures have several records, such as tiny-deepseek2-lite."""
    found = set()
    for name in TINY:
        with GGUFFile.open(OWN / f"{name}.gguf") as file:
            found.add(file.str("general.architecture"))
    assert found == set(MODELS)


@pytest.mark.parametrize(("name", "opening"), RUNS, indirect=["opening"])
def test_logits_equal_those_of_llama_cpp(opening, name, rounding):
    record = np.load(OWN / f"{name}.npz")
    ids = record["tokens"].tolist()
    as_users_run_it = "checked" not in opening and "portable" not in opening
    narrow = opening["device"] != "cpu" and not (name in IN_EVERY_MODE and as_users_run_it)
    bounds = dict(zip(("f32", "f16"), OTHER_BOUNDS.get(name, (RMS, F16_RMS)), strict=True))
    for kv in ("f32",) if narrow else bounds:
        # Float16 data is read across chunks in any case; numpy takes as long for single tokens as for all others.
        chunks = (40, 1) if narrow else (40, 7, 1)
        if opening["device"] == "cpu":
            chunks = (7,) if kv == "f16" else (40, 7)
        with rwkv_gpu.load(OWN / f"{name}.gguf", kv=kv, context=64, **opening) as llm:
            for chunk in chunks:
                assert rms(llm.logits(ids, chunk_size=chunk) - record["exact_logits"]) < bounds[kv] + rounding


@pytest.mark.long
@pytest.mark.parametrize("name", GENERATIVE)
def test_logits_of_single_tokens_in_numpy_equal_those_of_llama_cpp(name):
    record = np.load(OWN / f"{name}.npz")
    with rwkv_gpu.load(OWN / f"{name}.gguf", kv="f32", context=64, device="cpu") as llm:
        got = llm.logits(record["tokens"].tolist(), chunk_size=1)
    assert rms(got - record["exact_logits"]) < OTHER_BOUNDS.get(name, (RMS,))[0]


@pytest.mark.parametrize(("name", "opening"), EMBEDDING_RUNS + EMBEDDING_IN_EVERY_MODE, indirect=["opening"])
def test_embeddings_of_texts_equal_those_of_llama_cpp(opening, name, rounding):
    """Vectors are pooled as the file states, and normalised to length one."""
    record = np.load(OWN / f"{name}.npz")
    texts = [record["tokens"][first:last].tolist() for first, last in record["texts"]]
    lengths = np.linalg.norm(record["exact_pooled"], axis=1, keepdims=True)
    bounds = {"f32": RMS, "f16": F16_RMS}
    for kv in ("f32",) if name in EMBEDDING_ON_GPU and opening["device"] != "cpu" else bounds:
        bound = bounds[kv]
        with rwkv_gpu.load(OWN / f"{name}.gguf", kv=kv, context=64, **opening) as llm:
            assert rms(llm.embed(texts) * lengths - record["exact_pooled"]) < bound + rounding


@pytest.mark.parametrize("name", RANKING)
def test_ranks_of_texts_equal_those_of_llama_cpp(name):
    """The score is the classifier's first label."""
    record = np.load(OWN / f"{name}.npz")
    texts = [record["tokens"][first:last].tolist() for first, last in record["texts"]]
    with rwkv_gpu.load(OWN / f"{name}.gguf", kv="f32", context=64, device="cpu") as llm:
        found = llm._driver.work(llm.ranking_work(texts))
    assert rms(found - record["exact_pooled"][:, 0]) < RMS


def test_every_format_is_in_a_model_with_a_record():
    formats = set()
    for name in (*MIXED, *TINY):
        with GGUFFile.open(OWN / f"{name}.gguf") as file:
            weights = (
                tensor for tensor in file.tensors.values() if "tid2eid" not in tensor.name
            )  # that one has numbers
            formats |= {tensor.format.name for tensor in weights}
    assert formats == {fmt.name for fmt in FORMATS.values()}


@pytest.mark.parametrize("name", MIXED)
def test_a_model_of_all_other_formats_equals_llama_cpp(adapter, rounding, name):
    record = np.load(OWN / f"{name}.npz")
    for device in ("cpu", str(adapter.index)):
        with rwkv_gpu.load(OWN / f"{name}.gguf", kv="f32", context=64, device=device) as llm:
            for chunk in (48, 1):
                got = llm.logits(record["tokens"].tolist(), chunk_size=chunk)
                assert rms(got - record["exact_logits"]) < RMS + rounding


def equals_its_record(name: str, bound: float, **opening: Any) -> None:
    """Compares the logits of a whole prompt, and of its tokens one by one, with the record."""
    record = np.load(OWN / f"{name}.npz")
    with rwkv_gpu.load(OWN / f"{name}.gguf", kv="f32", context=64, **opening) as llm:
        for chunk in (40, 1):
            got = llm.logits(record["tokens"].tolist(), chunk_size=chunk)
            assert rms(got - record["exact_logits"]) < bound


@pytest.mark.parametrize("opening", IN_TWO, indirect=True)
def test_biases_of_every_matrix_of_a_layer_are_added(opening, rounding):
    """The smaller models of Granite Code have such biases; their files use Llama's architecture name."""
    equals_its_record("biased-llama", RMS + rounding, **opening)


@pytest.mark.parametrize("opening", IN_TWO, indirect=True)
def test_matrices_may_have_scales(opening, rounding):
    """Files in NVFP4 have scales of attention, feed-forwards, shared experts, and each expert."""
    equals_its_record("scaled-hy_v3", RMS + rounding, **opening)


@pytest.mark.parametrize("opening", IN_TWO, indirect=True)
def test_norms_of_chameleon_may_follow_branches(opening, rounding):
    """The 34B model has such norms. The record is computed by the publisher's formula in float64."""
    equals_its_record("swin-chameleon", RMS + rounding, **opening)


def test_granite_with_windows_may_have_experts():
    equals_its_record("experts-granite_swa", RMS, device="cpu")


def test_smallthinker_may_have_no_windows():
    """All layers then use RoPE. The routers of the smaller model use a softmax."""
    equals_its_record("plain-smallthinker", RMS, device="cpu")


def test_dense_layers_before_those_that_choose_blocks_equal_the_record():
    equals_its_record("leading-minimax-m3", RMS, device="cpu")


@pytest.mark.parametrize("opening", IN_TWO, indirect=True)
def test_heads_may_have_layer_norms(opening, rounding):
    """StableLM 2 12B, whose branches are parallel, and Command R+ have such norms."""
    equals_its_record("headed-stablelm", RMS + rounding, **opening)


@pytest.mark.parametrize("opening", IN_TWO, indirect=True)
def test_experts_may_differ_in_width_and_number_by_layer(opening, rounding):
    """Nemotron 3 Puzzle has such layers."""
    record = np.load(OWN / "puzzle-nemotron_h_moe.npz")
    with rwkv_gpu.load(OWN / "puzzle-nemotron_h_moe.gguf", kv="f32", context=64, **opening) as llm:
        for chunk in (40, 7, 1):
            got = llm.logits(record["tokens"].tolist(), chunk_size=chunk)
            assert rms(got - record["exact_logits"]) < RMS + rounding


@pytest.mark.parametrize("opening", IN_TWO, indirect=True)
@pytest.mark.parametrize("name", LONG)
def test_the_greedy_continuation_equals_that_of_llama_cpp(opening, name):
    record = np.load(OWN / f"tiny-{name}.npz")
    close = np.flatnonzero(record["exact_margin"] < MARGIN)
    count = min(24, int(close[0]) if close.size else 24)
    assert count > 4
    with rwkv_gpu.load(OWN / f"tiny-{name}.gguf", kv="f32", context=128, **opening) as llm:
        said = llm.generate(record["tokens"].tolist(), max_tokens=count, temperature=0)
    assert list(said.tokens) == record["exact_greedy"][: len(said.tokens)].tolist()
    assert len(said.tokens) == count or said.finish_reason == "stop"


@pytest.mark.parametrize("opening", IN_TWO, indirect=True)
@pytest.mark.parametrize("name", LONG)
def test_logits_of_a_thousand_tokens_equal_those_of_llama_cpp(opening, name, rounding):
    record = np.load(OWN / f"tiny-{name}.long.npz")
    with rwkv_gpu.load(OWN / f"tiny-{name}.gguf", kv="f32", context=1024, **opening) as llm:
        got = llm.logits(record["tokens"].tolist())[record["rows"]]
    assert rms(got - record["exact_logits"]) < LONG_RMS + rounding


@pytest.mark.parametrize("name", LONG_IN_NUMPY)
def test_logits_beyond_windows_equal_those_of_llama_cpp(name):
    record = np.load(OWN / f"{name}.long.npz")
    with rwkv_gpu.load(OWN / f"{name}.gguf", kv="f32", context=1024, device="cpu") as llm:
        got = llm.logits(record["tokens"].tolist())[record["rows"]]
    assert rms(got - record["exact_logits"]) < LONG_RMS


@pytest.mark.parametrize("opening", IN_TWO, indirect=True)
def test_factors_of_frequencies_equal_those_of_the_context_that_a_model_is_opened_with(opening):
    record = np.load(OWN / "tiny-phi3.npz")
    with rwkv_gpu.load(OWN / "tiny-phi3.gguf", kv="f32", context=8192, **opening) as llm:
        assert rms(llm.logits(record["tokens"].tolist()) - record["exact_logits_longctx"]) < 2 * RMS
    assert rms(record["exact_logits"] - record["exact_logits_longctx"]) > 0.1, "the factors would not be seen"


@pytest.mark.parametrize("opening", IN_TWO, indirect=True)
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


@pytest.mark.parametrize("opening", IN_TWO, indirect=True)
@pytest.mark.parametrize("name", SCALED)
def test_scaled_positions_equal_those_of_llama_cpp(opening, name, tmp_path):
    arch, keys = SCALED[name]
    plain, record = np.load(OWN / f"tiny-{arch}.npz"), np.load(OWN / f"scaled-{name}.npz")
    unscaled = plain["exact_logits"][: len(record["tokens"])]
    assert rms(unscaled - record["exact_logits"]) > 0.1, "the scaling would not be seen"
    path = written(tmp_path, with_keys((OWN / f"tiny-{arch}.gguf").read_bytes(), keys_of(arch, keys)))
    with rwkv_gpu.load(path, kv="f32", context=64, **opening) as llm:
        assert rms(llm.logits(record["tokens"].tolist()) - record["exact_logits"]) < RMS
