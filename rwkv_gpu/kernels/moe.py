"""Kernels of mixtures of experts: routing, products with the chosen experts, and their sum."""

from collections.abc import Iterator
from itertools import product

from ..gpu.device import MIN_SUBGROUP, Capabilities
from .attention import REACH, RUN_COUNT, RUNS
from .expert_config import (
    EXPERT_TILE,
    ExpertConfig,
    ExpertKernel,
    ExpertMatrixTile,
    expert_gemm_lane,
    expert_gemm_matrix,
    expert_gemv,
    expert_gemv_int,
    expert_tile_bytes,
)
from .gemm_config import F16, INT16, UNLIMITED, GemmConfig, gemv_int
from .gemv import STAGED, STAGING, sum_part
from .kernel import CLOSE, SAME, Hole, Kernel, Needs, Tolerance
from .parts import (
    DECODED_WEIGHTS,
    DECODING,
    FORMAT,
    LANE_PRODUCTS,
    LANES,
    NORM,
    PACKED_FORMAT,
    PLAIN,
    PLAIN_RESIDUAL,
    PLAIN_ROWS,
    ROUNDING_IN_UNITS,
    ROWS,
    SUM,
    TO_NORM,
    WORDS,
)

INT_WAYS = ((256, 16, 2), (512, 16, 2), (512, 16, 4), (1024, 16, 2))  # expert_gemv_int: lanes, lanes per row, rows
TWICE_F16 = Tolerance(2 * F16.terms, 2 * F16.result, f"twice, in gate and up and in down: {F16.reason}")
TWICE = Tolerance(2 * INT16.terms, 2 * INT16.result, f"twice, in gate and up and in down: {INT16.reason}")

AS_FLOATS = "formats/mxfp4_floats"  # replaces "formats/mxfp4" in kernels that multiply floats
FLOATS = Hole("format", (*(part for part in FORMAT.parts if part != "formats/mxfp4"), AS_FLOATS))
BYTES_FORMAT = Hole("format", tuple(part for part in PACKED_FORMAT.parts if part != "formats/mxfp4"))
STAGED_FORMAT = Hole("format", (*BYTES_FORMAT.parts, AS_FLOATS))
CHOICES = Hole("choices", tuple(f"moe/choices/{part}" for part in ("each", "ranked", "sorted", "heads")))
RESULT = Hole("result", ("moe/result/glu", "moe/result/gated", "moe/result/plain"))
VEC4S = WORDS.only("vec4s").maybe()
GATING = Hole("gating", tuple(f"moe/gating/{part}" for part in ("softmax", "late_softmax", "sigmoid", "sqrt_softplus")))
CHOOSING = Hole("choosing", tuple(f"moe/choosing/{part}" for part in ("logits", "scores", "biased")))
GROUPS = Hole("groups", ("moe/groups/one", "moe/groups/best"))
ANSWER = Hole("answer", ("moe/answer/plain", "moe/answer/scaled"))
GLU = Hole("glu", ("moe/glu/activated", "moe/glu/clamped_swiglu", "moe/glu/situ"), optional=True)  # for two matrices
BIAS = Hole("bias", ("moe/bias/none", "moe/bias/each"))
SUMS = Hole("sums", ("moe/sums/plain", "moe/sums/scaled"))
INPUT_SCALE = Hole("input scale", ("moe/input/plain", "moe/input/scaled"))
SHARES = Hole("shares", ("moe/share/each", "moe/share/one"))
ROUTED = (
    GATING.maybe(),
    CHOOSING.only("logits", "biased").maybe(),
    ANSWER.maybe(),
)  # if subgroups rank experts
RANKING = {part: Needs(lanes=2) for hole in ROUTED for part in hole.parts}  # the needs of moe/choices/ranked
WRITING = RESULT, GLU, BIAS, SUMS, INPUT_SCALE
MATRICES = (*DECODING, "moe/matrices")
TILES = "moe/tiles", "moe/write", "lib/activation"


def _gemv_trials(can: Capabilities) -> dict[str, ExpertConfig]:
    configs = {"expert_gemv": expert_gemv(64, 64, 4, 1), "expert_gemv_sorted": expert_gemv(32, 8, 2, 4)}
    if can.subgroup:
        size = can.subgroup_width
        configs["expert_gemv_subgroups"] = expert_gemv(4 * size, 2 * size, 4, 1, subgroup_width=size, summing=(size, 2))
        configs["expert_gemv_part_of_subgroup"] = expert_gemv(2 * size, size // 2, 2, 4, subgroup_width=size)
    return configs


def _gemv_candidates(can: Capabilities) -> Iterator[ExpertConfig]:
    ways = ((8, 4, 32, 2), (16, 2, 32, 4), (16, 4, 64, 2), (16, 8, 64, 4), (32, 2, 128, 2), (32, 4, 128, 4))
    for tb in (1, 2, 4, 8):
        yield expert_gemv(64, 16, 4, tb, summing=(64, 4))
        for lanes, r, *summing in ways if can.subgroup else ():
            yield expert_gemv(128, lanes, r, tb, subgroup_width=can.subgroup_width, summing=(summing[0], summing[1]))


def _gemv_bytes(config: ExpertConfig) -> int:
    most = 0
    for one in (config, config.summing) if config.sums else (config,):
        staged = max(one.tb * one.staged(run) * (run + 4) for run in (16, 32))
        groups = one.wg // min(one.lanes_per_row, one.subgroup_width)
        most = max(most, 4 * (staged + groups * one.r * one.tb + one.wg // one.subgroup_width * one.tb))
    return most


EXPERT_GEMV = ExpertKernel(
    name="moe/expert_gemv",
    op="experts",
    holes=(FLOATS, VEC4S, CHOICES, *ROUTED, *WRITING, NORM, PLAIN_ROWS, SUM, PLAIN),
    shared=(*MATRICES, *TILES, "moe/ranking", "moe/shares", "moe/stage", "lib/sum/across_subgroups", "lib/sum/squares"),
    tolerance=CLOSE,
    trials=_gemv_trials,
    candidates=_gemv_candidates,
    block=lambda c: c.r * (c.wg // c.lanes_per_row),
    links=lambda c: ("moe/stage", "lib/sum/across_subgroups", "lib/sum/squares", sum_part(c.subgroup_width)),
    workgroup_bytes=_gemv_bytes,
    fuses_norm=True,
    part_needs=RANKING,
)


def _int_trials(can: Capabilities) -> dict[str, ExpertConfig]:
    size = can.subgroup_width
    return {
        "expert_gemv_int": expert_gemv_int(4 * size, size, 2, subgroup_width=size, summing=(size, 1)),
        "expert_gemv_int_part_of_subgroup": expert_gemv_int(
            4 * size, size, 4, subgroup_width=size, summing=(size // 4, 2)
        ),
        "expert_gemv_int_few_workgroups": expert_gemv_int(2 * size, size, 2, subgroup_width=size, max_workgroups=1),
    }


def _int_candidates(can: Capabilities) -> Iterator[ExpertConfig]:
    for (wg, lanes, r), summing in product(INT_WAYS, ((16, 1), (16, 2), (32, 1))):
        if not can.software and summing[0] <= can.subgroup_width:
            yield expert_gemv_int(wg, lanes, r, subgroup_width=can.subgroup_width, summing=summing)


def _as_gemv_int(config: ExpertConfig) -> GemmConfig:
    """The plain product that quantises and multiplies x by the same parts, for the self test."""
    return gemv_int(
        config.wg, config.lanes_per_row, config.r, subgroup_width=config.subgroup_width, max_workgroups=UNLIMITED
    )


EXPERT_GEMV_INT = ExpertKernel(
    name="moe/expert_gemv_int",
    op="experts",
    holes=(
        STAGED_FORMAT,
        VEC4S,
        CHOICES.only("each", "ranked", "heads"),
        *ROUTED,
        *WRITING,
        NORM,
        STAGING,
        Hole("row", ("moe/rows/plain", "moe/rows/joined_runs", "moe/rows/prefetched")),
        ROWS.only("vec4").maybe(),
        REACH.only("window").maybe(),  # used by rows in runs
        RUN_COUNT.only("even").maybe(),
        SUM.only("subgroup"),
        PLAIN,
    ),
    shared=(*MATRICES, *TILES, *STAGED, *RUNS, "moe/ranking", "moe/shares", "lib/sum/squares"),
    needs=Needs(lanes=MIN_SUBGROUP),
    tolerance=TWICE,
    trials=_int_trials,
    candidates=_int_candidates,
    block=lambda c: c.r * (c.wg // c.lanes_per_row),
    links=lambda c: ("lib/sum/squares", sum_part(c.subgroup_width)),
    fuses_norm=True,
    tried_as=_as_gemv_int,
)


def _lane_candidates(can: Capabilities) -> Iterator[ExpertConfig]:
    if can.subgroup_size == 8:
        yield from (expert_gemm_lane(r, tb) for tb in (1, 2, 4, 8, 16) for r in (2, 4))


EXPERT_GEMM_LANE = ExpertKernel(
    name="moe/expert_gemm_lane",
    op="experts",
    holes=(FORMAT, VEC4S, CHOICES.only("each", "sorted", "heads"), *WRITING, PLAIN_ROWS, PLAIN),
    shared=(*MATRICES, *TILES, "lib/lanes/broadcast"),
    needs=Needs(subgroup_size=8),
    tolerance=CLOSE,
    trials=lambda _: {"expert_gemm_lane": expert_gemm_lane(2, 1), "expert_gemm_lane_sorted": expert_gemm_lane(2, 8)},
    candidates=_lane_candidates,
    block=lambda c: c.r * c.wg,
    core=(LANE_PRODUCTS,),
    links=lambda _: ("lib/lanes/broadcast",),
)
EXPERT_GEMM_TILE = ExpertKernel(
    name="moe/expert_gemm_tile",
    op="experts",
    holes=(FORMAT, VEC4S, CHOICES.only("sorted", "heads"), *WRITING, PLAIN_ROWS, PLAIN),
    shared=(*MATRICES, *TILES),
    tolerance=CLOSE,
    trials=lambda _: {"expert_gemm_tile": EXPERT_TILE},
    candidates=lambda _: iter((EXPERT_TILE,)),
    block=lambda c: c.r,
    links=lambda _: (),
    workgroup_bytes=lambda c: 32 * (c.r + c.tb) * 4,
)


def _matrix_trials(can: Capabilities) -> dict[str, ExpertConfig]:
    """Every number of fragments, with and without subgroups that divide columns, and both ways to stage."""
    tiles = {
        "expert_gemm_matrix": ExpertMatrixTile(2, 4, 2, 2),
        "expert_gemm_matrix_ahead": ExpertMatrixTile(1, 2, 2, columns=128),
        "expert_gemm_matrix_high": ExpertMatrixTile(4, 1, 1, 2),
        "expert_gemm_matrix_two_ahead": ExpertMatrixTile(1, 1, 2, 2, ahead=2),
        "expert_gemm_matrix_four_ahead": ExpertMatrixTile(1, 1, 4, ahead=4),
    }
    return {name: expert_gemm_matrix(can.fragment, can.subgroup_size, tile) for name, tile in tiles.items()}


def _matrix_candidates(can: Capabilities) -> Iterator[ExpertConfig]:
    yield from (expert_gemm_matrix(can.fragment, can.subgroup_size, tile) for tile in MATRIX_TILES)


MATRIX_TILES = (  # tiles that `tune` tries, for few and for many choices of an expert
    ExpertMatrixTile(1, 1, 4),
    ExpertMatrixTile(1, 1, 4, ahead=4),
    ExpertMatrixTile(2, 2, 4),
    ExpertMatrixTile(2, 2, 4, 2),
    ExpertMatrixTile(1, 4, 8),
    ExpertMatrixTile(2, 4, 4, 2),
)
EXPERT_GEMM_MATRIX = ExpertKernel(
    name="moe/expert_gemm_matrix",
    op="experts",
    holes=(
        FORMAT,
        VEC4S,
        CHOICES.only("sorted", "heads"),
        *WRITING,
        DECODED_WEIGHTS.maybe(),
        Hole("decoded run", ("moe/weights_of_fours", "lib/matrix_units/of_e2m1")),
        Hole("fragments", ("moe/matrix_fragments", "moe/matrix_ahead")),
        Hole("x", ("moe/x/halves", "moe/x/words", "moe/x/floats")),
        PLAIN_ROWS.maybe(),  # used by rows of floats
        Hole("unit", ("moe/unit/row", "moe/unit/all")),
        Hole("kept", ("moe/kept/none", "moe/kept/rounded")),
        PLAIN,
    ),
    shared=(*MATRICES, *TILES, *ROUNDING_IN_UNITS, "lib/matrix_units/halves", "moe/matrix_sums", "moe/matrix_tile"),
    needs=Needs(f16=True, matrix_units=True),
    tolerance=TWICE_F16,
    trials=_matrix_trials,
    candidates=_matrix_candidates,
    block=lambda c: c.r,
    links=lambda c: (
        "lib/matrix_units/halves",
        f"moe/matrix_{'ahead' if c.ahead > 1 else 'fragments'}",
        "moe/matrix_sums",
        "moe/matrix_tile",
    ),
    workgroup_bytes=expert_tile_bytes,
)

NEXT, BLOCK_NEXT = (Hole("next", (f"moe/{of}/none", f"moe/{of}/norm")) for of in ("next", "block_next"))
RESIDUAL = Hole("residual", (*PLAIN_RESIDUAL.parts, "moe/residual/shared"))
EXPERT_SUM_GEMV = Kernel(
    "moe/expert_sum_gemv",
    "experts",
    (FLOATS, VEC4S, RESIDUAL, BIAS, SHARES, NORM.only("no_norm"), PLAIN_ROWS, SUM, PLAIN),
    (*MATRICES, "moe/chosen", "moe/stage", "lib/sum/across_subgroups", "lib/sum/squares"),
    tolerance=CLOSE,
)
EXPERT_SUM_GEMV_INT = Kernel(
    "moe/expert_sum_gemv_int",
    "experts",
    (BYTES_FORMAT, VEC4S, RESIDUAL, BIAS, SHARES, BLOCK_NEXT, ROWS.only("vec4"), SUM.only("subgroup"), PLAIN),
    (*MATRICES, *STAGED, "linear/staging/integers", "moe/chosen", "lib/sum/squares", TO_NORM, *ROUNDING_IN_UNITS),
    needs=Needs(lanes=MIN_SUBGROUP),
    tolerance=TWICE,
)
CACHE_LOOKUP = Kernel("moe/cache_lookup", "fetch_experts", (), tolerance=SAME)
CACHE_FILL = Kernel("moe/cache_fill", "fetch_experts", (PLAIN,), tolerance=SAME)
ROUTE_KNOWN = Kernel(
    "moe/route_known", "route_known", (GATING.only("sqrt_softplus"), PLAIN), ("moe/shares",), tolerance=CLOSE
)
GROUP_CHOICES = Kernel("moe/group_choices", "by_group", (PLAIN,), tolerance=SAME)
EXPERT_SORT = Kernel(
    "moe/expert_sort",
    "experts",
    (Hole("sort", ("moe/sort/chosen", "moe/sort/ranked")), *ROUTED),
    ("moe/ranking", "moe/shares", "lib/sum/subgroup"),
    tolerance=CLOSE,
    part_needs=RANKING,
)
EXPERT_GATHER = Kernel(
    "moe/expert_gather",
    "experts",
    (RESIDUAL, SHARES, NEXT, PLAIN),
    (TO_NORM, *ROUNDING_IN_UNITS),
    tolerance=CLOSE,
)
ROUTE = Kernel("moe/route", "route", (GATING, ANSWER, LANES), ("moe/shares",), tolerance=CLOSE)
ROUTE_RANK = Kernel(
    "moe/route_rank", "route", (GATING, CHOOSING, GROUPS, ANSWER, LANES), ("moe/shares",), tolerance=CLOSE
)
