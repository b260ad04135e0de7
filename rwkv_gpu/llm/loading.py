"""From a GGUF file to a model that can be asked: reads, checks and wires up what is needed."""

import math
import os
from collections import Counter
from typing import Any

from ..engine.engine import Engine
from ..engine.room import DEFAULT_CACHE, Kind
from ..engine.runner import GpuRunner, HostRunner, Runner
from ..engine.state_file import fingerprint
from ..errors import BadInput
from ..gguf.file import GGUFFile
from ..gguf.formats import SIZES
from ..gpu.adapters import find
from ..gpu.device import Device
from ..gpu.loader import Progress
from ..models.registry import load_model
from ..text.tokenizer import load_tokenizer
from .model import LLM, Info

RANGES = {
    "chunk_size": (1, 1 << 16),
    "sequences": (1, 256),
    "context": (1, 1 << 32),
    "tokens": (1, 1 << 40),
    "cache_bytes": (0, 1 << 50),
    "layers_per_submit": (0, 1 << 16),
}
OPTIONAL = ("context", "tokens")


def load(
    path: str | os.PathLike[str],
    *,
    device: str = "auto",
    chunk_size: int = 512,
    sequences: int = 1,
    context: int | None = None,
    kv: Kind = "f16",
    tokens: int | None = None,
    cache_bytes: int = DEFAULT_CACHE,
    progress: Progress | None = None,
    layers_per_submit: int = 0,
    portable: bool = False,
    checked: bool = False,
) -> LLM:
    """Opens a GGUF model on a device. The file is read once and closed.

    `device` is auto, cpu, an index or a part of a name; `chunk_size` is how many tokens of a prompt go in one step;
    `sequences` is how many requests run at a time, the others wait; `cache_bytes` is how much is kept of sequences that
    have ended, for those that begin alike. `progress` is told how many bytes of the file are loaded, and of how many.
    For models that attend, `context` is how many tokens a sequence may have, prompt and answer together (as many as it
    was trained on, but 4,096 at most, where nothing is said), `tokens` how many all of them may have together, and
    `kv` how keys and values are stored: f16 or f32.
    `layers_per_submit` splits a step, 0 leaves it whole. `portable` asks of the device no more than every one has,
    `checked` has the driver check each index: both are slower.
    """
    check(
        chunk_size=chunk_size, sequences=sequences, context=context, tokens=tokens, cache_bytes=cache_bytes,
        layers_per_submit=layers_per_submit,
    )  # fmt: skip
    with GGUFFile.open(path) as file:
        model = load_model(file)
        tokenizer = load_tokenizer(file.metadata)
        choice = find(device)
        room: dict[str, Any] = {
            "slots": sequences, "chunk_size": chunk_size, "context": context, "kv": kv, "tokens": tokens,
            "cache_bytes": cache_bytes,
        }  # fmt: skip
        runner: Runner
        if choice.adapter is None:
            runner = HostRunner(file, model, **room)
            if progress is not None:
                progress(file.nbytes, file.nbytes)
        else:
            opened = Device(choice.adapter, portable=portable, checked=checked)
            try:
                runner = GpuRunner(opened, file, model, layers_per_submit=layers_per_submit, progress=progress, **room)
            except BaseException:
                opened.close()
                raise
        name = "cpu" if choice.adapter is None else choice.adapter.name
        return LLM(Engine(runner), tokenizer, file.metadata, _info(file, runner, name, sequences))


def check(**given: object) -> None:
    """Refuses whole numbers that are out of their range."""
    for name, value in given.items():
        low, high = RANGES[name]
        if value is None and name in OPTIONAL:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadInput(f"{name} is {value!r}; it must be a whole number from {low} to {high}")


def _info(file: GGUFFile, runner: Runner, device: str, sequences: int) -> Info:
    formats: Counter[str] = Counter()
    for tensor in file.tensors.values():
        formats[SIZES[tensor.type].name] += math.prod(tensor.shape)
    architecture = file.str("general.architecture")
    return Info(
        name=file.str("general.name", default=file.path.stem),
        architecture=architecture,
        parameters=sum(formats.values()),
        format=formats.most_common(1)[0][0],
        nbytes=file.nbytes,
        vocabulary=runner.vocabulary,
        context=runner.context,
        trained_context=file.int(f"{architecture}.context_length", default=0) or None,
        chunk_size=runner.chunk_size,
        sequences=sequences,
        device=device,
        fingerprint=fingerprint(file),
    )
