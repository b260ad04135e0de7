"""What is known about a loaded model."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Self

from ..engine.fit import Fit
from ..engine.gpu_runner import GpuRunner
from ..engine.runner import Runner
from ..engine.state_file import fingerprint
from ..gguf.file import GGUFFile
from ..gguf.formats import SIZES
from ..models.registry import is_encoder
from ..ops.kv_format import KVType


@dataclass(frozen=True)
class Info:
    """What a model is, for those who show it."""

    name: str
    architecture: str
    parameters: int
    format: str  # of most of its weights
    nbytes: int  # of the file
    vocabulary: int
    context: int | None  # tokens that a sequence may have here; None where there is no limit
    trained_context: int | None  # tokens that it was trained on at a time, where the file says so
    chunk_size: int
    sequences: int  # that run at a time
    device: str
    matrix_units: bool  # whether the device uses them
    encoder: bool  # whether it makes embeddings only
    fingerprint: str  # tells models apart
    kv: tuple[KVType, ...] = ()  # how keys and values are stored; several, where some layers cannot have what was asked
    adapters: tuple[tuple[str, float], ...] = ()  # LoRA adapters, and their scales where a request has no own
    memory: Fit | None = None  # where the model lies; None in numpy

    @classmethod
    def of(cls, file: GGUFFile, runner: Runner, device: str, sequences: int, *, matrix_units: bool) -> Self:
        """Of a model that was loaded from a file."""
        formats: Counter[str] = Counter()
        for tensor in file.tensors.values():
            formats[SIZES[tensor.type].name] += math.prod(tensor.shape)
        architecture = file.str("general.architecture")
        return cls(
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
            matrix_units=matrix_units,
            encoder=is_encoder(runner.model),
            fingerprint=fingerprint(file),
            kv=tuple(dict.fromkeys(runner.cache_config.format_of(cache).name for cache in runner.model.caches)),
            adapters=tuple((one.name, one.scale) for one in runner.adapters.adapters),
            memory=runner.fit if isinstance(runner, GpuRunner) else None,
        )
