"""Tokenisations equal records from llama.cpp in the repository: every pre-tokenizer, and every kind of tokenizer."""

import gzip
import json
import re
import unicodedata
from typing import Any

from rwkv_gpu.text.pretokenizers import PRE
from rwkv_gpu.text.tokenizer import KINDS, load_tokenizer
from rwkv_gpu.text.vocabulary import PREFIX
from tests.cases import each
from tests.golden.record_tokens import FILE, vocabularies

RECORD: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))
VOCABULARIES = vocabularies()

# If a model's pattern distinguishes upper and lower case, llama.cpp does so only for ASCII, or not at all.
# We use the model's own pattern, and compare only texts where both agree.
ASCII_CASE = {
    f"gpt2 {pre}"
    for pre in ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "tekken", "granite-embed-multi-97m")
}
NO_CASE = {f"gpt2 {pre}" for pre in ("kimi-k2", "tiny_aya", "cohere2moe", "youtu")}
SPACES_BEFORE_DIGITS = re.compile(r"\s\s\d")  # llama.cpp does not separate these spaces from the digits


def comparable(name: str, text: str) -> bool:
    """True if llama.cpp's pattern has the same meaning as the model's own."""
    if name == "gpt2 afmoe":
        return SPACES_BEFORE_DIGITS.search(text) is None
    if name not in ASCII_CASE | NO_CASE:
        return True
    foreign = any(unicodedata.category(c) in ("Lu", "Ll", "Lt", "Mn", "Mc") for c in text if not c.isascii())
    return not foreign and (name in ASCII_CASE or not any(map(str.isupper, text)))


def test_there_is_a_record_of_every_pre_tokenizer_and_every_kind():
    assert set(RECORD["numbers"]) == set(VOCABULARIES)
    assert {name.removeprefix("gpt2 ") for name in VOCABULARIES if name.startswith("gpt2 ")} == set(PRE)
    assert {make()[PREFIX + "model"] for make in VOCABULARIES.values()} == set(KINDS)


@each("name", VOCABULARIES)
def test_tokens_equal_those_of_llama_cpp(name):
    tokenizer, record = load_tokenizer(VOCABULARIES[name]()), RECORD["records"][RECORD["numbers"][name]]
    assert tokenizer.encode("", special=True) == record["added"]
    compared = [i for i, text in enumerate(RECORD["texts"]) if comparable(name, text)]
    assert len(compared) >= 20
    for i in compared:
        text = RECORD["texts"][i]
        plain = record["plain"][i]
        assert tokenizer.encode(text) == plain, text
        assert tokenizer.encode(text, parse=True) == (record["parsed"][i] or plain), text
        if name != "whitespace":  # llama.cpp shows their letters as if they stood for bytes
            assert tokenizer.decode_bytes(plain, special=True).hex() == record["shown"][i], text
