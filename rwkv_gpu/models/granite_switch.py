"""Granite Switch: Granite with LoRA adapters in the file. Control tokens choose the adapter of the tokens after them.

A control token is read as another token, its substitute. A small attention finds the control token that a row sees:
its keys tell control tokens from others, and its values are their numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, Cache, ComputedWeight, Gating, Ops, Rms, RowRange, Tensor, Weight
from .dense import DenseFile, take_gates
from .experts import MAX_EXPERTS
from .layered import Layered
from .mixture_families import granite
from .transformer import SelfAttention, attend

ARCH = "graniteswitch"
SIZE = 32  # numbers of a head of the small attention, of which the first is used
SIGNALS = 3  # first columns of a token's row: its key, its number, and 1; then a column for each adapter
HALF = 0.01  # added to a mean of numbers, so that a half is rounded up


@dataclass(frozen=True)
class Adapter:
    """The low-rank change of one matrix [M, K] by each adapter; the first changes nothing."""

    a: Weight  # [A + 1, rank, K]
    b: Weight  # [A + 1, M, rank]


@dataclass(frozen=True)
class Switch:
    """Parameters that choose the adapter of each row."""

    table: Weight  # [V, S], the columns of each token
    query: Weight  # [32, S]
    key: Weight
    value: Weight
    substitutes: Weight  # [D, S], what a control token's embedding lacks to that of its substitute
    cache: Cache
    router: Weight  # [A + 1, 32]
    how: Gating


@dataclass(frozen=True)
class Layer:
    """Parameters of a layer; adapters are of q, k, v, output, gate, up and down."""

    attention: SelfAttention
    norm: Rms
    gates: tuple[Weight, Weight]
    down: Weight
    adapters: tuple[Adapter, ...]


@dataclass(frozen=True)
class GraniteSwitch(Layered):
    """A model."""

    switch: Switch
    scale: float  # of branches
    blocks: tuple[Layer, ...]

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        p, scale = self.switch, self.scale
        signals = g.embed(p.table, ids)
        x = g.linear(signals, p.substitutes, add=x, scale=self.ends.embedding_scale)
        q, k, v = g.linears([signals] * 3, [p.query, p.key, p.value])
        number = g.attention(q, k, v, p.cache, Attention(1, None, 1.0))
        routing = g.route(number, p.router, p.how)
        scaled = g.by_group(routing, 1, scale)

        def add(x: Tensor, adapter: Adapter, to: Tensor, norm: Rms | None = None, *, last: bool = False) -> Tensor:
            low = g.expert_linear(x, adapter.a, routing, norm=norm)
            return g.expert_sum(low, adapter.b, scaled if last else routing, add=to)

        for i, layer in enumerate(self.blocks):
            own, (of_q, of_k, of_v, of_output, of_gate, of_up, of_down) = layer.attention, layer.adapters
            assert own.norm is None or isinstance(own.norm, Rms), "Granite has no layer norms"
            with g.layer(i):
                q, k, v = g.linears([x] * 3, [own.q, own.k, own.v], norm=own.norm)
                q, k, v = (add(x, one, y, own.norm) for one, y in ((of_q, q), (of_k, k), (of_v, v)))
                y = attend(g, q, k, v, own.cache, own.how, own.value)
                x = add(y, of_output, g.linear(y, own.output.weight, add=x, scale=scale), last=True)
                gate, up = g.linears([x] * 2, layer.gates, norm=layer.norm)
                gate, up = add(x, of_gate, gate, layer.norm), add(x, of_up, up, layer.norm)
                y = g.gated(gate, up, "silu")
                x = add(y, of_down, g.linear(y, layer.down, add=x, scale=scale), last=True)
        return x

    @property
    def caches(self) -> list[Cache]:
        return [self.switch.cache, *(layer.attention.cache for layer in self.blocks)]


def load(file: GGUFFile) -> GraniteSwitch:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = DenseFile(file, ARCH)
    form, tensors = granite(source), source.tensors
    ends, attentions = source.ends(form), source.attentions(form)
    count = file.int(f"{ARCH}.adapters.count", low=1, high=MAX_EXPERTS - 1)
    rank = file.int(f"{ARCH}.adapters.lora_rank", low=1, high=1 << 12)
    switch = _take_switch(source, count)
    blocks = tuple(_take_layer(source, attention, count + 1, rank, i) for i, attention in enumerate(attentions))
    tensors.refuse_the_rest()
    return GraniteSwitch(ends, tuple(tensors.taken), switch, form.branch_scale, blocks)


def _take_layer(source: DenseFile, attention: SelfAttention, slots: int, rank: int, i: int) -> Layer:
    at, tensors, hyper = f"blk.{i}", source.tensors, source.hyper
    width, inner = hyper.width, hyper.inner[i]
    rows, keys = hyper.heads[i] * hyper.head_size, hyper.kv_heads[i] * hyper.head_size
    gates = take_gates(tensors, f"{at}.ffn", inner, width, separate=True)
    assert isinstance(gates, tuple), "they are separate"
    shapes = {
        "attn_q": (rows, width), "attn_k": (keys, width), "attn_v": (keys, width), "attn_output": (width, rows),
        "ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner),
    }  # fmt: skip
    return Layer(
        attention,
        Rms(tensors.take(f"{at}.ffn_norm.weight", width), hyper.eps),
        gates,
        tensors.take(f"{at}.ffn_down.weight", width, inner),
        tuple(
            Adapter(
                tensors.take(f"{at}.{name}.lora_a", slots, rank, columns),
                tensors.take(f"{at}.{name}.lora_b", slots, rows, rank),
            )
            for name, (rows, columns) in shapes.items()
        ),
    )


def _take_switch(source: DenseFile, count: int) -> Switch:
    """Computes the parameters of the switch from the control tokens."""
    tensors, hyper, file = source.tensors, source.hyper, source.file
    tokens, substitutes = (_ids(source, name, count) for name in ("activate", "substitute"))
    gain = file.float(f"{ARCH}.adapters.router_gain", 1.0, 80.0, default=15.0)
    columns, some = -(-(SIGNALS + count) // SIZE) * SIZE, ("output_norm.weight", (hyper.width,))

    def constant(name: str, values: np.ndarray) -> ComputedWeight:
        return tensors.compute(f"switch.{name}", values.shape, lambda _: values, some)

    table = np.zeros((hyper.vocabulary, columns), np.float32)
    table[:, 0], table[:, 2] = -gain, 1
    for i, token in enumerate(tokens):
        table[token, :2], table[token, SIGNALS + i] = (gain, i + 1), 1
    picks = np.zeros((3, SIZE, columns), np.float32)
    for column in range(3):
        picks[column, 0, column] = 1
    numbers = np.arange(count + 1, dtype=np.float32)  # the nearest e to s has the largest 2 e (s + HALF) - e²
    router = np.zeros((count + 1, SIZE), np.float32)
    router[:, 0] = 2 * numbers
    bias = constant("bias", 2 * HALF * numbers - numbers**2)
    return Switch(
        table=constant("table", table),
        query=constant("query", picks[2]),
        key=constant("key", picks[0]),
        value=constant("value", picks[1]),
        substitutes=_differences(source, tokens, substitutes, columns),
        cache=Cache("switch.kv", 1, SIZE),
        router=constant("router", router),
        how=Gating(1, normalise=True, bias=bias),
    )


def _ids(source: DenseFile, name: str, count: int) -> list[int]:
    """The token of each adapter."""
    key, vocabulary = f"{ARCH}.adapters.token_ids_{name}", source.hyper.vocabulary
    ids = [int(one) for one in source.file.ints(key)]
    if len(ids) != count or not all(0 <= one < vocabulary for one in ids):
        expected = f"{count} tokens below {vocabulary}"
        raise source.tensors.bad(f"metadata key '{key}'", str(ids)[:60], expected)
    return ids


def _differences(source: DenseFile, tokens: Sequence[int], others: Sequence[int], columns: int) -> ComputedWeight:
    """The embedding of each substitute minus that of its control token, as columns [D, S]."""
    name, width = "token_embd.weight", source.hyper.width
    parts = tuple(RowRange(f"{name}.{one}", (width,), name, one) for one in (*others, *tokens))

    def make(*rows: np.ndarray) -> np.ndarray:
        found = np.zeros((columns, width), np.float32)
        found[SIGNALS : SIGNALS + len(tokens)] = np.stack(rows[: len(tokens)]) - np.stack(rows[len(tokens) :])
        return np.ascontiguousarray(found.T)

    found = ComputedWeight("switch.substitutes", (width, columns), parts, make)
    source.tensors.keep(found)
    return found
