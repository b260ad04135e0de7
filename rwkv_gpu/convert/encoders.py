"""Converts BERT models from the Hugging Face hub, with the pooling method that sentence-transformers states."""

import json
from collections.abc import Sequence
from typing import Any

import gguf

from ..errors import BadFile, UnsupportedModel, printable
from ..gguf.header import Value
from .checkpoint import read_json, read_text
from .config import Config
from .folder import Family, Rename, Tensors

# Numbers of the pooling types, and their names in a folder.
POOLINGS = {"mean": (1, "pooling_mode_mean_tokens"), "cls": (2, "pooling_mode_cls_token")}
POOLINGS |= {"lasttoken": (3, "pooling_mode_lasttoken")}


def pooling(config: Config, _: Tensors) -> dict[str, Value]:
    """The metadata key for the pooling of a sentence-transformers folder; none for other folders."""
    path = config.folder / "modules.json"
    if not path.is_file():
        return {}
    try:
        modules = json.loads(read_text(path))
        place = next((one["path"] for one in modules if one["type"].endswith("Pooling")), None)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadFile(f"{printable(str(path))}: is not a list of modules; download it again") from None
    if place is None:
        return {}
    if not isinstance(place, str) or "/" in place or "\\" in place or place in ("", "..", "."):
        raise BadFile(f"{printable(str(path))}: names a folder that is not in it; download it again")
    found = read_json(config.folder / place / "config.json")
    for number, flag in POOLINGS.values():
        if found.get(flag):
            return {"pooling_type": number}
    named = POOLINGS.get(str(found.get("pooling_mode")))
    if named is None:
        shown = printable(str(config.folder / place / "config.json"))
        raise UnsupportedModel(f"{shown}: its pooling is not converted; known: {', '.join(POOLINGS)}")
    return {"pooling_type": named[0]}


def _labels(config: Config) -> list[str]:
    """The labels of a classifier; none if they are only numbers."""
    given: Any = config.values.get("id2label", {})
    if not isinstance(given, dict) or not all(
        str(key).isdecimal() and isinstance(one, str) for key, one in given.items()
    ):
        raise config.wrong("id2label", given, "an object of labels by number")
    labels = [given[key] for key in sorted(given, key=int)]
    return [] if len(labels) == 2 and labels[0] == "LABEL_0" else labels


def _keys(config: Config, tensors: Tensors) -> dict[str, Value]:
    labels = _labels(config)
    return {
        "attention.causal": False,
        "tokenizer.ggml.token_type_count": config.size("type_vocab_size", 1),
        **({"classifier.output_labels": labels} if labels else {}),
        **pooling(config, tensors),
    }


def _renames(config: Config) -> Sequence[Rename]:
    classifier: list[Rename] = [(r"^classifier\.(?=weight|bias)", "classifier.out_proj.")] if _labels(config) else []
    return [(r"^bert\.", ""), (r"\.gamma$", ".weight"), (r"\.beta$", ".bias"), *classifier]


BERT = Family(
    gguf.MODEL_ARCH.BERT,
    {"layer_norm_eps": 1e-12, "max_position_embeddings": 512, "type_vocab_size": 2},
    renames=_renames,
    # Pooling uses all tokens, so the dense layer over the first token is not used.
    dropped=r"^(?:bert\.)?(?:embeddings\.position_ids$|pooler\.dense\.)|^cls\.(?:predictions|seq_relationship)",
    keys=_keys,
)
