"""PLaMo's tokenizer beyond its record: control tokens in plain text, and characters without a token."""

from rwkv_gpu.text.tokenizer import load_tokenizer
from rwkv_gpu.text.vocabulary import PREFIX
from tests.text.vocabularies import unigram


def test_plain_text_never_becomes_a_control_token():
    tokenizer = load_tokenizer(unigram())
    for name, number in (("<|plamo:bos|>", 1), ("<|plamo:eos|>", 2)):
        assert tokenizer.encode(name, parse=True) == [number]
        assert number not in tokenizer.encode(name)
        assert tokenizer.decode(tokenizer.encode(name)) == name


def test_a_byte_order_mark_is_not_encoded():
    tokenizer = load_tokenizer(unigram())
    assert tokenizer.encode("\ufeffHello") == tokenizer.encode("Hello")
    assert tokenizer.decode(tokenizer.encode("Hello\ufeff")) == "Hello\ufeff"


def test_characters_that_no_token_spells_are_bytes():
    tokenizer = load_tokenizer(unigram())
    for data in ("\ud800".encode("utf-8", "surrogatepass"), "🙂ア".encode()):
        ids = tokenizer.encode(data)
        assert tokenizer.decode_bytes(ids) == data
        assert ids == [4 + byte for byte in data]


def test_a_token_that_costs_more_than_its_bytes_is_not_used():
    fields = unigram()
    hello = fields[PREFIX + "tokens"].index("Hello")
    assert load_tokenizer(fields).encode("Hello") == [hello]
    scores = fields[PREFIX + "scores"].copy()
    scores[hello] = -6000.0
    assert hello not in load_tokenizer(fields | {PREFIX + "scores": scores}).encode("Hello")
