"""Training files: texts become ids, and parameters become a file that the library loads."""

import gguf
import numpy as np

import rwkv_gpu
from rwkv_gpu.text.rwkv import RwkvTokenizer
from training import corpus, export, vocabulary
from training.conversation import document

WORDS = vocabulary.load()


def text_of(seed: int) -> str:
    return "".join(text for text, _ in document(seed))


def test_ids_give_their_text_back_and_equal_those_of_the_library():
    metadata = {
        "tokenizer.ggml.tokens": ["<s>", *(vocabulary.escaped(token) for token in WORDS.tokens[1:])],
        "tokenizer.ggml.token_type": [3, *[1] * (len(WORDS.tokens) - 1)],
    }
    tokenizer = RwkvTokenizer(metadata)
    for text in [*(text_of(seed) for seed in range(200)), "naïve 漢字 🙂\t\r\n\n\n  x", "rwkv-gpu'll 12345!?"]:
        ids = WORDS.encode(text)
        assert WORDS.decode(ids) == text
        assert list(tokenizer.encode(text)) == ids


def test_a_vocabulary_learns_frequent_pairs():
    tokens = vocabulary.learn(266, ["hello there, hello you"] * 9)
    assert tokens[0] == b""
    assert {bytes([n]) for n in range(256)} <= set(tokens)
    assert b"he" in tokens[257:]


def test_documents_begin_at_chunks_and_tokens_of_users_have_little_weight(monkeypatch):
    monkeypatch.setattr(corpus, "ROWS", 4)
    shard, same = corpus.make(5), corpus.make(5)
    assert (shard.ids == same.ids).all()
    assert shard.first.sum() > 4
    for row, first in zip(shard.ids, shard.first, strict=True):
        starts = np.flatnonzero(first) * corpus.CHUNK
        seen = [WORDS.decode(row[at : at + 2].tolist()) for at in starts]
        assert all(text[0].isupper() for text in seen), seen
        assert (row[starts[1:] - 1] == vocabulary.END).all()
    assert set(np.unique(shard.worth)) == {np.float32(0), np.float32(0.1), np.float32(1)}


def test_no_seed_is_in_two_shards(monkeypatch):
    monkeypatch.setattr(corpus, "ROWS", 2)
    assert not (corpus.make(1).ids == corpus.make(2).ids).all(axis=1).any()


def random_parameters() -> dict[str, np.ndarray]:
    rng, width, inner, size = np.random.default_rng(0), 256, 256, len(WORDS.tokens)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    tensors = {"token_embd.weight": normal(size, width), "output.weight": normal(size, width)}
    norms = ["token_embd_norm", "output_norm", "blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.time_mix_ln"]
    for name in norms:
        tensors |= {f"{name}.weight": 1 + normal(width), f"{name}.bias": normal(width)}
    at = "blk.0.time_mix_"
    tensors |= {at + f"{name}.weight": normal(width, width) for name in ("receptance", "key", "value", "output")}
    for letter in "wavg":
        tensors |= {f"{at}{letter}1.weight": normal(32, width), f"{at}{letter}2.weight": normal(width, 32)}
    tensors |= {f"{at}{name}.weight": normal(width) for name in ("w0", "a0", "v0", "k_k", "k_a", "r_k")}
    tensors |= {f"{at}lerp_fused.weight": normal(6, 1, 1, width), "blk.0.channel_mix_lerp_k.weight": normal(width)}
    tensors |= {f"blk.0.channel_mix_{name}.weight": normal(inner, width) for name in ("key", "value")}
    return tensors


def test_a_written_model_is_read_with_its_formats_and_chats_by_its_template(tmp_path):
    path, tensors = tmp_path / "model.gguf", random_parameters()
    export.write(path, tensors, WORDS.tokens)
    reader = gguf.GGUFReader(path)
    assert {tensor.name: tensor.tensor_type.name for tensor in reader.tensors} == {
        n: export.kind_of(n) for n in tensors
    }
    with rwkv_gpu.load(path, device="cpu") as llm:
        assert llm.vocab_size == len(WORDS.tokens)
        assert llm.detokenize(llm.tokenize("Hello there!")) == "Hello there!"
        assert np.isfinite(llm.logits(llm.tokenize("Hello"))).all()
        assert llm.chat(max_tokens=2, temperature=0).template is not None
