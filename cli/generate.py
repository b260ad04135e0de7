"""`rwkv-gpu generate`: continue a text."""

import json
from typing import Any

import click

from rwkv_gpu import Completion
from rwkv_gpu.llm.completion import GREEDY

from .bars import prompt_bar
from .load_model import load_model
from .options import FileName, json_option, model_or_builtin, opening_options
from .sampling import given, sampling_options
from .screen import Screen
from .texts import given_text


@click.command("generate", epilog='Example: rwkv-gpu generate model.gguf -p "The sea" -n 64')
@model_or_builtin
@click.option("-p", "--prompt", help="The text to continue; from standard input where it is not given.")
@click.option("-f", "--file", "path", type=FileName(), help="Read the text to continue from a file.")
@sampling_options(GREEDY)
@opening_options
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str,
    prompt: str | None,
    path: str | None,
    opening: dict[str, Any],
    as_json: bool,
    **settings: Any,
) -> None:
    """Continue a text with MODEL, or with the built-in model.

    The text goes to standard output, the statistics to standard error.
    """
    text = given_text(prompt, path, "--prompt")
    screen = Screen()
    with load_model(model, screen, sequences=1, **opening) as llm, prompt_bar(screen) as bar:
        generation = llm.stream(text, on_prompt=bar.update, **given(ctx, settings))
        for event in generation:
            bar.close()
            if not as_json:
                click.echo(event.text, nl=False)
    done = generation.completion
    if as_json:
        click.echo(json.dumps(as_data(done), ensure_ascii=False, indent=2))
        return
    click.echo()
    stats = done.stats
    click.echo(f"prompt {stats.prompt_tokens} at {stats.prompt_rate:.1f} tok/s", err=True, nl=False)
    click.echo(f", new {stats.new_tokens} at {stats.decode_rate:.1f} tok/s", err=True)


def as_data(done: Completion) -> dict[str, Any]:
    """A completion for machines."""
    return {
        "text": done.text,
        "tokens": list(done.tokens),
        "finish_reason": done.finish_reason,
        "prompt_tokens": done.stats.prompt_tokens,
        "new_tokens": done.stats.new_tokens,
        "prompt_tokens_per_second": round(done.stats.prompt_rate, 2),
        "decode_tokens_per_second": round(done.stats.decode_rate, 2),
    }
