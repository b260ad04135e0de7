"""Every number in metadata has a range: outside of it the file is refused, and inside of it the logits are finite."""

import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rwkv_gpu.engine.parameters import parameters_of
from rwkv_gpu.errors import BadFile, RwkvGpuError
from rwkv_gpu.gguf.fields import Fields, Value
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.loader import host_weights
from rwkv_gpu.models.registry import MODELS, is_encoder, load_model
from rwkv_gpu.models.transformer import Transformer
from tests.gguf.parts import Parts, take_apart
from tests.gguf.writer import U64, written
from tests.golden_files import golden
from tests.models.session import OnCpu, feed

YARN = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 256}
EXTREMES: list[Value] = [
    *(0.0, 5e-324, 1e-30, 0.5, 1e30, 1e308, math.inf, -1e-30, -1.0, -math.inf, math.nan),
    *(0, 1, 3, 1 << 31, (1 << 32) - 1, (1 << 64) - 1, -1, -(1 << 63)),
    *(True, "1"),
]  # fmt: skip


def parts_of(arch: str) -> Parts:
    parts = take_apart(golden(f"tiny-{arch}.gguf").read_bytes())
    # Keys of tokenizers are long and do not matter here, except the mask of a diffusion model.
    parts.rows = [row for row in parts.rows if not row.name.startswith(b"tokenizer.") or b".mask_" in row.name]
    return parts


def opened(arch: str, tmp_path: Path) -> GGUFFile:
    return GGUFFile.open(written(tmp_path, parts_of(arch).built()))


def rope_keys(arch: str, values: Mapping[str, Value] = YARN) -> dict[str, Value]:
    return {f"{arch}.rope.{name}": value for name, value in values.items()}


def numbers_read(arch: str, tmp_path: Path) -> list[str]:
    """Returns the keys that the model reads as numbers, including optional ones."""
    read: list[str] = []

    def noting(get: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Fields, key: str, *rest: Any, **named: Any) -> Any:
            read.append(key)
            return get(self, key, *rest, **named)

        return noted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fields, "int", noting(Fields.int))
        patch.setattr(Fields, "float", noting(Fields.float))
        with opened(arch, tmp_path) as file:
            file.override(rope_keys(arch) if arch != "rwkv7" else {})
            load_model(file)
    return list(dict.fromkeys(read))


def declared(arch: str) -> bool:
    """True if a family is a declaration: `models/dense.py` reads the rest for all of them."""
    return getattr(MODELS[arch], "__annotations__", {}).get("return") is Transformer


def logits_of(file: GGUFFile, loaded: dict[str, dict[str, np.ndarray]] | None = None) -> np.ndarray:
    """Returns the logits of a file, or its embeddings. `loaded` caches the weights of files with the same tensors."""
    loaded = {} if loaded is None else loaded
    model = load_model(file)
    which = repr(model.weights)
    if which not in loaded:
        loaded[which] = host_weights(file, parameters_of(file, model))
    return feed(OnCpu(model, loaded[which]), [5, 6, 7], [3] if is_encoder(model) else [2, 1])


@pytest.mark.parametrize("arch", MODELS)
def test_an_odd_number_is_refused_by_name_or_the_logits_are_finite(arch, tmp_path):
    """Llama's keys get every value with Llama; other models that read them, unless by the same code, take turns."""
    keys = numbers_read(arch, tmp_path)
    assert len(keys) > 4
    of_llama = {key.partition(".")[2] for key in numbers_read("llama", tmp_path)} if arch != "llama" else set()
    turn = slice(len(MODELS) if declared(arch) else list(MODELS).index(arch) % 3, None, 3)
    tried = [(key, one) for key in keys for one in EXTREMES[turn if key.partition(".")[2] in of_llama else slice(None)]]
    loaded: dict[str, dict[str, np.ndarray]] = {}
    with opened(arch, tmp_path) as file:
        plain, scaled = file.metadata, {**file.metadata, **rope_keys(arch)}
        for key, value in tried:
            file.metadata = {**(scaled if ".scaling." in key else plain), key: value}
            try:
                logits = logits_of(file, loaded)
            except RwkvGpuError:
                continue
            assert np.isfinite(logits).all(), (key, value)


ENDS = {  # each key at both ends of its range
    "freq_base": (2.0, 1e12),
    "scaling.factor": (2.0**-10, 2.0**20),
    "scaling.attn_factor": (1e-2, 1e2),
    "scaling.yarn_beta_fast": (1e-3, 1e5),
    "scaling.yarn_beta_slow": (1e-3,),
    "scaling.original_context_length": (1, 1 << 30),
}


@pytest.mark.parametrize("values", list(itertools.product(*ENDS.values())))
def test_rotations_are_finite_at_all_extremes_of_the_ranges(values, tmp_path):
    with opened("llama", tmp_path) as file:
        file.override({**rope_keys("llama"), **rope_keys("llama", dict(zip(ENDS, values, strict=True)))})
        rope = load_model(file).attentions[0].how.rope
    angles = np.array(rope.frequencies()) * 1e6
    assert np.isfinite(angles).all()
    assert math.isfinite(rope.magnitude)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("rope.freq_base", 1.0, "found 1.0, expected a finite number from 2.0 to"),
        ("rope.scaling.factor", 5e-324, "found 5e-324, expected a finite number from"),
        ("rope.scaling.yarn_beta_fast", 1e308, "found 1e\\+308"),
        ("rope.scaling.yarn_beta_slow", 33.0, "found 33.0, expected a finite number from 0.001 to 32.0"),
        ("rope.scaling.attn_factor", 0.0, "found 0.0"),
        ("attention.layer_norm_rms_epsilon", 0.0, "found 0.0, expected a finite number from 9e-13"),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_key(key, value, says, tmp_path):
    with opened("llama", tmp_path) as file, pytest.raises(BadFile, match=f"'llama.{key}': {says}"):
        file.override({**rope_keys("llama"), f"llama.{key}": value})
        logits_of(file)


@pytest.mark.parametrize("factor", [0.0, -1.0, 1e-30, math.inf, math.nan])
def test_a_frequency_factor_that_no_angle_can_be_divided_by_is_refused(factor, tmp_path):
    parts = parts_of("llama")
    values = np.ones(32, np.float32)
    values[7] = factor
    parts.tensors.append(type(parts.tensors[0])(b"rope_freqs.weight", [32], 0, values.tobytes()))
    message = r"tensor 'rope_freqs.weight': found .*, expected numbers from"
    with GGUFFile.open(written(tmp_path, parts.built())) as file, pytest.raises(BadFile, match=message):
        logits_of(file)


@pytest.mark.parametrize(("arch", "heads", "size"), [("jais", 1 << 10, 0), ("hunyuan_vl", 0, 2)])
def test_heads_by_whose_size_a_formula_divides_are_refused_if_they_are_too_small(arch, heads, size, tmp_path):
    whole = parts_of(arch)
    width = whole.row(f"{arch}.embedding_length").value
    whole.rows = [row for row in whole.rows if not row.name.endswith((b".key_length", b".value_length"))]
    whole.set(f"{arch}.attention.head_count", U64, max(heads, width // 2 if size else 0))
    whole.set(f"{arch}.attention.head_count_kv", U64, 1)
    with GGUFFile.open(written(tmp_path, whole.built())) as file, pytest.raises(RwkvGpuError, match=f"size {size} are"):
        load_model(file)
