"""`rwkv-gpu info`: shows what a model is."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from rwkv_gpu.engine.cache.config import DEFAULT_CHUNK, DEFAULT_SEQUENCES, CacheOptions
from rwkv_gpu.engine.split_layout import choices_of, device_names
from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.formats import SIZES
from rwkv_gpu.gpu.adapters import Choice
from rwkv_gpu.llm.load_options import room_of
from rwkv_gpu.models.registry import load_model

from .fit import Wanted, describe, describe_layout, laid_out, measure
from .options import model_arguments, shared
from .page import Page
from .sizes import context_text, sized


@click.command("info", cls=Page, epilog="Example: rwkv-gpu info model.gguf --tensors")
@model_arguments()
@click.option("--tensors", is_flag=True, help="List every tensor.")
@shared("as_json", "device")
def command(model: str, tensors: bool, device: str, as_json: bool) -> None:
    """Show what MODEL, or the built-in model, is: its architecture, sizes, quantisation, tokenizer and memory."""
    with GGUFFile.open(model) as file:
        choices = choices_of(device_names(device))
        data = summary(file)
        shown = {label: _shown(value) for label, value in data.items()}
        try:
            context, need = needs(file, choices)
            data["context"] = context
            shown["context"] = context_text(context, data.get("trained context"))
            shown.pop("trained context", None)
        except RwkvGpuError as error:  # an unsupported model in a valid file is shown anyway
            need = f"cannot run here: {error}"
        rows = [(t.name, SIZES[t.type].name, list(t.shape), t.nbytes) for t in file.tensors.values()]
    if as_json:
        listed = [dict(zip(("name", "type", "shape", "bytes"), row, strict=True)) for row in rows]
        whole = {**data, "needs": need, **({"tensors": listed} if tensors else {})}
        click.echo(json.dumps(whole, indent=2, default=lambda values: values.tolist()))  # arrays of numbers by layer
        return
    for label, text in shown.items():
        click.echo(f"{label:15} {text}")
    click.echo(f"{'needs':15} {need}")
    if tensors:
        click.echo()
        width = max((len(row[0]) for row in rows), default=0)
        for name, kind, shape, nbytes in rows:
            click.echo(f"{name:{width}}  {kind:7} {'x'.join(map(str, shape)):>16} {sized(nbytes):>12}")


def needs(file: GGUFFile, choices: Sequence[Choice]) -> tuple[int | None, str]:
    """The context that fits, and the memory that the model needs: on the device, or on several together."""
    model = load_model(file)
    rows, context, tokens = room_of(model, DEFAULT_SEQUENCES, DEFAULT_CHUNK, None)
    wanted = Wanted(file, model, chunk_size=rows or DEFAULT_CHUNK)
    options: CacheOptions = {"slots": DEFAULT_SEQUENCES, "context": context, "tokens": tokens}
    if len(choices) == 1:
        result = measure(wanted, choices[0], options)
        return result.context, describe(result, choices[0])[0]
    with laid_out(wanted, choices, None, options) as layout:
        return layout.options["context"], f"{describe_layout(layout)[0]}: {' + '.join(layout.names)}"


def summary(file: GGUFFile) -> dict[str, Any]:
    """The main facts from the metadata and the tensor table."""
    arch = file.str("general.architecture")
    formats: Counter[str] = Counter()
    for tensor in file.tensors.values():
        formats[SIZES[tensor.type].name] += tensor.nbytes
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    heads = file.metadata.get(f"{arch}.attention.head_count")  # a number, or one for each layer
    facts: dict[str, Any] = {
        "file": str(file.path),
        "name": file.metadata.get("general.name"),
        "architecture": arch,
        "parameters": sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        "bytes": file.nbytes,
        "layers": file.metadata.get(f"{arch}.block_count"),
        "width": file.metadata.get(f"{arch}.embedding_length"),
        "feed forward": file.metadata.get(f"{arch}.feed_forward_length"),
        "heads": None if isinstance(heads, int) and not heads else heads,
        "head size": file.metadata.get(f"{arch}.wkv.head_size"),
        "experts": file.metadata.get(f"{arch}.expert_count"),
        "trained context": file.metadata.get(f"{arch}.context_length"),
        "tokenizer": file.metadata.get("tokenizer.ggml.model"),
        "vocabulary": len(tokens) if isinstance(tokens, list) else None,
        "chat template": "tokenizer.chat_template" in file.metadata,
        "formats": dict(formats.most_common()),
    }
    return {label: value for label, value in facts.items() if value is not None}


def _shown(value: Any) -> str:
    if hasattr(value, "tolist") and len(value):  # numbers by layer
        least, most = min(value.tolist()), max(value.tolist())
        return f"{most:,}" if least == most else f"{least:,} to {most:,}, by layer"
    if isinstance(value, dict):
        total = sum(value.values()) or 1
        return ", ".join(f"{name} {sized(nbytes)} ({nbytes / total:.0%})" for name, nbytes in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
