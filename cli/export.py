"""`rwkv-gpu export`: writes a model's recorded plans and weights for programs without Python, or as a chat page."""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.errors import BadInput
from rwkv_gpu.export.files import MANIFEST, Tell, export_plan
from rwkv_gpu.export.page import export_single_file, export_web
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.mixes import mix_of
from rwkv_gpu.gguf.requantise import requantise
from rwkv_gpu.measure.sizes import sized

from .bars import quantise_bar
from .model_name import FileName, ModelName, naming_options
from .options import shared
from .page import Page
from .printing import print_text
from .screen import Screen

Export = Callable[[GGUFFile, Path, str, int | None, Tell], dict[str, Any]]
KINDS: dict[str, Export] = {"plan": export_plan, "web": export_web}


@click.command("export", cls=Page, epilog="Example: rwkv-gpu export web model.gguf site/")
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("model", metavar="MODEL.gguf", type=ModelName())
@click.argument("target", metavar="OUT", type=FileName())
@naming_options
@shared("context")
@click.option("--quant", metavar="TYPE", help="Quantise first, such as to Q4_K_M; types as in `rwkv-gpu quantize`.")
@click.option("--single-file", is_flag=True, help="With web: one HTML file, OUT, which also opens from a disk.")
def command(
    kind: str, model: str, target: str, context: int | None, quant: str | None, single_file: bool
) -> None:  # fmt: skip
    """Write MODEL to the folder OUT, for browsers and for WebGPU programs without Python.

    With web, OUT is a chat page that needs only a server for static files; with plan, it is the data and the
    JavaScript library alone. docs/export.md explains both, and the format.
    """
    if single_file and kind != "web":
        raise BadInput("--single-file is for `export web`; leave it out, or export web")
    write = export_single_file if single_file else KINDS[kind]
    with _quantised(Path(ModelName.file(model) or builtin_model()), quant) as file:
        manifest = write(file, Path(target), _digest(file), context, _tell)
    written = Path(target) if single_file else Path(target) / ("index.html" if kind == "web" else MANIFEST)
    data = sum(one["bytes"] for one in manifest["shards"])
    print_text(f"{written}: {len(manifest['shaders'])} shaders, {sized(data)} of weights", err=True)
    if kind == "web" and not single_file:
        print_text(f"try it: python3 -m http.server --directory {target}", err=True)


def _tell(variants: Sequence[Mapping[str, Any]]) -> None:
    """Prints which devices can run an export."""
    needs, most = variants[-1]["wgsl"], max(one["bytes"] for one in variants)
    extensions = f" with {', '.join(needs)}" if needs else ""
    print_text(
        f"runs on: any WebGPU device{extensions}, faster with subgroups; takes {sized(most)} of memory", err=True
    )


@contextmanager
def _quantised(path: Path, quant: str | None) -> Iterator[GGUFFile]:
    """The model's file, or a temporary file with fewer bits per weight."""
    if quant is None:
        with GGUFFile.open(path) as file:
            yield file
        return
    mix = mix_of(quant)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / f"{path.stem}-{quant.lower()}.gguf"
        with quantise_bar(Screen()) as bar:
            requantise(path, target, mix, None, bar.update, [])
        with GGUFFile.open(target) as file:
            yield file


def _digest(file: GGUFFile) -> str:
    """SHA-256 of all parts of a file."""
    digest = hashlib.sha256()
    for path in file.paths:
        with open(path, "rb") as part:
            while piece := part.read(1 << 22):
                digest.update(piece)
    return digest.hexdigest()
