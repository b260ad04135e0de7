"""`rwkv-gpu quantize`: writes a model with fewer bits per weight."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.imatrix import read_imatrix
from rwkv_gpu.gguf.mixes import MIXES, WRITABLE, Choice, Rule, choices_of, mix_of, pure_mix
from rwkv_gpu.gguf.requantise import requantise
from rwkv_gpu.gguf.scan import TensorInfo
from rwkv_gpu.measure.sizes import sized

from .bars import quantise_bar
from .model_name import FileName, ModelName, catalogue_option, yes_option
from .page import Page
from .printing import print_text
from .replacing import may_replace
from .screen import Screen

TENSOR_TYPE = click.Choice([name.lower() for name in WRITABLE], case_sensitive=False)


@click.command("quantize", cls=Page, epilog="Example: rwkv-gpu quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M")
@click.argument("model", metavar="IN.gguf", type=ModelName())
@click.argument("target", metavar="OUT.gguf", type=FileName())
@click.argument("kind", metavar="TYPE")
@click.option(
    "--imatrix", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Importance matrix of llama-imatrix, as .gguf or .dat: more important columns get smaller errors.",
)  # fmt: skip
@catalogue_option
@yes_option("Replace OUT.gguf, and download a missing model, without asking.")
@click.option("--pure", is_flag=True, help="Write all matrices as TYPE, without more bits for some.")
@click.option("--leave-output-tensor", is_flag=True, help="Leave the output matrix unchanged.")
@click.option(
    "--output-tensor-type", type=TENSOR_TYPE, metavar="TYPE", help="Write the output matrix as TYPE, such as q8_0."
)
@click.option("--token-embedding-type", type=TENSOR_TYPE, metavar="TYPE", help="Type of the token embedding.")
@click.option(
    "--tensor-type", multiple=True, metavar="NAME=TYPE",
    help="Type of matrices whose names match the regular expression NAME, such as attn_v=q8_0. Can be repeated.",
)  # fmt: skip
def command(
    model: str, target: str, kind: str, imatrix: Path | None, pure: bool, leave_output_tensor: bool,
    output_tensor_type: str | None, token_embedding_type: str | None, tensor_type: tuple[str, ...],
) -> None:  # fmt: skip
    """Write the model IN.gguf (F16, BF16 or F32 is best) to OUT.gguf with its matrices as TYPE.

    Types have the names of llama-quantize; Q4_K_M and the like give some tensors more bits:
    """
    mix = pure_mix(mix_of(kind)) if pure else mix_of(kind)
    output = None if leave_output_tensor else output_tensor_type
    rules = [
        *([Rule(r"^output\.weight$", output)] if leave_output_tensor or output else []),
        *([Rule(r"^token_embd\.weight$", token_embedding_type)] if token_embedding_type else []),
        *(rule_of(text) for text in tensor_type),
    ]
    source = Path(ModelName.file(model) or model)
    weights = None if imatrix is None else read_imatrix(imatrix)
    with GGUFFile.open(source) as file:
        tensors, choices = list(file.tensors.values()), choices_of(mix, list(file.tensors.values()), rules)
        same = any(Path(target).exists() and path.samefile(target) for path in file.paths)  # `requantise` refuses this
    if not same and not may_replace(Path(target)):
        raise click.exceptions.Exit(1)
    with quantise_bar(Screen()) as bar:
        requantise(source, Path(target), mix, weights, bar.update, rules)
    with GGUFFile.open(target) as file:
        written = list(file.tensors.values())
    for line in report(tensors, written, choices):
        print_text(line, err=True)


def report(before: Sequence[TensorInfo], after: Sequence[TensorInfo], choices: Mapping[str, Choice]) -> Iterator[str]:
    """The size before and after, the number of tensors by type, and why some have another type than TYPE."""
    yield f"{size_text(before)} -> {size_text(after)}"
    shares = Counter(tensor.stored.name for tensor in after)
    yield "tensors: " + ", ".join(f"{count} {name}" for name, count in shares.most_common())
    kept, others = Counter[str](), Counter[str]()
    for old, new in zip(before, after, strict=True):
        reason = choices[old.name].reason
        if old.stored == new.stored:
            kept[f"{new.stored.name}: {reason or 'already of this type'}"] += 1
        elif reason:
            others[f"{new.stored.name}: {reason}"] += 1
    yield from (f"  kept {count} {text}" for text, count in kept.most_common())
    yield from (f"  {count} {text}" for text, count in others.most_common())


def size_text(tensors: Sequence[TensorInfo]) -> str:
    """Bytes and bits per weight of tensors: 1.5 GiB (16.00 bits per weight)"""
    nbytes, weights = sum(t.nbytes for t in tensors), sum(math.prod(t.shape) for t in tensors)
    return f"{sized(nbytes)} ({8 * nbytes / max(1, weights):.2f} bits per weight)"


def rule_of(text: str) -> Rule:
    """Parses a rule: NAME=TYPE"""
    pattern, equals, name = text.rpartition("=")
    if not (pattern and equals):
        raise BadInput(f"--tensor-type {text} is not NAME=TYPE, such as attn_v=q8_0")
    return Rule(pattern, name)


command.help = f"{(command.help or '').rstrip()} {', '.join(MIXES)}."
