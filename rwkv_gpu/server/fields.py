"""The supported fields of requests, as tables. A test compares the documentation with them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rwkv_gpu.engine.sampling_params import MIROSTAT_TAU
from rwkv_gpu.llm.completion import ALIASES, KNOWN
from rwkv_gpu.llm.reasoning_options import LIMITS

from .call import Call, Json
from .errors import ApiError, shown, typed
from .slots import wanted_slot

# Our own settings, and those with the names of vLLM and llama.cpp. Processors are left out, as they are Python code.
SAMPLING = frozenset(
    {*KNOWN, *ALIASES, "dry_penalty_last_n", "mirostat", "samplers"} - {"logits_processors", "logits_processor"}
)
# The order of samplers, by llama.cpp's names, with the values that switch them off
SAMPLERS: Mapping[str, Json] = MappingProxyType(
    {
        "penalties": {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
        "dry": {"dry_multiplier": 0.0},
        "top_k": {"top_k": 0},
        "typ_p": {"typical_p": 1.0},
        "top_p": {"top_p": 1.0},
        "min_p": {"min_p": 0.0},
        "xtc": {"xtc_probability": 0.0},
        "temperature": {"temperature": 1.0},
    }
)
SAMPLER_NAMES = {"typical_p": "typ_p", "typical": "typ_p", "typ": "typ_p", "temp": "temperature", "nucleus": "top_p"}
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

ABSENT_SAMPLERS = dict.fromkeys(
    ("adaptive_target", "dynatemp_range", "min_keep", "top_n_sigma", "use_beam_search"),
    "this sampler is not supported; leave it out",
) | {"dry_sequence_breakers": "give token ids as dry_breakers, or use /completion"}
ABSENT_OF_VLLM = {
    "allowed_token_ids": "give a regex or a grammar instead",
    "bad_words": "ban tokens by logit_bias instead",
    "logits_processors": "processors are Python code; use the library",
    **dict.fromkeys(
        (
            "include_stop_str_in_output", "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids",
            "skip_special_tokens", "truncate_prompt_tokens",
        ),
        "this option of vLLM is not supported; leave it out",
    ),
}  # fmt: skip
OF_MESSAGES = dict.fromkeys(
    ("image_data", "messages", "tools", "tool_choice"), "it belongs to messages; use /v1/chat/completions"
)
# A form of the answer, by names of other APIs. To ignore it would give another answer.
FORMS = (
    "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "json_schema", "regex",
    "response_format", "schema", "structured_outputs",
)  # fmt: skip

CHAT = Fields(
    honoured=SAMPLING
    | {
        "messages", "model", "stream", "stream_options", "n", "stop", "seed", "max_tokens", "max_completion_tokens",
        "logprobs", "top_logprobs", "logit_bias", "response_format", "chat_template_kwargs",
        "tools", "tool_choice", "parallel_tool_calls", "continue_final_message", "add_generation_prompt",
        "return_progress", "timings_per_token", "verbose", "reasoning_effort", "json_schema", "cache_prompt",
        "reasoning_budget_message", *LIMITS,
        "guided_choice", "structured_outputs", "enable_thinking", "think", "thinking",
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
        **ABSENT_SAMPLERS,
        **ABSENT_OF_VLLM,
        **dict.fromkeys(
            ("include_reasoning", "parse_tool_calls", "reasoning_format"),
            "reasoning is in reasoning_content, and calls of tools are in tool_calls; leave it out",
        ),
        "echo": "answers are without the prompt; leave it out",
        "documents": "give them as chat_template_kwargs.documents",
        **dict.fromkeys(("functions", "function_call"), "this is the old form; use tools and tool_choice"),
    },
)  # fmt: skip

COMPLETION = Fields(
    honoured=SAMPLING
    | {
        "prompt", "model", "stream", "stream_options", "n", "best_of", "echo", "stop", "seed", "max_tokens",
        "logprobs", "logit_bias", "suffix", "json_schema", "response_format", "cache_prompt", "guided_choice",
        "structured_outputs", "return_progress", "timings_per_token", "verbose",
    },
    ignored=COMMON_IGNORED,
    refused={
        **ABSENT_SAMPLERS,
        **ABSENT_OF_VLLM,
        **OF_MESSAGES,
        "add_special_tokens": "prompts begin as the model requires; give token ids",
    },
)  # fmt: skip

RESPONSES = Fields(
    honoured=SAMPLING
    | {
        "input", "instructions", "model", "stream", "max_output_tokens", "text", "reasoning", "chat_template_kwargs",
        "tools", "tool_choice", "parallel_tool_calls", "previous_response_id", "store", "return_progress",
        "timings_per_token", "structured_outputs",
    },
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
        **dict.fromkeys(("guided_choice", "json_schema", "response_format"), "give a schema as text.format"),
    },
)  # fmt: skip

EMBEDDING = Fields(
    honoured=frozenset({"input", "model", "encoding_format", "dimensions"}),
    ignored=COMMON_IGNORED,
    refused=dict.fromkeys(
        ("embd_normalize", "truncate_prompt_tokens"), "texts are embedded whole, with a norm of 1; leave it out"
    ),
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

DECISIONS = Fields(
    honoured=frozenset({"model", "state", "questions"}),
    ignored=COMMON_IGNORED,
    refused={"images": "decisions read text only; leave it out"},
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
        **dict.fromkeys(FORMS, "give a schema as output_config.format"),
    },
)  # fmt: skip

_OLLAMA = frozenset({"model", "stream", "format", "options", "think", "keep_alive", "logprobs", "top_logprobs"})
_OLLAMA_IGNORED = {
    "context": "common prefixes of prompts are found without it",
    "truncate": "an input that is too long is refused",
}
_OLLAMA_REFUSED = dict.fromkeys(FORMS, "give a schema as format")
OLLAMA_CHAT = Fields(_OLLAMA | {"messages", "tools"}, {**COMMON_IGNORED, **_OLLAMA_IGNORED}, _OLLAMA_REFUSED)
OLLAMA_GENERATE = Fields(
    _OLLAMA | {"prompt", "suffix", "system", "raw", "images"},
    {**COMMON_IGNORED, **_OLLAMA_IGNORED},
    {**_OLLAMA_REFUSED, "template": "templates come with the model; use raw for a prompt of your own"},
)
OLLAMA_EMBED = Fields(
    frozenset({"model", "input", "keep_alive", "dimensions", "truncate"}),
    {**COMMON_IGNORED, "options": "embeddings have no settings here"},
)

_LLAMA_IGNORED = {
    **dict.fromkeys(("n_keep", "n_discard"), "a prompt that is too long is refused"),
    "n_cache_reuse": "common prefixes of prompts are found without it",
    "t_max_prompt_ms": "use timeout",
}
_LLAMA_REFUSED = {
    **{name: why for name, why in ABSENT_SAMPLERS.items() if name != "dry_sequence_breakers"},
    **OF_MESSAGES,
    **dict.fromkeys(("guided_choice", "response_format", "structured_outputs"), "give a schema as json_schema"),
}
_LLAMA = SAMPLING | {
    "prompt", "model", "stream", "n_predict", "max_completion_tokens", "stop", "seed", "logit_bias", "n_probs",
    "cache_prompt", "dry_sequence_breakers", "response_fields", "return_tokens", "return_progress",
    "timings_per_token", "n", "n_cmpl", "t_max_predict_ms", "n_indent", "json_schema",
}  # fmt: skip
LLAMA_COMPLETION = Fields(_LLAMA, {**COMMON_IGNORED, **_LLAMA_IGNORED}, _LLAMA_REFUSED)
LLAMA_INFILL = Fields(
    _LLAMA | {"input_prefix", "input_suffix", "input_extra"}, {**COMMON_IGNORED, **_LLAMA_IGNORED}, _LLAMA_REFUSED
)

# Values of refused fields that are accepted because they have no effect.
NOTHING: tuple[object, ...] = (None, False, "", [], {}, "none")
NOTHING_ELSE: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "adaptive_target": (None, -1),
        "embd_normalize": (None, 2),
        "add_special_tokens": (None, True),
        "include_reasoning": (None, True),
        "parse_tool_calls": (None, True),
        "prompt_logprobs": (None,),
        "reasoning_format": (None, "", "auto", "deepseek"),
        "skip_special_tokens": (None, True),
        "top_n_sigma": (None, -1, 0),
    }
)


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


def _translated(kept: Json, ignored: list[str]) -> Json:
    """Converts llama.cpp's sampling settings to ours: names, and the list of samplers, whose order is fixed here."""
    found = {"dry_last_n" if name == "dry_penalty_last_n" else name: value for name, value in kept.items()}
    samplers = found.pop("samplers", None)
    if samplers is None:
        return found
    if not (isinstance(samplers, list) and all(isinstance(one, str) for one in samplers)):
        raise ApiError(400, f"samplers is {shown(samplers)}; it must be a list of names", param="samplers")
    names = [SAMPLER_NAMES.get(name, name) for name in (one.lower().replace("-", "_") for one in samplers)]
    ignored += [f"samplers ({name:.40})" for name in names if name not in {*SAMPLERS, "top_n_sigma", "adaptive_p"}]
    known = [name for name in names if name in SAMPLERS]
    if known != [name for name in SAMPLERS if name in known]:
        ignored.append("samplers (order)")
    off = {name: value for sampler in SAMPLERS.keys() - known for name, value in SAMPLERS[sampler].items()}
    return {name: value for name, value in found.items() if ALIASES.get(name, name) not in off} | off


def honoured(call: Call, fields: Fields) -> Json:
    """Returns the supported fields of a body; null counts as left out. Records the ignored ones."""
    kept: Json = {}
    for name, value in call.body.items():
        if name in fields.refused and value not in NOTHING_ELSE.get(name, NOTHING):
            raise ApiError(400, f"{name}: {fields.refused[name]}", param=name, code="unsupported_parameter")
        if name in fields.honoured:
            if value is not None:
                kept[name] = value
        elif name not in fields.refused and name not in SERVING and value is not None:
            call.ignored.append(name)
    if not fields.honoured >= SAMPLING:
        return kept
    if "mirostat" in kept:
        switch_mirostat(kept)
    return _translated(kept, call.ignored)
