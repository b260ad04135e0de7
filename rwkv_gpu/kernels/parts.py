"""The holes that several kernels share, and the device requirements of single parts."""

from ..gguf.formats import FORMATS
from .kernel import Hole, Needs

PACKED = tuple(fmt for fmt in FORMATS.values() if "packed" in fmt.shared)  # formats of small integers with scales
FLOATS = tuple(fmt for fmt in FORMATS.values() if "packed" not in fmt.shared)

# Decoding of weights. Each format has a part that decodes a run of weights; the other parts are shared among formats.
FORMAT = Hole("format", tuple(f"formats/{fmt.shader}" for fmt in FORMATS.values()))
PACKED_FORMAT = FORMAT.only(*(fmt.shader for fmt in PACKED))
FLOAT_FORMAT = FORMAT.only(*(fmt.shader for fmt in FLOATS))
PICKED_WORDS, DIRECT_WORDS = "formats/vec4s", "formats/words"  # words picked from vec4s, or read from a second binding
WORDS = Hole("words", (PICKED_WORDS, DIRECT_WORDS), optional=True)  # for small planes; some formats have none
DECODED_WEIGHTS = Hole(
    "decoded weights", ("lib/matrix_units/of_bytes", "lib/matrix_units/of_signed_bytes", "lib/matrix_units/of_floats")
)
OF_FOURS, OF_NIBBLES = "lib/matrix_units/of_fours", "lib/matrix_units/of_nibbles"
DECODED_FOUR = Hole("decoded four", (OF_FOURS, OF_NIBBLES))
DECODING = (
    *sorted({f"formats/{part}" for fmt in FORMATS.values() for part in fmt.shared} - set(WORDS.parts)),
    "formats/runs",
)

# Prologues of matrix products: how rows of x are read, normed and mixed.
VEC4_ROWS, SCALAR_ROWS, JOINED_ROWS = "lib/rows/vec4", "lib/rows/scalar", "linear/prologue/joined_rows"
LAYER_NORM, CONVOLUTION = "linear/prologue/layer_norm", "linear/prologue/convolution"
TOKEN_SHIFT, TOKEN_SHIFT_ROWS = "linear/prologue/token_shift", "linear/prologue/token_shift_rows"
ROWS = Hole("rows", (VEC4_ROWS, SCALAR_ROWS, LAYER_NORM, TOKEN_SHIFT, TOKEN_SHIFT_ROWS, CONVOLUTION))
PLAIN_ROWS = ROWS.only("vec4", "scalar")
NO_NORM, RMS_NORM, PLAIN_STATISTICS = "linear/prologue/no_norm", "linear/prologue/rms_norm", "linear/prologue/plain"
NORM = Hole("norm", (NO_NORM, RMS_NORM), default=NO_NORM)
COMPUTE_STATISTICS, LOAD_STATISTICS = "linear/row_statistics/compute", "linear/row_statistics/load"
MERGE_STATISTICS, SINGLE_ROW = "linear/row_statistics/merge", "linear/prologue/single_row"
STATISTICS = Hole(  # not for token_shift_rows, which computes statistics, nor for convolutions, which need none
    "row statistics",
    (PLAIN_STATISTICS, COMPUTE_STATISTICS, LOAD_STATISTICS),
    callers=(VEC4_ROWS, SCALAR_ROWS, JOINED_ROWS, LAYER_NORM, TOKEN_SHIFT),
)
STORE_NORMED_ROW, NO_NORMED_ROW = "linear/prologue/store_normed_row", "linear/prologue/no_normed_row"
NORMED_ROW = Hole(
    "normed row", (STORE_NORMED_ROW, NO_NORMED_ROW), callers=(TOKEN_SHIFT, TOKEN_SHIFT_ROWS), default=NO_NORMED_ROW
)
PROLOGUE = SINGLE_ROW, MERGE_STATISTICS

# Epilogues of matrix products.
RESULTS = SUMS, SCALED, PAIRS, ADAPTED_PAIRS = tuple(
    f"linear/epilogue/{part}" for part in ("rows", "scaled_rows", "gated_pairs", "adapted_pairs")
)
PARTIAL_SUMS, ADAPTER_SUMS = "linear/epilogue/partial_sums", "linear/epilogue/adapter_columns"
QUANTISED_SUMS, FLOAT_SUMS = "linear/epilogue/quantise", "linear/epilogue/no_quantise"
EPILOGUE = Hole("epilogue", (*RESULTS, PARTIAL_SUMS, QUANTISED_SUMS, ADAPTER_SUMS), default=SUMS)
ADAPTER_OUTPUTS = "adapters/outputs"  # the table of adapters of a product
ADAPTER_COLUMNS, NO_COLUMNS = "adapters/columns", "adapters/no_columns"  # B of adapters as further columns of W
HALVES = "lib/matrix_units/halves"  # unpacks words of two float16
FURTHER_COLUMNS = Hole("further columns", (NO_COLUMNS, ADAPTER_COLUMNS), default=NO_COLUMNS)
# The columns of one matrix, or of two with separate x.
SINGLE, JOINED = "linear/columns/single", "linear/columns/joined"
COLUMNS = Hole("columns", (SINGLE, JOINED), default=SINGLE)
TILE_OF_SUBGROUP, TILE_OF_WORKGROUP = "lib/matrix_units/tile_of_subgroup", "lib/matrix_units/tile_of_workgroup"
ADAPTERS_UP = "adapters/up"  # adds B (A x) of LoRA adapters, and a bias
NO_BIAS, BIASED = "linear/epilogue/no_bias", "linear/epilogue/bias"
BIAS = Hole("bias", (NO_BIAS, BIASED, ADAPTERS_UP), callers=(SUMS, ADAPTED_PAIRS), default=NO_BIAS)
NO_RESIDUAL, ADD_RESIDUAL = "linear/epilogue/no_residual", "linear/epilogue/residual"
SAVE_STATE, SAVE_STATES = "linear/epilogue/residual_save_state", "linear/epilogue/residual_save_state_rows"
RESIDUAL = Hole(
    "residual", (NO_RESIDUAL, ADD_RESIDUAL, SAVE_STATE, SAVE_STATES), callers=(SUMS, SCALED), default=NO_RESIDUAL
)
RESIDUAL_TO_NORM = "linear/epilogue/residual_to_norm"  # for products on matrix units before a norm
PLAIN_RESIDUAL = Hole("residual", (NO_RESIDUAL, ADD_RESIDUAL))
NO_EMIT, EMIT_STATISTICS = "linear/row_statistics/no_emit", "linear/row_statistics/emit"
EMIT = Hole("emitted statistics", (NO_EMIT, EMIT_STATISTICS), default=NO_EMIT)
UNIFORM_TABLE, CONSTANT_TABLE = "linear/table/uniform", "linear/table/constant"
TABLE = Hole("table", (UNIFORM_TABLE, CONSTANT_TABLE))
PRODUCT = "linear/table", "lib/activation", ADAPTER_OUTPUTS  # linked by every matrix product
QUANTISING = "lib/store_quantised", "lib/quantise"
STORES_QUANTISED = *QUANTISING, "lib/sum/subgroup"  # linked by kernels that write integers
# Quantisation of x for products: a dispatch of its own, or extra workgroups in the dispatch of adapters' A x.
ROUNDING, QUANTISING_ROWS = "linear/rounding", "linear/quantising"
EXTRA_WORK = Hole("extra work", ("adapters/alone", ROUNDING, QUANTISING_ROWS))
# How A x of adapters is written.
LOW_NORMED, LOW_IN_UNIT = "adapters/low/normed", "adapters/low/in_unit"
LOW = Hole("low", (LOW_NORMED, LOW_IN_UNIT))

# The scales of float16 rows that are read, and whether results are also written as float16.
UNITS = UNIT_OF_ROW, UNIT_OF_ALL, UNIT_OF_NORM = tuple(f"lib/matrix_units/unit_of_{x}" for x in ("row", "all", "norm"))
UNIT = Hole("unit", UNITS)
ROUNDED = "lib/matrix_units/rounded"  # the rounding and the layout of float16 rows
IN_UNITS = "lib/matrix_units/in_units"  # rounding to a fixed unit, without the maximum of the row
ROUNDING_IN_UNITS = ROUNDED, IN_UNITS
SUMS_LEFT, SUMS_ROUNDED = "lib/matrix_units/sums_left", "lib/matrix_units/sums_rounded"
SUMS_TO_NORM = "lib/matrix_units/sums_to_norm"
TO_NORM = "lib/matrix_units/to_norm"  # results before a norm
NEXT_OF_BLOCK = "moe/block_next/norm"  # the same for expert kernels that also sum
# Whether a workgroup sums all columns of its rows, or the last of several workgroups adds up their parts (split-K).
SUMS_OF_WORKGROUP, SUMS_OF_PARTS = "lib/matrix_units/sums_of_workgroup", "lib/matrix_units/sums_of_parts"
BLOCK = "linear/block"  # the block of a matrix that a workgroup on matrix units computes
LAST_WORKGROUP = "lib/last_workgroup"  # detects the last of several workgroups to finish
COLUMNS_OF_SUMS = Hole("columns of sums", (SUMS_OF_WORKGROUP, SUMS_OF_PARTS), default=SUMS_OF_WORKGROUP)
KEPT_SUMS = Hole("kept sums", (SUMS_LEFT, SUMS_ROUNDED, SUMS_TO_NORM), default=SUMS_LEFT)

# Reductions over the lanes of a workgroup.
LANES = Hole("lanes", tuple(f"lib/lanes/{part}" for part in ("workgroup", "subgroup", "one_subgroup")))
LANE_PRODUCTS = "lib/lanes/products"  # for lanes that each have their own rows of W
PLAIN = Hole("lanes", ("lib/lanes/plain",))
STATE = Hole("state", ("recurrence/state/f32", "recurrence/state/f16"))
SUM = Hole("sum", ("lib/sum/single_lane", "lib/sum/subgroup"))

# Holes of product kernels other than the format: for kernels of tiles, and for kernels whose lanes stride over W.
TILED = (WORDS.only("vec4s").maybe(), TABLE, EPILOGUE.but("quantise", "adapter_columns"), RESIDUAL, PLAIN)
STRIDING = (
    TABLE,
    EPILOGUE.only(*RESULTS),
    BIAS,
    RESIDUAL,
    NORM,
    ROWS,
    STATISTICS,
    NORMED_ROW,
)

ORDERED_SUBGROUP = 32  # subgroup size for which a subgroup barrier orders workgroup memory (NVIDIA)
PART_NEEDS: dict[str, Needs] = {
    "moe/residual/shared": Needs(buffers=9),  # the total with the other bindings of its kernel
    "attention/gate/each": Needs(buffers=12),  # as required by the pass that fuses it
    "attention/every_run": Needs(f16=True, matrix_units=True),
    "attention/meeting/subgroup": Needs(matrix_units=True, subgroup_size=ORDERED_SUBGROUP),
    "attention/meeting/workgroup": Needs(matrix_units=True, except_size=ORDERED_SUBGROUP),
    "lib/lanes/subgroup": Needs(subgroup=True),
    "lib/lanes/one_subgroup": Needs(subgroup=True),
    "lib/sum/subgroup": Needs(lanes=2),
    "lib/store_quantised": Needs(lanes=8, buffers=9),
    ROUNDING: Needs(f16=True, matrix_units=True),
    LOW_IN_UNIT: Needs(f16=True, matrix_units=True),
    SUMS_ROUNDED: Needs(lanes=4, f16=True, matrix_units=True),
    SUMS_TO_NORM: Needs(lanes=16, f16=True, matrix_units=True),
    "moe/kept/rounded": Needs(lanes=4, f16=True, matrix_units=True, buffers=9),
    "moe/next/norm": Needs(lanes=16, f16=True, matrix_units=True),
    NEXT_OF_BLOCK: Needs(lanes=8, f16=True, matrix_units=True, buffers=11),
    "lib/matrix_units/unit_of_norm": Needs(lanes=16, f16=True, matrix_units=True),
    "attention/answer/rounded": Needs(buffers=14, f16=True, matrix_units=True),
    QUANTISING_ROWS: Needs(lanes=8),
    "formats/words": Needs(buffers=16),
    "linear/row_statistics/emit": Needs(lanes=8, buffers=10),
    "linear/row_statistics/load": Needs(lanes=8, buffers=10),
    "linear/prologue/token_shift": Needs(buffers=8),
    "linear/prologue/token_shift_rows": Needs(buffers=10),
    "linear/prologue/store_normed_row": Needs(buffers=8),
    "linear/prologue/no_normed_row": Needs(buffers=8),
    "linear/epilogue/residual_save_state": Needs(buffers=8),
    "linear/epilogue/residual_save_state_rows": Needs(buffers=10),
    "linear/epilogue/quantise": Needs(lanes=8),
    "moe/choices/ranked": Needs(lanes=2),
    "moe/sort/ranked": Needs(lanes=2),
    "rwkv/shift_output/quantise": Needs(lanes=8, buffers=9),
    "rwkv/shift_output/round": Needs(f16=True, matrix_units=True, buffers=9),
    "rwkv/decode/round": Needs(f16=True, matrix_units=True, buffers=11),
    "rwkv/decode/quantise": Needs(lanes=8, buffers=9),
    "recurrence/y/quantise": Needs(lanes=8, buffers=10),
    "recurrence/y/round": Needs(f16=True, matrix_units=True, buffers=10),
    "ssm/output/round": Needs(f16=True, matrix_units=True, buffers=9),
    "conv/y/round": Needs(lanes=4, f16=True, matrix_units=True),
    "dense/next/round": Needs(f16=True, matrix_units=True),
    "ssm/output/quantise": Needs(lanes=8, buffers=9),
    "recurrence/qkv/convolved": Needs(buffers=9),
    "recurrence/tile/four_rows": Needs(subgroup=True),
    "sampling/subtotal_subgroup": Needs(subgroup=True),
    "recurrence/row_sum/subgroup": Needs(subgroup=True),
    "attention/result/last_workgroup": Needs(coherent=True, buffers=10),
    SUMS_OF_PARTS: Needs(coherent=True),
    "sampling/last_workgroup": Needs(coherent=True, buffers=9),
    "sampling/list_coherent": Needs(coherent=True, buffers=9),
}
