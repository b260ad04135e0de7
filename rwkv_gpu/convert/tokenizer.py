"""The tokenizer of a folder of the Hugging Face hub, as metadata of a GGUF file."""

from collections.abc import Mapping
from pathlib import Path

from ..errors import BadFile, BadInput, UnsupportedModel, printable
from ..gguf.header import Value
from .byte_bpe import byte_bpe
from .checkpoint import read_json
from .sentencepiece import merged_pieces, sentencepiece
from .wordpiece import wordpiece


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
            return wordpiece(folder, tokenizer, size)
        if model.get("type") == "BPE":
            with_bytes = bool(model.get("byte_fallback"))
            return merged_pieces(folder, tokenizer, size) if with_bytes else byte_bpe(folder, tokenizer, size, own)
        what = printable(str(model.get("type")), 30)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError) as error:
        reason = printable(str(error)[:100]) or type(error).__name__
        raise BadFile(f"{printable(str(path))}: is not a valid tokenizer ({reason}); download it again") from None
    raise UnsupportedModel(f"{printable(str(path))}: a tokenizer of the type {what} is not converted")
