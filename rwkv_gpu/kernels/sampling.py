"""Kernels of sampling: the best tokens of each block of a row, truncation of the row, then the draw."""

from .kernel import SAME, Hole, Kernel, Needs
from .parts import LANES, LAST_WORKGROUP, PLAIN

LOGITS = Hole("logits", ("sampling/unadjusted", "sampling/adjust"))
MASK = Hole("mask", ("sampling/no_mask", "sampling/masked"), optional=True)  # for parts that adjust logits
ROW = Hole("row", ("sampling/next_dispatch", "sampling/last_workgroup"))
CHOICE = Hole("choice", ("sampling/no_choice", "sampling/choice"))
LIST = Hole("list", ("sampling/list", "sampling/list_coherent"))
TRUNCATION = Hole("truncation", ("sampling/no_truncation", "sampling/truncate"))
SUBTOTAL = Hole("subtotal", ("sampling/subtotal_subgroup", "sampling/subtotal_workgroup"), optional=True)
SHARED = tuple(f"sampling/{part}" for part in ("draw", "part", "whole"))
JOINED = Needs(coherent=True, buffers=9)  # required if the last workgroup of a row chooses its token
REMEMBER, ORDER = "sampling/remember", "sampling/order"

SAMPLE_BLOCKS = Kernel(
    "sampling/sample_blocks",
    "sample",
    (LOGITS, MASK, ROW, CHOICE, TRUNCATION.only("no_truncation").maybe(), LANES),
    (*SHARED, REMEMBER, LAST_WORKGROUP),
    tolerance=SAME,
    part_needs=dict.fromkeys(("sampling/choice", "sampling/no_truncation"), JOINED),
)
SAMPLE_LIST = Kernel(
    "sampling/sample_list",
    "sample",
    (LOGITS.only("adjust"), MASK, ROW, CHOICE, LIST, TRUNCATION.only("truncate").maybe(), SUBTOTAL, LANES),
    (*SHARED, REMEMBER, ORDER, LAST_WORKGROUP),
    tolerance=SAME,
    part_needs=dict.fromkeys(("sampling/choice", "sampling/truncate", *SUBTOTAL.parts), JOINED),
)
SAMPLE_ROW = Kernel(
    "sampling/sample_row",
    "sample",
    (
        LOGITS,
        MASK,
        ROW.only("next_dispatch"),
        CHOICE.only("choice"),
        LIST.only("list").maybe(),
        TRUNCATION,
        SUBTOTAL,
        LANES.but("one_subgroup"),
    ),
    (*SHARED, REMEMBER, ORDER),
    tolerance=SAME,
)
EXCESS = "sampling/excess"
KNOWN_SEGMENTS = Kernel("sampling/known_segments", "", (PLAIN,), core=(EXCESS,), tolerance=SAME)
KNOWN_PLACES = Kernel("sampling/known_places", "", (PLAIN,), core=(EXCESS,), tolerance=SAME)
KNOWN_DRAWS = Kernel("sampling/known_draws", "", (PLAIN,), core=(EXCESS,), tolerance=SAME)
ACCEPT = Kernel("sampling/accept", "", (PLAIN,), tolerance=SAME)
