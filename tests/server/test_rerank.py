"""Documents are ranked over HTTP."""

import pytest

import rwkv_gpu
from rwkv_gpu.server.catalogue import ServedModel
from rwkv_gpu.server.fields import RERANK
from rwkv_gpu.server.rerank import PATHS
from tests.golden_files import OWN
from tests.server.serving import serving

MODEL = OWN / "ranking-qwen3.gguf"
QUERY, DOCUMENTS = "hello", ["The sea is wide", "A fish", "hello world", "a"]
BODY = {"query": QUERY, "documents": DOCUMENTS}


@pytest.fixture(scope="module")
def ranking():
    with serving(ServedModel("ranks", str(MODEL)), ServedModel("tells", str(OWN / "quiet-llama.gguf"))) as served:
        yield served


@pytest.fixture(scope="module")
def best():
    """Returns the numbers of the documents, the best first, and the score of each."""
    with rwkv_gpu.load(MODEL, device="cpu") as llm:
        scores = llm.rerank(QUERY, DOCUMENTS).tolist()
    return sorted(range(len(scores)), key=lambda at: -scores[at]), scores


@pytest.mark.parametrize("path", PATHS)
def test_the_best_documents_come_first(ranking, best, path):
    order, scores = best
    reply = ranking.post(path, BODY)
    assert reply["model"] == "ranks" and reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] > 0
    assert [one["index"] for one in reply["results"]] == order
    for one in reply["results"]:
        assert one == {"index": one["index"], "relevance_score": pytest.approx(scores[one["index"]], abs=1e-6)}


def test_top_n_and_return_documents_are_honoured(ranking, best):
    order, _ = best
    asked = {"top_n": 2, "return_documents": True, "documents": [{"text": text} for text in DOCUMENTS]}
    found = ranking.post("/v1/rerank", BODY | asked)["results"]
    assert [(one["index"], one["document"]) for one in found] == [(at, {"text": DOCUMENTS[at]}) for at in order[:2]]


def test_a_request_with_texts_gets_the_response_format_of_tei(ranking, best):
    order, scores = best
    found = ranking.post("/rerank", {"query": QUERY, "texts": DOCUMENTS, "return_text": True})
    assert [(one["index"], one["text"]) for one in found] == [(at, DOCUMENTS[at]) for at in order]
    assert [one["score"] for one in found] == pytest.approx([scores[at] for at in order], abs=1e-6)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"query": None}, "query"), ({"query": 3}, "query"), ({"documents": None}, "documents"),
        ({"documents": []}, None), ({"documents": "a"}, "documents"), ({"documents": ["a", 3]}, "documents"),
        ({"documents": ["a"] * 2049}, "documents"), ({"top_n": 0}, "top_n"), ({"top_n": "a"}, "top_n"),
        ({"return_documents": 1}, "return_documents"), ({"documents": ["a " * 5000]}, None),
    ],
)  # fmt: skip
def test_wrong_values_are_refused(ranking, change, param):
    body = {name: value for name, value in {**BODY, **change}.items() if value is not None}
    status, _, answer = ranking.request("POST", "/v1/rerank", body)
    assert status == 400 and (param is None or answer["error"]["param"] == param), answer


def test_a_model_that_cannot_rank_is_refused(ranking):
    status, _, answer = ranking.request("POST", "/v1/rerank", {**BODY, "model": "tells"})
    assert status == 400 and "use a reranker" in answer["error"]["message"]


@pytest.mark.parametrize("name", RERANK.ignored)
def test_ignored_values_are_named(ranking, name):
    status, headers, _ = ranking.request("POST", "/v1/rerank", {**BODY, name: "a"})
    assert (status, headers["x-ignored-fields"]) == (200, name)
