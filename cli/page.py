"""The help page of a command: its options by group, and their environment variables."""

import os
from typing import Any

import click

from .other_engines import owners, translated

PREFIX = "RWKV_GPU_"


class Grouped(click.Option):
    """An option shown in the help under the title of its group."""

    def __init__(self, *args: Any, group: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.group = group


class Page(click.Command):
    """A command whose help shows options in groups, and which translates options of other engines."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, translated(self, args))
        except click.NoSuchOption as error:
            found = owners(error.option_name, ctx.find_root())
            if not found:
                raise
            *others, last = [*(f"`rwkv-gpu {name}`" for name in found[:3]), *["others"] * (len(found) > 3)]
            names = f"{', '.join(others)} and {last}" if others else last
            raise click.UsageError(f"{error.option_name} is an option of {names}", ctx) from None
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                groups.setdefault(getattr(param, "group", "Options"), []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        named = [param for param in self.params if isinstance(param, click.Option) and param.envvar]
        if named:
            text = f"Options can be set in the environment: {example(named[0])}."
            with formatter.indentation():
                formatter.write_paragraph()
                formatter.write_text(text)


def name_environment(command: click.Command) -> None:
    """Names each option's environment variable: --chunk-size is RWKV_GPU_CHUNK_SIZE, in all commands.

    An option with a different meaning in other commands has its own variable, which the help shows.
    """
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_eager:
            if option.envvar is None:
                option.envvar = [PREFIX + variable(flag) for flag in option.opts if flag.startswith("--")]
            elif isinstance(option.envvar, str):
                option.show_envvar = True


def variable_in_use(ctx: click.Context | None, option: click.Parameter | None) -> str | None:
    """The environment variable that an option's value came from."""
    if ctx is None or option is None or option.name is None:
        return None
    if ctx.get_parameter_source(option.name) is not click.core.ParameterSource.ENVIRONMENT:
        return None
    names = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
    return next((name for name in names if os.environ.get(name)), None)


def variable(flag: str) -> str:
    """The variable of an option: CHUNK_SIZE for --chunk-size."""
    return flag.lstrip("-").replace("-", "_").upper()


def example(option: click.Option) -> str:
    """An example, such as `--device is RWKV_GPU_DEVICE`."""
    flag = next(flag for flag in option.opts if flag.startswith("--"))
    name = option.envvar if isinstance(option.envvar, str) else (option.envvar or [""])[0]
    return f"{flag} is {name}"
