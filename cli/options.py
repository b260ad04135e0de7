"""Options and arguments that several commands share."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import click
from click.core import ParameterSource

from rwkv_gpu.engine.offload import Offload, memory_size
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gpu.matrix_units import CHOICES

from .model_name import BUILTIN, FileName, ModelName, looks_like_model
from .page import Loading


def numbers(text: str) -> list[int]:
    """Whole numbers, separated by commas."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise click.BadParameter(f"'{text}' is not a list of whole numbers like 1,4,16")
    return [int(part) for part in parts]


def chunk_size(text: str) -> int | Literal["auto"]:
    """A number of tokens, or auto."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 16:
        raise click.BadParameter(f"'{text}' is neither auto nor a whole number from 1 to {1 << 16}")
    return int(text)


device_option = click.option(
    "--device",
    cls=Loading,
    default="auto",
    show_default=True,
    metavar="auto|cpu|INDEX|NAME",
    help="Device to run on: an index or part of a name from `rwkv-gpu devices`, or cpu. Several, such as 0,1 or all, "
    "run one model together; with `serve` and `batch` each has a copy, unless --split is given.",
)

split_option = click.option(
    "--split",
    "--tensor-split",
    "-ts",
    cls=Loading,
    metavar="N,N...|auto",
    help="One model over the devices of --device: shares of the layers, such as 3,1, or auto by memory and speed.",
)

chunk_option = click.option(
    "--chunk-size",
    cls=Loading,
    type=chunk_size,
    default="512",
    show_default=True,
    metavar="N|auto",
    help="Prompt tokens per step; auto uses what `rwkv-gpu tune` found.",
)

context_option = click.option(
    "-c",
    "--context",
    "--ctx-size",
    cls=Loading,
    type=click.IntRange(0),
    metavar="N",
    callback=lambda _ctx, _option, value: value or None,
    help="Context size in tokens, for transformers. Default (and 0): the trained context, or as much of it as fits.",
)

kv_option = click.option(
    "--kv",
    cls=Loading,
    type=click.Choice(["f16", "q8", "q4", "f32"]),
    default="f16",
    show_default=True,
    help="Precision of the KV cache, for transformers; q8 and q4 take half and a quarter of the memory.",
)


matrix_units_option = click.option(
    "--matrix-units",
    cls=Loading,
    type=click.Choice(CHOICES),
    default="auto",
    show_default=True,
    help="Use the GPU's matrix units (experimental): auto where `rwkv-gpu tune` found them right and faster.",
)


lookup_option = click.option(
    "--lookup",
    cls=Loading,
    is_flag=True,
    help="Draft tokens from what followed the same words earlier in the text; answers stay the same.",
)

draft_option = click.option(
    "-md",
    "--draft",
    "--model-draft",
    cls=Loading,
    metavar="MODEL.gguf",
    type=ModelName(),
    help="Small model with the same vocabulary that drafts tokens; answers stay the same.",
)

draft_tokens_option = click.option(
    "--draft-tokens",
    "--draft-max",
    cls=Loading,
    type=click.IntRange(1, 15),
    show_default="15, or 7 with a recurrent state",
    metavar="N",
    help="Most tokens of a draft, which one step verifies.",
)


def adapter(text: str) -> tuple[str, float]:
    """A file or a model's name, and how much of it is added: FILE or FILE:SCALE"""
    path, colon, scale = text.rpartition(":")
    if not colon or os.path.exists(text):
        return text, 1.0
    try:
        return path, float(scale)
    except ValueError:
        if looks_like_model(text):  # its quantisation is behind the colon
            return text, 1.0
        raise click.BadParameter(f"the scale of '{path}' is '{scale}'; it must be a number") from None


def named_adapters(adapters: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """The adapters of the option, each with the path of its file."""
    return [(ModelName.path(name) or name, scale) for name, scale in adapters]


lora_option = click.option(
    "--lora",
    cls=Loading,
    multiple=True,
    type=adapter,
    metavar="FILE[:SCALE]",
    help="LoRA adapter in a GGUF file. Can be repeated; a request to the server may scale each by its name.",
)

initial_state_option = click.option(
    "--initial-state",
    cls=Loading,
    type=FileName(),
    metavar="FILE",
    help="Tuned state (.pth of torch.save, or GGUF) that every text begins with, for RNNs.",
)

context_shift_option = click.option(
    "--context-shift",
    cls=Loading,
    type=click.IntRange(0),
    is_flag=False,
    flag_value=0,
    metavar="[KEEP]",
    help="Go on when the context is full: keep the first KEEP tokens and drop half of the others; "
    "a chat leaves out its oldest turns.",
)


def gpu_layers(text: str) -> int | None:
    """A number of layers; all is -1, auto is None."""
    if text in ("auto", "all"):
        return -1 if text == "all" else None
    try:
        return max(-1, int(text))
    except ValueError:
        raise click.BadParameter(f"'{text}' is not auto, all or a whole number") from None


def size(text: str) -> int:
    """A number of bytes: 8G"""
    try:
        return memory_size(text)
    except BadInput:
        raise click.BadParameter(f"'{text}' is no size such as 8G or 7500M") from None


PLACEMENT = {
    "gpu_layers": click.option(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        cls=Loading,
        type=gpu_layers,
        metavar="N|auto|all",
        help="Layers on the GPU, the last ones; the output counts as one. The GPU reads the others from main memory. "
        "Default: as many as fit.",
    ),
    "cpu_moe": click.option(
        "-cmoe",
        "--cpu-moe",
        cls=Loading,
        is_flag=True,
        help="Keep the experts of all layers in main memory, and those that were used last on the GPU.",
    ),
    "n_cpu_moe": click.option(
        "-ncmoe",
        "--n-cpu-moe",
        cls=Loading,
        type=click.IntRange(0),
        default=0,
        metavar="N",
        help="The same for the experts of the first N layers.",
    ),
    "gpu_memory": click.option(
        "--gpu-memory",
        cls=Loading,
        type=size,
        metavar="SIZE",
        help="GPU memory that the model may take, such as 8G. Default: what is free.",
    ),
}


LOADING = {
    "device": device_option,
    "split": split_option,
    "context": context_option,
    "chunk_size": chunk_option,
    "kv": kv_option,
    "matrix_units": matrix_units_option,
    "lookup": lookup_option,
    "draft": draft_option,
    "draft_tokens": draft_tokens_option,
    "context_shift": context_shift_option,
    "lora": lora_option,
    "initial_state": initial_state_option,
    **PLACEMENT,
}


def loading_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of how a model is loaded; the function gets them as one dict, `loading`."""

    @functools.wraps(function)
    def collected(*given: Any, **more: Any) -> Any:
        loading = {name: more.pop(name) for name in LOADING}
        loading |= {"draft": ModelName.path(loading["draft"]), "lora": named_adapters(loading["lora"])}
        return function(*given, loading=loading, **more)

    for option in reversed(LOADING.values()):
        collected = option(collected)
    return collected


def placement_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of what lies where; the function gets them as one `offload`."""

    @functools.wraps(function)
    def collected(*given: Any, **more: Any) -> Any:
        offload = Offload.of(**{name: more.pop(name) for name in PLACEMENT})
        return function(*given, offload=offload, **more)

    for option in reversed(PLACEMENT.values()):
        collected = option(collected)
    return collected


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

synthetic_option = click.option(
    "--synthetic",
    metavar="NAME",
    help="Random weights in the shape of a known model, such as rwkv7-2.9b-q4_k_m, instead of a file.",
)


def model_arguments(
    *others: str, default: str | None = BUILTIN, instead: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """[MODEL.gguf] and the arguments after it; the function gets `model`, and `arguments` where there are others.

    The model comes as the first argument or by -m, and can be left out. `others` are metavars: [TEXT] is optional, and
    [TEXT]... is any number. If the option `instead` is given, no argument follows the model.
    """

    def split(words: tuple[str, ...], named: bool, others: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
        """The model's name among the arguments, and the others."""
        most = None if any(name.endswith("...") for name in others) else len(others)
        required = [name for name in others if not name.startswith("[")]
        first = words[:1]
        if named or not first:
            is_model = False
        elif len(required) == len(others):
            is_model = len(words) > len(others) or looks_like_model(first[0], exists=False)
        else:
            is_model = looks_like_model(first[0])
        model, rest = (first[0], words[1:]) if is_model else (None, words)
        if len(rest) < len(required):
            raise click.UsageError(f"Missing argument '{required[len(rest)]}'.")
        if most is not None and len(rest) > most:
            raise click.UsageError(f"Got unexpected extra argument ({rest[most]}).")
        return model, rest

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def collected(*given: Any, words: tuple[str, ...], model_option: str | None, **more: Any) -> Any:
            source = click.get_current_context().get_parameter_source("model_option")
            named = source is ParameterSource.COMMANDLINE
            replaced = instead is not None and more[instead] is not None
            model, rest = split(words, named, () if replaced else others)
            if others:
                more["arguments"] = rest
            name = model_option if named else model or model_option or default
            return function(*given, model=ModelName.path(name), **more)

        option = click.option(
            "-m", "--model", "model_option", type=ModelName(), metavar="MODEL.gguf",
            help="The model, if it is not the first argument; `builtin` is the built-in one.",
        )  # fmt: skip
        metavar = " ".join(("[MODEL.gguf]", *others))
        return click.argument("words", nargs=-1, metavar=metavar, type=FileName())(option(collected))

    return decorate
