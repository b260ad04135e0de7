"""Defaults for the answers of `rwkv-gpu serve`: from options, and from tables for single models in the configuration
file.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.preset import Preset
from rwkv_gpu.llm.reasoning_options import ReasoningOptions

from .page import Grouped
from .sampling import SETTINGS, chosen, sampling_options, with_mirostat

Command = Callable[..., Any]
REASONING = {"on": True, "off": False, "auto": None}


def _variables(_: click.Context, __: click.Parameter, given: str | None) -> dict[str, Any] | None:
    """Parses template variables in JSON."""
    try:
        found = None if given is None else json.loads(given)
    except (ValueError, RecursionError):
        found = given
    if not (found is None or isinstance(found, dict)):
        raise click.BadParameter('it must be a JSON object, such as {"reasoning_effort": "low"}.')
    return found


_answers = partial(click.option, cls=Grouped, group="Answers")
OPTIONS = (
    _answers("-sys", "--system", "--system-prompt", metavar="TEXT", help="System prompt of chats that have none."),
    _answers(
        "-rea", "--reasoning", type=click.Choice([*REASONING]),
        help="Reasoning before the answer. Default: auto, as in the chat template.",
    ),
    _answers(
        "--reasoning-budget", type=click.IntRange(-1, (1 << 31) - 1), metavar="N",
        help="Maximum tokens of reasoning; then the answer follows. 0 ends it at once, -1 is no limit.",
    ),
    _answers(
        "--reasoning-budget-message", metavar="TEXT",
        help="Text that the model writes to end reasoning that reaches its limit.",
    ),
    _answers(
        "--chat-template-kwargs", metavar="JSON", callback=_variables,
        help='Variables of the chat template, such as {"reasoning_effort": "low"}.',
    ),
)  # fmt: skip
NAMES = (
    *SETTINGS, "mirostat", "stop", "logit_bias", "ignore_eos", "system", "reasoning", "reasoning_budget",
    "reasoning_budget_message", "chat_template_kwargs",
)  # fmt: skip


def answer_options(command: Command) -> Command:
    """Adds an option for each default."""
    for option in reversed(OPTIONS):
        command = option(command)
    return sampling_options(dict.fromkeys(SETTINGS), forms={})(command)


def defaults_of(ctx: click.Context, options: dict[str, Any]) -> Preset:
    """Takes the defaults out of the options of the command."""
    return preset_of(chosen(ctx, {name: options.pop(name) for name in NAMES}))


def table_of(ctx: click.Context, texts: Mapping[str, Any]) -> Preset:
    """The defaults of one model, from its table in the configuration file."""
    params = {param.name: param for param in ctx.command.params}
    return preset_of(with_mirostat({name: params[name].process_value(ctx, text) for name, text in texts.items()}))


def preset_of(given: Mapping[str, Any]) -> Preset:
    """Converts options to a preset."""
    rest = {**given}
    limit = rest.pop("reasoning_budget", None)
    variables = {**(rest.pop("chat_template_kwargs", None) or {})}
    thinks = variables.pop("enable_thinking", None)  # as in vLLM and llama.cpp
    reasons = REASONING[rest.pop("reasoning", "auto")]
    reasoning = ReasoningOptions(
        thinks if reasons is None else reasons,
        None if limit == -1 else limit,
        rest.pop("reasoning_budget_message", None),
        variables,
    )
    if not (thinks is None or isinstance(thinks, bool)) or {"messages", "tools"} & variables.keys():
        raise BadInput("--chat-template-kwargs has messages, tools, or an enable_thinking other than true and false")
    return Preset("", rest.pop("system", None), settings=rest, reasoning=reasoning)
