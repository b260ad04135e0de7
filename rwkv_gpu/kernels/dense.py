"""Kernels of embedding, norms and elementwise ops, and probes of a device."""

from .kernel import CLOSE, SAME, Hole, Kernel
from .parts import DECODING, FORMAT, LANES, PLAIN, PLAIN_RESIDUAL, PLAIN_ROWS, ROUNDED, WORDS

IDS = Hole("ids", ("dense/ids/uploaded", "dense/ids/sampled", "dense/ids/position"))
NORM_ROWS = Hole("norm rows", ("dense/norm/vec4", "dense/norm/scalar"))
NORM_GAIN = Hole("norm gain", ("dense/norm_gain/vec4", "dense/norm_gain/scalar", "dense/norm_gain/none"))
NORM_SHIFT = Hole("norm shift", ("dense/shift/vec4", "dense/shift/scalar", "dense/shift/none"))
VEC4S = WORDS.only("vec4s").maybe()

EMBED = Kernel("dense/embed", "embed", (FORMAT, VEC4S, IDS, PLAIN), DECODING)
EMBED_NORM = Kernel(
    "dense/embed_norm",
    "embed",
    (FORMAT, VEC4S, IDS.but("position"), NORM_ROWS, NORM_GAIN, NORM_SHIFT, LANES),
    (*DECODING, "dense/norm/row"),
)
LAYER_NORM = Kernel(
    "dense/layer_norm", "layer_norm", (NORM_ROWS, NORM_GAIN, NORM_SHIFT, PLAIN_ROWS, LANES), ("dense/norm/row",)
)
RMS_NORM = Kernel(
    "dense/rms_norm",
    "rms_norm",
    (
        Hole("gain", ("dense/gain/weight", "dense/gain/none")),
        Hole("next", ("dense/next/none", "dense/next/round")),
        PLAIN_RESIDUAL,
        LANES,
    ),
    (ROUNDED,),
)
SOFTMAX = Kernel("dense/softmax", "softmax", (LANES,), tolerance=CLOSE)
EXCESS = Kernel("dense/excess", "excess", (LANES,))
ARGMAX = Kernel("dense/argmax", "argmax", (LANES,), tolerance=SAME)
UNARIES = "activation", "softcap", "clamp", "clip", "gelu_erf", "scale", "signed_root", "swish", "xielu"
UNARY = Hole("unary", tuple(f"dense/unary/{part}" for part in UNARIES))
MAP_UNARY = Kernel(
    "dense/map_unary",
    "activate",
    (UNARY, PLAIN),
    ("lib/activation",),
)
MAP_BINARY = Kernel(
    "dense/map_binary",
    "add",
    (
        Hole("binary", tuple(f"dense/binary/{part}" for part in ("add", "mul", "glu"))),
        Hole("glu", ("moe/glu/clamped_swiglu", "moe/glu/situ"), optional=True),
        PLAIN,
    ),
)
SCALE_ROWS = Kernel("dense/scale_rows", "scale_rows", (PLAIN_RESIDUAL, PLAIN))
ROW_MATRIX = Kernel("dense/row_matrix", "row_matrix", (PLAIN,))
MEAN_PARTS = Kernel("dense/mean_parts", "mean_parts", (PLAIN,))
NGRAM_ROWS = Kernel("dense/ngram_rows", "ngram_rows", (PLAIN,), tolerance=SAME)
TOKEN_NUMBERS = Kernel("dense/token_numbers", "token_numbers", (IDS.but("position"), PLAIN), tolerance=SAME)
PICK = Kernel("dense/pick", "pick", (PLAIN,), tolerance=SAME)
PICK_BLOCKS = Kernel(
    "dense/pick_blocks",
    "pick_blocks",
    (Hole("blocks", tuple(f"dense/blocks/{part}" for part in ("joined", "by_column", "mean"))), PLAIN),
)
RESIZE_HEADS = Kernel("dense/resize_heads", "resize_heads", (PLAIN,), tolerance=SAME)
TURN = Kernel("dense/turn", "turn", (PLAIN,))
SCATTER = Kernel("dense/spread", "scatter", (PLAIN,), tolerance=SAME)
CONCAT = Kernel("dense/concat", "concat", (PLAIN,), tolerance=SAME)
ROW_BEFORE = Kernel(
    "dense/row_before",
    "shift_rows",
    (Hole("row within", ("dense/row_within/rows", "dense/row_within/none")), PLAIN),
    tolerance=SAME,
)
KEEP_ROWS = Kernel("dense/keep_rows", "keep_rows", (PLAIN,), tolerance=SAME)
COPY_ROWS = Kernel("dense/copy_rows", "copy", (PLAIN,), tolerance=SAME)
COPY_WEIGHTS = Kernel("weights/copy", "copy_weights", (PLAIN,), tolerance=SAME)

# Probes that measure a device; they serve no op.
STREAM = Kernel("probes/stream", "", (PLAIN,))
FUSED_MULTIPLY_ADD = Kernel("probes/fused_multiply_add", "", (PLAIN,))
# Kernels for several residual streams: prediction of each from all, correction, and matching of lengths.
PREDICT = Kernel("streams/predict", "predict_streams", (PLAIN,))
CORRECT = Kernel("streams/correct", "correct_streams", (PLAIN_RESIDUAL, PLAIN))
MATCH_LENGTH = Kernel("streams/match_length", "match_length", (LANES,))
STREAM_GATES = Kernel("streams/gates", "stream_gates", (PLAIN,))
STREAM_MATRIX = Kernel("streams/matrix", "stream_gates", (PLAIN,), tolerance=CLOSE)
ADD_TO_STREAMS = Kernel(
    "streams/add", "add_to_streams", (Hole("mix", ("streams/mix/none", "streams/mix/matrix")), PLAIN)
)
