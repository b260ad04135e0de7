"""Routes for operators: health, configuration, streams, running requests and metrics."""

import time
from functools import partial

from rwkv_gpu.engine.cache.prefix_index import Salt
from rwkv_gpu.errors import BadTemplate, is_count
from rwkv_gpu.llm.chat_format import ChatFormat
from rwkv_gpu.llm.completion import sampling
from rwkv_gpu.llm.images import MARKER, media_of
from rwkv_gpu.llm.model import LLM
from rwkv_gpu.llm.text_completion import DEFAULTS

from .call import Call, Response, Stream, Whole
from .catalogue import ServedModel
from .endpoint import Endpoint
from .errors import ApiError, shown
from .llama_server import settings_of
from .openai import FAMILY, model_name
from .routes import Route, delete, get, post
from .service import Service
from .slots import act, file_name


def routes(service: Service) -> list[Route]:
    """The routes for operators."""
    endpoint = partial(Endpoint, service, FAMILY)
    return [
        get("/health", endpoint(health)),
        get("/v1/health", endpoint(health)),
        get("/props", endpoint(props)),
        get("/slots", endpoint(slots)),
        post("/slots/{id}", endpoint(slot_action, takes_body=True, may_be_empty=True)),
        get("/metrics", endpoint(metrics)),
        get("/v1/streams/{id}", endpoint(stream)),
        delete("/v1/streams/{id}", endpoint(stop_stream)),
    ]


async def health(service: Service, _: Call) -> Response:
    """200 while requests are served; 503 while the first model loads, after it failed, or during shutdown."""
    first = service.catalogue.first
    state = "ready" if first is None else first.state
    status = "draining" if service.draining else {"ready": "ok", "unloaded": "ok"}.get(state, state)
    models = [_state(model) for model in service.catalogue.models]
    return Whole({"status": status, "models": models}, 200 if status == "ok" else 503)


def _state(model: ServedModel) -> dict[str, object]:
    state: dict[str, object] = {"id": model.name, "state": model.state}
    if model.aliases:
        state["aliases"] = [*model.aliases]
    if model.state == "loading":
        state |= {"loaded_bytes": model.done, "total_bytes": model.total}
    return state


async def props(service: Service, call: Call) -> Response:
    """Describes the first model, or the one of `?model=`, and how it was loaded."""
    model = service.catalogue.find(call.query.get("model"))
    found: dict[str, object] = {
        "build_info": f"rwkv-gpu {service.config.version}",
        "model_alias": model.name,
        "aliases": [*model.aliases],
        "model_path": model.path,
        "state": model.state,
        "is_sleeping": model.state == "unloaded",
    }
    llm = model.llm
    if llm is not None:
        info, chat_format, media = llm.info, chat_format_of(llm), media_of(llm.media_input)
        found |= {
            "total_slots": info.sequences,
            "chat_template": None if chat_format is None else chat_format.template.source,
            # Without a limit, the training length is reported, because clients would read 0 as no room.
            "default_generation_settings": {
                "n_ctx": info.context or info.trained_context or 0,
                "params": settings_of(sampling(None, llm.default_settings(DEFAULTS), {})),
            },
            "modalities": {"vision": "image" in media, "audio": "audio" in media},
            "media_marker": MARKER,
            "model": {
                "name": info.name, "architecture": info.architecture, "parameters": info.parameters,
                "format": info.format, "bytes": info.nbytes, "vocabulary": info.vocabulary, "context": info.context,
                "trained_context": info.trained_context, "device": info.device, "matrix_units": info.matrix_units,
                "can_think": chat_format is not None and chat_format.can_think,
            },
        }  # fmt: skip
    return Whole(found)


def chat_format_of(llm: LLM) -> ChatFormat | None:
    """A model's chat format; None for an encoder, or if its file has no template."""
    if llm.info.encoder:
        return None
    try:
        return llm.chat_format
    except BadTemplate:
        return None


async def stream(service: Service, call: Call) -> Response:
    """Continues a resumable stream after the event in `Last-Event-ID` or `?after=`."""
    recording = service.streams.find(call.path_params["id"], call.owner)
    after = call.headers.get(b"last-event-id", b"").decode("latin-1") or call.query.get("after", "0")
    if not after.isdecimal() or len(after) > 18:
        raise ApiError(400, f"Last-Event-ID is {after[:40]!r}; it must be the number of an event")
    headers = {"x-stream-id": recording.id}
    return Stream(service.streams.follow(recording, int(after)), recording.media_type, headers)


async def stop_stream(service: Service, call: Call) -> Response:
    """Ends a resumable stream."""
    recording = service.streams.find(call.path_params["id"], call.owner)
    recording.stop()
    return Whole({"id": recording.id, "object": "stream.stopped"})


async def slots(service: Service, call: Call) -> Response:
    """Lists waiting and running requests, without their text, then the idle slots of the loaded models.

    With `?fail_on_no_slot=1`, the status is 503 if no slot is idle.
    """
    now, found = time.monotonic(), []
    for number, asked in enumerate(service.asked):
        running = service.running.get(asked)
        slot = {"id": number, "id_task": asked.id, "is_processing": running is not None}
        slot |= {"model": asked.notes.get("model"), "seconds": round(now - asked.began, 3), "state": "queued"}
        if "prompt_tokens" in asked.notes:
            slot["n_prompt_tokens"] = asked.notes["prompt_tokens"]
        if running is not None:
            slot["state"] = "generating" if running.generated else "prompt"
            slot |= {"n_decoded": running.generated, "answers": len(running.answers.each)}
        found.append(slot)
    for model in service.catalogue.models:
        if model.llm is not None:
            used = sum(1 for slot in found if slot["is_processing"] and slot["model"] == model.name)
            for _idle in range(used, model.llm.info.sequences):
                found.append({"id": len(found), "is_processing": False, "model": model.name, "state": "idle"})
    if call.query.get("fail_on_no_slot") and all(slot["state"] != "idle" for slot in found):
        raise ApiError(503, "no slot is idle", code="no_slot", retry_after=1)
    return Whole(found)


async def slot_action(service: Service, call: Call) -> Response:
    """Saves, restores or erases the state of a slot, by `?action=`. A slot belongs to the key that used it last."""
    action, saved, number = call.query.get("action"), service.saved_slots, call.path_params["id"]
    if saved is None:
        raise ApiError(
            501, "slots are not saved here; `rwkv-gpu serve --slot-save-path` allows it", code="not_supported"
        )
    if action not in ("save", "restore", "erase"):
        raise ApiError(400, f"action is {shown(action)}; it must be save, restore or erase", param="action")
    if not is_count(number):
        raise ApiError(400, f"{number[:40]!r} is not the number of a slot", param="id_slot")
    name = "" if action == "erase" else file_name(call.body)
    served, llm = await service.use(call, model_name({**call.body}))
    every = service.slots(served)
    place = every.take(int(number))
    slot, salt = every.each[place], Salt.of(service.salt(call).get("cache_salt", ""))
    if slot.users:
        raise ApiError(409, f"slot {place} is in use; wait until its request has ended")
    if action != "restore" and slot.salt.number != salt.number:
        raise ApiError(403, f"slot {place} was used with another API key or cache_salt last")
    if action != "restore" and not slot.ids:
        raise ApiError(400, f"slot {place} is empty")
    found = await service.work(lambda: act(saved, llm, slot, action, name, salt))
    return Whole({"id_slot": place, **found})


async def metrics(service: Service, call: Call) -> Response:
    """All metrics, in Prometheus format."""
    text, media_type = service.metrics.page(call.headers.get(b"accept", b"").decode("latin-1"))
    headers = {"process-start-time-unix": str(service.metrics.started)}
    return Whole(text, media_type=media_type, headers=headers)
