"""Management of models: load, unload, download, copy and delete, by the routes of llama-server's router and Ollama."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.hub_names import parts

from . import ollama, openai
from .admin import check_admin
from .call import Call, Json, Response, Stream, Whole, dumps
from .catalogue import ServedModel
from .endpoint import Endpoint, Handler
from .errors import ApiError, shown, typed
from .presets import create_preset
from .pulls import TICK, Pull, Pulls
from .routes import Route, delete, get, post
from .service import Service

SUCCESS = {"success": True}
FROM_ONLY = "model", "name", "from", "stream"  # fields of an /api/create that only copies a model
OF_PRESETS = "modelfile", "system", "template", "parameters", "messages", "license"


def routes(service: Service) -> list[Route]:
    """The routes that manage models. All but the one for changes need an admin key."""
    router, own = partial(Endpoint, service, openai.FAMILY), partial(Endpoint, service, ollama.FAMILY)
    return [
        post("/models", router(_managing(download), takes_body=True)),
        delete("/models", router(_managing(remove_queried))),
        get("/models/sse", router(changes)),
        post("/models/load", router(_managing(load), takes_body=True)),
        post("/models/unload", router(_managing(unload), takes_body=True)),
        post("/api/pull", own(_managing(pull), takes_body=True)),
        delete("/api/delete", own(_managing(remove), takes_body=True)),
        post("/api/copy", own(_managing(copy), takes_body=True)),
        post("/api/create", own(_managing(create), takes_body=True)),
    ]


def _managing(handler: Callable[[Service, Call], Awaitable[Response]]) -> Handler:
    """Wraps a handler so that it requires an admin key."""

    async def checked(service: Service, call: Call) -> Response:
        check_admin(service.config, call)
        if service.draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        return await handler(service, call)

    return checked


def _name(call: Call, *fields: str) -> str:
    """The name of a model in the body: the first of these fields that is present."""
    found = next((call.body[field] for field in fields if field in call.body), None)
    if not isinstance(found, str) or not found.strip():
        given = "missing" if found is None else shown(found) if found else "empty"
        raise ApiError(400, f"{fields[0]} is {given}; it must be the name of a model", param=fields[0])
    return found.strip()


def _pulls(service: Service) -> Pulls:
    if service.pulls is None:
        raise ApiError(501, "this server has no folder of models", code="not_supported")
    return service.pulls


async def load(service: Service, call: Call) -> Response:
    """Begins to load a model; GET /models shows its state."""
    model = service.catalogue.find(_name(call, "model"), strict=True)
    if model.state in ("ready", "loading"):
        raise ApiError(400, f"the model {model.name} is {model.state} already", param="model")
    service.background(service.catalogue.preloaded(model))
    return Whole(SUCCESS)


async def unload(service: Service, call: Call) -> Response:
    """Unloads a model as soon as no request uses it; cancels its download if one runs."""
    name = _name(call, "model")
    running = None if service.pulls is None else service.pulls.find(name)
    if running is not None:
        running.stop()
        return Whole(SUCCESS)
    model = service.catalogue.find(name, strict=True)
    if model.state not in ("ready", "loading"):
        raise ApiError(400, f"the model {model.name} is not loaded", param="model")
    model.keep_alive = 0.0  # unloads a model in use after its last request, also one that is loading
    await service.catalogue.unload(model)
    return Whole(SUCCESS)


async def download(service: Service, call: Call) -> Response:
    """Begins a download that continues without a connection; GET /models shows its progress."""
    pulls = _pulls(service)
    running = await pulls.start(_name(call, "model"))
    running.kept = True
    return Whole(SUCCESS)


async def changes(service: Service, call: Call) -> Response:
    """Streams the states of all models, then their changes and the progress of downloads, as llama-server's router."""
    call.release_time_limit()
    return Stream(_changes(service))


async def _changes(service: Service) -> AsyncGenerator[bytes]:
    """Yields events until the server shuts down."""
    before: dict[str, Json] = {}
    yield b": models\n\n"
    while not service.draining:
        pulls = [] if service.pulls is None else service.pulls.running
        states = {model.name: openai.status_of(model) for model in service.catalogue.models}
        now: dict[str, Json] = {pull.name: openai.downloading(pull)["status"] for pull in pulls} | states
        for name, was in before.items():
            if was["value"] == "downloading" and name not in {pull.name for pull in pulls}:
                service.catalogue.refresh()
                kind = "download_finished" if service.catalogue.has(name) else "download_failed"
                yield openai.event({"model": name, "event": kind})
            elif name not in now:
                yield openai.event({"model": name, "event": "model_remove"})
        for name, status in now.items():
            if status == before.get(name):
                continue
            if status["value"] == "downloading":
                yield openai.event({"model": name, "event": "download_progress", "data": status["progress"]})
            else:
                data = {"status": status["value"], **{key: value for key, value in status.items() if key != "value"}}
                yield openai.event({"model": name, "event": "model_status", "data": data})
        before = now
        await asyncio.sleep(TICK)


async def pull(service: Service, call: Call) -> Response:
    """Downloads a model, with progress as lines of a stream. The download stops if its client disconnects."""
    pulls, stream = _pulls(service), typed(bool, call.body.get("stream", True), "stream")
    running = await pulls.start(_name(call, "model", "name"))
    call.release_time_limit()
    if stream:
        return Stream(_lines(service, pulls, running), ollama.NDJSON)
    async with aclosing(pulls.follow(running)) as ticks:
        async for _ in ticks:
            pass
    return Whole({"status": "success"})


async def _lines(service: Service, pulls: Pulls, running: Pull) -> AsyncGenerator[bytes]:
    """Yields the progress as lines in Ollama's format."""
    yield dumps({"status": "pulling manifest"}) + b"\n"
    last: dict[str, int] = {}
    async with aclosing(pulls.follow(running)) as ticks:
        async for _ in ticks:
            for path, done in [*running.done.items()]:
                if last.get(path) != done:
                    last[path] = done
                    yield dumps(_progress(running, path, done)) + b"\n"
    service.catalogue.refresh()
    yield dumps({"status": "success"}) + b"\n"


def _progress(running: Pull, path: str, done: int) -> Json:
    file = running.files[path]
    digest = {} if file.sha256 is None else {"digest": f"sha256:{file.sha256}"}
    return {"status": f"pulling {path}", **digest, "total": file.nbytes, "completed": done}


async def remove(service: Service, call: Call) -> Response:
    """Deletes a downloaded model."""
    await _remove(service, _name(call, "model", "name"))
    return Whole({})


async def remove_queried(service: Service, call: Call) -> Response:
    """Deletes the downloaded model of `?model=`."""
    name = call.query.get("model", "")
    if not name:
        raise ApiError(400, "model is missing; name it as in DELETE /models?model=NAME", param="model")
    await _remove(service, name)
    return Whole(SUCCESS)


async def _remove(service: Service, name: str) -> None:
    store, catalogue = _pulls(service).hub.store, service.catalogue
    try:
        model: ServedModel | None = catalogue.find(name, strict=True)
    except ApiError:
        model = None  # not a known model, but its file may be a partial download
    if model is not None:
        if not Path(model.path).is_relative_to(store.folder):
            why = f"{model.name} is not a downloaded model; whoever runs the server can delete its file"
            raise ApiError(403, why, param="model")
        if model.leases or model.state == "loading":
            raise ApiError(409, f"the model {model.name} is in use; unload it first", param="model")
        await catalogue.unload(model)
        name = store.name_of(Path(model.path))
    elif not store.matching(name):
        raise ApiError(404, f"there is no model {name[:100]!r} here", code="model_not_found", param="model")
    await service.work(lambda: store.remove(name))
    catalogue.refresh()


async def copy(service: Service, call: Call) -> Response:
    """Gives a model another name."""
    await _copy(service, _name(call, "source"), _name(call, "destination"))
    return Whole({})


async def create(service: Service, call: Call) -> Response:
    """Creates a model from another one, under its own name: a copy, or a preset with settings of its own."""
    more = [field for field in call.body if field not in FROM_ONLY and call.body[field] not in (None, "", [], {})]
    for field in more:
        if field not in OF_PRESETS:
            why = f"{field} is not supported; a model is created from one that is here: name it by `from`"
            raise ApiError(400, why, param=field)
    if more:
        await create_preset(service, call, _name(call, "model", "name"), _pulls(service).hub.store)
    else:
        await _copy(service, _name(call, "from"), _name(call, "model", "name"))
    last = {"status": "success"}
    if call.body.get("stream", True) is False:
        return Whole(last)

    async def lines() -> AsyncGenerator[bytes]:
        yield dumps(last) + b"\n"

    return Stream(lines(), ollama.NDJSON)


async def _copy(service: Service, source: str, name: str) -> None:
    store, catalogue = _pulls(service).hub.store, service.catalogue
    model = catalogue.find(source, strict=True)
    if catalogue.has(name):
        raise BadInput(f"there is a model {name[:100]} already; delete it, or give another name")
    path = Path(model.path)
    if not path.is_file():
        raise ApiError(400, f"{model.name} is in no file, and cannot be copied")
    await service.work(lambda: store.copy([path.with_name(part) for part in parts(path.name)], name))
    catalogue.refresh()
