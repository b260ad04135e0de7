"""A tuned initial state: texts go on from it as from a text that has left it, and never from zeros."""

import numpy as np
import pytest
from gguf import GGUFWriter

import rwkv_gpu
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.initial_state import digest_of, read_initial_state
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.runner import prefill
from rwkv_gpu.engine.sampling import SamplingParams
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.registry import load_model
from tests.engine.test_engine import drive, ids_of, small, tokens
from tests.golden_files import golden

NAME = "tiny-rwkv7.gguf"


def write(path, arrays, arch="rwkv7", kind="state"):
    writer = GGUFWriter(path, arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tuned(count: int = 30):
    """The matrices that a text leaves, without its token shifts, and large, so that they show for long."""
    runner = small(NAME)
    prefill(runner, ids_of(count, 5))
    return {name: 40 * array for name, array in runner.read_state(0).items() if name.endswith("wkv")}


def expected(arrays, ids, count):
    """What follows by hand, from the state on."""
    runner, answer = small(NAME), []
    whole = {state.name: np.zeros(state.shape, np.float32) for state in runner.model.states} | arrays
    runner.write_state(0, 1, whole)
    logits = prefill(runner, ids, start=1)[-1]
    while len(answer) < count:
        answer.append(int(logits.argmax()))
        logits = prefill(runner, answer[-1:], start=len(ids) + len(answer))[-1]
    return answer


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_every_text_begins_with_it(adapter, where):
    """Of several requests, with stored prefixes and without, also where a state was exported and restored."""
    arrays, ids = tuned(), ids_of(2, 3)
    runner = small(NAME, adapter if where == "gpu" else None, initial=1)
    whole = {state.name: np.zeros(state.shape, np.float32) for state in runner.model.states} | arrays
    engine = Engine(runner, initial_state=whole)
    answer = expected(arrays, ids, 6)
    assert answer != expected({}, ids, 6)
    for _ in range(2):
        numbers = [engine.add(Request(ids, SamplingParams(temperature=0, max_tokens=6), keep=True)) for _ in range(3)]
        news = drive(engine)
        for number in numbers:
            assert tokens(news[number]) == answer
            assert news[number][-1].prompt_tokens == news[number][-1].prompt_done == len(ids)
    assert news[numbers[0]][-1].reused > 0
    length, saved = engine.export([*ids, *answer])
    assert length <= len(ids) + 6
    engine.prefixes.clear()
    engine.restore([*ids, *answer][:length], saved)
    number = engine.add(Request([*ids, *answer, 3], SamplingParams(temperature=0, max_tokens=2)))
    assert drive(engine)[number][-1].reused == length
    rows = np.concatenate(list(engine.evaluate(ids)))
    assert int(rows[-1].argmax()) == answer[0]
    runner.close()


def test_the_library_reads_the_file(tmp_path):
    path = write(tmp_path / "state.gguf", tuned())
    with rwkv_gpu.load(golden(NAME), device="cpu", initial_state=path, kv="f32") as llm:
        found = llm.generate(ids_of(2, 3), max_tokens=6)
    assert list(found.tokens) == expected(tuned(), ids_of(2, 3), len(found.tokens))
    assert found.stats.prompt_tokens == 2


def test_a_state_that_does_not_fit_is_refused_in_one_line(tmp_path):
    path = tmp_path / "x.gguf"

    def refused(message, name=NAME, **how):
        write(path, **how)
        with GGUFFile.open(golden(name)) as file, pytest.raises(BadInput, match=message):
            read_initial_state(path, load_model(file), file.str("general.architecture"))

    good = tuned()
    refused("is no tuned state", arrays=good, kind="lora")
    refused("a state of 'rwkv6'", arrays=good, arch="rwkv6")
    refused(r"has the shape \[2, 2\]", arrays={"blk.0.wkv": np.ones((2, 2), np.float32)})
    refused("no such state", arrays={"blk.0.nothing": np.ones((2, 2), np.float32)})
    refused("'llama' attends", name="tiny-llama.gguf", arrays=good, arch="llama")


def test_initial_states_are_told_apart_by_every_number():
    """A stored state belongs to the initial state that its text began with."""
    zeros, other = ({name: np.zeros((2, 3), np.float32) for name in "ab"} for _ in range(2))
    other["b"][1, 2] = 1e-6
    assert len({digest_of(None), digest_of(zeros), digest_of(other)}) == 3
    assert digest_of(zeros) == digest_of({name: array.copy() for name, array in zeros.items()})
