"""`rwkv-gpu generate`: continue a text."""

import json
import sys
from typing import Any

import click

import rwkv_gpu
from rwkv_gpu import SamplingParams
from rwkv_gpu.engine.room import Kind
from rwkv_gpu.errors import BadInput

from .options import chunk_option, context_option, device_option, json_option, kv_option, model_argument


@click.command("generate", epilog='Example: rwkv-gpu generate model.gguf -p "The sea" -n 64')
@model_argument
@click.option("-p", "--prompt", help="The text to continue; from standard input where it is not given.")
@click.option("-f", "--file", "path", type=click.Path(), help="Read the text to continue from a file.")
@click.option(
    "-n", "--max-tokens", type=click.IntRange(1), default=128, show_default=True, help="Tokens to say at most."
)
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="0 takes the likeliest.")
@click.option("--top-k", type=int, default=0, show_default=True, help="Draw from so many of the likeliest; 0 is all.")
@click.option("--top-p", type=float, default=1.0, show_default=True, help="Draw from the likeliest that sum to this.")
@click.option("--min-p", type=float, default=0.0, show_default=True, help="Drop what is less likely than this share.")
@click.option("--repeat-penalty", type=float, default=1.0, show_default=True, help="Above 1 makes said tokens rarer.")
@click.option("--stop", multiple=True, help="End before this text; may be given several times.")
@click.option("--seed", type=int, help="For a temperature above 0: the same seed says the same.")
@chunk_option
@context_option
@kv_option
@device_option
@json_option
def command(
    model: str,
    prompt: str | None,
    path: str | None,
    chunk_size: int,
    context: int | None,
    kv: Kind,
    device: str,
    as_json: bool,
    repeat_penalty: float,
    **sampling: Any,
) -> None:
    """Continue a text with MODEL. The text goes to standard output, the statistics to standard error."""
    text = _prompt(prompt, path)
    params = SamplingParams(repetition_penalty=repeat_penalty, **sampling)
    with rwkv_gpu.load(model, device=device, chunk_size=chunk_size, context=context, kv=kv) as llm:
        generation = llm.stream(text, params)
        for event in generation:
            if not as_json:
                click.echo(event.text, nl=False)
    done = generation.completion
    stats = done.stats
    if as_json:
        data = {
            "text": done.text,
            "tokens": list(done.tokens),
            "finish_reason": done.finish_reason,
            "prompt_tokens": stats.prompt_tokens,
            "new_tokens": stats.new_tokens,
            "prompt_tokens_per_second": round(stats.prompt_rate, 2),
            "decode_tokens_per_second": round(stats.decode_rate, 2),
        }
        click.echo(json.dumps(data, ensure_ascii=False, indent=2))
        return
    click.echo()
    click.echo(f"prompt {stats.prompt_tokens} at {stats.prompt_rate:.1f} tok/s", err=True, nl=False)
    click.echo(f", new {stats.new_tokens} at {stats.decode_rate:.1f} tok/s", err=True)


def _prompt(prompt: str | None, path: str | None) -> str:
    """The text to continue: given, from a file, or from standard input."""
    if prompt is not None and path is not None:
        raise BadInput("give the prompt by --prompt or by --file, not both")
    if prompt is not None:
        return _checked(prompt.encode("utf-8", "surrogateescape"), "--prompt")
    if path is None:
        return _checked(sys.stdin.buffer.read(), "standard input")
    try:
        with open(path, "rb") as file:
            return _checked(file.read(), path)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None


def _checked(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"the prompt from {where} is not UTF-8 at byte {error.start}; convert it first") from None
