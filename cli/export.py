"""`rwkv-gpu export`: writes a model's recorded plans and weights for programs without Python."""

import hashlib
from pathlib import Path

import click

from rwkv_gpu.export.files import MANIFEST, export_plan

from .bench import opened
from .echo import echo_text
from .model_name import FileName, ModelName, naming_options
from .options import shared
from .page import Page
from .sizes import sized

KINDS = ("plan",)


@click.command("export", cls=Page, epilog="Example: rwkv-gpu export plan model.gguf model-web/")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("model", metavar="MODEL.gguf", type=ModelName())
@click.argument("target", metavar="OUT", type=FileName())
@naming_options
@shared("context")
def command(kind: str, model: str, target: str, context: int | None) -> None:  # noqa: ARG001
    """Write the plans of MODEL and its weights to the folder OUT, for WebGPU programs without Python.

    The manifest has shaders, dispatches, tokenizer and chat template as data; the weights are in the layout of the GPU.
    Scripts that run both in a browser lie next to them. docs/export.md explains the format.
    """
    folder = Path(target)
    with opened(ModelName.file(model), None) as file:
        digest = hashlib.sha256()
        for path in file.paths:
            with open(path, "rb") as part:
                while piece := part.read(1 << 22):
                    digest.update(piece)
        manifest = export_plan(file, folder, digest.hexdigest(), context)
    data = sum(one["bytes"] for one in manifest["shards"])
    needs = manifest["needs"]
    echo_text(f"{folder / MANIFEST}: {len(manifest['shaders'])} shaders, {sized(data)} of weights", err=True)
    extensions = f" with {', '.join(needs['wgsl'])}" if needs["wgsl"] else ""
    echo_text(f"runs on: any WebGPU device{extensions}; takes {sized(needs['bytes'])} of its memory", err=True)
