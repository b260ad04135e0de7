"""Converts a WordPiece vocabulary, as in BERT, to metadata of a GGUF file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..gguf.header import Value
from .special import special_keys
from .vocabulary import CONTROL, NORMAL, SPACE, Vocabulary, added_tokens

CONTINUES = "##"  # begins a token that continues a word


def wordpiece(folder: Path, tokenizer: Mapping[str, Any], size: int) -> dict[str, Value]:
    """The metadata for a model with `size` embeddings. Tokens that begin a word are marked."""
    vocabulary = Vocabulary(size)
    for text, number in tokenizer["model"]["vocab"].items():
        vocabulary.put(number, _marked(text), NORMAL)
    for number, (text, special) in added_tokens(folder, tokenizer).items():
        vocabulary.add(number, text, special=special)
        added, score, kind = vocabulary.rows[number]
        vocabulary.put(number, added if kind == CONTROL else _marked(added), kind, score)
    return vocabulary.keys("bert", "jina-v2-en", scored=False, pad=SPACE) | special_keys(folder, size)


def _marked(text: str) -> str:
    return text.removeprefix(CONTINUES) if text.startswith(CONTINUES) else SPACE + text
