"""Ollama's API: chats, completions, embeddings and lists of models. Streams are lines of JSON."""

import json
import math
import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rwkv_gpu.engine.sampling_params import SPANS
from rwkv_gpu.llm.chat_completion import Reply
from rwkv_gpu.llm.completion import Completion, Event
from rwkv_gpu.llm.images import media_of
from rwkv_gpu.llm.model import LLM
from rwkv_gpu.llm.modelfile import OPTIONS, parameters
from rwkv_gpu.llm.preset import Preset
from rwkv_gpu.llm.replies import Prepared

from .call import Call, Family, Json, Response, Stream, Whole, dumps
from .catalogue import ServedModel
from .chunks import chunks_of
from .endpoint import Endpoint
from .errors import ApiError, shown, typed
from .fields import OLLAMA_CHAT, OLLAMA_EMBED, OLLAMA_GENERATE, honoured
from .openai import begun, model_name
from .operations import chat_format_of
from .reasoning import with_effort
from .routes import Route, get, post
from .service import Running, Service

NDJSON = b"application/x-ndjson"
MAX_LOGPROBS = 20  # alternatives of a token
LONGEST = 2048  # tokens of an answer to a raw prompt if num_predict is left out
OF_MESSAGES = {"tool_calls": "tool_calls", "tool_name": "name", "thinking": "reasoning_content"}
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
STEP = re.compile(rf"({NUMBER})(ns|us|µs|ms|s|m|h)")
DURATION = re.compile(rf"[-+]?(?:{NUMBER}|(?:{STEP.pattern})+)")
NOT_HERE = ("push", "blobs/{digest:path}")
FOREVER = 1e9  # seconds; a longer keep-alive never ends
ENDLESS = datetime(9999, 12, 31, tzinfo=UTC)  # the unload time reported for a model that stays loaded


def error_body(error: ApiError, _request_id: str) -> Json:
    """An error in Ollama's format."""
    return {"error": error.message}


FAMILY = Family(error_body, lambda error, request_id: dumps(error_body(error, request_id)) + b"\n")


def routes(service: Service) -> list[Route]:
    """The routes of this API."""
    endpoint = partial(Endpoint, service, FAMILY)
    return [
        post("/api/chat", endpoint(chat, takes_body=True)),
        post("/api/generate", endpoint(generate, takes_body=True)),
        post("/api/embed", endpoint(embed, takes_body=True)),
        post("/api/embeddings", endpoint(embeddings, takes_body=True)),
        post("/api/show", endpoint(show, takes_body=True)),
        get("/api/tags", endpoint(tags)),
        get("/api/ps", endpoint(ps)),
        get("/api/version", endpoint(version)),
        *(post(f"/api/{name}", endpoint(not_here)) for name in NOT_HERE),
    ]


async def not_here(_service: Service, call: Call) -> Response:
    """Refuses requests to publish models, and to use files that are not from the hub."""
    path = call.scope["path"][:60]
    raise ApiError(501, f"{path} is not supported: models come from the hub, by /api/pull, or from --models-dir")


async def version(service: Service, _: Call) -> Response:
    """The version of this server."""
    return Whole({"version": service.config.version})


async def tags(service: Service, _: Call) -> Response:
    """Lists the available models."""
    return Whole({"models": [_described(model) for model in service.catalogue.models]})


async def ps(service: Service, _: Call) -> Response:
    """Lists the loaded models."""
    found = []
    for model in service.catalogue.models:
        if model.llm is not None:
            info = model.llm.info
            size = 0 if info.device == "cpu" else info.nbytes
            ends = time.time() + service.catalogue.seconds_left(model)
            until = datetime.fromtimestamp(ends, UTC) if ends < ENDLESS.timestamp() else ENDLESS
            more = {"size_vram": size, "expires_at": until.isoformat()}
            found.append({**_described(model), **more, **_length("context_length", info.context, info.trained_context)})
    return Whole({"models": found})


def _length(name: str, *lengths: int | None) -> Json:
    """The context length: the first known value. Empty without a limit, because clients would read 0 as no room."""
    known = [length for length in lengths if length]
    return {name: known[0]} if known else {}


def _described(model: ServedModel) -> Json:
    """A model's entry in a list."""
    path = Path(model.path)
    changed = datetime.fromtimestamp(path.stat().st_mtime if path.is_file() else model.created, UTC).isoformat()
    name = model.name if ":" in model.name else f"{model.name}:latest"
    digest = "" if model.llm is None else model.llm.info.fingerprint
    return {
        "name": name, "model": name, "modified_at": changed, "size": model.nbytes, "digest": digest,
        "details": _details(model),
    }  # fmt: skip


def _details(model: ServedModel) -> Json:
    family, count, form = "", 0, ""
    if model.llm is not None:
        info = model.llm.info
        family, count, form = info.architecture, info.parameters, info.format
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M" if count else ""
    return {
        "parent_model": "", "format": "gguf", "family": family, "families": [family] if family else [],
        "parameter_size": size, "quantization_level": form,
    }  # fmt: skip


async def show(service: Service, call: Call) -> Response:
    """Describes a model; loads it if needed."""
    name = call.body.get("model", call.body.get("name"))
    if not isinstance(name, str):
        raise ApiError(400, "model is missing; it must be the name of a model", param="model")
    served, llm = await service.use(call, name)
    info, chat_format = llm.info, chat_format_of(llm)
    able = ["embedding" if info.encoder else "completion"]
    if chat_format is not None:
        able += ["tools"] * chat_format.template.knows_tools + ["thinking"] * chat_format.can_think
    able += ["vision" if kind == "image" else kind for kind in media_of(llm.media_input)]
    return Whole(
        {
            **_preset(llm.preset or Preset(Path(served.path).name)),
            "template": "" if chat_format is None else chat_format.template.source,
            "details": _details(served), "capabilities": able, "modified_at": _described(served)["modified_at"],
            "model_info": {
                "general.architecture": info.architecture, "general.parameter_count": info.parameters,
                **_length(f"{info.architecture}.context_length", info.trained_context, info.context),
            },
        }
    )  # fmt: skip


def _preset(preset: Preset) -> Json:
    """The fields that describe a model's preset, without the folders of files."""
    base = Path(preset.base).name if os.path.isabs(preset.base) else preset.base
    named = replace(preset, base=base, adapters=[(Path(path).name, scale) for path, scale in preset.adapters])
    found: Json = {
        "modelfile": named.as_modelfile(), "parameters": "\n".join(preset.parameter_lines()), "license": preset.license,
    }  # fmt: skip
    found |= {} if preset.system is None else {"system": preset.system}
    return found | ({"messages": preset.first_messages()} if preset.messages else {})


async def chat(service: Service, call: Call) -> Response:
    """Answers messages."""
    fields = honoured(call, OLLAMA_CHAT)
    name = _name(service, call, fields)
    if not fields.get("messages"):
        return await _load(service, call, name, {"message": {"role": "assistant", "content": ""}})
    given = typed(list, fields["messages"], "messages")
    messages = [_message(one, f"messages[{at}]") for at, one in enumerate(given)]
    asked = _settings(call, fields)
    asked["messages"], asked["continue_final_message"] = begun(messages)
    if fields.get("tools"):
        asked["tools"] = fields["tools"]
    return await _answer(
        service, call, fields, name, lambda llm, **more: llm.prepare_chat_completion(**asked, **more), _chat_line
    )


async def generate(service: Service, call: Call) -> Response:
    """Answers a prompt; with raw, continues it; with a suffix, fills in the text between them."""
    fields = honoured(call, OLLAMA_GENERATE)
    name, prompt = _name(service, call, fields), typed(str, fields.get("prompt", ""), "prompt")
    suffix = typed(str, fields.get("suffix", ""), "suffix")
    if not (prompt or suffix):
        return await _load(service, call, name, {"response": ""})
    asked, raw = _settings(call, fields), typed(bool, fields.get("raw", False), "raw") or bool(suffix)
    images = typed(list, fields.get("images") or [], "images")
    if raw:
        if images:
            raise ApiError(
                400, "images need the chat template, which raw and suffix leave out; give one of them", param="images"
            )
        think = asked.pop("think", None)
        if asked.pop("logprobs", False):
            why = "logprobs need the chat template, which raw and suffix leave out; use /v1/completions"
            raise ApiError(400, why, param="logprobs")
        asked.pop("top_logprobs", None)
        if think:
            raise ApiError(
                400, "think needs the chat template, which raw and suffix leave out; give one of them", param="think"
            )

        def prepare(llm: LLM, **more: Any) -> Prepared:
            longest: Any = llm.default_settings({"max_tokens": LONGEST})["max_tokens"]
            return llm.prepare_completion(prompt, **{"max_tokens": longest, "suffix": suffix, **asked}, **more)

        return await _answer(service, call, fields, name, prepare, _text_line)
    messages: list[Json] = [{"role": "user", "content": prompt, **({"images": images} if images else {})}]
    if fields.get("system"):
        messages.insert(0, {"role": "system", "content": fields["system"]})
    return await _answer(
        service,
        call,
        fields,
        name,
        lambda llm, **more: llm.prepare_chat_completion(messages, **asked, **more),
        _text_line,
    )


def _name(service: Service, call: Call, fields: Json) -> str | None:
    """Takes the name of the model out of the fields, and records its keep-alive time."""
    name = model_name(fields)
    if "keep_alive" in fields:
        service.find(call, name).keep_alive = duration(fields["keep_alive"])
    return name


def duration(given: Any) -> float:
    """Parses Ollama's durations: seconds, or text such as 1h30m; a negative value is unlimited."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given) if 0 <= given < FOREVER else math.inf
    text = given.strip() if isinstance(given, str) and len(given) < 100 else ""
    if not DURATION.fullmatch(text):
        message = f"keep_alive is {given!r}; it must be seconds, or text such as '5m' or '1h30m'"
        raise ApiError(400, message, param="keep_alive")
    parts = [float(number) * UNITS[unit] for number, unit in STEP.findall(text)]
    seconds = sum(parts) if parts else float(text.lstrip("+-"))
    return seconds if seconds < FOREVER and (not seconds or text[0] != "-") else math.inf


async def _load(service: Service, call: Call, name: str | None, reply: Json) -> Response:
    """Handles a request without a prompt: loads the model, or unloads it once idle if keep_alive is 0."""
    served = service.find(call, name)
    reason = "load"
    if served.keep_alive == 0:
        await service.catalogue.unload(served)
        reason = "unload"
    else:
        await service.use(call, name)
    return Whole({"model": served.name, "created_at": _now(), **reply, "done": True, "done_reason": reason})


def _message(message: Any, where: str) -> Json:
    """Converts a message to one of a chat completion."""
    typed(dict, message, where, "messages")
    found = {"role": message.get("role"), "content": message.get("content", "")}
    if message.get("images"):
        found["images"] = typed(list, message["images"], "images")
    return found | {ours: message[name] for name, ours in OF_MESSAGES.items() if message.get(name)}


def _settings(call: Call, fields: Json) -> Json:
    """Translates settings to our names. Records options without effect."""
    options = typed(dict, fields.get("options") or {}, "options")
    given = {name: value for name, value in options.items() if value is not None}
    known = {name: value for name, value in given.items() if name in OPTIONS or name in SPANS}
    call.ignored += [f"options.{name}" for name in given if name not in known]
    asked, _, _ = parameters(known.items())
    form = fields.get("format")
    if form not in (None, ""):
        if form != "json" and not isinstance(form, dict):
            raise ApiError(400, f"format is {form!r}; it must be json or a JSON schema", param="format")
        asked["schema"] = {"type": "object"} if form == "json" else form
    asked |= _logprobs(fields)
    think = fields.get("think")
    if think not in (None, True, False, "low", "medium", "high"):
        raise ApiError(400, f"think is {think!r}; it must be true or false, or low, medium or high", param="think")
    if isinstance(think, str):
        with_effort(asked, think, "think")
    elif think is not None:
        asked["think"] = think
    return asked


def _logprobs(fields: Json) -> Json:
    """The settings for log probabilities of tokens."""
    wanted, top = typed(bool, fields.get("logprobs", False), "logprobs"), fields.get("top_logprobs", 0)
    if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= MAX_LOGPROBS:
        why = f"top_logprobs is {shown(top)}; it must be a number from 0 to {MAX_LOGPROBS}"
        raise ApiError(400, why, param="top_logprobs")
    if top and not wanted:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    return {"logprobs": True, "top_logprobs": top} if wanted else {}


def _with_logprobs(line: Json, delta: Json) -> Json:
    return {**line, "logprobs": delta["logprobs"]} if delta.get("logprobs") else line


Line = Callable[[str, Json], Json]  # formats a model's name and a delta as a line of a stream


def _chat_line(model: str, delta: Json) -> Json:
    message: Json = {"role": "assistant", "content": delta.get("content", "")}
    if delta.get("reasoning_content"):
        message["thinking"] = delta["reasoning_content"]
    if delta.get("tool_calls"):
        message["tool_calls"] = delta["tool_calls"]
    return _with_logprobs({"model": model, "created_at": _now(), "message": message, "done": False}, delta)


def _text_line(model: str, delta: Json) -> Json:
    line = {"model": model, "created_at": _now(), "response": delta.get("content", ""), "done": False}
    line |= {"thinking": delta["reasoning_content"]} if delta.get("reasoning_content") else {}
    return _with_logprobs(line, delta)


async def _answer(
    service: Service, call: Call, fields: Json, name: str | None, prepare: Callable[..., Prepared], line: Line
) -> Response:
    stream = typed(bool, fields.get("stream", True), "stream")
    served, began = service.catalogue.find(name), time.monotonic()
    running = await service.begin(call, name, prepare)
    loaded = time.monotonic() - began
    if stream:
        return Stream(_lines(running, served.name, line, began, loaded), NDJSON)
    whole: Json = {"content": ""}
    async for delta in _deltas(running):
        for key, value in delta.items():
            whole[key] = whole[key] + value if key in whole else value
    last = _last(running.answers.completions[0], began, loaded)
    return Whole({**line(served.name, whole), **last})


async def _lines(running: Running, model: str, line: Line, began: float, loaded: float) -> AsyncGenerator[bytes]:
    async for delta in _deltas(running):
        yield dumps(line(model, delta)) + b"\n"
    yield dumps({**line(model, {}), **_last(running.answers.completions[0], began, loaded)}) + b"\n"


async def _deltas(running: Running) -> AsyncGenerator[Json]:
    """Yields the deltas of an answer: text, reasoning, and calls with complete arguments."""
    if not isinstance(running.prepared.reply, Reply):
        async for updates in running:
            for _, one in updates:
                if isinstance(one, Event) and one.text:
                    yield {"content": one.text}
        return
    name = ""
    async for chunk in chunks_of(running):
        delta = {**chunk["choices"][0]["delta"]}
        if chunk["choices"][0]["logprobs"]:
            delta["logprobs"] = chunk["choices"][0]["logprobs"]["content"]
        [call] = delta.pop("tool_calls", None) or [None]
        if call is not None and "id" in call:
            name = call["function"]["name"]
        elif call is not None:
            try:
                arguments = json.loads(call["function"]["arguments"])
            except ValueError:  # the call was cut off by the length limit
                arguments = {}
            delta["tool_calls"] = [{"function": {"name": name, "arguments": arguments}}]
        if delta:
            yield delta


def _last(completion: Completion, began: float, loaded: float) -> Json:
    """The last line of an answer, with times in nanoseconds."""
    stats = completion.stats
    reason = "length" if completion.finish_reason == "length" else "stop"
    return {
        "done": True, "done_reason": reason, "total_duration": _nanoseconds(time.monotonic() - began),
        "load_duration": _nanoseconds(loaded), "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": _nanoseconds(stats.prompt_seconds), "eval_count": stats.new_tokens,
        "eval_duration": _nanoseconds(stats.decode_seconds),
    }  # fmt: skip


async def embed(service: Service, call: Call) -> Response:
    """Embeds texts."""
    fields = honoured(call, OLLAMA_EMBED)
    name, began = _name(service, call, fields), time.monotonic()
    if "input" not in fields:
        raise ApiError(400, "input is missing; give a text or a list of texts", param="input")
    if fields["input"] in ("", []):  # then Ollama only loads the model
        served, _ = await service.use(call, name)
        return Whole({"model": served.name, "embeddings": []})
    truncate = _truncate(fields)
    _, ids, vectors = await service.embed(
        call, name, fields["input"], dimensions=fields.get("dimensions"), truncate=truncate
    )
    return Whole(
        {
            "model": call.notes["model"], "embeddings": [vector.tolist() for vector in vectors],
            "total_duration": _nanoseconds(time.monotonic() - began), "load_duration": 0,
            "prompt_eval_count": sum(map(len, ids)),
        },
        is_large=True,
    )  # fmt: skip


async def embeddings(service: Service, call: Call) -> Response:
    """The vector of one text, for older clients."""
    prompt = call.body.get("prompt")
    if not isinstance(prompt, str):
        raise ApiError(400, "prompt is missing; it must be a string", param="prompt")
    _, _, vectors = await service.embed(call, model_name({**call.body}), prompt, truncate=_truncate(call.body))
    return Whole({"embedding": vectors[0].tolist()})


def _truncate(fields: Mapping[str, Any]) -> bool:
    """True if texts that are too long are truncated; otherwise they are refused."""
    return typed(bool, fields.get("truncate", True), "truncate")


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _nanoseconds(seconds: float) -> int:
    return int(1e9 * max(0.0, seconds))
