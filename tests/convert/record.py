"""Records what llama.cpp's convert_hf_to_gguf.py writes for tiny checkpoints: keys, and digests of tensors.

    LLAMA=... PYTHON=... python -m tests.convert.record

LLAMA is a checkout of llama.cpp, and PYTHON an interpreter with what its converter needs (torch, transformers).
"""

import hashlib
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from rwkv_gpu.convert.world import world_tokenizer
from rwkv_gpu.text.rwkv import unescape
from tests.convert import checkpoints
from tests.convert.checkpoints import HEAD, INNER, LAYERS, RANK, TOKENS, WIDTH
from tests.gguf.test_safetensors import whole

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
    """The names in folders of the hub that were made from files of BlinkDL's programs."""
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
    """Converts one checkpoint, and returns its keys and digests."""
    arrays = hub_names(kind, getattr(checkpoints, kind)())
    data = whole({name: ("F16", array) for name, array in arrays.items()})
    (folder / "model.safetensors").write_bytes(data)
    (folder / "config.json").write_text(json.dumps(SIZES | CONFIGS[kind]))
    tokens = world_tokenizer(TOKENS)["tokenizer.ggml.tokens"]
    written = [unescape(token) for token in tokens[1:65530]]
    lines = [f"{i + 1} {token!r} {len(token)}\n" for i, token in enumerate(written)]
    (folder / "rwkv_vocab_v20230424.txt").write_text("".join(lines))
    out = folder / "out.gguf"
    script = Path(os.environ["LLAMA"]) / "convert_hf_to_gguf.py"
    subprocess.run([os.environ["PYTHON"], script, folder, "--outfile", out], check=True)
    return described(out)


def described(path: Path) -> dict[str, Any]:
    """The keys of a file with their types, and of each tensor the type, the shape and a digest."""
    reader = gguf.GGUFReader(path)
    keys = {}
    for name, one in reader.fields.items():
        value = one.contents()
        if isinstance(value, list):
            value = hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
        if not name.startswith("GGUF."):
            keys[name] = [[kind.name for kind in one.types], value]
    tensors = {
        one.name: [one.tensor_type.name, one.shape.tolist(), hashlib.sha256(one.data.tobytes()).hexdigest()[:16]]
        for one in reader.tensors
    }
    return {"keys": keys, "tensors": tensors}


def main() -> None:
    """Writes the record."""
    found = {}
    for kind in CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            found[kind] = record(kind, Path(folder))
    RECORD.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
