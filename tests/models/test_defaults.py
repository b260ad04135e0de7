"""Missing keys have defaults: the logits equal those with the default written out, and differ for other values."""

from typing import Any

import numpy as np
import pytest

from tests.gguf.parts import Parts
from tests.gguf.writer import F32, STRING, U32, written
from tests.models.test_numbers import YARN, logits_of, parts_of

LINEAR = {"rope.scaling.factor": (F32, 4.0)}
Keys = dict[str, tuple[int, Any]]
SCALED: Keys = {f"rope.{name}": value for name, value in YARN.items()}

# Given keys, the optional key, its default, and another value that changes the logits.
DEFAULTS: list[tuple[Keys, str, tuple[int, Any], tuple[int, Any] | None]] = [
    ({}, "rope.dimension_count", (U32, 64), (U32, 32)),
    ({}, "rope.freq_base", (F32, 10000.0), (F32, 9000.0)),
    ({}, "rope.scaling.factor", (F32, 1.0), (F32, 2.0)),
    ({}, "rope.scale_linear", (F32, 0.0), (F32, 2.0)),
    ({}, "attention.key_length", (U32, 64), None),
    ({}, "attention.value_length", (U32, 64), None),
    ({}, "attention.sliding_window", (U32, 0), (U32, 2)),
    ({}, "expert_count", (U32, 0), None),
    (LINEAR, "rope.scaling.type", (STRING, b"linear"), (STRING, b"none")),
    (LINEAR, "rope.scaling.attn_factor", (F32, 1.0), (F32, 0.5)),
    (LINEAR, "rope.scale_linear", (F32, 7.0), None),  # the older key counts only where the newer is missing
    (SCALED, "rope.scaling.yarn_beta_fast", (F32, 32.0), (F32, 4.0)),
    (SCALED, "rope.scaling.yarn_beta_slow", (F32, 1.0), (F32, 8.0)),
    (SCALED, "rope.scaling.attn_factor", (F32, 1.0), (F32, 0.5)),
]


def logits_with(keys: Keys, tmp_path, arch: str = "llama", without: str = "") -> np.ndarray:
    parts = parts_of(arch)
    parts.rows = [row for row in parts.rows if row.name != f"{arch}.{without}".encode()]
    for name, (kind, value) in keys.items():
        parts.set(f"{arch}.{name}", kind, value)
    return logits_of(written(tmp_path, parts.built()))


@pytest.mark.parametrize(("given", "key", "default", "other"), DEFAULTS)
def test_a_key_that_is_left_out_is_its_default(given, key, default, other, tmp_path):
    left_out = logits_with({name: value for name, value in given.items() if name != key}, tmp_path, without=key)
    assert np.array_equal(logits_with({**given, key: default}, tmp_path), left_out)
    if other is not None:
        assert not np.array_equal(logits_with({**given, key: other}, tmp_path), left_out)


def test_the_older_key_scales_positions_as_the_newer_does(tmp_path):
    assert np.array_equal(logits_with({"rope.scale_linear": (F32, 4.0)}, tmp_path), logits_with(LINEAR, tmp_path))


def test_yarn_starts_from_the_trained_context_unless_the_file_names_another(tmp_path):
    key = "rope.scaling.original_context_length"
    given = {name: value for name, value in SCALED.items() if name != key}
    left_out = logits_with(given, tmp_path)
    assert np.array_equal(logits_with({**given, key: (U32, 1024)}, tmp_path), left_out)
    assert not np.array_equal(logits_with({**given, key: (U32, 16)}, tmp_path), left_out)


def test_without_a_count_each_head_has_keys_of_its_own(tmp_path):
    def wide() -> Parts:
        parts = parts_of("llama")
        for one in parts.tensors:
            if one.name.endswith((b"attn_k.weight", b"attn_v.weight")):
                one.dims[1] *= 2  # 4 heads of 64 in place of 2
        return parts

    named, bare = wide(), wide()
    named.set("llama.attention.head_count_kv", U32, 4)
    bare.rows = [row for row in bare.rows if row.name != b"llama.attention.head_count_kv"]
    logits = [logits_of(written(tmp_path, parts.built())) for parts in (named, bare)]
    assert np.array_equal(*logits)


@pytest.mark.parametrize("key", ["token_shift_count", "context_length"])
def test_rwkv7_gives_the_same_logits_without_the_key(key, tmp_path):
    given = {"token_shift_count": (U32, 2)}
    assert np.array_equal(logits_with({}, tmp_path, "rwkv7", key), logits_with(given, tmp_path, "rwkv7"))
