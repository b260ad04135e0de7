"""The native API of llama.cpp's server: completions, tokens, templates and infilling."""

import math
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.llm.answer import PromptProgress
from rwkv_gpu.llm.chat_completion import prompt_progress
from rwkv_gpu.llm.completion import Event, json_logprob
from rwkv_gpu.llm.images import ImagePrompt, text_ids
from rwkv_gpu.llm.model import LLM
from rwkv_gpu.llm.pooling import Floats
from rwkv_gpu.llm.preset import Preset
from rwkv_gpu.llm.replies import Prepared, prompt_of
from rwkv_gpu.llm.transcript import as_text
from rwkv_gpu.llm.validate import token_ids

from .admin import check_admin
from .body import LIST
from .call import Call, Json, Response, Stream, Whole
from .code_bounds import Bounds
from .endpoint import Endpoint
from .errors import ApiError, shown, typed
from .fields import LLAMA_COMPLETION, LLAMA_INFILL, Fields, honoured
from .openai import FAMILY, chat_request, event, model_name, wants_stream
from .routes import Route, get, post
from .service import Running, Service

MISSING = object()
INT16 = 32760.0  # the maximum that llama.cpp scales vectors to
LONGEST_BIAS = 1024  # characters of a text in logit_bias
LONGEST = 2048  # tokens of an answer if n_predict is left out or unlimited


def routes(service: Service) -> list[Route]:
    """The routes of this API."""
    endpoint = partial(Endpoint, service, FAMILY)
    return [
        post("/completion", endpoint(completion, takes_body=True)),
        post("/completions", endpoint(completion, takes_body=True)),
        post("/infill", endpoint(infill, takes_body=True)),
        post("/embedding", endpoint(embedding, takes_body=True)),
        post("/embeddings", endpoint(embedding, takes_body=True)),
        post("/tokenize", endpoint(tokenize, takes_body=True)),
        post("/detokenize", endpoint(detokenize, takes_body=True)),
        post("/apply-template", endpoint(apply_template, takes_body=True)),
        get("/lora-adapters", endpoint(adapters)),
        post("/lora-adapters", endpoint(scale_adapters, takes_list=True)),
    ]


async def completion(service: Service, call: Call) -> Response:
    """Continues a text."""
    fields = _fields(call, LLAMA_COMPLETION)
    name, prompt = model_name(fields), _plain_prompt(fields.pop("prompt", None))
    if prompt is None:
        raise ApiError(400, "prompt is missing; give a text or token ids", param="prompt")
    return await _answer(service, call, name, fields, lambda llm, **asked: llm.prepare_completion(prompt, **asked))


def _fields(call: Call, kind: Fields) -> Json:
    """The supported fields of a request. Its mirostat is off unless it is switched on."""
    call.body = {**call.body, "mirostat": call.body.get("mirostat") or 0}
    return honoured(call, kind)


def _plain_prompt(prompt: Any) -> Any:
    """Converts llama-server's objects {"prompt_string": TEXT, "multimodal_data": [BASE64]} to plain prompts."""
    if isinstance(prompt, list):
        return [_plain_prompt(one) if isinstance(one, dict) else one for one in prompt]
    if not isinstance(prompt, dict):
        return prompt
    text, images = prompt.get("prompt_string"), prompt.get("multimodal_data")
    if not isinstance(text, str):
        raise ApiError(400, "prompt is an object; it must have prompt_string, a text", param="prompt")
    if images is None or images == []:
        return text
    if not isinstance(images, list) or not all(isinstance(one, str) for one in images):
        raise ApiError(400, "multimodal_data must be a list of images and sounds in base64", param="prompt")
    return ImagePrompt(text, images)


async def infill(service: Service, call: Call) -> Response:
    """Fills in the text between a prefix and a suffix, with models that have tokens for infilling."""
    fields = _fields(call, LLAMA_INFILL)
    name, files = model_name(fields), _files(fields.pop("input_extra", []))
    prefix, suffix, extra = (fields.pop(key, "") for key in ("input_prefix", "input_suffix", "prompt"))
    for key, text in (("input_prefix", prefix), ("input_suffix", suffix), ("prompt", extra)):
        typed(str, text, key)

    def prepare(llm: LLM, **asked: Any) -> Prepared:
        if llm.tokenizer.vocabulary.infill is None:
            raise ApiError(501, "this model has no tokens for infilling; use /completion", code="not_supported")
        return llm.prepare_completion(llm.infill_prompt(prefix, suffix, extra, files), **asked)

    return await _answer(service, call, name, fields, prepare)


def _files(given: Any) -> list[tuple[str, str]]:
    """The names and texts of other files."""
    found = []
    for at, one in enumerate(typed(list, given, "input_extra")):
        name, text = (one.get("filename", "tmp"), one.get("text")) if isinstance(one, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            why = f"input_extra[{at}] is {shown(one)}; it must have filename and text, which are texts"
            raise ApiError(400, why, param="input_extra")
        found.append((name, text))
    return found


async def adapters(service: Service, call: Call) -> Response:
    """The LoRA adapters of the first model, or of `?model=`, with their scales."""
    llm = service.catalogue.find(call.query.get("model")).llm
    loaded = () if llm is None else llm.info.adapters
    now = {} if llm is None else llm.default_settings({}).get("lora") or {}
    return Whole(
        [{"id": number, "path": name, "scale": now.get(name, scale)} for number, (name, scale) in enumerate(loaded)]
    )


async def scale_adapters(service: Service, call: Call) -> Response:
    """Sets the default scales of the first model's adapters, until the model is unloaded.

    They change the answers of all clients, so a server with keys requires an admin key.
    """
    if service.config.api_keys or service.config.admin_keys:
        check_admin(service.config, call)
    given = call.body[LIST]
    _, llm = await service.use(call, call.query.get("model"))
    names = [name for name, _ in llm.info.adapters]
    scales = dict.fromkeys(names, 0.0) | _scales(llm, given)
    preset = llm.preset or Preset(llm.info.name)
    llm.preset = replace(preset, settings={**preset.settings, "lora": scales})
    return Whole({"success": True})


async def embedding(service: Service, call: Call) -> Response:
    """Embeds texts; each text has a list with one vector."""
    texts = call.body.get("content", call.body.get("input"))
    if texts is None:
        raise ApiError(400, "content is missing; give a text, token ids, or a list of either", param="content")
    norm = call.body.get("embd_normalize", 2)
    if isinstance(norm, bool) or not isinstance(norm, int) or not 0 <= norm <= 100:
        why = f"embd_normalize is {shown(norm)}; it must be 0, 1, 2 or a larger whole number: vectors have a norm here"
        raise ApiError(400, why, param="embd_normalize")
    _, _, vectors = await service.embed(call, model_name({**call.body}), texts)
    rows = [{"index": at, "embedding": [_normed(one, norm).tolist()]} for at, one in enumerate(vectors)]
    return Whole(rows, is_large=True)


def _normed(vector: Floats, norm: int) -> Floats:
    """A unit vector scaled to length 1 in the norm of this order; with 0, so that its maximum is that of int16."""
    if norm == 2:
        return vector
    size = np.abs(vector).max() / INT16 if norm == 0 else np.linalg.norm(vector, norm)
    return np.asarray(vector / size if size else vector, np.float32)


async def tokenize(service: Service, call: Call) -> Response:
    """Tokenises a text."""
    content, special = typed(str, call.body.get("content", ""), "content"), call.body.get("add_special", False)
    parse, pieces = call.body.get("parse_special", True), call.body.get("with_pieces", False)
    _, llm = await service.use(call, model_name({**call.body}))
    ids = await service.work(lambda: llm.tokenizer.encode(content, special=special is True, parse=parse is True))
    if pieces is not True:
        return Whole({"tokens": ids})
    rows = await service.work(lambda: [{"id": token, "piece": _piece(llm, token)} for token in ids])
    return Whole({"tokens": rows}, is_large=True)


def _piece(llm: LLM, token: int) -> str | list[int]:
    """Returns a token as text, or as a list of bytes if it is a part of a character."""
    data = llm.tokenizer.piece(token, special=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return [*data]


async def detokenize(service: Service, call: Call) -> Response:
    """Decodes tokens to text, with special tokens."""
    tokens = call.body.get("tokens", [])
    if not isinstance(tokens, list):
        raise ApiError(400, f"tokens is {shown(tokens)}; it must be a list of token ids", param="tokens")
    _, llm = await service.use(call, model_name({**call.body}))
    ids = token_ids("tokens", tokens)
    return Whole({"content": await service.work(lambda: llm.tokenizer.decode(ids, special=True))})


async def apply_template(service: Service, call: Call) -> Response:
    """The prompt that a chat completion would have, including tools and reasoning."""
    messages, fields = chat_request(call)
    name, think = model_name(fields), fields.pop("think", None)
    wants_stream(fields)
    _, llm = await service.use(call, name)
    messages = await service.pdfs.filled(messages)

    _, prompt = await service.work(lambda: prompt_of(llm, messages, think, fields, bounded=False))
    return Whole({"prompt": as_text(prompt.transcript.text)})


async def _answer(service: Service, call: Call, name: str | None, fields: Json, prepare: Any) -> Response:
    stream, paths = wants_stream(fields), _paths(fields.pop("response_fields", []))
    bounds, tokens = Bounds.take(fields), typed(bool, fields.pop("return_tokens", False), "return_tokens")
    asked = _settings(fields)
    served = service.catalogue.find(name)

    def prepare_biased(llm: LLM, **given: Any) -> Prepared:
        own = {name: read(llm, asked[name]) for name, read in OWN_FORMS.items() if name in asked}
        if not {"n_predict", "max_tokens", "max_new_tokens", "max_completion_tokens"} & asked.keys():
            own["max_tokens"] = llm.default_settings({"max_tokens": LONGEST})["max_tokens"]
        return prepare(llm, **{**asked, **own, **given})  # type: ignore[no-any-return]

    running = await service.begin(call, name, prepare_biased)
    if stream:
        return Stream(_events(running, served.name, asked, paths, bounds))
    async for updates in running:
        for index, one in updates:
            if isinstance(one, Event):
                bounds.apply(index, running.answers.each[index], one)
    each = []
    for index, answer in enumerate(running.answers.each):
        done = answer.completion
        text, ids = done.text[: bounds.kept.get(index)], [*done.tokens] if tokens else []
        each.append(_ended(running, index, served.name, asked, paths, content=text, tokens=ids))
    return Whole(each[0] if len(each) == 1 else each)  # a list for several prompts, as in llama-server


def _paths(given: Any) -> list[str]:
    """The names of the fields of a response, such as generation_settings/temperature; empty for all."""
    if not isinstance(given, list) or not all(isinstance(path, str) for path in given):
        raise ApiError(400, "response_fields must be a list of names, such as content", param="response_fields")
    return given


def _picked(response: Json, paths: Sequence[str]) -> Json:
    """The fields of a response with these names; all if no names are given."""
    found: Json = {}
    for path in paths:
        value: Any = response
        for name in path.split("/"):
            value = value.get(name, MISSING) if isinstance(value, dict) else MISSING
        if value is not MISSING:
            found[path] = value
    return found if paths else response


def _settings(fields: Json) -> Json:
    """Translates llama.cpp's fields to our names."""
    asked = {name: value for name, value in fields.items() if name not in ("json_schema", "n_probs")}
    if "dry_sequence_breakers" in asked:
        asked["dry_breakers"] = asked.pop("dry_sequence_breakers")
    if "n_cmpl" in asked:
        asked["n"] = asked.pop("n_cmpl")
    if asked.get("n_predict", -1) in (-1, -2):
        asked.pop("n_predict", None)
    if asked.get("seed") == -1:
        del asked["seed"]
    if "json_schema" in fields:
        asked["schema"] = fields["json_schema"]
    if fields.get("n_probs"):
        asked["logprobs"] = fields["n_probs"]
    return asked


def _biases(llm: LLM, given: Any) -> Any:
    """Logit biases by token id. As in llama-server, pairs, texts in place of tokens, and false for a ban work, too."""
    pairs = [*given.items()] if isinstance(given, Mapping) else given
    if not isinstance(pairs, list) or not all(isinstance(one, list | tuple) and len(one) == 2 for one in pairs):
        raise ApiError(
            400, "logit_bias must hold pairs of a token or a text and a number, or false", param="logit_bias"
        )
    biases: dict[Any, Any] = {}
    for token, bias in pairs:
        if not isinstance(token, int | str):
            raise ApiError(400, f"logit_bias names {token!r}; it must be a token id or a text", param="logit_bias")
        if isinstance(token, str) and not (isinstance(given, Mapping) and token.strip().isdecimal()):
            if len(token) > LONGEST_BIAS:
                why = f"logit_bias names a text of {len(token):,} characters; at most {LONGEST_BIAS:,} are allowed"
                raise ApiError(400, why, param="logit_bias")
            tokens: list[Any] = [*llm.tokenize(token)]
        else:
            tokens = [token]
        biases |= dict.fromkeys(tokens, -math.inf if bias is False else bias)
    return biases


def _breakers(llm: LLM, given: Any) -> Any:
    """Token ids that break sequences; as in llama-server, also texts, for all tokens that have one of them."""
    if not isinstance(given, list) or not all(isinstance(one, str) and one for one in given):
        return given
    texts = [one.encode("utf-8", "replace") for one in given]
    pieces = map(llm.tokenizer.piece, range(len(llm.tokenizer.vocabulary)))
    return [token for token, piece in enumerate(pieces) if any(text in piece for text in texts)]


def _scales(llm: LLM, given: Any) -> Any:
    """Adapter scales by name. As in llama-server, a list of adapter ids with scales works, too."""
    if not isinstance(given, list):
        return given
    names, scales = [name for name, _ in llm.info.adapters], {}
    for one in given:
        number = one.get("id") if isinstance(one, Mapping) else None
        if type(number) is not int or not 0 <= number < len(names):
            raise ApiError(400, f"lora holds {shown(one)}; its id must be one of /lora-adapters", param="lora")
        scales[names[number]] = one.get("scale", 1.0)
    return scales


SAME_NAMES = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "dry_multiplier",
    "dry_base", "dry_allowed_length", "xtc_probability", "xtc_threshold", "mirostat_tau", "mirostat_eta",
)  # fmt: skip
OWN_FORMS = {"logit_bias": _biases, "lora": _scales, "dry_breakers": _breakers}


def _probabilities(llm: LLM, events: Iterable[Event], asked: Json) -> list[Json]:
    """The log probabilities of tokens, with the most likely alternatives of each.

    `post_sampling_probs`: the probabilities.
    """
    drawn = asked.get("post_sampling_probs") is True
    name = "top_probs" if drawn else "top_logprobs"
    return [
        {
            **_probability(llm, one.token, one.logprob, drawn=drawn),
            name: [_probability(llm, *other, drawn=drawn) for other in one.top],
        }
        for one in events
        if one.token is not None
    ]


def _probability(llm: LLM, token: int, logprob: float, *, drawn: bool) -> Json:
    data = llm.tokenizer.piece(token, special=True)
    value = {"prob": math.exp(logprob)} if drawn else {"logprob": json_logprob(logprob)}
    return {"id": token, "token": data.decode("utf-8", "replace"), "bytes": [*data], **value}


def _ended(running: Running, index: int, model: str, asked: Json, paths: Sequence[str], **written: Any) -> Json:
    """A completed answer, or its fields with these names."""
    answer, (request, reader) = running.answers.each[index], running.prepared.requests[index]
    done, stats = answer.completion, answer.completion.stats
    kind = "limit" if done.finish_reason in ("length", "abort") else "word" if reader.stopped is not None else "eos"
    settings, more = settings_of(request.params), dict[str, Any]()
    if asked.get("logprobs"):
        more["completion_probabilities"] = _probabilities(running.llm, answer.events, asked)
    if not paths or "prompt" in paths:
        more["prompt"] = running.llm.tokenizer.decode(text_ids(request.ids), special=True)
    context = running.llm.context
    full = kind == "limit" and context is not None and len(request.ids) + stats.new_tokens >= context
    whole = {
        "index": index, **written, "id_slot": running.slot, "stop": True, "model": model,
        "tokens_predicted": stats.new_tokens, "tokens_evaluated": stats.prompt_tokens,
        "generation_settings": {**settings, **asked, "logit_bias": settings["logit_bias"]},
        "has_new_line": "\n" in done.text, "truncated": full, "stop_type": kind, "stopping_word": reader.stopped or "",
        "tokens_cached": len(request.ids) + stats.new_tokens, "timings": stats.timings, **more,
    }  # fmt: skip
    return _picked(whole, paths)


def settings_of(params: SamplingParams) -> Json:
    """Sampling settings under llama-server's names."""
    ends = {"stop": [*params.stop], "ignore_eos": params.ignore_eos, "n_predict": params.max_tokens}
    biases = [{"token": token, "bias": bias if bias > -math.inf else None} for token, bias in params.logit_bias.items()]
    adapters = [] if params.lora is None else [{"name": name, "scale": scale} for name, scale in params.lora.items()]
    same = {name: getattr(params, name) for name in SAME_NAMES}
    return {
        "seed": -1 if params.seed is None else params.seed, **same, **ends, "max_tokens": params.max_tokens,
        "repeat_last_n": params.penalty_last_n, "repeat_penalty": params.repetition_penalty,
        "dry_penalty_last_n": params.dry_last_n, "mirostat": 2 if params.mirostat_tau > 0 else 0,
        "adaptive_target": -1.0, "adaptive_decay": 0.9,
        "n_probs": params.logprobs, "logit_bias": biases, "lora": adapters,
    }  # fmt: skip


async def _events(
    running: Running, model: str, asked: Json, paths: Sequence[str], bounds: Bounds
) -> AsyncGenerator[bytes]:
    """The pieces of all answers. If probabilities are asked for, text without a token joins the next piece."""
    held: dict[int, str] = defaultdict(str)
    timed = running.prepared.reply.fields.timings
    async for updates in running:
        for index, one in updates:
            answer = running.answers.each[index]
            piece: Json = {"index": index, "content": "", "tokens": [], "stop": False, "id_slot": running.slot}
            if isinstance(one, PromptProgress):
                yield event({**piece, **prompt_progress(one, answer.stats, timings=timed)})
                continue
            one = bounds.apply(index, answer, one)
            if one.token is None and asked.get("logprobs"):
                held[index] += one.text
            elif one.text or one.token is not None:
                piece |= {"content": held.pop(index, "") + one.text, "tokens": [] if one.token is None else [one.token]}
                if asked.get("logprobs"):
                    piece["completion_probabilities"] = _probabilities(running.llm, [one], asked)
                yield event({**piece, "timings": answer.stats.timings} if timed else piece)
    asked = {name: value for name, value in asked.items() if name != "logprobs"}  # the pieces already have them
    for index in range(len(running.answers.each)):
        yield event(_ended(running, index, model, asked, paths, content=held.pop(index, ""), tokens=[]))
