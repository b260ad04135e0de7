"""A tuned initial state: texts start from it, as if from an earlier text, and never from zeros."""

import io
import os
import zipfile

import numpy as np
import pytest
from gguf import GGUFWriter

import rwkv_gpu
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.initial_state import digest_of, read_initial_state
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.runner import prefill
from rwkv_gpu.engine.sampling import SamplingParams
from rwkv_gpu.errors import BadInput, RwkvGpuError
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.torch_file import read_torch_file
from rwkv_gpu.models.registry import load_model
from tests.engine.test_engine import drive, ids_of, small, tokens
from tests.gguf.test_safetensors import whole
from tests.gguf.torch_files import Calls, save, torch_names
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
    """Returns the state of a text without its token shifts, scaled up to stay visible for long."""
    runner = small(NAME)
    prefill(runner, ids_of(count, 5))
    return {name: 40 * array for name, array in runner.read_state(0).items() if name.endswith("wkv")}


def expected(arrays, ids, count):
    """Returns the tokens that follow the state, computed without the engine."""
    runner, answer = small(NAME), []
    whole = {state.name: np.zeros(state.shape, np.float32) for state in runner.model.states} | arrays
    runner.write_state(0, 1, whole)
    logits = prefill(runner, ids, start=1)[-1]
    while len(answer) < count:
        answer.append(int(logits.argmax()))
        logits = prefill(runner, answer[-1:], start=len(ids) + len(answer))[-1]
    return answer


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_every_text_begins_with_the_initial_state(adapter, where):
    """Several requests start with and without stored prefixes, also after a state was exported and restored."""
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


def test_load_reads_the_file_of_an_initial_state(tmp_path):
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
    refused("is not a tuned state", arrays=good, kind="lora")
    refused("a state for 'rwkv6'", arrays=good, arch="rwkv6")
    refused(r"has the shape \[2, 2\]", arrays={"blk.0.wkv": np.ones((2, 2), np.float32)})
    refused("no such state", arrays={"blk.0.nothing": np.ones((2, 2), np.float32)})
    refused("'llama' has attention", name="tiny-llama.gguf", arrays=good, arch="llama")


@pytest.fixture
def torch(monkeypatch):
    return torch_names(monkeypatch)


@pytest.mark.parametrize("kind", ["FloatStorage", "BFloat16Storage"])
def test_a_state_that_torch_saved_is_read_without_torch(tmp_path, torch, kind):
    arrays = tuned()
    names = {f"blocks.{n}.att.time_state": arrays[f"blk.{n}.wkv"] for n in range(2)}
    path = save(tmp_path / "state.pth", torch, names, kind)
    with GGUFFile.open(golden(NAME)) as file:
        found = read_initial_state(path, load_model(file), "rwkv7")
    for name, array in arrays.items():
        np.testing.assert_allclose(found[name], array, rtol=0 if kind == "FloatStorage" else 2**-7)
    assert not found["blk.0.shift_time"].any()


@pytest.mark.parametrize("kind", ["F16", "F32", "BF16"])
def test_a_state_in_the_format_of_web_rwkv_is_read(tmp_path, kind):
    """The converter of that format transposes each matrix."""
    arrays, path = tuned(), tmp_path / "state.st"
    stored = {f"blocks.{n}.att.time_state": (kind, arrays[f"blk.{n}.wkv"].swapaxes(1, 2)) for n in range(2)}
    path.write_bytes(whole(stored))
    with GGUFFile.open(golden(NAME)) as file:
        found = read_initial_state(path, load_model(file), "rwkv7")
    for name, array in arrays.items():
        np.testing.assert_allclose(found[name], array, rtol={"F32": 0, "F16": 2**-10, "BF16": 2**-7}[kind], atol=1e-6)


def test_a_safetensors_file_without_a_state_is_refused(tmp_path):
    path, name = tmp_path / "x.st", "blocks.0.att.time_state"

    def refused(message, data):
        path.write_bytes(data)
        with GGUFFile.open(golden(NAME)) as file, pytest.raises(RwkvGpuError, match=message):
            read_initial_state(path, load_model(file), "rwkv7")

    refused("no tensor such as blocks.0.att.time_state", whole({"emb.weight": ("F16", np.ones((4, 4)))}))
    refused("is not \\[heads, key, value\\]", whole({name: ("F16", np.ones(4))}))
    refused(r"has the shape \[2, 3, 4\]; the model has", whole({name: ("F16", np.ones((2, 4, 3)))}))
    refused("not a valid safetensors file", whole({name: ("F16", np.ones((2, 64, 64)))})[:-1])


def test_torch_files_without_a_state_are_refused_and_run_no_code(tmp_path, torch):
    ones = np.ones((2, 64, 64), np.float32)
    name = "blocks.0.att.time_state"
    path = tmp_path / "x.pth"

    def refused(message, arrays=None, **how):
        save(path, torch, {name: ones} if arrays is None else arrays, **how)
        with GGUFFile.open(golden(NAME)) as file, pytest.raises(RwkvGpuError, match=message) as failure:
            read_initial_state(path, load_model(file), "rwkv7")
        assert str(failure.value).isprintable()

    refused("it names posix.system|it names nt.system", more={"x": Calls(os.system, "touch ran")})
    refused("it names __builtin__.eval", more={"x": Calls(eval, "1")})
    refused("it holds more than tensors", more={"x": 5})
    refused("it names torch.LongStorage", kind="LongStorage")
    refused("not contiguous", strides=(1, 2, 3))
    refused("no tensor such as blocks.0.att.time_state", {"blocks.0.att.key": ones})
    refused(r"has the shape \[2, 64\]; the model has \[2, 64, 64\]", {name: ones[:, 0]})
    refused("the model has no such state", {"blocks.9.att.time_state": ones})
    refused("NaN or infinity", {name: ones * np.nan})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("nothing", "")
    with pytest.raises(RwkvGpuError, match="is not a dict of tensors"):
        read_torch_file(path)
    for length in (0, 1, 100, 500):
        whole = save(path, torch, {name: ones}).read_bytes()
        with zipfile.ZipFile(path, "w") as archive, zipfile.ZipFile(io.BytesIO(whole)) as good:
            archive.writestr("state/data.pkl", good.read("state/data.pkl")[:length])
        with pytest.raises(RwkvGpuError, match="is not a dict of tensors"):
            read_torch_file(path)


def test_the_identity_of_an_initial_state_depends_on_every_number():
    """A stored state can be used only with the initial state of its text."""
    zeros, other = ({name: np.zeros((2, 3), np.float32) for name in "ab"} for _ in range(2))
    other["b"][1, 2] = 1e-6
    assert len({digest_of(None), digest_of(zeros), digest_of(other)}) == 3
    assert digest_of(zeros) == digest_of({name: array.copy() for name, array in zeros.items()})
