"""Mixtures of experts in every family: their metadata keys, their tensors, and their formulas."""

from dataclasses import dataclass, replace

import numpy as np

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Alternating, Gating, Glu, Ops, Rms, Scores, Tensor, Weight
from .dense import take_gates
from .tensors import Tensors
from .transformer import gates

MAX_EXPERTS, MAX_USED = 1024, 64  # limits of the kernels that rank experts, and of their registers
SHARED = "_shexp"  # suffix of the shared expert's tensors
SCORES: dict[int, Scores] = {
    1: "softmax",
    2: "sigmoid",
    3: "late_softmax",
    4: "sqrt_softplus",
}  # numbers of expert_gating_func


@dataclass(frozen=True)
class ExpertSizes:
    """The metadata of all mixtures of a model. Values that can differ by layer have one entry, or one per layer."""

    width: int  # D
    experts: int  # E
    inner: tuple[int, ...]  # inner width of one expert; empty if only its tensors give it
    used: tuple[int, ...]  # experts of a row
    gating: Gating  # without its weights, for the first layer
    eps: float = 0.0  # for norms inside of experts, if any


@dataclass(frozen=True)
class SharedExpert:
    """Parameters of the expert that every row takes: a feed-forward."""

    gates: Alternating | tuple[Weight, Weight] | Weight  # gate and up: alternating rows, or two weights; or up alone
    then: Glu
    down: Weight  # [D, inner]
    gate: Weight | None  # [1, D]: its answer is multiplied by sigmoid(gate · h)


@dataclass(frozen=True)
class Adjugates:
    """Parameters of adjugate experts: smaller experts, each shared by a group of experts.

    The result of an adjugate expert is weighted with the share of the chosen expert.
    """

    group: int  # experts that share one
    scale: float  # scale of the results
    gate: Weight  # [E / group, inner, D]
    up: Weight
    down: Weight  # [E / group, D, inner]


@dataclass(frozen=True)
class Latent:
    """Projections between rows and experts of a smaller width."""

    down: Weight  # [C, D]
    up: Weight  # [D, C]
    norm: Rms | None = None  # of the sum of experts


@dataclass(frozen=True)
class Mixture:
    """Parameters of the experts of one layer."""

    router: Weight  # [E, D]
    gating: Gating
    inner: tuple[Weight, ...]  # gate and up [E, inner, D or C]; both in one [E, 2 · inner, D]; or up alone
    biases: tuple[Weight, ...]  # biases of these, [E · inner] each
    scales: tuple[Weight, ...]  # scales of these, [E] each
    gated: bool
    then: Glu
    down: Weight  # [E, D or C, inner]
    down_bias: Weight | None  # [E · D]
    scales_input: bool  # shares multiply the input of an expert instead of its output
    router_cap: float  # limit of the router's logits; 0 is none
    shared: SharedExpert | None
    latent: Latent | None
    adjugates: Adjugates | None = None


def mixture(
    g: Ops[Tensor],
    p: Mixture,
    x: Tensor,
    norm: Rms | None,
    add: Tensor | None,
    *,
    scale: float = 1.0,
    router_norm: Rms | None = None,
    routed: Tensor | None = None,
    known: Tensor | None = None,
) -> Tensor:
    """add + scale · (shared(h) + sum of share_e · expert_e(h)) over the experts e chosen for h = norm(x)

    The router reads h, another norm of x, or `routed` without a norm. If experts are `known`, it only weights them.
    With a latent, experts read W_down h, and W_up multiplies their sum, or its norm.
    """
    if p.shared is not None:
        add = shared_expert(g, p.shared, x, norm, add, scale=scale)
    seen, by = (x, router_norm or norm) if routed is None else (routed, None)
    logits = None
    if p.router_cap:
        logits = g.softcap(g.linear(seen, p.router, bias=p.gating.bias, norm=by), p.router_cap)
    how = replace(p.gating, scale=p.gating.scale * scale)
    if known is None:
        routing = g.route(seen, p.router, how, norm=by, logits=logits)
    else:
        routing = g.route_known(seen, p.router, how, known, norm=by)
    if p.latent is not None:
        x, norm = g.linear(x, p.latent.down, norm=norm), None
    if p.gated:
        gate, up = (*p.inner, None)[:2]
        biases = (p.biases[0], p.biases[1]) if p.biases else None
        scales = (p.scales[0], p.scales[1]) if p.scales else None
        assert gate is not None
        inner = g.expert_glu(x, gate, up, routing, p.then, norm=norm, bias=biases, scales=scales, scaled=p.scales_input)
    else:
        assert isinstance(p.then, str), "it has a gate"
        bias, sums = (*p.biases, None)[0], (*p.scales, None)[0]
        inner = g.expert_linear(x, p.inner[0], routing, then=p.then, norm=norm, bias=bias, scale=sums)
    if p.adjugates is not None:
        grouped = g.by_group(routing, p.adjugates.group, p.adjugates.scale)
        small = g.expert_glu(x, p.adjugates.gate, p.adjugates.up, grouped, p.then, norm=norm)
        add = g.expert_sum(small, p.adjugates.down, grouped, add=add)
    weighted = not p.scales_input
    if p.latent is not None:
        y = g.expert_sum(inner, p.down, routing, bias=p.down_bias, weighted=weighted)
        return g.linear(y, p.latent.up, add=add, norm=p.latent.norm)
    return g.expert_sum(inner, p.down, routing, add=add, bias=p.down_bias, weighted=weighted)


def shared_expert(
    g: Ops[Tensor], p: SharedExpert, x: Tensor, norm: Rms | None, add: Tensor | None, *, scale: float = 1.0
) -> Tensor:
    """add + scale · gate · W_down (then(W_gate h) · W_up h), or W_down then(W_up h), h = norm(x)

    gate is sigmoid(w · h), or 1.
    """
    inner = gates(g, x, p.gates, p.then, norm)
    if p.gate is None:
        return g.linear(inner, p.down, add=add, scale=scale)
    return g.scale_rows(g.linear(inner, p.down, scale=scale), g.linear(x, p.gate, then="sigmoid", norm=norm), add=add)


def read_experts(
    file: GGUFFile, arch: str, width: int, *, scores: Scores = "softmax", normalise: bool | None = None
) -> ExpertSizes:
    """The sizes of a model's mixtures.

    `scores` applies if the file lacks `expert_gating_func`. `normalise` is fixed in some families, and a key in
    others.
    """
    experts = file.int(f"{arch}.expert_count", low=1, high=MAX_EXPERTS)
    used = _by_layer(file, f"{arch}.expert_used_count", min(experts, MAX_USED))
    most = max(used)
    number = file.int(f"{arch}.expert_gating_func", low=0, default=0)
    if number and number not in SCORES:
        known = ", ".join(f"{n} ({name})" for n, name in SCORES.items())
        raise UnsupportedModel(f"{file.path}: expert_gating_func {number} is not supported; known: {known}")
    groups = file.int(f"{arch}.expert_group_count", low=0, high=experts, default=1) or 1
    groups_used = file.int(f"{arch}.expert_group_used_count", low=0, high=groups, default=groups) or groups
    if experts % groups or groups_used * (experts // groups) < most:
        raise UnsupportedModel(
            f"{file.path}: {most} of {experts} experts cannot be chosen in {groups_used} of {groups} groups; "
            "convert the model again"
        )
    length = f"{arch}.expert_feed_forward_length"
    scale = file.float(f"{arch}.expert_weights_scale", 0.0, 1e4, default=1.0)
    return ExpertSizes(
        width,
        experts,
        _by_layer(file, length, 1 << 20) if length in file.metadata else (),
        used,
        Gating(
            used[0],
            SCORES.get(number, scores),
            normalise=file.bool(f"{arch}.expert_weights_norm", default=False) if normalise is None else normalise,
            scale=scale or 1.0,  # some files write 0 for 1
            groups=groups if groups_used < groups else 1,
            groups_used=groups_used if groups_used < groups else 1,
        ),
    )


def most_used(file: GGUFFile, arch: str) -> int:
    """The maximum number of experts of a row in a layer; 0 for a model without experts."""
    key = f"{arch}.expert_used_count"
    if isinstance(file.metadata.get(key), np.ndarray):
        return max(_by_layer(file, key, MAX_USED))
    return file.int(key, low=0, default=0)


def _by_layer(file: GGUFFile, key: str, high: int) -> tuple[int, ...]:
    """A number for all layers, or an array of one for each; 0 is for a layer without experts."""
    if not isinstance(file.metadata.get(key), np.ndarray):
        return (file.int(key, low=1, high=high),)
    values = tuple(int(value) for value in file.ints(key))
    if not values or not 1 <= max(values) <= high or min(values) < 0:
        raise Tensors(file).bad(f"metadata key '{key}'", str(list(values))[:60], f"integers from 0 to {high}")
    return values


def _of_layer(tensors: Tensors, values: tuple[int, ...], i: int, what: str) -> int:
    """Returns the value of layer i. `values` has one for all layers, or one for each."""
    value = values[0] if len(values) == 1 else values[i] if i < len(values) else 0
    if not value:
        raise tensors.bad(what, f"none for layer {i}", "a number for every layer with experts")
    return value


def take_mixture(
    tensors: Tensors,
    sizes: ExpertSizes,
    i: int,
    *,
    then: Glu = "silu",
    gated: bool = True,
    biases: bool = False,
    shared: bool = False,
    shared_then: Glu | None = None,
    shared_suffix: str = SHARED,
    scales_input: bool = False,
    router_cap: float = 0.0,
) -> Mixture:
    """Takes the experts of layer i. `biases` and `shared` state whether these tensors must exist.

    Other tensors are taken if the file has them: a bias of the choice, scales of results, gate and up in one tensor, a
    latent, and a gate of the shared expert. The shared expert uses `then`, unless it has another activation.
    """
    at, experts, of = f"blk.{i}.ffn", sizes.experts, sizes.width
    if sizes.inner:
        inner = _of_layer(tensors, sizes.inner, i, "the width of experts")
    else:  # in some families, `feed_forward_length` is the width of one expert; in others, of all that a row uses
        inner = tensors.dimension(f"{at}_down_exps.weight", 2, 3)
    latent = _take_latent(tensors, at, of, sizes.eps)
    width = of if latent is None else latent.down.shape[0]
    names = ("gate", "up") if gated else ("up",)
    matrices, scales = _take_matrices(tensors, at, names, (experts, inner, width))
    return Mixture(
        gating=_take_gating(tensors, sizes, i, biased=biases, scaled=not scales_input),
        router=tensors.take(f"{at}_gate_inp.weight", experts, of),
        inner=matrices,
        biases=tuple(tensors.take_flat(f"{at}_{name}_exps.bias", experts, inner) for name in names) if biases else (),
        scales=scales,
        gated=gated,
        then=then,
        down=tensors.take(f"{at}_down_exps.weight", experts, width, inner),
        down_bias=tensors.take_flat(f"{at}_down_exps.bias", experts, width) if biases else None,
        scales_input=scales_input,
        router_cap=router_cap,
        shared=take_shared_expert(tensors, i, of, shared_then or then, shared_suffix, gated=gated) if shared else None,
        latent=latent,
    )


def _take_matrices(
    tensors: Tensors, at: str, names: tuple[str, ...], shape: tuple[int, int, int]
) -> tuple[tuple[Weight, ...], tuple[Weight, ...]]:
    """Takes all experts' matrices before the activation, as one tensor or several, and the scales of their results."""
    (experts, inner, width), both = shape, f"{at}_gate_up_exps.weight"
    if len(names) == 2 and both in tensors:
        return (tensors.take(both, experts, 2 * inner, width),), ()
    matrices = tuple(tensors.take(f"{at}_{name}_exps.weight", *shape) for name in names)
    scales = [f"{at}_{name}_exps.scale" for name in names]
    scaled = any(scale in tensors for scale in scales)
    return matrices, tuple(tensors.take(scale, experts) for scale in scales) if scaled else ()


def _take_gating(tensors: Tensors, sizes: ExpertSizes, i: int, *, biased: bool, scaled: bool) -> Gating:
    at, chosen, experts = f"blk.{i}.ffn", f"blk.{i}.exp_probs_b", sizes.experts
    bias = f"{at}_gate_inp.bias"
    return replace(
        sizes.gating,
        used=_of_layer(tensors, sizes.used, i, "the number of experts of a row"),
        bias=tensors.take(bias, experts) if biased else tensors.find(bias, experts),
        selection_bias=tensors.find(f"{chosen}.bias", experts) or tensors.find(chosen, experts),
        answer_scale=tensors.find(f"{at}_down_exps.scale", experts) if scaled else None,
    )


def _take_latent(tensors: Tensors, at: str, width: int, eps: float) -> Latent | None:
    prefix = "routed" if f"{at}_routed_down.weight" in tensors else "latent"
    down, up, norm = (f"{at}_{prefix}_{name}.weight" for name in ("down", "up", "norm"))
    if down not in tensors:
        return None
    size = tensors.dimension(down, 0)
    weight = tensors.find(norm, size)
    return Latent(tensors.take(down, size, width), tensors.take(up, width, size), Rms(weight, eps) if weight else None)


def take_adjugates(file: GGUFFile, tensors: Tensors, arch: str, sizes: ExpertSizes, i: int) -> Adjugates:
    """Takes the adjugate experts of layer i; their width is that of their tensors."""
    at, width, key = f"blk.{i}.ffn", sizes.width, f"{arch}.experts_per_group"
    group = file.int(key, low=1, high=sizes.experts)
    if sizes.experts % group:
        raise tensors.bad(f"metadata key '{key}'", str(group), f"a divisor of the {sizes.experts} experts")
    count, inner = sizes.experts // group, tensors.dimension(f"{at}_down_chexps.weight", 2, 3)
    return Adjugates(
        group,
        file.float(f"{arch}.expert_group_scale", 0.0, 1e4),
        tensors.take(f"{at}_gate_chexps.weight", count, inner, width),
        tensors.take(f"{at}_up_chexps.weight", count, inner, width),
        tensors.take(f"{at}_down_chexps.weight", count, width, inner),
    )


def take_shared_expert(
    tensors: Tensors, i: int, width: int, then: Glu, suffix: str = SHARED, *, gated: bool = True
) -> SharedExpert:
    """Takes the shared expert of layer i; its width is that of its tensors."""
    at = f"blk.{i}.ffn"
    own, inner = f"{at}_gate_inp{SHARED}.weight", tensors.dimension(f"{at}_down{suffix}.weight", 1)
    return SharedExpert(
        gates=take_gates(tensors, at, inner, width, suffix, separate=not isinstance(then, str))
        if gated
        else tensors.take(f"{at}_up{suffix}.weight", inner, width),
        then=then,
        down=tensors.take(f"{at}_down{suffix}.weight", width, inner),
        gate=tensors.find(own, 1, width),
    )
