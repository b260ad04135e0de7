"""Tokenizer metadata for tests: tiny vocabularies of each kind, and those inside the golden models."""

import random
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.text.bpe import BYTE_LETTERS
from rwkv_gpu.text.vocabulary import PREFIX, Kind
from tests.golden_files import golden

Metadata = dict[str, Any]
NORMAL, CONTROL, USER = int(Kind.NORMAL), int(Kind.CONTROL), int(Kind.USER_DEFINED)


def metadata(model: str, tokens: list[tuple[str, int]], **fields: Any) -> Metadata:
    """A GGUF file's tokenizer keys for these (text, kind) pairs."""
    kinds = np.array([kind for _, kind in tokens], np.int32)
    named = {"model": model, "tokens": [text for text, _ in tokens], "token_type": kinds, **fields}
    return {PREFIX + name: value for name, value in named.items()}


def rwkv(**fields: Any) -> Metadata:
    """`<s>`, the 256 bytes, then some words, escaped as Python escapes bytes."""
    words = [
        "\\n\\n",
        "the",
        "then",
        " the",
        " then",
        "thesis",
        "\\xe4\\xbd",
        "\\xe4\\xbd\\xa0",
        "  ",
        " " * 9,
        "\\t\\\\",
        "\\'s",
    ]
    letters = [repr(bytes([byte]))[2:-1] for byte in range(256)]
    tokens = [("<s>", CONTROL), *((text, NORMAL) for text in letters + words)]
    return metadata("rwkv", tokens, **{"eot_token_id": 257, **fields})


def bpe(pre: str | None = "gpt-2", **fields: Any) -> Metadata:
    """Returns 256 byte letters, tokens of some merges, a word without a merge, three control tokens and `<think>`."""
    merges = ["t h", "Ġ t", "h e", "th e", "Ġt he", "1 2", "Ġ .", "e r", "Ġ '", "Ġ Ġ"]
    words = [line.replace(" ", "") for line in merges]
    tokens = [(text, NORMAL) for text in [*BYTE_LETTERS, *words, "Ġzzz"]]
    bos = len(tokens)
    tokens += [("<|bos|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<think>", USER)]
    ids = {"bos_token_id": bos, "eos_token_id": bos + 2}
    return metadata("gpt2", tokens, **{"merges": merges, **({"pre": pre} if pre else {}), **ids, **fields})


def spm(**fields: Any) -> Metadata:
    """The Llama layout: `<unk>`, `<s>`, `</s>`, 256 byte tokens, then words by falling score."""
    words = "▁▁ ▁a ab ▁ab ba aba ▁aba b▁ a▁b ▁b bb abab ▁▁▁▁ cd abc a b c d é 你 你好 好 ▁ !".split()  # noqa: SIM905
    tokens = [("<unk>", int(Kind.UNKNOWN)), ("<s>", CONTROL), ("</s>", CONTROL)]
    tokens += [(f"<0x{byte:02X}>", int(Kind.BYTE)) for byte in range(256)]
    tokens += [(word, NORMAL) for word in words]
    scores = np.array([0.0] * 259 + [-float(i) for i in range(len(words))], np.float32)
    return metadata("llama", tokens, **{"scores": scores, **fields})


# The bytes of the letters that test texts consist of; in `dense_bpe` any two of them are a token.
DENSE = "aAbBsSteEclLHowrd12345 \n\r\t'.!,-/_=é你好世一あ가ㄱ\u0301\u00a0\u3000🙂Дпก।١½～：“"


def dense_bpe(pre: str) -> Metadata:
    """Returns byte-level BPE in which all pairs of some bytes merge, in random order: its ids show where a text was
    cut.
    """
    letters = [BYTE_LETTERS[byte] for byte in sorted(set(DENSE.encode()))]
    merges = [f"{a} {b}" for a in letters for b in letters]
    random.Random(3).shuffle(merges)
    words = [line.replace(" ", "") for line in merges]
    tokens = [(text, NORMAL) for text in [*BYTE_LETTERS, *words, "Hello", "ĠĠĠĠ", "12345"]]
    tokens += [("<|bos|>", CONTROL), ("<|im_end|>", CONTROL), ("<think>", USER)]
    ids = {"bos_token_id": len(tokens) - 3, "eos_token_id": len(tokens) - 2}
    return metadata("gpt2", tokens, merges=merges, pre=pre, **ids)


def raw_bpe(**fields: Any) -> Metadata:
    """Gemma 4's layout: four control tokens, 256 bytes, letters, and merges of these in a random order."""
    letters = ["▁", "\n", *"aAbBst12.!é你好가"]
    pairs = [(a, b) for a in letters for b in letters if "\n" not in (a, b)]
    random.Random(4).shuffle(pairs)
    pairs += [("▁a", "b"), ("aa", "aa"), ("▁▁", "▁▁")]
    tokens = [("<pad>", CONTROL), ("<eos>", CONTROL), ("<bos>", CONTROL), ("<unk>", int(Kind.UNKNOWN))]
    tokens += [(f"<0x{byte:02X}>", int(Kind.BYTE)) for byte in range(256)]
    tokens += [(text, NORMAL) for text in [*letters, *(a + b for a, b in pairs), "\n\n", "\n\n\n"]]
    tokens += [("<|turn>", CONTROL), ("<turn|>", CONTROL), ("<think>", USER)]
    ids = {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3}
    return metadata("gemma4", tokens, merges=[f"{a} {b}" for a, b in pairs], **{**ids, **fields})


def sarvam() -> Metadata:
    """Returns the layout of `raw_bpe` under the name of byte-level BPE and with a pre-tokenizer."""
    return raw_bpe() | {PREFIX + "model": "gpt2", PREFIX + "pre": "sarvam-moe"}


def granite_raw() -> Metadata:
    """Gemma's layout under the name of a Granite encoder."""
    return raw_bpe() | {PREFIX + "model": "gpt2", PREFIX + "pre": "granite-embed-multi-311m"}


def whitespace() -> Metadata:
    """Letters and merges without bytes or spaces, as in Jina's Chinese encoder."""
    letters = [*"aAbBst12.!é你好世"]
    pairs = [(a, b) for a in letters for b in letters]
    random.Random(6).shuffle(pairs)
    tokens = [("<s>", CONTROL), ("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", int(Kind.UNKNOWN))]
    tokens += [(text, NORMAL) for text in [*letters, *(a + b for a, b in pairs)]]
    ids = {"bos_token_id": 0, "eos_token_id": 2, "unknown_token_id": 3, "add_bos_token": True, "add_eos_token": True}
    return metadata("whitespace", tokens, merges=[f"{a} {b}" for a, b in pairs], pre="whitespace", **ids)


def hybrid_dna() -> Metadata:
    """Returns byte-level BPE with tokens of six bases, some of which are also plain tokens."""
    fields = bpe("qwen2")
    words = ["<dna>", "</dna>", "<oov>", "CCCCCC", "ACGTAC\ue000", "CCCCCC\ue000", "GTAAAA\ue000", "TTTTTT\ue000"]
    tokens = [*fields[PREFIX + "tokens"], *words]
    kinds = np.concatenate([fields[PREFIX + "token_type"], np.full(len(words), NORMAL, np.int32)])
    named = {PREFIX + "model": "hybriddna", PREFIX + "tokens": tokens, PREFIX + "token_type": kinds}
    return fields | named


def unigram() -> Metadata:
    """PLaMo's layout: four control tokens, 256 bytes, letters, and longer pieces with scores of a random order."""
    rng = random.Random(5)
    letters = [*" \naAbBst12.!é你好가"]
    words = {a + b for a in letters for b in letters} | {"aaa", "abab", "Hello", " world", "你好世", "  ", "   "}
    tokens = [(f"<|plamo:{name}|>", CONTROL) for name in ("unk", "bos", "eos", "pad")]
    tokens += [(f"<0x{byte:02X}>", int(Kind.BYTE)) for byte in range(256)]
    tokens += [(text, NORMAL) for text in [*letters, *sorted(words)]]
    scores = [0.0] * 260 + [-rng.uniform(3, 20) * len(text) ** 0.5 for text, _ in tokens[260:]]
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return metadata("plamo2", tokens, scores=np.array(scores, np.float32), **ids)


CASED = {"normalizer.lowercase": False}


def wordpiece(**fields: Any) -> Metadata:
    """Returns BERT's layout: [PAD] and others, then words that begin with ▁, and continuations within words."""
    rng = random.Random(6)
    letters = [*"aábcedlortwh12é.,!?'-~$`AÀñσςΣдіЖ你好𠀀가가ก้🙂ßiıI<>[]UNKMAS/_", "\u0301", "\u05d0"]
    parts = {"".join(rng.choices("abcelorth1", k=rng.randint(2, 4))) for _ in range(60)} | {"dσ", "ing", "ςд"}
    words = [*letters, *sorted(parts), "hello", "world", "the", "don", "привет", "한국", "ᄒ", "ᄀ", "a" * 9]
    tokens = [(name, CONTROL) for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    tokens += [(text, NORMAL) for text in dict.fromkeys(["▁" + word for word in words] + letters[:-18] + sorted(parts))]
    tokens += [("<think>", USER), ("ways", int(Kind.UNUSED))]
    ids = {"unknown": 1, "bos": 2, "seperator": 3, "padding": 0, "mask": 4}
    return metadata("bert", tokens, **{**{f"{role}_token_id": token for role, token in ids.items()}, **fields})


def charsmap(replaced: dict[str, str]) -> NDArray[np.uint8]:
    """A map of characters as SentencePiece writes it: a double array, first fit, and the replacements."""
    values, texts = {}, b""
    for sequence, replacement in replaced.items():
        values[sequence.encode()] = len(texts)
        texts += replacement.encode() + b"\0"
    nodes = sorted({sequence[:end] for sequence in values for end in range(len(sequence) + 1)}, key=len)
    units, place, bases = {0: 0}, {b"": 0}, set[int]()
    for node in nodes:
        labels = [sequence[-1] for sequence in nodes if sequence[:-1] == node and sequence]
        ends = [0] if node in values else []
        free = (base for base in count(1) if not any(base ^ label in units for label in ends + labels))
        base = next(base for base in free if base not in bases)
        bases.add(base)
        offset = base ^ place[node]
        assert offset < 1 << 21  # otherwise it would have to be a multiple of 256
        units[place[node]] |= offset << 10 | len(ends) << 8
        units |= {base ^ end: 1 << 31 | values[node] for end in ends} | {base ^ label: label for label in labels}
        place |= {node + bytes([label]): base ^ label for label in labels}
    array = np.zeros(-(-(max(units) + 1) // 256) * 256, "<u4")
    array[list(units)] = list(units.values())
    return np.frombuffer(array.nbytes.to_bytes(4, "little") + array.tobytes() + texts, np.uint8)


REPLACED = {
    "\t": " ", "\n": " ", "\u00a0": " ", "\u3000": " ", "\u200b": "", "\x7f": "", "ﬁ": "fi", "ﬀ": "ff",
    "Å": "Å", "½": "1⁄2", "a\u0301": "á", "e\u0301": "é", "A\u0301": "Á", "A": "a", "B": "b", "ＡＢ": "ab", "Ａ": "A",
    "！": "!", "㍿": "株式会社", "가": "가", "…": "...", "İ": "i\u0307", "\u0344": "\u0308\u0301", "x  y": "x y",
}  # fmt: skip


def t5(**fields: Any) -> Metadata:
    """Returns XLM-RoBERTa's layout: four special tokens, pieces with scores in random order, and unused tokens."""
    rng = random.Random(8)
    letters = [*"▁abstfiélw12.!á株你好가Дпд⁄\u0301", "\u0308"]
    words = {a + b for a in letters[:16] for b in letters[1:16]} | {
        "▁the",
        "hello",
        "▁world",
        "你好",
        "式会社",
        "aaa",
        "▁▁▁",
    }
    tokens = [("<s>", CONTROL), ("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", int(Kind.UNKNOWN))]
    tokens += [(text, NORMAL) for text in [*letters, *sorted(words)]]
    tokens += [("[PAD7]", int(Kind.UNUSED)), ("ab<", int(Kind.UNUSED)), ("<0x41>", int(Kind.BYTE))]
    tokens += [("<think>", USER), ("é你<", USER), ("<mask>", CONTROL)]
    scores = [0.0] * 4 + [-rng.uniform(3, 20) * len(text) ** 0.5 for text, _ in tokens[4:]]
    scores[len(letters) + len(words) + 4] = -10_000
    ids = {"bos_token_id": 0, "eos_token_id": 2, "unknown_token_id": 3, "add_bos_token": True}
    settings = {"add_space_prefix": True, "remove_extra_whitespaces": True, "precompiled_charsmap": charsmap(REPLACED)}
    return metadata("t5", tokens, scores=np.array(scores, np.float32), **{**ids, **settings, **fields})


TINY = {
    "rwkv": rwkv(),
    "bpe": bpe("qwen2"),
    "bpe that cleans spaces": bpe("gpt-2"),
    "spm": spm(),
    "spm without prefix": spm(add_space_prefix=False),
    "gemma4": raw_bpe(),
    "sarvam": sarvam(),
    "granite-embed-multi-311m": granite_raw(),
    "whitespace": whitespace(),
    "hybriddna": hybrid_dna(),
    "plamo2": unigram(),
    "bert": wordpiece(),
    "bert with capitals": wordpiece(**CASED),
    "t5": t5(),
    "t5 that keeps spaces": t5(remove_extra_whitespaces=False),
}
# Vocabularies that restore the original text; others normalise it.
EXACT = [name for name, fields in TINY.items() if fields[PREFIX + "model"] not in ("bert", "t5", "whitespace")]


def golden_metadata(name: str) -> Metadata:
    """The metadata of a golden model."""
    with GGUFFile.open(golden(name)) as file:
        return dict(file.metadata)
