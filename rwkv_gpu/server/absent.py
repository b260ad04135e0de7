"""Routes of other servers that are not supported here: each responds with the reason and an alternative."""

from functools import partial

from .call import Call, Response
from .endpoint import Endpoint
from .errors import ApiError
from .openai import FAMILY
from .routes import Route
from .service import Service

METHODS = ("GET", "POST", "DELETE")
ABSENT = {
    "pairs of texts are not scored; rank documents by /v1/rerank": ("/v1/score",),
    "speech is not supported; audio is transcribed by /v1/audio/transcriptions": ("/v1/audio/{rest:path}",),
    "images are not supported": ("/v1/images/{rest:path}",),
    "videos are not supported": ("/v1/videos", "/v1/videos/{rest:path}"),
    "adapters are loaded with the model, by `rwkv-gpu serve --lora`; the field lora of a request scales them by name": (
        "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
    ),
    "fine-tuning is not supported": ("/v1/fine_tuning/{rest:path}",),
    "there is no moderation model": ("/v1/moderations",),
    "a running answer cannot be changed; limit its reasoning by reasoning_budget_tokens": (
        "/v1/chat/completions/control",
    ),
    "uploads in parts are not supported; send the file to /v1/files": ("/v1/uploads", "/v1/uploads/{rest:path}"),
    "conversations are not stored; use /v1/chat/completions": (
        "/v1/assistants", "/v1/threads", "/v1/threads/{rest:path}", "/v1/conversations", "/v1/vector_stores",
    ),
    "there is no realtime connection; use streams": ("/v1/realtime", "/v1/realtime/{rest:path}"),
}  # fmt: skip


def routes(service: Service) -> list[Route]:
    """The routes that respond with a refusal."""
    return [
        Route(path, METHODS, Endpoint(service, FAMILY, partial(_absent, why)))
        for why, paths in ABSENT.items()
        for path in paths
    ]


async def _absent(why: str, _service: Service, _call: Call) -> Response:
    raise ApiError(501, why, code="not_supported")
