"""BPE over the characters of UTF-8, as in Gemma 4 and Sarvam: spaces as ▁, no words, bytes where there is no token."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import models

from rwkv_gpu.errors import BadFile
from rwkv_gpu.gguf.cursor import shown
from rwkv_gpu.text.base import BaseTokenizer
from rwkv_gpu.text.utf8 import SURROGATES, decode_leniently
from rwkv_gpu.text.vocabulary import PREFIX, SPACE, Defaults, read_name, read_strings, read_vocabulary

RAW = ("sarvam-moe",)  # names of `tokenizer.ggml.pre` that mean this in files of byte-level BPE
_LINES = re.compile(r"\n+|[^\n]+")  # no merge goes across the end of a line


class RawBpeTokenizer(BaseTokenizer):
    """Merges by rank within a line. In Gemma 4, a run of line ends that is a token is taken whole."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._is_gemma = read_name(metadata, "pre") not in RAW
        vocabulary = read_vocabulary(metadata, Defaults(add_bos=self._is_gemma))
        super().__init__(vocabulary)
        self.clean_spaces = self._is_gemma
        if self._is_gemma:
            self.add_bos = vocabulary.bos is not None  # some files deny it; the models were trained with it
        self._bytes = read_bytes(vocabulary.ids)
        merges = _read_merges(metadata, vocabulary.ids)
        self._merger = models.BPE(vocab=dict(vocabulary.ids), merges=merges, byte_fallback=True)

    def _encode_plain(self, text: bytes, *, opening: bool) -> Iterable[int]:  # noqa: ARG002
        ids: list[int] = []
        for i, run in enumerate(SURROGATES.split(decode_leniently(text).replace(" ", SPACE))):
            if i % 2:  # surrogates, which `tokenizers` takes for no text
                ids += [self._bytes[byte] for byte in run.encode("utf-8", "surrogatepass")]
            else:
                for line in _LINES.findall(run):
                    ids += self._encode_line(line)
        return ids

    def _encode_line(self, line: str) -> list[int]:
        if self._is_gemma and line[0] == "\n" and line in self.vocabulary.ids:
            return [self.vocabulary.ids[line]]
        return [token.id for token in self._merger.tokenize(line)]


def read_bytes(ids: Mapping[str, int]) -> list[int]:
    """The token of each byte."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    missing = [name for name in names if name not in ids]
    if missing:
        raise BadFile(f"{PREFIX}tokens: no token {missing[0]}, which stands for a byte")
    return [ids[name] for name in names]


def _read_merges(metadata: Mapping[str, Any], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Two tokens a line, with a space between. The first of them may be, or begin with, a space or a line end."""
    merges: list[tuple[str, str]] = []
    for line in read_strings(metadata, "merges"):
        at = line.find(" ", 1)
        left, right = line[:at], line[at + 1 :]
        if at < 0 or left not in ids or right not in ids or left + right not in ids:
            raise BadFile(f"{PREFIX}merges: {shown(line)} names a token that {PREFIX}tokens does not have")
        merges.append((left, right))
    return merges
