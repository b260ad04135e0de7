"""A text that cannot fit the context is refused before it is tokenised, by a lower bound of its token count."""

import random

import pytest

import rwkv_gpu
from rwkv_gpu.errors import ContextFull
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.llm.pooling import RANK_TEMPLATE
from rwkv_gpu.text.base import Tokenizer
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.golden_files import OWN, golden

PLAIN = {"tokenizer.chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}"}
ASK = {"role": "user", "content": "hi"}
NAMES = ["tiny-rwkv7", "tiny-llama", "tiny-arwkv7", "tiny-gemma4-experts", "around-llama"]


@pytest.mark.parametrize("name", NAMES)
def test_no_text_has_fewer_tokens_than_the_bound(name):
    """The texts consist of the longest tokens, and of white space, which some tokenizers remove."""
    with GGUFFile.open(golden(f"{name}.gguf")) as file:
        tokenizer = load_tokenizer(file.metadata)
    longest = sorted(range(tokenizer.vocab_size), key=lambda token: -len(tokenizer.piece(token, special=True)))[:40]
    rng = random.Random(0)
    texts = ["", "a" * 999, " " * 999, "\n\t " * 333, "é漢🙂\0" * 200, "".join(map(chr, range(32, 0x3000, 7)))]
    for _ in range(20):
        some = rng.choices(longest, k=50)
        texts.append(b"".join(tokenizer.piece(token, special=True) for token in some).decode("utf-8", "replace"))
    for text in texts:
        for parse in (False, True):
            assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text, parse=parse)), (text[:50], parse)


def test_a_chat_that_leaves_out_turns_may_have_any_length():
    with rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu", context=64) as llm:
        old = [{"role": role, "content": "ab" * 30} for role in ("user", "assistant") * 200]
        chat = llm.chat(messages=old, template="chatml", truncate="left")
        assert chat.send("c", max_tokens=2).stats.prompt_tokens <= 64
        assert len(chat.messages) == 402


@pytest.mark.parametrize("name", ["tiny-llama"])
def test_a_text_beyond_the_context_is_refused_before_it_is_tokenised(name, monkeypatch):
    with rwkv_gpu.load(OWN / f"{name}.gguf", device="cpu", context=64, override_kv=PLAIN) as llm:
        chat = llm.chat(template="chatml")
        assert llm.chat_format  # which tokenises marks
        monkeypatch.setattr(Tokenizer, "encode", None)
        for text in ("a" * (1 << 20), " " * (1 << 20), "the sea is " * 100_000):
            for call in (
                lambda text=text: llm.generate(text, max_tokens=1),
                lambda text=text: llm.stream(text, max_tokens=1),
                lambda text=text: llm.generate([1, text, 2], max_tokens=1),
                lambda text=text: llm.embed(text),
                lambda text=text: llm.logprobs(text),
                lambda text=text: chat.send(text),
                lambda text=text: llm.create_chat_completion(
                    [ASK], tools=[{"type": "function", "function": {"name": "f", "description": text}}]
                ),
                lambda text=text: llm.create_chat_completion([{**ASK, "content": [{"type": "text", "text": text}]}]),
            ):
                with pytest.raises(ContextFull, match=r"at least [\d,]+ tokens exceeds the available context size"):
                    call()


@pytest.mark.parametrize("template", [{}, {RANK_TEMPLATE: "{query} {document}"}], ids=["parts", "template"])
def test_documents_and_queries_beyond_the_context_are_refused_before_they_are_tokenised(template, monkeypatch):
    with rwkv_gpu.load(OWN / "ranking-qwen3.gguf", device="cpu", context=64, override_kv=template) as llm:
        assert llm.prepare_ranking("a", ["b"])[0] != llm.tokenize("a b") or template
        monkeypatch.setattr(Tokenizer, "encode", None)
        for query, document in (("a" * (1 << 20), "b"), ("a", "b" * (1 << 20))):
            with pytest.raises(ContextFull, match="at least"):
                llm.rerank(query, [document])


def test_a_text_that_is_cut_to_the_context_is_not_tokenised_whole(monkeypatch):
    """The result is that of the whole text."""
    with rwkv_gpu.load(OWN / "tiny-llama.gguf", device="cpu", context=64) as llm:
        text = "the sea is calm. " * 20_000
        whole = llm.tokenize(text, special=True)
        encode, lengths = Tokenizer.encode, []

        def counted(self, text, **more):
            lengths.append(len(text))
            return encode(self, text, **more)

        monkeypatch.setattr(Tokenizer, "encode", counted)
        [begun] = llm.prepare_embedding(text, "float", truncate=True)
        assert begun == whole[: len(begun)] and len(begun) == 64
        assert llm.generate(text, max_tokens=1, truncate="left").stats.prompt_tokens == 63
        assert llm._ids(text, "left", 1) == whole[-63:]
        assert max(lengths) < len(text) / 50
