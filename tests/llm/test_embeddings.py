"""Embeddings of texts, and scores of documents for a query. test_own_golden compares them with llama.cpp."""

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.engine.runner import Runner
from rwkv_gpu.errors import BadFile, BadInput, ContextFull
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.llm.load_options import room_of
from rwkv_gpu.models.registry import load_model
from tests.gguf.parts import Row, take_apart
from tests.gguf.writer import ARRAY, BOOL, STRING, U32, written
from tests.golden_files import OWN


def changed(tmp_path, name: str, *, without: str = "", **keys):
    """Returns a file with other keys of its architecture, or of its tokenizer."""
    whole = take_apart((OWN / f"{name}.gguf").read_bytes())
    arch = whole.row("general.architecture").value.decode()
    for key, value in keys.items():
        kind = BOOL if isinstance(value, bool) else U32 if isinstance(value, int) else STRING
        where = f"tokenizer.{key.replace('__', '.')}" if "__" in key else f"{arch}.{key}"
        whole.set(where, kind, value)
    whole.tensors = [one for one in whole.tensors if not without or not one.name.startswith(without.encode())]
    return written(tmp_path, whole.built())


@pytest.mark.parametrize(("kind", "row"), [(2, 0), (3, -1)])
def test_a_decoder_has_the_token_that_its_file_names(tmp_path, kind, row):
    path = changed(tmp_path, "quiet-qwen3", pooling_type=kind)
    ids = [list(range(5, 40)), [7, 8, 9]]
    with rwkv_gpu.load(path, device="cpu", kv="f32") as llm:
        assert not llm.info.encoder and llm.generate(ids[0], max_tokens=2).tokens
        found = [one["embedding"] for one in llm.create_embedding(ids)["data"]]
        rows = np.array([_hidden(llm, one)[row] for one in ids])
    np.testing.assert_allclose(found, rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=1e-6)


def _hidden(llm, ids) -> np.ndarray:
    """Returns the embeddings of all rows."""

    def work(engine):
        rows = []
        for piece in engine.evaluate(ids, hidden=True):
            rows.append(piece)
            yield
        return np.concatenate(rows)

    return llm.begin_work(work).result()


def test_a_text_of_several_chunks_has_its_first_and_last_token(tmp_path):
    ids = list(range(5, 100))
    for kind in (1, 2, 3):
        path = changed(tmp_path, "quiet-qwen3", pooling_type=kind)
        vectors = []
        for chunk in (8, 512):
            with rwkv_gpu.load(path, device="cpu", kv="f32", chunk_size=chunk) as llm:
                vectors.append(llm.create_embedding([ids])["data"][0]["embedding"])
        np.testing.assert_allclose(*vectors, atol=1e-6)


def test_special_tokens_in_a_text_count_as_such():
    """As in llama-server, the tokens that a model adds to the end of a text may also be written out."""
    with rwkv_gpu.load(OWN / "quiet-qwen3.gguf", device="cpu") as llm:
        special = llm.tokenizer.piece(llm.tokenizer.eos, special=True).decode()
        ids = llm.prepare_embedding(f"hello{special}")
        assert ids == [llm.tokenize(f"hello{special}", special=True, parse=True)]
        assert llm.tokenizer.eos in ids[0]


@pytest.mark.parametrize("where", ["cpu", "gpu"])
@pytest.mark.parametrize("name", ["tiny-bert", "quiet-qwen3", "quiet-rwkv7"])
def test_texts_that_fit_a_step_take_one_together(adapter, monkeypatch, name, where):
    steps = []
    real = Runner.hidden
    monkeypatch.setattr(Runner, "hidden", lambda self, batch: steps.append(len(batch.segments)) or real(self, batch))
    device = str(adapter.index) if where == "gpu" else "cpu"
    with rwkv_gpu.load(OWN / f"{name}.gguf", device=device, kv="f32", chunk_size=64, sequences=3) as llm:
        free = llm.activity.free_pages
        ids = [list(range(5, 25)), [7], list(range(9, 29)), [3, 4], list(range(30, 70)), list(range(5, 60)), [8, 8]]
        together = np.array([one["embedding"] for one in llm.create_embedding(ids)["data"]])
        assert steps == [3, 2, 2]
        steps.clear()
        alone = np.array([llm.create_embedding([one])["data"][0]["embedding"] for one in ids])
        assert steps == [1] * len(ids)
        assert llm.activity.free_pages == free
    np.testing.assert_allclose(together, alone, atol=2e-6)


def test_texts_take_separate_steps_if_there_are_too_few_pages_for_all(monkeypatch):
    steps = []
    real = Runner.hidden
    monkeypatch.setattr(Runner, "hidden", lambda self, batch: steps.append(len(batch.segments)) or real(self, batch))
    options = {"context": 64, "tokens": 64, "cache_bytes": 0, "sequences": 2}
    with rwkv_gpu.load(OWN / "quiet-qwen3.gguf", device="cpu", **options) as llm:
        free = llm.activity.free_pages
        for _ in range(2):  # each step gives its slots back
            assert len(llm.create_embedding([[5, 6], [7, 8]])["data"]) == 2
        assert steps == [2, 1, 1] * 2
        assert llm.activity.free_pages == free


def test_texts_of_a_step_give_their_pages_and_slots_back():
    with rwkv_gpu.load(OWN / "quiet-qwen3.gguf", device="cpu", cache_bytes=0, sequences=2) as llm:
        free = llm.activity.free_pages
        first, second = (llm.create_embedding([[5, 6], [7, 8]])["data"] for _ in range(2))
        assert first == second
        assert llm.activity.free_pages == free


@pytest.mark.parametrize("kind", [5, -1])
def test_an_unknown_pooling_is_refused(tmp_path, kind):
    path = changed(tmp_path, "quiet-qwen3", pooling_type=kind % (1 << 32))
    with pytest.raises(BadFile, match=r"pooling_type.*an integer from 0 to 4"):
        rwkv_gpu.load(path, device="cpu")


def test_an_encoder_generates_nothing():
    wants = "this model is an encoder: it makes embeddings of texts, and has no next tokens"
    with rwkv_gpu.load(OWN / "tiny-bert.gguf", device="cpu") as llm:
        for call in (
            lambda: llm.generate("a"),
            lambda: llm.logits([5]),
            lambda: llm.perplexity("hello"),
            llm.chat,
            lambda: llm.chat(template="chatml"),
            lambda: llm.create_chat_completion([{"role": "user", "content": "a"}]),
        ):
            with pytest.raises(BadInput, match=wants):
                call()
    with pytest.raises(BadInput, match=wants):
        rwkv_gpu.load(OWN / "quiet-llama.gguf", device="cpu", draft=OWN / "tiny-bert.gguf")


@pytest.mark.parametrize(("chunk", "rows"), [(512, 2048), (None, 2048), (256, 512), (1024, 1024)])
def test_a_step_has_several_texts_unless_a_smaller_chunk_is_requested(chunk, rows):
    """A step can have several texts, and a text is never split."""
    with GGUFFile.open(OWN / "tiny-bert.gguf") as file:
        assert room_of(load_model(file), 4, chunk, 512)[:2] == (rows, 512)


def test_a_text_beyond_the_context_is_refused_and_a_step_has_room_for_any_other():
    with rwkv_gpu.load(OWN / "tiny-bert.gguf", device="cpu", chunk_size=8) as llm:
        assert llm.info.chunk_size >= llm.context == 64
        with pytest.raises(ContextFull, match="65 tokens exceeds the available context size of 64"):
            llm.create_embedding([[5] * 65])
        assert len(llm.create_embedding([[5] * 64])["data"]) == 1


@pytest.mark.parametrize("ends", [False, True])
def test_a_truncated_text_keeps_its_end_token(tmp_path, ends):
    path = changed(tmp_path, "tiny-bert", ggml__add_eos_token=ends)
    with rwkv_gpu.load(path, device="cpu") as llm:
        whole = llm.tokenize("a long text " * 50, special=True)
        [ids] = llm.prepare_embedding("a long text " * 50, truncate=True)
        assert len(whole) > len(ids) == llm.context
        assert ids == ([*whole[: llm.context - 1], llm.tokenizer.eos] if ends else whole[: llm.context])
        assert llm.prepare_embedding("a", truncate=True) == llm.prepare_embedding("a")


# ---------------------------------------------------------------- ranking


def test_a_ranker_reads_the_query_and_a_document(tmp_path):
    path = changed(tmp_path, "ranking-qwen3", ggml__add_bos_token=True, ggml__add_eos_token=True)
    with rwkv_gpu.load(path, device="cpu") as llm:
        own, query, document = llm.tokenizer, llm.tokenize("a query"), llm.tokenize("a document")
        eos = [own.eos]
        assert llm.prepare_ranking("a query", ["a document"]) == [[own.bos, *query, *eos, *document, *eos]]
        scores = llm.rerank("a query", ["a document", "b"])
    path = changed(tmp_path, "ranking-qwen3", chat_template__rerank="Q {query} D {document} ?")
    with rwkv_gpu.load(path, device="cpu") as llm:
        assert llm.prepare_ranking("a{document}", ["b"]) == [llm.tokenize("Q ab D b ?")]
    assert scores.shape == (2,) and scores[0] != scores[1]


def test_an_encoder_with_a_classifier_ranks_if_its_file_names_no_pooling(tmp_path):
    """So are files of 2024, such as those of Jina Reranker 1."""
    whole = take_apart((OWN / "ranking-jina-bert-v2.gguf").read_bytes())
    with rwkv_gpu.load(OWN / "ranking-jina-bert-v2.gguf", device="cpu") as llm:
        expected = llm.rerank("a query", ["a document", "b"])
    whole.rows = [row for row in whole.rows if not row.name.endswith(b".pooling_type")]
    with rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu") as llm:
        np.testing.assert_array_equal(llm.rerank("a query", ["a document", "b"]), expected)


def test_a_bert_with_words_of_its_own_reads_texts_and_pairs(tmp_path):
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *(f"▁{word}" for word in ("the", "sea", "wide", "un", "?", *letters))]
    words += ["known", *letters]
    words += [f"▁[unused{number}]" for number in range(288 - len(words))]
    whole = take_apart((OWN / "ranking-bert.gguf").read_bytes())
    whole.rows = [row for row in whole.rows if b"tokenizer.ggml" not in row.name or b"type_count" in row.name]
    whole.set("tokenizer.ggml.model", STRING, b"bert")
    whole.rows.append(Row(b"tokenizer.ggml.tokens", ARRAY, [word.encode() for word in words], STRING))
    for number, role in enumerate(("padding", "bos", "seperator", "unknown")):
        whole.set(f"tokenizer.ggml.{role}_token_id", U32, number)
    with rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu") as llm:
        cut = [[words[token] for token in ids] for ids in llm.prepare_ranking("The SEA", ["wide unknown", "é"])]
        assert cut == [
            ["[CLS]", "▁the", "▁sea", "[SEP]", "▁wide", "▁un", "known"],
            ["[CLS]", "▁the", "▁sea", "[SEP]", "▁e"],
        ]
        [ids] = llm.prepare_embedding("the sea?")
        assert [words[token] for token in ids] == ["[CLS]", "▁the", "▁sea", "▁?", "[SEP]"]
        np.testing.assert_array_equal(llm.embed("The SEA ?"), llm.embed("the sea?"))


def test_inputs_that_cannot_be_ranked_are_refused():
    with rwkv_gpu.load(OWN / "quiet-qwen3.gguf", device="cpu") as llm, pytest.raises(BadInput, match="use a reranker"):
        llm.rerank("a", ["b"])
    with rwkv_gpu.load(OWN / "ranking-qwen3.gguf", device="cpu") as llm:
        for query, documents, says in ((3, ["a"], "query is of type int"), ("a", [], "documents is empty"),
                                       ("a", ["b", None], r"documents\[1\] is of type NoneType")):  # fmt: skip
            with pytest.raises(BadInput, match=says):
                llm.rerank(query, documents)


def test_a_classifier_of_another_width_is_refused(tmp_path):
    whole = take_apart((OWN / "ranking-bert.gguf").read_bytes())
    one = next(one for one in whole.tensors if one.name == b"cls.output.weight")
    one.dims = [one.dims[0] // 2, 2 * one.dims[1]]
    with pytest.raises(BadFile, match=r"'cls.output.weight': found the shape \[2, 32\], expected \[2, 64\]"):
        rwkv_gpu.load(written(tmp_path, whole.built()), device="cpu")
