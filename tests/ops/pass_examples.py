"""A small example model for each pass, in which the pass fires."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from rwkv_gpu.gpu.device import Capabilities
from rwkv_gpu.kernels.defaults import gpu_tuning
from rwkv_gpu.kernels.expert_config import (
    ExpertConfig,
    ExpertMatrixTile,
    expert_gemm_matrix,
    expert_gemv,
    expert_gemv_int,
)
from rwkv_gpu.kernels.gemm_config import (
    TILE,
    UNLIMITED,
    GemmConfig,
    gemm_int8,
    gemv,
    gemv_int,
    skinny_gemm,
    subgroup_gemm,
)
from rwkv_gpu.kernels.tuning import Tuning
from rwkv_gpu.ops.vocabulary import (
    Attention,
    Cache,
    DeltaRule,
    Gating,
    LatentAttention,
    LayerNorm,
    Mixed,
    Rms,
    Rope,
    State,
    StateSpace,
)

D = 64
LORA = {"w": "decay", "a": "sigmoid", "gate": "none", "v_gate": "sigmoid"}


@dataclass(frozen=True)
class Example:
    """An example: the model function, the number of rows, and the format and shape of each weight."""

    says: Callable[..., dict[str, Any]]  # (ops, weights, states, x)
    weights: Mapping[str, tuple[str, tuple[int, ...]]]
    rows: int = 1
    decode: bool = True  # True if each row belongs to a different sequence
    states: tuple[State, ...] = ()
    caches: tuple[Cache, ...] = ()
    max_pages: int = 1  # pages of a sequence; it uses one
    ids: bool = False  # whether x are token ids
    config: Callable[[Capabilities], GemmConfig] | None = None  # of all products
    experts: Callable[[Capabilities], ExpertConfig] | None = None  # of all experts
    change: Mapping[str, Any] = field(default_factory=dict)  # of the tuning
    matrix_units: bool = False  # True if it runs only on matrix units
    deviation: float = 1.0  # of x
    exact: bool = False  # True if results are identical with and without the pass
    # Relative to the largest result: partial norms and rows of 16-bit integers round differently.
    tolerance: float = 2e-3

    def tuning(self, can: Capabilities) -> Tuning:
        """Returns the tuning of a GPU, whatever the device is."""
        tuning = gpu_tuning(replace(can, software=False)).changed(**self.change)
        if self.experts:
            tuning = tuning.only_experts(self.experts(can))
        return tuning.only(self.config(can)) if self.config else tuning

    def x(self) -> np.ndarray:
        """Returns the input rows."""
        if self.ids:
            return np.arange(self.rows, dtype=np.uint32)
        width = self.weights["gain"][1][0]
        return self.deviation * np.random.default_rng(7).standard_normal((self.rows, width)).astype(np.float32)


def vectors(*names: str, width: int = D) -> dict[str, tuple[str, tuple[int, ...]]]:
    return dict.fromkeys(names, ("F32", (width,)))


def embedding(g, w, _, x):
    return {"y": g.embed(w["embedding"], x, norm=LayerNorm(w["gain"], w["shift"], 1e-5))}


def token_shift(g, w, s, x):
    a, b = g.norm_shift_mix(x, w["gain"], w["shift"], 1e-5, w["mix"], s["previous"])
    r, k = g.linears([a, b], [w["receptance"], w["key"]])
    return {"k": k, "y": g.linear(r, w["output"], add=x)}


def queries_and_keys(g, w, _, x):
    q, k = g.linears([x, x], [w["q"], w["k"]], norm=Rms(w["gain"], 1e-6))
    return {"q": q, "k": k}


def adapted(g, w, _, x):
    lows = g.adapter_down([x, x], [w["q.a"], w["v.a"]], g.linear(x, w["s"]))
    ys = g.linears([x, x], [w["q"], w["v"]])
    q, v = g.adapter_up(ys, lows, [w["q.b"], w["v.b"]], then=["none", "none"])
    return {"q": q, "v": v}


def normed_adapted(g, w, _, x):
    norm = Rms(w["gain"], 1e-6)
    lows = g.adapter_down([x, x], [w["q.a"], w["v.a"]], g.linear(x, w["s"]), norm=norm)
    ys = g.linears([x, x], [w["q"], w["v"]], norm=norm)
    q, v = g.adapter_up(ys, lows, [w["q.b"], w["v.b"]], then=["none", "none"])
    return {"q": q, "v": v}


def plain_then_adapted(g, w, s, x):
    """Attention and a mixer read the same rows, but only one of them has adapters."""
    first = g.linear(x, w["first"], norm=Rms(w["gain"], 1e-6))
    return {"first": first, **normed_adapted(g, w, s, x)}


KV = Cache("kv", 2, 16)
HOW = Attention(4, Rope("neox", 16, 1e4), 0.25)


LATENTS = Cache("kv", 1, 48, 32)


def latents(g, w, _, x):
    q, z = g.linears([x, x], [w["q"], w["z"]])  # two heads, whose last 16 dims rotate
    how = LatentAttention(2, Rope("normal", 16, 1e4), 0.2, w["norm"], 1e-6)
    return {"y": g.latent_attention(g.head_linear(q, w["k_up"]), q, z, LATENTS, how)}


def latents_read_by_head(g, w, _, x):
    q, z = g.linears([x, x], [w["q"], w["z"]])
    how = LatentAttention(2, None, 0.2, w["norm"], 1e-6)
    return {"y": g.head_linear(g.latent_attention(g.linear(x, w["k"]), q, z, LATENTS, how), w["v_up"])}


def normed_heads(g, w, _, x):
    q, k, v = g.linears([x] * 3, [w["q"], w["k"], w["v"]])
    q, k = g.rms_norm(q, w["gain"], 1e-6), g.rms_norm(k, w["short"], 1e-6)
    return {"y": g.attention(q, k, v, KV, HOW)}


def gated_attention(g, w, _, x):
    q, k, v, gate = g.linears([x] * 4, [w["q"], w["k"], w["v"], w["gate"]])
    return {"y": g.mul(g.attention(q, k, v, KV, HOW), gate)}


def late_gate(g, w, _, x):
    q, k, v = g.linears([x] * 3, [w["q"], w["k"], w["v"]])
    attended = g.attention(q, k, v, KV, HOW)
    return {"y": g.linear(g.linear(x, w["gate"]), w["output"], add=attended)}


def two_products(g, w, _, x):
    norm = Rms(w["gain"], 1e-6)
    return {"a": g.linear(x, w["a"], norm=norm), "b": g.linear(x, w["b"], norm=norm)}


def parallel(g, w, s, x):
    q, k, v = g.linears([x] * 3, [w["q"], w["k"], w["v"]])
    xbc, projected = g.linears([x] * 2, [w["xbc"], w["z"]])
    attended = g.linear(g.attention(q, k, v, KV, HOW), w["output"], add=x)
    how = StateSpace(w["bias"], w["rate"], w["skip"])
    return {"y": g.linear(g.ssd(xbc, projected, how, s["ssm"], groups=1), w["out"], add=attended)}


def loras(g, w, s, x):
    r, k, v = g.linears([x] * 3, [w["receptance"], w["key"], w["value"]])
    lows = g.linears([x] * 4, [w[f"{name}1"] for name in LORA])
    made = g.linears(lows, [w[f"{name}2"] for name in LORA], then=list(LORA.values()))
    mixed = Mixed(r=r, k=k, v=v, v_first=x, **dict(zip(LORA, made, strict=True)))
    return {"y": g.time_mix(mixed, w["vectors"], 64e-5, s["wkv"])}


def mixture_with_a_shared_expert(g, w, _, x):
    shared = g.linear(g.linear(x, w["first"]), w["last"], add=x)
    routing = g.route(x, w["router"], Gating(2, normalise=True))
    inner = g.expert_glu(x, w["gate"], w["up"], routing, "silu")
    return {"y": g.expert_sum(inner, w["down"], routing, add=shared)}


def mixture_with_a_gated_shared_expert(g, w, _, x):
    shared, gate = g.linear(g.linear(x, w["first"]), w["last"]), g.linear(x, w["shared_gate"], then="sigmoid")
    routing = g.route(x, w["router"], Gating(2, normalise=True))
    inner = g.expert_glu(x, w["gate"], w["up"], routing, "silu")
    return {"y": g.expert_sum(inner, w["down"], routing, add=g.scale_rows(shared, gate, add=x))}


def mixture(g, w, _, x):
    routing = g.route(x, w["router"], Gating(2, normalise=True))
    return {"y": g.expert_sum(g.expert_glu(x, w["gate"], w["up"], routing, "silu"), w["down"], routing)}


def normed_mixture(g, w, _, x):
    routing = g.route(x, w["router"], Gating(2, normalise=True))
    y = g.expert_sum(g.expert_glu(x, w["gate"], w["up"], routing, "silu"), w["down"], routing, add=x)
    return {"y": y, "z": g.linear(y, w["b"], norm=Rms(w["gain"], 1e-6))}


def normed_mixture_with_a_gated_product(g, w, _, x):
    product, gate = g.linear(x, w["product"]), g.linear(x, w["product_gate"], then="sigmoid")
    routing = g.route(x, w["router"], Gating(2, normalise=True))
    inner = g.expert_glu(x, w["gate"], w["up"], routing, "silu")
    y = g.expert_sum(inner, w["down"], routing, add=g.scale_rows(product, gate, add=x))
    return {"y": y, "z": g.linear(y, w["b"], norm=Rms(w["gain"], 1e-6))}


def normed_mixture_with_biases(g, w, _, x):
    routing = g.route(x, w["router"], Gating(2, normalise=True))
    inner = g.expert_glu(x, w["gate"], w["up"], routing, "silu")
    y = g.expert_sum(inner, w["down"], routing, add=x, bias=w["bias"])
    return {"y": y, "z": g.linear(y, w["b"], norm=Rms(w["gain"], 1e-6))}


def scaled_norm(g, w, _, x):
    y = g.rms_norm(g.linear(x, w["down"]), w["gain"], 1e-6, add=x)
    return {"y": g.scale(y, 0.3)}


def channel_mix(g, w, _, x):
    k, r = g.linears([x, x], [w["key"], w["receptance"]], then=["relu2", "sigmoid"])
    return {"y": g.scale_rows(g.linear(k, w["value"], scale=0.5), r, add=x)}


def wkv6_time_mix(g, w, s, x):
    """A complete time mix of RWKV-6, as in its model."""
    how = {"mix": w["first"], "state": s["previous"], "rows": True}
    first, xx, before = g.norm_shift_mix(x, w["gain"], w["shift"], 1e-5, **how)
    low = g.linear(first, w["down"], then="tanh")
    xw, xk, xv, xr, xg = g.lerp(xx, before, w["mix"], low=low, up=w["up"])
    names = ("receptance", "key", "value", "gate", "decay1")
    then = ("none", "none", "none", "silu", "tanh")
    r, k, v, gate, low = g.linears([xr, xk, xv, xg, xw], [w[name] for name in names], then=list(then))
    decay = g.linear(low, w["decay2"], then="decay6", bias=w["bias"])
    y = g.wkv6(r, decay, k, v, gate, s["wkv"], vectors=w["vectors"], eps=64e-5)
    return {"y": g.linear(y, w["output"], add=x)}


def read_after_ssd(g, w, s, x):
    xbc, projected = g.linears([x] * 2, [w["xbc"], w["z"]])
    how = StateSpace(w["bias"], w["rate"], w["skip"])
    return {"y": g.linear(g.ssd(xbc, projected, how, s["state"], groups=1), w["out"])}


def read_after_wkv6(g, w, s, x):
    names = ("r", "k", "v", "gate", "decay")
    r, k, v, gate, decay = g.linears([x] * 5, [w[name] for name in names], then=["none"] * 3 + ["silu", "decay6"])
    y = g.wkv6(r, decay, k, v, gate, s["state"], vectors=w["vectors"], eps=64e-5)
    return {"y": g.linear(y, w["out"])}


def read_after_delta_rule(g, w, s, x):
    qkv, beta, decay = g.linears([x] * 3, [w["qkv"], w["beta"], w["decay"]])
    how = DeltaRule(2, False, w["bias"], w["rate"], w["norm"], 1e-6, "silu")
    return {"y": g.linear(g.gated_delta_rule([qkv], beta, decay, x, how, s["state"]), w["out"])}


def read_after_time_mix(g, w, s, x):
    r, k, v = g.linears([x] * 3, [w["r"], w["k"], w["v"]])
    made = g.linears([x] * len(LORA), [w[name] for name in LORA], then=list(LORA.values()))
    mixed = Mixed(r=r, k=k, v=v, v_first=x, **dict(zip(LORA, made, strict=True)))
    return {"y": g.linear(g.time_mix(mixed, w["vectors"], 64e-5, s["state"]), w["out"])}


def three_formats(g, w, _, x):
    q, k, v = g.linears([x] * 3, [w["q"], w["k"], w["v"]])
    return {"q": q, "k": k, "v": v}


def readers_of_integers(g, w, _, x):
    return {"a": g.linear(x, w["a"]), "b": g.linear(x, w["b"])}


def shift_and_key(g, w, s, x):
    [a] = g.norm_shift_mix(x, w["gain"], w["shift"], 1e-5, w["mix"], s["previous"])
    return {"y": g.linear(a, w["key"])}


def two_halves(g, w, s, x):
    [a] = g.norm_shift_mix(x, w["gain"], w["shift"], 1e-5, w["mix"], s["previous"])
    y = g.linear(g.linear(a, w["value"]), w["output"], add=x)
    [b] = g.norm_shift_mix(y, w["gain"], w["shift"], 1e-5, w["mix"], s["next"])
    return {"z": g.linear(g.linear(b, w["key"]), w["output"], add=y)}


def convolved(g, w, s, x):
    qkv = g.conv1d(x, w["taps"], s["past"], then="silu")
    beta, decay, gate = g.linears([x] * 3, [w["beta"], w["decay"], w["gate"]])
    how = DeltaRule(1, False, w["bias"], w["rate"], w["norm"], 1e-6, "silu")
    return {"y": g.gated_delta_rule([qkv], beta, decay, gate, how, s["delta"])}


def short_convolution(g, w, s, x):
    convolved = g.conv1d(g.linear(x, w["in"]), w["taps"], s["past"], gated=True)
    return {"y": g.linear(convolved, w["out"], add=x)}


def gate_up_down(g, w, _, x):
    return {"y": g.linear(g.glu(x, w["gate_up"], "silu"), w["down"])}


def two_branches(g, w, _, x):
    first = g.linear(g.glu(x, w["first_gates"], "silu"), w["first"], add=x)
    y = g.linear(g.glu(x, w["second_gates"], "silu"), w["second"], add=first)
    return {"y": y, "z": g.linear(y, w["b"], norm=Rms(w["gain"], 1e-6))}


def two_branches_then_a_layer_norm(g, w, s, x):
    y = two_branches(g, w, s, x)["y"]
    return {"y": y, "z": g.linear(y, w["b"], norm=LayerNorm(w["gain"], w["shift"], 1e-5))}


def biased_branches(g, w, _, x, biased: str):
    biases = {biased: w["bias"]}
    first = g.linear(g.glu(x, w["first_gates"], "silu"), w["first"], bias=biases.get("first"), add=x)
    y = g.linear(g.glu(x, w["second_gates"], "silu"), w["second"], bias=biases.get("second"), add=first)
    return {"y": y}


def two_sums(g, w, _, x):
    first = g.linear(g.glu(x, w["first_gates"], "silu"), w["first"], add=x)
    return {"first": first, "y": g.linear(g.glu(x, w["second_gates"], "silu"), w["second"], add=first)}


def two_scales(g, w, _, x):
    first = g.linear(g.glu(x, w["first_gates"], "silu"), w["first"], add=x, scale=0.5)
    return {"y": g.linear(g.glu(x, w["second_gates"], "silu"), w["second"], add=first)}


def two_branches_one_adapted(g, w, _, x):
    inner = g.glu(x, w["first_gates"], "silu")
    low = g.adapter_down([inner], [w["first.a"]], g.linear(x, w["s"]))
    [first] = g.adapter_up([g.linear(inner, w["first"], add=x)], low, [w["first.b"]], then=["none"])
    return {"y": g.linear(g.glu(x, w["second_gates"], "silu"), w["second"], add=first)}


def normed_sum(g, w, _, x):
    y = g.linear(x, w["a"], add=x)
    return {"y": y, "z": g.linear(y, w["b"], norm=Rms(w["gain"], 1e-6))}


def normed_sum_with_adapters(g, w, _, x):
    y, norm = g.linear(x, w["a"], add=x), Rms(w["gain"], 1e-6)
    lows = g.adapter_down([y, y], [w["gate.a"], w["up.a"]], g.linear(x, w["s"]), norm=norm)
    return {"y": y, "z": g.adapter_glu(y, w["gate_up"], lows, w["gate_up.b"], "silu", norm=norm)}


def norm_of_sum(g, w, _, x):
    y = g.rms_norm(g.linear(x, w["a"]), w["after"], 1e-6, add=x)
    return {"y": y, "z": g.linear(y, w["b"], norm=Rms(w["gain"], 1e-6))}


def attended(g, w, _, x):
    q, k, v = g.linears([x] * 3, [w["q"], w["k"], w["v"]])
    return {"y": g.linear(g.attention(q, k, v, KV, HOW), w["out"])}


def read_after_heads(g, w, _, x):
    return {"y": g.linear(g.head_linear(x, w["v_up"]), w["out"])}


def read_after_convolution(g, w, s, x):
    return {"y": g.linear(g.conv1d(x, w["taps"], s["past"]), w["out"])}


def mixed_columns(g, w, s, x):
    q, k, v = (g.conv1d(x, w[name], s[name], then="silu") for name in "qkv")
    beta, decay = g.linears([x, x], [w["beta"], w["decay"]])
    how = DeltaRule(2, False, w["bias"], w["rate"], w["norm"], 1e-6, "silu")
    return {"y": g.gated_delta_rule([q, k, v], beta, decay, x, how, s["delta"])}


SHIFT = vectors("gain", "shift")
SQUARE = ("F16", (D, D))
PACKED = ("Q8_0", (D, D))
PREVIOUS = (State("previous", (D,)),)
EXPERTS = {
    **vectors("gain"),
    "router": ("F32", (4, D)),
    **dict.fromkeys(("gate", "up", "down"), ("F16", (4, D, D))),
}

BRANCHES = {"first": 3 * D, "second": 5 * D}  # columns


def integers(_: Capabilities) -> GemmConfig:
    return gemm_int8(32, 8, 32, 16, activations="int16")


def by_subgroups(can: Capabilities) -> GemmConfig:
    return subgroup_gemm(can.fragment or 16, can.subgroup_size or 32, 4, 2, max_workgroups=UNLIMITED)


def single_pass(can: Capabilities) -> GemmConfig:
    size = can.subgroup_width
    return gemv_int(2 * size, size, 2, subgroup_width=size, max_workgroups=UNLIMITED, prefetch_depth=2)


def experts_by_fragments(can: Capabilities) -> ExpertConfig:
    return expert_gemm_matrix(can.fragment or 16, can.subgroup_size or 32, ExpertMatrixTile(1, 1, 4))


def experts_summed_at_once(lanes: int) -> Callable[[Capabilities], ExpertConfig]:
    """Returns a configuration with workgroups of `lanes` lanes, each of which adds up as many rows."""
    return lambda can: expert_gemv_int(lanes, 8, 2, subgroup_width=can.subgroup_width, summing=(2, 2))


def copied(can: Capabilities) -> GemmConfig:
    size = can.subgroup_width
    return skinny_gemm(2 * size, size, 2, 4, staged=size, subgroup_width=size, copies=True)


HEADS = {"q": ("F32", (D, D)), "k": ("F32", (32, D)), "v": ("F32", (32, D))}
ADAPTED = {
    **vectors("gain"),
    **dict.fromkeys(("q", "v"), ("F32", (D, D))),
    "s": ("F32", (8, D)),
    **dict.fromkeys(("q.a", "v.a"), ("F16", (8, D))),
    **dict.fromkeys(("q.b", "v.b"), ("F16", (D, 8))),
}


def few_rows_of_experts(_can: Capabilities) -> ExpertConfig:
    """Returns a configuration whose lanes read sorted choices, in tiles of four rows."""
    return expert_gemv(32, 8, 2, 4)


EXAMPLES = {
    "adapters_into_products": Example(adapted, ADAPTED, rows=4),
    "adapters_as_products": Example(adapted, ADAPTED, rows=4, change={"adapter_rows": 0}),
    "norm_into_embedding": Example(embedding, {**SHIFT, "embedding": ("F32", (32, D))}, rows=4, decode=False, ids=True),
    "scale_into_norm": Example(scaled_norm, {"down": SQUARE, **vectors("gain")}, rows=4, decode=False),
    "convolution_into_recurrence": Example(
        convolved,
        {
            **vectors("gain"),
            "taps": ("F32", (4 * D,)),
            **dict.fromkeys(("beta", "decay"), ("F32", (2, D))),
            "gate": ("F32", (32, D)),
            **vectors("bias", "rate", width=2),
            **vectors("norm", width=16),
        },
        rows=4,
        states=(State("past", (3, D)), State("delta", (2, 16, 16))),
    ),
    "convolution_into_product": Example(
        short_convolution,
        {**vectors("gain"), "in": ("F16", (3 * D, D)), "taps": ("F32", (3 * D,)), "out": PACKED},
        states=(State("past", (2, D)),),
    ),
    "scale_into_product": Example(
        channel_mix,
        {**vectors("gain"), "key": ("F16", (96, D)), "receptance": SQUARE, "value": ("F16", (D, 96))},
        rows=3,
    ),
    "whole_norms_into_attention": Example(
        normed_heads,
        {**vectors("gain"), **vectors("short", width=32), **HEADS},
        rows=2,
        caches=(KV,),
    ),
    "gate_into_attention": Example(
        gated_attention, {**vectors("gain"), **HEADS, "gate": ("F32", (D, D))}, rows=2, caches=(KV,)
    ),
    "write_into_stack": Example(
        mixed_columns,
        {
            **vectors("gain"),
            **dict.fromkeys("qkv", ("F32", (4 * D,))),
            **dict.fromkeys(("beta", "decay"), ("F32", (2, D))),
            **vectors("bias", "rate", width=2),
            **vectors("norm", width=32),
        },
        rows=4,
        states=(*(State(name, (3, D)) for name in "qkv"), State("delta", (2, 32, 32))),
        exact=True,
    ),
    "token_shift_into_products": Example(
        token_shift,
        {**SHIFT, "mix": ("F32", (2, D)), "receptance": SQUARE, "key": SQUARE, "output": SQUARE},
        states=PREVIOUS,
        config=lambda _: gemv(32, 8, 2, 1, subgroup_width=8),
    ),
    "norm_into_products": Example(queries_and_keys, {**vectors("gain"), "q": SQUARE, "k": SQUARE}),
    "share_norms": Example(
        two_products,
        {**vectors("gain"), "a": SQUARE, "b": SQUARE},
        70,
        decode=False,
        config=lambda _: TILE,
        exact=True,
    ),
    "products_side_by_side": Example(
        late_gate, {**vectors("gain"), **HEADS, "gate": SQUARE, "output": SQUARE}, caches=(KV,), exact=True
    ),
    "merge_state_space": Example(
        parallel,
        {
            **vectors("gain"),
            **HEADS,
            "output": SQUARE,
            "xbc": ("F32", (96, D)),
            "z": ("F32", (34, D)),
            **vectors("bias", "rate", "skip", width=2),
            "out": ("F32", (D, 32)),
        },
        states=(State("ssm", (2, 16, 32)),),
        caches=(KV,),
    ),
    "lora_into_time_mix": Example(
        loras,
        {
            **vectors("gain"),
            "vectors": ("F32", (5, D)),
            **dict.fromkeys(("receptance", "key", "value"), SQUARE),
            **{f"{name}1": ("F16", (32, D)) for name in LORA},
            **{f"{name}2": ("F16", (D, 32)) for name in LORA},
        },
        rows=4,
        states=(State("wkv", (1, D, D)),),
    ),
    "route_into_experts": Example(mixture, EXPERTS),
    "sort_once": Example(mixture, EXPERTS, 32, experts=few_rows_of_experts),
    "route_into_sort": Example(mixture, EXPERTS, 32, experts=few_rows_of_experts),
    "gate_into_expert_sum": Example(
        mixture_with_a_gated_shared_expert,
        {**EXPERTS, "first": ("F32", (32, D)), "last": ("F32", (D, 32)), "shared_gate": ("F32", (1, D))},
    ),
    "merge_shared_expert": Example(
        mixture_with_a_shared_expert, {**EXPERTS, "first": ("F32", (32, D)), "last": ("F32", (D, 32))}
    ),
    "merge_gemms": Example(
        three_formats, {**vectors("gain"), "q": SQUARE, "k": SQUARE, "v": ("F32", (D, D))}, exact=True
    ),
    "merge_router": Example(
        mixture_with_a_shared_expert,
        {**EXPERTS, "first": ("F32", (32, D)), "last": ("F32", (D, 32))},
        rows=3,
        change={"merged_batch_rows": 3},
    ),
    "merge_latent_write": Example(
        latents,
        {
            **vectors("gain"),
            **vectors("norm", width=32),
            "q": ("F32", (80, D)),
            "z": ("F32", (48, D)),
            "k_up": ("F32", (2, 32, 24)),
        },
        caches=(LATENTS,),
    ),
    "runs_into_heads": Example(
        latents_read_by_head,
        {
            **vectors("gain"),
            **vectors("norm", width=32),
            "q": ("F32", (80, D)),
            "z": ("F32", (48, D)),
            "k": SQUARE,
            "v_up": ("Q8_0", (2, 16, 32)),
        },
        caches=(LATENTS,),
        max_pages=8,
    ),
    "choose_kernels": Example(two_products, {**vectors("gain"), "a": SQUARE, "b": PACKED}, 20, False, config=integers),
    "quantise_once": Example(
        readers_of_integers,
        {**vectors("gain"), "a": PACKED, "b": PACKED},
        20,
        decode=False,
        config=integers,
        exact=True,
    ),
    "quantise_in_producer": Example(
        shift_and_key,
        {**SHIFT, "mix": ("F32", (1, D)), "key": PACKED},
        20,
        decode=False,
        states=PREVIOUS,
        config=integers,
    ),
    "round_in_producer": Example(
        gate_up_down,
        {**vectors("gain"), "gate_up": ("Q8_0", (2 * D, D)), "down": PACKED},
        20,
        decode=False,
        config=by_subgroups,
        matrix_units=True,
    ),
    "join_columns": Example(
        two_branches,
        {
            **vectors("gain"),
            **{f"{name}_gates": ("Q8_0", (2 * width, D)) for name, width in BRANCHES.items()},
            **{name: ("Q8_0", (D, width)) for name, width in BRANCHES.items()},
            "b": PACKED,
        },
        config=single_pass,
    ),
    "quantise_with_adapters": Example(
        normed_adapted, ADAPTED | dict.fromkeys(("q", "v"), PACKED), rows=4, config=copied, exact=True
    ),
    "adapters_as_columns": Example(
        normed_sum_with_adapters,
        {
            **vectors("gain"),
            "a": PACKED,
            "gate_up": ("Q8_0", (2 * D, D)),
            "s": ("F32", (8, D)),
            **dict.fromkeys(("gate.a", "up.a"), ("F16", (8, D))),
            "gate_up.b": ("F16", (2 * D, 8)),
        },
        rows=20,
        config=by_subgroups,
        matrix_units=True,
    ),
    "row_statistics": Example(
        two_halves,
        {**SHIFT, "mix": ("F32", (1, D)), "key": PACKED, "value": PACKED, "output": PACKED},
        states=(*PREVIOUS, State("next", (D,))),
        config=lambda _: gemv_int(16, 8, 2, subgroup_width=8, max_workgroups=UNLIMITED),
    ),
}
WKV6 = Example(
    wkv6_time_mix,
    {
        **SHIFT,
        "first": ("F32", (1, D)),
        "mix": ("F32", (5, D)),
        "up": ("F32", (5 * D * 8,)),
        "down": ("F32", (40, D)),
        **dict.fromkeys(("receptance", "key", "value", "gate", "output"), SQUARE),
        "decay1": ("F16", (32, D)),
        "decay2": ("F32", (D, 32)),
        "vectors": ("F32", (3, D)),
        **vectors("bias"),
    },
    rows=3,
    states=(*PREVIOUS, State("wkv", (4, 16, 16))),
)
TWO_HEADS = {
    "rows": 3,
    "states": (State("state", (2, 32, 32)),),
    "config": integers,
    "change": {"quantising_width": 0},
}
READ_AS_INTEGERS = {
    "ssd": Example(
        read_after_ssd,
        {
            **vectors("gain"),
            "xbc": ("F32", (D + 64, D)),
            "z": ("F32", (D + 2, D)),
            **vectors("bias", "rate", "skip", width=2),
            "out": PACKED,
        },
        **TWO_HEADS,
    ),
    "wkv6": Example(
        read_after_wkv6,
        {
            **vectors("gain"),
            **dict.fromkeys(("r", "k", "v", "gate", "decay"), ("F32", (D, D))),
            "vectors": ("F32", (3, D)),
            "out": PACKED,
        },
        **TWO_HEADS,
    ),
    "time mix": Example(
        read_after_time_mix,
        {
            **vectors("gain"),
            **dict.fromkeys(("r", "k", "v", *LORA), ("F32", (D, D))),
            "vectors": ("F32", (5, D)),
            "out": PACKED,
        },
        **TWO_HEADS,
    ),
    "delta rule": Example(
        read_after_delta_rule,
        {
            **vectors("gain"),
            "qkv": ("F32", (3 * D, D)),
            **dict.fromkeys(("beta", "decay"), ("F32", (2, D))),
            **vectors("bias", "rate", width=2),
            **vectors("norm", width=32),
            "out": PACKED,
        },
        **TWO_HEADS,
    ),
}
PACKED_EXPERTS = EXPERTS | dict.fromkeys(("gate", "up", "down"), ("Q8_0", (4, D, D))) | {"b": PACKED}
BY_SUBGROUPS = {"rows": 20, "config": by_subgroups, "matrix_units": True}
ROUNDED = {
    "a product": EXAMPLES["round_in_producer"],
    "a sum that is normed": Example(normed_sum, {**vectors("gain"), "a": PACKED, "b": PACKED}, **BY_SUBGROUPS),
    "a norm": Example(
        norm_of_sum,
        {**vectors("gain", "after"), "a": PACKED, "b": PACKED},
        decode=False,
        **{**BY_SUBGROUPS, "rows": 20},
    ),
    "attention": Example(attended, {**vectors("gain"), **HEADS, "out": PACKED}, caches=(KV,), **BY_SUBGROUPS),
    "experts": Example(mixture, EXPERTS, experts=experts_by_fragments, **BY_SUBGROUPS),
    "a sum of experts that is normed": Example(
        normed_mixture,
        EXPERTS | dict.fromkeys(("gate", "up"), ("F16", (4, 32, D))) | {"down": ("F16", (4, D, 32)), "b": PACKED},
        experts=experts_by_fragments,
        **BY_SUBGROUPS,
    ),
    "a product by head": Example(
        read_after_heads,
        {**vectors("gain"), "v_up": ("Q8_0", (2, D // 2, D // 2)), "out": PACKED},
        experts=experts_by_fragments,
        **BY_SUBGROUPS,
    ),
    "experts summed at once that are normed": Example(
        normed_mixture, PACKED_EXPERTS, experts=experts_summed_at_once(32), **BY_SUBGROUPS
    ),
    "experts summed at once, with biases": Example(
        normed_mixture_with_biases,
        PACKED_EXPERTS | vectors("bias", width=4 * D),
        experts=experts_summed_at_once(128),
        **BY_SUBGROUPS,
    ),
    "experts summed at once, with a gated product": Example(
        normed_mixture_with_a_gated_product,
        PACKED_EXPERTS | {"product": PACKED, "product_gate": ("F32", (1, D))},
        experts=experts_summed_at_once(32),
        **BY_SUBGROUPS,
    ),
    "a convolution": Example(
        read_after_convolution,
        {**vectors("gain"), "taps": ("F32", (4 * D,)), "out": PACKED},
        states=(State("past", (3, D)),),
        **BY_SUBGROUPS,
    ),
    **{
        kind: replace(example, config=by_subgroups, matrix_units=True, change={}, rows=20, deviation=1 / 8)
        for kind, example in READ_AS_INTEGERS.items()
    },
}
TWO_BRANCHES = EXAMPLES["join_columns"]
LONG = {"first": 512, "second": 1024}  # columns that are whole blocks of any format


def two_long_branches(kind: str) -> Example:
    """Returns two branches with long matrices of a format."""
    gates = {f"{name}_gates": ("Q8_0", (2 * width, D)) for name, width in LONG.items()}
    return replace(
        TWO_BRANCHES,
        weights={**TWO_BRANCHES.weights, **gates, **{name: (kind, (D, width)) for name, width in LONG.items()}},
    )


JOINED = {
    "attention and a state space": Example(
        parallel,
        {
            **vectors("gain"),
            **HEADS,
            "output": PACKED,
            "xbc": ("F32", (D + 64, D)),
            "z": ("F32", (D + 2, D)),
            **vectors("bias", "rate", "skip", width=2),
            "out": PACKED,
        },
        states=(State("ssm", (2, 32, 32)),),
        caches=(KV,),
        deviation=1 / 8,
        config=single_pass,
    ),
    "a bias of the second": replace(
        TWO_BRANCHES,
        says=partial(biased_branches, biased="second"),
        weights={**TWO_BRANCHES.weights, **vectors("bias")},
    ),
    "statistics of both are emitted": replace(
        TWO_BRANCHES,
        says=two_branches_then_a_layer_norm,
        weights={**TWO_BRANCHES.weights, **vectors("shift")},
    ),
    **{kind: two_long_branches(kind) for kind in ("Q5_0", "Q4_K", "IQ3_S")},
}
NOT_JOINED = {
    "something else reads the first sum": replace(TWO_BRANCHES, says=two_sums),
    "sums have several scales": replace(TWO_BRANCHES, says=two_scales),
    "the first has a bias": replace(
        TWO_BRANCHES,
        says=partial(biased_branches, biased="first"),
        weights={**TWO_BRANCHES.weights, **vectors("bias")},
    ),
    "formats differ": replace(TWO_BRANCHES, weights={**TWO_BRANCHES.weights, "first": ("F16", (D, 3 * D))}),
    "there are several rows": replace(TWO_BRANCHES, rows=2),
    "workgroups go through several blocks": replace(
        TWO_BRANCHES, config=lambda can: replace(single_pass(can), prefetch_depth=1)
    ),
    "one has adapters": replace(
        TWO_BRANCHES,
        says=two_branches_one_adapted,
        weights={
            **TWO_BRANCHES.weights,
            "s": ("F32", (8, D)),
            "first.a": ("F16", (8, 3 * D)),
            "first.b": ("F16", (D, 8)),
        },
    ),
}
