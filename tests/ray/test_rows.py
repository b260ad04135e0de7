"""Rows of Ray Data are answered like lines of a batch."""

import json

import numpy as np
import pytest

pytest.importorskip("ray", reason="the extra `ray` is not installed")

from rwkv_gpu.ray.stage import rows_of


def test_rows_become_lines_as_json_has_them():
    batch = {
        "id": np.array([1, 2]),
        "prompt": np.array(["a", None], dtype=object),
        "messages": np.array([None, [{"role": "user", "content": "b", "name": None}]], dtype=object),
        "temperature": np.array([0.5, np.nan]),
        "stop": np.array([["x"], np.array(["y"])], dtype=object),
        "text": np.array(["of an earlier stage", ""]),
    }
    rows = [json.loads(json.dumps(row)) for row in rows_of(batch)]
    assert rows == [
        {"id": 1, "prompt": "a", "temperature": 0.5, "stop": ["x"]},
        {"id": 2, "messages": [{"role": "user", "content": "b"}], "stop": ["y"]},
    ]
    assert list(rows_of({})) == []
