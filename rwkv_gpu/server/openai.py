"""OpenAI's API: chat completions, completions and models, whole and streamed."""

import itertools
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from rwkv_gpu.llm.answer import PromptProgress
from rwkv_gpu.llm.chat_completion import Reply
from rwkv_gpu.llm.completion import Completion, Event
from rwkv_gpu.llm.images import media_of, text_ids
from rwkv_gpu.llm.model import LLM
from rwkv_gpu.llm.reasoning_options import LIMITS
from rwkv_gpu.llm.replies import Prepared
from rwkv_gpu.llm.text_completion import TextReply

from .answers import Answers
from .call import Call, Family, Json, Response, Stream, Whole, dumps
from .catalogue import ServedModel
from .chunks import chunks_for
from .endpoint import Endpoint
from .errors import ApiError, typed
from .fields import CHAT, COMPLETION, EMBEDDING, honoured
from .pulls import Pull
from .reasoning import with_effort
from .routes import Route, get, post
from .service import Running, Service

MARK = "\ue000text\ue000"  # placeholder for the text of a chunk
DONE = b"data: [DONE]\n\n"
EMPTY = "", {"type": "text", "text": ""}  # parts of a message


def error_body(error: ApiError, request_id: str) -> Json:
    """An error in OpenAI's format, with the id of the request."""
    described = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
    return {"error": {**described, **error.details, "request_id": request_id}}


def event(data: Json) -> bytes:
    """A server-sent event."""
    return b"data: " + dumps(data) + b"\n\n"


FAMILY = Family(error_body, lambda error, request_id: event(error_body(error, request_id)) + DONE)


def routes(service: Service) -> list[Route]:
    """The routes of this API."""
    endpoint = partial(Endpoint, service, FAMILY)
    chats, counts = (endpoint(handler, takes_body=True) for handler in (chat_completions, input_tokens))
    listed = endpoint(models)
    return [
        get("/v1/models", listed),
        get("/models", listed),  # as in llama-server, which has both paths
        get("/v1/models/{name:path}", endpoint(model)),
        post("/v1/chat/completions", chats),
        post("/chat/completions", chats),
        post("/v1/chat/completions/input_tokens", counts),
        post("/chat/completions/input_tokens", counts),
        post("/v1/completions", endpoint(completions, takes_body=True)),
        post("/v1/embeddings", endpoint(embeddings, takes_body=True)),
    ]


async def models(service: Service, _: Call) -> Response:
    """Lists all models, and running downloads."""
    listed = [_described(one) for one in service.catalogue.models]
    pulls = [] if service.pulls is None else service.pulls.running
    return Whole({"object": "list", "data": [*listed, *map(downloading, pulls)]})


def downloading(pull: Pull) -> Json:
    """A model that is being downloaded."""
    progress = {path: {"done": done, "total": pull.files[path].nbytes} for path, done in [*pull.done.items()]}
    status = {"value": "downloading", "progress": progress}
    return {"id": pull.name, "object": "model", "created": pull.created, "owned_by": "rwkv-gpu", "status": status}


async def model(service: Service, call: Call) -> Response:
    """Describes one model."""
    return Whole(_described(service.catalogue.find(call.path_params["name"])))


def _described(served: ServedModel) -> Json:
    found: Json = {"id": served.name, "object": "model", "created": served.created, "owned_by": "rwkv-gpu"}
    found["aliases"] = [*served.aliases]
    found |= {"status": status_of(served), "meta": {"size": served.nbytes}}  # as in llama-server's router
    if served.llm is not None:
        takes = ["text", *media_of(served.llm.media_input)]
        gives = "embeddings" if served.llm.info.encoder else "text"
        found["architecture"] = {"input_modalities": takes, "output_modalities": [gives]}
    return found


def status_of(served: ServedModel) -> Json:
    """The state of a model, by the names of llama-server's router."""
    match served.state:
        case "ready":
            return {"value": "loaded"}
        case "loading":
            return {"value": "loading", "progress": {"done": served.done, "total": served.total}}
        case "failed":
            return {"value": "unloaded", "failed": True}
    return {"value": "unloaded"}


async def chat_completions(service: Service, call: Call) -> Response:
    """Answers messages."""
    messages, fields = chat_request(call)

    def prepare(llm: LLM, **given: Any) -> Prepared:
        return llm.prepare_chat_completion(**{"messages": messages, **given})

    return await _answer(service, call, fields, prepare, messages)


async def input_tokens(service: Service, call: Call) -> Response:
    """Counts the prompt tokens of messages."""
    messages, fields = chat_request(call)
    name, _ = model_name(fields), wants_stream(fields)
    count = await service.count(call, name, {"messages": messages, **fields})
    return Whole({"object": "response.input_tokens", "input_tokens": count})


def chat_request(call: Call) -> tuple[Any, Json]:
    """The messages of a chat, and the other fields by the library's names."""
    fields = honoured(call, CHAT)
    if "messages" not in fields:
        raise ApiError(400, "messages is missing; give a list of at least one", param="messages")
    messages, think, variables = fields.pop("messages"), None, fields.get("chat_template_kwargs")
    if isinstance(variables, dict):
        fields["chat_template_kwargs"] = {**variables}
        think = fields["chat_template_kwargs"].pop("enable_thinking", None)
    for name in ("enable_thinking", "think", "thinking"):  # of Qwen's, Ollama's and DeepSeek's services
        given = fields.pop(name, None)
        if name == "thinking" and isinstance(given, dict):
            fields.setdefault(LIMITS[0], given.get("budget_tokens"))
            given = {"enabled": True, "disabled": False}.get(str(given.get("type")), given)
        think = typed(bool, given, name) if given is not None and think is None else think
    if think is not None:
        fields["think"] = think
    if "reasoning_effort" in fields:
        with_effort(fields, fields.pop("reasoning_effort"), "reasoning_effort")
    if not {"continue_final_message", "add_generation_prompt"} & fields.keys():
        messages, fields["continue_final_message"] = begun(messages)
    if _assistants(messages) > 1:
        raise ApiError(400, "messages ends with several messages of the assistant; send one", param="messages")
    return messages, fields


def _assistants(messages: Any) -> int:
    """The number of messages at the end that the assistant has written, without calls of tools."""
    ended = reversed(messages) if isinstance(messages, list) else ()
    own = (isinstance(one, dict) and one.get("role") == "assistant" and not one.get("tool_calls") for one in ended)
    return sum(1 for _ in itertools.takewhile(bool, own))


def begun(messages: Any) -> tuple[Any, bool]:
    """The messages, and whether the answer continues the last one: it does if that is the assistant's, as in
    llama-server.

    An assistant's last message without text is left out.
    """
    last = messages[-1] if isinstance(messages, list) and len(messages) > 1 else None
    if not isinstance(last, dict) or last.get("role") != "assistant" or last.get("tool_calls"):
        return messages, False
    content = last.get("content")
    silent = content in (None, "") or (isinstance(content, list) and all(part in EMPTY for part in content))
    return (messages[:-1], False) if silent and not last.get("reasoning_content") else (messages, True)


async def completions(service: Service, call: Call) -> Response:
    """Continues a text."""
    fields = honoured(call, COMPLETION)
    if "prompt" not in fields:
        raise ApiError(400, "prompt is missing; give a text, token ids, or a list of either", param="prompt")
    prompt = fields.pop("prompt")
    return await _answer(service, call, fields, lambda llm, **given: llm.prepare_completion(prompt, **given))


def model_name(fields: Json) -> str | None:
    """Takes the name of the model out of the fields."""
    wanted = fields.pop("model", None)
    if not (wanted is None or isinstance(wanted, str)):
        raise ApiError(400, f"model is {wanted!r}; it must be the name of a model", param="model")
    return wanted


def wants_stream(fields: Json) -> bool:
    """Takes the stream switch out of the fields."""
    return typed(bool, fields.pop("stream", False), "stream")


async def embeddings(service: Service, call: Call) -> Response:
    """Embeds texts."""
    fields = honoured(call, EMBEDDING)
    name, form = model_name(fields), fields.get("encoding_format", "float")
    if "input" not in fields:
        raise ApiError(400, "input is missing; give a text, token ids, or a list of either", param="input")
    llm, ids, vectors = await service.embed(call, name, fields["input"], form, fields.get("dimensions"))
    reply = await service.work(lambda: llm.embedding_reply(ids, vectors, call.notes["model"], form))
    return Whole(reply, is_large=True)


async def _answer(
    service: Service, call: Call, fields: Json, prepare: Callable[..., Prepared], messages: Any = None
) -> Response:
    stream, wanted = wants_stream(fields), model_name(fields)
    verbose, served = typed(bool, fields.pop("verbose", False), "verbose"), service.catalogue.find(wanted)
    running = await service.begin(call, wanted, partial(prepare, model=served.name, **fields), messages)
    if not running.prepared.requests:  # the prompt is only echoed
        assert isinstance(running.prepared.reply, TextReply)
        silent = running.prepared.reply.whole([])
        return Stream(_echo(silent)) if stream else Whole(silent)
    if stream:
        return Stream(_events(running, running.prepared.reply, verbose=verbose))
    await running.wait()
    each = running.answers.each
    reply = running.prepared.reply.whole([(answer.completion, answer.events) for answer in each])
    return Whole({**reply, **(_verbose(running, 0) if verbose else {})})


def _verbose(running: Running, index: int) -> Json:
    """The prompt and the answer as the model reads and writes them, as llama-server adds them for debugging."""
    decode = partial(running.llm.tokenizer.decode, special=True)
    prompt, tokens = running.prepared.requests[index][0].ids, running.answers.each[index].completion.tokens
    return {"__verbose": {"prompt": decode(text_ids(prompt)), "content": decode(tokens), "tokens": [*tokens]}}


async def _echo(silent: Json) -> AsyncGenerator[bytes]:
    """A stream that only echoes the prompt."""
    yield event(silent) + DONE


async def _events(running: Running, reply: Reply | TextReply, *, verbose: bool) -> AsyncGenerator[bytes]:
    """Yields the chunks of all answers as they arrive, each with the index of its answer."""
    each, open_answers = running.answers.each, set(range(len(running.answers.each)))

    def closing(index: int) -> bytes:
        more = _verbose(running, index) if verbose else {}
        return b"".join(event({**chunk, **more}) for chunk in _closing(reply, index, each[index].completion))

    frames = Frames(reply, running.answers)
    yield b"".join(event(chunk) for index in sorted(open_answers) for chunk in reply.opening(index))
    async for updates in running:
        yield b"".join([frames.of(index, one) for index, one in updates])
        if running.answers.running < len(open_answers):
            ended = sorted(index for index in open_answers if not each[index].running)
            open_answers.difference_update(ended)
            yield b"".join(map(closing, ended))
    for index in sorted(open_answers):
        yield closing(index)
    yield b"".join(event(chunk) for chunk in reply.last(running.answers.completions)) + DONE


class Frames:
    """Encodes chunks as bytes. The chunks of one answer differ only in their text, so the rest is encoded once."""

    def __init__(self, reply: Reply | TextReply, answers: Answers) -> None:
        self._reply, self._answers = reply, answers
        fields = reply.fields
        self._plain = not (fields.logprobs or fields.timings or (isinstance(reply, Reply) and reply.fields.tools))
        self._around: dict[tuple[int, bool], tuple[bytes, bytes]] = {}

    def of(self, index: int, one: Event | PromptProgress) -> bytes:
        """The chunks of an event."""
        if isinstance(one, PromptProgress) or not (self._plain and one.text):
            return b"".join(map(event, chunks_for(self._reply, self._answers.each[index], index, one)))
        around = self._around.get((index, one.thinking))
        if around is None:
            [chunk] = self._reply.chunks(index, replace(one, text=MARK))
            before, _, after = event(chunk).partition(dumps(MARK))
            around = self._around[index, one.thinking] = before, after
        return around[0] + dumps(one.text) + around[1]


def _closing(reply: Reply | TextReply, index: int, completion: Completion) -> Iterator[Json]:
    """The last chunks of an answer. OpenAI's API has no finish reason for an answer that was stopped from outside."""
    if completion.finish_reason in ("abort", "running"):
        completion = replace(completion, finish_reason="stop")
    return reply.closing(index, completion)
