"""`rwkv-gpu quantize`: writes a model with fewer bits a weight."""

from collections import Counter
from pathlib import Path

import click

from rwkv_gpu.gguf.imatrix import read_imatrix
from rwkv_gpu.gguf.mixes import MIXES, mix_of
from rwkv_gpu.gguf.requantise import requantise

from .bars import quantise_bar
from .model_name import FileName, ModelName
from .page import Page
from .screen import Screen
from .sizes import sized


@click.command("quantize", cls=Page, epilog="Example: rwkv-gpu quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M")
@click.argument("model", metavar="IN.gguf", type=ModelName())
@click.argument("target", metavar="OUT.gguf", type=FileName())
@click.argument("kind", metavar="TYPE")
@click.option(
    "--imatrix", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Importance matrix of llama-imatrix, as .gguf or .dat: columns that matter more get less error.",
)  # fmt: skip
def command(model: str, target: str, kind: str, imatrix: Path | None) -> None:
    """Write the model IN.gguf to OUT.gguf with its matrices as TYPE. Best from F16, BF16 or F32.

    Types have the names of llama-quantize; Q4_K_M and the like give some tensors more bits:
    """
    mix = mix_of(kind)
    source = Path(ModelName.path(model) or model)
    weights = None if imatrix is None else read_imatrix(imatrix)
    with quantise_bar(Screen()) as bar:
        formats = requantise(source, Path(target), mix, weights, bar.update)
    shares = Counter(fmt.name for fmt in formats.values())
    counts = ", ".join(f"{count} {name}" for name, count in shares.most_common())
    click.echo(f"{target}: {sized(Path(target).stat().st_size)}; tensors: {counts}", err=True)


command.help = f"{(command.help or '').rstrip()} {', '.join(MIXES)}."
