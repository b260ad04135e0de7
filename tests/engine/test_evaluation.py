"""Rows of whole texts: their logits, or the inputs of the head."""

import pytest

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.errors import RwkvGpuError
from tests.engine.test_engine import small

IDS = [5, 6, 7]


def test_an_encoder_has_rows_and_no_logits():
    engine = Engine(small("ranking-bert.gguf", context=64))
    with pytest.raises(RwkvGpuError, match="encoder"):
        next(engine.evaluate(IDS))
    [rows] = engine.evaluate(IDS, hidden=True)
    assert len(rows) == len(IDS)


def test_a_decoder_has_rows_and_logits_in_chunks():
    engine = Engine(small("tiny-llama.gguf", chunk_size=2))
    assert [len(rows) for rows in engine.evaluate(IDS)] == [2, 1]
    assert [len(rows) for rows in engine.evaluate(IDS, hidden=True)] == [2, 1]
