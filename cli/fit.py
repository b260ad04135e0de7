"""`rwkv-gpu fit`: checks whether a model fits in a device's memory."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from rwkv_gpu.engine.adapters import adapters_of
from rwkv_gpu.engine.cache.config import DEFAULT_CHUNK, DEFAULT_SEQUENCES, CacheOptions
from rwkv_gpu.engine.fit import NO_COMPANIONS, Companions, Fit, default_chunk, fit, with_context
from rwkv_gpu.engine.offload import ON_GPU, Offload
from rwkv_gpu.engine.split_layout import Layout, Split, choices_of, device_names, lay_out, shares_of
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.adapters import Choice
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.kernels.tuned import find as find_tuned
from rwkv_gpu.llm.drafts import DraftOptions, drafts_of
from rwkv_gpu.llm.folders import tuned_folder
from rwkv_gpu.llm.load_options import projector_for, room_of
from rwkv_gpu.measure.sizes import sized
from rwkv_gpu.models.lengthen import RopeScaling, lengthen
from rwkv_gpu.models.registry import Model, load_model
from rwkv_gpu.ops.kv_format import KVType
from rwkv_gpu.ops.vocabulary import StateType

from .options import model_arguments, placement_options, shared
from .page import Page
from .printing import print_text
from .sizes import context_text

if TYPE_CHECKING:
    from rwkv_gpu.vision.media_projector import MediaProjector


@click.command("fit", cls=Page, epilog="Example: rwkv-gpu fit model.gguf --device 0")
@model_arguments(file=True, weights=False)
@shared("as_json", "device", "split", "context", "chunk_size", "kv", "states", "lora", "draft", "no_draft")
@shared("draft_tokens", "mmproj", "no_mmproj")
@shared("rope_scaling", "rope_scale", "yarn_orig_ctx", into=lambda **values: {"rope": RopeScaling(*values.values())})
@placement_options
@click.pass_context
def command(
    ctx: click.Context, model: str, device: str, split: str | None, chunk_size: int | Literal["auto"],
    context: int | None, kv: KVType, states: StateType, lora: Sequence[tuple[str, float]], draft: str | None,
    no_draft: bool, draft_tokens: int | None, rope: RopeScaling, mmproj: str | None, no_mmproj: bool,
    offload: Offload, as_json: bool,
) -> None:  # fmt: skip
    """Check whether MODEL, or the built-in model, fits in a device's memory. Exit code 0 is yes, 1 is no.

    LoRA adapters, a draft model, the model's own head for drafts and a projector for images or audio are counted, too.
    """
    with ExitStack() as stack:
        file = stack.enter_context(GGUFFile.open(model))
        adapters = adapters_of(lora, file)
        file.separate = adapters.separate
        target = load_model(file)
        if lengthen(file, target, rope, context):
            target = load_model(file)
        path = None if draft is None else Path(draft)
        wanted_drafts = DraftOptions(path=path, tokens=draft_tokens, heads=not no_draft)
        drafts = stack.enter_context(drafts_of(wanted_drafts, file, target))
        names = device_names(device)
        if len(names) > 1:
            drafts = drafts.without_head()
        if drafts.fault:
            print_text(f"rwkv-gpu: the draft model is not used: {drafts.fault}", err=True)
        target = drafts.in_use(target)
        asked = None if chunk_size == "auto" else chunk_size
        rows, context, tokens = room_of(target, DEFAULT_SEQUENCES, asked, context)
        given = None if mmproj is None else Path(mmproj)
        projector = projector_for(file, target, given, finds=not no_mmproj, devices=len(names))
        companions = Companions(adapters, drafts.model)
        wanted = FitRequest(drafts.joined or file, target, companions, offload, rows or "auto", projector)
        options: CacheOptions = {
            "context": context, "tokens": tokens, "kv": kv, "states": states, "slots": DEFAULT_SEQUENCES,
            "drafts": drafts.most,
        }  # fmt: skip
        shares, choices = shares_of(split, len(names)), choices_of(names)
        if len(names) > 1:
            with laid_out(wanted, choices, shares, options) as layout:
                fits, data, lines = layout.fitting, layout_data(layout), describe_layout(layout)
        else:
            [choice] = choices
            result = measure(wanted, choice, options)
            fits, lines = result.fits, describe(result, choice)
            data = {"device": str(choice.adapter or "cpu"), "fits": fits, "needed": result.needed, **asdict(result)}
    if as_json:
        click.echo(json.dumps(data, indent=2))
    else:
        print_text("\n".join(lines))
    ctx.exit(0 if fits else 1)


@dataclass(frozen=True)
class FitRequest:
    """The model to check, and its options."""

    file: GGUFFile
    model: Model
    companions: Companions = NO_COMPANIONS
    offload: Offload = ON_GPU
    chunk_size: int | Literal["auto"] = "auto"
    projector: "MediaProjector | None" = None

    def companions_on(self, device: Device | None) -> Companions:
        """Returns the files that share a device with the model, including its projector."""
        return replace(self.companions, projector=0 if self.projector is None else self.projector.tower_bytes(device))


@contextmanager
def laid_out(wanted: FitRequest, choices: Sequence[Choice], split: Split, options: CacheOptions) -> Iterator[Layout]:
    """The model laid out over several devices, which are open inside the context."""
    chunk = DEFAULT_CHUNK if wanted.chunk_size == "auto" else wanted.chunk_size
    room: Any = options | {"chunk_size": chunk, "offload": wanted.offload, "companions": wanted.companions}
    layout = lay_out(wanted.file, wanted.model, choices, split, Device, **room)
    try:
        yield layout
    finally:
        layout.close()


def layout_data(layout: Layout) -> dict[str, Any]:
    """The location of each part, as data."""
    parts = [
        {"device": str(one.choice.adapter or "cpu"), "layers": [part.layers[0], part.layers[-1]], **asdict(fit)}
        for one, part, fit in zip(layout.devices, layout.parts, layout.fits, strict=True)
    ]
    return {"fits": layout.fitting, "needed": layout.needed, "context": layout.options["context"], "parts": parts}


def describe_layout(layout: Layout) -> list[str]:
    """The result, then a line per device."""
    count, context = len(layout.parts), context_text(layout.options["context"])
    where = f"on {count} devices" if count > 1 else "on one of the devices, without a split"
    lines = [f"{'yes' if layout.fitting else 'no'}: {sized(layout.needed)} needed {where}", f"  context  {context}"]
    for name, one in zip(layout.names, layout.fits, strict=True):
        free = "unknown" if one.available is None else sized(one.available)
        parts = ", ".join(f"{part} {sized(nbytes)}" for part, nbytes in one.parts.items())
        lines.append(f"  {name}: {sized(one.needed)} ({parts}), {free} free")
    return lines


def measure(wanted: FitRequest, choice: Choice, options: CacheOptions) -> Fit:
    """The memory that the model needs on the chosen device."""
    file, model, offload = wanted.file, wanted.model, wanted.offload
    if choice.adapter is None:
        companions = wanted.companions_on(None)
        return fit(None, file, model, companions, **with_context(None, file, model, companions=companions, **options))
    with Device(choice.adapter) as opened:
        chunk_size = wanted.chunk_size
        if chunk_size == "auto":
            tuned = find_tuned(choice.adapter, opened.capabilities, tuned_folder())
            chunk_size = default_chunk(opened, tuned)
        companions = wanted.companions_on(opened)
        options = with_context(opened, file, model, offload, companions, **options)
        return fit(opened, file, model, companions, chunk_size=chunk_size, offload=offload, **options)


def main_memory_lines(result: Fit) -> list[str]:
    """Describes the weights in main memory, and their cost per step; empty if everything is on the GPU."""
    if not result.host:
        return []
    free = "" if result.host_available is None else f" of {sized(result.host_available)} free"
    parts = [f"{result.host_layers} layers"] if result.host_layers else []
    parts += [f"the experts of {result.expert_layers} layers"] if result.expert_layers else []
    lines = [f"{' and '.join(parts) or 'matrices outside layers'}, {sized(result.host)}{free}"]
    if result.cached_experts:
        copies = f"{result.cached_experts} of {result.experts} experts of each have a copy on the GPU"
        lines.append(f"{copies}, {sized(result.cache)}")
    at_most = " at most" if result.cached_experts else ""
    if result.step_seconds and result.main_memory_rate:
        cost = f"{result.step_seconds * 1e3:.3g} ms{at_most} at the {result.main_memory_rate / 1e9:.1f} GB/s measured"
        lines.append(f"a token reads {sized(result.step_bytes)} there, {cost}")
    return lines


def describe(result: Fit, choice: Choice) -> list[str]:
    """The result, then the numbers."""
    where = str(choice.adapter or "cpu, numpy")
    free = "the driver does not report free memory" if result.available is None else f"{sized(result.available)} free"
    lines = [
        f"{'yes' if result.fits else 'no'}: {sized(result.needed)} needed, {free} ({where})",
        f"  context  {context_text(result.context)}",
        f"  weights  {sized(result.weights)}" + (", as float32" if choice.adapter is None else ""),
        f"  state    {sized(result.state)}",
        f"  scratch  {sized(result.scratch)}",
    ]
    lines += [f"  adapters {sized(result.adapters)}"] if result.adapters else []
    lines += [f"  draft    {sized(result.draft)}"] if result.draft else []
    lines += [f"  media    {sized(result.projector)}, once an image or sound is sent"] if result.projector else []
    lines += [f"  in main memory: {line}" for line in main_memory_lines(result)]
    if result.buffer_limit is not None and result.binding_limit is not None:
        lines.append(f"  limits   {sized(result.buffer_limit)} per buffer, {sized(result.binding_limit)} per binding")
    return lines
