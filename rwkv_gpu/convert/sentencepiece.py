"""A vocabulary of SentencePiece (tokenizer.model), or its form in a tokenizer.json, as metadata of a GGUF file.

A tokenizer.model is a message of protocol buffers: fields of a number, a wire type and a value.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..gguf.header import Value
from .checkpoint import read_json, read_small
from .special import special_keys
from .vocabulary import ADDED_SCORE, BYTE, CONTROL, NORMAL, USER_DEFINED, Vocabulary, added_tokens

PIECE, TEXT, SCORE, KIND = 1, 1, 2, 3  # numbers of fields
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")


def sentencepiece(folder: Path, size: int) -> dict[str, Value]:
    """The metadata for a model with `size` embeddings. Tokens beyond that number are left out."""
    vocabulary = Vocabulary(size)
    for number, (text, score, kind) in enumerate(_pieces(read_small(folder / "tokenizer.model"))):
        if number < size:
            # A piece that the user defined is found in texts only if its type is in the added tokens.
            vocabulary.put(number, text, NORMAL if kind == USER_DEFINED else kind, score)
    if (folder / "added_tokens.json").is_file():
        for text, number in read_json(folder / "added_tokens.json").items():
            if number < size:
                vocabulary.put(number, text, USER_DEFINED, ADDED_SCORE)
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    for number, one in (config.get("added_tokens_decoder") or {}).items():
        if int(number) < size:
            vocabulary.add(int(number), one["content"], special=bool(one.get("special")))
    return vocabulary.keys("llama", "default", scored=True) | special_keys(folder, size)


def merged_pieces(folder: Path, tokenizer: Mapping[str, Any], size: int) -> dict[str, Value]:
    """Returns the pieces of a tokenizer.json with merges. A token's score is the rank of the merge that makes it."""
    model, added = tokenizer["model"], added_tokens(folder, tokenizer)
    controls = {text for text, special in added.values() if special}
    pairs = [one.split(" ") if isinstance(one, str) else one for one in model["merges"]]
    ranks = {"".join(pair): -float(rank) for rank, pair in reversed(list(enumerate(pairs)))}
    vocabulary = Vocabulary(size)
    for text, number in model["vocab"].items():
        kind = BYTE if BYTE_TOKEN.fullmatch(text) else CONTROL if text in controls else NORMAL
        vocabulary.put(number, text, kind, ranks.get(text, ADDED_SCORE * 1000))
    known = set(model["vocab"].values())
    for number, (text, special) in added.items():
        if number not in known:
            vocabulary.put(number, text, CONTROL if special else USER_DEFINED, ADDED_SCORE)
    return vocabulary.keys("llama", "default", scored=True) | special_keys(folder, size)


def _pieces(message: bytes) -> Iterator[tuple[str, float, int]]:
    """Text, score and type of each piece, in order."""
    for number, value in _fields(message):
        if number == PIECE and isinstance(value, bytes):
            fields = dict(_fields(value))
            text, kind = fields.get(TEXT, b""), fields.get(KIND, NORMAL)
            score = fields.get(SCORE, 0.0)
            if not isinstance(text, bytes) or not isinstance(score, float) or kind not in range(1, 7):
                raise ValueError("a piece is not text with a score and a type")
            yield text.decode(), score, int(kind)


def _fields(message: bytes) -> Iterator[tuple[int, bytes | float | int]]:
    """The number and the value of each field."""
    at = 0
    while at < len(message):
        head, at = _varint(message, at)
        number, wire = head >> 3, head & 7
        value: bytes | float | int
        if wire == VARINT:
            value, at = _varint(message, at)
        else:
            if wire == BYTES:
                size, at = _varint(message, at)
            elif wire in (FIXED32, FIXED64):
                size = 4 if wire == FIXED32 else 8
            else:
                raise ValueError(f"a field has the unknown wire type {wire}")
            if size > len(message) - at:
                raise ValueError("a field is beyond the end")
            value = message[at : at + size]
            at += size
            if wire == FIXED32:
                value = float(struct.unpack("<f", value)[0])
        yield number, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number in groups of 7 bits, and the place after it."""
    found = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("a number is beyond the end")
        found |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return found, at
    raise ValueError("a number has more than 64 bits")
