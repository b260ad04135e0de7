"""Loads a model for a command, with a progress bar."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rwkv_gpu
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.llm.folders import cache_folder, tuned_folder
from rwkv_gpu.llm.info import Info
from rwkv_gpu.ops.kv_format import BLOCK, KV_FORMATS, KVType

from .bars import loading_bar
from .fit import main_memory_lines
from .printing import print_text
from .screen import Screen

# Recommended alternative to the demo model
REAL_MODEL = "run qwen3.5:4b (`rwkv-gpu models` lists more)"
ON_CPU = "models (lists those that fit; they are slow on a CPU)"
WARM = 32  # tokens of a prompt that compiles the kernels of longer prompts, too


def load_model(
    model: str, screen: Screen, *, warm: bool = False, on_progress: Callable[[], None] = lambda: None, **loading: Any
) -> "rwkv_gpu.LLM":
    """Loads the model with the given options.

    With `warm`, a GPU compiles shaders now instead of at the first question. So the first answer starts without delay,
    and its displayed speed does not include compilation. `on_progress` is called repeatedly; an exception in it ends
    the loading.
    """
    with loading_bar(screen) as bar:

        def progress(done: int, total: int) -> None:
            on_progress()
            if done < total:
                bar.update(done, total, "uploading weights")
            else:
                bar.update(0, 0, "compiling shaders")

        llm = load_quietly(model, progress=progress, **loading)
        if warm and llm.info.device != "cpu":
            bar.update(0, 0, "compiling shaders")
            llm.generate([0] * min(WARM, (llm.context or WARM) // 2), max_tokens=2)
    for note in notes(model, llm.info, loading.get("kv", "f16")):
        print_text(f"rwkv-gpu: {note}", err=True)
    return llm


def notes(model: str, info: Info, kv: KVType) -> Iterator[str]:
    """Notes for the user, if a model is the demo, is partly in main memory, or has another format than requested."""
    if model == str(builtin_model()):
        size = f"{info.parameters / 1e6:.0f} M parameters"
        real = ON_CPU if info.device == "cpu" else REAL_MODEL
        yield f"built-in demo, {size}, small talk only; for a real model: {program()} {real}"
    yield from matrix_unit_notes(info)
    if info.memory is not None and info.memory.host:
        yield "in main memory: " + "; ".join(main_memory_lines(info.memory))
    if info.draft_fault:
        yield f"the draft model is not used: {info.draft_fault}"
    if info.head_fault:
        yield f"the model's draft head is not used: {info.head_fault}"
    if not KV_FORMATS[kv].quantised:
        return
    if not info.kv:
        yield f"--kv {kv} has no effect: the model has no KV cache"
    elif others := [stored for stored in info.kv if stored != kv]:
        which = "some layers" if kv in info.kv else "all layers"
        yield f"--kv {kv}: {which} stay {others[0]} (latents, and heads that are not a multiple of {BLOCK} numbers)"


def program() -> str:
    """The name of this program, with its folder if a shell would not find it: .venv/bin/rwkv-gpu"""
    path = Path(sys.argv[0])
    return str(path) if path.stem == "rwkv-gpu" and shutil.which("rwkv-gpu") is None else "rwkv-gpu"


def matrix_unit_notes(info: Info) -> Iterator[str]:
    """Lines about a GPU's matrix units: a test of them is running or, at their first use, they are on."""
    off = "to never use them: --matrix-units off"
    if any(gpu.pending for gpu in info.gpus):
        yield f"testing this GPU's matrix units in the background; prompts get faster if they are correct ({off})"
    elif info.matrix_units:
        from rwkv_gpu.ops.driver_verdict import announce

        if any([announce(gpu.adapter, tuned_folder()) for gpu in info.gpus]):  # noqa: C419 - all are marked
            yield f"matrix units are on: a test found them correct ({off})"


def load_quietly(model: str, **loading: Any) -> "rwkv_gpu.LLM":
    """Loads the model with tuning results and digests from this user's folders."""
    return rwkv_gpu.load(model, tuned=tuned_folder(), digests=cache_folder() / "digests", **loading)
