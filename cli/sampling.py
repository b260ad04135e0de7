"""How tokens are chosen, as options: one table for all commands that say something, and for /set in the chat."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from rwkv_gpu.engine.sampling_params import SPANS, SamplingParams, Span
from rwkv_gpu.errors import BadInput

from .texts import read_text

Command = TypeVar("Command", bound=Callable[..., Any])

# The field of SamplingParams, other names of its option, and what it does.
SETTINGS: dict[str, tuple[tuple[str, ...], str]] = {
    "max_tokens": (("-n", "--n-predict"), "Tokens to say at most."),
    "temperature": (("--temp",), "How freely to draw; 0 takes the likeliest."),
    "top_k": ((), "Draw from so many of the likeliest; 0 is all."),
    "top_p": ((), "Draw from the likeliest that sum to this."),
    "min_p": ((), "Drop what is less likely than this share of the likeliest."),
    "seed": (("-s",), "The same seed says the same."),
    "repetition_penalty": (("--repeat-penalty",), "Above 1 makes what was said rarer."),
    "presence_penalty": ((), "Taken off the logit of what was said."),
    "frequency_penalty": ((), "Taken off as often as it was said."),
    "penalty_last_n": (("--repeat-last-n",), "Tokens that the penalties look back on; -1 is all."),
    "penalty_decay": ((), "Below 1, what was said fades by this factor a token."),
    "typical_p": (("--typical",), "Draw from what is about as surprising as expected; 1 is off."),
    "dry_multiplier": ((), "Against repeated phrases; 0 is off."),
    "dry_base": ((), "How steeply that grows with a phrase."),
    "dry_allowed_length": ((), "Tokens that may be repeated freely."),
    "dry_last_n": (("--dry-penalty-last-n",), "Tokens that it looks back on; -1 is all."),
    "xtc_probability": ((), "How often all but the least likely of the likely are dropped."),
    "xtc_threshold": ((), "From where on a token is likely."),
    "mirostat_tau": (("--mirostat-ent",), "The surprise to aim for, in bits; 0 is off."),
    "mirostat_eta": (("--mirostat-lr",), "How fast that is learned."),
}


FORMS = {
    "schema": ("JSON|FILE", "A JSON schema that the answer keeps to: the schema, or its file; `json` is any JSON."),
    "regex": ("TEXT", "A regular expression that the whole answer matches."),
    "grammar": ("TEXT|FILE", "A grammar that the answer keeps to, in Lark's form or in GBNF, or its file."),
}
ALIASES = {name.lstrip("-").replace("-", "_"): field for field, (names, _) in SETTINGS.items() for name in names}


def sampling_options(defaults: Mapping[str, Any]) -> Callable[[Command], Command]:
    """An option for each setting, --stop, and what gives an answer a form; `given` tells which of them were set."""

    def decorate(command: Command) -> Command:
        for name, (metavar, text) in reversed(FORMS.items()):
            command = click.option(f"--{name}", metavar=metavar, callback=_form, help=text)(command)
        text = "End before this text; may be given several times."
        command = click.option("--stop", multiple=True, metavar="TEXT", help=text)(command)
        for field, (names, text) in reversed(SETTINGS.items()):
            default = defaults.get(field, getattr(SamplingParams, field))
            flags = [*names, f"--{field.replace('_', '-')}"]
            command = click.option(
                *flags, field, type=ranged(SPANS[field]), default=default, show_default=True, help=text
            )(command)
        return command

    return decorate


def _form(_: click.Context, option: click.Parameter, value: str | None) -> str | bool | None:
    """A form as it is given, or from its file."""
    if value is None or option.name == "regex" or "{" in value:
        return value
    if option.name == "schema":
        return True if value == "json" else read_text(value)
    return read_text(value) if Path(value).is_file() else value


def given(ctx: click.Context, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the user said, of the options' values."""
    default = click.core.ParameterSource.DEFAULT
    return {name: value for name, value in settings.items() if ctx.get_parameter_source(name) is not default}


def ranged(span: Span) -> click.IntRange | click.FloatRange:
    """What click checks; numbers beyond all reason are left to the library."""
    high = span.high if span.high < 1 << 31 else None
    if span.whole:
        return click.IntRange(int(span.low), None if high is None else int(high))
    return click.FloatRange(span.low, high, min_open=span.above)


def field_of(name: str) -> str:
    """The setting of that name, as it was typed."""
    field = name.lstrip("-").replace("-", "_")
    field = ALIASES.get(field, field)
    if field not in SETTINGS and field != "stop":
        raise BadInput(f"there is no setting {name!r}; known: {', '.join((*SETTINGS, 'stop'))}")
    return field


def parsed(name: str, value: str) -> Any:
    """A setting's value as it was typed. BadInput says what it may be."""
    if name == "stop":
        return (value.encode().decode("unicode_escape"),) if "\\" in value else (value,)
    span = SPANS[name]
    try:
        number = int(value) if span.whole else float(value)
    except ValueError:
        raise BadInput(f"{name} is {value!r}; it must be {span}") from None
    if number not in span:
        raise BadInput(f"{name} is {value}; it must be {span}")
    return number
