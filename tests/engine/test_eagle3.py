"""EAGLE-3 heads: their logits equal llama.cpp's records, and their drafts change no answer."""

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.runner import Runner
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.speculation.head_drafts import HeadDrafts
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.llm.drafts import joined_head
from rwkv_gpu.models.heads import predicting
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.sampling import FROM_SLOT
from tests.cases import slow_unless
from tests.engine.test_engine import ids_of
from tests.engine.test_heads import DRAFTS, drafted, known_head
from tests.engine.test_speculation import answers, asked, speculator
from tests.golden.eagle import EAGLES, write_eagle
from tests.golden_files import OWN, golden
from tests.test_own_golden import RMS, rms


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes all EAGLE-3 files into a folder."""
    folder = tmp_path_factory.mktemp("eagles")
    for name in EAGLES:
        write_eagle(folder / f"{name}.gguf", name)
    return folder


def loaded(folder: Path | None, name: str, adapter=None, **how) -> Runner:
    """Loads a model with its head of the folder, or without a head."""
    return with_head(EAGLES[name].base, folder and folder / f"{name}.gguf", adapter, **how)


def with_head(base: str, head: Path | None, adapter=None, **how) -> Runner:
    """Loads a golden model with the head of a file, or without one."""
    how = {"slots": 4, "chunk_size": 16, "context": 256, "kv": "f32", "drafts": DRAFTS, **how}
    with ExitStack() as stack:
        file = stack.enter_context(GGUFFile.open(golden(f"{base}.gguf")))
        model = load_model(file)
        if head is not None:
            file, found = joined_head(stack.enter_context(GGUFFile.open(head)), file, model)
            model = predicting(model, found)
        if adapter is None:
            return HostRunner(file, model, **how)
        return GpuRunner(Device(adapter), file, model, **how)


def check_answers(plain: Callable[[], Runner], headed: Callable[[], Runner]) -> None:
    """Greedy, sampled, penalised and constrained answers stay the same; the head drafts, or most drafts are correct."""
    vocabulary = plain().vocabulary
    expected, _ = answers(plain(), asked(vocabulary))
    for mistakes in (None, 0.3):
        runner = headed()
        head = HeadDrafts(runner) if mistakes is None else known_head(runner, asked(0), expected, mistakes)
        found, engine = answers(runner, asked(vocabulary), speculator(head, most=DRAFTS))
        assert found == expected
        assert engine.drafted > 100 and (mistakes is None or engine.accepted > 60)


def check_greedy(plain: Runner, headed: Runner) -> None:
    """Greedy answers equal those of the model alone, though some drafts are wrong."""
    requests = [Request(ids_of(3 + 7 * n, n), SamplingParams(temperature=0, max_tokens=16)) for n in range(2)]
    expected, _ = answers(plain, requests)
    found, engine = answers(headed, requests, speculator(known_head(headed, requests, expected, 0.3), most=DRAFTS))
    assert found == expected
    assert 0 < engine.accepted < engine.drafted
    headed.close()


def close(found: np.ndarray, expected: np.ndarray, bound: float) -> bool:
    """True if logits of known tokens are near the expected ones, and other tokens are never sampled."""
    known = np.isfinite(expected)
    return rms(found[known] - expected[known]) < bound and (found[~known] < -1e29).all()


@pytest.mark.parametrize(
    ("name", "where"),
    slow_unless(lambda name, where: where == "cpu" or name == "llama", itertools.product(EAGLES, ("cpu", "gpu"))),
)
def test_a_head_drafts_the_same_tokens_as_in_llama_cpp(files, name, where, request, rounding):
    """Logits are compared after prompts of several lengths, and after tokens that the head drafted."""
    record = np.load(OWN / f"eagle-{name}.npz")
    tokens = record["tokens"].tolist()
    runner = loaded(files, name, request.getfixturevalue("adapter") if where == "gpu" else None)
    bound, at = RMS + (rounding if where == "gpu" else 0), 0
    for end in (1, 2, 8, 23, 24):
        for first in range(at, end, 16):
            logits = runner.step(Batch.of([(1, first, tokens[first : min(end, first + 16)])]))
        at = end
        if end < len(tokens):
            state = runner.store.length(1)
            assert close(drafted(runner, end, tokens[end]), record["exact_head"][end - 1], bound)
            runner.store.truncate(1, state)
    assert rms(logits[-1] - record["exact_logits"][-1]) < bound
    token = int(record["exact_logits"][-1].argmax())
    for number, expected in enumerate(record["exact_drafts"]):
        assert close(drafted(runner, len(tokens) + number, token, number), expected, bound)
        token = FROM_SLOT | runner.draft_place(1, number)
    runner.close()


@pytest.mark.long
@pytest.mark.parametrize("name", EAGLES)
def test_drafts_change_no_answer(files, name):
    check_answers(lambda: loaded(None, name), lambda: loaded(files, name))


def test_drafts_on_the_gpu_change_no_answer(files, adapter):
    requests = [Request(ids_of(3 + 7 * n, n), SamplingParams(temperature=0, max_tokens=16)) for n in range(2)]
    expected, _ = answers(loaded(None, "llama"), requests)
    runner = loaded(files, "llama", adapter, slots=2)
    found, engine = answers(runner, requests, speculator(HeadDrafts(runner), most=DRAFTS))
    assert found == expected
    assert engine.drafted > 20
    runner.close()
