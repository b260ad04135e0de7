"""NaN or infinite numbers in a model never reach a client: every API returns the same error."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.errors import BadFile, BadNumbers
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.formats import FORMATS
from rwkv_gpu.gguf.sample import RUN, RUNS, check_sample
from rwkv_gpu.llm.completion import MIN_LOGPROB, json_logprob
from rwkv_gpu.server.catalogue import ServedModel
from rwkv_gpu.server.rerank import PATHS
from tests.gguf.parts import take_apart
from tests.golden_files import golden
from tests.server.serving import serving

TEXT = "/v1/completions"


def changed(folder, change, name="tiny-llama"):
    """Returns a model with changed bytes of tensors."""
    parts = take_apart(golden(f"{name}.gguf").read_bytes())
    for tensor in parts.tensors:
        tensor.data = change(tensor)
    path = folder / "changed.gguf"
    path.write_bytes(parts.built())
    return path


def overflow(tensor):
    if tensor.name == b"output_norm.weight":
        return np.full(len(tensor.data) // 4, 3e38, np.float32).tobytes()
    return tensor.data


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory):
    """Returns a model whose weights are finite, but whose results are not."""
    return changed(tmp_path_factory.mktemp("overflowing"), overflow)


@pytest.fixture(scope="module")
def overflowing_ranks(tmp_path_factory):
    """Returns such a reranker."""
    return changed(tmp_path_factory.mktemp("ranks"), overflow, "ranking-qwen3")


CALLS = {
    "generate": lambda llm: llm.generate("the sea", max_tokens=2),
    "sampled": lambda llm: llm.generate("the sea", max_tokens=2, temperature=1.0, seed=1),
    "alternatives": lambda llm: llm.generate("the sea", max_tokens=2, logprobs=3),
    "batch": lambda llm: llm.generate(["the sea", "the"], max_tokens=2),
    "stream": lambda llm: list(llm.stream("the sea", max_tokens=2)),
    "processor": lambda llm: llm.generate("a", max_tokens=2, logits_processor=lambda ids, scores: scores),
    "logits": lambda llm: llm.logits([1, 2, 3]),
    "logprobs": lambda llm: llm.logprobs("the sea is"),
    "perplexity": lambda llm: llm.perplexity("the sea is"),
    "embed": lambda llm: llm.embed("the sea"),
    "embed many": lambda llm: llm.embed(["the sea", "a"]),
    "chat": lambda llm: llm.chat(template="chatml").send("hello", max_tokens=2),
}


def test_every_call_of_the_library_raises_the_same_error(overflowing):
    with rwkv_gpu.load(overflowing, device="cpu", sequences=2) as llm:
        for name, call in CALLS.items():
            with pytest.raises(BadNumbers, match="NaN or infinite"):
                raise AssertionError(f"{name} returned {call(llm)}")
        assert llm.tokenize("the sea")


def test_a_reranker_raises_the_same_error_in_the_library_and_over_http(overflowing_ranks):
    with rwkv_gpu.load(overflowing_ranks, device="cpu") as llm, pytest.raises(BadNumbers, match="NaN or infinite"):
        llm.rerank("the sea", ["a", "the"])
    with serving(ServedModel("m", str(overflowing_ranks))) as served:
        for path in PATHS:
            body = {"query": "the sea", "documents": ["a", "the"], "texts": ["a", "the"]}
            status, _, answer = served.request("POST", path, body)
            assert status == 500 and "NaN or infinite" in json.dumps(answer), (path, answer)


REQUESTS = {
    "/v1/embeddings": {"input": "the sea"},
    "/v1/embeddings as bytes": {"input": ["the sea", "a"], "encoding_format": "base64"},
    "/api/embed": {"model": "m", "input": "the sea"},
    "/embedding": {"content": "the sea"},
    "/v1/completions": {"prompt": "the sea", "max_tokens": 2},
    "/v1/completions of the prompt": {"prompt": "the sea", "max_tokens": 0, "echo": True, "logprobs": 2},
    "/completion": {"prompt": "the sea", "n_predict": 2, "n_probs": 2},
}


def test_every_route_answers_with_the_error_in_json_and_logs_no_traceback(overflowing, caplog):
    with serving(ServedModel("m", str(overflowing))) as served:
        for name, fields in REQUESTS.items():
            status, headers, body = served.request("POST", name.partition(" ")[0], fields)
            assert status == 500, (name, body)
            assert headers["content-type"].startswith("application/json")
            assert "NaN or infinite" in json.dumps(body), (name, body)
        assert served.request("GET", "/health")[0] == 200
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    "arguments",
    [["embed", "the sea"], ["perplexity", "-f", "-"], ["generate", "-p", "a", "-n", "2"]],
    ids=lambda arguments: arguments[0],
)
def test_commands_end_with_3_and_print_no_number(overflowing, arguments):
    result = CliRunner().invoke(cli, [*arguments, "-m", str(overflowing), "--device", "cpu"], input="the sea is")
    assert result.exit_code == 3, result.output
    assert "NaN or infinite" in result.stderr
    assert "nan" not in result.stdout.lower()


def test_a_text_without_direction_is_embedded_as_zeros(tmp_path):
    def change(tensor):
        return bytes(len(tensor.data)) if tensor.name == b"output_norm.weight" else tensor.data

    with rwkv_gpu.load(changed(tmp_path, change), device="cpu") as llm:
        assert not llm.embed("the sea").any()


def test_a_log_probability_in_json_is_finite():
    assert json_logprob(-math.inf) == MIN_LOGPROB
    assert json_logprob(-0.5) == -0.5
    json.dumps(json_logprob(-math.inf), allow_nan=False)


# ---------------------------------------------------------------- weights, at load


def test_a_damaged_tensor_is_named_before_the_model_is_loaded(tmp_path):
    """The NaN is in any tensor, in its first block or its last."""
    names = [tensor.name for tensor in take_apart(golden("tiny-llama.gguf").read_bytes()).tensors]
    for number, wanted in enumerate(names[:: len(names) // 8]):

        def change(tensor, wanted=wanted, number=number):
            if tensor.name != wanted:
                return tensor.data
            data = bytearray(tensor.data)
            kind = FORMATS[tensor.kind]
            at = len(data) - kind.nbytes if number % 2 else 0
            data[at : at + kind.nbytes] = b"\xff" * kind.nbytes
            return bytes(data)

        path = changed(tmp_path, change)
        with pytest.raises(BadFile, match=rf"tensor '{wanted.decode()}' has numbers that are NaN or infinite"):
            rwkv_gpu.load(path, device="cpu")


@pytest.mark.parametrize("kind", ["plan", "web"])
def test_a_model_with_a_damaged_tensor_is_not_exported(tmp_path, kind):
    path = changed(tmp_path, lambda tensor: b"\xff" * len(tensor.data), "tiny-rwkv7")
    result = CliRunner().invoke(cli, ["export", kind, str(path), str(tmp_path / "out")])
    assert result.exit_code == 2, result.output
    assert "has numbers that are NaN or infinite" in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_sample_reads_little_of_a_large_tensor(monkeypatch):
    reads = []
    with GGUFFile.open(rwkv_gpu.builtin_model()) as file:
        read = file.read
        monkeypatch.setattr(file, "read", lambda *given: reads.append(given) or read(*given))
        check_sample(file)
        assert sum(stop - start for _, start, stop in reads) <= RUNS * RUN * len(file.tensors)
        assert {given[0].name for given in reads} == set(file.tensors)
        ends = [tensor for tensor, _, stop in reads if stop == tensor.nbytes]
    assert len(ends) == len(file.tensors)
