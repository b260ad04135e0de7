"""Attention over pages of keys and values, in prompts and in decode."""

from ..gpu.device import LEAST_SUBGROUP
from .kernel import CLOSE, Hole, Kernel, Needs, Tolerance
from .parts import LANES, PLAIN, SUM

HALF_PAGES = Tolerance(2e-3, 2e-3, "keys and values are stored as float16")  # CLOSE where they are float32

HEAD_NORM = Hole("head norm", ("attention/head_norm/none", "attention/head_norm/rms"))
ROPE = Hole("rope", ("attention/rope/neox", "attention/rope/normal"))
READ = Hole("read", ("attention/cache/read_f16", "attention/cache/read_f32"))
WRITE = Hole("write", ("attention/cache/write_f16", "attention/cache/write_f32"))
RESULT = Hole("result", tuple(f"attention/result/{part}" for part in ("whole", "partial", "last_workgroup")))
HEADS = "attention/heads", "attention/eight"  # of q, k and v as the matrices leave them

ATTENTION = Kernel(
    "attention/attention",
    "attention",
    (
        Hole("queries", ("attention/queries/rotated", "attention/queries/rotate_here")),
        HEAD_NORM.maybe(),
        ROPE.maybe(),
        WRITE.maybe(),
        READ,
        RESULT.only("whole", "partial"),
        PLAIN,
    ),
    (*HEADS, "attention/partition"),
    tolerance=CLOSE,
)
ATTENTION_DECODE = Kernel(
    "attention/attention_decode",
    "attention",
    (
        Hole("pack", tuple(f"attention/pack/pack_{count}" for count in (2, 3, 4))),
        Hole("raw", ("attention/cache/raw_f16", "attention/cache/raw_f32")),
        HEAD_NORM,
        ROPE,
        WRITE,
        READ,
        RESULT,
        SUM.only("subgroup"),
        PLAIN,
    ),
    (*HEADS, "attention/partition"),
    needs=Needs(lanes=LEAST_SUBGROUP),
    tolerance=CLOSE,
)
ATTENTION_MATRIX = Kernel(
    "attention/attention_matrix",
    "attention",
    (PLAIN,),
    ("attention/blocks",),
    needs=Needs(f16=True, matrix_units=True),
    tolerance=HALF_PAGES,
)
KV_WRITE = Kernel("attention/kv_write", "attention", (HEAD_NORM, ROPE, WRITE, PLAIN), HEADS, tolerance=CLOSE)
SPLIT_REDUCE = Kernel("attention/split_reduce", "attention", (PLAIN,), ("attention/partition",), tolerance=CLOSE)

# Attention over latents, which all heads share.
ROTATION = Hole("rotation", ("attention/latent/rotate", "attention/latent/no_rope"))
LATENT_WRITE = Kernel(
    "attention/latent_write",
    "latent_attention",
    (
        ROTATION,
        ROPE.maybe(),  # not without rotary positions
        Hole("latent write", ("attention/latent/write_f16", "attention/latent/write_f32")),
        LANES,
    ),
    ("attention/eight",),
    tolerance=CLOSE,
)
LATENT_ATTENTION = Kernel(
    "attention/latent_attention",
    "latent_attention",
    (
        Hole("queries", ("attention/latent/single_rows", "attention/latent/segments")),
        Hole("latent read", ("attention/latent/read_f16", "attention/latent/read_f32")),
        RESULT.only("whole", "partial"),
        PLAIN,
    ),
    ("attention/eight", "attention/partition"),
    tolerance=CLOSE,
)
