"""The lines of batches as requests of the server's own routes."""

import asyncio
from collections.abc import Callable, Sequence

from rwkv_gpu.llm.unique import unique

from .batch_jobs import MAX_LINES, Batch, Line, Outcome
from .call import Call, Family, Json, Response, Whole
from .endpoint import Handler
from .errors import ApiError, api_error, shown
from .fields import check_serving
from .service import Service

LONGEST_ID = 256  # characters of a custom_id


def lines_of(requests: Sequence[object], field: str) -> dict[str, Line]:
    """The checked lines by custom id. `field` names the body of a request in a line."""
    if not requests:
        raise ApiError(400, "the batch has no requests; give at least one")
    if len(requests) > MAX_LINES:
        raise ApiError(400, f"the batch has more than {MAX_LINES:,} requests")
    lines: dict[str, Line] = {}
    for number, request in enumerate(requests, 1):
        if not isinstance(request, dict) or not isinstance(request.get(field), dict):
            raise ApiError(400, f"request {number} of the batch has no object {field!r}", param=field)
        id = request.get("custom_id")
        if not (isinstance(id, str) and 0 < len(id) <= LONGEST_ID):
            why = f"custom_id of request {number} is {shown(id)}; it must have 1 to {LONGEST_ID} characters"
            raise ApiError(400, why, param="custom_id")
        if id in lines:
            raise ApiError(400, f"request {number} repeats custom_id {id[:80]!r}; each must differ", param="custom_id")
        lines[id] = Line(id, request[field])
    return lines


def named(service: Service, call: Call, prefix: str) -> Batch:
    """The batch that a request names."""
    return service.batches.get(call.path_params["id"], call.owner, prefix)


async def described(prefix: str, shape: Callable[[Batch], Json], service: Service, call: Call) -> Response:
    """Describes a batch."""
    return Whole(shape(named(service, call, prefix)))


async def answer_line(service: Service, owner: bytes, family: Family, handler: Handler, line: Line) -> Outcome:
    """Answers a line by a route's handler, for the key that made the batch."""
    scope = {"type": "http", "method": "POST", "path": "", "query_string": b"", "headers": []}
    call = Call(scope, f"req_{unique()}", {}, body=line.body, owner=owner, background=True)
    call.body_bytes = service.config.max_body  # prepared on a thread
    task = call.task = asyncio.current_task()
    service.follow(call)
    try:
        if line.body.get("stream"):
            raise ApiError(400, "stream is true; lines of a batch are not streamed", param="stream")
        check_serving(line.body)
        response = await handler(service, call)
        assert isinstance(response, Whole)
        body = response.content
        return Outcome("succeeded", response.status, {"request_id": call.id, "body": body})
    except asyncio.CancelledError:
        if call.ended is None or task is None:
            raise
        task.uncancel()
        return _failed(family, call.ended, call)
    except Exception as error:
        known = api_error(error)
        if known.status == 500 and known is not error:
            service.log.exception("unexpected error", extra={"fields": {"request_id": call.id}})
        return _failed(family, known, call)
    finally:
        call.close()


def _failed(family: Family, error: ApiError, call: Call) -> Outcome:
    body: Json = family.error(error, call.id)
    return Outcome("errored", error.status, {"request_id": call.id, "body": body})
