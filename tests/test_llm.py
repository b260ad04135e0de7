"""A loaded model: results equal llama.cpp's records for any chunks, and refusals are clear."""

import os

import numpy as np
import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.errors import BadFile, BadInput, NoAdapter
from rwkv_gpu.gpu.device import Device
from tests.gguf.writer import gguf, text_key, written
from tests.golden_files import OWN, golden
from tests.models.tiny_rwkv7 import tiny_tensors, write

RWKV7 = [
    "rwkv7-bf16-BF16",
    "rwkv7-bf16-Q2_K",
    "rwkv7-bf16-Q4_K_M",
    "rwkv7-bf16-Q6_K",
    "rwkv7-mini-F16",
    "rwkv7-mini-Q4_K_M",
    "rwkv7-mini-Q5_1",
    "rwkv7-mini-Q8_0",
]
# In numpy, and as users run them: test_own_golden has smaller ones in every mode.
in_two = pytest.mark.parametrize("opening", ["cpu", "fast"], indirect=True)
LONG = ["rwkv7-bf16-Q4_K_M", "rwkv7-mini-Q4_K_M"]
# All arithmetic is float32, with logits of deviation 2.5: another order of sums changes 2e-6, a tenth of this.
RMS = 2e-5


def rms(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.mean((a.astype(np.float64) - b) ** 2)))


@in_two
@pytest.mark.parametrize("name", RWKV7)
def test_logits_equal_those_of_llama_cpp_in_any_chunks(opening, name, rounding):
    record = np.load(golden(f"{name}.npz"))
    ids = record["tokens"].tolist()
    with rwkv_gpu.load(golden(f"{name}.gguf"), **opening) as llm:
        for chunk in (48, 7, 1):
            assert rms(llm.logits(ids, chunk_size=chunk), record["exact_logits"]) < RMS + rounding


@in_two
@pytest.mark.parametrize("name", LONG)
def test_logits_of_a_thousand_tokens_equal_those_of_llama_cpp(opening, name):
    record = np.load(golden(f"{name}.long.npz"))
    with rwkv_gpu.load(golden(f"{name}.gguf"), **opening) as llm:
        logits = llm.logits(record["tokens"].tolist())[record["rows"]]
    assert rms(logits, record["exact_logits"]) < RMS


@in_two
@pytest.mark.parametrize("name", RWKV7)
def test_greedy_continuation_equals_that_of_llama_cpp(opening, name):
    record = np.load(golden(f"{name}.npz"))
    certain = int(np.argmax(record["exact_margin"] < 0.02)) if (record["exact_margin"] < 0.02).any() else 64
    with rwkv_gpu.load(golden(f"{name}.gguf"), **opening) as llm:
        done = llm.generate(record["tokens"].tolist(), max_tokens=max(certain, 1))
    assert list(done.tokens)[:certain] == record["exact_greedy"][:certain].tolist()


def test_a_trained_model_gives_the_logits_of_its_authors(opening):
    record = np.load(golden("rwkv7-trained-0.8M-F32.npz"))
    with rwkv_gpu.load(golden("rwkv7-trained-0.8M-F32.gguf"), **opening) as llm:
        logits = llm.logits(record["tokens"].tolist())
    assert np.abs(logits - record["exact_logits"]).max() < 1e-4


def test_text_is_encoded_and_decoded_by_the_tokenizer():
    with rwkv_gpu.load(golden("rwkv7-mini-Q8_0.gguf"), device="cpu") as llm:
        for text in ("hello world", "日本語\n\n", ""):
            assert llm.detokenize(llm.tokenize(text)) == text
        done = llm.generate("hello", max_tokens=5)
        assert done.text == llm.detokenize(done.tokens)
        assert done.finish_reason in ("length", "stop")
        assert done.stats.prompt_tokens == len(llm.tokenize("hello", special=True))


def test_the_same_seed_gives_the_same_answer():
    with rwkv_gpu.load(golden("rwkv7-mini-Q8_0.gguf"), device="cpu") as llm:
        a, b, c = (llm.generate("hello", max_tokens=20, temperature=1.0, seed=seed).tokens for seed in (1, 1, 2))
    assert a == b
    assert a != c


def test_layers_submitted_apart_give_the_same_bytes(adapter):
    path, device = golden("rwkv7-mini-Q8_0.gguf"), str(adapter.index)
    with rwkv_gpu.load(path, device=device) as whole, rwkv_gpu.load(path, device=device, layers_per_submit=1) as parts:
        assert whole.logits([1, 2, 3]).tobytes() == parts.logits([1, 2, 3]).tobytes()


def test_invalid_prompts_and_settings_are_refused_by_name():
    with rwkv_gpu.load(golden("rwkv7-mini-Q8_0.gguf"), device="cpu") as llm:
        with pytest.raises(BadInput, match="no tokens"):
            llm.generate("")
        with pytest.raises(BadInput, match="no tokens"):
            llm.logits([])
        with pytest.raises(BadInput, match="4096 at place 1"):
            llm.logits([1, 4096])
        with pytest.raises(BadInput, match="-1 at place 0"):
            llm.generate([-1])
        with pytest.raises(BadInput, match="max_tokens"):
            llm.generate("a", max_tokens=-2)
        with pytest.raises(BadInput, match="temperature"):
            llm.generate("a", temperature=-1.0)


def test_a_load_that_is_refused_names_the_value(tmp_path):
    path = golden("rwkv7-mini-Q8_0.gguf")
    with pytest.raises(BadInput, match="chunk_size is 0"):
        rwkv_gpu.load(path, device="cpu", chunk_size=0)
    with pytest.raises(NoAdapter, match="no such gpu"):
        rwkv_gpu.load(path, device="no such gpu")
    unknown = written(tmp_path, gguf([text_key("general.architecture", "abacus")]))
    with pytest.raises(
        rwkv_gpu.UnsupportedModel, match="architecture 'abacus' is not supported: .*; supported are .*rwkv7"
    ):
        rwkv_gpu.load(unknown, device="cpu")


@pytest.fixture
def opened(monkeypatch) -> list[Device]:
    """Records every device that a load opens."""
    devices = []

    class Watched(Device):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            devices.append(self)

    monkeypatch.setattr("rwkv_gpu.ops.open_device.Device", Watched)
    return devices


def without(name: str) -> dict[str, np.ndarray]:
    return {key: array for key, array in tiny_tensors().items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "keys", "says"),
    [
        (without("blk.1.time_mix_key.weight"), {}, "tensor 'blk.1.time_mix_key.weight': found no such tensor"),
        (tiny_tensors() | {"output.weight": np.zeros((40, 96), np.float32)}, {}, "tensor 'output.weight': found the"),
        (tiny_tensors(), {"wkv__head_size": 128}, "found 64, expected a multiple of the head size 128"),
    ],
    ids=["missing", "of the wrong shape", "disagreeing"],
)
def test_a_contradictory_file_is_refused_in_one_line_and_opens_no_device(
    adapter, opened, tmp_path, tensors, keys, says
):
    path = write(tmp_path, tensors, **keys)
    with pytest.raises(BadFile, match=says):
        rwkv_gpu.load(path, device=str(adapter.index))
    result = CliRunner().invoke(cli, ["generate", str(path), "-p", "a", "--device", str(adapter.index)])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert says in result.stderr
    assert opened == []


def test_a_load_that_is_cut_off_leaves_nothing_on_the_gpu(adapter, opened, tmp_path, monkeypatch):
    monkeypatch.setattr("rwkv_gpu.gpu.loader.PIECE", 4096)
    path = tmp_path / "model.gguf"
    path.write_bytes((OWN / "tiny-rwkv7.gguf").read_bytes())

    def cut(*_):
        assert opened[0].memory()["weights"] > 0
        os.truncate(path, 100_000)

    with pytest.raises(BadFile, match="truncated while open"):
        rwkv_gpu.load(path, device=str(adapter.index), progress=cut)
    [device] = opened
    assert device.closed
    assert device.memory() == {}


def test_a_stream_gives_the_same_text_as_generate():
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu") as llm:
        done = llm.generate("hello", max_tokens=30)
        generation = llm.stream("hello", max_tokens=30)
        events = list(generation)
        assert "".join(event.text for event in events) == done.text
        assert tuple(event.token for event in events if event.token is not None) == done.tokens
        assert generation.completion.finish_reason == done.finish_reason
        assert all(event.logprob <= 0 for event in events)


def test_a_stop_string_ends_the_text_before_it():
    with rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu") as llm:
        whole = llm.generate("hello", max_tokens=40)
        stop = whole.text[5:8]
        cut = llm.generate("hello", max_tokens=40, stop=(stop,))
        assert cut.text == whole.text[: whole.text.index(stop)]
        assert cut.finish_reason == "stop"
        assert len(cut.tokens) < len(whole.tokens)


def test_settings_change_given_params():
    params = rwkv_gpu.SamplingParams(temperature=0, max_tokens=3)
    with rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device="cpu") as llm:
        assert len(llm.generate("a", params).tokens) == 3
        assert len(llm.generate("a", params, max_tokens=5).tokens) == 5


def test_a_context_that_is_full_ends_the_answer():
    with rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu", context=12) as llm:
        done = llm.generate([5, 6, 7, 8], max_tokens=50)
        assert 4 + len(done.tokens) == 12
        assert done.finish_reason == "length"


def test_a_model_that_does_not_fit_is_refused_with_the_numbers_before_anything_is_allocated(adapter, monkeypatch):
    monkeypatch.setattr("rwkv_gpu.engine.fit.device_available", lambda _: 100_000)
    monkeypatch.setattr("rwkv_gpu.gpu.device.Device.buffer", None)  # only the probe may allocate
    monkeypatch.setattr("rwkv_gpu.gpu.device.Device._measure_subgroup", lambda _: 8)
    with pytest.raises(rwkv_gpu.OutOfMemory, match="but 100,000 are free"):
        rwkv_gpu.load(OWN / "tiny-rwkv7.gguf", device=str(adapter.index))
