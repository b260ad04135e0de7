"""HRM-Text: prompts are read in both directions as by the publisher, and contradictions in files are refused."""

import functools
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.errors import BadFile, BadInput, ContextFull, UnsupportedModel
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.differences import AnswersDiffer
from rwkv_gpu.models.registry import load_model
from tests.gguf.parts import take_apart
from tests.gguf.writer import BOOL, U32, written
from tests.golden_files import OWN

PATH = OWN / "tiny-hrm_text.gguf"
RECORD = np.load(OWN / "tiny-hrm_text.npz")
TOKENS = RECORD["tokens"].tolist()
PROMPTS = tuple(TOKENS[3:40]), (7, 8), tuple(range(100, 150)), tuple(TOKENS[:25])
WHOLE = {"hrm_text.hrm.prefix_lm": True}
ANSWER = 12
FURTHER = {"tokens": 128}, {"lookup": True}  # options


@functools.cache
def contents() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The tensors and keys of the model."""
    with GGUFFile.open(PATH) as file:
        tensors = {name: file.values(one).astype(np.float64) for name, one in file.tensors.items()}
        return tensors, {name.removeprefix("hrm_text."): value for name, value in file.metadata.items()}


def formula(tokens: list[int], prompt: int) -> np.ndarray:
    """The logits of every position by the publisher's formula in float64. The first `prompt` tokens see each other."""
    w, keys = contents()
    size, high, low = (keys[f"hrm.{name}"] for name in ("layers_per_stack", "h_cycles", "l_cycles"))
    heads, base, eps = keys["attention.head_count"], keys["rope.freq_base"], keys["attention.layer_norm_rms_epsilon"]
    at = np.arange(len(tokens))
    seen = (at[None] <= at[:, None]) | (np.maximum(at[None], at[:, None]) < prompt)

    def norm(x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)

    def linear(x, name):
        return x @ w[f"{name}.weight"].T

    def turned(x):
        half = x.shape[-1] // 2
        angles = at[:, None, None] * base ** (-np.arange(half) / half)
        pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
        return np.concatenate([pairs.real, pairs.imag], axis=-1)

    def layer(x, i):
        h = norm(x)
        q, k, v = (linear(h, f"blk.{i}.attn_{name}")[:, None] for name in "qkv")
        q = q.reshape(len(x), heads, -1)
        scores = np.where(seen, np.einsum("qhn,kxn->hqk", turned(q), turned(k)) / np.sqrt(q.shape[2]), -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        y = np.einsum("hqk,kxn->qhn", p / p.sum(-1, keepdims=True), v).reshape(len(x), -1)
        x = x + linear(y / (1 + np.exp(-linear(h, f"blk.{i}.attn_gate"))), f"blk.{i}.attn_output")
        gate, up = (linear(norm(x), f"blk.{i}.ffn_{name}") for name in ("gate", "up"))
        return x + linear(gate / (1 + np.exp(-gate)) * up, f"blk.{i}.ffn_down")

    def stack(x, first):
        for i in range(first, first + size):
            x = layer(x, i)
        return norm(x)

    slow = w["token_embd.weight"][tokens] * keys["embedding_scale"]
    fast = w["hrm.z_l_init"]
    for _ in range(high):
        for _ in range(low):
            fast = stack(slow + fast, 0)
        slow = stack(slow + fast, size)
    return linear(slow, "output")


@functools.cache
def likeliest(prompt: tuple[int, ...]) -> tuple[list[int], list[float]]:
    """The likeliest answer to a prompt that is read in both directions, with its log probabilities."""
    ids, found = list(prompt), []
    for _ in range(ANSWER):
        logits = formula(ids, len(prompt))[-1]
        ids.append(int(logits.argmax()))
        found.append(float(logits.max() - np.logaddexp.reduce(logits)))
    return ids[len(prompt) :], found


def opened(**options):
    return rwkv_gpu.load(PATH, **{"device": "cpu", "kv": "f32", "context": 128, "override_kv": WHOLE, **options})


def check_answers(llm: rwkv_gpu.LLM, bound: float) -> None:
    """Asks all prompts at once, then one after the other."""
    asked = {"max_tokens": ANSWER, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    streams = [llm.stream(prompt, **asked) for prompt in PROMPTS]
    together = [[one for one in stream if one.token is not None] for stream in streams]
    alone = [[one for one in llm.stream(prompt, **asked) if one.token is not None] for prompt in PROMPTS]
    for answers in (together, alone):
        for prompt, events in zip(PROMPTS, answers, strict=True):
            tokens, logprobs = likeliest(prompt)
            assert [one.token for one in events] == tokens
            assert np.abs(np.array([one.logprob for one in events]) - logprobs).max() < bound


pytestmark = pytest.mark.filterwarnings("ignore::rwkv_gpu.models.differences.AnswersDiffer")


def test_the_formula_equals_llama_cpp_if_prompts_are_read_from_left_to_right():
    assert np.sqrt(np.mean((formula(TOKENS, 0) - RECORD["exact_logits"]) ** 2)) < 1e-5


@pytest.mark.parametrize("options", [{}, *(pytest.param(one, marks=pytest.mark.long) for one in FURTHER)])
def test_the_tokens_of_a_prompt_see_all_of_it(options):
    """With few pages, answers wait for each other, and begin again."""
    with opened(**options) as llm:
        check_answers(llm, 1e-4)


def test_the_tokens_of_a_prompt_see_all_of_it_on_a_gpu(adapter, rounding):
    with opened(device=str(adapter.index)) as llm:
        check_answers(llm, 1e-4 + 10 * rounding)


def test_a_text_that_is_continued_after_its_middle_was_cut_is_read_as_prompt_and_answer():
    """The rest of the prompt stays a prompt. 41 tokens fill the context of 64, the last cut leaves 32."""
    with opened(context=64, context_shift=8) as llm:
        found = llm.generate(PROMPTS[0], max_tokens=60, temperature=0, ignore_eos=True).tokens
    assert len(found) == 60
    whole = [*PROMPTS[0], *found[: 64 - len(PROMPTS[0])]]
    start, end = 8, 8 + (64 - 8 + 1) // 2
    rest = [*whole[:start], *whole[end:]]
    for token in found[64 - len(PROMPTS[0]) :][:8]:
        assert int(formula(rest, len(PROMPTS[0]) - (end - start))[-1].argmax()) == token
        rest.append(token)


def test_a_prompt_is_not_taken_from_another_one_and_a_longer_one_than_a_step_is_refused():
    with opened() as llm:
        for _ in range(2):
            answer = llm.create_completion(PROMPTS[2], max_tokens=2)
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        np.testing.assert_allclose(llm.logits(TOKENS), RECORD["exact_logits"], atol=1e-4)  # a text is no prompt
    with opened(context=None) as llm, pytest.raises(ContextFull):
        llm.generate([5] * 3000)


def test_what_reads_prompts_from_left_to_right_refuses_such_a_model(tmp_path):
    with pytest.raises(BadInput, match="split"):
        opened(split=(1, 1), device=("cpu", "cpu"))
    whole = take_apart(PATH.read_bytes())
    whole.set("hrm_text.hrm.prefix_lm", BOOL, True)
    path = written(tmp_path, whole.built())
    result = CliRunner().invoke(cli, ["export", "plan", str(path), str(tmp_path / "out")])
    assert result.exit_code and "see all of it" in result.output
    with pytest.warns(AnswersDiffer, match="prefix_lm=bool:false"):
        rwkv_gpu.load(path, device="cpu").close()


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("block_count", 11, "found 11, expected 12"),
        ("hrm.layers_per_stack", 3, "expected 18"),
        ("hrm.layers_per_stack", 0, "layers_per_stack"),
        ("hrm.h_cycles", 512, "too many"),
        ("hrm.l_cycles", 0xFFFFFFFF, "l_cycles"),
    ],
)
def test_contradictory_counts_are_refused(key, value, why, tmp_path):
    whole = take_apart((OWN / "tiny-hrm_text.gguf").read_bytes())
    whole.set(f"hrm_text.{key}", U32, value)
    with GGUFFile.open(written(tmp_path, whole.built())) as file, pytest.raises((BadFile, UnsupportedModel), match=why):
        load_model(file)


@pytest.mark.parametrize("name", ["hrm.z_l_init", "blk.3.attn_gate.weight"])
def test_a_file_without_a_tensor_is_refused(name, tmp_path):
    whole = take_apart((OWN / "tiny-hrm_text.gguf").read_bytes())
    whole.tensors = [one for one in whole.tensors if one.name != name.encode()]
    with GGUFFile.open(written(tmp_path, whole.built())) as file, pytest.raises(BadFile, match="no such tensor"):
        load_model(file)
