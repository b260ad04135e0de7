"""Records the headers that llama.cpp's converter writes for published models: keys, names of tensors, shapes and types.

pip install torch transformers
PYTHONPATH=LLAMA.CPP/gguf-py python -m tests.golden.record_headers LLAMA.CPP [CLASS ...]

Where transformers knows a class, tensors are those of its default sizes, on torch's meta device. Other classes get keys
only, from config.json as published (publisher_configs.json: `config`; `changes` are keys that transformers lacks,
`keys` those that the converter makes of weights). record_shapes.py adds their tensors. A row with `layers` is a header
that llama.cpp's converter does not write.
"""

import json
import logging
import lzma
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from rwkv_gpu.models.registry import MODELS
from tests.models.headers import FILES, PATH

CONFIGS = Path(__file__).parent / "publisher_configs.json"
VOCABULARIES = {"NomicBertModel": "WordPiece", "NomicBertModel#moe": "Unigram"}  # that converters look at
UNLIKE = ("NemotronHForCausalLM", "Qwen3VLMoeForConditionalGeneration")  # default sizes of no published model
INCOMPLETE = (
    "KimiLinearModel",
    "Step3p7ForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration",
)  # default keys that no converter expects


def known_types() -> dict[str, str]:
    """Returns transformers' name of the configuration of each class."""
    from transformers.models.auto import modeling_auto as auto

    found: dict[str, str] = {}
    tables = ("MODEL_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
    for table in tables:
        for kind, names in getattr(auto, table).items():
            for name in [names] if isinstance(names, str) else names:
                found.setdefault(name, kind)
    return found


def state_of(name: str, config: Any) -> dict[str, Any]:
    """Returns the tensors of a checkpoint on the hub, without numbers; empty if transformers has no such class."""
    import torch
    import transformers
    from transformers.core_model_loading import revert_weight_conversion

    made = getattr(transformers, name, None)
    if made is None or name in UNLIKE:
        return {}
    with torch.device("meta"):
        model = made(config)
    state = revert_weight_conversion(model, dict(model.state_dict()))
    for tied in model.all_tied_weights_keys or {}:
        state.pop(tied, None)
    return dict(state)


def header_of(name: str, converter: Any, config: dict[str, Any], state: dict[str, Any]) -> tuple[Any, Any]:
    """Returns keys with types and values, and tensors, as the converter writes them."""
    import gguf
    import torch
    from conversion.base import LazyTorchTensor, ModelBase

    def lazy(one: Any) -> Any:
        meta = torch.empty(one.shape, dtype=torch.bfloat16, device="meta")
        return LazyTorchTensor(meta=meta, args=(tuple(one.shape),), func=lambda shape: torch.ones(shape).bfloat16())

    def index(self: Any, remote_hf_model_id: str | None = None) -> dict[str, Any]:  # noqa: ARG001
        kept = (type(self).filter_tensors((key, lambda one=one: lazy(one))) for key, one in state.items())
        return dict(one for one in kept if one is not None)

    folder = Path(tempfile.mkdtemp())
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size") or 10
    words = {"type": VOCABULARIES.get(name, "BPE"), "vocab": {str(i): i for i in range(size)}, "merges": []}
    (folder / "config.json").write_text(json.dumps(config, default=str))
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": words}))
    ModelBase.index_tensors = index
    converter.opt_num_mtp_layers = 1
    model = converter(folder, gguf.LlamaFileType.MOSTLY_F16, folder / "model.gguf", hparams=config, dry_run=True)
    model._get_suppress_tokens = lambda: [130]
    model._read_hash_constants = lambda _: []  # `keys` of publisher_configs.json has them
    if state:
        model.prepare_tensors()
    model.set_gguf_parameters()
    writer = getattr(model, "impl", model).gguf_writer
    keys = {key: [one.type.name, one.value] for key, one in writer.kv_data[0].items() if key != "general.file_type"}
    return keys, [[key, list(one.shape), one.dtype.name] for part in writer.tensors for key, one in part.items()]


def folded(tensors: list[list[Any]]) -> list[list[Any]]:
    """Returns rows of layers with the same tensors."""
    layers: dict[int, list[Any]] = {}
    for key, shape, kind in tensors:
        number = re.match(r"(?:(?:enc|dec)\.)?blk\.(\d+)\.", key)
        row = [re.sub(r"^((?:(?:enc|dec)\.)?blk)\.\d+\.", r"\1.{i}.", key), shape, kind]
        layers.setdefault(int(number[1]) if number else -1, []).append(row)
    rows: dict[str, list[Any]] = {}
    for number, found in sorted(layers.items()):
        rows.setdefault(f"{number < 0}{sorted(found)}", [[], sorted(found)])[0].append(max(number, 0))
    return list(rows.values())


def main(source: str, *only: str) -> None:
    """Records every class whose architecture is supported, or some. Classes that cannot be built here are named."""
    sys.path.insert(0, source)
    import conversion
    import gguf
    from conversion.base import ModelBase, ModelType
    from transformers import AutoConfig

    logging.disable(logging.CRITICAL)
    conversion.load_all_models()
    classes, types, own = ModelBase._model_classes[ModelType.TEXT], known_types(), json.loads(CONFIGS.read_text())
    found: dict[str, Any] = json.loads(lzma.decompress(PATH.read_bytes()))
    found = {name: one for name, one in found.items() if only or name.endswith(FILES)}
    names = dict(gguf.TensorNameMap.block_mappings_cfg)  # some converters change it for all later ones
    for name in only or sorted({*classes, *own}):
        base, row = name.partition("#")[0], own.get(name, {})
        if "layers" in row:
            found[name] = row
            continue
        kind = row.get("type", types.get(base))
        if ("config" not in row and kind is None) or name in INCOMPLETE:
            continue
        gguf.TensorNameMap.block_mappings_cfg = dict(names)
        try:
            made = None if "config" in row else AutoConfig.for_model(kind, **row.get("sizes", {}))
            config = row["config"] if made is None else json.loads(made.to_json_string(use_diff=False))
            config |= {"architectures": [base]} | row.get("changes", {})
            state = {} if made is None or base != name else state_of(name, made)
            keys, tensors = header_of(name, classes[base], config, state)
        except Exception as error:  # noqa: BLE001  # a class that this version cannot build may raise anything
            print(f"{name}: {error!r}")
            continue
        if keys["general.architecture"][1] in MODELS:
            keys |= row.get("keys", {})
            found[name] = {"keys": keys, "layers": folded(tensors)}
    PATH.write_bytes(lzma.compress(json.dumps(found, separators=(",", ":")).encode(), preset=9))


if __name__ == "__main__":
    main(*sys.argv[1:])
