"""Options and arguments shared by several commands."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import click
from click.core import ParameterSource

from rwkv_gpu.engine.offload import Offload, memory_size
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gpu.matrix_units import CHOICES
from rwkv_gpu.llm.hub_names import BUILTIN
from rwkv_gpu.text.builtin_templates import BUILT_IN

from .model_name import (
    AdapterName,
    FileName,
    ModelName,
    could_be_model,
    is_short,
    looks_like_model,
    naming_options,
    remember,
)
from .page import PREFIX, Grouped, variable

Command = Callable[..., Any]


def numbers(text: str) -> list[int]:
    """Parses whole numbers separated by commas."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise click.BadParameter(f"'{text}' is not a list of whole numbers like 1,4,16")
    return [int(part) for part in parts]


def chunk_size(text: str) -> int | Literal["auto"]:
    """Parses a number of tokens, or auto."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 16:
        raise click.BadParameter(f"'{text}' is neither auto nor a whole number from 1 to {1 << 16}")
    return int(text)


def adapter(text: str) -> tuple[str, float]:
    """Parses an adapter, by file or model name, and its scale: FILE or FILE:SCALE"""
    path, colon, scale = text.rpartition(":")
    if not colon or os.path.exists(text):
        return text, 1.0
    try:
        return path, float(scale)
    except ValueError:
        if looks_like_model(text):  # the text after the colon is a quantisation, not a scale
            return text, 1.0
        raise click.BadParameter(f"the scale of '{path}' is '{scale}'; it must be a number") from None


def named_adapters(adapters: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """The adapters of the option, each with its file's path."""
    return [(AdapterName.path(name), scale) for name, scale in adapters]


def gpu_layers(text: str) -> int | None:
    """Parses a number of layers; all is -1, auto is None."""
    if text in ("auto", "all"):
        return -1 if text == "all" else None
    try:
        return max(-1, int(text))
    except ValueError:
        raise click.BadParameter(f"'{text}' is not auto, all or a whole number") from None


def size(text: str) -> int:
    """Parses a number of bytes: 8G"""
    try:
        return memory_size(text)
    except BadInput:
        raise click.BadParameter(f"'{text}' is not a size such as 8G or 7500M") from None


def _loading(*flags: str, **more: Any) -> Callable[[Command], Command]:
    """Defines an option about loading a model."""
    return click.option(*flags, cls=Grouped, group="Device and memory", **more)


# Options by parameter name: LOADING configures loading, PLACEMENT chooses between GPU and main memory.
PLACEMENT = {
    "gpu_layers": _loading(
        "-ngl", "--gpu-layers", "--n-gpu-layers", type=gpu_layers, metavar="N|auto|all",
        help="Number of last layers on the GPU; the output counts as one. The GPU reads the others from main memory. "
        "Default: as many as fit.",
    ),
    "cpu_moe": _loading(
        "-cmoe", "--cpu-moe", is_flag=True,
        help="Keep the experts of all layers in main memory; the GPU caches recently used ones.",
    ),
    "n_cpu_moe": _loading(
        "-ncmoe", "--n-cpu-moe", type=click.IntRange(0), default=0, metavar="N",
        help="Keep only the experts of the first N layers in main memory.",
    ),
    "gpu_memory": _loading(
        "--gpu-memory", type=size, metavar="SIZE",
        help="Limit of GPU memory for the model, such as 8G. Default: the free memory.",
    ),
}  # fmt: skip
LOADING = {
    "device": _loading(
        "--device", default="auto", show_default=True, metavar="auto|cpu|INDEX|NAME",
        help="Device to run on: an index or part of a name from `rwkv-gpu devices`, or cpu. Several devices, such as "
        "0,1 or all, share one model; in `serve` and `batch`, each has a copy unless --split is given.",
    ),
    "split": _loading(
        "--split", "--tensor-split", "-ts", metavar="N,N...|auto",
        help="Split one model over several devices: shares of the layers, such as 3,1, or auto by memory and speed.",
    ),
    "context": _loading(
        "-c", "--context", "--ctx-size", type=click.IntRange(0), metavar="N",
        callback=lambda _ctx, _option, value: value or None,
        help="Context size in tokens, for transformers. Default (and 0): the trained context, or as much of it as "
        "fits.",
    ),
    "chunk_size": _loading(
        "--chunk-size", type=chunk_size, default="auto", show_default=True, metavar="N|auto",
        help="Prompt tokens per step; auto is what `rwkv-gpu tune` found, else 512, or 1024 on large GPUs with matrix "
        "units.",
    ),
    "kv": _loading(
        "--kv", type=click.Choice(["f16", "q8", "q4", "f32"]), default="f16", show_default=True,
        help="Precision of the KV cache, for transformers; q8 and q4 take half and a quarter of the memory.",
    ),
    "states": _loading(
        "--states", type=click.Choice(["f32", "f16"]), default="f32", show_default=True,
        help="Precision of recurrent states, for RWKV, delta nets and Mamba-2; f16 takes half of the memory.",
    ),
    "matrix_units": _loading(
        "--matrix-units", type=click.Choice(CHOICES), default="auto", show_default=True,
        help="Use the GPU's matrix units; auto uses them if a test of the driver succeeds.",
    ),
    "lookup": _loading(
        "--lookup", is_flag=True,
        help="Draft tokens by prompt lookup: the tokens that followed the same words earlier. Answers stay the same.",
    ),
    "draft": _loading(
        "-md", "--draft", "--model-draft", metavar="MODEL.gguf", type=ModelName(),
        help="Draft model: a small model with the same vocabulary, or a file of the model's head (MTP, "
        "EAGLE-3, DFlash, Gemma 4's assistant). Answers stay the same.",
    ),
    "no_draft": _loading(
        "--no-draft", is_flag=True,
        help="Do not use the model's own draft heads, which some files have.",
    ),
    "draft_tokens": _loading(
        "--draft-tokens", "--draft-max", type=click.IntRange(1, 15), metavar="N",
        show_default="15, 7 with a recurrent state, 3 by a model's own head",
        help="Maximum number of drafted tokens that one step verifies.",
    ),
    "context_shift": _loading(
        "--context-shift", type=click.IntRange(0), is_flag=False, flag_value=0, metavar="[KEEP]",
        help="When the context is full, keep the first KEEP tokens, drop half of the others, and continue. A chat "
        "drops its oldest turns.",
    ),
    "lora": _loading(
        "--lora", multiple=True, type=adapter, metavar="FILE[:SCALE]",
        help="LoRA adapter in a GGUF file. Can be repeated; requests to the server may set scales by name.",
    ),
    "initial_state": _loading(
        "--initial-state", type=FileName(), metavar="FILE",
        help="Tuned initial state of an RNN: GGUF, .pth (torch.save) or .st (web-rwkv).",
    ),
    "rope_scaling": _loading(
        "--rope-scaling", type=click.Choice(["yarn", "linear", "none"]),
        help="RoPE scaling. Default: as in the file, or yarn if --context exceeds the trained context.",
    ),
    "rope_scale": _loading(
        "--rope-scale", type=float, metavar="X",
        help="Factor of RoPE scaling. Default: as in the file, or the factor that --context requires.",
    ),
    "yarn_orig_ctx": _loading(
        "--yarn-orig-ctx", type=int, metavar="N",
        help="Context of the model before YaRN. Default: as in the file, or the trained context.",
    ),
    "mmproj": _loading(
        "-mm", "--mmproj", type=FileName(), metavar="FILE", callback=remember,
        help="Projector (mmproj-*.gguf) for images or audio. Default: a matching file next to the model.",
    ),
    "no_mmproj": _loading("--no-mmproj", is_flag=True, callback=remember, help="Load no projector."),
    "override_kv": _loading(
        "--override-kv", multiple=True, metavar="KEY=TYPE:VALUE",
        help="Replace a key of the model's metadata; TYPE is int, float, bool or str. Can be repeated.",
    ),
    **PLACEMENT,
}  # fmt: skip
SHARED = {
    **LOADING,
    "as_json": click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    "synthetic": click.option(
        "--synthetic", metavar="NAME",
        help="Random weights in the shape of a known model, such as rwkv7-2.9b-q4_k_m, instead of a file.",
    ),
    "repeats": click.option(
        "-r", "--repeats", "--repetitions", type=click.IntRange(1), default=5, show_default=True, metavar="N",
        help="Number of repetitions of each measurement.",
    ),
    "system": click.option("-sys", "--system", "--system-prompt", metavar="TEXT", help="System prompt."),
    "images": click.option(
        "--image", "--audio", "images", multiple=True, type=FileName(), metavar="FILE",
        help="Image or audio file for the (first) message. Can be repeated.",
    ),
    "template": click.option(
        "--template", "--chat-template", metavar="NAME|FILE",
        help=f"Chat template: a jinja2 file, or one of {', '.join(BUILT_IN)}. Default: the model's own.",
    ),
}  # fmt: skip
RESOLVED: dict[str, Callable[[Any], Any]] = {"draft": ModelName.file, "lora": named_adapters}


def shared(*names: str, into: Callable[..., dict[str, Any]] = dict) -> Callable[[Command], Command]:
    """Adds the options with these names. `into` converts their values to arguments. Names of models become paths."""

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def collected(*given: Any, **more: Any) -> Any:
            values = {name: more.pop(name) for name in names}
            values |= {name: resolve(values[name]) for name, resolve in RESOLVED.items() if name in values}
            return function(*given, **into(**values), **more)

        for name in reversed(names):
            collected = SHARED[name](collected)
        return collected

    return decorate


def as_loading(*, no_mmproj: bool, **values: Any) -> dict[str, Any]:
    """The options about loading as arguments of `load`, in one dict."""
    if no_mmproj and values["mmproj"] is not None:
        raise BadInput("--mmproj names a projector, and --no-mmproj wants none; give one of them")
    return {"loading": values | ({"mmproj": False} if no_mmproj else {})}


loading_options = shared(*LOADING, into=as_loading)
placement_options = shared(*PLACEMENT, into=lambda **values: {"offload": Offload.of(**values)})
device_option = shared("device")


def counts_option(
    command: str, *flags: str, help: str, default: str | None = None, shown: str | bool = True
) -> Callable[[Command], Command]:
    """Defines an option that is a list of counts.

    Its environment variable is per command, because in other commands the option is a single number.
    """
    name = f"{PREFIX}{command.upper()}_{variable(next(flag for flag in flags if flag.startswith('--')))}"
    return click.option(
        *flags, type=numbers, default=default, show_default=shown, metavar="N,...", envvar=name, help=help
    )


def is_word_of_run(argument: str) -> bool:
    """True for a single word after `run`, which is always a model, as in ollama: `run codellama`"""
    return click.get_current_context().info_name == "run" and argument.isascii() and len(argument.split()) == 1


def model_arguments(
    *others: str,
    default: str | None = BUILTIN,
    instead: Sequence[str] = (),
    asks: bool = False,
    file: bool = False,
    weights: bool = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds [MODEL.gguf] and following arguments; the function gets `model`, and `arguments` if there are others.

    The model is the first argument or given by -m, and can be left out. `others` are metavars: [TEXT] is optional, and
    [TEXT]... is any number. If an option in `instead` is given, no argument follows the model. With `asks`, the
    arguments are a question. A first argument that looks like a model's name must be a known one. With `file`, the
    model is a GGUF file, also if a preset names it; without `weights`, the header of one on the hub is enough.
    """

    def split(words: tuple[str, ...], named: bool, others: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
        """Splits the arguments into the model's name and the others."""
        most = None if any(name.endswith("...") for name in others) else len(others)
        required = [name for name in others if not name.startswith("[")]
        first = words[:1]
        if named or not first:
            is_model = False
        elif len(required) == len(others):
            is_model = len(words) > len(others) or looks_like_model(first[0], exists=False)
        elif asks:
            is_model = could_be_model(first[0]) or is_word_of_run(first[0])
        else:
            is_model = looks_like_model(first[0]) or is_short(first[0])
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
            replaced = any(more[name] is not None for name in instead)
            model, rest = split(words, named, () if replaced else others)
            if others:
                more["arguments"] = rest
            name = model_option if named else model or model_option or default
            path = ModelName.file(name, weights=weights) if file else ModelName.path(name)
            return function(*given, model=path, **more)

        option = click.option(
            "-m", "--model", "model_option", type=ModelName(), metavar="MODEL.gguf",
            help="The model, if it is not the first argument; `builtin` is the built-in one.",
        )  # fmt: skip
        metavar = " ".join(("[MODEL.gguf]", *others))
        return click.argument("words", nargs=-1, metavar=metavar, type=ModelName())(option(naming_options(collected)))

    return decorate
