"""Records what llama.cpp's convert_hf_to_gguf.py writes for tiny checkpoints: keys, and digests of tensors.

    LLAMA=... PYTHON=... python -m tests.convert.record

LLAMA is a checkout of llama.cpp, and PYTHON an interpreter with what its converter needs (torch, transformers).
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from rwkv_gpu.convert.world import world_tokenizer
from rwkv_gpu.text.rwkv import unescape
from tests.convert import checkpoints
from tests.convert.checkpoints import HEAD, INNER, LAYERS, RANK, TOKENS, WIDTH
from tests.convert.hub_adapters import ADAPTERS, write_adapter
from tests.convert.hub_folders import write_folder
from tests.convert.hub_kinds import KINDS
from tests.gguf.test_safetensors import whole

SHORT = 16  # lists up to this length are recorded whole
RECORD = Path(__file__).with_name("llama_cpp.json")
SIZES = {
    "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "vocab_size": TOKENS,
    "num_attention_heads": WIDTH // HEAD,
}  # fmt: skip
RANKS = {f"{name}_low_rank_dim": RANK for name in ("decay", "a", "v", "gate")}
CONFIGS: dict[str, dict[str, Any]] = {
    "rwkv7": {"architectures": ["RWKV7ForCausalLM"], "head_dim": HEAD, "norm_eps": 1e-5, **RANKS},
    "fla7": {"architectures": ["RWKV7ForCausalLM"], "head_dim": HEAD, "norm_eps": 1e-5, **RANKS},
    "rwkv6": {
        "architectures": ["Rwkv6ForCausalLM"], "head_size": HEAD, "layer_norm_epsilon": 1e-5, "rescale_every": 6,
    },
}  # fmt: skip


def hub_names(kind: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the names of hub folders that were made from files of BlinkDL's programs."""
    if kind == "fla7":
        return arrays
    start = "rwkv." if kind == "rwkv6" else "model."
    names = {
        r"^emb\.": "embeddings.",
        r"\.0\.ln0": ".0.pre_ln",
        r"\.att\.": ".attention.",
        r"\.ffn\.": ".feed_forward.",
    }
    found = {}
    for name, array in arrays.items():
        new = name
        for pattern, target in names.items():
            new = re.sub(pattern, target, new)
        found[new if new.startswith("head") else start + new] = array
    if kind == "rwkv7":
        found = {name.replace("model.blocks", "model.layers"): array for name, array in found.items()}
        found = {name.replace("layers.0.pre_ln", "pre_ln"): array for name, array in found.items()}
    return found


def record(kind: str, folder: Path) -> dict[str, Any]:
    """Converts one checkpoint. Returns its keys and digests."""
    arrays = hub_names(kind, getattr(checkpoints, kind)())
    data = whole({name: ("F16", array) for name, array in arrays.items()})
    (folder / "model.safetensors").write_bytes(data)
    (folder / "config.json").write_text(json.dumps(SIZES | CONFIGS[kind]))
    tokens = world_tokenizer(TOKENS)["tokenizer.ggml.tokens"]
    written = [unescape(token) for token in tokens[1:65530]]
    lines = [f"{i + 1} {token!r} {len(token)}\n" for i, token in enumerate(written)]
    (folder / "rwkv_vocab_v20230424.txt").write_text("".join(lines))
    return converted(folder, "")


# llama.cpp detects pre-tokenizers by the tokens of a long text; for a tiny vocabulary, the name must be given.
WRAPPER = """
import runpy, sys
llama, pre, folder, out = sys.argv[1:]
sys.path[:0] = [llama, llama + "/gguf-py"]
import conversion.base
conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
sys.argv = ["convert", folder, "--outfile", out]
runpy.run_path(llama + "/convert_hf_to_gguf.py", run_name="__main__")
"""


def converted_adapter(folder: Path, base: Path) -> dict[str, Any]:
    """Returns the output of llama.cpp's converter for an adapter."""
    out, script = folder / "out.gguf", Path(os.environ["LLAMA"]) / "convert_lora_to_gguf.py"
    subprocess.run([os.environ["PYTHON"], script, folder, "--base", base, "--outfile", out], check=True)
    return described(out)


def converted(folder: Path, pre: str) -> dict[str, Any]:
    """Returns the output of llama.cpp's converter for a folder."""
    out = folder / "out.gguf"
    arguments = [os.environ["LLAMA"], pre, str(folder), str(out)]
    subprocess.run([os.environ["PYTHON"], "-c", WRAPPER, *arguments], check=True)
    return described(out)


# Numbers that are computed: their last bits depend on the program.
COMPUTED = re.compile(r"ssm_a$|rope_freqs\.weight$")


def described(path: Path) -> dict[str, Any]:
    """Returns the keys of a file with their types, and the type, shape and digest of each tensor."""
    reader = gguf.GGUFReader(path)
    keys = {}
    for name, one in reader.fields.items():
        value = one.contents()
        if isinstance(value, list) and len(value) > SHORT:
            value = digest(json.dumps(value).encode())
        if not name.startswith("GGUF."):
            keys[name] = [[kind.name for kind in one.types], value]
    tensors = {
        one.name: [one.tensor_type.name, one.shape.tolist(), _contents(one.name, one.data)] for one in reader.tensors
    }
    return {"keys": keys, "tensors": tensors}


def _contents(name: str, data: np.ndarray) -> Any:
    return [f"{x:.4g}" for x in data.reshape(-1).tolist()] if COMPUTED.search(name) else digest(data.tobytes())


def digest(data: bytes) -> str:
    """Returns a short digest."""
    return hashlib.sha256(data).hexdigest()[:16]


def written(found: dict[str, Any]) -> str:
    """Returns the record as JSON, with a line for each key and each tensor."""
    kinds = []
    for kind, one in found.items():
        parts = []
        for part, rows in one.items():
            lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
            parts.append(f'"{part}": {{\n  ' + ",\n  ".join(lines) + "}")
        kinds.append(f'"{kind}": {{\n ' + ",\n ".join(parts) + "}")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


def main() -> None:
    """Writes the whole record, or only the named kinds."""
    found = json.loads(RECORD.read_text()) if sys.argv[1:] else {}
    for kind in sys.argv[1:] or [*CONFIGS, *KINDS, *ADAPTERS]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            if kind in KINDS:
                tokenizer = KINDS[kind].tokenizer
                found[kind] = converted(write_folder(path, KINDS[kind]), tokenizer.pre or tokenizer.kind)
            elif kind in ADAPTERS:
                found[kind] = converted_adapter(*write_adapter(path, ADAPTERS[kind]))
            else:
                found[kind] = record(kind, path)
    RECORD.write_text(written(found))


if __name__ == "__main__":
    main()
