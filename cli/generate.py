"""`rwkv-gpu generate`: generates text that continues a prompt."""

import json
from collections.abc import Callable
from typing import Any

import click

from rwkv_gpu import Completion, Stats
from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.completion import GREEDY
from rwkv_gpu.llm.generation import Generation, OnPrompt

from .bars import prompt_bar, tokens_bar
from .chat_stats import gain_text, truncation
from .echo import echo_text
from .load_model import load_model
from .model_name import FileName
from .options import loading_options, model_arguments, shared
from .page import Page
from .printing import print_text
from .sampling import chosen, sampling_options
from .screen import Screen
from .sizes import at_rate
from .texts import input_text, template_text


@click.command("generate", cls=Page, epilog='Example: rwkv-gpu generate model.gguf -p "The sea" -n 64')
@model_arguments("[PROMPT]...", instead=["prompt", "path"], asks=True)
@click.option("-p", "--prompt", help="The same as PROMPT. Without it and --file, standard input is read.")
@click.option(
    "-f", "--file", "path", type=FileName(), envvar="RWKV_GPU_GENERATE_FILE", help="Read the prompt from a file."
)
@click.option("--suffix", metavar="TEXT", help="Generate the text between the prompt and this, with models for code.")
@click.option("--chat", is_flag=True, help="Apply the chat template: the prompt is a user's message.")
@shared("system", "template", "images")
@click.option("--echo", is_flag=True, help="Print the prompt before the text.")
@shared("as_json")
@sampling_options(GREEDY)
@loading_options
@click.pass_context
def command(
    ctx: click.Context, /, model: str, arguments: tuple[str, ...], prompt: str | None, path: str | None,
    suffix: str | None, chat: bool, system: str | None, template: str | None, images: tuple[str, ...], echo: bool,
    loading: dict[str, Any], as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Generate text that continues a prompt, with MODEL or the built-in model.

    The text goes to standard output; statistics and progress go to standard error.
    """
    if not chat and (system is not None or template is not None or images):
        raise BadInput("--system, --template, --image and --audio are for chats; add --chat to apply the chat template")
    if chat and suffix is not None:
        raise BadInput("--suffix is for prompts without a chat template; leave out --chat")
    text = input_text(" ".join(arguments) or prompt, path, "--prompt")
    screen = Screen()
    with load_model(model, screen, sequences=1, **loading) as llm:
        # An answer begins on a new line, unlike a continuation
        shown = None if as_json else "" if not echo else text + "\n" if chat else text
        settings: dict[str, Any] = {**llm.default_settings(GREEDY), **chosen(ctx, options)}
        start = text if suffix is None else llm.infill_prompt(text, suffix)

        def begun(on_prompt: OnPrompt) -> Generation:
            if not chat:
                return llm.stream(start, on_prompt=on_prompt, **settings)
            talk = llm.chat(system, template=None if template is None else template_text(template))
            return talk.stream(text, images=images, on_prompt=on_prompt, **settings)

        done = generated(begun, settings["max_tokens"], screen, shown)
    end = suffix if echo and suffix else ""
    if as_json:
        echo_text(json.dumps(as_data(done, text if echo else "", end), ensure_ascii=False, indent=2))
    else:
        echo_text(end)
        stats = done.stats
        print_text(stats_line(stats), err=True)
    if (cut := truncation(done, settings["max_tokens"], settings)) is not None:
        print_text(f"rwkv-gpu: {cut}", err=True)


def stats_line(stats: Stats) -> str:
    """prompt 6 tokens at 200.0 tok/s, generated 64 at 52.3 tok/s"""
    line = f"prompt {stats.prompt_tokens} tokens{at_rate(stats.prompt_rate)}"
    line += f", generated {stats.new_tokens}{at_rate(stats.decode_rate)}"
    if stats.drafted_tokens:
        line += f", {stats.accepted_tokens} of {stats.drafted_tokens} drafted tokens right" + gain_text(stats)
    return line


def generated(start: Callable[[OnPrompt], Generation], most: int, screen: Screen, shown: str | None) -> Completion:
    """Reads the events of a generation of `most` tokens at most, and returns the completion.

    Prints `shown` and then the text as it arrives, after the prompt's progress bar has ended. With None, prints
    nothing.
    """
    with prompt_bar(screen) as prompt, tokens_bar(screen, prints=shown is not None) as tokens:
        generation = start(prompt.update)
        for count, event in enumerate(generation, 1):
            prompt.close()
            tokens.update(count, most)
            if shown is not None:
                echo_text(shown, nl=False)
                echo_text(event.text, nl=False, err=event.thinking)
                shown = ""
    echo_text(shown or "", nl=False)  # if no token follows the prompt
    return generation.completion


def as_data(done: Completion, prompt: str = "", suffix: str = "") -> dict[str, Any]:
    """A completion as JSON data, with the texts around it."""
    return {
        "text": prompt + done.text + suffix,
        **({"reasoning": done.reasoning} if done.reasoning else {}),
        "tokens": list(done.tokens),
        "finish_reason": done.finish_reason,
        "truncated": done.finish_reason == "length",
        "prompt_tokens": done.stats.prompt_tokens,
        "new_tokens": done.stats.new_tokens,
        "prompt_tokens_per_second": round(done.stats.prompt_rate, 2),
        **({"drafted_tokens": done.stats.drafted_tokens} if done.stats.drafted_tokens else {}),
        **({"accepted_tokens": done.stats.accepted_tokens} if done.stats.drafted_tokens else {}),
        **({"draft_gain": round(gain, 2)} if (gain := done.stats.draft_gain) is not None else {}),
        "decode_tokens_per_second": round(done.stats.decode_rate, 2),
    }
