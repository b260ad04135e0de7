"""Trials of matrix products: each kernel in every format, then with prologues and epilogues."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from ...gguf.formats import Format
from ...gpu.device import Capabilities
from ...kernels.defaults import default_tuning, reductions
from ...kernels.gemm_config import BYTES, INT8, INT16, UNLIMITED, GemmConfig, GemmKernel, gemv
from ...kernels.gemv import GEMV_INT, GEMV_SINGLE_PASS
from ...kernels.kernel import CLOSE, EXACT
from ...kernels.parts import ADAPTER_COLUMNS, FORMAT, JOINED, SUMS_ROUNDED
from ...kernels.registry import gemm_trials
from ...kernels.tuning import GemmLimits, Tuning
from ...ops.vocabulary import ACTIVATIONS, LayerNorm, Rms, State, Weight
from ..trials import Past, Stored, Trial
from .adapters import COLUMNS, factors, mixed_scales
from .common import BY_NAME, F32, SOME, decode_batch, normal

CHOSEN = "as chosen"  # variant name of timed trials with the kernel that the tuning chooses
MORE = 10  # the tolerance is this times that of a plain product: activations and norms amplify rounding
WIDE = 144  # adapter columns, more than the matrix has


def cases(can: Capabilities) -> Iterator[Trial]:
    """Trials of every configuration of every kernel."""
    known = set()
    for name, (kernel, config) in gemm_trials(can).items():
        formats = formats_of(kernel)
        first = kernel.name not in known
        known.add(kernel.name)
        yield from _formats(can, name, config, formats if first else [fmt for fmt in formats if fmt.name in SOME])
        yield from _epilogues(can, name, kernel, config)
        if kernel.fuses_norm:
            yield from _norms(can, name, kernel, config)
        if kernel.fuses_norm and not config.reads_quantised:
            yield from _token_shift(can, name, kernel, config)
            yield _convolution(can, name, kernel, config)
            yield from _loads_statistics(can, name, kernel, config)
        yield from _saves_state(can, name, kernel, config)
        if kernel.takes(JOINED) and not config.reads_quantised:
            yield _joined(name, _only(can, config), MORE * config.tolerance.result)
    yield from _quantised(can)


def formats_of(kernel: GemmKernel) -> list[Format]:
    """The formats that the kernel supports."""
    [hole] = [hole for hole in kernel.holes if hole.name == FORMAT.name]
    return [fmt for fmt in BY_NAME.values() if f"formats/{fmt.shader}" in hole.parts]


def _only(can: Capabilities, config: GemmConfig) -> Tuning:
    return default_tuning(can).only(config)


def _rows(config: GemmConfig) -> int:
    return config.tb + 6 if config.tb > 16 else config.tb + 1


def _tolerance(config: GemmConfig, fmt: Format) -> float:
    """The configuration's tolerance; for float formats, a kernel that quantises x leaves x unchanged."""
    exact = config.activations in BYTES and "packed" not in fmt.shared
    return EXACT.result if exact else config.tolerance.result


def _formats(can: Capabilities, name: str, config: GemmConfig, formats: list[Format]) -> Iterator[Trial]:
    for fmt, rows in product(formats, (1, _rows(config))):
        if rows > 1 or fmt.name in SOME:
            w, x = {"w": Stored.random(fmt, 130, 512)}, {"x": normal(rows, 512)}
            yield Trial(
                "linear", f"{fmt.name}, {rows} rows", name, _only(can, config), lambda g, w, x: g.linear(x, w["w"]), x,
                w, _tolerance(config, fmt),
            )  # fmt: skip


def _epilogues(can: Capabilities, name: str, kernel: GemmKernel, config: GemmConfig) -> Iterator[Trial]:
    """Bias, activation and residual; gate and up in pairs; rows that are not multiples of four."""
    tuning, rows, fmt = _only(can, config), _rows(config), _one_format(kernel)
    allowed = max(MORE * config.tolerance.result, CLOSE.result)
    fusing = tuning.changed(adapter_rows=UNLIMITED)
    for normed in (False, True)[: 1 + config.reads_quantised]:  # the rows are also quantised in the dispatch of A x
        yield _adapted(name, fusing, fmt, rows, allowed, normed=normed)
    yield _adapted_pairs(name, fusing, fmt, rows, allowed)
    if kernel.takes(ADAPTER_COLUMNS):  # except with this many columns
        yield _adapted(name, fusing, fmt, rows, allowed, columns=WIDE)
        yield _adapted_pairs(name, fusing, fmt, rows, allowed, columns=WIDE)
    for then, count in (*((then, rows) for then in ACTIVATIONS if then != "none"), ("none", 1)):
        w = {"w": Stored.random(fmt, 70, 512), "b": Stored.of(normal(70))}
        x = {"x": normal(count, 512) / 8, "add": normal(count, 70, seed=1)}
        yield Trial(
            "linear", f"bias, then {then}, add, {count} rows", name, tuning,
            lambda g, w, x, add, then=then: g.linear(x, _half(w["w"]), then=then, bias=w["b"], add=add), x, w, allowed,
        )  # fmt: skip
    for count in (1, rows):
        w = {"w": Stored.random(fmt, 90, 512)}
        yield Trial(
            "glu", f"{count} rows", name, tuning, lambda g, w, x: g.glu(x, _half(w["w"]), "silu"),
            {"x": normal(count, 512)},
            w, allowed,
        )  # fmt: skip
    w = {"w": Stored.random(fmt, 70, 512)}
    x = {"x": normal(rows, 512) / 8, "by": normal(rows, 70, seed=1), "add": normal(rows, 70, seed=2)}
    yield Trial(
        "linear", "scaled by another row, add", name, tuning,
        lambda g, w, x, by, add: g.scale_rows(g.linear(x, _half(w["w"]), scale=0.5), by, add=add), x, w, allowed,
    )  # fmt: skip
    if F32 in formats_of(kernel):
        w = {"w": Stored.random(F32, 90, 90)}
        yield Trial(
            "linear", "rows of 90", name, tuning, lambda g, w, x: g.linear(x, w["w"]), {"x": normal(rows, 90)}, w,
            _tolerance(config, F32),
        )  # fmt: skip


def _half(weight: Weight) -> Weight:
    """A copy with a scale for the whole matrix."""
    return replace(weight, scale=0.5)


def _adapted(
    name: str,
    tuning: Tuning,
    fmt: Format,
    rows: int,
    allowed: float,
    *,
    normed: bool = False,
    columns: int = COLUMNS,
) -> Trial:
    """Bias, adapters on some rows, and residual."""
    w = {"w": Stored.random(fmt, 70, 512), "b": Stored.of(normal(70)), **factors("w", 70, 512, columns=columns)}
    w["gain"] = Stored.of((1 + normal(512) / 4) / 8)
    x: dict[str, Any] = {"x": normal(rows, 512) / 8, "scales": mixed_scales(rows, columns)}
    x["add"] = normal(rows, 70, seed=1)

    def compute(g: Any, w: Mapping[str, Any], x: Any, scales: Any, add: Any) -> Any:
        norm = Rms(w["gain"], 1e-6) if normed else None
        lows = g.adapter_down([x], [w["w.a"]], scales, norm=norm)
        return g.adapter_up([g.linear(x, w["w"], bias=w["b"], add=add, norm=norm)], lows, [w["w.b"]], then=["none"])[0]

    what = f"{columns} columns, bias, add, {'normed, ' * normed}{rows} rows"
    return Trial("adapter_up", what, name, tuning, compute, x, w, allowed)


def _adapted_pairs(
    name: str, tuning: Tuning, fmt: Format, rows: int, allowed: float, *, columns: int = COLUMNS
) -> Trial:
    """Gate and up with alternating rows, with adapters on some rows of both."""
    w = {"w": Stored.random(fmt, 90, 512), **factors("w", 90, 512, columns=columns)}
    w["w.a2"] = factors("up", 90, 512, seed=2, columns=columns)["up.a"]
    x: dict[str, Any] = {"x": normal(rows, 512) / 8, "scales": mixed_scales(rows, columns)}

    def compute(g: Any, w: Mapping[str, Any], x: Any, scales: Any) -> Any:
        lows = g.adapter_down([x, x], [w["w.a"], w["w.a2"]], scales)
        return g.adapter_glu(x, w["w"], lows, w["w.b"], "silu")

    return Trial("adapter_glu", f"{columns} columns, {rows} rows", name, tuning, compute, x, w, allowed)


def _one_format(kernel: GemmKernel) -> Format:
    formats = formats_of(kernel)
    return next((fmt for fmt in formats if fmt.name == "Q8_0"), formats[0])


def _norms(can: Capabilities, name: str, kernel: GemmKernel, config: GemmConfig) -> Iterator[Trial]:
    """Trials of norm prologues."""
    tuning, allowed = _only(can, config), max(5 * config.tolerance.result, CLOSE.result)
    for fmt in formats_of(kernel):
        if fmt.name in SOME:
            w = {"w": Stored.random(fmt, 90, 256), "gain": Stored.of(1 + normal(256) / 4)}
            yield Trial(
                "glu", f"rms norm, {fmt.name}", name, tuning,
                lambda g, w, x: g.glu(x, w["w"], "silu", norm=Rms(w["gain"], 1e-6)), {"x": normal(_rows(config), 256)},
                w, allowed,
            )  # fmt: skip
    w = {"w": Stored.random(_one_format(kernel), 90, 256), "gain": Stored.of(1 + normal(256) / 4)}
    w["shift"] = Stored.of(normal(256, seed=1))
    yield Trial(
        "linear", "rms norm", name, tuning, lambda g, w, x: g.linear(x, w["w"], norm=Rms(w["gain"], 1e-6)),
        {"x": normal(_rows(config), 256)}, w, allowed,
    )  # fmt: skip
    yield Trial(
        "linear", "layer norm", name, tuning.changed(fuses_token_shift=True),
        lambda g, w, x: g.linear(x, w["w"], norm=LayerNorm(w["gain"], w["shift"], 1e-5)),
        {"x": normal(1, 256)}, w, allowed,
    )  # fmt: skip


def _layer(width: int, fmt: Format) -> dict[str, Stored]:
    vectors = {"w": normal(width) + 1, "b": normal(width, seed=1), "mix": normal(2, width, seed=2)}
    matrices = {name: Stored.random(fmt, width, width, seed=i) for i, name in enumerate(("first", "second", "third"))}
    return {n: Stored.of(a) for n, a in vectors.items()} | matrices


def _two_halves(g: Any, w: Mapping[str, Any], x: Any) -> Any:
    """Products with norm, token shift and mix prologues; one that adds x and saves the state; and the next norm."""
    with g.layer(0):
        a, b = g.norm_shift_mix(x, w["w"], w["b"], 1e-5, w["mix"], State("one", (512,)))
        early, late = g.linear(a, w["first"]), g.linear(b, w["second"])
        x = g.linear(g.mul(early, late), w["third"], add=x)
        a, b = g.norm_shift_mix(x, w["b"], w["w"], 1e-5, w["mix"], State("two", (512,)))
        first, second = g.linears([a, b], [w["second"], w["first"]])
        return g.linear(g.mul(first, second), w["first"], add=x)


def _token_shift(can: Capabilities, name: str, kernel: GemmKernel, config: GemmConfig) -> Iterator[Trial]:
    """Trials with one row, whose statistics the previous product may emit, and with rows of several sequences."""
    for rows in (1, 2):
        past = Past(decode_batch(rows), {"one": normal(rows, 512), "two": normal(rows, 512, seed=1)})
        tuning = _only(can, config).changed(fuses_token_shift=True, token_shift_rows=2)
        yield Trial(
            "norm_shift_mix", f"in products, {rows} rows", name, tuning, _two_halves, {"x": normal(rows, 512, seed=3)},
            _layer(512, _one_format(kernel)), max(MORE * config.tolerance.result, CLOSE.result), past,
        )  # fmt: skip


def _convolution(can: Capabilities, name: str, kernel: GemmKernel, config: GemmConfig) -> Trial:
    """A gated convolution as a prologue of the product that reads it; its state is read and written."""
    state = State("past", (2, 512))
    vectors, w = {"taps": Stored.of(normal(3 * 512, seed=1))}, Stored.random(_one_format(kernel), 70, 512)
    past = Past(decode_batch(1).placed(states={0: (0, 1)}), {"past": normal(2, *state.shape, seed=2)})
    return Trial(
        "conv1d", "in a product", name, _only(can, config).changed(fuses_token_shift=True),
        lambda g, w, x: g.linear(g.conv1d(x, w["taps"], state, gated=True), w["w"]), {"x": normal(1, 3 * 512, seed=3)},
        {**vectors, "w": w}, MORE * config.tolerance.result, past,
    )  # fmt: skip


def _loads_statistics(can: Capabilities, name: str, kernel: GemmKernel, config: GemmConfig) -> Iterator[Trial]:
    """Products that load row statistics emitted by another kernel."""
    emits = next((config for other, config in gemm_trials(can).values() if other is GEMV_SINGLE_PASS), None)
    if emits is not None and kernel not in (GEMV_INT, GEMV_SINGLE_PASS):
        sized = replace(emits, kernel="linear/gemv_int", prefetch_depth=1, max_workgroups=UNLIMITED)
        tuning = _only(can, config).preferring((GemmLimits(1, max_out=512), sized)).changed(fuses_token_shift=True)
        past = Past(decode_batch(1), {"one": normal(1, 512), "two": normal(1, 512, seed=1)})
        yield Trial(
            "norm_shift_mix", "statistics loaded", name, tuning, _two_halves, {"x": normal(1, 512, seed=3)},
            _layer(512, BY_NAME["Q8_0"]), MORE * INT16.result, past,
        )  # fmt: skip


def _saves_state(can: Capabilities, name: str, kernel: GemmKernel, config: GemmConfig) -> Iterator[Trial]:
    """Products that add x and save the state, after others mixed it; also with several column parts."""
    if kernel.fuses_norm and not config.reads_quantised:
        return  # `_token_shift` covers both
    reads, width, fmt = gemv(64, 8, 2, 2), 576, _one_format(kernel)
    vectors = {"w": normal(width) + 1, "b": normal(width, seed=1), "mix": normal(2, width, seed=2)}
    weights = {n: Stored.of(a) for n, a in vectors.items()} | {"last": Stored.random(fmt, width, 512)}
    weights |= {n: Stored.random(F32, 512, width, seed=i) for i, n in enumerate(("first", "second"))}
    for rows in (1, 2):
        past = Past(decode_batch(rows), {"one": normal(rows, width)})
        tuning = _only(can, config).preferring((GemmLimits(max_out=512), reads))
        tuning = tuning.changed(fuses_token_shift=True, token_shift_rows=2)
        yield Trial(
            "norm_shift_mix", f"state saved, {rows} rows", name, tuning, _saved, {"x": normal(rows, width, seed=3)},
            weights, max(MORE * config.tolerance.result, CLOSE.result), past,
        )  # fmt: skip


def _saved(g: Any, w: Mapping[str, Any], x: Any) -> Any:
    with g.layer(0):
        a, b = g.norm_shift_mix(x, w["w"], w["b"], 1e-5, w["mix"], State("one", (576,)))
        return g.linear(g.mul(g.linear(a, w["first"]), g.linear(b, w["second"])), w["last"], add=x)


def _quantised(can: Capabilities) -> Iterator[Trial]:
    """Rows quantised by a dispatch, in every way to reduce, and by the product that writes them."""
    configs = {name: config for name, (kernel, config) in gemm_trials(can).items() if config.reads_quantised}
    w = {"w": Stored.random(BY_NAME["Q4_K"], 256, 256), "gain": Stored.of(1 + normal(256) / 4)}
    firsts = {
        config.fragment > 0: (name, config) for name, config in reversed(configs.items())
    }  # integers, and float16
    for (name, config), (way, tuning) in product(firsts.values(), reductions(can).items()):
        for norm in (True, False):
            yield Trial(
                "linear", f"quantised{' and normed' * norm} before, {way}", name, tuning.only(config),
                lambda g, w, x, norm=norm: g.linear(x, w["w"], norm=Rms(w["gain"], 1e-6) if norm else None),
                {"x": normal(5, 256)}, w, 5 * config.tolerance.result,
            )  # fmt: skip
    for name, config in configs.items():
        yield Trial(
            "linear", "quantises what the next reads", name, _only(can, config),
            lambda g, w, x: g.linear(g.linear(x, w["w"]), w["w"], add=x), {"x": normal(5, 256)}, w,
            MORE * config.tolerance.result,
        )  # fmt: skip
    w = {**w, "gate_up": Stored.random(BY_NAME["Q4_K"], 512, 256, seed=1)}
    for name, config in configs.items():
        if config.takes(SUMS_ROUNDED):
            x, allowed = {"x": normal(_rows(config), 256)}, MORE * config.tolerance.result
            yield Trial(
                "glu", "rounds what the next reads", name, _only(can, config),
                lambda g, w, x: g.linear(g.glu(x, w["gate_up"], "silu"), w["w"], add=x), x, w, allowed,
            )  # fmt: skip
            yield Trial(
                "linear", "rounds what is normed next", name, _only(can, config),
                lambda g, w, x: g.linear(g.linear(x, w["w"], add=x), w["w"], norm=Rms(w["gain"], 1e-6)), x, w,
                5 * allowed,
            )  # fmt: skip
            yield from _columns(name, _only(can, config), _rows(config), allowed)


def _joined(name: str, tuning: Tuning, allowed: float) -> Trial:
    """Two products of several widths, not multiples of a kernel's stage, added to one residual."""
    w = {"gain": Stored.of(1 + normal(256) / 4)}
    for i, (which, width) in enumerate({"first": 320, "last": 832}.items()):
        w |= {which: Stored.random(BY_NAME["Q8_0"], 256, width, seed=i)}
        w |= {f"{which}_gates": Stored.random(BY_NAME["Q8_0"], 2 * width, 256, seed=i)}

    def compute(g: Any, w: Mapping[str, Any], x: Any) -> Any:
        first = g.linear(g.glu(x, w["first_gates"], "silu"), w["first"], add=x)
        y = g.linear(g.glu(x, w["last_gates"], "silu"), w["last"], add=first)
        return g.linear(y, w["last_gates"], norm=Rms(w["gain"], 1e-6))

    return Trial("linear", "two sums joined", name, tuning, compute, {"x": normal(1, 256)}, w, allowed)


def _columns(name: str, tuning: Tuning, rows: int, allowed: float) -> Iterator[Trial]:
    """Adapters whose B is stored as further columns of W: merged matrices, gate and up, and a sum."""
    w = {"gain": Stored.of((1 + normal(256) / 4) / 4)}
    for i, (which, high) in enumerate({"o": 256, "q": 96, "k": 96, "v": 96, "g": 512, "d": 256}.items()):
        w |= {which: Stored.random(BY_NAME["Q4_K"], high, 256, seed=i), **factors(which, high, 256, seed=i)}
    w["u.a"] = factors("u", 256, 256, seed=9)["u.a"]
    x: dict[str, Any] = {"x": normal(rows, 256), "scales": mixed_scales(rows) / 4}

    def attends(g: Any, w: Mapping[str, Any], x: Any, scales: Any) -> Any:
        y, norm = g.linear(x, w["o"], add=x), Rms(w["gain"], 1e-6)
        first, last = g.adapter_down([y, y], [w["q.a"], w["v.a"]], scales, norm=norm)
        ys = g.linears([y, y, y], [w["q"], w["k"], w["v"]], norm=norm)
        q, k, v = g.adapter_up(ys, [first, None, last], [w["q.b"], None, w["v.b"]], then=["none", "none", "silu"])
        return g.add(g.add(q, k), v)

    def feeds(g: Any, w: Mapping[str, Any], x: Any, scales: Any) -> Any:
        y, norm = g.linear(x, w["o"], add=x), Rms(w["gain"], 1e-6)
        lows = g.adapter_down([y, y], [w["g.a"], w["u.a"]], scales, norm=norm)
        inner = g.adapter_glu(y, w["g"], lows, w["g.b"], "silu", norm=norm)
        low = g.adapter_down([inner], [w["d.a"]], scales)
        return g.adapter_up([g.linear(inner, w["d"], add=y, scale=0.5)], low, [w["d.b"]], then=["none"], scale=0.5)[0]

    yield Trial("adapter_up", f"further columns, {rows} rows", name, tuning, attends, x, w, allowed)
    yield Trial("adapter_glu", f"further columns, {rows} rows", name, tuning, feeds, x, w, allowed)


def speed(can: Capabilities, used: Tuning) -> Iterator[Trial]:
    """Matrices large enough to compare the chosen kernel with all others."""
    for name, rows in product(SOME, (1, 64)):
        w = {"w": Stored.random(BY_NAME[name], 2048, 2048)}
        x = {"x": normal(rows, 2048)}
        every = {
            kind: used.only(replace(config, max_workgroups=UNLIMITED)) for kind, (_, config) in gemm_trials(can).items()
        }
        for kind, tuning in ({CHOSEN: used} | every).items():
            what = f"{name}, {rows} row{'s' if rows > 1 else ''}"
            yield Trial("speed", what, kind, tuning, lambda g, w, x: g.linear(x, w["w"]), x, w, INT8.result)
