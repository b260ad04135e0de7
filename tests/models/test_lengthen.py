"""Options of rope scaling give llama.cpp's logits, and a context beyond the trained one works or is refused.

rope_options.npz has llama.cpp's logits of the last of 96 tokens, with the weights as float32 and its context parameters
rope_scaling_type, rope_freq_scale (1 / --rope-scale) and yarn_orig_ctx.
"""

import warnings
from pathlib import Path

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.models.lengthen import ContextExtended, RopeScaling, lengthen
from rwkv_gpu.models.registry import load_model
from tests.golden_files import OWN

CASES = {
    "file": {},
    "none": {"rope_scaling": "none", "rope_scale": 4.0},
    "linear": {"rope_scaling": "linear", "rope_scale": 4.0},
    "yarn": {"rope_scaling": "yarn", "rope_scale": 4.0},
    "yarn_orig": {"rope_scaling": "yarn", "rope_scale": 4.0, "yarn_orig_ctx": 64},
    "scale_alone": {"rope_scale": 2.0},
}


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-gemma3"])
def test_options_of_rope_scaling_give_llama_cpps_logits(name):
    with np.load(Path(__file__).with_name("rope_options.npz")) as golden:
        ids = golden["ids"].tolist()
        expected = {case: golden[f"{name}-{case}"][0] for case in CASES}
    assert np.abs(expected["yarn"] - expected["yarn_orig"]).max() > 0.1, "the cases differ"
    for case, options in CASES.items():
        with rwkv_gpu.load(OWN / f"{name}.gguf", device="cpu", **options) as llm:
            logits = llm.logits(ids)[-1]
        assert np.abs(logits - expected[case]).max() < 1e-2, case  # keys and values are float16 here


def test_a_longer_context_scales_positions_by_default_with_a_note():
    with pytest.warns(ContextExtended, match="longer than the 1,024 .* YaRN scales positions by 4"):
        llm = rwkv_gpu.load(OWN / "tiny-qwen3.gguf", device="cpu", context=4096)
    with llm:
        assert llm.context == 4096
        assert llm.generate([5] * 1500, max_tokens=2).stats.prompt_tokens == 1500


@pytest.mark.parametrize(
    ("asked", "context", "kind", "factor", "limit"),
    [
        (RopeScaling(), 2048, "yarn", 2.0, 2048),
        (RopeScaling("linear"), 2048, "linear", 2.0, 2048),
        (RopeScaling("none"), 2048, "none", 1.0, 2048),
        (RopeScaling("yarn", 4.0), None, "yarn", 4.0, 4096),
        (RopeScaling("yarn", 4.0, 512), None, "yarn", 4.0, 2048),
        (RopeScaling(None, 8.0), None, "linear", 8.0, 8192),
        (RopeScaling("yarn", 8.0), 2048, "yarn", 8.0, 8192),
    ],
)
def test_options_become_keys_of_the_file(asked, context, kind, factor, limit):
    with GGUFFile.open(OWN / "tiny-llama.gguf") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert lengthen(file, load_model(file), asked, context)
        assert file.metadata["llama.rope.scaling.type"] == kind
        assert file.metadata["llama.rope.scaling.factor"] == factor
        assert load_model(file).context == limit


def test_without_options_or_a_longer_context_the_file_stays_as_it_is():
    with GGUFFile.open(OWN / "tiny-llama.gguf") as file:
        before = file.metadata
        assert not lengthen(file, load_model(file), RopeScaling(), 1024)
        assert not lengthen(file, load_model(file), RopeScaling(), None)
        assert file.metadata is before


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bloom", "tiny-bert", "tiny-rwkv7"])
def test_a_model_whose_positions_do_not_rotate_is_refused_with_the_reason(name):
    with pytest.raises(BadInput, match="do not rotate"):
        rwkv_gpu.load(OWN / f"{name}.gguf", device="cpu", rope_scaling="yarn", rope_scale=2.0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rope_scaling": "other"}, "rope_scaling is 'other'; it must be none, linear or yarn"),
        ({"rope_scale": 0.0}, "rope_scale is 0.0"),
        ({"rope_scale": float("nan")}, "rope_scale is nan"),
        ({"yarn_orig_ctx": -1}, "yarn_orig_ctx is -1"),
    ],
)
def test_values_out_of_range_are_refused(options, says):
    with pytest.raises(BadInput, match=says):
        rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu", **options)


def test_a_saved_chat_does_not_use_its_state_with_other_rotations():
    path = OWN / "tiny-qwen3.gguf"
    with rwkv_gpu.load(path, device="cpu") as llm:
        plain = llm.info.fingerprint
    with rwkv_gpu.load(path, device="cpu", rope_scaling="yarn", rope_scale=2.0) as llm:
        assert llm.info.fingerprint != plain
