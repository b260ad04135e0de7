"""The user is warned where answers intentionally differ from llama.cpp's; overriding a key restores its answers."""

import warnings

import numpy as np
import pytest
from click.testing import CliRunner

import rwkv_gpu
from cli.commands import cli
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.override import overrides_of
from rwkv_gpu.models.differences import FINDERS, AnswersDiffer, warn_of_differences
from tests.gguf.parts import take_apart
from tests.gguf.writer import BOOL, F32, STRING, U32, written
from tests.golden_files import OWN
from tests.test_docs import ROOT

WINDOW, LAYERS = 5, 3
PHI3 = "phi3.attention.sliding_window"


def phi3(tmp_path, window: int):
    whole = take_apart((OWN / "tiny-phi3.gguf").read_bytes())
    whole.set(PHI3, U32, window)
    return written(tmp_path, whole.built())


def logits(path, ids: list[int], **options) -> np.ndarray:
    with rwkv_gpu.load(path, device="cpu", kv="f32", **options) as llm:
        return llm.logits(ids)[-1]


@pytest.mark.filterwarnings("ignore::rwkv_gpu.models.differences.AnswersDiffer")
def test_phi3_has_the_window_of_the_publishers_code(tmp_path):
    path, reach = phi3(tmp_path, WINDOW), LAYERS * (WINDOW - 1)
    ids = [5 + i for i in range(reach + 2)]
    last = logits(path, ids)
    assert np.array_equal(last, logits(path, [9, *ids[1:]])), "a token before the window changes nothing"
    assert not np.allclose(last, logits(path, [ids[0], 9, *ids[2:]])), "the first token of the window does"


@pytest.mark.filterwarnings("ignore::rwkv_gpu.models.differences.AnswersDiffer")
def test_an_overridden_window_gives_the_answers_of_llama_cpp(tmp_path):
    ids = list(range(5, 25))
    expected = logits(OWN / "tiny-phi3.gguf", ids)
    for override in ({PHI3: 0}, [f"{PHI3}=int:0"]):
        assert np.array_equal(logits(phi3(tmp_path, WINDOW), ids, override_kv=override), expected)
    assert not np.allclose(logits(phi3(tmp_path, WINDOW), ids), expected)


DIFFERENT = {
    "phi3": ({PHI3: (U32, WINDOW)}, rf"{PHI3} is 5.*--override-kv {PHI3}=int:0"),
    "llama": ({"llama.attention.sliding_window": (U32, 9)}, "llama.attention.sliding_window is 9"),
    "qwen2": (
        {"qwen2.rope.scaling.type": (STRING, b"yarn"), "qwen2.rope.scaling.yarn_beta_fast": (F32, 16.0)},
        "yarn_beta_fast is 16.*=float:32",
    ),
    "falcon-h1": ({}, "attn_output.bias is added"),
    "grok": ({"grok.router_logit_softcapping": (F32, 20.0)}, "router_logit_softcapping is followed"),
    "grovemoe": ({}, "another formula"),
    "chameleon": ({"chameleon.swin_norm": (BOOL, True)}, "swin_norm is true"),
    "hrm_text": ({"hrm_text.hrm.prefix_lm": (BOOL, True)}, "prefix_lm is true"),
}


@pytest.mark.parametrize("arch", DIFFERENT)
def test_a_file_whose_answers_differ_is_loaded_with_a_warning(arch, tmp_path):
    keys, message = DIFFERENT[arch]
    whole = take_apart((OWN / f"tiny-{arch}.gguf").read_bytes())
    for key, (kind, value) in keys.items():
        whole.set(key, kind, value)
    if arch == "falcon-h1" and not any(one.name == b"blk.0.attn_output.bias" for one in whole.tensors):
        like = next(one for one in whole.tensors if one.name == b"blk.0.attn_norm.weight")
        whole.tensors.append(type(like)(b"blk.0.attn_output.bias", like.dims, like.kind, like.data))
    path = written(tmp_path, whole.built())
    with GGUFFile.open(path) as file, pytest.warns(AnswersDiffer, match=message):
        warn_of_differences(file)


def test_golden_models_are_loaded_without_a_warning_but_for_families_that_differ():
    different = {"tiny-grovemoe", "swin-chameleon"}
    for path in sorted(OWN.glob("*.gguf")):
        with GGUFFile.open(path) as file, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_differences(file)
        assert not caught or path.stem in different, (path.name, [str(one.message) for one in caught])


def test_the_guide_has_a_row_for_each_difference():
    text = (ROOT / "docs/models.md").read_text()
    table = text.partition("### Differences from llama.cpp")[2].partition("\n#")[0]
    assert sum(line.startswith("| ") for line in table.splitlines()) >= len(FINDERS) + 1


@pytest.mark.parametrize(
    "bad", ["a", "a=int", "a=int:x", "a=byte:1", "a=bool:2", "=int:1", "a=float:nan", 3, {"a": [1]}]
)
def test_a_bad_override_is_refused_in_one_line(bad):
    with pytest.raises(BadInput) as caught:
        overrides_of(bad)
    assert "override" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        ({"k" * 256: 1}, {"k" * 257: 1}),
        ({"k": "x" * 127}, {"k": "x" * 128}),
        ({"k": (1 << 63) - 1}, {"k": 1 << 63}),
        ({"k": -(1 << 63)}, {"k": -(1 << 63) - 1}),
        ({"k": True}, {3: True}),
        ({"k": 1.5}, {"k": float("-inf")}),
        (["k=int:1"], ["k=int:1", 3]),
        ((), {"": 1}),
    ],
)
def test_an_override_reaches_its_limits_and_does_not_exceed_them(within, beyond):
    assert list(overrides_of(within)) == [given.partition("=")[0] for given in within]
    with pytest.raises(BadInput, match="override"):
        overrides_of(beyond)


def test_the_command_line_takes_overrides(tmp_path):
    path = phi3(tmp_path, 0)
    given = ["generate", str(path), "-p", "a", "-n", "1", "--device", "cpu", "--override-kv", "phi3.block_count=int:9"]
    done = CliRunner().invoke(cli, given)
    assert done.exit_code != 0 and "blk.3" in done.output
    assert overrides_of(["a=str:b=c:d", "e=bool:true"]) == {"a": "b=c:d", "e": True}
