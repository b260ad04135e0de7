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
from ..models.registry import diffusion_of, is_encoder
from ..ops.kv_format import KVType


@dataclass(frozen=True)
class Info:
    """Properties of a loaded model, for display."""

    name: str
    """Name of the model."""
    architecture: str
    """Value of `general.architecture` in the file."""
    parameters: int
    """Number of weights."""
    format: str
    """Format of most weights."""
    nbytes: int
    """Size of the file."""
    vocabulary: int
    """Number of tokens in the vocabulary."""
    context: int | None
    """Maximum tokens of a sequence as loaded; None without a limit."""
    trained_context: int | None
    """Context length in training, if the file states it."""
    chunk_size: int
    """Prompt tokens in one step."""
    sequences: int
    """Maximum number of running sequences."""
    device: str
    """Description of the device or devices."""
    encoder: bool
    """True if the model only computes embeddings."""
    fingerprint: str
    """Identifies the model in saved chats and stores."""
    kv: tuple[KVType, ...] = ()
    """Number formats of keys and values; several if some layers do not support the requested one."""
    adapters: tuple[tuple[str, float], ...] = ()
    """Names of LoRA adapters, and their default scales."""
    memory: Fit | None = None
    """Memory use; None in numpy."""
    diffusion: bool = False
    """True if the model generates by replacing masks, block by block."""
    heads: int = 0
    """Number of heads in the file that predict further tokens."""
    drafts: bool = False
    """True if one of these heads drafts."""
    head_fault: str = ""
    """The reason why a damaged head does not draft."""
    draft_fault: str = ""
    """The reason why a damaged draft model is not used."""
    gpus: tuple[Device, ...] = field(default=(), repr=False, compare=False)
    """The opened GPUs."""

    @property
    def matrix_units(self) -> bool:
        """True if matrix units of any of its devices are in use now."""
        return any(gpu.capabilities.fragment > 0 for gpu in self.gpus)

    @classmethod
    def of(
        cls,
        file: GGUFFile,
        runner: Runner,
        device: str,
        sequences: int,
        gpus: Sequence[Device | None] = (),
        draft_fault: str = "",
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
            diffusion=diffusion_of(runner.model) is not None,
            heads=0 if found is None else found.count,
            drafts=runner.head is not None,
            head_fault="" if found is None else found.fault,
            draft_fault=draft_fault,
        )
