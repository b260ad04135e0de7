"""Logits of converted checkpoints of RWKV-4 and RWKV-5 follow the formulas of their papers, in numpy and on a GPU."""

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.convert.convert import convert
from tests.convert import checkpoints
from tests.gguf.test_prefab import web
from tests.gguf.test_safetensors import whole
from tests.golden.rwkv4 import logits

IDS = np.random.default_rng(3).integers(1, 300, 40)


@pytest.mark.parametrize("kind", ["rwkv4", "rwkv5"])
def test_logits_of_a_converted_checkpoint_follow_its_paper(adapter, tmp_path, kind):
    arrays = getattr(checkpoints, kind)()
    source, target = tmp_path / "model.st", tmp_path / "model.gguf"
    source.write_bytes(whole(web(arrays)))
    convert(source, target)
    expected = logits(arrays, IDS)
    for device, chunks in (("cpu", (64,)), (str(adapter.index), (64, 1))):
        with rwkv_gpu.load(target, device=device) as llm:
            for chunk in chunks:
                found = llm.logits(IDS.tolist(), chunk_size=chunk)
                np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-4 * np.abs(expected).max())
