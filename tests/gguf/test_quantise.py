"""Quantising a model: errors compared with ggml's, types with llama-quantize's, and bad input refused in one line."""

import struct

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.errors import BadFile, BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.header import TensorDescription, aligned, write_header
from rwkv_gpu.gguf.imatrix import read_imatrix
from rwkv_gpu.gguf.mixes import BY_NAME, MIXES, Rule, formats_of, mix_of, pure_mix
from rwkv_gpu.gguf.planes import dequantise_rows
from rwkv_gpu.gguf.quantise import PLAIN, WRITERS, quantise_rows
from rwkv_gpu.gguf.quantise_codebooks import FORMS as CODEBOOKS
from rwkv_gpu.gguf.quantise_codebooks import TERNARY
from rwkv_gpu.gguf.requantise import requantise
from rwkv_gpu.gguf.scan import TensorInfo
from tests.golden_files import OWN

# The relative errors of ggml_quantize_chunk (llama-cpp-python 0.3.36) for VALUES: without an imatrix, and with WEIGHTS.
# Without an imatrix, IQ2_XXS, IQ2_XS, IQ1_S and IQ1_M are measured with ones. Its NVFP4 ignores the imatrix.
GGML = {
    "Q8_0": (0.0053, 0.0053), "TQ1_0": (0.8125, 0.8074), "TQ2_0": (0.8125, 0.8074), "MXFP4": (0.1166, 0.1171),
    "Q4_0": (0.0865, 0.0765), "Q5_0": (0.0430, 0.0373), "Q4_1": (0.0777, 0.0610), "Q5_1": (0.0379, 0.0298),
    "Q2_K": (0.2933, 0.2220), "Q3_K": (0.1518, 0.1314), "Q4_K": (0.0711, 0.0621), "Q5_K": (0.0364, 0.0323),
    "Q6_K": (0.0177, 0.0157), "IQ4_NL": (0.0766, 0.0687), "IQ4_XS": (0.0773, 0.0696), "IQ3_XXS": (0.2140, 0.1338),
    "IQ1_S": (0.4870, 0.4246), "IQ1_M": (0.4543, 0.3653), "NVFP4": (0.0936, 0.0930),
    "IQ3_S": (0.1658, 0.1102), "IQ2_XXS": (0.3464, 0.3425), "IQ2_XS": (0.2987, 0.2298), "IQ2_S": (0.2644, 0.2120),
}  # fmt: skip
FORMS = (*CODEBOOKS, *TERNARY)
rng = np.random.default_rng(0)
VALUES = (rng.standard_normal((16, 1024)) * rng.uniform(0.5, 2, (16, 1))).astype(np.float32)
WEIGHTS = rng.gamma(0.5, 1, 1024).astype(np.float32)
LLAMA, BUILTIN = OWN / "tiny-llama.gguf", rwkv_gpu.builtin_model()


def error(name: str, values, weights=None) -> float:
    back = dequantise_rows(BY_NAME[name], quantise_rows(BY_NAME[name], values, weights))
    by = 1 if weights is None else weights
    return float(np.sqrt((by * (back - values) ** 2).sum() / (by * values**2).sum()))


@pytest.mark.parametrize("name", GGML)
def test_no_format_has_a_larger_error_than_in_ggml(name):
    without, weighted = GGML[name]
    assert error(name, VALUES) <= without + 1e-4  # the last digit is rounded
    found = quantise_rows(BY_NAME[name], VALUES, WEIGHTS)
    back = dequantise_rows(BY_NAME[name], found)
    assert np.sqrt((WEIGHTS * (back - VALUES) ** 2).sum() / (WEIGHTS * VALUES**2).sum()) <= weighted + 1e-4


def test_signs_keep_the_mean_size():
    rows = quantise_rows(BY_NAME["Q1_0"], VALUES)
    back = dequantise_rows(BY_NAME["Q1_0"], rows)
    assert (np.sign(back) == np.where(VALUES >= 0, 1, -1)).all()
    sizes = np.abs(VALUES.reshape(-1, 128)).mean(1)
    assert np.allclose(np.abs(back).reshape(-1, 128)[:, 0], sizes, rtol=1e-3)


def test_two_bit_formats_have_the_layout_of_ggml_and_smaller_errors():
    """ggml's Q2_0: a half d, then weight j in bits 2 (j % 4) of byte j / 4 as round(x / d) + 1, d the largest."""
    blocks = VALUES.reshape(-1, 64)
    largest = np.abs(blocks).max(1, keepdims=True).astype(np.float16)
    numbers = (np.clip(np.rint(blocks / largest), -1, 2) + 1).astype(np.uint8)
    packed = sum(numbers[:, place::4] << 2 * place for place in range(4))
    raw = np.concatenate([largest.view(np.uint8), packed], 1).reshape(len(VALUES), -1)
    written = (numbers - 1.0) * largest
    np.testing.assert_array_equal(dequantise_rows(BY_NAME["Q2_0"], raw), written.reshape(VALUES.shape))
    assert error("Q2_0", VALUES) < 0.6 * np.sqrt(((written - blocks) ** 2).sum() / (blocks**2).sum())


@pytest.mark.parametrize("scale", [1.0, -0.25, 0.0372])
def test_weights_with_three_levels_are_exact_in_two_bits(scale):
    values = (np.random.default_rng(2).integers(-1, 2, (4, 256)) * np.float32(np.float16(scale))).astype(np.float32)
    np.testing.assert_array_equal(dequantise_rows(BY_NAME["Q2_0"], quantise_rows(BY_NAME["Q2_0"], values)), values)


# Errors of ggml for equal weights, for which few codebooks have an entry.
EQUAL = {
    "IQ1_S": 0.1247,
    "IQ1_M": 0.1125,
    "IQ3_XXS": 0.1711,
    "IQ3_S": 0.1593,
    "IQ2_XXS": 0.3332,
    "IQ2_XS": 0.0748,
    "IQ2_S": 0.0615,
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("value", [1.0, -2.5])
def test_errors_of_codebooks_are_not_above_those_of_ggml(name, value):
    assert error(name, np.full((1, 256), value, np.float32)) <= EQUAL[name]


@pytest.mark.parametrize("name", FORMS)
def test_weights_of_the_codebook_are_nearly_exact(name):
    values = dequantise_rows(BY_NAME[name], quantise_rows(BY_NAME[name], VALUES))
    back = dequantise_rows(BY_NAME[name], quantise_rows(BY_NAME[name], values))
    assert np.sqrt(((back - values) ** 2).sum() / (values**2).sum()) < 0.05  # scales of 4 bits are searched again


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("value", [0.0, 1e-30])
def test_blocks_without_a_weight_are_zeros(name, value):
    values = np.full((1, 512), value, np.float32)
    values[0, 256:] = 1.0
    back = dequantise_rows(BY_NAME[name], quantise_rows(BY_NAME[name], values))
    assert np.abs(back[0, :256]).max() <= 1e-7
    assert back[0, 256:].min() > 0


@pytest.mark.parametrize("name", [*PLAIN, *(name for name in WRITERS if name not in FORMS)])
@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 1e-30])
def test_equal_weights_are_nearly_exact(name, value):
    values = np.full((1, 256), value, np.float32)
    back = dequantise_rows(BY_NAME[name], quantise_rows(BY_NAME[name], values))
    assert np.isfinite(back).all()
    assert np.allclose(back, values, rtol=0.2 if name == "MXFP4" else 3e-2, atol=1e-7)


def test_every_format_of_a_mix_can_be_written():
    every = {mix.base for mix in MIXES.values()}
    tables = [(mix.roles, mix.grouped, mix.middle, mix.more, mix.first) for mix in MIXES.values()]
    every |= {name for parts in tables for part in parts for name in part.values()}
    every |= {name for mix in MIXES.values() for name in (mix.head, mix.table, mix.experts) if name}
    assert every <= {*PLAIN, *WRITERS}


def test_a_file_of_a_mix_has_the_type_that_ggml_numbers():
    types = {kind.name.partition("_")[2]: kind.value for kind in gguf.LlamaFileType}
    types |= {"F32": 0, "MXFP4": types["MXFP4_MOE"], "Q2_0": 41}
    assert {name: mix.file_type for name, mix in MIXES.items()} == {name: types[name] for name in MIXES}


def layers(count: int) -> list[TensorInfo]:
    names = [f"blk.{n}.{part}.weight" for n in range(count) for part in ("attn_q", "attn_v", "attn_output", "ffn_down")]
    return [TensorInfo(name, 1, (256, 256), 0, 0, 2 * 256 * 256) for name in (*names, "token_embd.weight")]


@pytest.mark.parametrize(
    ("mix", "values", "downs", "out"),
    [  # by layer, as llama-quantize has written a model of 33 layers
        ("Q2_K", "3" * 33, "3" * 33, "3"),
        ("Q3_K_M", "55" + "4" * 31, "55" + "4" * 31, "4"),
        ("Q3_K_L", "5" * 33, "5" * 33, "5"),
        ("Q4_K_S", "5555" + "4" * 29, "5555" + "4" * 29, "4"),
        ("Q4_K_M", "666644644644644644644644644466666"[:33], "", "4"),
        ("Q6_K", "6" * 33, "6" * 33, "6"),
    ],
)
def test_a_mix_gives_bits_to_the_tensors_that_llama_quantize_gives_them(mix, values, downs, out):
    found = formats_of(MIXES[mix], layers(33))
    bits = {name: fmt.name[1] for name, fmt in found.items()}
    if mix == "Q4_K_M":  # the first and the last eighth of the layers, and every third between
        more = [n < 4 or n >= 28 or (n - 4) % 3 == 2 for n in range(33)]
        values = "".join("6" if one else "4" for one in more)
    assert "".join(bits[f"blk.{n}.attn_v.weight"] for n in range(33)) == values
    assert "".join(bits[f"blk.{n}.ffn_down.weight"] for n in range(33)) == (downs or values)
    assert bits["blk.7.attn_output.weight"] == out
    assert found["token_embd.weight"].name == "Q6_K"  # the output, too


# The types in which llama_model_quantize (llama-cpp-python 0.3.36, with an imatrix) writes a Llama of 16 layers: head,
# embedding, q, k, v and o; v if 4 heads share one; then downs, gates and ups, first of the outer layers, then others.
LOW_BITS = {
    "IQ1_S": "Q5_K Q2_K IQ1_S IQ1_S Q2_K IQ2_XXS Q4_K Q2_K IQ1_S IQ1_S IQ1_S",
    "IQ1_M": "Q5_K Q2_K IQ1_M IQ1_M Q2_K IQ2_XXS Q4_K Q2_K IQ1_M IQ1_M IQ1_M",
    "IQ2_XXS": "Q5_K Q2_K IQ2_XXS IQ2_XXS Q2_K IQ2_XXS Q4_K Q2_K IQ2_XXS IQ2_XXS IQ2_XXS",
    "IQ2_XS": "Q5_K Q2_K IQ2_XS IQ2_XS Q2_K IQ2_XS Q4_K Q2_K IQ2_XS IQ2_XS IQ2_XS",
    "IQ2_S": "Q5_K IQ3_S IQ2_XS IQ2_XS IQ3_S IQ3_S Q4_K IQ3_S IQ2_XS IQ2_XS IQ2_XS",
    "IQ2_M": "Q5_K IQ3_S IQ2_S IQ2_S IQ3_S IQ3_S Q4_K IQ3_S IQ2_S IQ2_S IQ2_S",
    "IQ3_XXS": "Q5_K IQ3_S IQ2_S IQ2_S IQ3_XXS IQ3_S Q4_K IQ3_XXS IQ3_XXS IQ3_XXS IQ3_XXS",
    "IQ3_XS": "Q6_K IQ3_S IQ3_XXS IQ3_XXS IQ3_S IQ3_S Q4_K IQ3_S IQ3_S IQ3_S IQ3_XXS",
    "IQ3_S": "Q6_K IQ3_S IQ3_S IQ3_S IQ3_S IQ3_S Q4_K IQ3_S IQ3_S IQ3_S IQ3_S",
    "IQ3_M": "Q6_K IQ3_S IQ3_S IQ3_S Q4_K Q4_K Q4_K Q4_K IQ3_S IQ3_S IQ3_S",
}


@pytest.mark.parametrize("name", LOW_BITS)
def test_a_mix_of_few_bits_equals_that_of_llama_quantize(name):
    def written(shared: int) -> dict[str, str]:
        rows = {"attn_k": 256 // shared, "attn_v": 256 // shared, "ffn_gate": 512, "ffn_up": 512}
        parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        names = [(f"blk.{n}.{part}", rows.get(part, 256)) for n in range(16) for part in parts]
        names += [("token_embd", 320), ("output", 320)]
        tensors = [TensorInfo(f"{name}.weight", 1, (count, 256), 0, 0, 0) for name, count in names]
        return {key.removesuffix(".weight"): fmt.name for key, fmt in formats_of(mix_of(name), tensors).items()}

    apart, shared = written(1), written(4)
    places = ["output", "token_embd", "blk.5.attn_q", "blk.5.attn_k", "blk.5.attn_v", "blk.5.attn_output"]
    found = [
        *(apart[place] for place in places),
        shared["blk.5.attn_v"],
        apart["blk.1.ffn_down"],
        apart["blk.2.ffn_down"],
    ]
    for gates in (("blk.0", "blk.1", "blk.14", "blk.15"), ("blk.2", "blk.13")):
        [kind] = {apart[f"{layer}.{part}"] for layer in gates for part in ("ffn_gate", "ffn_up")}
        found.append(kind)
    assert " ".join(found) == LOW_BITS[name]


def test_a_pure_mix_and_rules_decide_over_the_roles_of_tensors():
    tensors = [*layers(8), TensorInfo("output.weight", 1, (256, 256), 0, 0, 2 * 256 * 256)]
    assert {fmt.name for fmt in formats_of(pure_mix(MIXES["Q4_K_M"]), tensors).values()} == {"Q4_K"}
    rules = [Rule(r"blk\.[01]\.attn_v", "q8_0"), Rule("attn_v", "Q5_K"), Rule("^output", None)]
    found = {name: fmt.name for name, fmt in formats_of(MIXES["Q4_K_M"], tensors, rules).items()}
    assert [found[f"blk.{n}.attn_v.weight"] for n in range(3)] == ["Q8_0", "Q8_0", "Q5_K"]
    assert (found["output.weight"], found["token_embd.weight"], found["blk.0.ffn_down.weight"]) == (
        "F16",
        "Q4_K",
        "Q6_K",
    )


def test_only_experts_have_four_bits_in_mixes_for_experts():
    names = ("blk.0.ffn_down_exps", "blk.0.ffn_up_exps", "blk.0.ffn_down", "blk.0.attn_q", "output")
    shapes = {True: (4, 256, 256), False: (256, 256)}
    tensors = [TensorInfo(f"{name}.weight", 0, shapes["exps" in name], 0, 0, 0) for name in names]
    found = [fmt.name for fmt in formats_of(mix_of("mxfp4_moe"), tensors).values()]
    assert found == ["MXFP4", "MXFP4", "Q8_0", "Q8_0", "Q8_0"]


def test_rows_that_are_not_whole_blocks_get_the_nearest_format():
    tensors = [TensorInfo(f"blk.0.{n}.weight", 0, (4, n), 0, 0, 16 * n) for n in (256, 96, 40)]
    found = [fmt.name for fmt in formats_of(MIXES["Q4_K_S"], tensors).values()]
    assert found == ["Q4_K", "Q5_0", "F16"]


def test_a_model_keeps_its_metadata_and_its_answers(tmp_path):
    out = tmp_path / "out.gguf"
    requantise(LLAMA, out, mix_of("q8_0"))
    with GGUFFile.open(LLAMA) as old, GGUFFile.open(out) as new:
        assert list(old.tensors) == list(new.tensors)
        assert new.metadata["general.file_type"] == 7
        skipped = {"general.file_type", "general.quantization_version"}
        assert {k: str(v) for k, v in old.metadata.items() if k not in skipped} == {
            k: str(v) for k, v in new.metadata.items() if k not in skipped
        }
        assert new.tensors["blk.0.attn_q.weight"].format.name == "Q8_0"
        assert new.tensors["output_norm.weight"].format.name == "F32"
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
    with rwkv_gpu.load(LLAMA, device="cpu") as a, rwkv_gpu.load(out, device="cpu") as b:
        ids = list(range(5, 25))
        x, y = a.logits(ids), b.logits(ids)
    assert np.abs(x - y).max() < 0.05 * np.abs(x).max()


def binary(entries: dict[str, tuple[int, list[float]]]) -> bytes:
    parts = [struct.pack("<i", len(entries))]
    for name, (calls, values) in entries.items():
        parts.append(struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, len(values)))
        parts.append(np.array(values, "<f4").tobytes())
    return b"".join([*parts, struct.pack("<ii", 7, 4), b"text"])


def as_gguf(entries: dict[str, tuple[list[float], list[list[float]]]]) -> bytes:
    tensors, data = [], b""
    for name, (counts, sums) in entries.items():
        for suffix, values in ((".counts", np.array([[c] for c in counts])), (".in_sum2", np.array(sums))):
            tensors.append(TensorDescription(name + suffix, values.shape, BY_NAME["F32"]))
            raw = values.astype("<f4").tobytes()
            data += raw + bytes(aligned(len(raw)) - len(raw))
    return write_header({"general.type": "imatrix"}, tensors) + data


def test_both_forms_of_an_imatrix_give_the_same_weights(tmp_path):
    old, new = tmp_path / "a.dat", tmp_path / "a.gguf"
    old.write_bytes(binary({"blk.0.attn_q.weight": (2, [2.0, 4.0, 6.0])}))
    new.write_bytes(as_gguf({"blk.0.attn_q.weight": ([2.0], [[2.0, 4.0, 6.0]]), "e": ([2.0, 0.0], [[4.0], [0.0]])}))
    assert read_imatrix(old)["blk.0.attn_q.weight"].tolist() == [[1.0, 2.0, 3.0]]
    assert read_imatrix(new)["blk.0.attn_q.weight"].tolist() == [[1.0, 2.0, 3.0]]
    assert read_imatrix(new)["e"].tolist() == [[2.0], [1.0]]  # no token came to the second expert


@pytest.mark.long
def test_an_imatrix_moves_the_error_to_columns_that_matter_less(tmp_path):
    weights = tmp_path / "a.dat"
    weights.write_bytes(binary({"blk.0.attn_q.weight": (1, [100.0, 0.01] * 128)}))
    errors = []
    for imatrix in (None, read_imatrix(weights)):
        requantise(LLAMA, tmp_path / "out.gguf", mix_of("Q4_1"), imatrix)
        with GGUFFile.open(LLAMA) as old, GGUFFile.open(tmp_path / "out.gguf") as new:
            both = [
                dequantise_rows(t.format, np.frombuffer(f.read(t), np.uint8).reshape(t.shape[0], -1))
                for f, t in ((file, file.tensors["blk.0.attn_q.weight"]) for file in (old, new))
            ]
        errors.append(((both[0] - both[1]) ** 2).reshape(-1, 2).sum(0))
    (important, other), (important_now, other_now) = errors
    assert important_now < 0.9 * important
    assert other_now > other


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends at byte 0"),
        (struct.pack("<i", -1), "has -1 entries"),
        (struct.pack("<ii", 1, 1 << 30), "a name at byte 8 has 1073741824 bytes"),
        (binary({"a": (1, [1.0])})[:14], "a"),
        (binary({"a": (1, [float("nan")])}), "negative, infinite or NaN"),
        (b"GGUF", "magic|version|ends|cut"),
    ],
)
def test_a_damaged_imatrix_is_refused_in_one_line(tmp_path, data, message):
    path = tmp_path / "a.dat"
    path.write_bytes(data)
    with pytest.raises(BadFile, match=message) as failure:
        read_imatrix(path)
    assert "\n" not in str(failure.value)


def test_an_imatrix_of_another_model_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no tensor of this model"):
        requantise(LLAMA, tmp_path / "o", mix_of("Q4_0"), {"other": np.ones((1, 4), np.float32)})
    with pytest.raises(BadInput, match="has 4 columns for blk.0.attn_q.weight"):
        requantise(LLAMA, tmp_path / "o", mix_of("Q4_0"), {"blk.0.attn_q.weight": np.ones((1, 4), np.float32)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_command_writes_a_model_that_runs(tmp_path):
    out = tmp_path / "out.gguf"
    result = CliRunner().invoke(cli, ["quantize", "builtin", str(out), "q4_k_m"])
    assert (result.exit_code, "25 Q4_K" in result.stderr) == (0, True)
    with rwkv_gpu.load(out, device="cpu") as llm:
        assert llm.generate("The sea", max_tokens=4).text


def test_the_command_takes_the_types_of_tensors_that_llama_quantize_takes(tmp_path):
    model, out = str(OWN / "codebooks-llama.gguf"), tmp_path / "out.gguf"
    options = ["--output-tensor-type", "Q5_K", "--token-embedding-type", "f16", "--tensor-type", "ffn_down=q8_0"]
    for given, found in (
        (options, ["Q5_K", "F16", "Q8_0"]),
        (["--pure", "--leave-output-tensor"], ["NVFP4", *2 * ["Q4_K"]]),
    ):
        assert CliRunner().invoke(cli, ["quantize", "-y", model, str(out), "Q4_K_M", *given]).exit_code == 0
        with GGUFFile.open(out) as file:
            names = ("output.weight", "token_embd.weight", "blk.0.ffn_down.weight")
            assert [file.tensors[name].format.name for name in names] == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["builtin", "OUT", "Q9_K"], "'Q9_K' is not a type that can be written; known: F32, F16"),
        (["nosuch.gguf", "OUT", "Q4_0"], "No such file"),
        (["builtin", "OUT/x.gguf", "Q4_0"], "cannot be written"),
        (["builtin", "OUT", "Q4_0", "--imatrix", "none.dat"], "none.dat: cannot be opened"),
        ([str(BUILTIN), str(BUILTIN), "Q4_0"], "is the model itself"),
        (["builtin", "OUT", "Q4_0", "--tensor-type", "attn"], "--tensor-type attn is not NAME=TYPE"),
        (
            ["builtin", "OUT", "Q4_0", "--tensor-type", "attn=q8_k"],
            "'q8_k' is not a tensor type that can be written",
        ),
        (["builtin", "OUT", "Q4_0", "--tensor-type", "(=q8_0"], "'(' is not a regular expression"),
        (["builtin", "OUT", "Q4_0", "--tensor-type", "attn_w=q8_0"], "no matrix of the model has a name like 'attn_w'"),
        (["builtin", "OUT", "Q4_0", "--output-tensor-type", "q9"], "'q9' is not one of 'f32', 'f16'"),
    ],
)
def test_an_error_is_one_line_and_leaves_no_file(tmp_path, arguments, message):
    given = [text.replace("OUT", str(tmp_path / "out.gguf")) for text in arguments]
    result = CliRunner().invoke(cli, ["quantize", *given])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
