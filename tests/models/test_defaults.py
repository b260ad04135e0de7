"""Missing keys have defaults: the logits equal those with the default written out, and differ for other values."""

import numpy as np
import pytest

from rwkv_gpu.gguf.fields import Value
from rwkv_gpu.gguf.file import GGUFFile
from tests.gguf.parts import Parts
from tests.gguf.writer import U32, written
from tests.models.test_numbers import YARN, logits_of, opened, parts_of

LINEAR = {"rope.scaling.factor": 4.0}
Keys = dict[str, Value]
SCALED: Keys = {f"rope.{name}": value for name, value in YARN.items()}

# Given keys, the optional key, its default, and another value that changes the logits.
DEFAULTS: list[tuple[Keys, str, Value, Value | None]] = [
    ({}, "rope.dimension_count", 64, 32),
    ({}, "rope.freq_base", 10000.0, 9000.0),
    ({}, "rope.scaling.factor", 1.0, 2.0),
    ({}, "rope.scale_linear", 0.0, 2.0),
    ({}, "attention.key_length", 64, None),
    ({}, "attention.value_length", 64, None),
    ({}, "attention.sliding_window", 0, 2),
    ({}, "expert_count", 0, None),
    (LINEAR, "rope.scaling.type", "linear", "none"),
    (LINEAR, "rope.scaling.attn_factor", 1.0, 0.5),
    (LINEAR, "rope.scale_linear", 7.0, None),  # the older key counts only where the newer is missing
    (SCALED, "rope.scaling.yarn_beta_fast", 32.0, 4.0),
    (SCALED, "rope.scaling.yarn_beta_slow", 1.0, 8.0),
    (SCALED, "rope.scaling.attn_factor", 1.0, 0.5),
]


def logits_with(keys: Keys, tmp_path, arch: str = "llama", without: str = "") -> np.ndarray:
    with opened(arch, tmp_path) as file:
        file.metadata = {key: value for key, value in file.metadata.items() if key != f"{arch}.{without}"}
        file.override({f"{arch}.{name}": value for name, value in keys.items()})
        return logits_of(file)


@pytest.mark.parametrize(("given", "key", "default", "other"), DEFAULTS)
def test_a_key_that_is_left_out_is_its_default(given, key, default, other, tmp_path):
    left_out = logits_with({name: value for name, value in given.items() if name != key}, tmp_path, without=key)
    assert np.array_equal(logits_with({**given, key: default}, tmp_path), left_out)
    if other is not None:
        assert not np.array_equal(logits_with({**given, key: other}, tmp_path), left_out)


def test_the_older_key_scales_positions_as_the_newer_does(tmp_path):
    assert np.array_equal(logits_with({"rope.scale_linear": 4.0}, tmp_path), logits_with(LINEAR, tmp_path))


def test_yarn_starts_from_the_trained_context_unless_the_file_names_another(tmp_path):
    key = "rope.scaling.original_context_length"
    given = {name: value for name, value in SCALED.items() if name != key}
    left_out = logits_with(given, tmp_path)
    assert np.array_equal(logits_with({**given, key: 1024}, tmp_path), left_out)
    assert not np.array_equal(logits_with({**given, key: 16}, tmp_path), left_out)


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
    logits = []
    for parts in (named, bare):
        with GGUFFile.open(written(tmp_path, parts.built())) as file:
            logits.append(logits_of(file))
    assert np.array_equal(*logits)


@pytest.mark.parametrize("key", ["token_shift_count", "context_length"])
def test_rwkv7_gives_the_same_logits_without_the_key(key, tmp_path):
    given = {"token_shift_count": 2}
    assert np.array_equal(logits_with({}, tmp_path, "rwkv7", key), logits_with(given, tmp_path, "rwkv7"))
