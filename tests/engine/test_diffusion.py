"""Diffusion models: answers agree with llama.cpp's logits, block by block, and requests do not affect each other."""

from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.engine.diffusion import BLOCK, BLOCK_STEPS, CANVAS, Canvas
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling import Sampled, SamplingParams
from rwkv_gpu.errors import BadFile, BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import load_model
from tests.engine.test_engine import small
from tests.gguf.parts import take_apart
from tests.gguf.writer import U32, written
from tests.golden_files import OWN

NAMES = "dream", "llada", "llada-moe", "rnd1"
MASK, END = 280, 2
PROMPT = list(range(5, 25))


def opened(name: str = "llada", **options):
    return rwkv_gpu.load(OWN / f"tiny-{name}.gguf", **{"device": "cpu", "kv": "f32", "context": 128, **options})


def check_record(llm: rwkv_gpu.LLM, name: str) -> None:
    record = np.load(OWN / f"tiny-{name}.npz")
    wanted = record["exact_unmasked"].tolist()
    answer = llm.generate(record["tokens"].tolist(), max_tokens=len(wanted), temperature=0, ignore_eos=True)
    assert list(answer.tokens) == wanted and answer.finish_reason == "length"


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_equals_that_of_llama_cpp(name):
    """The answer has two blocks, the second of 8 tokens."""
    with opened(name) as llm:
        assert llm.info.diffusion and not llm.info.encoder
        check_record(llm, name)


def test_the_answer_on_a_gpu_equals_that_of_llama_cpp(adapter):
    with opened(device=str(adapter.index)) as llm:
        check_record(llm, "llada")


def test_an_answer_is_the_same_alone_and_next_to_others():
    settings = {"max_tokens": 40, "temperature": 0.8, "top_k": 20, "ignore_eos": True}
    with opened() as llm:
        alone = [llm.generate(PROMPT[i:], seed=i, **settings).tokens for i in range(3)]
        streams = [llm.stream(PROMPT[i:], seed=i, **settings) for i in range(3)]
        together = [tuple(event.token for event in stream if event.token is not None) for stream in streams]
        assert together == alone
        assert len({*alone}) == 3


def test_a_step_has_logits_of_the_block_and_the_masks_after_it_only(monkeypatch):
    step, sizes = HostRunner.step, set()

    def counted(runner, batch):
        found = step(runner, batch)
        sizes.add((len(batch.ids), len(found)))
        return found

    monkeypatch.setattr(HostRunner, "step", counted)
    with opened() as llm:
        llm.generate(PROMPT, max_tokens=2 * BLOCK, temperature=0, ignore_eos=True)
    whole = len(PROMPT) + 2 * BLOCK
    assert sizes == {(whole, 2 * BLOCK + 1), (whole, BLOCK + 1)}  # and the row before them


@pytest.mark.parametrize("most", [1, 5, BLOCK_STEPS, BLOCK - 1, BLOCK, BLOCK + 3, CANVAS, CANVAS + 1])
def test_steps_of_a_block_decide_as_many_tokens_each_or_one_more_at_first(most):
    canvas = Canvas(SimpleNamespace(ids=[7, 7], length=2, max_length=2 + most), MASK)
    assert canvas.ids == [7, 7, *[MASK] * min(CANVAS, most)]
    assert canvas.open == [*range(2, 2 + min(BLOCK, most))]
    assert sum(canvas.counts) == len(canvas.open)
    assert len(canvas.counts) == min(BLOCK_STEPS, len(canvas.open))
    assert canvas.counts == sorted(canvas.counts, reverse=True) and canvas.counts[0] - canvas.counts[-1] < 2


def test_the_most_certain_tokens_are_decided_first_and_of_equal_ones_the_earliest():
    canvas = Canvas(SimpleNamespace(ids=[7], length=1, max_length=5), MASK)
    canvas.counts = [2, 1]
    tokens = {at: Sampled(10 + at, 0.0, ()) for at in canvas.open}
    canvas.decide({at: (certain, tokens[at]) for at, certain in zip(canvas.open, (0.5, 0.9, 0.5, 0.5), strict=True)})
    assert canvas.ids == [7, 11, 12, MASK, MASK] and canvas.open == [3, 4]
    canvas.decide({at: (0.1, tokens[at]) for at in canvas.open})
    assert canvas.ids == [7, 11, 12, 13, MASK] and canvas.open == [4]


def test_steps_and_their_requests_are_counted():
    with opened() as llm:
        llm.generate(PROMPT, max_tokens=3, temperature=0, ignore_eos=True)
        assert (llm.activity.steps, llm.activity.chunks) == (3, 3)


def test_a_paused_request_has_no_steps():
    engine = Engine(small("tiny-llada.gguf", context=128))
    numbers = [engine.add(Request(PROMPT[at:], SamplingParams(max_tokens=3, temperature=0))) for at in range(2)]
    engine.step()
    engine.pause(numbers[0])
    engine.step()
    assert (engine.activity.steps, engine.activity.chunks) == (2, 3)


def test_an_answer_longer_than_the_masks_continues():
    with opened(context=512) as llm:
        answer = llm.generate(PROMPT, max_tokens=CANVAS + 9, temperature=0, ignore_eos=True)
        assert len(answer.tokens) == CANVAS + 9 and answer.finish_reason == "length"


def test_an_answer_ends_at_its_end_token_at_its_limit_and_at_the_end_of_the_context():
    with opened() as llm:
        ended = llm.generate(PROMPT, max_tokens=40, temperature=0, logit_bias={END: 1000.0})
        assert (ended.tokens, ended.finish_reason) == ((), "stop")
        least = llm.generate(PROMPT, max_tokens=40, min_tokens=3, temperature=0, logit_bias={END: 1000.0})
        assert len(least.tokens) == 3 and least.finish_reason == "stop"
        assert len(llm.generate(PROMPT, max_tokens=1, temperature=0, ignore_eos=True).tokens) == 1
        assert len(llm.generate(PROMPT, max_tokens=1000, temperature=0, ignore_eos=True).tokens) == 128 - len(PROMPT)


def test_a_block_is_delivered_before_the_next_begins_and_an_answer_may_be_left():
    with opened() as llm:
        stream = llm.stream(PROMPT, max_tokens=3 * BLOCK, temperature=0, ignore_eos=True)
        next(iter(stream))
        stream.close()
        check_record(llm, "llada")


def test_the_mask_is_never_a_token_of_an_answer():
    with opened() as llm:
        answer = llm.generate(PROMPT, max_tokens=8, temperature=0, logit_bias={MASK: 1000.0}, ignore_eos=True)
        assert MASK not in answer.tokens


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda llm: llm.generate("a", schema={"type": "integer"}), "takes no schema"),
        (lambda llm: llm.logprobs("hello"), "does not predict the next token"),
        (lambda llm: llm.perplexity("hello"), "does not predict the next token"),
    ],
)
def test_options_that_need_tokens_in_order_are_refused(use, says):
    with opened() as llm, pytest.raises(BadInput, match=says):
        use(llm)


def test_options_of_models_that_read_in_order_are_refused():
    with pytest.raises(BadInput, match="supports no context shift"):
        opened(context_shift=4)


@pytest.mark.parametrize("value", [None, 288, 0xFFFFFFFF])
def test_a_file_without_a_mask_is_refused(value, tmp_path):
    whole = take_apart((OWN / "tiny-llada.gguf").read_bytes())
    whole.rows = [row for row in whole.rows if not row.name.endswith(b"mask_token_id")]
    if value is not None:
        whole.set("tokenizer.ggml.mask_token_id", U32, value)
    with GGUFFile.open(written(tmp_path, whole.built())) as file, pytest.raises(BadFile) as caught:
        load_model(file)
    assert "mask_token_id" in str(caught.value) and "\n" not in str(caught.value)


def test_a_mask_token_may_be_recognised_by_its_name_alone(tmp_path):
    whole = take_apart((OWN / "tiny-llada.gguf").read_bytes())
    whole.rows = [row for row in whole.rows if not row.name.endswith(b"mask_token_id")]
    tokens = next(row for row in whole.rows if row.name == b"tokenizer.ggml.tokens")
    tokens.value[270] = b"<|mdm_mask|>"
    with GGUFFile.open(written(tmp_path, whole.built())) as file:
        assert load_model(file).ends.diffusion.mask == 270


def test_commands_that_need_tokens_in_order_refuse_a_diffusion_model(tmp_path):
    for arguments in (
        ["export", "plan", OWN / "tiny-llada.gguf", tmp_path / "out"],
        ["bench", OWN / "tiny-llada.gguf", "--device", "cpu", "-n", "4"],
        ["generate", OWN / "tiny-llama.gguf", "--draft", OWN / "tiny-llada.gguf", "--device", "cpu", "-p", "a"],
    ):
        result = CliRunner().invoke(cli, [str(one) for one in arguments])
        assert result.exit_code and "diffusion" in result.output, arguments
