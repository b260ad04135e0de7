"""Prefab files of web-rwkv become the models of their checkpoints, and are read strictly."""

import random

import numpy as np
import pytest

from rwkv_gpu.convert.checkpoint import is_checkpoint
from rwkv_gpu.convert.convert import convert
from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.prefab import is_prefab, stored_in_prefab
from tests.convert import checkpoints
from tests.gguf.prefab_files import NF4, cbor, matrix, prefab
from tests.gguf.test_safetensors import whole

QUANTISED = "blk.1.channel_mix_key.weight", "blk.1.time_mix_output.weight"


def values(path, target):
    convert(path, target)
    with GGUFFile.open(target) as file:
        return {name: file.values(tensor) for name, tensor in file.tensors.items()}


def web(arrays):
    """Returns a checkpoint as web-rwkv's script converts it to safetensors."""
    turned = ("w1", "w2", "a1", "a2", "g1", "g2", "v1", "v2")
    return {
        name.replace("time_faaaa", "time_first").replace("time_maa", "time_mix"): (
            "F16", array.swapaxes(-1, -2) if name.endswith(turned) else array
        )
        for name, array in arrays.items()
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("kind", ["rwkv7", "rwkv6", "rwkv5", "rwkv4"])
def test_files_of_web_rwkv_load_as_the_checkpoint_that_they_were_made_from(tmp_path, kind):
    arrays = getattr(checkpoints, kind)()
    files = {
        "own.st": whole({name: ("F16", array) for name, array in arrays.items()}),
        "web.st": whole(web(arrays)),
        "a.prefab": prefab(arrays, rescale=None if kind == "rwkv4" else 1),
    }
    expected = None
    for name, data in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        assert is_checkpoint(path)
        assert is_prefab(path) == name.endswith("prefab")
        found = values(path, tmp_path / "out.gguf")
        path.unlink()
        expected = expected or found
        assert found.keys() == expected.keys()
        for tensor, array in found.items():
            error = 1e-6 if tensor.endswith("time_mix_decay.weight") else 0  # files store powers of them
            np.testing.assert_allclose(array, expected[tensor], error, error, err_msg=f"{name}: {tensor}")


@pytest.mark.parametrize(("kind", "step"), [("Int8", 2 / 255), ("Fp4", 0.31), ("Nf4", 0.31)])
def test_quantised_matrices_are_decoded(tmp_path, kind, step):
    arrays = checkpoints.rwkv7()
    path = tmp_path / "a.prefab"
    path.write_bytes(prefab(arrays, kind))
    found = values(path, tmp_path / "out.gguf")
    for name, own in zip(QUANTISED, ("ffn.key", "att.output"), strict=True):
        exact = arrays[f"blocks.1.{own}.weight"]
        worst = np.abs(found[name] - exact).max()
        assert 0 < worst < step * 0.6
        np.testing.assert_allclose(found[name], decoded(matrix(exact, kind), exact.shape), rtol=1e-3, atol=1e-4)


def decoded(coded, shape):
    """Decodes each number on its own."""
    [parts] = coded.values()
    codes, ranges = parts["w"]["data"], np.frombuffer(parts["m"]["data"], "<f2").astype(np.float64)
    out = np.zeros(np.prod(shape))
    for i in range(out.size):
        if "q" in parts:
            out[i] = NF4[codes[i // 2] >> 4 * (i % 2) & 15] * ranges[i // 64]
        else:
            low, high = ranges[2 * (i // 128) :][:2]
            out[i] = low + codes[i] / 255 * (high - low)
    return out.reshape(shape)


def test_a_malformed_file_is_refused_in_one_line(tmp_path):
    path = tmp_path / "bad.prefab"

    def refused(message, data):
        path.write_bytes(data)
        with pytest.raises(RwkvGpuError, match=message) as caught:
            stored_in_prefab(path)
        assert str(caught.value).isprintable()

    start = b"\xa3\x67context"
    bad = {"context": [], "info": {"version": "V7", "num_head": 2}}
    refused("nested too deeply", start + b"\x81" * 100_000)
    refused("longer than the file", start + b"\x9b" + b"\xff" * 8)
    refused("beyond the end", start + b"\x5b" + b"\xff" * 8)
    refused("ends early", start + b"\x78")
    refused("unknown length", start + b"\x9f\x00\xff")
    refused("unknown kind", start + b"\xc0\x00")
    refused("occurs twice", start + b"\x80" + b"\x67context\x80" * 2)
    refused("does not match its shape", cbor(bad | {"tensor": {"a": {"shape": [3, 1, 1, 1], "data": b"12345"}}}))
    refused("no numbers", cbor(bad | {"tensor": {"a": {"shape": [0, 1, 1, 1], "data": b""}}}))
    refused("is not a tensor", cbor(bad | {"tensor": {"a": 5}}))
    refused("bytes follow", cbor(bad | {"tensor": {}}) + b"\0")
    for rescale in (0, "6"):
        refused("its rescale is not a number of layers", cbor(bad | {"tensor": {}, "rescale": rescale}))
    for heads in (0, "2"):
        info = {"version": "V7", "num_head": heads}
        refused("its number of heads is not", cbor({"context": [], "info": info, "tensor": {}}))
    path.write_bytes(cbor(bad | {"tensor": {}, "rescale": 1}))
    assert stored_in_prefab(path) == ({}, 1)
    codes = matrix(np.arange(128, dtype=np.float32).reshape(4, 32), "Int8")
    codes["Int8"]["m"]["shape"][0], codes["Int8"]["m"]["data"] = 4, bytes(8)
    refused("do not belong together", cbor(bad | {"tensor": {"a": codes}}))


def test_mutants_are_refused_in_one_line(tmp_path, monkeypatch):
    """A mutant that is otherwise valid is refused because its vocabulary is too small."""
    monkeypatch.setattr(checkpoints, "TOKENS", 64)
    sound, path = prefab(checkpoints.rwkv7(), "Fp4"), tmp_path / "a.prefab"
    heads = [i for i in range(len(sound) - 8) if sound[i : i + 6] in (b"\x65shape", b"\x64data\x59"[:6])]
    outcomes = set()
    for seed in range(100):
        rng, data = random.Random(seed), bytearray(sound)
        for _ in range(rng.randint(1, 3)):
            at = rng.choice(heads) + rng.randrange(24) if seed % 3 else rng.randrange(400)
            data[min(at, len(data) - 1)] = rng.choice([0, 1, 0x18, 0x5B, 0x9B, 0xBB, 0xFF, rng.randrange(256)])
        path.write_bytes(data[: rng.randrange(len(data))] if seed % 10 == 0 else data)
        with pytest.raises(RwkvGpuError) as caught:
            convert(path, tmp_path / "out.gguf")
        assert str(caught.value).isprintable()
        outcomes.add(str(caught.value)[len(str(path)) :][:40])
    assert len(outcomes) > 10
    assert not (tmp_path / "out.gguf").exists()
