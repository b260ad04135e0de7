"""RWKV-6: properties that the shared records do not cover."""

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.gguf.file import GGUFFile
from tests.gguf.parts import take_apart
from tests.gguf.writer import U32, written
from tests.golden_files import OWN

FILE = OWN / "tiny-rwkv6.gguf"
FITTED = "time_mix_output", "channel_mix_value"  # matrices that a converter divides


def rescaled(every: int) -> bytes:
    """Writes the model as a converter does if the residual stream is halved after every few layers."""
    data = bytearray(FILE.read_bytes())
    with GGUFFile.open(FILE) as file:
        for name, tensor in file.tensors.items():
            _, layer, *rest = name.split(".")
            if rest and rest[0] in FITTED:
                assert tensor.format.name == "F16"
                halves = np.frombuffer(file.read(tensor), np.float16) / np.float16(2 ** (int(layer) // every))
                at = data.index(file.read(tensor))
                data[at : at + tensor.nbytes] = halves.astype(np.float16).tobytes()
    key = b"rwkv6.rescale_every_n_layers"
    at = data.index(key) + len(key) + 4
    return bytes(data[:at]) + every.to_bytes(4, "little") + bytes(data[at + 4 :])


@pytest.mark.parametrize("every", [1, 2])
def test_a_stream_that_is_halved_every_few_layers_gives_the_same_logits(tmp_path, every):
    record = np.load(OWN / "tiny-rwkv6.npz")
    ids = record["tokens"].tolist()
    with rwkv_gpu.load(written(tmp_path, rescaled(every)), device="cpu") as llm:
        got = llm.logits(ids)
    assert np.sqrt(np.mean((got - record["exact_logits"]) ** 2)) < 2e-3  # small weights round when they are divided


def test_a_file_marked_as_rescaled_that_is_not_gives_other_logits(tmp_path):
    """This shows that the key has an effect."""
    record = np.load(OWN / "tiny-rwkv6.npz")
    data = FILE.read_bytes()
    key = b"rwkv6.rescale_every_n_layers"
    at = data.index(key) + len(key) + 4
    with rwkv_gpu.load(written(tmp_path, data[:at] + (1).to_bytes(4, "little") + data[at + 4 :]), device="cpu") as llm:
        got = llm.logits(record["tokens"].tolist())
    assert np.sqrt(np.mean((got - record["exact_logits"]) ** 2)) > 0.05


@pytest.mark.parametrize("name", ["rwkv6", "arwkv7"])
def test_a_width_need_not_be_a_multiple_of_32(adapter, tmp_path, name):
    """Three heads of 16: vectors that are read together have no gaps, but rows of matrices do."""
    width, size = 48, 16
    whole = take_apart((OWN / f"tiny-{name}.gguf").read_bytes())
    old = {key: whole.row(f"{name}.{key}").value for key in ("embedding_length", "wkv.head_size")}
    assert old == {"embedding_length": 96, "wkv.head_size": 32}
    for key, value in zip(old, (width, size), strict=True):
        whole.set(f"{name}.{key}", U32, value)
    for one in whole.tensors:
        of_heads = one.name.endswith(b"time_mix_first.weight")
        one.dims = [size, width // size] if of_heads else [width if dim == 96 else dim for dim in one.dims]
    path, ids = written(tmp_path, whole.built()), np.random.default_rng(7).integers(3, 250, 24).tolist()
    with rwkv_gpu.load(path, device="cpu") as llm:
        wanted = llm.logits(ids)
    with rwkv_gpu.load(path, device=str(adapter.index)) as llm:
        for chunk in (24, 1):
            np.testing.assert_allclose(llm.logits(ids, chunk_size=chunk), wanted, rtol=1e-3, atol=1e-3)
