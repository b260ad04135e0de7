"""Options of other engines: translated to ours, ignored if not needed, or refused with the option to use."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources

import click

NOT_NEEDED = "not needed: "
SWITCHES = ("on", "off", "auto", "true", "false", "0", "1")  # values that may follow an option that is ignored

MODEL = "--model"  # an argument, not an option, of some commands


@dataclass(frozen=True)
class Replacement:
    """Options of an engine, and what replaces them here, in markdown."""

    engine: str
    names: tuple[str, ...]
    here: str
    ours: dict[str, str] = field(default_factory=dict)  # equal options, with the text before a value
    valued: tuple[str, ...] = ()  # names with a value
    rare: bool = False  # docs/comparison.md leaves it out

    @property
    def row(self) -> str:
        """The row of docs/comparison.md."""
        return f"| {self.engine} | {', '.join(f'`{name}`' for name in self.names)} | {self.here} |"


@cache
def others() -> tuple[Replacement, ...]:
    """All rows of the table."""
    text = resources.files(__package__).joinpath("other_engines.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["option"]
    return tuple(
        Replacement(
            one["engine"],
            tuple(one["names"]),
            one["here"],
            one.get("ours", {}),
            tuple(one.get("valued", ())),
            one.get("rare", False),
        )
        for one in rows
    )


def translated(command: click.Command, arguments: Sequence[str]) -> list[str]:
    """The arguments, with options of other engines replaced by ours. Options that are not needed are left out with a
    note.

    Options of the command itself, and their values, stay as they are.
    """
    own = {
        name: one for one in command.params if isinstance(one, click.Option) for name in one.opts + one.secondary_opts
    }
    words = list(arguments)
    result: list[str] = []
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            return [*result, word, *words]
        if not re.match(r"--?[a-zA-Z]", name) or name in own or not (other := _other(name)):
            result.append(_plain_flag(own[name], word, value) if name in own and equals else word)
            if name in own and not equals and not (own[name].is_flag or own[name].count) and words:
                result.append(words.pop(0))
            continue
        ours, joined, before = other.ours.get(name, "").partition("=")
        if ours in own or ours == MODEL:
            value = before * bool(joined) + (value if equals or not words else words.pop(0))
            result.append(f"{ours}={value}" if ours in own else value)
        elif other.here.startswith(NOT_NEEDED):
            takes = name in other.valued or (bool(words) and words[0] in SWITCHES)
            if takes and words and not equals:
                words.pop(0)
            note(f"{name} of {other.engine} is {plain(other.here)}")
        else:
            raise click.UsageError(f"{name} is an option of {other.engine}; here: {plain(other.here)}")
    return result


def _plain_flag(option: click.Option, word: str, value: str) -> str:
    """If the value says on or off, as in --think=false: the option as a flag. Otherwise the unchanged word."""
    if not option.is_flag or value.lower() not in SWITCHES:
        return word
    names = option.opts if value.lower() in ("on", "true", "1") else option.secondary_opts
    return names[0] if names else word


def note(text: str) -> None:
    """Prints a note to standard error."""
    from .printing import print_text

    print_text(f"rwkv-gpu: {text}", err=True)


def plain(text: str) -> str:
    """Converts a table cell to a sentence without a full stop."""
    return re.sub(r"\[[^]]*\]\(([^)]*)\)", r"docs/\1", text).replace("`", "").rstrip(".")


def _other(name: str) -> Replacement | None:
    return next((one for one in others() if any(fnmatchcase(name, pattern) for pattern in one.names)), None)


def owners(name: str | None, root: click.Context) -> list[str]:
    """The commands that have this option."""
    group = root.command
    if not isinstance(group, click.Group):
        return []
    commands = {title: group.get_command(root, title) for title in group.list_commands(root)}
    return [title for title, one in commands.items() if one and any(name in option.opts for option in one.params)]
