"""Kernels of attention over pages of keys and values, in prompts and in decode."""

from ..gpu.device import MIN_SUBGROUP
from .kernel import CLOSE, Hole, Kernel, Needs, Tolerance
from .parts import LANES, LAST_WORKGROUP, PLAIN, ROUNDING_IN_UNITS, SUM

BLOCK_PAGES = Tolerance(2e-2, 2e-2, "halves between quants are rounded up or down, and decode rounds queries to 8 bits")
HALF_PAGES = Tolerance(2e-3, 2e-3, "keys and values are stored as float16")  # not for float32

HEAD_NORM = Hole(
    "head norm", tuple(f"attention/head_norm/{part}" for part in ("none", "rms", "turned", "unit", "whole"))
)
VALUE_NORM = Hole("value norm", ("attention/value_norm/none", "attention/value_norm/unit"))
ROPE = Hole("rope", ("attention/rope/neox", "attention/rope/normal", "attention/rope/none"))
QUERY_SCALE = Hole(
    "query scale", tuple(f"attention/query_scale/{part}" for part in ("constant", "temperature", "late"))
)
SOURCE = Hole("source", ("attention/source/own", "attention/source/cached"))
REACHES = "window", "chunk", "both", "ahead", "ends", "bounded", "after_first"
REACH = Hole("reach", tuple(f"attention/reach/{part}" for part in REACHES))
REACH_BACK = REACH.only("window", "chunk", "after_first")  # for steps in which a sequence has one row
LOGIT = Hole("logit", tuple(f"attention/logit/{part}" for part in ("plain", "capped", "alibi", "relative")))
LOGIT_BACK = LOGIT.but("relative")  # without biases for keys after the query
GATE = Hole("gate", ("attention/gate/none", "attention/gate/each"))
ANSWER = Hole("answer", ("attention/answer/floats", "attention/answer/rounded"))
SINK = Hole("sink", ("attention/sink/none", "attention/sink/logit"))
READ = Hole("read", tuple(f"attention/cache/read_{kind}" for kind in ("f16", "f32", "blocks")))
WRITE = Hole("write", tuple(f"attention/cache/write_{kind}" for kind in ("f16", "f32", "blocks", "rotated")))
WORDS = Hole("words", tuple(f"attention/cache/words_of_{count}" for count in ("four", "two", "one")))
PUT = Hole("put", ("attention/cache/put_one", "attention/cache/put_two")).maybe()  # used by caches in blocks
BITS = Hole("bits", ("attention/cache/bits_q8", "attention/cache/bits_q4")).maybe()
ROTATION_OF_BLOCKS = Hole("rotation", ("attention/cache/as_they_are", "attention/cache/hadamard"))
STORED = WORDS, BITS, ROTATION_OF_BLOCKS  # the layout of keys and values in memory
RESULT = Hole("result", tuple(f"attention/result/{part}" for part in ("whole", "partial", "last_workgroup")))
# Heads of q, k and v as the products write them, and the norms, scales and rotations applied to them.
HEADS = "attention/heads", "attention/eight", "attention/turns", "attention/vectors", "attention/cache/blocks"
TAKES = HEAD_NORM, VALUE_NORM, ROPE, QUERY_SCALE, SOURCE, WRITE, PUT
SOFTEN = "attention/soften"  # the softmax of queries, with a lane per vec4
RUNS = "attention/partition", "attention/run_sums"  # the reduction of runs
CUT = Hole("cut", ("attention/partition", "attention/every_run", "attention/latent/window_and_entries"))
MEETING = Hole("meeting", ("attention/meeting/subgroup", "attention/meeting/workgroup"))
RUN_COUNT = Hole("run count", ("attention/runs/even", "attention/runs/shared_out"))
RUNS_OF_ROWS = Hole("runs of rows", ("attention/runs/even_runs", "attention/runs/further_runs"))
SCORES = REACH, LOGIT_BACK, SINK  # masking and transformation of scores
SCORES_OF_LAST = REACH_BACK, LOGIT_BACK  # the same for steps in which a sequence has one row

ATTENTION = Kernel(
    "attention/attention",
    "attention",
    (
        Hole("queries", tuple(f"attention/queries/{part}" for part in ("rotated", "rotate_here", "chosen"))),
        Hole("keys", ("attention/keys/paged", "attention/keys/chosen")),
        *(hole.maybe() for hole in TAKES),
        REACH,
        LOGIT,
        SINK.maybe(),
        GATE.maybe(),
        ANSWER.only("floats").maybe(),
        READ,
        *STORED,
        RUN_COUNT.only("even"),
        RESULT.only("whole", "partial"),
        PLAIN,
    ),
    (*HEADS, "attention/partition", "attention/block", "attention/blocks_of_segments", "attention/queries/written"),
    core=(SOFTEN,),
    tolerance=CLOSE,
)
ATTENTION_DECODE = Kernel(
    "attention/attention_decode",
    "attention",
    (
        Hole("pack", tuple(f"attention/pack/pack_{count}" for count in (2, 3, 4))),
        Hole("scores", ("attention/scores/floats", "attention/scores/integers")),
        Hole("raw", tuple(f"attention/cache/raw_{kind}" for kind in ("f16", "f32", "blocks"))),
        *STORED,
        *TAKES,
        *SCORES_OF_LAST,
        SINK.maybe(),
        GATE.maybe(),
        ANSWER.maybe(),
        READ,
        RUN_COUNT,
        RUNS_OF_ROWS,
        RESULT,
        SUM.only("subgroup"),
        PLAIN,
    ),
    (*HEADS, "attention/partition", LAST_WORKGROUP, *ROUNDING_IN_UNITS),
    needs=Needs(lanes=MIN_SUBGROUP),
    tolerance=CLOSE,
)
ATTENTION_MATRIX = Kernel(
    "attention/attention_matrix",
    "attention",
    (*SCORES, RUN_COUNT.only("even"), MEETING, PLAIN),
    (
        *("attention/block", "attention/blocks", "attention/blocks_of_segments"),
        *("attention/partition", "attention/softmax", "attention/vectors"),
    ),
    core=("lib/matrix_units/halves",),
    needs=Needs(f16=True, matrix_units=True),
    tolerance=HALF_PAGES,
)
ATTENTION_DECODE_MATRIX = Kernel(
    "attention/attention_decode_matrix",
    "attention",
    (
        *SCORES_OF_LAST,
        SINK.maybe(),
        GATE.maybe(),
        ANSWER.maybe(),
        RUN_COUNT,
        RUNS_OF_ROWS,
        RESULT.only("whole", "partial"),
        PLAIN,
    ),
    ("attention/partition", "attention/softmax", "attention/vectors", *ROUNDING_IN_UNITS),
    needs=Needs(f16=True, matrix_units=True),
    tolerance=HALF_PAGES,
)
KV_WRITE = Kernel(
    "attention/kv_write", "attention", (HEAD_NORM.but("whole"), *TAKES[1:], *STORED, PLAIN), HEADS, tolerance=CLOSE
)
SPLIT_REDUCE = Kernel(
    "attention/split_reduce",
    "attention",
    (CUT, RUN_COUNT.maybe(), REACH_BACK, SINK, GATE, ANSWER, PLAIN),
    ("attention/run_sums", "attention/vectors", *ROUNDING_IN_UNITS),
    tolerance=CLOSE,
)

# Attention over latents. All heads share the same latents.
ROTATION = Hole("rotation", ("attention/latent/rotate", "attention/latent/no_rope"))
LATENT_PUT = Hole("latent write", ("attention/latent/write_f16", "attention/latent/write_f32"))
LATENT_WRITE = Kernel(
    "attention/latent_write",
    "latent_attention",
    (
        ROTATION,
        ROPE.but("none").maybe(),  # models without rotary positions have no such part
        LATENT_PUT,
        LANES,
    ),
    ("attention/eight",),
    tolerance=CLOSE,
)
LATENT_QUERIES = Hole("queries", ("attention/latent/single_rows", "attention/latent/segments"))
LATENT_READ = Hole("latent read", ("attention/latent/read_f16", "attention/latent/read_f32"))
PAGES_OF_ROWS = Hole("pages of rows", ("attention/latent/pages_of_rows", "attention/latent/pages_of_segments"))
INDEXES = "weighted", "unweighted", "largest"
TURN_HEADS = Kernel(
    "attention/turn_heads", "turn_heads", (ROTATION.only("rotate"), ROPE.but("none"), PLAIN), tolerance=CLOSE
)
ENTRY_WRITE = Kernel(
    "attention/entry_write",
    "write_entries",
    (ROTATION, ROPE.but("none").maybe(), LATENT_PUT, PLAIN),
    ("attention/eight",),
    tolerance=CLOSE,
)
COMPRESS = Kernel(
    "attention/compress", "compress", (LATENT_READ, PAGES_OF_ROWS, PLAIN), ("attention/eight",), tolerance=CLOSE
)
INDEX_WRITE = Kernel(
    "attention/index_write",
    "choose_keys",
    (
        ROTATION,
        ROPE.but("none").maybe(),
        LATENT_PUT,
        PLAIN,
    ),
    ("attention/eight",),
    tolerance=CLOSE,
)
CHOOSE_KEYS = Kernel(
    "attention/choose_keys",
    "choose_keys",
    (Hole("index", tuple(f"attention/index/{kind}" for kind in INDEXES)), LATENT_READ, PAGES_OF_ROWS, PLAIN),
    ("attention/eight",),
    tolerance=CLOSE,
)
# The results of latent attention, which has no sinks or gates.
LATENT_REST = (
    REACH.only("window"),
    SINK.only("none").maybe(),
    GATE.only("none").maybe(),
    ANSWER.only("floats").maybe(),
)
LATENT_BLOCKS = "attention/partition", "attention/block", "attention/blocks_of_segments"
LATENT_ATTENTION = Kernel(
    "attention/latent_attention",
    "latent_attention",
    (
        LATENT_QUERIES.also("attention/latent/chosen_rows"),
        Hole("keys", tuple(f"attention/latent/{part}" for part in ("every_key", "chosen_keys", "entries_of_row"))),
        PAGES_OF_ROWS.called_by("attention/latent/chosen_keys", "attention/latent/entries_of_row"),
        QUERY_SCALE.but("late"),
        LATENT_READ,
        RUN_COUNT.maybe(),  # not used with entries
        RUNS_OF_ROWS.maybe(),  # used in decode only
        RESULT.only("whole", "partial"),
        *LATENT_REST,
        PLAIN,
    ),
    ("attention/eight", "attention/latent/whole_cut", *LATENT_BLOCKS),
    core=(SOFTEN,),
    tolerance=CLOSE,
)
LATENT_ATTENTION_MATRIX = Kernel(
    "attention/latent_attention_matrix",
    "latent_attention",
    (
        LATENT_QUERIES,
        QUERY_SCALE.but("late"),
        RUN_COUNT,
        RUNS_OF_ROWS.maybe(),
        RESULT.only("whole", "partial"),
        *LATENT_REST,
        PLAIN,
    ),
    ("attention/softmax", *LATENT_BLOCKS),
    core=("lib/matrix_units/halves",),
    needs=Needs(f16=True, matrix_units=True),
    tolerance=HALF_PAGES,
)
