"""Ranks documents by relevance to a query, in the formats of Jina, Cohere and llama-server, and of TEI."""

from functools import partial
from typing import Any

from .call import Call, Response, Whole
from .endpoint import Endpoint
from .errors import ApiError, require, typed
from .fields import RERANK, honoured
from .openai import FAMILY, model_name
from .routes import Route, post
from .service import Service

PATHS = "/v1/rerank", "/rerank", "/v1/reranking", "/reranking", "/v2/rerank"
MAX_DOCUMENTS = 2048  # per request


def routes(service: Service) -> list[Route]:
    """The routes of this API."""
    ranked = partial(Endpoint, service, FAMILY)(rerank, takes_body=True)
    return [post(path, ranked) for path in PATHS]


async def rerank(service: Service, call: Call) -> Response:
    """Returns the documents, best first; with `texts` instead of `documents`, in TEI's format."""
    fields = honoured(call, RERANK)
    for_tei = "documents" not in fields and "texts" in fields
    name, shown = ("texts", "return_text") if for_tei else ("documents", "return_documents")
    require(fields, "query", name)
    documents, most = _texts(name, fields[name]), _most(fields.get("top_n"))
    shows = typed(bool, fields.get(shown, False), shown)
    ids, scores = await service.rank(call, model_name(fields), fields["query"], documents)
    best = sorted(range(len(documents)), key=lambda at: -scores[at])[:most]
    if for_tei:
        return Whole([{"index": at, "score": scores[at], **({"text": documents[at]} if shows else {})} for at in best])
    results = [
        {"index": at, "relevance_score": scores[at], **({"document": {"text": documents[at]}} if shows else {})}
        for at in best
    ]
    tokens = sum(map(len, ids))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Whole({"object": "list", "model": call.notes["model"], "usage": usage, "results": results})


def _texts(name: str, documents: Any) -> list[str]:
    """Checks documents: strings, or objects with a text."""
    if not isinstance(documents, list):
        raise ApiError(400, f"{name} is of type {type(documents).__name__}; it must be a list of strings", param=name)
    if len(documents) > MAX_DOCUMENTS:
        count = f"{name} has {len(documents):,} entries; send at most {MAX_DOCUMENTS:,} at a time"
        raise ApiError(400, count, param=name)
    found = []
    for at, one in enumerate(documents):
        text = one.get("text") if isinstance(one, dict) else one
        if not isinstance(text, str):
            raise ApiError(400, f"{name}[{at}] must be a string, or an object with a text", param=name)
        found.append(text)
    return found


def _most(top: Any) -> int | None:
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
        raise ApiError(400, f"top_n is {top!r}; it must be a whole number from 1 on", param="top_n")
    return top
