"""Tokenisations equal llama.cpp's records, id by id and byte by byte."""

import gzip
import json
from functools import cache
from typing import Any

import pytest

from rwkv_gpu.text.tokenizer import Tokenizer, load_tokenizer
from tests.golden_files import golden
from tests.text.vocabularies import golden_metadata

RECORDS = (
    "tokens-llama-bpe-4096.json",
    "tokens-qwen2-4096.json",
    "tokens-rwkv-4096.json",
    "tokens-spm-5388.json",
    "tokens-gemma4.json.gz",
    "tokens-kimi-k2.json.gz",
)


@cache
def load(name: str) -> tuple[Any, Tokenizer]:
    data = golden(name).read_bytes()
    if name.endswith(".gz"):  # these have their vocabulary with them
        record = json.loads(gzip.decompress(data))
        return record, load_tokenizer(record["metadata"])
    record = json.loads(data)
    return record, load_tokenizer(golden_metadata(record["model"]))


@pytest.fixture(params=RECORDS)
def recorded(request: pytest.FixtureRequest) -> tuple[Any, Tokenizer]:
    return load(request.param)


def test_ids_equal_those_of_llama_cpp(recorded):
    record, tokenizer = recorded
    assert len(record["cases"]) > 150
    for case in record["cases"]:
        text = bytes.fromhex(case["hex"])
        assert tokenizer.encode(text) == case["plain"], text
        assert tokenizer.encode(text, parse=True) == case["parse"], text
        # The records with BOS and EOS were made with special tokens parsed too.
        assert tokenizer.encode(text, special=True, parse=True) == case["special"], text


def test_strings_give_the_ids_of_their_bytes(recorded):
    record, tokenizer = recorded
    for case in record["cases"]:
        text = bytes.fromhex(case["hex"]).decode("utf-8", "replace")
        assert tokenizer.encode(text) == tokenizer.encode(text.encode())


def test_decoded_text_equals_that_of_llama_cpp(recorded):
    record, tokenizer = recorded
    for case in record["cases"]:
        # Recorded with specials shown: RWKV's <s> can come from plain text too.
        assert tokenizer.decode_bytes(case["plain"], special=True).hex() == case["detok_hex"]
        assert tokenizer.decode_bytes(case["parse"], special=True).hex() == case["detok_parse_hex"]


def test_streamed_text_equals_that_of_llama_cpp(recorded):
    record, tokenizer = recorded
    for case in record["cases"]:
        stream = tokenizer.stream(special=True)
        text = "".join([*(stream.feed(token) for token in case["parse"]), stream.flush()])
        assert text == bytes.fromhex(case["detok_parse_hex"]).decode("utf-8", "replace")


def test_pieces_equal_those_of_llama_cpp(recorded):
    record, tokenizer = recorded
    for token, piece in record["pieces_plain_hex"].items():
        assert tokenizer.piece(int(token)).hex() == piece
    for token, piece in record["pieces_special_hex"].items():
        assert tokenizer.piece(int(token), special=True).hex() == piece


def test_special_ids_equal_those_of_llama_cpp(recorded):
    record, tokenizer = recorded
    assert tokenizer.vocab_size == record["n_vocab"]
    assert tokenizer.add_bos == record["add_bos"]
    assert (tokenizer.bos, tokenizer.eos) == (record["bos"], record["eos"])
    assert tokenizer.eot == (None if record["eot"] < 0 else record["eot"])
    ends = set(record["eog"])
    if "rwkv" in record["model"]:
        ends.remove(record["eot"])  # "\n\n" ends a turn of a chat, not every text
    assert tokenizer.stop_ids == ends


def test_a_vocabulary_of_bare_bytes_loads():
    tokenizer = load_tokenizer(golden_metadata("rwkv7-trained-0.8M-F32.gguf"))
    assert tokenizer.encode(bytes(range(256))) == list(range(256))
    assert tokenizer.stop_ids == {0}
