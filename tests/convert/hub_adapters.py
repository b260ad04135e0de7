"""Tiny LoRA adapters in PEFT's file format, for folders of the hub."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.convert.hub_folders import INNER, TOKENS, WIDTH, numbers, write_folder
from tests.convert.hub_kinds import KINDS
from tests.gguf.test_safetensors import whole

START = "base_model.model."
CARD = "---\nbase_model: someone/Tiny-1B\nlicense: mit\nlibrary_name: peft\ntags:\n- lora\n---\n"
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "bias": "none", "use_rslora": False, "alpha_pattern": {}}


@dataclass(frozen=True)
class Adapter:
    """An adapter: its name, the kind of its model, its matrices [rows, columns], and more of adapter_config.json."""

    name: str
    model: str
    matrices: dict[str, tuple[int, int]]
    config: dict[str, Any] = field(default_factory=dict)
    rank: int = 4


def of_layers(shapes: dict[str, tuple[int, int]], layers: tuple[int, ...] = (0, 1), at: str = "model.layers") -> Any:
    """Repeats the matrices for several layers."""
    return {f"{at}.{i}.{name}": shape for i in layers for name, shape in shapes.items()}


PROJECTIONS = {
    "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (32, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH), "mlp.down_proj": (WIDTH, INNER),
}  # fmt: skip
DELTA = {"linear_attn.in_proj_qkv": (128, WIDTH), "linear_attn.in_proj_z": (WIDTH, WIDTH)}
ADAPTERS: dict[str, Adapter] = {
    "lora-llama3": Adapter("tiny-lora", "llama3", of_layers(PROJECTIONS)),
    # Embeddings have factors of another form; a prefix of layers from 10 on would sort differently as text.
    "lora-qwen2": Adapter("tiny-qwen-lora", "qwen2", of_layers({"self_attn.v_proj": (32, WIDTH)}) | {
        "model.embed_tokens": (TOKENS, WIDTH), "lm_head": (TOKENS, WIDTH),
    }, {"lora_alpha": 8}),
    "lora-qwen35": Adapter(
        "tiny-qwen3.5-lora", "qwen35", of_layers(DELTA, (0,), "model.language_model.layers"), {"lora_alpha": 32.0}
    ),
}  # fmt: skip


def write_adapter(parent: Path, one: Adapter) -> tuple[Path, Path]:
    """Writes an adapter and its model. Returns the folder of each."""
    base = write_folder(parent, KINDS[one.model])
    folder = parent / one.name
    folder.mkdir()
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns) in one.matrices.items():
        if name.endswith("embed_tokens"):
            ends = {"lora_embedding_A": (one.rank, rows), "lora_embedding_B": (columns, one.rank)}
        else:
            ends = {"lora_A.weight": (one.rank, columns), "lora_B.weight": (rows, one.rank)}
        shapes |= {f"{START}{name}.{end}": shape for end, shape in ends.items()}
    data = whole({name: ("F32", array) for name, array in numbers(shapes).items()})
    (folder / "adapter_model.safetensors").write_bytes(data)
    config = CONFIG | {"base_model_name_or_path": str(base)} | one.config
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "README.md").write_text(CARD)
    return folder, base
