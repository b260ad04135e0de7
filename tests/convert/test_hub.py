"""Folders of the Hugging Face hub are converted to the same files as by llama.cpp's converter, and they run."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import rwkv_gpu
from rwkv_gpu.cli.commands import cli
from rwkv_gpu.convert.convert import convert
from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.mixes import mix_of
from rwkv_gpu.gguf.requantise import requantise
from tests.convert.hub_adapters import ADAPTERS, START, Adapter, write_adapter
from tests.convert.hub_folders import Folder, numbers, write_folder
from tests.convert.hub_kinds import KINDS
from tests.convert.record import RECORD, described
from tests.gguf.test_safetensors import whole
from tests.gguf.torch_files import save, torch_names

RECORDED = json.loads(RECORD.read_text())
ENCODERS = "bert", "minilm", "cross-encoder"


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_has_the_keys_and_tensors_of_llama_cpp(tmp_path, kind):
    target = tmp_path / "out.gguf"
    convert(write_folder(tmp_path, KINDS[kind]), target)
    found, expected = described(target), RECORDED[kind]
    assert found["keys"] == expected["keys"]
    assert found["tensors"] == expected["tensors"]
    with rwkv_gpu.load(target, device="cpu") as llm:
        if kind in ENCODERS:
            assert llm.embed(["the"])[0].shape == (64,)
        else:
            assert len(llm.generate("the", max_tokens=2, temperature=0).tokens) in (0, 1, 2)


@pytest.mark.parametrize("kind", ADAPTERS)
def test_an_adapter_has_the_keys_and_tensors_of_llama_cpp_and_loads_with_its_model(tmp_path, kind):
    folder, base = write_adapter(tmp_path, ADAPTERS[kind])
    convert(folder, tmp_path / "lora.gguf")
    found = described(tmp_path / "lora.gguf")
    assert found["keys"] == RECORDED[kind]["keys"]
    assert found["tensors"] == RECORDED[kind]["tensors"]
    convert(base, tmp_path / "model.gguf")
    with rwkv_gpu.load(tmp_path / "model.gguf", device="cpu", lora=[tmp_path / "lora.gguf"]) as llm:
        assert len(llm.generate("the", max_tokens=2, temperature=0).tokens) in (0, 1, 2)
    convert(folder, tmp_path / "half.gguf", "f16")
    assert {row[0] for row in described(tmp_path / "half.gguf")["tensors"].values()} == {"F16"}


def test_an_adapter_changes_the_columns_that_a_conversion_reorders(tmp_path):
    """llama.cpp's converter cannot convert this one, so it is compared with a matrix that was changed before."""
    one = ADAPTERS["lora-qwen35"]
    matrix = "model.language_model.layers.0.linear_attn.out_proj"
    folder, base = write_adapter(tmp_path, type(one)(one.name, one.model, {matrix: (64, 64)}, {"lora_alpha": 4}))
    convert(folder, tmp_path / "lora.gguf")
    arrays = numbers(KINDS["qwen35"].shapes(KINDS["qwen35"].config))
    factors = numbers({f"{START}{matrix}.lora_A.weight": (4, 64), f"{START}{matrix}.lora_B.weight": (64, 4)})
    a, b = (factors[f"{START}{matrix}.lora_{side}.weight"] for side in "AB")
    arrays[f"{matrix}.weight"] = b @ a
    (base / "model.safetensors").write_bytes(whole({name: ("F32", array) for name, array in arrays.items()}))
    convert(base, tmp_path / "model.gguf", "f32")
    target = "blk.0.ssm_out.weight"
    with GGUFFile.open(tmp_path / "lora.gguf") as lora, GGUFFile.open(tmp_path / "model.gguf") as model:
        a, b = (lora.values(lora.tensors[f"{target}.lora_{side}"]) for side in "ab")
        np.testing.assert_allclose(b @ a, model.values(model.tensors[target]), atol=1e-6)


def test_a_rank_stabilised_adapter_has_the_same_strength_in_a_file(tmp_path):
    folder, _ = write_adapter(tmp_path, ADAPTERS["lora-llama3"])
    config = folder / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_rslora": True}))
    convert(folder, tmp_path / "lora.gguf")
    with GGUFFile.open(tmp_path / "lora.gguf") as file:
        assert file.float("adapter.lora.alpha", 0, 100) / 4 == 16 / 4**0.5  # rank 4, alpha 16


def test_quantising_in_the_same_pass_equals_quantising_afterwards(tmp_path):
    folder = write_folder(tmp_path, KINDS["qwen35moe"])
    convert(folder, tmp_path / "floats.gguf")
    requantise(tmp_path / "floats.gguf", tmp_path / "after.gguf", mix_of("Q4_0"))
    convert(folder, tmp_path / "once.gguf", "q4_0")
    after, once = described(tmp_path / "after.gguf"), described(tmp_path / "once.gguf")
    assert "Q4_0" in {row[0] for row in once["tensors"].values()}
    assert once == after


def test_a_tokenizer_json_of_sentencepiece_merges_as_its_tokenizer_does(tmp_path):
    folder = write_folder(tmp_path, KINDS["llama2"])
    (folder / "tokenizer.model").unlink()
    letters = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abc", "bc", "ab", "abc"]
    model = {"type": "BPE", "byte_fallback": True, "vocab": {text: n for n, text in enumerate(letters)}}
    model["merges"] = [["b", "c"], "a b", ["a", "bc"]]
    added = [{"id": n, "content": text, "special": True} for n, text in enumerate(letters[:3])]
    (folder / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": added}))
    convert(folder, tmp_path / "out.gguf")
    with rwkv_gpu.load(tmp_path / "out.gguf", device="cpu") as llm:
        assert [letters[n] for n in llm.tokenize("abcab")][-2:] == ["abc", "ab"]


def test_a_folder_needs_the_memory_of_a_few_rows(tmp_path):
    def large(config: dict) -> dict:
        return KINDS["llama3"].shapes(config) | {"model.embed_tokens.weight": (400_000, 64)}

    one = KINDS["llama3"]
    folder = write_folder(tmp_path, Folder(one.name, one.config | {"vocab_size": 400_000}, large, one.tokenizer))
    tracemalloc.start()
    convert(folder, tmp_path / "out.gguf")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "out.gguf").stat().st_size > 51_000_000
    assert peak < 2 * 400_000 * 64 * 4  # the embedding alone takes 102 MB as float32


def test_files_of_torch_become_the_same_tensors(tmp_path, monkeypatch):
    one = KINDS["minilm"]
    folder = write_folder(tmp_path, one)
    convert(folder, tmp_path / "a.gguf")
    (folder / "model.safetensors").unlink()
    arrays = numbers(one.shapes(one.config))
    torch = torch_names(monkeypatch)
    save(folder / "pytorch_model.bin", torch, arrays, kind="FloatStorage")
    convert(folder, tmp_path / "b.gguf")
    names = sorted(arrays)
    for place, part in (("1", names[::2]), ("2", names[1::2])):
        save(folder / f"pytorch_model-{place}.bin", torch, {name: arrays[name] for name in part}, kind="FloatStorage")
    places = {name: f"pytorch_model-{i % 2 + 1}.bin" for i, name in enumerate(names)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    convert(folder, tmp_path / "c.gguf")
    assert described(tmp_path / "a.gguf") == described(tmp_path / "b.gguf") == described(tmp_path / "c.gguf")
    (folder / "config.json").unlink()
    refused("has no config.json; give the folder of a model", folder, tmp_path / "d.gguf")


def test_drafting_heads_are_optional(tmp_path):
    """A program for fine-tuning may save a model without the heads, but leave their number in config.json."""
    one = KINDS["qwen35"]

    def shapes(config: dict) -> dict:
        return {name: shape for name, shape in one.shapes(config).items() if not name.startswith("mtp.")}

    convert(write_folder(tmp_path, Folder(one.name, one.config, shapes, one.tokenizer)), tmp_path / "out.gguf")
    with GGUFFile.open(tmp_path / "out.gguf") as file:
        assert file.int("qwen35.block_count") == 2
        assert "qwen35.nextn_predict_layers" not in file.metadata


def test_a_command_converts_a_folder_and_an_adapter_once(tmp_path, monkeypatch):
    monkeypatch.setenv("RWKV_GPU_CACHE", str(tmp_path / "cache"))
    folder, base = write_adapter(tmp_path, ADAPTERS["lora-llama3"])
    run = ["generate", str(base), "--lora", str(folder), "-p", "the", "-n", "2", "--device", "cpu"]
    first, second = (CliRunner().invoke(cli, [*run, "--temperature", "0"]) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    assert first.stderr.count("converting") == 2
    assert "converting" not in second.stderr
    assert first.stdout == second.stdout
    made = sorted(path.name for path in (tmp_path / "cache" / "converted").rglob("*.gguf"))
    assert made[0].startswith("Tiny-Llama-3.2-90K-Instruct-") and made[1] == "tiny-lora.gguf"
    template = base / "tokenizer_config.json"
    template.write_text(template.read_text().replace("<|end|>", "<|pad|>"))
    assert CliRunner().invoke(cli, run).stderr.count("converting") == 1
    refused = CliRunner().invoke(cli, ["generate", str(folder), "-p", "the", "--device", "cpu"])
    assert refused.exit_code == 2 and "is a LoRA adapter" in refused.stderr


@pytest.mark.parametrize(
    ("experts", "message"),
    [((0, 2), "train an adapter for all experts of a layer, or for none"), ((0, 1), "adapts 2 of the 4 experts of")],
)
def test_an_adapter_of_some_experts_names_the_remedy(tmp_path, experts, message):
    matrices = {f"model.layers.0.mlp.experts.{n}.down_proj": (64, 32) for n in experts}
    folder, base = write_adapter(tmp_path, Adapter("tiny-lora", "qwen35moe", matrices))
    model, lora = tmp_path / "model.gguf", tmp_path / "lora.gguf"
    convert(base, model)
    with pytest.raises(RwkvGpuError, match=message):
        convert(folder, lora, base=base)
        rwkv_gpu.load(model, lora=[lora], device="cpu")


def test_a_conversion_without_a_name_is_named_after_its_input_and_type(tmp_path, monkeypatch):
    folder, base = write_adapter(tmp_path, ADAPTERS["lora-llama3"])
    monkeypatch.chdir(tmp_path)
    for arguments, made in (
        ([str(base)], base / f"{base.name}-BF16.gguf"),
        ([str(base), "--type", "q8_0"], base / f"{base.name}-Q8_0.gguf"),
        ([str(folder), "--base", str(base)], folder / "tiny-lora-F32.gguf"),
        (["none"], None),
    ):
        done = CliRunner().invoke(cli, ["convert", *arguments])
        assert (done.exit_code == 0) == (made is not None), done.stderr
        if made is not None:
            assert done.stderr.startswith(f"{made.relative_to(tmp_path)}: ")
            assert made.exists()


def refused(message: str, folder: Path, target: Path | None = None) -> None:
    """Checks that a conversion fails in one line and writes nothing."""
    target = target or folder.parent / "out.gguf"
    with pytest.raises(RwkvGpuError, match=message) as caught:
        convert(folder, target)
    assert str(caught.value).isprintable()
    assert not target.exists()


class Changed:
    """A folder, one file of which is replaced for a check."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def json(self, message: str, name: str, **changes: object) -> None:
        """Replaces keys of a JSON file; None removes a key."""
        found = json.loads((self.folder / name).read_text()) | changes
        self.bytes(message, name, json.dumps({key: one for key, one in found.items() if one is not None}).encode())

    def bytes(self, message: str, name: str, content: bytes) -> None:
        """Replaces the bytes of a file."""
        path = self.folder / name
        before = path.read_bytes()
        path.write_bytes(content)
        refused(message, self.folder)
        path.write_bytes(before)


def test_a_config_of_another_model_is_refused(tmp_path):
    llama = Changed(write_folder(tmp_path, KINDS["nemo"]))
    for changes, message in (
        ({"num_hidden_layers": 3}, "blk.2"),
        ({"num_hidden_layers": 1}, "is unknown in llama"),
        ({"num_hidden_layers": 1 << 20}, "at most 1024"),
        ({"num_attention_heads": 8}, "expected 256 rows"),
        ({"num_attention_heads": 0}, "num_attention_heads in config.json is 0, expected a whole number"),
        ({"num_attention_heads": True}, "expected a whole number"),
        ({"hidden_size": "64"}, "hidden_size in config.json is '64'"),
        ({"hidden_size": None}, "hidden_size in config.json is missing|embedding_length"),
        ({"hidden_size": 128}, "token_embd.weight"),
        ({"intermediate_size": 95}, "ffn_"),
        ({"num_attention_heads": 1 << 20, "head_dim": 1 << 20}, "rows would be too many"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 1e29}},
            "whole number",
        ),
        ({"head_dim": 15}, "expected an even number"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"vocab_size": 1 << 24}, "272 rows, expected 16777216"),
        ({"vocab_size": 271}, "272 rows, expected 271"),
        ({"vocab_size": 280}, "272 rows, expected 280"),
        ({"rope_theta": "10000"}, "rope_theta"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"rope_scaling": 5}, "expected an object"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "positions of the type longrope"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "original_max_position_embeddings"),
        ({"rope_scaling": {"rope_type": ["x"]}}, "positions of the type"),
        ({"quantization_config": {"quant_method": "gptq"}}, "is quantised already"),
        ({"architectures": ["FooForCausalLM"]}, "FooForCausalLM cannot be converted; known: RWKV-4 to RWKV-7, Llama"),
        ({"architectures": [5], "model_type": "x\n"}, "cannot be converted"),
        ({"text_config": {"num_hidden_layers": 7}}, "blk.2"),
    ):
        llama.json(message, "config.json", **changes)
    llama.bytes("is not a JSON object", "config.json", b"[]")
    llama.bytes("is not JSON", "config.json", b"[" * 100_000)


def test_tokenizers_that_are_damaged_or_unknown_are_refused(tmp_path):
    llama = Changed(write_folder(tmp_path, KINDS["nemo"]))
    found = json.loads((llama.folder / "tokenizer.json").read_text())
    for changes, message in (
        ({"model": None}, "is not a valid tokenizer"),
        ({"model": {"type": "Foo"}}, "a tokenizer of the type Foo is not converted"),
        ({"model": found["model"] | {"vocab": {"a": -1}}}, "a token has no number"),
        ({"model": found["model"] | {"vocab": {"a": 1 << 40}}}, "a token has no number"),
        ({"model": found["model"] | {"vocab": {"a": "b"}}}, "a token has no number"),
        ({"model": found["model"] | {"vocab": {"\ud800": 5}}}, "is not a valid tokenizer"),
        ({"model": found["model"] | {"vocab": [1]}}, "is not a valid tokenizer"),
        ({"model": found["model"] | {"merges": [5]}}, "is not a valid tokenizer"),
        ({"model": found["model"] | {"merges": ["abc"]}}, "a merge is not a pair"),
        ({"added_tokens": [{"content": "x"}]}, "is not a valid tokenizer"),
        ({"added_tokens": {"a": 1}}, "is not a valid tokenizer"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "splits text in a way that is not converted"),
        ({"pre_tokenizer": [5]}, "is not a valid tokenizer"),
        ({"post_processor": {"type": "TemplateProcessing", "single": 5}}, "is not a valid tokenizer"),
    ):
        llama.json(message, "tokenizer.json", **changes)
    llama.json("is not a valid tokenizer", "tokenizer_config.json", added_tokens_decoder={"x": {}})
    (llama.folder / "tokenizer.json").unlink()
    refused("has no tokenizer.json or tokenizer.model", llama.folder)
    spm = Changed(write_folder(tmp_path, KINDS["mistral"]))
    good = (spm.folder / "tokenizer.model").read_bytes()
    for bad in (good[:-3], b"\x0a\xff\xff\xff\xff\x7f", b"\x0b", b"\x0a\x02\x0a\x09", b"\x80" * 20):
        spm.bytes("is not a valid tokenizer", "tokenizer.model", bad)


def test_tensors_that_are_damaged_missing_or_of_other_shapes_are_refused(tmp_path):
    one = KINDS["qwen35moe-separate"]
    moe = Changed(write_folder(tmp_path, one))
    arrays = numbers(one.shapes(one.config))
    at = "model.language_model.layers.0"

    def file(**changes: object) -> bytes:
        found = arrays | {f"{at}.{name}": array for name, array in changes.items()}
        return whole({name: ("F16", array) for name, array in found.items() if array is not None})

    def check(message: str, changes: dict[str, object]) -> None:
        moe.bytes(message, "model.safetensors", file(**changes))

    check("experts of .* are missing", {"mlp.experts.1.up_proj.weight": None})
    check("experts of .* differ", {"mlp.experts.1.up_proj.weight": np.ones((3, 64))})
    check("ssm_norm.weight", {"linear_attn.norm.weight": None})
    check("expected 64 columns", {"linear_attn.out_proj.weight": np.ones((64, 60))})
    check("expected 128 rows", {"linear_attn.in_proj_qkv.weight": np.ones((120, 64))})
    check("expected 4 rows", {"linear_attn.A_log": np.ones(())})
    check("is unknown in qwen35moe", {"more.weight": np.ones(3)})
    check("is empty", {"mlp.gate.weight": np.ones((0, 64))})
    check("infinite or NaN", {"mlp.gate.weight": np.full((4, 64), np.inf)})
    check("infinite or NaN", {"linear_attn.A_log": np.full(4, 1e4)})
    check("which is unknown", {"mlp.experts.gate_up_proj": np.ones((4, 63, 64))})
    good = file()
    moe.bytes("is not a valid safetensors file", "model.safetensors", good[:-100])
    moe.bytes("is not a valid safetensors file", "model.safetensors", b"\xff" * 8 + good[8:])
    moe.bytes(
        "is not a valid safetensors file", "model.safetensors", good.replace(b'"shape": [4, 64]', b'"shape": [9, 64]')
    )
    moe.bytes("numbers of type I64", "model.safetensors", good.replace(b'"F16"', b'"I64"'))
    (moe.folder / "model.safetensors").unlink()
    refused("has no model.safetensors", moe.folder)


def test_adapters_that_cannot_be_converted_are_refused(tmp_path):
    folder, base = write_adapter(tmp_path, ADAPTERS["lora-llama3"])
    lora, name = Changed(folder), "adapter_config.json"
    for changes, message in (
        ({"peft_type": "IA3"}, "adapters of the type IA3"),
        ({"use_dora": True}, "DoRA"),
        ({"alpha_pattern": {"q_proj": 3}}, "a scale for each matrix"),
        ({"lora_alpha": None}, "lora_alpha in config.json is missing"),
        ({"base_model_name_or_path": "someone/else"}, "give the folder of the model with --base"),
        ({"base_model_name_or_path": 5}, "give the folder of the model with --base"),
    ):
        lora.json(message, name, **changes)
    a, b = np.ones((4, 64)), np.ones((64, 4))
    start = f"{START}model.layers.0.self_attn"
    for tensors, message in (
        ({f"{start}.q_proj.lora_A.weight": a}, "has one factor only"),
        ({f"{start}.q_proj.lora_A.weight": a, f"{start}.q_proj.lora_B.weight": np.ones((64, 5))}, "have the shapes"),
        ({f"{start}.q_proj.lora_A.weight": a, f"{start}.q_proj.lora_B.weight": np.ones((60, 4))}, "expected 64"),
        ({f"{start}.x_proj.lora_A.weight": a, f"{start}.x_proj.lora_B.weight": b}, "is not a matrix of llama"),
        ({f"{START}lm_head.weight": a}, "train an adapter without whole tensors"),
        (
            {f"{START}mtp.layers.0.self_attn.q_proj.lora_A.weight": a},
            "of a head that drafts tokens; train an adapter of",
        ),
        ({}, "it has no factors"),
    ):
        data = whole({one: ("F32", array) for one, array in tensors.items()})
        lora.bytes(message, "adapter_model.safetensors", data)
    config = base / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["FooForCausalLM"]}))
    refused("adapters of FooForCausalLM cannot be converted; known: Llama", folder)
    with pytest.raises(RwkvGpuError, match="cannot be written as Q8_0"):
        config.write_text(json.dumps(KINDS["llama3"].config))
        convert(folder, tmp_path / "out.gguf", "q8_0")
