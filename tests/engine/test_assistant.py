"""Gemma 4's assistant: the logits of its drafts equal llama.cpp's records, and its drafts change no answer."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.runner import Runner
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.speculation.head_drafts import HeadDrafts
from rwkv_gpu.engine.step_result import SamplingInputs
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.sampling import DRAW, FROM_SLOT, Flag
from tests.cases import slow_unless
from tests.engine.test_eagle3 import check_answers, check_greedy, with_head
from tests.engine.test_engine import ids_of
from tests.engine.test_speculation import answers, speculator
from tests.golden.assistant import ASSISTANTS, write_assistant
from tests.golden_files import OWN
from tests.test_own_golden import RMS, rms

ENDS = 1, 2, 23, 60  # recorded lengths of prompts
TABLE = 1e-3  # tolerance: llama.cpp's GELU is a table of float16


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes all assistant files into a folder."""
    folder = tmp_path_factory.mktemp("assistants")
    for name in ASSISTANTS:
        write_assistant(folder / f"{name}.gguf", name)
    return folder


def loaded(folder: Path | None, name: str, adapter=None, **how) -> Runner:
    return with_head(ASSISTANTS[name], folder and folder / f"{name}.gguf", adapter, **how)


def drafted(runner: Runner, position: int, token: int, number: int) -> np.ndarray:
    """Returns the head's logits after a token. All tokens of a draft have the position of the first. [V]"""
    row = np.zeros(1, DRAW)
    row["flags"], row["slot"] = Flag.GREEDY, runner.draft_place(1, number)
    batch = runner.prepare(Batch.of([(1, position, [token])]))
    segments = tuple(one._replace(start=position - 1, state=None, kept=()) for one in batch.segments)
    batch = Batch(batch.ids, segments, (0,), extra_inputs=runner.head.extra_inputs([position]))
    return runner.draft(batch, SamplingInputs.of(row)._replace(logits=True)).wait().logits[0]


def test_each_draft_looks_back_at_all_tokens_before_it(files):
    runner, starts = loaded(files, "gemma4"), []
    draft, inputs = runner.draft, runner.head.extra_inputs

    def checked(batch: Batch, *rest):
        expected = inputs([segment.start + 1 for segment in batch.segments])
        assert all(np.array_equal(batch.extra_inputs[name], rows) for name, rows in expected.items())
        starts.extend(segment.start for segment in batch.segments)
        return draft(batch, *rest)

    runner.draft = checked
    request = Request(ids_of(9), SamplingParams(temperature=0, max_tokens=8))
    answers(runner, [request], speculator(HeadDrafts(runner), most=2))
    assert len(set(starts)) > 2


@pytest.mark.parametrize(
    ("name", "where"),
    slow_unless(lambda name, where: where == "cpu" or name == "gemma4", itertools.product(ASSISTANTS, ("cpu", "gpu"))),
)
def test_logits_of_drafts_equal_those_of_llama_cpp(files, name, where, request, rounding):
    record, at = np.load(OWN / f"assistant-{name}.npz"), 0
    tokens = record["tokens"].tolist()
    runner = loaded(files, name, request.getfixturevalue("adapter") if where == "gpu" else None)
    bound = RMS + TABLE + (rounding if where == "gpu" else 0)
    for end, expected in zip(ENDS, record["exact_drafts"], strict=True):
        for first in range(at, end, 16):
            logits = runner.step(Batch.of([(1, first, tokens[first : min(end, first + 16)])]))
        at, token, length = end, tokens[end], runner.store.length(1)
        for number, one in enumerate(expected):
            assert rms(drafted(runner, end, token, number) - one) < bound
            runner.store.truncate(1, length)
            token = FROM_SLOT | runner.draft_place(1, number)
    assert rms(logits[-1] - record["exact_logits"][-1]) < bound
    runner.close()


@pytest.mark.long
@pytest.mark.parametrize("name", ASSISTANTS)
def test_drafts_change_no_answer(files, name):
    check_answers(lambda: loaded(None, name), lambda: loaded(files, name))


def test_drafts_on_the_gpu_change_no_answer(files, adapter):
    """Greedy answers equal numpy's. The verifying step reads the drafted tokens on the device."""
    check_greedy(loaded(None, "gemma4"), loaded(files, "gemma4", adapter, slots=2))
