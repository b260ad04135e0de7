"""Information about a loaded model."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from ..engine.fit import Fit
from ..engine.gpu_runner import GpuRunner
from ..engine.runner import Runner
from ..engine.state_file import fingerprint
from ..errors import NAME, printable
from ..gguf.file import GGUFFile
from ..gguf.formats import SIZES
from ..gpu.device import Device
from ..models.layered import Layered
from ..models.registry import is_encoder
from ..ops.kv_format import KVType


@dataclass(frozen=True)
class Info:
    """Properties of a loaded model, for display."""

    name: str
    architecture: str
    parameters: int
    format: str  # format of most of its weights
    nbytes: int  # of the file
    vocabulary: int
    context: int | None  # maximum tokens of a sequence as loaded; None without a limit
    trained_context: int | None  # training context length, if the file states it
    chunk_size: int
    sequences: int  # maximum running sequences
    device: str
    encoder: bool  # whether it only computes embeddings
    fingerprint: str  # distinguishes models
    # Number formats of keys and values; several if some layers do not support the requested one
    kv: tuple[KVType, ...] = ()
    adapters: tuple[tuple[str, float], ...] = ()  # LoRA adapters, and their default scales
    memory: Fit | None = None  # memory use; None in numpy
    heads: int = 0  # heads in the file that predict further tokens
    drafts: bool = False  # whether one of them drafts
    head_fault: str = ""  # why it cannot, if it is damaged
    gpus: tuple[Device, ...] = field(default=(), repr=False, compare=False)

    @property
    def matrix_units(self) -> bool:
        """Whether the matrix units of any of its devices are in use now."""
        return any(gpu.capabilities.fragment > 0 for gpu in self.gpus)

    @classmethod
    def of(
        cls, file: GGUFFile, runner: Runner, device: str, sequences: int, gpus: Sequence[Device | None] = ()
    ) -> Self:
        """Information on a model loaded from a file."""
        formats: Counter[str] = Counter()
        found = runner.model.file_head if isinstance(runner.model, Layered) else None
        for tensor in file.tensors.values():
            formats[SIZES[tensor.type].name] += math.prod(tensor.shape)
        architecture = file.str("general.architecture")
        return cls(
            name=printable(file.str("general.name", default=file.path.stem), NAME),
            architecture=printable(architecture, NAME),
            parameters=sum(formats.values()),
            format=formats.most_common(1)[0][0],
            nbytes=file.nbytes,
            vocabulary=runner.vocabulary,
            context=runner.context,
            trained_context=file.int(f"{architecture}.context_length", default=0) or None,
            chunk_size=runner.chunk_size,
            sequences=sequences,
            device=device,
            encoder=is_encoder(runner.model),
            fingerprint=fingerprint(file),
            kv=tuple(dict.fromkeys(runner.cache_config.format_of(cache).name for cache in runner.model.caches)),
            adapters=tuple((one.name, one.scale) for one in runner.adapters.adapters),
            memory=runner.fit if isinstance(runner, GpuRunner) else None,
            gpus=tuple(filter(None, gpus)),
            heads=0 if found is None else found.count,
            drafts=runner.head is not None,
            head_fault="" if found is None else found.fault,
        )
