"""A handler as an ASGI application: the life of a request, for any API."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from rwkv_gpu.errors import RwkvGpuError

from . import body
from .body import Receive
from .call import STREAM_HEADERS, Call, Family, Response, Scope, Send, Stream, Whole, send_error, send_whole, start_of
from .errors import ApiError, api_error
from .fields import check_serving
from .multipart import parse_form
from .service import Service
from .streams import Recording

Handler = Callable[[Service, Call], Awaitable[Response]]


class Endpoint:
    """A handler as an ASGI application: reads the body, and cancels the handler if the client disconnects."""

    def __init__(
        self, service: Service, family: Family, handler: Handler, *, takes_body: bool = False, takes_list: bool = False,
        takes_form: bool = False, may_be_empty: bool = False,
    ) -> None:  # fmt: skip
        self._service = service
        self._family = family
        self._handler = handler
        self._takes_body = takes_body or takes_list
        self._takes_list = takes_list
        self._takes_form = takes_form
        self._may_be_empty = may_be_empty

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["rwkv_gpu.call"]
        try:
            if self._takes_body:
                most = self._service.config.max_body
                call.body, call.body_bytes = await body.read_json(
                    receive, call.headers, most, is_list=self._takes_list, may_be_empty=self._may_be_empty
                )
                check_serving(call.body)
            else:
                sent = await body.read(receive, call.headers, self._service.config.max_body)
                if self._takes_form:
                    call.body = {**parse_form(sent, call.headers.get(b"content-type", b""))}
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
            if not call.detached:
                call.close()

    async def _answer(self, call: Call, receive: Receive, send: Send) -> None:
        """Runs the handler to its end, or until the client disconnects.

        It runs in the connection's task: a new task would start only after all requests that arrived together.
        """
        task = call.task = asyncio.current_task()
        assert task is not None
        watch = asyncio.create_task(_cancel_when_gone(receive, task))
        try:
            await self._respond(call, send)
        except asyncio.CancelledError:
            if not watch.done() and call.ended is None:
                raise  # the server closes the connection
            if call.ended is None:
                call.notes["outcome"] = "disconnected"
        finally:
            watch.cancel()
            while task.cancelling():
                task.uncancel()

    async def _respond(self, call: Call, send: Send) -> None:
        try:
            response = await self._handler(self._service, call)
            if isinstance(response, Stream) and call.body.get("resumable") is True:
                response = self._recorded(call, response)
        except asyncio.CancelledError:
            if call.ended is None:
                raise  # the client has disconnected
            await send_error(send, self._family, call.ended, call)
            return
        except Exception as error:  # noqa: BLE001  becomes a response, and a log line if unexpected
            await send_error(send, self._family, self._known(call, error), call)
            return
        if isinstance(response, Whole):
            await send_whole(send, response, call)
            return
        await send(start_of(200, response.media_type, call, {**STREAM_HEADERS, **response.headers}))

        async def write(piece: bytes) -> None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})

        await self._write(call, response, write)
        await send({"type": "http.response.body", "body": b""})

    async def _write(self, call: Call, response: Stream, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Writes the pieces of a stream; an error on the way becomes its last event."""
        try:
            async with aclosing(response.pieces) as pieces:
                async for piece in pieces:
                    await write(piece)
            return
        except asyncio.CancelledError:
            if call.ended is None:
                raise
            error = call.ended
        except Exception as unknown:  # noqa: BLE001  as above
            error = self._known(call, unknown)
        call.failed(error)
        await write(self._family.error_event(error, call.id))

    def _recorded(self, call: Call, response: Stream) -> Stream:
        """Makes a stream resumable: it continues after its client disconnects, and can be read again."""
        recording = self._service.streams.open(call.owner, call.stop, response.media_type)
        call.detached = True
        call.task = self._service.background(self._record(call, response, recording))
        headers = {"x-stream-id": recording.id}
        return Stream(self._service.streams.follow(recording, 0), response.media_type, headers)

    async def _record(self, call: Call, response: Stream, recording: Recording) -> None:
        async def add(piece: bytes) -> None:
            recording.add(piece)

        try:
            await self._write(call, response, add)
        finally:
            recording.end()
            call.close()

    def _known(self, call: Call, error: Exception) -> ApiError:
        known = api_error(error)
        known.rename(call.body)
        fields = {"request_id": call.id}
        if isinstance(error, RwkvGpuError) and known.status == 500:
            self._service.log.error("the request failed", extra={"fields": {**fields, "error": str(error)}})
        elif known.status == 500 and not isinstance(error, ApiError):
            self._service.log.exception("unexpected error", extra={"fields": fields})
        return known


async def _cancel_when_gone(receive: Receive, task: "asyncio.Task[None]") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()
