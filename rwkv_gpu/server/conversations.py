"""Conversation files (.rwkvchat) over HTTP, for the page: converts files to messages, and messages to files."""

from functools import partial
from typing import Any

from rwkv_gpu.errors import BadFile
from rwkv_gpu.llm.conversation_file import opened, written

from .call import Call, Response, Whole
from .endpoint import Endpoint
from .errors import ApiError, shown, typed
from .multipart import Upload
from .openai import FAMILY, model_name
from .routes import Route, post
from .service import Service

MAX_BRANCHES = 200
BINARY = b"application/octet-stream"


def routes(service: Service) -> list[Route]:
    """The routes for conversation files."""
    return [
        post("/v1/conversation-files/read", Endpoint(service, FAMILY, read, takes_form=True)),
        post("/v1/conversation-files/write", Endpoint(service, FAMILY, write, takes_body=True)),
    ]


async def read(service: Service, call: Call) -> Response:
    """The branches of the file in the part `file` of a form.

    If its state belongs to this model, requests with the `cache_salt` of the form can use it.
    """
    file = call.body.get("file")
    if not isinstance(file, Upload):
        raise ApiError(400, "file is missing; send the conversation as the part `file` of a form", param="file")
    _, llm = await service.use(call, model_name({**call.body}))
    salt = service.salt(call).get("cache_salt", "")
    try:
        found = await service.work(partial(opened, llm, file.content, salt))
    except BadFile as error:
        raise ApiError(400, str(error), param="file") from None
    return Whole({"object": "conversation", **found})


async def write(service: Service, call: Call) -> Response:
    """A file of `branches`: messages and settings of each; `current` is the index of the one in view."""
    branches, current = call.body.get("branches"), call.body.get("current", 0)
    if not isinstance(branches, list) or not 0 < len(branches) <= MAX_BRANCHES:
        raise ApiError(400, f"branches must be a list of 1 to {MAX_BRANCHES} branches", param="branches")
    for number, branch in enumerate(branches):
        _check(f"branches[{number}]", branch)
    if type(current) is not int or not 0 <= current < len(branches):
        raise ApiError(400, f"current is {shown(current)}; it must be the index of a branch", param="current")
    _, llm = await service.use(call, model_name({**call.body}))
    salt = service.salt(call).get("cache_salt", "")
    return Whole(await service.work(partial(written, llm, branches, current, salt)), media_type=BINARY)


def _check(where: str, branch: Any) -> None:
    if not isinstance(branch, dict) or not isinstance(branch.get("messages"), list) or not branch["messages"]:
        raise ApiError(400, f"{where} must be an object with messages, a list of at least one", param="branches")
    typed(dict, branch.get("settings", {}), f"{where}.settings", "branches")
