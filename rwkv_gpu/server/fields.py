"""The supported fields of requests, as tables. A test compares the documentation with them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rwkv_gpu.engine.sampling_params import MIROSTAT_TAU
from rwkv_gpu.llm.completion import ALIASES, KNOWN
from rwkv_gpu.llm.thoughts import LIMITS

from .call import Call, Json
from .errors import ApiError, shown, typed
from .slots import wanted_slot

# Our own settings, and those with the names of vLLM and llama.cpp. Processors are left out, as they are Python code.
SAMPLING = frozenset({*KNOWN, *ALIASES} - {"logits_processors", "logits_processor"})
LONGEST_SALT = 256  # characters
SERVING = frozenset({"timeout", "resumable", "cache_salt", "id_slot"})  # handled by the server itself, in all families


@dataclass(frozen=True)
class Fields:
    """The fields of one kind of request. Unknown fields are ignored, too, and reported under the name that was sent."""

    honoured: frozenset[str]
    ignored: Mapping[str, str]  # with the reason
    refused: Mapping[str, str] = field(default_factory=dict)  # with an alternative


COMMON_IGNORED = MappingProxyType(
    {
        "user": "it identifies a customer of a hosted service",
        "safety_identifier": "it identifies a customer of a hosted service",
        "metadata": "nothing is stored",
        "service_tier": "there is one tier",
        "prompt_cache_key": "common prefixes of prompts are found without it",
        "prompt_cache_retention": "common prefixes of prompts are found without it",
        "verbosity": "models here have no such setting",
    }
)

CHAT = Fields(
    honoured=SAMPLING
    | {
        "messages", "model", "stream", "stream_options", "n", "stop", "seed", "max_tokens", "max_completion_tokens",
        "logprobs", "top_logprobs", "logit_bias", "response_format", "chat_template_kwargs",
        "tools", "tool_choice", "parallel_tool_calls", "continue_final_message", "add_generation_prompt",
        "return_progress", "reasoning_effort", "json_schema", "cache_prompt", "reasoning_budget_message", *LIMITS,
        "guided_choice", "structured_outputs",
    },
    ignored={
        **COMMON_IGNORED,
        "store": "nothing is stored",
        "modalities": "answers are text",
        "prediction": "it would not speed anything up here",
    },
    refused={
        "audio": "answers are text; leave it out",
        "web_search_options": "there is no web search; leave it out",
        "chat_template": "templates come with the model; leave it out",
        "functions": "functions are the old form of tools; use tools",
        "function_call": "function_call is the old form of tool_choice; use tools and tool_choice",
    },
)  # fmt: skip

COMPLETION = Fields(
    honoured=SAMPLING
    | {
        "prompt", "model", "stream", "stream_options", "n", "best_of", "echo", "stop", "seed", "max_tokens",
        "logprobs", "logit_bias", "suffix", "json_schema", "response_format", "cache_prompt", "guided_choice",
        "structured_outputs",
    },
    ignored=COMMON_IGNORED,
)  # fmt: skip

RESPONSES = Fields(
    honoured=frozenset(
        {
            "input", "instructions", "model", "stream", "max_output_tokens", "temperature", "top_p", "text",
            "reasoning", "chat_template_kwargs", "top_k", "min_p", "seed", "stop", "tools", "tool_choice",
            "parallel_tool_calls", "previous_response_id", "store",
        }
    ),
    ignored={
        **COMMON_IGNORED,
        "include": "nothing more can be included",
        "truncation": "an input that is too long is refused",
        "stream_options": "events are not padded",
        "top_logprobs": "this API has no log probabilities here",
    },
    refused={
        "conversation": "conversations are not stored; use previous_response_id, or send all of it as input",
        "background": "answers in the background are not supported; use stream, with resumable",
        "prompt": "prompts are not stored here; send their text as input",
    },
)  # fmt: skip

EMBEDDING = Fields(
    honoured=frozenset({"input", "model", "encoding_format", "dimensions"}),
    ignored=COMMON_IGNORED,
)

TRANSCRIPTION = Fields(
    honoured=frozenset(
        {
            "file", "model", "language", "prompt", "response_format", "stream", "temperature", "top_p", "top_k",
            "min_p", "seed", "max_tokens", "repetition_penalty", "frequency_penalty", "presence_penalty",
        }
    ),
    ignored=COMMON_IGNORED,
    refused=dict.fromkeys(
        ("timestamp_granularities[]", "timestamp_granularities", "include[]", "include"),
        "there are no times or probabilities; leave it out",
    ),
)  # fmt: skip

RERANK = Fields(
    honoured=frozenset({"query", "documents", "texts", "model", "top_n", "return_documents", "return_text"}),
    ignored={
        **COMMON_IGNORED,
        "raw_scores": "scores are those of the model's classifier",
        "truncate": "an input that is too long is refused",
    },
)

MESSAGES = Fields(
    honoured=frozenset(
        {
            "model", "messages", "system", "max_tokens", "stop_sequences", "stream", "temperature", "top_p", "top_k",
            "tools", "tool_choice", "thinking", "output_config", "output_format",
        }
    ),
    ignored={**COMMON_IGNORED, "cache_control": "prompts always share their common prefixes"},
    refused={
        "mcp_servers": "the server calls no other servers; call tools yourself",
        "container": "there are no containers here; leave it out",
    },
)  # fmt: skip

_OLLAMA = frozenset({"model", "stream", "format", "options", "think", "keep_alive", "logprobs", "top_logprobs"})
_OLLAMA_IGNORED = {
    "context": "common prefixes of prompts are found without it",
    "truncate": "an input that is too long is refused",
}
OLLAMA_CHAT = Fields(_OLLAMA | {"messages", "tools"}, {**COMMON_IGNORED, **_OLLAMA_IGNORED})
OLLAMA_GENERATE = Fields(
    _OLLAMA | {"prompt", "system", "raw", "images"},
    {**COMMON_IGNORED, **_OLLAMA_IGNORED},
    {
        "suffix": "infilling is at /infill; leave it out",
        "template": "templates come with the model; use raw for a prompt of your own",
    },
)
OLLAMA_EMBED = Fields(
    frozenset({"model", "input", "keep_alive", "dimensions", "truncate"}),
    {**COMMON_IGNORED, "options": "embeddings have no settings here"},
)

_LLAMA_IGNORED = {
    "n_keep": "a prompt that is too long is refused",
    "samplers": "the order of samplers is fixed",
    "return_tokens": "tokens are always returned",
    "timings_per_token": "timings come at the end",
    "t_max_predict_ms": "use timeout",
}
LLAMA_COMPLETION = Fields(
    SAMPLING
    | {"prompt", "model", "stream", "n_predict", "json_schema", "grammar", "stop", "seed", "logit_bias", "n_probs"}
    | {"mirostat", "dry_penalty_last_n", "cache_prompt", "response_fields"},
    {**COMMON_IGNORED, **_LLAMA_IGNORED},
    {"image_data": "images go with messages; use /v1/chat/completions"},
)
LLAMA_INFILL = Fields(
    SAMPLING
    | {"input_prefix", "input_suffix", "prompt", "model", "stream", "n_predict", "stop", "seed", "mirostat"}
    | {"dry_penalty_last_n", "cache_prompt", "response_fields", "n_probs"},
    {**COMMON_IGNORED, **_LLAMA_IGNORED, "input_extra": "the prompt has the prefix and the suffix only"},
)

# Values of refused fields that are accepted because they have no effect.
NOTHING: tuple[object, ...] = (None, False, "", [], {}, "none")


def check_serving(body: Json) -> None:
    """Checks the fields that the server itself handles, in any kind of request."""
    timeout = body.get("timeout")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0):
        raise ApiError(400, f"timeout is {timeout!r}; it must be a number of seconds above 0", param="timeout")
    if body.get("resumable") is not None:
        typed(bool, body["resumable"], "resumable")
    salt = body.get("cache_salt")
    if salt is not None and not (isinstance(salt, str) and 0 < len(salt) <= LONGEST_SALT):
        why = f"cache_salt is {shown(salt)}; it must be a string of 1 to {LONGEST_SALT} characters"
        raise ApiError(400, why, param="cache_salt")
    wanted_slot(body)


def switch_mirostat(asked: Json) -> None:
    """Applies the mirostat switch of llama.cpp and Ollama; clients send its target even if it is off."""
    wanted = asked.pop("mirostat", 0)
    if isinstance(wanted, bool) or wanted not in (0, 1, 2):
        raise ApiError(400, f"mirostat is {wanted!r}; it must be 0, or 2 (1 is taken as 2)", param="mirostat")
    if wanted:
        asked.setdefault("mirostat_tau", MIROSTAT_TAU)
    else:
        asked.pop("mirostat_tau", None)
        asked.pop("mirostat_eta", None)


def honoured(call: Call, fields: Fields) -> Json:
    """Returns the supported fields of a body; null counts as left out. Records the ignored ones."""
    kept: Json = {}
    for name, value in call.body.items():
        if name in fields.refused and value not in NOTHING:
            raise ApiError(400, f"{name}: {fields.refused[name]}", param=name, code="unsupported_parameter")
        if name in fields.honoured:
            if value is not None:
                kept[name] = value
        elif name not in fields.refused and name not in SERVING and value is not None:
            call.ignored.append(name)
    return kept
