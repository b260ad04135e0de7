"""Checkpoints are converted to the same files as by llama.cpp's converter. Bad ones are refused in one line."""

import json
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.cli.converted import converted
from rwkv_gpu.convert.convert import convert
from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.mixes import mix_of
from rwkv_gpu.gguf.requantise import requantise
from rwkv_gpu.writer_lock import WriterLock
from tests.convert import checkpoints
from tests.convert.record import CONFIGS, RECORD, described
from tests.gguf.test_safetensors import whole
from tests.gguf.torch_files import Calls, save, torch_names
from tests.golden_files import OWN
from tests.process import until

RECORDED = json.loads(RECORD.read_text())
# The name is the folder's. The template is the project's own, with a name that llama.cpp knows, too.
OWN_KEYS = {"general.name", "tokenizer.chat_template"}


def safetensors(folder: Path, kind: str) -> Path:
    """Writes a checkpoint in 16 bits: a file, or for fla a folder with two shards."""
    tensors = {name: ("F16", array) for name, array in getattr(checkpoints, kind)().items()}
    if kind != "fla7":
        path = folder / "model.st"
        path.write_bytes(whole(tensors))
        return path
    names = sorted(tensors)
    places = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}
    for shard in sorted(set(places.values())):
        data = whole({name: tensors[name] for name in names if places[name] == shard})
        (folder / shard).write_bytes(data)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind]))
    return folder


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_file_has_the_keys_and_tensors_of_llama_cpp(tmp_path, kind):
    target = tmp_path / "out.gguf"
    convert(safetensors(tmp_path, kind), target)
    found, expected = described(target), RECORDED[kind]
    assert found["tensors"] == expected["tensors"]
    for keys in (found["keys"], expected["keys"]):
        for name in OWN_KEYS:
            assert keys.pop(name)[0] == ["STRING"]
    assert found["keys"] == expected["keys"]


@pytest.fixture
def torch(monkeypatch):
    return torch_names(monkeypatch)


def test_files_of_torch_and_safetensors_become_the_same_tensors(tmp_path, torch):
    arrays = checkpoints.rwkv7()
    path = save(tmp_path / "model.pth", torch, arrays, kind="BFloat16Storage")
    convert(path, tmp_path / "a.gguf", "f16")
    convert(safetensors(tmp_path, "rwkv7"), tmp_path / "b.gguf")
    assert described(tmp_path / "a.gguf")["tensors"] == described(tmp_path / "b.gguf")["tensors"]
    convert(path, tmp_path / "c.gguf")
    with GGUFFile.open(tmp_path / "c.gguf") as file:
        assert file.tensors["output.weight"].format.name == "BF16"
        np.testing.assert_array_equal(file.values(file.tensors["token_embd.weight"]), arrays["emb.weight"])


def test_quantising_in_the_same_pass_equals_quantising_afterwards(tmp_path):
    path = safetensors(tmp_path, "rwkv7")
    convert(path, tmp_path / "f16.gguf")
    requantise(tmp_path / "f16.gguf", tmp_path / "after.gguf", mix_of("Q8_0"))
    convert(path, tmp_path / "once.gguf", "q8_0")
    after, once = described(tmp_path / "after.gguf"), described(tmp_path / "once.gguf")
    assert {row[0] for row in once["tensors"].values()} == {"F32", "F16", "Q8_0"}
    assert once["tensors"] == after["tensors"]
    assert once["keys"] | {"general.name": 0} == after["keys"] | {"general.name": 0}


def test_a_command_converts_a_checkpoint_once(tmp_path, monkeypatch):
    monkeypatch.setenv("RWKV_GPU_CACHE", str(tmp_path / "cache"))
    path = safetensors(tmp_path, "rwkv6")
    run = [str(word) for word in ("generate", path, "-p", "a", "-n", "2", "--device", "cpu", "--temperature", "0")]
    first, second = (CliRunner().invoke(cli, run) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    assert "converting" in first.stderr
    assert "converting" not in second.stderr
    assert first.stdout == second.stdout
    [made] = (tmp_path / "cache" / "converted").iterdir()
    assert made.suffix == ".gguf"


def test_a_second_use_of_a_checkpoint_waits_for_the_conversion_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("RWKV_GPU_CACHE", str(tmp_path / "cache"))
    path = safetensors(tmp_path, "rwkv6")
    target = Path(converted(str(path)))
    data = target.read_bytes()
    target.unlink()
    notes = []
    monkeypatch.setattr("rwkv_gpu.cli.converted.echo_text", lambda text, **_: notes.append(text))
    with ThreadPoolExecutor(1) as pool, WriterLock(target):
        second = pool.submit(converted, str(path))
        until(lambda: notes)
        target.write_bytes(data)
    assert notes == [f"rwkv-gpu: another process is converting {path}; waiting for it"]
    assert second.result() == str(target)
    assert os.listdir(target.parent) == [target.name]


def test_bad_checkpoints_are_refused_in_one_line_and_write_nothing(tmp_path, torch):
    target, good = tmp_path / "out.gguf", checkpoints.rwkv7()

    def refused(message: str, path: Path) -> None:
        with pytest.raises(RwkvGpuError, match=message) as caught:
            convert(path, target)
        assert str(caught.value).isprintable()
        assert not target.exists()

    def as_file(**changes: np.ndarray | None) -> Path:
        arrays = good | {name.replace("__", "."): array for name, array in changes.items()}
        path = tmp_path / "bad.st"
        path.write_bytes(whole({name: ("F16", array) for name, array in arrays.items() if array is not None}))
        return path

    refused("'blocks.1.att.k_k' is missing", as_file(blocks__1__att__k_k=None))
    refused("'extra' is none of rwkv7", as_file(extra=np.ones(3)))
    refused("time_mix_w1", as_file(blocks__1__att__w1=np.ones((30, 8))))
    refused("expected a matrix", as_file(blocks__1__att__w1=np.ones(30)))
    refused("differ in size", as_file(blocks__0__att__x_k=np.ones(30)))
    refused(r"expected \[heads, head size\]", as_file(blocks__0__att__r_k=np.ones(32)))
    refused("World vocabulary", as_file(emb__weight=np.ones((100, 32)), head__weight=np.ones((100, 32))))
    refused("infinite or NaN", as_file(blocks__1__att__key__weight=np.full((32, 32), np.nan)))
    refused("cannot be converted; known: RWKV-4 to RWKV-7", as_file(blocks__0__att__r_k=None))
    refused("no such file or folder; `hf download", tmp_path / "none.pth")
    refused("is a GGUF file already; `rwkv-gpu quantize`", OWN / "tiny-rwkv7.gguf")
    (tmp_path / "empty.pth").touch()
    refused(r"is empty \(0 bytes\)", tmp_path / "empty.pth")
    (tmp_path / "text").write_text("hello")
    refused("is neither a file of torch.save", tmp_path / "text")
    refused("it names posix.system|it names nt.system",
            save(tmp_path / "x.pth", torch, {"a": np.ones(3)}, more={"x": Calls(os.system, "touch ran")}))  # fmt: skip
    with zipfile.ZipFile(tmp_path / "zip.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", bytes(1 << 20))
    refused("it is compressed", tmp_path / "zip.pth")


def test_bad_folders_are_refused_in_one_line(tmp_path):
    folder, target = safetensors(tmp_path, "fla7"), tmp_path / "out.gguf"
    index = folder / "model.safetensors.index.json"
    whole_index = json.loads(index.read_text())

    def refused(message: str) -> None:
        with pytest.raises(RwkvGpuError, match=message) as caught:
            convert(folder, target)
        assert str(caught.value).isprintable()

    index.write_text(json.dumps({"weight_map": whole_index["weight_map"] | {"more": "part-0.safetensors"}}))
    refused("'more' is in no shard")
    index.write_text(json.dumps({"weight_map": {"more": "../model.st"}}))
    refused("which is not a file in the folder")
    index.write_text(json.dumps({"weight_map": 5}))
    refused("no weight_map")
    index.write_text("{")
    refused("is not JSON")
    index.write_text(json.dumps(whole_index))
    (folder / "part-1.safetensors").unlink()
    refused("part-1.safetensors: is missing")


def test_the_command_reports_the_written_file(tmp_path):
    path = safetensors(tmp_path, "rwkv7")
    done = CliRunner().invoke(cli, ["convert", str(path), str(tmp_path / "x.gguf"), "--chat-template", "rwkv-g1"])
    assert done.exit_code == 0, done.output
    assert "tensors: " in done.stderr
    again = CliRunner().invoke(cli, ["convert", str(path), str(tmp_path / "x.gguf")])
    assert (again.exit_code, "-y replaces it" in again.stderr) == (2, True)
    with GGUFFile.open(tmp_path / "x.gguf") as file:
        assert file.str("tokenizer.chat_template") == "rwkv-g1"
    with rwkv_gpu.load(tmp_path / "x.gguf", device="cpu") as llm:
        assert llm.tokenize("The sea") == [6699, 22446]


@pytest.mark.parametrize("kind", ["rwkv7a", "rwkv7b"])
def test_deep_embeddings_and_deep_attention_are_converted_as_their_publisher_computes_them(tmp_path, kind):
    """The publisher's demo adds the product of a matrix and normed embeddings to each table when it loads a model."""
    arrays = {name: array.astype(np.float64).squeeze() for name, array in getattr(checkpoints, kind)().items()}
    source = tmp_path / "model.st"
    source.write_bytes(whole({name: ("F32", array) for name, array in getattr(checkpoints, kind)().items()}))
    convert(source, tmp_path / "model.gguf", kind="F32")
    x = arrays["emb.weight"] - arrays["emb.weight"].mean(axis=1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5)
    x = x * arrays["blocks.0.ln0.weight"] + arrays["blocks.0.ln0.bias"]
    expected = {}
    for i in range(checkpoints.LAYERS):
        own = {name.removeprefix(f"blocks.{i}."): array for name, array in arrays.items()}
        tables = {"channel_mix_s_emb": "ffn.s_emb", "dea_k_emb": "qkv.k_emb", "dea_v_emb": "qkv.v_emb"}
        turned = {f"channel_mix_s{n}": f"ffn.s{n}" for n in "12"} | {
            f"dea_{n}": f"qkv.{n}" for n in ("k1", "k2", "v1", "v2")
        }
        plain = {"channel_mix_s0": "ffn.s0", "dea_q": "qkv.qq.weight"}
        for letter in "qkv":
            plain |= {f"dea_lerp_{letter}": f"qkv.x_{letter}", f"dea_{letter}_norm": f"qkv.ln{letter}.weight"}
        parts = {
            to: own[f"{name}.weight"] + x @ own[f"{name}_x.weight"].T
            for to, name in tables.items()
            if f"{name}.weight" in own
        }
        parts |= {to: own[name].T for to, name in turned.items() if name in own}
        parts |= {to: own[name] for to, name in plain.items() if name in own}
        expected |= {f"blk.{i}.{to}.weight": array for to, array in parts.items()}
    assert len(expected) == (8 if kind == "rwkv7a" else 34)
    with GGUFFile.open(tmp_path / "model.gguf") as file:
        for name, array in expected.items():
            np.testing.assert_allclose(file.values(file.tensors[name]), array, rtol=1e-5, atol=1e-4)
    with rwkv_gpu.load(tmp_path / "model.gguf", device="cpu") as llm:
        assert len(llm.generate([5, 6, 7], max_tokens=3, ignore_eos=True).tokens) == 3


def test_tables_of_tokens_that_do_not_fit_are_refused_in_one_line(tmp_path):
    arrays = checkpoints.rwkv7a()
    arrays["blocks.1.ffn.s_emb_x.weight"] = arrays["blocks.1.ffn.s_emb_x.weight"][:, 1:]
    source = tmp_path / "model.st"
    source.write_bytes(whole({name: ("F32", array) for name, array in arrays.items()}))
    with pytest.raises(RwkvGpuError, match="blk.1.channel_mix_s_emb.weight.*do not fit each other"):
        convert(source, tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()
