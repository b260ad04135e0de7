"""Adds tensors to recorded headers that have only keys: llama.cpp's loader says which shapes it expects for these keys.

python -m tests.golden.record_shapes LIBRARY [CLASS ...]

LIBRARY is a folder with libllama and libggml-base of September 2026. Names are those of the family's golden model.
Types follow the converter's rule: F16, and F32 for vectors, norms and small matrices that it names.
"""

import ctypes as c
import json
import lzma
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.gguf.parts import Row, Stored, row_bytes, take_apart
from tests.gguf.writer import ARRAY, F32, I32, STRING, U32, gguf, tensor
from tests.golden.record_headers import CONFIGS, folded
from tests.golden_files import OWN
from tests.models.headers import PATH, Header, golden_of, headers, normal, rows_of

# Tensors that the converter keeps in F32 although they are matrices.
FLOATS = re.compile(
    r"(_norm|ffn_gate_inp(_shexp)?|position_embd|token_types|ssm_conv1d(_[qkv])?|shortconv\.conv|time_mix_first"
    r"|time_mix(_decay)?_w[12]|time_mix_lerp_fused|altup_(correct|predict)_coef|indexer\.proj)\.weight$"
)
# Types of matrices that a family's converter chooses by name instead. DeepSeek-V4's follow those of the checkpoint.
CHOSEN = {
    "deepseek4": (
        (r"_exps\.", "MXFP4"),
        (r"tid2eid", "I32"),
        (r"hc_|_ape\.", "F32"),
        (r"^(token_embd|output)\.|_compressor_|indexer\.proj|ffn_gate_inp", "BF16"),
        (r"", "Q8_0"),
    ),
    "glm5next": ((r"_ape\.", "F32"),),
    "hy_v4": ((r"hc_|^output\.", "F32"),),
    "minimax-m3": ((r"indexer\.", "F32"),),
}
# Keys that llama.cpp requires although its converter leaves them out. They do not change shapes.
REQUIRED = (("attention.layer_norm_rms_epsilon", F32, 1e-5), ("logit_scale", F32, 1.0), ("expert_gating_func", U32, 2))
HEAD = "eh_proj", "enorm", "hnorm", "shared_head_norm"  # of a drafting head, which golden models lack


class Parameters(c.Structure):
    """llama_model_params of that version. Only the flags at the end are changed."""

    _fields_ = (
        *((name, c.c_void_p) for name in ("devices", "overrides")),
        *((name, c.c_int) for name in ("gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")),
        *((name, c.c_void_p) for name in ("split", "progress", "progress_data", "kv_overrides")),
        *((name, c.c_bool) for name in ("vocab_only", "check", "extra_buffers", "no_host", "no_alloc", "load_mtp")),
    )


class Reading(c.Structure):
    _fields_ = (("no_alloc", c.c_bool), ("context", c.c_void_p))


def skip_count(llama: c.CDLL) -> None:
    """Lets the loader accept names that it does not use: the check at its end returns at once (x86)."""
    check = c.cast(llama._ZNK18llama_model_loader20done_getting_tensorsEb, c.c_void_p).value or 0
    page = check & -4096
    c.CDLL(None).mprotect(c.c_void_p(page), 8192, 7)
    c.memset(check, 0xC3, 1)


def shapes(library: Path, path: Path) -> dict[str, list[int]]:
    """Returns the shape that llama.cpp expects of each tensor that it takes from a file. No weights are allocated."""
    backends = c.CDLL(str(library / "libggml.v0.5.0.so"), mode=c.RTLD_GLOBAL)
    ggml, llama = c.CDLL(str(library / "libggml-base.so")), c.CDLL(str(library / "libllama.v0.5.0.so"))
    backends.ggml_backend_load_all_from_path(str(library).encode())
    ggml.gguf_init_from_file.restype = c.c_void_p
    setter = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p)
    llama.llama_model_default_params.restype = Parameters
    llama.llama_model_init_from_user.restype = c.c_void_p
    llama.llama_model_init_from_user.argtypes = (c.c_void_p, setter, c.c_void_p, Parameters)
    table = llama._Z29llama_internal_get_tensor_mapB5cxx11PK11llama_model
    table.restype, table.argtypes = c.c_void_p, (c.c_void_p,)
    wanted = llama.llama_model_default_params()
    wanted.no_alloc, wanted.load_mtp, wanted.gpu_layers = True, True, 0
    skip_count(llama)
    keys = c.c_void_p(ggml.gguf_init_from_file(str(path).encode(), Reading(True, None)))
    model = llama.llama_model_init_from_user(keys, setter(lambda *_: None), None, wanted)
    vector, found = table(model), {}
    for at in range(
        *(c.c_void_p.from_address(vector + 8 * i).value for i in (0, 1)), 40
    ):  # pairs of a string and a tensor
        name = c.string_at(c.c_void_p.from_address(at).value, c.c_size_t.from_address(at + 8).value).decode()
        dims = list((c.c_int64 * 4).from_address(c.c_void_p.from_address(at + 32).value + 16))
        while len(dims) > 1 and dims[-1] == 1:
            dims.pop()
        found[name] = dims[::-1]
    return found


def golden_tensors(header: Header) -> list[Stored]:
    return take_apart((OWN / golden_of(header)).read_bytes()).tensors


def asked(name: str, path: Path) -> None:
    """Writes a file with the keys of a header, and the names of its golden model in every layer."""
    header = headers()[name]
    arch, layers = header.arch, header.keys[f"{header.arch}.block_count"][1]
    if header.keys.get(f"{arch}.hrm.layers_per_stack"):
        layers = 2 * header.keys[f"{arch}.hrm.layers_per_stack"][1]
    names = {normal(one.name.decode()) for one in golden_tensors(header)}
    if header.keys.get(f"{arch}.leading_dense_block_count", (0, 0))[1]:
        names |= {f"blk.{{i}}.ffn_{one}.weight" for one in ("gate", "up", "down")}
    if header.keys.get(f"{arch}.nextn_predict_layers", (0, 0))[1]:
        names |= {f"blk.{{i}}.nextn.{one}.weight" for one in HEAD}
    every = dict.fromkeys(one.replace("{i}", str(i)) for one in sorted(names) for i in range(layers))
    if {"blk.{i}.attn_qkv.weight", "blk.{i}.attn_q.weight"} <= names:  # the loader would take the first in every layer
        recurrent = header.keys.get(f"{arch}.attention.recurrent_layers", (0, [i % 8 < 7 for i in range(layers)]))[1]
        whole = [i for i in range(layers) if i >= len(recurrent) or not recurrent[i]]
        every = {one: None for one in every if one not in {f"blk.{i}.attn_qkv.weight" for i in whole}}
    rows = [row for row in rows_of(header) if not row.name.startswith(b"tokenizer.") or b"type_count" in row.name]
    rows.append(Row(b"tokenizer.ggml.model", STRING, b"no_vocab"))
    known = {row.name.decode() for row in rows}
    rows += [
        Row(f"{arch}.{key}".encode(), kind, value) for key, kind, value in REQUIRED if f"{arch}.{key}" not in known
    ]
    if f"{arch}.rope.dimension_sections" not in known:
        rows.append(Row(f"{arch}.rope.dimension_sections".encode(), ARRAY, [24, 20, 20, 0], I32))
    own = json.loads(CONFIGS.read_text()).get(name, {})
    if f"{arch}.vocab_size" not in header.keys:
        config = {**own.get("config", {}), **own.get("changes", {})}
        words = config.get("text_config", config)["vocab_size"]
        rows.append(Row(f"{arch}.vocab_size".encode(), U32, words))
    table = [tensor(one.encode(), [32], 128 * i, kind=0) for i, one in enumerate(every)]
    path.write_bytes(gguf([row_bytes(row) for row in rows], table, bytes(128 * len(table))))


def as_stored(arch: str, name: str, shape: list[int]) -> list[int]:
    """Returns the shape in the file of a tensor that llama.cpp gives another shape, or cuts."""
    if arch == "deepseek4" and "attn_output_a" in name:
        return [shape[0] * shape[1], shape[2]]
    if arch == "qwen4exp" and re.search(r"hc_\w*norm|ple_norm", name):
        return [math.prod(shape)]
    if arch == "qwen4exp" and name.startswith("per_layer_token_embd"):
        return [-(-shape[0] // 128) * 128, shape[1]]
    return shape


def plausible(name: str, tensors: dict[str, list[int]]) -> dict[str, list[int]]:
    """Leaves out experts of dense layers and dense matrices of other layers, where the loader accepts both."""
    header = headers()[name]
    arch, keys = header.arch, header.keys
    blocks = [re.match(r"blk\.(\d+)\.(.*)", one.name.decode()) for one in golden_tensors(header)]
    own = [{found[2] for found in blocks if found and int(found[1]) == i} for i in range(9)]
    mixed = any({"ffn_gate_inp.weight", "ffn_down.weight"} <= one for one in own)
    dense = sum("ffn_down.weight" in one for one in own)
    dense = keys.get(f"{arch}.leading_dense_block_count", (0, dense))[1]
    trunk = keys[f"{arch}.block_count"][1] - keys.get(f"{arch}.nextn_predict_layers", (0, 0))[1]
    kept = {}
    for key, shape in tensors.items():
        number, _, part = key.removeprefix("blk.").partition(".")
        at = int(number) if number.isdecimal() else None
        mixture = re.search(r"exps|shexp|ffn_gate_inp|exp_probs", part)
        both = at is not None and {f"blk.{at}.ffn_gate_inp.weight", f"blk.{at}.ffn_down.weight"} <= set(tensors)
        is_dense = at is not None and (at < dense or at >= trunk)
        if both and not mixed and (mixture if is_dense else re.match(r"ffn_(gate|up|down)\.weight", part)):
            continue
        gateless = arch == "arwkv7" and not keys["arwkv7.attention.gate_lora_rank"][1] and "lerp_fused" in key
        kept[key] = [5, *shape[1:]] if gateless else as_stored(arch, key, shape)
    if len(kept.get("token_types.weight", "12")) == 1:
        kept["token_types.weight"] = [1, *kept["token_types.weight"]]
    return kept


def kind(name: str, shape: list[int], arch: str) -> str:
    chosen = [to for pattern, to in CHOSEN.get(arch, ()) if re.search(pattern, name)]
    if len(shape) > 1 and chosen:
        return chosen[0]
    plain = len(shape) == 1 or FLOATS.search(name) or not name.endswith((".weight", ".lora_a", ".lora_b"))
    return "F32" if plain else "F16"


def main(library: Path, *names: str) -> None:
    found = json.loads(lzma.decompress(PATH.read_bytes()))
    for name in names or [name for name, header in headers().items() if not header.layers]:
        if any(value is None for _, value in headers()[name].keys.values()):
            print(f"{name}: a key has no value")
            continue
        with tempfile.TemporaryDirectory() as folder:
            asked(name, path := Path(folder) / "keys.gguf")
            command = [sys.executable, "-m", "tests.golden.record_shapes", str(library), f"--file={path}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}: {done.stderr[-300:]}")
            continue
        tensors = plausible(name, json.loads(done.stdout))
        arch = headers()[name].arch
        found[name]["layers"] = folded([[key, shape, kind(key, shape, arch)] for key, shape in tensors.items()])
    PATH.write_bytes(lzma.compress(json.dumps(found, separators=(",", ":")).encode(), preset=9))


if __name__ == "__main__":
    if sys.argv[2:] and sys.argv[2].startswith("--file="):
        print(json.dumps(shapes(Path(sys.argv[1]), Path(sys.argv[2][7:]))))
    else:
        main(Path(sys.argv[1]), *sys.argv[2:])
