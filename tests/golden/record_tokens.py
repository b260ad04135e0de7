"""Records llama.cpp's tokenisation of texts, for every `tokenizer.ggml.pre` and every kind of tokenizer.

    pip install '.[peer]' && python -m tests.golden.record_tokens

The vocabularies are those of tests/text/vocabularies.py. In the byte-level one, any two bytes of the texts
merge, so that the ids show where a text was cut.
"""

import ctypes
import gzip
import json
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from rwkv_gpu.text.pretokenizers import PRE
from tests.golden.record import HERE
from tests.text.vocabularies import (
    CASED,
    Metadata,
    dense_bpe,
    granite_raw,
    hybrid_dna,
    raw_bpe,
    rwkv,
    sarvam,
    spm,
    t5,
    unigram,
    whitespace,
    wordpiece,
)

FILE = HERE / "tokens.json.gz"
WRITTEN = (
    "", "a", "Hello, world!", "it's 2024! I'LL we'Ve", "camelCase HTTPServer ÉCOLEs", "x=12345;y=1234567 1,000.50",
    "  two   spaces\n\n\nlines \r\n\r\n tabs\t\tend  ", "你好世界。abc一二三", "ひらがなカタカナ漢字",
    "안녕 하세요 ㄱㄴ",
    "a\u0301e\u0301 नमस्ते สวัสดี", "🙂🙂 👩‍👩‍👧 ☃", "\u00a0nbsp\u3000wide", "((a+b)*c)/d != \"q\" `x`", "١٢٣ ½ Ⅷ x²",
    "www.example.com/a-b_c?d=e&f=g#h", "<|im_end|> <s> </s> <0x41> <think>", "'s 't're'LL 'x", "\n", " ", "\t \n \t",
    "A" * 9, "a" * 9, "Aa" * 5, "1" * 7, "!" * 7, " " * 7 + "x", "mid\nline\n", "／：～！、。“”‘’…—", "ÀÈÌ ǅ ß ﬁ",
    "a/b\n/c", "[CLS] İ Ǆ Å ﬁ ſ ½ [MASK]\x00t\x1ch\u200de\u2028ΟΔΟΣ", "the 가각 don't élan~$10 𠀀a",
)  # fmt: skip
PALETTE = "aAbBsStT1234  \n\t'.!,-/_é你好あ가\u0301\u00a0🙂ДПд"


def texts() -> list[str]:
    rng = random.Random(7)
    return [*WRITTEN, *("".join(rng.choices(PALETTE, k=rng.randint(3, 24))) for _ in range(90))]


def vocabularies() -> dict[str, Callable[[], Metadata]]:
    """Returns functions that make each tokenizer's metadata, by name: BPE for each pre-tokenizer, and other kinds."""
    return {
        **{f"gpt2 {pre}": partial(dense_bpe, pre) for pre in PRE},
        "rwkv": rwkv,
        "spm": spm,
        "spm without prefix": partial(spm, add_space_prefix=False),
        "gemma4": raw_bpe,
        "sarvam": sarvam,
        "granite-embed-multi-311m": granite_raw,
        "whitespace": whitespace,
        "hybriddna": hybrid_dna,
        "plamo2": unigram,
        "bert": wordpiece,
        "bert with capitals": partial(wordpiece, **CASED),
        "t5": t5,
        "t5 that keeps spaces": partial(t5, remove_extra_whitespaces=False),
    }


def write(path: Path, metadata: Metadata) -> None:
    """Writes a file with only a vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            is_bytes = isinstance(value, np.ndarray) and value.dtype == np.uint8
            writer.add_array(key, value.tobytes() if is_bytes else np.asarray(value).tolist())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def recorded(metadata: Metadata) -> dict[str, Any]:
    """Returns llama.cpp's tokens of every text, with special tokens parsed and not, and the text of these tokens."""
    import llama_cpp

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        write(path, metadata)
        model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        vocab = llama_cpp.llama_model_get_vocab(model._model.model)

        def shown(ids: list[int]) -> str:
            buffer = ctypes.create_string_buffer(1 << 12)
            given = (llama_cpp.llama_token * len(ids))(*ids)
            size = llama_cpp.llama_detokenize(vocab, given, len(ids), buffer, len(buffer), False, True)
            return buffer.raw[:size].hex()

        plain = [model.tokenize(text.encode(), add_bos=False, special=False) for text in texts()]
        parsed = [model.tokenize(text.encode(), add_bos=False, special=True) for text in texts()]
        return {
            "plain": plain,
            "parsed": [ids if ids != plain[i] else None for i, ids in enumerate(parsed)],
            "shown": [shown(ids) for ids in plain],
            "added": model.tokenize(b"", add_bos=True, special=False),
        }


def main() -> None:
    """Records all vocabularies. Those with the same tokens in llama.cpp share one record."""
    records: list[dict[str, Any]] = []
    numbers = {}
    for name, make in vocabularies().items():
        record = recorded(make())
        if record not in records:
            records.append(record)
        numbers[name] = records.index(record)
        print(name, numbers[name])
    data = json.dumps({"texts": texts(), "numbers": numbers, "records": records}, separators=(",", ":")).encode()
    FILE.write_bytes(gzip.compress(data, 9, mtime=0))
    print(f"{FILE.name}: {len(numbers)} vocabularies, {len(records)} records, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
