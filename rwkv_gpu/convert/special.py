"""Special tokens, merges, normalisation and chat template of a folder of the hub, as metadata of a GGUF file.

Both tokenizer.json and tokenizer_config.json may name special tokens and say which are added to a text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..gguf.header import Value
from .checkpoint import read_json, read_text

KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# GGUF's names where they differ from Hugging Face's. There is no key for the class token.
NAMES = {"unk": "unknown", "sep": "seperator", "pad": "padding"}
WITHOUT_KEY = "cls"
ADDED = ("bos", "eos", "sep")
FLAGS: Mapping[str, Any] = {"Lowercase": {"lowercase": True}, "StripAccents": {"strip_accents": True}}
MAX_TEMPLATES = 32
SPACE = "\u0120"  # a space in a byte-level vocabulary


@dataclass
class Found:
    """The findings in the files of a folder, collected file by file."""

    config: dict[str, Any]  # tokenizer_config.json, with additions from tokenizer.json; empty if it is missing
    kinds: list[str] = field(default_factory=lambda: list(KINDS))
    added: dict[str, bool] = field(default_factory=dict)

    def named(self, kind: str) -> str:
        """The text of a special token; empty if it has none."""
        entry = self.config.get(f"{kind}_token")
        entry = entry.get("content") if isinstance(entry, dict) else entry
        return entry if isinstance(entry, str) else ""


def special_keys(folder: Path, size: int | None = None, merges: bool = False) -> dict[str, Value]:
    """The metadata. Ids from `size` on are left out; `merges` are needed for byte-level vocabularies only."""
    tokenizer = read_json(folder / "tokenizer.json") if (folder / "tokenizer.json").is_file() else {}
    has_config = (folder / "tokenizer_config.json").is_file()
    found = Found(read_json(folder / "tokenizer_config.json") if has_config else {})
    if tokenizer:
        _read_processors(found, tokenizer.get("post_processor") or {}, has_config)
    ids = _ids(folder, found, tokenizer if has_config else {}, size)
    keys: dict[str, Value] = {}
    if merges and (rows := _merges(folder, tokenizer)):
        keys["tokenizer.ggml.merges"] = rows
    keys |= {f"tokenizer.ggml.{NAMES.get(kind, kind)}_token_id": number for kind, number in ids.items()}
    if has_config:
        given = {kind: found.config.get(f"add_{kind}_token") for kind in found.kinds}
        found.added |= {kind: value for kind, value in given.items() if isinstance(value, bool)}
        keys |= _templates(folder, found.config)
    keys |= {f"tokenizer.ggml.add_{kind}_token": value for kind, value in found.added.items() if kind in ADDED}
    return keys | _normaliser(tokenizer.get("normalizer") or {})


def _ids(folder: Path, found: Found, tokenizer: Mapping[str, Any], size: int | None) -> dict[str, int]:
    """The ids of special tokens: by their texts, or as config.json gives them."""
    ids: dict[str, int] = {}
    texts = {one["content"]: one["id"] for one in reversed(tokenizer.get("added_tokens") or [])}
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    inner = config.get("text_config") or {}
    for given in (
        {kind: texts.get(found.named(kind)) for kind in found.kinds},
        {kind: config.get(f"{kind}_token_id", inner.get(f"{kind}_token_id")) for kind in found.kinds},
    ):
        for kind, number in given.items():
            if type(number) is int and kind not in ids and kind != WITHOUT_KEY and (size is None or number < size):
                if number < 0:
                    raise ValueError(f"the id of the {kind} token is {number}")
                ids[kind] = number
    return ids


def _read_processors(found: Found, processor: Mapping[str, Any], has_config: bool) -> None:
    """Reads which tokens are added before and after a text."""
    for kind, other in (("bos", "cls"), ("eos", "sep")):
        if not found.named(kind) and found.named(other):
            found.config[f"{kind}_token"] = found.named(other)
    for one in processor.get("processors", [processor]):
        if one.get("type") == "RobertaProcessing":
            found.added |= {"bos": True, "eos": True, "sep": True}
            for kind, other in (("cls", "bos"), ("sep", "eos")):
                if has_config and not found.named(kind):
                    found.config[f"{kind}_token"] = (one.get(kind) or [found.named(other)])[0]
        elif one.get("type") == "TemplateProcessing":
            _read_template(found, one, has_config)


def _read_template(found: Found, template: Mapping[str, Any], has_config: bool) -> None:
    """Reads a template for one text and for a pair: a sequence of special tokens and texts."""
    single = template.get("single") or []
    first = last = ""
    if len(single) > 1:
        first, last = (_token(single[at]) for at in (0, -1))
    if first:
        for kind in ("bos", "cls"):
            if not found.named(kind) and first not in (found.named("bos"), found.named("cls")):
                found.config[f"{kind}_token"] = first
        found.added["bos"] = first in (found.named("bos"), found.named("cls"))
    if last:
        if has_config and last != found.named("eos"):  # texts and answers end with different tokens
            kind = next((kind for kind in ("eot", "eom") if kind not in found.kinds), "")
            if kind:
                found.kinds.append(kind)
                found.config[f"{kind}_token"] = found.config.get("eos_token")
        found.config["eos_token"] = last
        found.added["eos"] = True
    pair = list(template.get("pair") or [])
    pair = pair[1:] if pair and first and _token(pair[0]) == first else pair
    pair = pair[:-1] if pair and last and _token(pair[-1]) == last else pair
    ends = [(one.get("Sequence") or {}).get("id") for one in (pair[:1] + pair[-1:])]
    if ends == ["A", "B"] and len(pair) > 2:
        _read_separator(found, pair[1:-1], last, has_config)


def _read_separator(found: Found, between: Sequence[Mapping[str, Any]], last: str, has_config: bool) -> None:
    """Finds out if a token separates the two texts of a pair."""
    known = found.named("sep"), found.named("eos")
    second = len(between) == 2 and _token(between[1]) in known and bool(_token(between[1]))
    found.added["sep"] = bool(second or (_token(between[0]) in known and _token(between[0]) and not last))
    if found.added["sep"] and not known[0] and has_config:
        found.config["sep_token"] = known[1]


def _token(part: Mapping[str, Any]) -> str:
    found = (part.get("SpecialToken") or {}).get("id", "")
    return found if isinstance(found, str) else ""


def _merges(folder: Path, tokenizer: Mapping[str, Any]) -> list[str]:
    """The merges, a pair of tokens with a space between."""
    rows = tokenizer.get("model", {}).get("merges") or []
    if not rows and (folder / "merges.txt").is_file():
        lines = read_text(folder / "merges.txt").split("\n")
        pairs = [line.split() for line in lines[1 if lines[0].startswith("#") else 0 :]]
        return [" ".join(pair) for pair in pairs if len(pair) == 2]
    found = [row if isinstance(row, str) else " ".join(part.replace(" ", SPACE) for part in row) for row in rows]
    if not all(row.count(" ") == 1 for row in found):
        raise ValueError("a merge is not a pair of tokens")
    return found


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, Value]:
    """The chat template, or several with names. A separate template file is used if tokenizer_config.json has none."""
    template = config["chat_template"] if "chat_template" in config else _template_in_file(folder)
    if isinstance(template, str):
        return {"tokenizer.chat_template": template}
    keys: dict[str, Value] = {}
    names = set()
    for one in template if isinstance(template, list) else ():
        name, text = re.sub("[^a-zA-Z0-9]", "_", one.get("name", "")), one.get("template")
        if name and isinstance(text, str):
            keys["tokenizer.chat_template" + ("" if name == "default" else f".{name}")] = text
            names |= {name} - {"default"}
    return keys | ({"tokenizer.chat_templates": sorted(names)} if names else {})


def _template_in_file(folder: Path) -> Any:
    """The chat template in a separate file, and further templates with names."""
    if (folder / "chat_template.jinja").is_file():
        text = read_text(folder / "chat_template.jinja")
        others = sorted((folder / "additional_chat_templates").glob("*.jinja"))[:MAX_TEMPLATES]
        named = [{"name": path.stem, "template": read_text(path)} for path in others]
        return [{"name": "default", "template": text}, *named] if named else text
    path = folder / "chat_template.json"
    return read_json(path).get("chat_template") if path.is_file() else None


def _normaliser(normaliser: Mapping[str, Any]) -> dict[str, Value]:
    """True if text becomes lower case and loses its accents before it is split."""
    keys: dict[str, Value] = {}
    for one in _flat(normaliser):
        flags = one if one.get("type") == "BertNormalizer" else FLAGS.get(str(one.get("type")), {})
        given = {key: flags.get(key) for key in ("lowercase", "strip_accents")}
        keys |= {f"tokenizer.ggml.normalizer.{key}": value for key, value in given.items() if isinstance(value, bool)}
    return keys


def _flat(normaliser: Mapping[str, Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    if normaliser.get("type") == "Sequence" and depth < 8:
        for one in normaliser.get("normalizers") or []:
            yield from _flat(one, depth + 1)
    else:
        yield normaliser
