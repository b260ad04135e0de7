"""`rwkv-gpu convert`: writes a checkpoint of a training program as GGUF."""

import os
from collections import Counter
from pathlib import Path

import click

from rwkv_gpu.convert.checkpoint import open_checkpoint
from rwkv_gpu.convert.convert import convert, default_type
from rwkv_gpu.gguf.mixes import MIXES
from rwkv_gpu.measure.sizes import sized

from .bars import quantise_bar
from .model_name import FileName, yes_option
from .page import Page
from .printing import print_text
from .replacing import may_replace
from .screen import Screen


@click.command("convert", cls=Page, epilog="Example: rwkv-gpu convert rwkv7-g1.pth rwkv7-g1.gguf --type Q4_K_M")
@click.argument("source", metavar="IN", type=FileName())
@click.argument("target", metavar="[OUT.gguf]", type=FileName(), required=False)
@click.option(
    "--type",
    "kind",
    default="",
    metavar="TYPE",
    help="A type of `quantize`. Default: F16; BF16 if IN has it; F32 for adapters.",
)  # fmt: skip
@yes_option("Replace OUT.gguf without asking.")
@click.option(
    "--chat-template",
    "template",
    default="",
    metavar="NAME",
    help="Chat template of the file: its text, or a name. Default: the folder's own; for RWKV's files rwkv-world "
    "(rwkv-g1 is for models that think).",
)
@click.option(
    "--base", type=FileName(), metavar="FOLDER",
    help="For an adapter: the folder of the model that it was trained on; its config.json is enough.",
)  # fmt: skip
def command(source: str, target: str | None, kind: str, template: str, base: str | None) -> None:
    """Write the checkpoint IN as GGUF: a model, or a LoRA adapter.

    IN is a folder of the Hugging Face hub: Llama, Mistral, Qwen2, Qwen3, Qwen3.5, Gemma 3, SmolLM3, LFM2, Mamba-2,
    BERT, RWKV-7 of flash-linear-attention, or a LoRA adapter of PEFT. Or it is a file of torch (.pth), safetensors
    (.st) or web-rwkv (.prefab) with RWKV-4 to RWKV-7. No code in it runs. Without OUT.gguf, the file is written in the
    folder IN, or next to the file IN, and named after IN and its type. Types:
    """
    path = Path(target) if target else default_target(Path(source), kind)
    if not may_replace(path):
        raise click.exceptions.Exit(1)
    with quantise_bar(Screen()) as bar:
        formats = convert(Path(source), path, kind, template, bar.update, Path(base) if base else None)
    shares = Counter(fmt.name for fmt in formats.values())
    counts = ", ".join(f"{count} {name}" for name, count in shares.most_common())
    print_text(f"{path}: {sized(path.stat().st_size)}; tensors: {counts}", err=True)


command.help = f"{(command.help or '').rstrip()} {', '.join(MIXES)}."


def default_target(source: Path, kind: str) -> Path:
    """The file in the folder of the checkpoint that has its name and type, as llama.cpp's converter names it."""
    kind, whole = kind or default_type(open_checkpoint(source)), source.resolve()
    folder, name = (whole, whole.name) if source.is_dir() else (whole.parent, whole.stem)
    return Path(os.path.relpath(folder / f"{name}-{kind.upper()}.gguf"))
