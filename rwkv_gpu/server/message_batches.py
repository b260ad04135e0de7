"""Anthropic's batches of messages."""

from datetime import UTC, datetime
from functools import partial

from rwkv_gpu.llm.unique import unique

from .anthropic import FAMILY, messages
from .batch_jobs import WINDOW, Batch, Line, Outcome
from .batch_lines import answer_line, described, lines_of, named
from .batches import page
from .call import Call, Json, Response, Whole
from .endpoint import Endpoint
from .errors import ApiError
from .routes import Route, delete, get, post
from .service import Service
from .stored_files import File

PREFIX = "msgbatch_"  # prefix of ids


def routes(service: Service) -> list[Route]:
    """The routes of this API."""
    endpoint = partial(Endpoint, service, FAMILY)
    return [
        post("/v1/messages/batches", endpoint(create, takes_body=True)),
        get("/v1/messages/batches", endpoint(listed)),
        get("/v1/messages/batches/{id}", endpoint(partial(described, PREFIX, shape))),
        get("/v1/messages/batches/{id}/results", endpoint(results)),
        post("/v1/messages/batches/{id}/cancel", endpoint(cancel)),
        delete("/v1/messages/batches/{id}", endpoint(remove)),
    ]


async def create(service: Service, call: Call) -> Response:
    """Starts a batch."""
    requests = call.body.get("requests")
    if not isinstance(requests, list):
        raise ApiError(400, "requests must be a list of objects with custom_id and params", param="requests")
    call.ignored += sorted(name[:80] for name in call.body.keys() - {"requests"})
    id = PREFIX + unique(24)
    output = File(call.owner, f"{id}_results.jsonl", "batch_results", listed=False)
    started = Batch(id, call.owner, {}, lines_of(requests, "params"), _write, (output,))
    service.batches.start(started, partial(answer_line, service, call.owner, FAMILY, messages))
    return Whole(shape(started))


def _write(batch: Batch, line: Line, outcome: Outcome) -> tuple[File, Json]:
    result: Json = {"type": outcome.kind}
    if outcome.kind == "succeeded":
        result["message"] = outcome.body["body"]
    elif outcome.kind == "errored":
        result["error"] = outcome.body["body"]
    return batch.files[0], {"custom_id": line.custom_id, "result": result}


async def listed(service: Service, call: Call) -> Response:
    """Lists batches."""
    return Whole(page([shape(one) for one in service.batches.listed(call.owner, PREFIX)], call))


async def results(service: Service, call: Call) -> Response:
    """The results of an ended batch, as lines of JSON in the order of their completion."""
    found = named(service, call, PREFIX)
    if found.ended_at is None:
        raise ApiError(409, "the batch runs; its results can be read once processing_status is 'ended'")
    if found.fault is not None:
        raise found.fault
    return Whole(found.files[0].content, media_type=b"application/x-jsonl")


async def cancel(service: Service, call: Call) -> Response:
    """Ends a batch. Completed lines keep their results."""
    found = named(service, call, PREFIX)
    service.batches.stop(found)
    return Whole(shape(found))


async def remove(service: Service, call: Call) -> Response:
    """Removes a batch that has ended, and its results."""
    found = named(service, call, PREFIX)
    if found.ended_at is None:
        raise ApiError(409, "the batch runs; cancel it before you delete it")
    service.batches.delete(found)
    return Whole({"id": found.id, "type": "message_batch_deleted"})


def shape(found: Batch) -> Json:
    """A batch in Anthropic's format."""
    running = found.ended_at is None
    state = "ended" if not running else "in_progress" if found.cancelled_at is None else "canceling"
    counts = {kind: found.counts[kind] for kind in ("succeeded", "errored", "canceled", "expired")}
    url = None if running else f"/v1/messages/batches/{found.id}/results"
    return {
        "id": found.id, "type": "message_batch", "processing_status": state,
        "request_counts": {"processing": len(found.lines), **counts},
        "created_at": _time(found.created), "expires_at": _time(found.created + WINDOW),
        "ended_at": _time(found.ended_at), "cancel_initiated_at": _time(found.cancelled_at),
        "archived_at": None, "results_url": url,
    }  # fmt: skip


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
