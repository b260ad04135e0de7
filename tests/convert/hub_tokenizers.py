"""Writes tiny tokenizers in the hub's formats: byte-level BPE, SentencePiece and WordPiece."""

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rwkv_gpu.convert.tokenizer import BYTES, DIGITS, PRE

ADDED = (("<|begin|>", True), ("<think>", False), ("<|end|>", True), ("<|pad|>", False))  # from number 258 on
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
PLAIN: dict[str, Any] = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


@dataclass(frozen=True)
class Tokenizer:
    """A kind of tokenizer: the name of a pre-tokenizer, `spm` or `bert`."""

    kind: str
    begins: bool = False  # a token before each text
    config: dict[str, Any] = field(default_factory=dict)  # tokenizer_config.json
    pre: str = ""  # llama.cpp's name, if it differs from the kind


def write_tokenizer(folder: Path, one: Tokenizer) -> None:
    """Writes the files."""
    if one.kind == "spm":
        (folder / "tokenizer.model").write_bytes(sentencepiece_model())
    else:
        made = word_pieces() if one.kind == "bert" else byte_level(one.kind, one.begins)
        (folder / "tokenizer.json").write_text(json.dumps(made))
    (folder / "tokenizer_config.json").write_text(json.dumps(one.config))


def byte_level(kind: str, begins: bool) -> dict[str, Any]:
    """Returns bytes, two merges and four added tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    letters = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    rules = next(rules for rules, names in PRE.items() if kind in names)
    parts: list[dict[str, Any]] = []
    for rule in rules:
        if rule == DIGITS:
            parts.append({"type": "Digits", "individual_digits": True})
        elif rule != BYTES:
            parts.append({"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated", "invert": False})
    parts.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": BYTES in rules})
    added = [{"id": 258 + n, "content": text, "special": special} | PLAIN for n, (text, special) in enumerate(ADDED)]
    template = [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    ids = {"<|begin|>": {"id": "<|begin|>", "ids": [258], "tokens": ["<|begin|>"]}}
    processor = {"type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": ids}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts} if len(parts) > 1 else parts[0],
        "post_processor": processor if begins else None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": begins,
            "vocab": {text: number for number, text in enumerate([*letters, "th", "the"])},
            "merges": [["t", "h"], ["th", "e"]],
        },
    }  # fmt: skip


def word_pieces() -> dict[str, Any]:
    """Returns letters, and a word in two pieces."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *"abcdefghijklmnopqrstuvwxyz", "the", "##re", *(f"##{letter}" for letter in "abcdefg")]
    added = [{"id": n, "content": text, "special": True} | PLAIN for n, text in enumerate(special)]
    cls, sep = ({"SpecialToken": {"id": text, "type_id": 0}} for text in ("[CLS]", "[SEP]"))
    a, b = ({"Sequence": {"id": text, "type_id": 0}} for text in "AB")
    ids = {text: {"id": text, "ids": [n], "tokens": [text]} for text, n in (("[CLS]", 2), ("[SEP]", 3))}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": [cls, a, sep], "pair": [cls, a, sep, b, sep],
                           "special_tokens": ids},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {text: n for n, text in enumerate(words)}},
    }  # fmt: skip


def sentencepiece_model() -> bytes:
    """Returns a protocol buffer: 3 special pieces, 256 bytes, letters and a word."""
    rows = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256))]
    rows += [(f"{SPACE}t", -0.0, 1), ("he", -1.0, 1), (f"{SPACE}the", -2.0, 1)]
    rows += [(text, -3.0 - n, 1) for n, text in enumerate((SPACE, "t", "h", "e", "<tool>"))]
    message = b""
    for text, score, kind in rows:
        piece = _bytes(1, text.encode()) + b"\x15" + struct.pack("<f", score) + (_number(3, kind) if kind != 1 else b"")
        message += _bytes(1, piece)
    trainer = _number(3, 2) + _number(35, 1)  # BPE, with bytes
    return message + _bytes(2, trainer) + _bytes(3, _bytes(1, b"identity"))


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def _number(field_number: int, value: int) -> bytes:
    return _varint(field_number << 3) + _varint(value)


def _bytes(field_number: int, data: bytes) -> bytes:
    return _varint(field_number << 3 | 2) + _varint(len(data)) + data
