"""LoRA adapters give the answers of merged weights, even if rows of one step use different adapters."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from rwkv_gpu.engine.adapters import MAX_RANK, TABLE, Adapters, adapters_of
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.runner import prefill
from rwkv_gpu.engine.sampling import SamplingParams
from rwkv_gpu.errors import BadInput, RwkvGpuError
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.adapted import adapted_rows
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.vocabulary import Alternating
from tests.engine.test_engine import drive, ids_of, small, tokens
from tests.golden_files import golden

# The adapted tensors of each model: matrices with and without an activation, gate and up, rows of a tensor or of heads,
# RWKV's mixes and both halves of its own LoRAs, and the head, which reads picked rows.
MATRICES = {
    "llama": ("token_embd", "attn_q", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "output"),
    "phi3": ("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    "gemma3": ("attn_k", "attn_output", "ffn_gate", "ffn_down"),
    "rwkv6": ("time_mix_key", "time_mix_w1", "time_mix_decay_w2", "channel_mix_value"),
    "rwkv7": (
        "token_embd", "time_mix_receptance", "time_mix_key", "time_mix_value", "time_mix_output", "channel_mix_key",
        "channel_mix_value", "time_mix_a1", "time_mix_a2", "time_mix_g2", "output",
    ),
    "qwen35": ("attn_q", "attn_k", "ssm_out"),
    "falcon-h1": ("attn_q", "ssm_in", "ssm_out", "ffn_up"),
    "plamo2": ("attn_qkv", "ssm_in", "ssm_x", "ssm_dt", "ffn_up"),  # rows of heads, some of them several times
    "minicpm": ("token_embd",),  # whose rows are scaled
    "llama-experts": ("attn_q", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
    "qwen2moe": ("ffn_gate_inp", "ffn_gate_inp_shexp", "ffn_up_shexp"),
    "qwen3moe": ("ffn_down_exps",),
    "nemotron_h_moe": ("ffn_up_exps", "ffn_down_exps"),  # without a gate, after a latent
    "deepseek2": ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_shexp", "ffn_down_exps"),
    "gpt-oss": ("attn_q", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),  # with biases and limits
    "step35": ("attn_gate", "ffn_gate_exps", "ffn_up_exps", "ffn_gate_shexp", "ffn_down"),  # limits in some layers
    "smallthinker": ("ffn_gate_inp", "ffn_gate_exps"),  # a router that reads its layer's input
    "grok": ("ffn_gate_inp", "ffn_up", "ffn_down_exps"),  # a dense feed-forward parallel to experts
    "lfm2": ("attn_q", "in_proj", "out_proj", "ffn_down"),
}  # fmt: skip


def write(
    folder: Path,
    model: str,
    name: str,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    seed: int = 0,
    more=None,
    parts=None,
    keys=None,
) -> Path:
    """Writes a random adapter for these parts of a golden model."""
    folder.mkdir(parents=True, exist_ok=True)
    path, random = folder / f"{name}.gguf", np.random.default_rng(seed)
    with GGUFFile.open(golden(f"tiny-{model}.gguf")) as file:
        writer = GGUFWriter(path, file.str("general.architecture"))
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", alpha)
        for key, values in (keys or {}).items():
            writer.add_array(key, values)
        for tensor in file.tensors.values():
            if tensor.name.removesuffix(".weight").rpartition(".")[2] in (MATRICES[model] if parts is None else parts):
                *experts, rows, columns = tensor.shape if len(tensor.shape) > 1 else (1, *tensor.shape)
                factors = {"a": (*experts, rank, columns), "b": (*experts, rows, rank)}
                if tensor.name == TABLE:  # as converters write it
                    factors = {"a": (rows, rank), "b": (columns, rank)}
                for end, shape in factors.items():
                    values = (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float16)  # as GPUs have it
                    writer.add_tensor(f"{tensor.name}.lora_{end}", values)
        for tensor_name, values in (more or {}).items():
            writer.add_tensor(tensor_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def adapted(model: str, specs, adapter=None, **how):
    """Loads a model with adapters, in numpy or on a GPU."""
    how = {"slots": 4, "chunk_size": 16, "context": 256, "kv": "f32", **how}
    with GGUFFile.open(golden(f"tiny-{model}.gguf")) as file:
        adapters = adapters_of(specs, file)
        file.separate = adapters.separate
        if adapter is None:
            return HostRunner(file, load_model(file), adapters=adapters, **how)
        return GpuRunner(Device(adapter), file, load_model(file), adapters=adapters, **how)


def merged(model: str, adapters: Adapters, wanted: dict[str, float], **how) -> HostRunner:
    """Loads the same model with merged matrices."""
    how = {"slots": 4, "chunk_size": 16, "context": 256, "kv": "f32", **how}
    with GGUFFile.open(golden(f"tiny-{model}.gguf")) as file:
        file.separate = adapters.separate
        runner = HostRunner(file, load_model(file), **how)
    weights = dict(runner._weights)
    for weight in runner.model.weights:
        parts = weight.parts if isinstance(weight, Alternating) else (weight,)
        for place, part in enumerate(parts):
            name, rows = adapted_rows(part)
            for one in adapters.adapters:
                if name in one.factors and one.name in wanted:
                    a, b = one.factors[name]
                    more = wanted[one.name] * (b @ a).T if name == TABLE else wanted[one.name] * b[list(rows)] @ a
                    changed = weights[weight.name] = np.array(weights[weight.name])
                    changed[place :: len(parts)] += more.reshape(changed[place :: len(parts)].shape)
    runner._weights = weights
    return runner


@pytest.mark.parametrize("model", MATRICES)
def test_an_adapter_gives_the_logits_of_merged_weights(model, tmp_path):
    first, second = (write(tmp_path, model, name, rank=rank, seed=rank) for name, rank in (("first", 4), ("second", 7)))
    runner, ids = adapted(model, [(first, 0.5), second]), ids_of(40)
    plain = prefill(small(f"tiny-{model}.gguf"), ids)
    expected = prefill(merged(model, runner.adapters, {"first": 0.5, "second": 1.0}), ids)
    found = prefill(runner, ids)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)  # float32 sums in another order, over the layers
    assert np.abs(found - plain).max() > 0.1


@pytest.mark.parametrize("where", ["cpu", "gpu"])
@pytest.mark.parametrize("model", ["jina-bert-v3", "nomic-bert-moe"])
def test_an_encoder_has_adapters(model, where, adapter, tmp_path):
    """The adapter also changes the table of token types, whose first row is added to every token."""
    parts, how = ("token_embd", "token_types", "attn_q", "attn_qkv", "ffn_up"), {"chunk_size": 64}
    specs = [(write(tmp_path, model, "first", parts=parts), 0.5), write(tmp_path, model, "second", seed=1, parts=parts)]
    runner, ids = adapted(model, specs, adapter if where == "gpu" else None, **how), ids_of(40)
    batch = Batch.of([(0, 0, ids)], every=True)
    expected = merged(model, runner.adapters, {"first": 0.5, "second": 1.0}, **how).hidden(batch)
    np.testing.assert_allclose(runner.hidden(batch), expected, rtol=4e-3, atol=4e-3)
    types = [(write(tmp_path / "types", model, "types", parts=("token_types",)), 1.0)]
    plain = merged(model, runner.adapters, {}, **how).hidden(batch)
    assert np.abs(adapted(model, types, **how).hidden(batch) - plain).max() > 0.1
    runner.close()


@pytest.mark.parametrize("model", ["bert", "gpt2"])
def test_position_embeddings_cannot_be_adapted(model, tmp_path):
    """The loader refuses these tensors, because no code applies an adapter to them."""
    path = write(tmp_path, model, "one", parts=("position_embd",))
    with pytest.raises(BadInput, match=r"adapts 'position_embd\.weight'"):
        adapted(model, path)


def test_an_output_that_shares_the_embedding_matrix_is_not_adapted_with_it(tmp_path):
    table = np.zeros((369, 2), np.float32)
    table[250] = 3.0
    factors = {f"{TABLE}.lora_a": table, f"{TABLE}.lora_b": np.ones((72, 2), np.float32)}
    runner = adapted("gemma3", write(tmp_path, "gemma3", "one", more=factors, parts=()))
    for ids, changes in (([3, 4, 5], False), ([3, 250, 5], True)):
        found, plain = (prefill(one, ids) for one in (runner, small("tiny-gemma3.gguf")))
        assert np.array_equal(found, plain) != changes


@pytest.mark.parametrize("model", ["llama", "rwkv7", "llama-experts", "qwen2moe", "nemotron_h_moe", "deepseek2"])
def test_an_adapter_on_the_gpu_gives_the_logits_of_merged_weights(adapter, model, tmp_path):
    """A prompt and a step of one row are tested, because a single row uses other fused kernels."""
    path, ids = write(tmp_path, model, "one"), ids_of(21)
    runner, twin = adapted(model, path, adapter), adapted(model, path)
    for one in (runner, twin):
        prefill(one, ids[:-1])
    found, expected = (prefill(one, ids[-1:], start=20) for one in (runner, twin))
    np.testing.assert_allclose(found, expected, rtol=4e-3, atol=4e-3)  # as above, by other kernels
    runner.close()


@pytest.mark.parametrize("model", ["llama", "rwkv7"])
def test_requests_of_one_batch_have_adapters_of_their_own(model, tmp_path):
    """Four requests with the same prompt: each answers as its merged model, and none takes the prefix of another."""
    specs = [(write(tmp_path, model, name, seed=n), 0.0) for n, name in enumerate(("first", "second"))]
    runner = adapted(model, specs)
    sets = [None, {"first": 1.0}, {"second": -0.7}, {"first": 0.4, "second": 0.4}]
    engine, prompt = Engine(runner), ids_of(70)
    for _ in range(2):  # the second time with stored prefixes
        asked = [Request(prompt, SamplingParams(temperature=0, max_tokens=8, lora=one), keep=True) for one in sets]
        numbers = [engine.add(request) for request in asked]
        news = drive(engine)
        found = [tokens(news[number]) for number in numbers]
        for answer, one in zip(found, sets, strict=True):
            other = Engine(merged(model, runner.adapters, one or {}))
            number = other.add(Request(prompt, SamplingParams(temperature=0, max_tokens=8)))
            assert answer == tokens(drive(other)[number])
        assert len(set(map(tuple, found))) == 4
    assert all(news[number][-1].reused for number in numbers)


def test_prefixes_of_different_adapter_scales_have_different_keys(tmp_path):
    """More than 4,096 sets are used. Their number once had only 12 bits."""
    engine = Engine(adapted("llama", write(tmp_path, "llama", "one")))
    scales = [n / 5000 for n in range(5000)]
    sequences = [engine.accept(Request([1, 2], SamplingParams(lora={"one": scale}))) for scale in scales]
    keys = {sequence.key() for sequence in sequences}
    assert len(keys) == len({np.float32(scale) for scale in scales})
    assert engine.accept(Request([1, 2], SamplingParams(lora={"one": 1.0}))).family == 0  # as it was loaded


def test_the_identity_of_adapters_depends_on_scales_and_every_factor(tmp_path):
    one, other = (write(tmp_path, "llama", name, seed=seed) for seed, name in enumerate(("one", "other")))
    narrow = write(tmp_path, "llama", "narrow", rank=2)
    with GGUFFile.open(golden("tiny-llama.gguf")) as file:
        specs = (
            [],
            [one],
            [(one, 0.5)],
            [(one, 0.0)],
            [other],
            [narrow],
            [one, other],
            [other, one],
            [one, (other, 2.0)],
        )
        digests = [adapters_of(spec, file).digest() for spec in specs]
        assert adapters_of([(one, 1.0)], file).digest() == digests[1]
    assert len(set(digests)) == len(specs)


@pytest.mark.parametrize("specs", [5, {"a": 1.0}, [5], [("a",)], [("a", "b")], [("a", True)]])
def test_adapters_without_a_path_or_scale_are_refused(specs):
    with GGUFFile.open(golden("tiny-llama.gguf")) as file, pytest.raises(BadInput, match="lora"):
        adapters_of(specs, file)


def test_a_request_that_names_no_loaded_adapter_is_refused(tmp_path):
    engine = Engine(adapted("llama", write(tmp_path, "llama", "one")))
    with pytest.raises(BadInput, match="lora names 'two'; loaded: one"):
        engine.add(Request([1], SamplingParams(lora={"two": 1.0})))
    with pytest.raises(BadInput, match="lora of 'one' is 'x'"):
        SamplingParams(lora={"one": "x"})


ONES = np.ones((2, 8), np.float32)
BAD = {
    "another model's": (lambda folder: write(folder, "rwkv7", "x"), "is an adapter for 'rwkv7'"),
    "another shape": (
        lambda folder: write(
            folder, "llama", "x",
            more={f"blk.0.attn_k.weight.lora_{end}": np.ones(n, "f") for end, n in (("a", (2, 8)), ("b", (9, 2)))},
        ),
        r"factors \[2, 8\] and \[9, 2\]",
    ),
    "no such matrix": (
        lambda folder: write(
            folder, "llama", "x",
            more={"blk.99.x.weight.lora_a": np.ones((2, 8), "f"), "blk.99.x.weight.lora_b": np.ones((9, 2), "f")},
        ),
        "not a matrix of this model",
    ),
    "an embedding the other way round": (
        lambda folder: write(
            folder, "llama", "x", parts=("attn_q",),
            more={f"{TABLE}.lora_{end}": np.ones(n, "f") for end, n in (("a", (2, 64)), ("b", (288, 2)))},
        ),
        "but the matrix is",
    ),
    "a norm": (
        lambda folder: write(
            folder, "llama", "x",
            more={f"blk.0.attn_norm.weight.lora_{end}": np.ones(n, "f") for end, n in (("a", (2, 1)), ("b", (64, 2)))},
        ),
        "convolutions, norms, experts",
    ),
    "a whole tensor": (
        lambda folder: write(folder, "llama", "x", more={"blk.0.attn_norm.weight": np.ones(64, "f")}), "modules_to_save"
    ),
    "active after tokens": (
        lambda folder: write(folder, "llama", "x", keys={"adapter.alora.invocation_tokens": [1, 2]}), "aLoRA"
    ),
    "half a pair": (lambda folder: write(folder, "llama", "x", more={"blk.0.attn_k.weight.lora_a": ONES}), "no tensor"),
    "another tensor": (lambda folder: write(folder, "llama", "x", more={"other": ONES}), "not a factor"),
    "a model": (lambda _: golden("tiny-llama.gguf"), "is not a LoRA adapter"),
    "a scale": (lambda folder: (write(folder, "llama", "x"), float("nan")), "the scale of a LoRA adapter is nan"),
}  # fmt: skip


def test_experts_that_scale_their_input_are_refused(tmp_path):
    path = write(tmp_path, "llama4", "x", parts=("ffn_down_exps",))
    with GGUFFile.open(golden("tiny-llama4.gguf")) as file, pytest.raises(BadInput, match="experts of this family"):
        adapters_of([path], file)


def test_scales_ranks_and_changes_of_an_adapter_reach_their_limits_and_do_not_exceed_them(tmp_path):
    def read(name: str, scale: float = 1.0, *, rank: int = 4, largest: tuple[float, float] = (1, 1)) -> Adapters:
        with GGUFFile.open(golden("tiny-llama.gguf")) as file:
            rows, columns = file.tensors["blk.0.attn_k.weight"].shape
            a, b = np.zeros((rank, columns), "f"), np.zeros((rows, rank), "f")
            a[0, 0], b[-1, -1] = largest
            more = {"blk.0.attn_k.weight.lora_a": a, "blk.0.attn_k.weight.lora_b": b}
            path = write(tmp_path, "llama", name, alpha=0.0, more=more, parts=())
            return adapters_of([(path, scale)], file)

    for scale in (-1000.0, 1000.0):
        assert read("scaled", scale).scales()[0] == scale
        with pytest.raises(BadInput, match="must be from -1000 to 1000"):
            read("scaled", 1.001 * scale)
    assert read("strong", largest=(-128, 128)).rank == 4
    with pytest.raises(BadInput, match="exceed 16,384"):
        read("strong", largest=(128, -129))
    assert [read("wide", rank=rank).rank for rank in (1, 4, 5)] == [4, 4, 8]
    assert read("wide", rank=MAX_RANK).rank == MAX_RANK
    with pytest.raises(BadInput, match="has factors"):
        read("wide", rank=MAX_RANK + 1)


@pytest.mark.parametrize("what", BAD)
def test_an_adapter_that_does_not_fit_is_refused_before_anything_is_loaded(what, tmp_path):
    made, message = BAD[what]
    with GGUFFile.open(golden("tiny-llama.gguf")) as file, pytest.raises(RwkvGpuError, match=message):
        adapters_of([made(tmp_path)], file)
