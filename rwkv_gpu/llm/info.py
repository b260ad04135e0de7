"""What is known about a loaded model. Data only."""

from dataclasses import dataclass

from ..engine.fit import Fit
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
