"""The kinds of ops that a graph holds: those that models say, and what passes fuse into them.

Fields with a default of None at the end of an op are what passes fill in.
"""

from .adapters import Adapted, AdapterDown, AdapterUp
from .attention import Attend, AttendLatent, HeadLinear, WriteLatent
from .conv import Conv1d
from .dense import ByRow, Copy, Embed, Kernel, Map, Norm, Pick, ResizeHeads, ScaleRows
from .linear import (
    AdapterSums,
    ConvolutionPrologue,
    Gemm,
    JoinedColumns,
    NormPrologue,
    Product,
    Quantise,
    SaveState,
    TokenShiftPrologue,
)
from .moe import ExpertProducts, ExpertSum, FetchExperts, GroupChoices, Route, SortChoices
from .recurrence import GatedDeltaRule, Lerp, LightningAttention, Wkv6
from .rwkv import TimeMix, TokenShift
from .sampling import Sample
from .ssm import GroupNorm, SelectiveScan, Ssd
from .streams import CorrectStreams, MatchLength, PredictStreams

__all__ = [
    "Adapted",
    "AdapterDown",
    "AdapterSums",
    "AdapterUp",
    "Attend",
    "AttendLatent",
    "ByRow",
    "Conv1d",
    "ConvolutionPrologue",
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
    "JoinedColumns",
    "Kernel",
    "Lerp",
    "LightningAttention",
    "Map",
    "MatchLength",
    "Norm",
    "NormPrologue",
    "Pick",
    "PredictStreams",
    "Product",
    "Quantise",
    "ResizeHeads",
    "Route",
    "Sample",
    "SaveState",
    "ScaleRows",
    "SelectiveScan",
    "SortChoices",
    "Ssd",
    "TimeMix",
    "TokenShift",
    "TokenShiftPrologue",
    "Wkv6",
    "WriteLatent",
]
