"""Tokens by number, as a GGUF file lists them: text, score and type."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..gguf.header import Value
from .checkpoint import read_json

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
ADDED_SCORE, PADDING_SCORE = -1000.0, -10000.0
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # a space in vocabularies of SentencePiece
# Added tokens that are control tokens even if their files do not mark them.
CONTROLS = re.compile(r"<\|.*\|>|<｜.*｜>|<unused.*>|<pad>|<mask>|<2mass>|\[@BOS@\]", re.DOTALL)


@dataclass
class Vocabulary:
    """The tokens of a model with `size` embeddings. Numbers without a token are padding."""

    size: int
    rows: dict[int, tuple[str, float, int]] = field(default_factory=dict)

    def put(self, number: int, text: str, kind: int, score: float = 0.0) -> None:
        """Sets a token, or replaces it."""
        if type(number) is not int or not 0 <= number < self.size or not isinstance(text, str):
            raise ValueError(f"a token has no number below {self.size}, the rows of the embedding")
        text.encode()  # raises ValueError for unpaired surrogates
        self.rows[number] = text, score, kind

    def add(self, number: int, content: str, *, special: bool, score: float = ADDED_SCORE) -> None:
        """Sets a token that is found in texts before they are split."""
        control = special or CONTROLS.fullmatch(content) is not None
        text = content if control else content.replace(SPACE, " ")
        self.put(number, text, CONTROL if control else USER_DEFINED, score)

    def keys(self, model: str, pre: str, *, scored: bool, pad: str = "") -> dict[str, Value]:
        """The metadata of a file; the texts of padding begin with `pad`."""
        whole = [self.rows.get(n, (f"{pad}[PAD{n}]", PADDING_SCORE, UNUSED)) for n in range(self.size)]
        return {
            "tokenizer.ggml.model": model,
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": [text for text, _, _ in whole],
            **({"tokenizer.ggml.scores": [score for _, score, _ in whole]} if scored else {}),
            "tokenizer.ggml.token_type": [kind for _, _, kind in whole],
        }


def added_tokens(folder: Path, tokenizer: Mapping[str, Any]) -> dict[int, tuple[str, bool]]:
    """Text of each added token, and whether it is special, by its number.

    A token is special if either file says so, or if tokenizer_config.json gives it a role.
    """
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    found = {one["id"]: (one["content"], bool(one["special"])) for one in tokenizer.get("added_tokens") or []}
    for number, one in (config.get("added_tokens_decoder") or {}).items():
        content = one["content"]
        found[int(number)] = content, bool(one.get("special")) or found.get(int(number), ("", False))[1]
    roles = {_content(value) for key, value in config.items() if key.endswith("_token")}
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = config.get(key) or []
        roles |= {_content(one) for one in (more.values() if isinstance(more, dict) else more)}
    return {number: (text, special or text in roles) for number, (text, special) in found.items()}


def _content(entry: Any) -> str:
    found = entry.get("content") if isinstance(entry, dict) else entry
    return found if isinstance(found, str) else ""
