"""A handler as an ASGI application: the life of a request, whatever API it came by."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from . import body
from .body import Receive
from .call import STREAM_HEADERS, Call, Family, Response, Scope, Send, Whole, send_error, send_whole, start_of
from .errors import ApiError, api_error
from .service import Service

Handler = Callable[[Service, Call], Awaitable[Response]]


class Endpoint:
    """A handler as an ASGI application: reads the body, and cancels the handler when the client goes away."""

    def __init__(self, service: Service, family: Family, handler: Handler, *, takes_body: bool = False) -> None:
        self._service = service
        self._family = family
        self._handler = handler
        self._takes_body = takes_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["rwkv_gpu.call"]
        try:
            if self._takes_body:
                call.body = await body.read_json(receive, call.headers, self._service.config.max_body)
            else:
                await body.read(receive, call.headers, self._service.config.max_body)
        except body.Disconnected:
            call.notes["outcome"] = "disconnected"
            return
        except ApiError as error:
            await send_error(send, self._family, error, call)
            return
        self._service.follow(call)
        try:
            await self._answer(call, receive, send)
        finally:
            call.close()

    async def _answer(self, call: Call, receive: Receive, send: Send) -> None:
        """Runs the handler to its end, or until the client goes away."""
        work = call.task = asyncio.create_task(self._respond(call, send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                call.notes["outcome"] = "disconnected"
        finally:
            for task in (work, gone):
                task.cancel()
            with suppress(asyncio.CancelledError):
                await work

    async def _respond(self, call: Call, send: Send) -> None:
        begun = False
        try:
            response = await self._handler(self._service, call)
            if isinstance(response, Whole):
                await send_whole(send, response, call)
                return
            await send(start_of(200, response.media_type, call, STREAM_HEADERS))
            begun = True
            async for piece in response.pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except asyncio.CancelledError:
            if call.ended is None:
                raise  # the client is gone
            error = call.ended
        except Exception as unknown:  # noqa: BLE001  it becomes a response, and a log line where nobody expected it
            error = self._known(call, unknown)
        else:
            await send({"type": "http.response.body", "body": b""})
            return
        if not begun:
            await send_error(send, self._family, error, call)
            return
        call.notes |= {"outcome": "error", "error": error.message}
        await send({"type": "http.response.body", "body": self._family.error_event(error, call.id)})

    def _known(self, call: Call, error: Exception) -> ApiError:
        known = api_error(error)
        if known.status == 500 and not isinstance(error, ApiError):
            self._service.log.exception("unexpected error", extra={"fields": {"request_id": call.id}})
        return known


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
