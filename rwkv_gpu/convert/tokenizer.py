"""The tokenizer of a folder of the Hugging Face hub, as metadata of a GGUF file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import BadFile, BadInput, UnsupportedModel, printable
from ..gguf.header import Value
from .checkpoint import read_json
from .sentencepiece import merged_pieces, sentencepiece
from .special import special_keys
from .vocabulary import CONTROL, NORMAL, SPACE, Vocabulary, added_tokens

CONTINUES = "##"  # prefix of a WordPiece token that continues a word
_CONTRACTIONS, _END = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _END
_MARKED = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _END
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _END
)
BYTES, DIGITS = "words of GPT-2", "single digits"
# The ways to split text into words: names for `tokenizer.ggml.pre`, without and with a token before each text.
PRE = {
    (_WORDS % r"\p{N}",): ("qwen2", "deepseek-r1-qwen"),
    (_MARKED,): ("qwen35", "qwen35"),
    (_WORDS % r"\p{N}{1,3}",): ("smaug-bpe", "llama-bpe"),
    (_CASED,): ("tekken", "tekken"),
    (BYTES,): ("gpt-2", "gpt-2"),
    (DIGITS, BYTES): ("smollm", "smollm"),
}


def tokenizer_keys(folder: Path, size: int, own: Mapping[str, str]) -> dict[str, Value]:
    """The metadata for a model with `size` embeddings; `own` are a family's names for ways to split text."""
    path = folder / "tokenizer.model"
    try:
        if path.is_file():
            return sentencepiece(folder, size)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise BadInput(f"{printable(str(folder))}: has no tokenizer.json or tokenizer.model; download one as well")
        tokenizer = read_json(path)
        model = tokenizer["model"]
        if model.get("type") == "WordPiece":
            return _wordpiece(folder, tokenizer, size)
        if model.get("type") == "BPE":
            with_bytes = bool(model.get("byte_fallback"))
            return merged_pieces(folder, tokenizer, size) if with_bytes else _byte_bpe(folder, tokenizer, size, own)
        what = printable(str(model.get("type")), 30)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError) as error:
        reason = printable(str(error)[:100]) or type(error).__name__
        raise BadFile(f"{printable(str(path))}: is not a valid tokenizer ({reason}); download it again") from None
    raise UnsupportedModel(f"{printable(str(path))}: a tokenizer of the type {what} is not converted")


def _wordpiece(folder: Path, tokenizer: Mapping[str, Any], size: int) -> dict[str, Value]:
    """The metadata of a WordPiece vocabulary, as in BERT. Tokens that begin a word are marked."""
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


def _byte_bpe(folder: Path, tokenizer: Mapping[str, Any], size: int, own: Mapping[str, str]) -> dict[str, Value]:
    """The metadata of byte-level BPE. `own` are the family's names for ways to split text."""
    special = special_keys(folder, merges=True)
    names = PRE.get(_splitter(tokenizer))
    if names is None:
        what = f"{printable(str(folder / 'tokenizer.json'))}: splits text in a way that is not converted"
        raise UnsupportedModel(f"{what}; use llama.cpp's convert_hf_to_gguf.py")
    name = names[special.get("tokenizer.ggml.add_bos_token") is True]
    vocabulary = Vocabulary(size)
    for text, number in tokenizer["model"]["vocab"].items():
        vocabulary.put(number, text, NORMAL)
    for number, (text, is_special) in added_tokens(folder, tokenizer).items():
        vocabulary.add(number, text, special=is_special)
    return vocabulary.keys("gpt2", own.get(name, name), scored=False) | special


def _splitter(tokenizer: Mapping[str, Any]) -> tuple[str, ...]:
    """The rules that split text, in order: regular expressions, and rules with names."""
    splitter = tokenizer.get("pre_tokenizer") or {}
    found = []
    for one in splitter.get("pretokenizers", [splitter]):
        kind = one.get("type")
        if kind == "Split" and "Regex" in one["pattern"]:
            found.append(one["pattern"]["Regex"])
        elif kind == "Digits" and one.get("individual_digits"):
            found.append(DIGITS)
        elif kind == "ByteLevel":
            found += [BYTES] if one.get("use_regex", True) else []
        else:
            return ()
    return tuple(found)
