"""`rwkv-gpu info`: shows what a model is."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rwkv_gpu.engine.cache.config import DEFAULT_CHUNK, DEFAULT_CONTEXT, DEFAULT_SEQUENCES, CacheConfig, CacheOptions
from rwkv_gpu.engine.split_layout import choices_of, device_names
from rwkv_gpu.errors import NAME, RwkvGpuError, printable
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gguf.formats import SIZES
from rwkv_gpu.gpu.adapters import Choice
from rwkv_gpu.llm.drafts import DraftOptions, drafts_of
from rwkv_gpu.llm.load_options import room_of
from rwkv_gpu.measure.sizes import sized
from rwkv_gpu.models.registry import Model, load_model
from rwkv_gpu.vision.projector_names import ARCHITECTURE, projectors_next_to

from .fit import FitRequest, describe, describe_layout, laid_out, measure
from .folders import HEADER, chosen
from .options import model_arguments, shared
from .page import Page
from .printing import print_facts, print_table
from .sizes import context_text

if TYPE_CHECKING:
    from rwkv_gpu.vision.media_projector import MediaProjector


@click.command("info", cls=Page, epilog="Example: rwkv-gpu info model.gguf --tensors")
@model_arguments(file=True, weights=False)
@click.option("--tensors", is_flag=True, help="List every tensor.")
@shared("as_json")
@click.option(
    "--device", metavar="auto|cpu|INDEX|NAME", help="Also check whether the model fits on this device, as `fit` does."
)
def command(model: str, tensors: bool, device: str | None, as_json: bool) -> None:
    """Show what MODEL, or the built-in model, is: its architecture, sizes, quantisation, tokenizer and memory.

    Only the file is read. `rwkv-gpu fit`, or --device, checks the memory of a device.
    """
    with GGUFFile.open(model) as file:
        data = summary(file) | projector_facts(file)
        if name := chosen(HEADER):
            data["file"] = name
        shown = {label.replace("_", " "): _shown(value) for label, value in data.items()}
        try:
            need = needs(file) if device is None else needs_on(file, choices_of(device_names(device)))
            data |= need.data
            shown |= {"context": context_text(need.context, data.get("trained_context")), "needs": need.text}
            shown.pop("trained context", None)
        except RwkvGpuError as error:  # an unsupported model in a valid file is shown anyway
            data["error"], shown["needs"] = str(error), f"cannot run here: {error}"
        rows = [(t.name, SIZES[t.type].name, list(t.shape), t.nbytes) for t in file.tensors.values()]
    if as_json:
        listed = [dict(zip(("name", "type", "shape", "bytes"), row, strict=True)) for row in rows]
        whole = {**data, **({"tensors": listed} if tensors else {})}
        click.echo(json.dumps(whole, indent=2, default=lambda values: values.tolist()))  # arrays of numbers by layer
        return
    print_facts(shown.items())
    if tensors:
        click.echo()
        cells = [(name, kind, "x".join(map(str, shape)), sized(nbytes)) for name, kind, shape, nbytes in rows]
        print_table(("tensor", "type", "shape", "size"), cells, right=["shape", "size"])


@dataclass(frozen=True)
class Need:
    """The context and memory that a model needs, as a sentence and as data."""

    context: int | None
    text: str
    data: Mapping[str, Any]


def needs(file: GGUFFile) -> Need:
    """Returns the memory that the model needs on any GPU: the file's weights, and states for the default sequences."""
    model, most = _in_use(file)
    rows, context, tokens = room_of(model, DEFAULT_SEQUENCES, DEFAULT_CHUNK, None)
    context = context or min(model.context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    config = CacheConfig.of(
        model,
        chunk_size=rows or DEFAULT_CHUNK,
        slots=DEFAULT_SEQUENCES,
        context=context,
        tokens=tokens or context,
        drafts=most,
    )
    state = config.total(model.caches, model.states)
    of = f"{context:,} tokens" if model.caches else f"{DEFAULT_SEQUENCES} sequences"
    text = f"{sized(file.nbytes + state)}: weights {sized(file.nbytes)}, state of {of} {sized(state)}, and scratch"
    limit = model.context if model.caches else None
    return Need(limit, text, {"context": limit, "weights_bytes": file.nbytes, "state_bytes": state})


def _in_use(file: GGUFFile) -> tuple[Model, int]:
    """The model with its head if it drafts, and the tokens of a draft."""
    model = load_model(file)
    with drafts_of(DraftOptions(), file, model) as drafts:
        return drafts.in_use(model), drafts.most


def needs_on(file: GGUFFile, choices: Sequence[Choice]) -> Need:
    """Returns the memory that the model needs on a device, or on several together, and whether it fits."""
    model, most = _in_use(file) if len(choices) == 1 else (load_model(file), 0)
    rows, context, tokens = room_of(model, DEFAULT_SEQUENCES, DEFAULT_CHUNK, None)
    wanted = FitRequest(file, model, chunk_size=rows or DEFAULT_CHUNK)
    options: CacheOptions = {"slots": DEFAULT_SEQUENCES, "context": context, "tokens": tokens}
    if len(choices) == 1:
        options["drafts"] = most
        result = measure(wanted, choices[0], options)
        data = {"context": result.context, "fits": result.fits, "needed_bytes": result.needed}
        return Need(result.context, _verdict(describe(result, choices[0])[0]), data)
    with laid_out(wanted, choices, None, options) as layout:
        context = layout.options["context"]
        text = f"{_verdict(describe_layout(layout)[0])}: {' + '.join(layout.names)}"
        return Need(context, text, {"context": context, "fits": layout.fitting, "needed_bytes": layout.needed})


def _verdict(line: str) -> str:
    """The first line of `fit`, after the label `needs`."""
    return line.removeprefix("yes: ").replace("no: ", "does not fit: ", 1).replace(" needed", "", 1)


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
        "feed_forward": file.metadata.get(f"{arch}.feed_forward_length"),
        "heads": None if isinstance(heads, int) and not heads else heads,
        "head_size": file.metadata.get(f"{arch}.wkv.head_size"),
        "draft_heads": file.metadata.get(f"{arch}.nextn_predict_layers") or None,
        "experts": file.metadata.get(f"{arch}.expert_count"),
        "trained_context": file.metadata.get(f"{arch}.context_length"),
        "tokenizer": file.metadata.get("tokenizer.ggml.model"),
        "vocabulary": len(tokens) if isinstance(tokens, list) else None,
        "chat_template": "tokenizer.chat_template" in file.metadata,
        "formats": dict(formats.most_common()),
    }
    return {label: value for label, value in facts.items() if value is not None}


def projector_facts(file: GGUFFile) -> dict[str, Any]:
    """The facts of a projector file, or the name of a projector next to a model."""
    is_projector = file.str("general.architecture") == ARCHITECTURE
    if not is_projector and not projectors_next_to(file.path):
        return {}
    from rwkv_gpu.vision.media_encoders import find_projector  # most models have no projector
    from rwkv_gpu.vision.media_projector import projector_of

    try:
        if is_projector:
            return _media_projector_facts(projector_of(file))
        found = find_projector(file, load_model(file))
    except RwkvGpuError as error:  # the error of a model is shown under the memory that it needs
        return {"projector": f"not supported: {error}"} if is_projector else {}
    return {} if found is None else {"projector": str(found.path), "projector_type": found.type}


def _media_projector_facts(projector: "MediaProjector") -> dict[str, Any]:
    facts: dict[str, Any] = {"projector_type": projector.type, "layers": len(projector.parts[0].tower.layers)}
    if projector.vision is not None:
        sizes, side = projector.vision.preparation, projector.vision.preparation.side
        most = sizes.most // sizes.step**2
        facts["patch"] = sizes.patch
        facts["images"] = f"{side} x {side} pixels" if side else f"of any shape, {most:,} rows at most"
    if projector.audio is not None:
        audio = projector.audio
        facts["audio"] = f"{audio.rows_of_30_seconds} rows for 30 seconds, {audio.stem.mels} mel bands"
    return {**facts, "row_width": projector.parts[0].width}


def _shown(value: Any) -> str:
    if hasattr(value, "tolist") and len(value):  # numbers by layer
        least, most = min(value.tolist()), max(value.tolist())
        return f"{most:,}" if least == most else f"{least:,} to {most:,}, by layer"
    if isinstance(value, dict):
        total = sum(value.values()) or 1
        return ", ".join(f"{name} {sized(nbytes)} ({nbytes / total:.0%})" for name, nbytes in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else printable(str(value), NAME)
