"""OpenAI's files and batches."""

from functools import partial
from typing import Any

from rwkv_gpu.errors import is_count
from rwkv_gpu.llm.unique import unique

from . import body, openai, responses
from .batch_jobs import WINDOW, Batch, Line, Outcome
from .batch_lines import answer_line, described, lines_of, named
from .call import Call, Json, Response, Whole
from .endpoint import Endpoint, Handler
from .errors import ApiError
from .multipart import Upload
from .openai import FAMILY
from .routes import Route, delete, get, post
from .service import Service
from .stored_files import KEPT, File

TARGETS: dict[str, Handler] = {
    "/v1/chat/completions": openai.chat_completions,
    "/v1/completions": openai.completions,
    "/v1/embeddings": openai.embeddings,
    "/v1/responses": responses.responses,
}
MAX_LISTED = 100
PREFIX = "batch_"  # prefix of ids


def routes(service: Service) -> list[Route]:
    """The routes of this API."""
    endpoint = partial(Endpoint, service, FAMILY)
    return [
        post("/v1/files", endpoint(upload, takes_form=True)),
        get("/v1/files", endpoint(files)),
        get("/v1/files/{id}", endpoint(file)),
        get("/v1/files/{id}/content", endpoint(content)),
        delete("/v1/files/{id}", endpoint(remove)),
        post("/v1/batches", endpoint(create, takes_body=True)),
        get("/v1/batches", endpoint(batches)),
        get("/v1/batches/{id}", endpoint(partial(described, PREFIX, shape))),
        post("/v1/batches/{id}/cancel", endpoint(cancel)),
    ]


async def upload(service: Service, call: Call) -> Response:
    """Stores a file."""
    sent = call.body.get("file")
    if not isinstance(sent, Upload):
        raise ApiError(400, "file is missing; send it as a part of the form with a filename", param="file")
    if call.body.get("purpose") != "batch":
        raise ApiError(400, "purpose must be 'batch'; files are used for batches only", param="purpose")
    call.ignored += sorted(name[:80] for name in call.body.keys() - {"file", "purpose"})
    return Whole(file_shape(service.files.add(File(call.owner, sent.filename[:255], "batch"), sent.content)))


async def files(service: Service, call: Call) -> Response:
    """Lists files."""
    purpose = call.query.get("purpose")
    found = [one for one in service.files.listed(call.owner) if purpose in (None, one.purpose)]
    return Whole({"object": "list", **page([file_shape(one) for one in found], call)})


async def file(service: Service, call: Call) -> Response:
    """Describes a file."""
    return Whole(file_shape(service.files.get(call.path_params["id"], call.owner)))


async def content(service: Service, call: Call) -> Response:
    """The bytes of a file."""
    found = service.files.get(call.path_params["id"], call.owner)
    headers = {"x-content-type-options": "nosniff"}
    return Whole(found.content, media_type=b"application/octet-stream", headers=headers)


async def remove(service: Service, call: Call) -> Response:
    """Removes a file."""
    found = service.files.get(call.path_params["id"], call.owner)
    service.files.delete(found)
    return Whole({"id": found.id, "object": "file", "deleted": True})


def file_shape(found: File) -> Json:
    """A file in OpenAI's format."""
    data: Json = {"id": found.id, "object": "file", "bytes": found.nbytes, "created_at": int(found.created)}
    data |= {"expires_at": int(found.created) + KEPT, "filename": found.filename, "purpose": found.purpose}
    return {**data, "status": "processed"}


def page(found: list[Json], call: Call) -> Json:
    """The part of a list that `after` and `limit` select."""
    query, ids = call.query, [one["id"] for one in found]
    limit, after = query.get("limit", "20"), query.get("after", query.get("after_id"))
    if not is_count(limit) or not 1 <= int(limit) <= MAX_LISTED:
        raise ApiError(400, f"limit must be a number from 1 to {MAX_LISTED}", param="limit")
    if after is not None and after not in ids:
        raise ApiError(400, f"after is {after[:80]!r}, which is not in the list", param="after")
    rest = found[ids.index(after) + 1 :] if after is not None else found
    data = rest[: int(limit)]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"data": data, **ends, "has_more": len(rest) > len(data)}


async def create(service: Service, call: Call) -> Response:
    """Starts a batch of the requests in a file."""
    given = {name: call.body.get(name) for name in ("endpoint", "input_file_id", "completion_window", "metadata")}
    call.ignored += sorted(name[:80] for name in call.body.keys() - given.keys())
    target, metadata = given["endpoint"], given["metadata"]
    if not (isinstance(target, str) and target in TARGETS):
        raise ApiError(400, f"endpoint must be one of {', '.join(TARGETS)}", param="endpoint")
    if given["completion_window"] != "24h":
        raise ApiError(400, "completion_window must be '24h'", param="completion_window")
    if not (metadata is None or isinstance(metadata, dict)):
        raise ApiError(400, "metadata must be an object", param="metadata")
    if not isinstance(given["input_file_id"], str):
        raise ApiError(400, "input_file_id must be the id of a file", param="input_file_id")
    source = service.files.get(given["input_file_id"], call.owner, "input_file_id")
    lines = await service.work(lambda: _lines(source.content, target))
    id = PREFIX + unique()
    made = [File(call.owner, f"{id}_{kind}.jsonl", "batch_output", listed=False) for kind in ("output", "error")]
    started = Batch(id, call.owner, given, lines, _write, (*made,))
    service.batches.start(started, partial(answer_line, service, call.owner, FAMILY, TARGETS[target]))
    return Whole(shape(started))


def _lines(text: bytes, target: str) -> dict[str, Line]:
    requests: list[Any] = []
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            request = body.parse(line)
        except ApiError as error:
            raise ApiError(400, f"line {number} of the file: {error.message}", param="input_file_id") from None
        if (request.get("method"), request.get("url")) != ("POST", target):
            why = f"line {number} of the file must have the method POST and the url {target}"
            raise ApiError(400, why, param="input_file_id")
        requests.append(request)
    return lines_of(requests, "body")


def _write(batch: Batch, line: Line, outcome: Outcome) -> tuple[File, Json] | None:
    """Writes the result of a line to its file. Cancelled lines have no result."""
    if outcome.kind == "canceled":
        return None
    data: Json = {"id": f"batch_req_{unique()}", "custom_id": line.custom_id, "response": None, "error": None}
    if outcome.kind == "expired":
        data["error"] = {"code": "batch_expired", "message": "the batch took longer than its completion window"}
    else:
        data["response"] = {"status_code": outcome.status, **outcome.body}
    output, errors = batch.files
    return (output if outcome.kind == "succeeded" else errors), data


async def batches(service: Service, call: Call) -> Response:
    """Lists batches."""
    found = [shape(one) for one in service.batches.listed(call.owner, PREFIX)]
    return Whole({"object": "list", **page(found, call)})


async def cancel(service: Service, call: Call) -> Response:
    """Ends a batch. Completed lines keep their results."""
    found = named(service, call, PREFIX)
    if found.ended_at is not None:
        raise ApiError(409, f"the batch is {status(found)} already")
    service.batches.stop(found)
    return Whole(shape(found))


def status(found: Batch) -> str:
    """The state of a batch by OpenAI's names."""
    if found.ended_at is None:
        return "in_progress" if found.cancelled_at is None else "cancelling"
    if found.fault is not None:
        return "failed"
    if found.cancelled_at is None:
        return "completed"
    return "cancelled" if found.unrun == "canceled" else "expired"


def shape(found: Batch) -> Json:
    """A batch in OpenAI's format."""
    now, ended = status(found), found.ended_at
    output, errors = (one.id if ended and one.nbytes else None for one in found.files)
    times: Json = {f"{name}_at": None for name in ("finalizing", "completed", "failed", "expired", "cancelled")}
    times |= {"cancelling_at": found.cancelled_at and int(found.cancelled_at)}
    if ended is not None:
        times[f"{now}_at"] = int(ended)
    fault = found.fault and {"object": "list", "data": [{"code": found.fault.code, "message": found.fault.message}]}
    return {
        "id": found.id, "object": "batch", **found.about, "errors": fault, "status": now,
        "output_file_id": output, "error_file_id": errors,
        "created_at": int(found.created), "in_progress_at": int(found.created),
        "expires_at": int(found.created + WINDOW), **times,
        "request_counts": {
            "total": found.total, "completed": found.counts["succeeded"],
            "failed": found.counts["errored"] + found.counts["expired"],
        },
    }  # fmt: skip
