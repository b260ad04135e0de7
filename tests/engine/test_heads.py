"""Draft heads: their logits equal llama.cpp's records, and their drafts change no answer."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from benchmarks.head_drafts import KnownHead
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.runner import Runner
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.speculation.acceptance import HEAD
from rwkv_gpu.engine.speculation.head_drafts import HeadDrafts, QueuedDrafts
from rwkv_gpu.engine.speculation.lookup import PromptLookup
from rwkv_gpu.engine.step_result import SamplingInputs
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.heads import predicting
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.sampling import DRAW, FROM_SLOT, Flag
from tests.cases import slow_unless
from tests.engine.test_engine import drive, ids_of, tokens
from tests.engine.test_speculation import Known, answers, asked, speculator
from tests.gguf.parts import take_apart
from tests.golden.heads import HEADED, write_headed
from tests.golden_files import OWN
from tests.test_own_golden import RMS, rms

DRAFTS = 4
ON_GPU = "qwen35", "mimo2"  # without and with windows; other tests of whole models cover the kernels of the others


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the file of every model with heads into a folder."""
    folder = tmp_path_factory.mktemp("headed")
    for name in HEADED:
        write_headed(folder / f"{name}.gguf", name)
    return folder


def headed(path: Path, adapter=None, **how) -> Runner:
    """Loads a model that uses its head, in numpy or on a GPU."""
    how = {"slots": 4, "chunk_size": 16, "context": 256, "kv": "f32", "drafts": DRAFTS, **how}
    with GGUFFile.open(path) as file:
        model = load_model(file)
        assert model.file_head.head, model.file_head.fault
        model = predicting(model, model.file_head.head)
        if adapter is None:
            return HostRunner(file, model, **how)
        return GpuRunner(Device(adapter), file, model, **how)


def drafted(runner: Runner, start: int, token: int, number: int = 0) -> np.ndarray:
    """Returns the head's logits after a token at a position. The likeliest token is drafted. [V]"""
    row = np.zeros(1, DRAW)
    row["flags"], row["slot"] = Flag.GREEDY, runner.draft_place(1, number)
    batch = runner.prepare(Batch.of([(1, start, [token])]))
    segments = [segment._replace(state=None, kept=()) for segment in batch.segments]
    how = SamplingInputs.of(row)._replace(logits=True)
    result = runner.draft(Batch(batch.ids, tuple(segments), (0,)), how, number).wait()
    assert result.rows[0].token == result.logits[0].argmax()
    return result.logits[0]


@pytest.mark.parametrize(
    ("name", "where"),
    slow_unless(lambda name, where: where == "cpu" or name in ON_GPU, itertools.product(HEADED, ("cpu", "gpu"))),
)
def test_a_head_drafts_the_same_tokens_as_in_llama_cpp(files, name, where, request, rounding):
    """Logits are compared after prompts of several lengths, and after tokens that the head drafted."""
    record = np.load(OWN / f"head-{name}.npz")
    tokens = record["tokens"].tolist()
    runner = headed(files / f"{name}.gguf", request.getfixturevalue("adapter") if where == "gpu" else None)
    bound, at = RMS + (rounding if where == "gpu" else 0), 0
    for end in (0, 1, 2, 8, 23, 24):
        for first in range(at, end, 16):
            logits = runner.step(Batch.of([(1, first, tokens[first : min(end, first + 16)])]))
        at = end
        if end < len(tokens):
            state = runner.store.length(1)
            assert rms(drafted(runner, end, tokens[end]) - record["exact_head"][end]) < bound
            runner.store.truncate(1, state)
    assert rms(logits[-1] - record["exact_logits"][-1]) < bound
    token = int(record["exact_logits"][-1].argmax())
    for number, expected in enumerate(record["exact_drafts"]):
        assert rms(drafted(runner, len(tokens) + number, token, number) - expected) < bound
        token = FROM_SLOT | runner.draft_place(1, number)
    runner.close()


def plain(path: Path, adapter=None, **how) -> Runner:
    """Loads the model without its head."""
    how = {"slots": 4, "chunk_size": 16, "context": 256, "kv": "f32", **how}
    with GGUFFile.open(path) as file:
        if adapter is None:
            return HostRunner(file, load_model(file), **how)
        return GpuRunner(Device(adapter), file, load_model(file), **how)


def known_head(runner: Runner, requests: list[Request], expected: list[list[int]], mistakes: float) -> KnownHead:
    known = {tuple(request.ids): answer for request, answer in zip(requests, expected, strict=True)}
    return KnownHead(runner, Known(known, mistakes))


@pytest.mark.parametrize(("name", "kv"), [*((name, "f32") for name in HEADED), ("qwen35", "q8")])
def test_drafts_of_a_head_change_no_answer(files, name, kv):
    """The answers are greedy, sampled, penalised or constrained; drafts come from the head, or are mostly right."""
    path = files / f"{name}.gguf"
    vocabulary = plain(path).vocabulary
    expected, _ = answers(plain(path, kv=kv), asked(vocabulary))
    runner = headed(path, kv=kv)
    found, engine = answers(runner, asked(vocabulary), speculator(HeadDrafts(runner), most=DRAFTS))
    assert found == expected
    assert engine.drafted > 100
    for mistakes in (0.0, 0.3):
        runner = headed(path, kv=kv)
        head = known_head(runner, asked(0), expected, mistakes)
        found, engine = answers(runner, asked(vocabulary), speculator(head, most=DRAFTS))
        assert found == expected
        assert engine.accepted > 60, "most of them"
        engine.prefixes.clear()
        assert runner.store.free == headed(path, kv=kv).store.free


@pytest.mark.parametrize("name", ON_GPU)
def test_drafts_of_a_head_on_the_gpu_change_no_answer(files, name, adapter, monkeypatch):
    """A draft is made and verified before the host has the result of the one before. Answers equal numpy's."""
    path = files / f"{name}.gguf"
    how = [SamplingParams(temperature=0, max_tokens=24), SamplingParams(temperature=0.9, seed=3, max_tokens=16)]
    how.append(SamplingParams(temperature=0, max_tokens=6))
    requests = [Request(ids_of(3 + 7 * n, n), one) for n, one in enumerate(how)]
    expected, _ = answers(plain(path), requests)
    runner = headed(path, adapter, slots=3)
    free = runner.store.free
    head = known_head(runner, requests, expected, 0.3)
    engine = Engine(runner, speculator=speculator(head, most=2))
    submit, following = runner.submit, []
    runner.submit = lambda batch, *rest: (
        following.append(sum(segment.assumed is not None for segment in batch.segments)),
        submit(batch, *rest),
    )[1]
    numbers = [engine.add(requests[0])]
    begun = drive(engine, 5)
    numbers += map(engine.add, requests[1:])  # their prompts share a step with a draft
    results = drive(engine)
    assert [tokens(begun.get(number, []) + results[number]) for number in numbers] == expected
    assert 0 < engine.accepted < engine.drafted
    assert sum(map(bool, following)) > 4, "most steps followed one whose result was not known"
    engine.prefixes.clear()
    assert runner.store.free == free
    followed, awaited = (drafts_of_head(runner, requests[0], follows, monkeypatch) for follows in (True, False))
    assert len(awaited[:12]) == 12 and followed[:12] == awaited[:12], "the head read other rows or positions"
    runner.close()


@pytest.mark.parametrize("name", ["qwen35", "mimo2"])
def test_a_head_drafts_the_same_in_each_slot(files, name, monkeypatch):
    """Each drafted token is the input of the next one of its own sequence, not of another slot."""
    take, drafts = QueuedDrafts.take, {}

    def taken(queued: QueuedDrafts) -> dict:
        found = take(queued)
        for sequence, draft in found.items():
            drafts.setdefault(tuple(sequence.request.ids), []).append(draft)
        return found

    monkeypatch.setattr(QueuedDrafts, "take", taken)
    requests = [Request(ids_of(5 + 2 * n, n), SamplingParams(temperature=0, max_tokens=12)) for n in range(3)]

    def drafted_for(those: list[Request]) -> dict:
        drafts.clear()
        runner = headed(files / f"{name}.gguf")
        answers(runner, those, speculator(HeadDrafts(runner), most=DRAFTS))
        return {ids: [draft for draft in found if len(draft) > 1] for ids, found in drafts.items()}

    single = [drafted_for([one])[tuple(one.ids)] for one in requests]
    assert all(single)
    together = drafted_for(requests)
    assert [together[tuple(one.ids)][0][:2] for one in requests] == [one[0][:2] for one in single]


def drafts_of_head(runner: Runner, request: Request, follows: bool, monkeypatch) -> list[list[int]]:
    """Returns the drafts of a real head, round by round, if each round follows the one before, or awaits its result."""
    take, rounds = QueuedDrafts.take, []

    def taken(drafts: QueuedDrafts) -> dict:
        found = take(drafts)
        rounds.extend(found.values())
        return found

    with monkeypatch.context() as patch:
        patch.setattr(QueuedDrafts, "take", taken)
        patch.setattr(type(runner), "follows", follows)
        _, engine = answers(runner, [request], speculator(HeadDrafts(runner), most=2))
    engine.prefixes.clear()
    return rounds


def test_a_lookup_with_the_higher_expected_gain_drafts_instead_of_a_head(files):
    """The lookup drafts repeated text. Elsewhere the head drafts."""
    path = files / "qwen35.gguf"
    request = Request(ids_of(30), SamplingParams(temperature=0, logit_bias={7: 100.0, 9: 90.0}, max_tokens=60))
    expected, _ = answers(plain(path), [request])
    runner = headed(path)
    both = speculator(PromptLookup(), HeadDrafts(runner), most=DRAFTS)
    kinds = []
    propose = both.propose
    both.propose = lambda ready, *rest: (propose(ready, *rest), kinds.extend(one.drafting.kind for one in ready))[0]
    found, engine = answers(runner, [request], both)
    assert found == expected
    assert {kind for kind in kinds if kind < HEAD}
    assert HEAD in kinds
    assert engine.accepted > 30


def test_drafts_are_the_same_after_a_stored_prefix_and_after_a_context_shift(files):
    """The rows in the slot then belong to another text. Only the first draft can be worse."""
    path, how = files / "qwen35.gguf", SamplingParams(temperature=0, max_tokens=40)
    requests = [Request(ids_of(40), how), Request(ids_of(40), how), Request(ids_of(20, 3), how)]
    results = []
    for runner in (plain(path, context=64), headed(path, context=64)):
        drafting = speculator(HeadDrafts(runner), most=DRAFTS) if runner.head else None
        engine = Engine(runner, speculator=drafting, context_shift=4)
        results.append([tokens(drive(engine)[number]) for number in map(engine.add, requests)])
    assert results[0] == results[1]
    assert all(len(answer) == 40 for answer in results[0])


def test_a_file_without_its_heads_is_a_model_without_heads(tmp_path):
    parts = take_apart(write_headed(tmp_path / "whole.gguf", "step35").read_bytes())
    parts.tensors = [one for one in parts.tensors if not one.name.startswith((b"blk.5.", b"blk.6.", b"blk.7."))]
    (tmp_path / "model.gguf").write_bytes(parts.built())
    with GGUFFile.open(tmp_path / "model.gguf") as file:
        assert load_model(file).file_head is None
