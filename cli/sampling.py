"""Sampling options: one table for the commands that generate, the lines of a batch, and /set in the chat."""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from rwkv_gpu.engine.sampling_params import MIROSTAT_TAU, SPANS, SamplingParams, Span
from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.chat_completion import settings_of
from rwkv_gpu.llm.modelfile import OPTIONS

from .page import Grouped
from .texts import MAX_SETTING, read_text

Command = TypeVar("Command", bound=Callable[..., Any])

# Field of SamplingParams, other names of its option, and help text.
SETTINGS: dict[str, tuple[tuple[str, ...], str]] = {
    "max_tokens": (("-n", "--n-predict", "--predict"), "Maximum tokens to generate; -1 is no limit."),
    "temperature": (("--temp",), "Temperature; 0 is greedy."),
    "top_k": ((), "Sample from the k most likely tokens; 0 is all."),
    "top_p": ((), "Nucleus sampling: the most likely tokens whose probabilities sum to p; 1 is off."),
    "min_p": ((), "Minimum probability, relative to the most likely token; 0 is off."),
    "seed": (("-s",), "Random seed, for reproducible output; -1 is random."),
    "repetition_penalty": (("--repeat-penalty",), "Penalty for tokens seen before; 1 is off."),
    "presence_penalty": ((), "Subtracted once from the logit of a token seen before; 0 is off."),
    "frequency_penalty": ((), "Subtracted for each time a token was seen before; 0 is off."),
    "penalty_last_n": (("--repeat-last-n",), "Number of last tokens that the penalties consider; -1 is all."),
    "penalty_decay": ((), "Counts of seen tokens decay by this factor per token; 1 is off."),
    "typical_p": (("--typical",), "Locally typical sampling with this probability mass; 1 is off."),
    "dry_multiplier": ((), "DRY penalty on repeated sequences; 0 is off."),
    "dry_base": ((), "DRY: base of the penalty, which grows with the length of the repetition."),
    "dry_allowed_length": ((), "DRY: longest repetition without a penalty, in tokens."),
    "dry_last_n": (("--dry-penalty-last-n",), "DRY: number of last tokens to consider; -1 is all."),
    "xtc_probability": ((), "XTC: probability of removing the most likely tokens at a step; 0 is off."),
    "xtc_threshold": ((), "XTC: tokens at least this likely are candidates for removal."),
    "mirostat_tau": (("--mirostat-ent",), "Mirostat 2: target entropy in bits; 0 is off."),
    "mirostat_eta": (("--mirostat-lr",), "Mirostat 2: learning rate."),
}
# The meaning of -1, for fields that have no negative values
MINUS_ONE = {"max_tokens": int(SPANS["max_tokens"].high), "seed": None}

# Fields of OpenAI's API without effect here
NOT_OURS = ("model", "user", "metadata", "store", "stream", "stream_options")

FORMS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "schema": (("-j", "--json-schema"), "JSON|FILE", "Constrain the answer to a JSON schema; `json` is any JSON."),
    "regex": ((), "REGEX", "Constrain the answer to a regular expression."),
    "grammar": (("--grammar-file",), "TEXT|FILE", "Constrain the answer to a grammar, in Lark or GBNF."),
}
STOP = ("-r", "--reverse-prompt")
ALIASES = {
    name.lstrip("-").replace("-", "_"): field
    for field, names in [*((field, row[0]) for field, row in (SETTINGS | FORMS).items()), ("stop", STOP)]
    for name in names
}


def sampling_options(
    defaults: Mapping[str, Any], forms: Mapping[str, tuple[tuple[str, ...], str, str]] = FORMS
) -> Callable[[Command], Command]:
    """Adds an option for each setting and constraint, and --stop; `chosen` returns those that were set."""
    option = partial(click.option, cls=Grouped, group="Sampling")
    options = [
        option(
            *short_first(field, others), field, type=Number(field), show_default=True, help=text,
            default=defaults.get(field, getattr(SamplingParams, field)), metavar="N" if SPANS[field].whole else "X",
        )
        for field, (others, text) in SETTINGS.items()
    ]  # fmt: skip
    options += [
        option(
            "--mirostat", type=click.Choice(["0", "2"]),
            help=f"2 turns mirostat 2 on, with a target entropy of {MIROSTAT_TAU:g} unless set; 0 is off.",
        ),
        option(
            *short_first("stop", STOP), "stop", multiple=True, metavar="TEXT",
            help="Stop at this text; can be repeated.",
        ),
        option(
            "-l", "--logit-bias", multiple=True, metavar="ID=X", callback=_biases,
            help="Add X to the logit of a token id; -inf bans it. Can be repeated; llama.cpp's ID+X and ID-X work too.",
        ),
    ]  # fmt: skip
    options.append(option("--ignore-eos", is_flag=True, help="Continue after the model's end of text or turn."))
    for name, (others, metavar, text) in forms.items():
        options.append(option(*short_first(name, others), name, metavar=metavar, callback=_form, help=text))

    def decorate(command: Command) -> Command:
        for one in reversed(options):
            command = one(command)
        return command

    return decorate


def short_first(name: str, others: tuple[str, ...]) -> list[str]:
    """Sorts the names of an option for the help: -n, --max-tokens, --n-predict"""
    flags = [f"--{name.replace('_', '-')}", *others]
    return sorted(flags, key=lambda flag: flag.startswith("--"))


class Number(click.ParamType[Any]):
    """The value of a setting."""

    def __init__(self, field: str) -> None:
        self.field = self.name = field

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return parsed(self.field, value) if isinstance(value, str) else value
        except BadInput as error:
            self.fail(str(error), param, ctx)


def _biases(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[int, float]:
    """Parses token ids and logit biases: 918=-2.5, 918-2.5"""
    biases: dict[int, float] = {}
    for text in given:
        try:
            token, bias = re.fullmatch(r"(\d+)(?:=|(?=[+-]))(.+)", text).groups()  # type: ignore[union-attr]
            biases[int(token)] = float(bias)
        except (AttributeError, ValueError):
            raise click.BadParameter(f"{text!r} is not a token id and a number, such as 918=-2.5.") from None
    return biases


def _form(_: click.Context, option: click.Parameter, value: str | None) -> str | bool | None:
    """A constraint as typed, or read from its file."""
    if value is None or option.name == "regex" or "{" in value:
        return value
    if option.name == "schema":
        return True if value == "json" else read_text(value, MAX_SETTING)
    is_text = ":" in value and not Path(value).is_file()  # a grammar, as each of its rules has a colon
    return value if is_text else read_text(value, MAX_SETTING)


def chosen(ctx: click.Context, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the user set, from the values of all options."""
    default = click.core.ParameterSource.DEFAULT
    return with_mirostat({name: settings[name] for name in settings if ctx.get_parameter_source(name) is not default})


def with_mirostat(picked: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings, with the target of mirostat in place of its switch."""
    mirostat = picked.pop("mirostat", None)
    if mirostat == "0":
        picked["mirostat_tau"] = 0.0
    elif mirostat is not None:
        picked.setdefault("mirostat_tau", MIROSTAT_TAU)
    return picked


def named(name: str) -> str:
    """Converts an option's name to its field; other names stay unchanged."""
    field = name.lstrip("-").replace("-", "_")
    return ALIASES.get(field, OPTIONS.get(field, field))


def field_of(name: str) -> str:
    """The setting with this name: a field, or the name of an option."""
    field = named(name)
    if field not in SETTINGS and field != "stop":
        near = difflib.get_close_matches(field, [*SETTINGS, "stop"], 1)
        remedy = f"did you mean {near[0]}?" if near else "/set lists the settings"
        raise BadInput(f"unknown setting {name!r}; {remedy}")
    return field


def parsed(name: str, value: str) -> Any:
    """Parses a setting's value. Raises BadInput with the allowed values."""
    if name == "stop":
        return (value.encode().decode("unicode_escape"),) if "\\" in value else (value,)
    kind = int if SPANS[name].whole else float
    try:
        number = kind(value)
    except ValueError:
        number = value  # type: ignore[assignment]
    return checked(name, number)


def checked(name: str, value: Any) -> Any:
    """A number in its range; -1 means no token limit, or a random seed."""
    if value == -1 and name in MINUS_ONE:
        return MINUS_ONE[name]
    if value not in SPANS[name]:
        more = ", or -1" if name in MINUS_ONE else ""
        raise BadInput(f"{name} is {value}; it must be {described(SPANS[name])}{more}")
    return value


def described(span: Span) -> str:
    """Describes a range. An end that is never reached in practice is left out."""
    if span.high < 1 << 31:
        return str(replace(span, optional=False))
    return f"a whole number of at least {span.low:g}"


def line_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a batch line, named as fields, command line options or in OpenAI's API."""
    settings: dict[str, Any] = {}
    for name, value in settings_of(values).items():
        if name in NOT_OURS:
            continue
        if name == "n":  # OpenAI's field for the number of answers
            if value != 1:
                raise BadInput(f"n is {value!r}; a line of a batch has one answer, repeat the line for more")
            continue
        field = named(name)
        if field in settings:
            raise BadInput(f"{name} is given twice, once by another name")
        settings[field] = MINUS_ONE[field] if value == -1 and field in MINUS_ONE else value
    return settings
