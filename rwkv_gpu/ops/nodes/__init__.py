"""The ops of a graph: those that models call, and the work that passes fuse into them.

Passes fill in the fields with a default of None at the end of an op.
"""

from .adapters import Adapted, AdapterDown, AdapterUp
from .attention import Attend, AttendLatent, ChooseKeys, HeadLinear, WriteIndex, WriteKeys, WriteLatent
from .conv import CentredConv1d, Conv1d
from .dense import (
    ByRow,
    Copy,
    CorrectStreams,
    Embed,
    Kernel,
    Map,
    MatchLength,
    Norm,
    Pick,
    PickBlocks,
    PredictStreams,
    ResizeHeads,
    RowMatrix,
    Sample,
    ScaleRows,
    Spread,
    Turn,
)
from .linear import Gemm, Quantise
from .moe import ExpertProducts, ExpertSum, FetchExperts, GroupChoices, Route, SortChoices
from .recurrence import (
    GatedDeltaRule,
    GroupNorm,
    Lerp,
    LightningAttention,
    SelectiveScan,
    Ssd,
    TimeMix,
    TokenShift,
    Wkv4,
    Wkv6,
)
from .slot_rows import Concat, KeepRows, RowBefore, ShiftRows
from .stage import Product

__all__ = [
    "Adapted",
    "AdapterDown",
    "AdapterUp",
    "Attend",
    "AttendLatent",
    "ByRow",
    "CentredConv1d",
    "ChooseKeys",
    "Concat",
    "Conv1d",
    "Copy",
    "CorrectStreams",
    "Embed",
    "ExpertProducts",
    "ExpertSum",
    "FetchExperts",
    "GatedDeltaRule",
    "Gemm",
    "GroupChoices",
    "GroupNorm",
    "HeadLinear",
    "KeepRows",
    "Kernel",
    "Lerp",
    "LightningAttention",
    "Map",
    "MatchLength",
    "Norm",
    "Pick",
    "PickBlocks",
    "PredictStreams",
    "Product",
    "Quantise",
    "ResizeHeads",
    "Route",
    "RowBefore",
    "RowMatrix",
    "Sample",
    "ScaleRows",
    "SelectiveScan",
    "ShiftRows",
    "SortChoices",
    "Spread",
    "Ssd",
    "TimeMix",
    "TokenShift",
    "Turn",
    "Wkv4",
    "Wkv6",
    "WriteIndex",
    "WriteKeys",
    "WriteLatent",
]
