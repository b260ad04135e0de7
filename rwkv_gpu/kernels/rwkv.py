"""Kernels of RWKV-7, token shift and time mix, and of other recurrences over one matrix per head."""

from .kernel import CLOSE, Hole, Kernel, Needs
from .parts import FLOAT_FORMAT, LANES, PLAIN, QUANTISING, ROUNDING_IN_UNITS, STATE, SUM

# The distribution of a head's state over lanes.
ROW_SUM = Hole("row sum", ("recurrence/row_sum/lane", "recurrence/row_sum/subgroup"))
TILE = Hole("tile", ("recurrence/tile/one_row", "recurrence/tile/four_rows"))
VALUE = Hole("value", ("rwkv/value/own", "rwkv/value/first_layer"))
GATE = Hole("gate", ("rwkv/gate/none", "rwkv/gate/gate"))

LORA_WEIGHTS = Hole("weights", ("rwkv/decode/f32_weights", "rwkv/decode/f16_weights"), optional=True)
LANE_ALONE = {"lib/sum/single_lane": Needs(max_lanes=1)}  # one lane per row: for devices without subgroups

NORM_SHIFT_MIX = Kernel(
    "rwkv/norm_shift_mix",
    "norm_shift_mix",
    (Hole("output", tuple(f"rwkv/shift_output/{part}" for part in ("floats", "quantise", "round"))), LANES),
    (*QUANTISING, "lib/sum/subgroup", "lib/matrix_units/rounded"),
)
WKV4 = Kernel("rwkv/wkv4", "wkv4", (PLAIN,), tolerance=CLOSE)
TIME_MIX = Kernel(
    "rwkv/time_mix",
    "time_mix",
    (
        VALUE,
        GATE,
        ROW_SUM,
        TILE,
        STATE,
        PLAIN,
    ),
    core=("recurrence/walk", "recurrence/sums", "recurrence/output/group_norm", "recurrence/y/floats", "rwkv/mixed"),
    tolerance=CLOSE,
)
TIME_MIX_DECODE = Kernel(
    "rwkv/time_mix_decode",
    "time_mix",
    (
        Hole("rows", ("rwkv/decode/single_row", "rwkv/decode/several_rows")),
        Hole("gates", ("rwkv/decode/gates", "rwkv/decode/lora_gates")),
        LORA_WEIGHTS,
        FLOAT_FORMAT.maybe(),
        Hole("value", ("rwkv/decode/own_value", "rwkv/decode/first_layer_value")),
        Hole("output", tuple(f"rwkv/decode/{part}" for part in ("floats", "quantise", "round"))),
        SUM,
        STATE,
        PLAIN,
    ),
    ("formats/halves", "formats/runs", *QUANTISING, *ROUNDING_IN_UNITS, "lib/activation"),
    tolerance=CLOSE,
    part_needs=LANE_ALONE,
)
LERP = Kernel("rwkv/lerp", "lerp", (Hole("amount", ("rwkv/amount/constant", "rwkv/amount/low_rank")), PLAIN))
LERP_DECODE = Kernel(
    "rwkv/lerp_decode",
    "lerp",
    (Hole("before", ("rwkv/before/row", "rwkv/before/state")), SUM, PLAIN),
    part_needs=LANE_ALONE,
)
DECAY = Hole(
    "decay", tuple(f"recurrence/decay/{part}" for part in ("given", "by_head", "by_channel", "low_rank", "constant"))
)
FADE = Hole("fade", ("recurrence/fade/softplus", "recurrence/fade/bounded"), optional=True)  # used by delta nets
BONUS = Hole("bonus", ("recurrence/bonus/none", "recurrence/bonus/first"))
OUTPUT = Hole("output", tuple(f"recurrence/output/{part}" for part in ("group_norm", "gated_rms", "gated", "plain")))
QKV = Hole("qkv", ("recurrence/qkv/mixed", "recurrence/qkv/convolved"), optional=True)  # used by delta nets
Y = Hole("y", ("recurrence/y/floats", "recurrence/y/quantise", "recurrence/y/round"))
RECURRENCE = Kernel(
    "recurrence/recurrence",
    "recurrence",
    (
        Hole("inputs", tuple(f"recurrence/inputs/{part}" for part in ("wkv6", "delta_rule", "heads"))),
        DECAY,
        FADE,
        Hole("step", ("recurrence/step/added", "recurrence/step/delta_rule")),
        QKV,
        BONUS.maybe(),  # used by wkv6
        LORA_WEIGHTS,  # used by the decay of wkv6
        FLOAT_FORMAT.maybe(),
        OUTPUT,
        Y,
        ROW_SUM,
        TILE,
        STATE,
        PLAIN,
    ),
    (
        "lib/activation",
        *ROUNDING_IN_UNITS,
        "lib/softplus",
        "recurrence/delta_tensors",
        "recurrence/gain",
        "conv/row",
        "formats/halves",
        "formats/runs",
        "lib/sum/subgroup",
        *QUANTISING,
    ),
    core=("recurrence/walk", "recurrence/sums"),
    tolerance=CLOSE,
)
# Gated delta nets in decode, if a subgroup holds the vec4s of a head.
DELTA_TOKEN = Kernel(
    "recurrence/delta_token",
    "recurrence",
    (DECAY.only("by_head", "by_channel"), FADE, QKV, Y, ROW_SUM, TILE, STATE, PLAIN),
    (
        "recurrence/step/delta_rule",
        "recurrence/delta_tensors",
        "recurrence/gain",
        "lib/sum/subgroup",
        "lib/activation",
        "lib/softplus",
        "conv/row",
        *QUANTISING,
        *ROUNDING_IN_UNITS,
    ),
    needs=Needs(lanes=4, subgroup=True),
    tolerance=CLOSE,
)
# Recurrences in chunks of tokens: chunks in parallel, then states from chunk to chunk, then norms and gates. Devices
# without subgroups compute token by token. In chunks, each lane would hold whole rows of a state, which their compiler,
# FXC, never finishes compiling.
BY_CHUNKS = Needs(subgroup=True)
CHUNK_SOLVE = Kernel(
    "recurrence/chunk_solve",
    "recurrence",
    (
        Hole(
            "inputs", tuple(f"recurrence/chunk_inputs/{part}" for part in ("time_mix", "delta_rule", "wkv6", "heads"))
        ),
        VALUE.maybe(),  # used by RWKV-7
        DECAY.only("by_head", "by_channel").maybe(),  # used by delta nets
        FADE,
        Hole("qkv", ("recurrence/qkv/mixed",), optional=True),
        PLAIN,
    ),
    ("rwkv/mixed", "recurrence/delta_tensors", "lib/softplus"),
    core=("recurrence/chunk", "recurrence/chunk_stack"),
    needs=BY_CHUNKS,
    tolerance=CLOSE,
)
CHUNK_WALK = Kernel(
    "recurrence/chunk_walk",
    "recurrence",
    (Hole("token sum", ("recurrence/token_sum/lane", "recurrence/token_sum/subgroup")), STATE, PLAIN),
    core=("recurrence/chunk", "recurrence/chunk_stack"),
    needs=BY_CHUNKS,
    tolerance=CLOSE,
    part_needs={"recurrence/token_sum/subgroup": Needs(lanes=4, subgroup=True)},
)
CHUNK_OUTPUT = Kernel(
    "recurrence/chunk_output",
    "recurrence",
    (
        Hole("extra", tuple(f"recurrence/chunk_output/{part}" for part in ("bonus", "first", "gain")), optional=True),
        OUTPUT.only("group_norm", "gated_rms", "gated"),
        BONUS.maybe(),
        VALUE.maybe(),
        GATE.maybe(),
        PLAIN,
    ),
    ("rwkv/mixed", "lib/activation", "recurrence/gain"),
    core=("recurrence/chunk", "recurrence/sums", "recurrence/y/floats"),
    needs=BY_CHUNKS,
    tolerance=CLOSE,
)
