"""Headers of published files: the loader accepts them at their true sizes, and small models with their keys."""

import re
from pathlib import Path

import pytest

from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.formats import SIZES
from rwkv_gpu.models.registry import MODELS, load_model
from tests.gguf.parts import take_apart
from tests.gguf.writer import written
from tests.golden_files import OWN
from tests.models.headers import FILES, TYPES, golden_of, headers, normal, with_keys, with_tensors, write_true_size

pytestmark = pytest.mark.filterwarnings("ignore::rwkv_gpu.models.differences.AnswersDiffer")

HEADERS = headers()
CLASSES = {name: header for name, header in HEADERS.items() if not name.endswith(FILES)}
PARTS = 4  # a test goes through every fourth header
# Keys and tensors of published files that tests of their own cover: matrices stored as one, and optional parts
ELSEWHERE = (
    r"(attn_(qkv|kv_b)|ssm_in)\.|attn_[qk]_norm|^output\.|\.nextn|rope\.scaling\.(type|factor)$|expert_gating_func$"
)
# Tensors of golden models that the published model of that class lacks: other models of the family have them.
FURTHER = {
    "BailingMoeV3ForCausalLM": r"attn_q_",
    "Cohere2MoeForCausalLM": r"ffn_(gate|up|down)(_shexp)?\.weight",
    "DeepseekV4ForCausalLM": r"attn_q_b|attn_output_b",  # rows of 40 and 48 numbers are no blocks of Q8_0
    "DeepseekV2ForCausalLM": r"ffn_(gate|up|down)\.weight",
    "DistilBertModel": r"token_types",
    "Gemma4UnifiedForConditionalGeneration": r"inp_gate|post_norm|proj|per_layer",
    "GraniteMoeForCausalLM": r"_shexp",
    "GraniteMoeHybridForCausalLM": r"attn_[qkvo]",
    "GraniteMoeSWAForCausalLM": r"_shexp",
    "GraniteMoeSharedForCausalLM": r"_shexp",
    "Lfm2ForCausalLM": r"shortconv",
    "Lfm2Model": r"shortconv",
    "Mistral3ForConditionalGeneration#mistral4": r"ffn_(gate|up|down)\.weight",
    "SolarOpenForCausalLM": r"ffn_(gate|up|down)\.weight",
    "YoutuForCausalLM": r"_exps|_shexp|ffn_gate_inp",
}


def refusal(path: Path) -> str:
    """Returns why the loader refuses a file; empty if it accepts the file with all tensors."""
    try:
        with GGUFFile.open(path) as file:
            load_model(file)
    except RwkvGpuError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("part", range(PARTS))
def test_the_loader_accepts_every_published_header_at_its_true_size(part, tmp_path):
    """The loader takes each tensor by name and shape, and refuses files with others. The weights are a hole."""
    names = list(HEADERS)[part::PARTS]
    refused = {name: refusal(write_true_size(HEADERS[name], tmp_path / "model.gguf")) for name in names}
    assert {name: why for name, why in refused.items() if why} == {}


@pytest.mark.parametrize("part", range(PARTS))
def test_a_small_model_of_the_form_of_a_published_file_loads(part, tmp_path):
    """It has all keys of the header, and tensors of the same names and types, except drafting heads."""
    wrong = {}
    for name in list(CLASSES)[part::PARTS]:
        header = CLASSES[name]
        whole = take_apart((OWN / golden_of(header)).read_bytes())
        with_keys(whole, header)
        with_tensors(whole, header)
        widths = {normal(one.name.decode()): one.dims[0] for one in whole.tensors}
        published = {
            f"{row[0]} {row[2]}"
            for _, rows in header.layers
            for row in rows
            if ".nextn." not in row[0] and not widths.get(row[0], 0) % SIZES[TYPES[row[2]]].block
        }
        own = {f"{normal(one.name.decode())} {SIZES[one.kind].name}" for one in whole.tensors}
        further = {one for one in own - published if not re.search(FURTHER.get(name, "^$"), one)}
        keys = {key for key in header.keys if key.startswith(f"{header.arch}.")} - {
            row.name.decode() for row in whole.rows
        }
        wrong[name] = refusal(written(tmp_path, whole.built())), published - own, further, keys
    assert {name: found for name, found in wrong.items() if any(found)} == {}


def test_published_files_have_keys_and_tensors_that_other_tests_cover():
    """Each is in a header that the converter writes for the family, or in a golden model, or of a kind listed above."""
    known: dict[str, set[str]] = {}
    for one in CLASSES.values():
        known.setdefault(one.arch, set()).update(one.keys, (row[0] for _, rows in one.layers for row in rows))
    for path in OWN.glob("*.gguf"):
        with GGUFFile.open(path) as file:
            found = known.setdefault(file.str("general.architecture"), set())
            found.update(file.metadata, map(normal, file.tensors))
    files = [one for name, one in HEADERS.items() if name not in CLASSES]
    names = {name for own in files for name in {*own.keys, *(row[0] for _, rows in own.layers for row in rows)}
             if name not in known[own.arch]}  # fmt: skip
    assert len(files) == 32 and {name for name in names if not re.search(ELSEWHERE, name)} == set()


def test_recorded_headers_are_of_supported_architectures():
    assert {header.arch for header in HEADERS.values()} <= set(MODELS)
    assert all(header.layers for header in HEADERS.values())
