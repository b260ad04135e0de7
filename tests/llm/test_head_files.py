"""Draft heads in a separate file (`--draft mtp-MODEL.gguf`) work like those in the model's file, or are refused."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.engine.speculation.speculator import Speculator
from rwkv_gpu.llm import drafts
from tests.gguf.parts import take_apart
from tests.golden.assistant import ASSISTANTS, write_assistant
from tests.golden.dflash import FLASHES, write_dflash
from tests.golden.eagle import EAGLES, write_eagle
from tests.golden.heads import HEADED, write_apart
from tests.golden_files import golden

LOADED = {"device": "cpu", "context": 128, "chunk_size": 16}
ASKED = {"max_tokens": 20, "min_tokens": 20, "temperature": 0.0}


@pytest.fixture
def always(monkeypatch):
    """Makes drafts of the maximum length, regardless of time."""
    monkeypatch.setattr(drafts, "Speculator", partial(Speculator, always=True))


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model without its head, and the file of this head."""
    return write_apart(tmp_path_factory.mktemp("apart"), "qwen35", says=False)


def answer(model: Path, **how) -> tuple[list[int], int, int]:
    """The tokens of an answer, and the numbers of drafted and accepted tokens."""
    with rwkv_gpu.load(model, **LOADED, **how) as llm:
        assert not llm.info.draft_fault
        done = llm.generate([5, 6, 7], **ASKED)
        return done.tokens, done.stats.drafted_tokens, done.stats.accepted_tokens


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", HEADED)
def test_a_head_in_a_file_of_its_own_gives_the_same_drafts(name, tmp_path):
    for says in (True, False):
        model, mtp = write_apart(tmp_path, name, says=says)
        whole = answer(tmp_path / f"whole-{name}.gguf")
        assert answer(model, draft=mtp) == whole
        assert whole[1] > 10
        plain = answer(model)
        assert plain == (whole[0], 0, 0)


def test_a_separate_head_is_counted_and_preferred_to_that_of_the_model(apart):
    model, mtp = apart
    whole = model.with_name("whole-qwen35.gguf")

    def needed(*words: object) -> dict:
        done = CliRunner().invoke(cli, ["fit", *map(str, words), "--device", "cpu", "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    sizes = [needed(*words)["weights"] for words in ((whole,), (model, "--draft", mtp), (model,))]
    assert sizes[0] == sizes[1] > sizes[2]
    assert needed(whole, "--draft", mtp)["weights"] == sizes[0]
    assert answer(whole, draft=mtp)[0] == answer(whole)[0]


BASES = {one: how.base for one, how in (*EAGLES.items(), *FLASHES.items())} | ASSISTANTS
WRITERS = {"an EAGLE-3": (write_eagle, EAGLES), "a DFlash": (write_dflash, FLASHES)}
WRITERS["of Gemma 4 (assistant)"] = write_assistant, ASSISTANTS


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, (_, names) in WRITERS.items() for name in names])
def test_a_head_with_an_architecture_of_its_own_drafts_for_its_model(kind, name, tmp_path):
    write, small = WRITERS[kind][0], tmp_path / "small.gguf"
    model, head = golden(f"{BASES[name]}.gguf"), write(tmp_path / "head.gguf", name)
    assert CliRunner().invoke(cli, ["quantize", str(head), str(small), "q8_0"]).exit_code == 0
    expected = answer(model)
    for options in ({"draft": head}, {"draft": small}, {"draft": head, "lookup": True, "draft_tokens": 8}):
        found = answer(model, **options)
        assert found[0] == expected[0] and found[1] > 10
    done = CliRunner().invoke(cli, ["generate", str(head), "-p", "a", "--device", "cpu"])
    assert done.exit_code == 2
    assert kind in done.output and "draft head" in done.output and "--draft" in done.output


def damaging(good: Path, path: Path):
    """A function that writes a changed copy of a file."""

    def damaged(change) -> None:
        parts = take_apart(good.read_bytes())
        change(parts, {one.name.decode(): one for one in parts.tensors})
        path.write_bytes(parts.built())

    return damaged


def is_refused(model: Path, path: Path, words: str, expected: list[int]) -> None:
    """Checks that a draft file is refused in one line with these words, and the model answers without it."""
    with rwkv_gpu.load(model, **LOADED, draft=path) as llm:
        fault = llm.info.draft_fault
        assert str(path) in fault and words in fault and fault.isprintable()
        assert llm.generate([5, 6, 7], **ASKED).tokens == expected


def test_a_dflash_file_that_does_not_fit_is_reported_in_one_line_and_the_model_answers(tmp_path):
    model, path, good = golden("tiny-llama.gguf"), tmp_path / "bad.gguf", tmp_path / "good.gguf"
    write_dflash(good, "llama")
    expected, damaged = answer(model)[0], damaging(good, path)

    def number(key: str, value: object):
        return lambda parts, _: setattr(parts.row(key), "value", value)

    def renamed(old: str, new: bytes):
        return lambda _, tensors: setattr(tensors[old], "name", new)

    faults = {
        "1 to 64 layers": [number("dflash.target_layers", layers) for layers in ([], [3], [-1], [0] * 65)],
        "dflash.block_size": [number("dflash.block_size", 1), number("dflash.block_size", 1 << 30)],
        "mask_token_id": [number("tokenizer.ggml.mask_token_id", 288)],
        "found the shape": [number("dflash.embedding_length", 128), number("dflash.target_layers", [0])],
        "head_count": [number("dflash.attention.head_count_kv", 3)],
        "heads of size": [number("dflash.attention.key_length", 1020)],
        "block_count": [number("dflash.block_count", 0), number("dflash.block_count", 1 << 20)],
        "drafts by DSpark": [renamed("output_norm.weight", b"markov_w1.weight")],
        "drafts by DFlash 2": [renamed("output_norm.weight", b"selector_hidden.weight")],
        "blk.0.other.weight': unknown": [renamed("blk.0.attn_sinks.weight", b"blk.0.other.weight")],
        "another vocabulary": [lambda parts, _: parts.row("tokenizer.ggml.tokens").value.__setitem__(7, b"x")],
    }
    for words, changes in faults.items():
        for change in changes:
            damaged(change)
            is_refused(model, path, words, expected)
    path.write_bytes(good.read_bytes()[:-4000])
    is_refused(model, path, "", expected)
    other = golden("tiny-nanbeige.gguf")
    is_refused(other, good, "heads that read layers of 'nanbeige' are not supported", answer(other)[0])


def test_an_assistant_that_does_not_fit_is_reported_in_one_line_and_the_model_answers(tmp_path):
    model, path, good = golden("tiny-gemma4.gguf"), tmp_path / "bad.gguf", tmp_path / "good.gguf"
    write_assistant(good, "gemma4")
    expected, damaged = answer(model)[0], damaging(good, path)

    def number(key: str, value: object):
        return lambda parts, _: setattr(parts.row(f"gemma4-assistant.{key}"), "value", value)

    faults = {
        "sliding_window_pattern": [number("attention.sliding_window_pattern", [True])],
        "found the shape": [
            number("embedding_length", 32),
            number("attention.sliding_window_pattern", [False, False]),
            lambda _, tensors: setattr(tensors["nextn.post_projection.weight"], "dims", [72, 64]),
        ],
        "block_count": [number("block_count", 0)],
        "no such tensor": [lambda _, tensors: setattr(tensors["nextn.pre_projection.weight"], "name", b"other")],
        "another vocabulary": [lambda parts, _: parts.row("tokenizer.ggml.tokens").value.__setitem__(7, b"x")],
    }
    for words, changes in faults.items():
        for change in changes:
            damaged(change)
            is_refused(model, path, words, expected)


def test_an_eagle3_file_that_does_not_fit_is_reported_in_one_line_and_the_model_answers(tmp_path):
    model, path, good = golden("tiny-llama.gguf"), tmp_path / "bad.gguf", tmp_path / "good.gguf"
    write_eagle(good, "llama")
    expected, damaged = answer(model)[0], damaging(good, path)

    def ids(*numbers: int):
        def change(_, tensors) -> None:
            tensors["d2t"].data = np.array(numbers, "<i8").tobytes() + tensors["d2t"].data[8 * len(numbers) :]

        return change

    def layers(*numbers: int):
        return lambda parts, _: setattr(parts.row("eagle3.target_layers"), "value", list(numbers))

    def number(key: str, value: int):
        return lambda parts, _: setattr(parts.row(f"eagle3.{key}"), "value", value)

    faults = {
        "different tokens": (ids(-1), ids(5, 5), ids(288), ids(1 << 62)),
        "target_layers": (layers(0, 1), layers(0, 1, 3), layers(0, 1, 2, 2), layers(0, 1, -1)),
        "target_hidden_size": (number("target_hidden_size", 255),),
        "block_count": (number("block_count", 2),),
        "found the shape": (number("embedding_length", 128),),
        "head_count": (number("attention.head_count", 3),),
        "heads of size": (number("attention.key_length", 1020),),
        "rope_freqs.weight": (lambda _, tensors: setattr(tensors["rope_freqs.weight"], "data", bytes(64)),),
        "no such tensor": (lambda _, tensors: setattr(tensors["fc.weight"], "name", b"other.weight"),),
        "another vocabulary": (lambda parts, _: parts.row("tokenizer.ggml.tokens").value.__setitem__(7, b"x"),),
    }
    for words, changes in faults.items():
        for change in changes:
            damaged(change)
            is_refused(model, path, words, expected)


def test_a_head_of_another_architecture_is_reported_in_one_line(tmp_path, apart):
    write_eagle(tmp_path / "eagle.gguf", "llama")
    with rwkv_gpu.load(apart[0], **LOADED, draft=tmp_path / "eagle.gguf") as llm:
        assert "another model" in llm.info.draft_fault or "not supported" in llm.info.draft_fault
    parts = take_apart((tmp_path / "eagle.gguf").read_bytes())
    parts.row("general.architecture").value = b"gemma4-assistant"
    with rwkv_gpu.load(golden("tiny-llama.gguf"), **LOADED, draft=_written(tmp_path, parts)) as llm:
        assert "is an assistant of Gemma 4, but the model is 'llama'" in llm.info.draft_fault


def _other_family(folder: Path, _mtp: Path) -> Path:
    return write_apart(folder, "glm4moe", says=False)[1]


def _other_layers(folder: Path, mtp: Path) -> Path:
    parts = take_apart(mtp.read_bytes())
    parts.row("qwen35.block_count").value += 1
    return _written(folder, parts)


def _other_vocabulary(folder: Path, mtp: Path) -> Path:
    parts = take_apart(mtp.read_bytes())
    parts.row("tokenizer.ggml.tokens").value[7] = b"other"
    return _written(folder, parts)


def _other_width(folder: Path, mtp: Path) -> Path:
    parts = take_apart(mtp.read_bytes())
    for tensor in parts.tensors:
        tensor.dims[0] *= 2
    return _written(folder, parts)


def _no_heads(folder: Path, mtp: Path) -> Path:
    parts = take_apart(mtp.read_bytes())
    parts.row("qwen35.nextn_predict_layers").value = 0
    return _written(folder, parts)


def _cut(folder: Path, mtp: Path) -> Path:
    data = mtp.read_bytes()
    (folder / "bad.gguf").write_bytes(data[: len(data) - 5000])
    return folder / "bad.gguf"


def _written(folder: Path, parts) -> Path:
    (folder / "bad.gguf").write_bytes(parts.built())
    return folder / "bad.gguf"


FAULTS = {
    _other_family: "is for another model",
    _other_layers: "is for another model",
    _other_vocabulary: "has another vocabulary",
    _other_width: "found the shape",
    _no_heads: "nextn_predict_layers",
    _cut: "",
}


def test_a_head_that_does_not_fit_is_reported_in_one_line_and_the_model_answers(apart, tmp_path):
    model, mtp = apart
    expected = answer(model)[0]
    for number, (spoil, words) in enumerate(FAULTS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        bad = spoil(folder, mtp)
        with rwkv_gpu.load(model, **LOADED, draft=bad) as llm:
            fault = llm.info.draft_fault
            assert str(bad) in fault and words in fault and "\n" not in fault
            assert not llm.info.drafts
            assert llm.generate([5, 6, 7], **ASKED).tokens == expected
    done = CliRunner().invoke(
        cli, ["generate", str(model), "--draft", str(bad), "-p", "a", "-n", "2", "--device", "cpu"]
    )
    assert done.exit_code == 0
    [line] = [line for line in done.stderr.splitlines() if "draft" in line]
    assert line.startswith("rwkv-gpu: the draft model is not used: ")


def test_a_model_that_cannot_use_draft_heads_is_refused(tmp_path, apart):
    parts, head = take_apart(golden("tiny-llama.gguf").read_bytes()), take_apart(apart[1].read_bytes())
    layers = parts.row("llama.block_count").value
    parts.tensors = [one for one in parts.tensors if not one.name.startswith(b"blk.")]
    [joining] = [one for one in head.tensors if one.name.endswith(b"nextn.eh_proj.weight")]
    joining.name = f"blk.{layers}.nextn.eh_proj.weight".encode()
    parts.tensors.append(joining)
    parts.row("llama.block_count").value += 1
    parts.set("llama.nextn_predict_layers", 4, 1)
    with rwkv_gpu.load(golden("tiny-llama.gguf"), **LOADED, draft=_written(tmp_path, parts)) as llm:
        assert "draft heads of the architecture 'llama' are not supported" in llm.info.draft_fault
        assert llm.generate([5, 6, 7], **ASKED).tokens


def test_over_several_devices_the_model_answers_without_its_head(apart):
    model, mtp = apart
    with rwkv_gpu.load(model, **(LOADED | {"device": "cpu,cpu"}), draft=mtp) as llm:
        assert llm.info.draft_fault == "heads do not draft over several devices"
        assert llm.generate([5, 6, 7], **ASKED).tokens == answer(model)[0]
