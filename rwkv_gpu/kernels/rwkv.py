"""The recurrence of RWKV-7: token shift and time mix."""

from .kernel import CLOSE, Hole, Kernel, Needs
from .parts import FLOAT_FORMAT, LANES, PLAIN, QUANTISING, SUM

# How lanes share the state of a head.
ROW_SUM = Hole("row sum", ("recurrence/row_sum/lane", "recurrence/row_sum/subgroup"))
TILE = Hole("tile", ("recurrence/tile/one_row", "recurrence/tile/four_rows"))

NORM_SHIFT_MIX = Kernel(
    "rwkv/norm_shift_mix",
    "norm_shift_mix",
    (Hole("output", ("rwkv/shift_output/floats", "rwkv/shift_output/quantise")), LANES),
    (*QUANTISING, "lib/sum/subgroup"),
)
TIME_MIX = Kernel(
    "rwkv/time_mix",
    "time_mix",
    (
        Hole("value", ("rwkv/value/own", "rwkv/value/first_layer")),
        Hole("gate", ("rwkv/gate/none", "rwkv/gate/gate")),
        ROW_SUM,
        TILE,
        PLAIN,
    ),
    core=("recurrence/walk", "recurrence/sums", "recurrence/output/group_norm"),
    tolerance=CLOSE,
)
TIME_MIX_DECODE = Kernel(
    "rwkv/time_mix_decode",
    "time_mix",
    (
        Hole("rows", ("rwkv/decode/single_row", "rwkv/decode/several_rows")),
        Hole("gates", ("rwkv/decode/gates", "rwkv/decode/lora_gates")),
        Hole("weights", ("rwkv/decode/f32_weights", "rwkv/decode/f16_weights"), optional=True),  # of LoRAs
        FLOAT_FORMAT.maybe(),
        Hole("value", ("rwkv/decode/own_value", "rwkv/decode/first_layer_value")),
        Hole("output", ("rwkv/decode/floats", "rwkv/decode/quantise")),
        SUM,
        PLAIN,
    ),
    ("formats/halves", "formats/runs", *QUANTISING, "lib/activation"),
    tolerance=CLOSE,
    part_needs={"lib/sum/single_lane": Needs(most_lanes=1)},  # a lane for a row is for devices without subgroups
)
LERP = Kernel("rwkv/lerp", "lerp", (Hole("amount", ("rwkv/amount/constant", "rwkv/amount/low_rank")), PLAIN))
RECURRENCE = Kernel(
    "recurrence/recurrence",
    "recurrence",
    (
        Hole("inputs", ("recurrence/inputs/wkv6", "recurrence/inputs/delta_rule")),
        Hole("decay", ("recurrence/decay/given", "recurrence/decay/by_head", "recurrence/decay/by_channel")),
        Hole("step", ("recurrence/step/added", "recurrence/step/delta_rule")),
        Hole("qkv", ("recurrence/qkv/mixed", "recurrence/qkv/convolved"), optional=True),  # of delta nets
        Hole("bonus", ("recurrence/bonus/none", "recurrence/bonus/first"), optional=True),  # of wkv6
        Hole("output", tuple(f"recurrence/output/{part}" for part in ("group_norm", "gated_rms", "gated"))),
        ROW_SUM,
        TILE,
        PLAIN,
    ),
    ("lib/activation",),
    core=("recurrence/walk", "recurrence/sums"),
    tolerance=CLOSE,
)
