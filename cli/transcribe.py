"""`rwkv-gpu transcribe`: prints the text of an audio file."""

import json
from typing import Any

import click

from rwkv_gpu.errors import BadInput
from rwkv_gpu.llm.completion import GREEDY, Settings
from rwkv_gpu.llm.images import recording_of
from rwkv_gpu.llm.transcription import transcription_message

from .chat_stats import truncation
from .echo import echo_text
from .generate import as_data, generated, stats_line
from .load_model import load_model
from .options import loading_options, model_arguments, shared
from .page import Page
from .printing import print_text
from .sampling import chosen, sampling_options
from .screen import Screen
from .session_file import expanded
from .texts import template_text

DEFAULTS: Settings = {**GREEDY, "max_tokens": 4096}


@click.command("transcribe", cls=Page, epilog="Example: rwkv-gpu transcribe voxtral.gguf speech.mp3")
@model_arguments("FILE", default=None)
@click.option("-p", "--prompt", default="", metavar="TEXT", help='Ask this in place of "Transcribe audio to text".')
@click.option("--language", default="", metavar="NAME", help="The language that is spoken, such as en.")
@shared("template", "as_json")
@sampling_options(DEFAULTS)
@loading_options
@click.pass_context
def command(
    ctx: click.Context, /, model: str | None, arguments: tuple[str, ...], prompt: str, language: str,
    template: str | None, as_json: bool, loading: dict[str, Any], **options: Any,
) -> None:  # fmt: skip
    """Print the text of an audio file: WAV, FLAC, MP3 or OGG, up to 40 minutes.

    MODEL is a chat model with a projector for audio, such as Voxtral, Ultravox or Qwen2-Audio.
    """
    if model is None:
        raise BadInput("name a model that takes audio before the file, such as voxtral.gguf")
    recording = recording_of(expanded(arguments[0]))
    screen = Screen()
    with load_model(model, screen, sequences=1, **loading) as llm:
        settings: dict[str, Any] = {**llm.default_settings(DEFAULTS), **chosen(ctx, options)}
        talk = llm.chat(
            messages=[transcription_message(recording, prompt, language)],
            template=None if template is None else template_text(template),
        )
        most = settings["max_tokens"]
        done = generated(
            lambda on_prompt: talk.regenerate(on_prompt=on_prompt, **settings), most, screen, None if as_json else ""
        )
    if as_json:
        data = {**as_data(done), "seconds": round(recording.seconds, 3)}
        echo_text(json.dumps(data, ensure_ascii=False, indent=2))
    else:
        echo_text("")
        print_text(f"{recording.seconds:.1f} s of audio, {stats_line(done.stats)}", err=True)
    if (cut := truncation(done, most, settings)) is not None:
        print_text(f"rwkv-gpu: {cut}", err=True)
