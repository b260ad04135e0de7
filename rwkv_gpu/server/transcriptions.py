"""OpenAI's transcriptions of audio files, by a chat model that takes audio."""

import json
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from rwkv_gpu.llm.completion import Completion, Event
from rwkv_gpu.llm.images import recording_of
from rwkv_gpu.llm.model import LLM
from rwkv_gpu.llm.replies import Prepared
from rwkv_gpu.llm.transcription import transcription_message

from .call import Call, Json, Response, Stream, Whole
from .endpoint import Endpoint
from .errors import ApiError
from .fields import TRANSCRIPTION, honoured
from .multipart import Upload
from .openai import DONE, FAMILY, event, model_name, wants_stream
from .routes import Route, post
from .service import Running, Service

FORMS = "json", "text", "verbose_json"
TEXTS = "file", "model", "prompt", "language", "response_format"  # fields that are plain text, not JSON


def routes(service: Service) -> list[Route]:
    """The routes of this API."""
    endpoint = Endpoint(service, FAMILY, transcriptions, takes_form=True)
    return [post("/v1/audio/transcriptions", endpoint), post("/audio/transcriptions", endpoint)]


async def transcriptions(service: Service, call: Call) -> Response:
    """Transcribes a file."""
    fields = {name: _value(name, value) for name, value in honoured(call, TRANSCRIPTION).items()}
    file, form = fields.pop("file", None), fields.pop("response_format", "json")
    if not isinstance(file, Upload):
        raise ApiError(400, "file is missing; send an audio file as a part of the form", param="file")
    if form not in FORMS:
        known = f"{', '.join(FORMS[:-1])} or {FORMS[-1]}"
        message = f"response_format is '{form[:40]}'; it must be {known}: models here report no timestamps"
        raise ApiError(400, message, param="response_format")
    prompt, language = fields.pop("prompt", ""), fields.pop("language", "")
    stream, wanted = wants_stream(fields), model_name(fields)
    recording = await service.work(lambda: recording_of(file.content, "file"), media=True)
    messages = [transcription_message(recording, prompt, language)]

    def prepare(llm: LLM, **given: Any) -> Prepared:
        return llm.prepare_chat_completion(**{"messages": messages, "temperature": 0, **fields, **given})

    name = service.catalogue.find(wanted).name
    running = await service.begin(call, wanted, partial(prepare, model=name), messages)
    if stream:
        return Stream(_events(running))
    await running.wait()
    completion = running.answers.each[0].completion
    if form == "text":
        return Whole(completion.text.strip().encode() + b"\n", media_type=b"text/plain; charset=utf-8")
    found: Json = {"text": completion.text.strip(), "usage": _usage(completion)}
    if form == "verbose_json":
        found = {"task": "transcribe", "language": language, "duration": round(recording.seconds, 3), **found}
    return Whole(found)


def _value(name: str, value: Any) -> Any:
    """The value of a field; in a form, it is JSON as a text."""
    if name in TEXTS:
        return value
    try:
        return json.loads(value.lower() if value in ("True", "False") else value)
    except (ValueError, RecursionError, AttributeError):
        raise ApiError(400, f"{name} is {str(value)[:40]!r}; it must be a number, true or false", param=name) from None


def _usage(completion: Completion) -> Json:
    read, made = completion.stats.prompt_tokens, completion.stats.new_tokens
    return {"type": "tokens", "input_tokens": read, "output_tokens": made, "total_tokens": read + made}


async def _events(running: Running) -> AsyncGenerator[bytes]:
    """Yields the text as it arrives, in OpenAI's events."""
    async for updates in running:
        texts = "".join(one.text for _, one in updates if isinstance(one, Event) and not one.thinking)
        if texts:
            yield event({"type": "transcript.text.delta", "delta": texts})
    completion = running.answers.each[0].completion
    done = {"type": "transcript.text.done", "text": completion.text.strip(), "usage": _usage(completion)}
    yield event(done) + DONE
