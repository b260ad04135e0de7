"""`rwkv-gpu quantize`: writes a model with fewer bits per weight."""

from collections import Counter
from pathlib import Path

import click

from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.imatrix import read_imatrix
from rwkv_gpu.gguf.mixes import MIXES, WRITABLE, Rule, mix_of, pure_mix
from rwkv_gpu.gguf.requantise import requantise

from .bars import quantise_bar
from .echo import echo_text
from .model_name import FileName, ModelName, naming_options
from .page import Page
from .screen import Screen
from .sizes import sized

TENSOR_TYPE = click.Choice([name.lower() for name in WRITABLE], case_sensitive=False)


@click.command("quantize", cls=Page, epilog="Example: rwkv-gpu quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M")
@click.argument("model", metavar="IN.gguf", type=ModelName())
@click.argument("target", metavar="OUT.gguf", type=FileName())
@click.argument("kind", metavar="TYPE")
@click.option(
    "--imatrix", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Importance matrix of llama-imatrix, as .gguf or .dat: columns that matter more get less error.",
)  # fmt: skip
@naming_options
@click.option("--pure", is_flag=True, help="All matrices as TYPE, those too that get more bits otherwise.")
@click.option("--leave-output-tensor", is_flag=True, help="Leave the output as it is.")
@click.option("--output-tensor-type", type=TENSOR_TYPE, metavar="TYPE", help="The output as TYPE, such as q8_0.")
@click.option("--token-embedding-type", type=TENSOR_TYPE, metavar="TYPE", help="The embedding of tokens as TYPE.")
@click.option(
    "--tensor-type", multiple=True, metavar="NAME=TYPE",
    help="Matrices whose names match the regular expression NAME as TYPE, such as attn_v=q8_0. Can be repeated.",
)  # fmt: skip
def command(
    model: str, target: str, kind: str, imatrix: Path | None, pure: bool, leave_output_tensor: bool,
    output_tensor_type: str | None, token_embedding_type: str | None, tensor_type: tuple[str, ...],
) -> None:  # fmt: skip
    """Write the model IN.gguf to OUT.gguf with its matrices as TYPE. Best from F16, BF16 or F32.

    Types have the names of llama-quantize; Q4_K_M and the like give some tensors more bits:
    """
    mix = pure_mix(mix_of(kind)) if pure else mix_of(kind)
    output = None if leave_output_tensor else output_tensor_type
    rules = [
        *([Rule(r"^output\.weight$", output)] if leave_output_tensor or output else []),
        *([Rule(r"^token_embd\.weight$", token_embedding_type)] if token_embedding_type else []),
        *(rule_of(text) for text in tensor_type),
    ]
    source = Path(ModelName.path(model) or model)
    weights = None if imatrix is None else read_imatrix(imatrix)
    with quantise_bar(Screen()) as bar:
        formats = requantise(source, Path(target), mix, weights, bar.update, rules)
    shares = Counter(fmt.name for fmt in formats.values())
    counts = ", ".join(f"{count} {name}" for name, count in shares.most_common())
    echo_text(f"{target}: {sized(Path(target).stat().st_size)}; tensors: {counts}", err=True)


def rule_of(text: str) -> Rule:
    """Parses a rule: NAME=TYPE"""
    pattern, equals, name = text.rpartition("=")
    if not (pattern and equals):
        raise BadInput(f"--tensor-type {text} is not NAME=TYPE, such as attn_v=q8_0")
    return Rule(pattern, name)


command.help = f"{(command.help or '').rstrip()} {', '.join(MIXES)}."
