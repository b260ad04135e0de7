"""The recurrence of RWKV-7: token shift and time mix."""

from .kernel import CLOSE, Hole, Kernel, Needs
from .parts import FLOAT_FORMAT, LANES, PLAIN, QUANTISING, SUM

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
        Hole("row sum", ("rwkv/row_sum/lane", "rwkv/row_sum/subgroup")),
        Hole("tile", ("rwkv/tile/one_row", "rwkv/tile/four_rows")),
        PLAIN,
    ),
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
