"""DFlash heads: the logits of their blocks equal llama.cpp's records, and their drafts change no answer."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from rwkv_gpu.engine.runner import Runner
from rwkv_gpu.engine.step_result import SamplingInputs
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.sampling import DRAW, Flag
from tests.cases import slow_unless
from tests.engine.test_eagle3 import check_answers, check_greedy, close, with_head
from tests.golden.dflash import BLOCK, FLASHES, MASK, write_dflash
from tests.golden_files import OWN
from tests.test_own_golden import RMS, rms

ENDS = 1, 2, 8, 23  # recorded lengths of prompts
TABLE = 3e-3  # tolerance: llama.cpp's GELU is a table of float16


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes all DFlash files into a folder."""
    folder = tmp_path_factory.mktemp("flashes")
    for name in FLASHES:
        write_dflash(folder / f"{name}.gguf", name)
    return folder


def loaded(folder: Path | None, name: str, adapter=None, **how) -> Runner:
    return with_head(FLASHES[name].base, folder and folder / f"{name}.gguf", adapter, **how)


def block(runner: Runner, start: int, token: int) -> np.ndarray:
    """Returns the head's logits for a block that begins with a token at a position. [k, V]"""
    rows = np.zeros(BLOCK - 1, DRAW)
    rows["flags"], rows["slot"] = Flag.GREEDY, [runner.draft_place(1, number) for number in range(BLOCK - 1)]
    batch = runner.prepare(Batch.of([(1, start, [token] + [MASK] * (BLOCK - 1))], wanted=[BLOCK - 1]))
    segments = tuple(segment._replace(state=None, kept=()) for segment in batch.segments)
    how = SamplingInputs.of(rows)._replace(logits=True)
    result = runner.draft(Batch(batch.ids, segments, batch.outputs), how).wait()
    assert [row.token for row in result.rows] == result.logits.argmax(-1).tolist()
    return result.logits


@pytest.mark.parametrize(
    ("name", "where"),
    slow_unless(lambda name, where: where == "cpu" or name == "llama", itertools.product(FLASHES, ("cpu", "gpu"))),
)
def test_logits_of_a_block_equal_those_of_llama_cpp(files, name, where, request, rounding):
    record = np.load(OWN / f"dflash-{name}.npz")
    tokens, at = record["tokens"].tolist(), 0
    runner = loaded(files, name, request.getfixturevalue("adapter") if where == "gpu" else None)
    bound = RMS + (rounding if where == "gpu" else 0) + (TABLE if name == "gemma4" else 0)
    for end, expected in zip((*ENDS, len(tokens)), (*record["exact_blocks"], None), strict=True):
        for first in range(at, end, 16):
            logits = runner.step(Batch.of([(1, first, tokens[first : min(end, first + 16)])]))
        at = end
        if expected is not None:
            state = runner.store.length(1)
            assert close(block(runner, end, tokens[end]), expected, bound)
            runner.store.truncate(1, state)
    assert rms(logits[-1] - record["exact_logits"][-1]) < bound
    runner.close()


@pytest.mark.parametrize("name", FLASHES)
def test_drafts_change_no_answer(files, name):
    check_answers(lambda: loaded(None, name), lambda: loaded(files, name))


@pytest.mark.parametrize("name", ["llama", "qwen35"])
def test_drafts_on_the_gpu_change_no_answer(files, name, adapter):
    """Greedy answers equal numpy's. The verifying step reads the drafted block on the device."""
    check_greedy(loaded(None, name), loaded(files, name, adapter, slots=2))
