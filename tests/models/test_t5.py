"""T5: answers agree with llama.cpp's logits and the publisher's formula, and requests do not affect each other."""

import numpy as np
import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.errors import BadFile, BadInput, ContextFull
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.differences import AnswersDiffer, warn_of_differences
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from tests.gguf.parts import take_apart
from tests.gguf.writer import U32, written
from tests.golden.record import t5, twins, write
from tests.golden_files import OWN

PATH = OWN / "tiny-t5.gguf"
RECORD = np.load(OWN / "tiny-t5.npz")
START, END = 3, 2
SOURCES = list(range(20, 60)), [7, 8], list(range(100, 109))
GREEDY = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}


def opened(**options):
    return rwkv_gpu.load(PATH, **{"device": "cpu", "kv": "f32", "context": 128, **options})


def logits(runner, source, tokens, chunk: int) -> np.ndarray:
    """The logits of every position of an answer, read in chunks."""
    runner.hidden(Batch.of([(0, 0, source)]))
    pieces = [(at, tokens[at : at + chunk]) for at in range(0, len(tokens), chunk)]
    found = [runner.step(Batch.of([(0, len(source) + at, piece)], every=True)) for at, piece in pieces]
    runner.store.forget(0)
    return np.concatenate(found)


def rms(x) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def formula(path, source, tokens) -> np.ndarray:
    """The logits of every position of an answer, by the publisher's formula in float64."""
    with GGUFFile.open(path) as file:
        w = {name: file.values(one).astype(np.float64) for name, one in file.tensors.items()}
        names = "attention.head_count", "attention.relative_buckets_count", "block_count", "decoder_block_count"
        heads, buckets, *counts = (file.int(f"t5.{name}") for name in names)
        eps = file.float("t5.attention.layer_norm_rms_epsilon")

    def norm(x, name):
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * w[f"{name}.weight"]

    def biases(at: str, i: int, count: int, causal: bool):
        after = np.arange(count)[None] - np.arange(count)[:, None]
        side = buckets if causal else buckets // 2
        far = np.log(np.maximum(np.abs(after), 1) / (side // 2)) / np.log(128 / (side // 2))
        large = np.minimum(side // 2 + (far * (side - side // 2) + 1e-9).astype(int), side - 1)
        bucket = np.where(np.abs(after) < side // 2, np.abs(after), large) + (0 if causal else side * (after > 0))
        table = w.get(f"{at}.{i}.attn_rel_b.weight", w[f"{at}.0.attn_rel_b.weight"])
        return np.where(causal & (after > 0), -np.inf, table[bucket].transpose(2, 0, 1))

    def attend(x, y, at, bias=0.0):
        q, k, v = (
            (z @ w[f"{at}_{n}.weight"].T).reshape(len(z), heads, -1) for n, z in zip("qkv", (x, y, y), strict=True)
        )
        scores = np.einsum("qhn,khn->hqk", q, k) + bias
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        y = np.einsum("hqk,khn->qhn", p / p.sum(axis=-1, keepdims=True), v)
        return y.reshape(len(x), -1) @ w[f"{at}_o.weight"].T

    def feed(x, at):
        y = x @ w[f"{at}_up.weight"].T
        if f"{at}_gate.weight" in w:
            gate = x @ w[f"{at}_gate.weight"].T
            y = y * gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        return (y if f"{at}_gate.weight" in w else np.maximum(y, 0)) @ w[f"{at}_down.weight"].T

    rows = {}
    for part, ids, count in zip(("enc", "dec"), (source, tokens), counts, strict=True):
        x = w["token_embd.weight"][ids]
        for i in range(count):
            at = f"{part}.blk.{i}"
            h = norm(x, f"{at}.attn_norm")
            x = x + attend(h, h, f"{at}.attn", biases(f"{part}.blk", i, len(ids), part == "dec"))
            if part == "dec":
                x = x + attend(norm(x, f"{at}.cross_attn_norm"), rows["enc"], f"{at}.cross_attn")
            x = x + feed(norm(x, f"{at}.ffn_norm"), f"{at}.ffn")
        rows[part] = norm(x, f"{part}.output_norm")
    tied = "output.weight" not in w
    return rows["dec"] @ w["token_embd.weight" if tied else "output.weight"].T * (x.shape[1] ** -0.5 if tied else 1)


def greedy(source, count: int) -> list[int]:
    """The likeliest tokens by the formula."""
    ids = [START]
    while len(ids) <= count:
        ids.append(int(formula(PATH, source, ids)[-1].argmax()))
    return ids[1:]


def test_logits_equal_those_of_llama_cpp():
    source, tokens, expected = (RECORD[name] for name in ("source", "tokens", "exact_logits"))
    assert rms(formula(PATH, source, tokens) - expected) < 1e-5
    with GGUFFile.open(PATH) as file:
        for kv, bound in (("f32", 1e-5), ("f16", 4e-3), ("q8", 4e-3)):
            runner = HostRunner(file, load_model(file), chunk_size=64, context=128, slots=1, kv=kv)
            for chunk in (40, 7, 1):
                assert rms(logits(runner, source.tolist(), tokens.tolist(), chunk) - expected) < bound


def test_logits_on_a_gpu_equal_those_of_llama_cpp(adapter, rounding):
    source, tokens, expected = (RECORD[name] for name in ("source", "tokens", "exact_logits"))
    with GGUFFile.open(PATH) as file:
        runner = GpuRunner(Device(adapter), file, load_model(file), chunk_size=64, context=128, slots=1, kv="f32")
        for chunk in (40, 1):
            assert rms(logits(runner, source.tolist(), tokens.tolist(), chunk) - expected) < 1e-5 + rounding
        runner.close()


@pytest.mark.parametrize("layers", [1, 3])
def test_gates_and_a_tied_head_equal_the_formula(layers, tmp_path):
    """Source and answer are longer than the distances with buckets of their own."""
    (values, keys), path = t5(layers, gated=True, tied=True, layers=layers), tmp_path / "model.gguf"
    write(path, "t5", keys, twins(values)[0])
    source, tokens = list(range(3, 203)), [START, *range(50, 230)]
    with GGUFFile.open(path) as file:
        with pytest.warns(AnswersDiffer, match="divided by sqrt"):
            warn_of_differences(file)
        runner = HostRunner(file, load_model(file), chunk_size=256, context=512, slots=1, kv="f32")
    assert rms(logits(runner, source, tokens, 256) - formula(path, source, tokens)) < 1e-5


@pytest.mark.parametrize("room", [None, 64])
def test_answers_are_the_same_alone_and_next_to_others(room):
    """With few pages, answers wait for each other, and begin again."""
    expected = [tuple(greedy(source, 12)) for source in SOURCES]
    with opened(context=64, tokens=room) as llm:
        streams = [llm.stream(source, **GREEDY) for source in SOURCES]
        assert [tuple(one.token for one in stream if one.token is not None) for stream in streams] == expected
        assert [llm.generate(source, **GREEDY).tokens for source in SOURCES] == expected


def test_an_answer_ends_at_its_end_token_and_its_prompt_is_not_taken_from_others():
    with opened() as llm:
        for _ in range(2):
            answer = llm.create_completion(SOURCES[0], max_tokens=4, temperature=0, logit_bias={str(END): 100.0})
            assert answer["choices"][0]["finish_reason"] == "stop"
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert llm.generate("hello", schema={"type": "boolean"}, max_tokens=9).text in ("true", "false")
        assert llm.embed(["hello", "the"]).shape == (2, 32)


def test_a_source_longer_than_a_step_is_refused():
    with opened() as llm, pytest.raises(ContextFull):
        llm.generate([5] * 3000)


@pytest.mark.parametrize(
    "options", [{"context_shift": 4}, {"lookup": True}, {"split": (1, 1), "device": ("cpu", "cpu")}]
)
def test_options_of_models_without_an_encoder_are_refused(options):
    with pytest.raises(BadInput, match="encoder-decoder"):
        opened(**options)


def test_measures_of_a_text_are_refused():
    with opened() as llm, pytest.raises(BadInput, match="encoder-decoder"):
        llm.perplexity("hello")


def test_commands_that_continue_a_text_refuse_t5(tmp_path):
    for arguments in (
        ["export", "plan", PATH, tmp_path / "out"],
        ["bench", PATH, "--device", "cpu", "-n", "4"],
        ["generate", OWN / "tiny-llama.gguf", "--draft", PATH, "--device", "cpu", "-p", "a"],
    ):
        result = CliRunner().invoke(cli, [str(one) for one in arguments])
        assert result.exit_code and "encoder-decoder" in result.output, arguments


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("decoder_start_token_id", 288),
        ("decoder_block_count", 0),
        ("decoder_block_count", 1),
        ("attention.head_count_kv", 2),
    ],
)
def test_contradictions_of_a_file_are_refused(key, value, tmp_path):
    whole = take_apart(PATH.read_bytes())
    whole.set(f"t5.{key}", U32, value)
    with GGUFFile.open(written(tmp_path, whole.built())) as file, pytest.raises((BadFile, rwkv_gpu.UnsupportedModel)):
        load_model(file)


@pytest.mark.parametrize("name", ["cross_attn_k.weight", "cross_attn_norm.weight", "attn_rel_b.weight"])
def test_a_file_without_a_tensor_of_the_decoder_is_refused(name, tmp_path):
    whole = take_apart(PATH.read_bytes())
    whole.tensors = [one for one in whole.tensors if one.name != f"dec.blk.0.{name}".encode()]
    with GGUFFile.open(written(tmp_path, whole.built())) as file, pytest.raises(BadFile, match="no such tensor"):
        load_model(file)
