"""RWKV-7 in PyTorch. Parameters carry the names and shapes of their GGUF tensors, so that a state dict is a file.

Documents lie side by side in a row; each begins at a multiple of CHUNK tokens, with a fresh state.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .wkv import CHUNK, wkv

DECAY = -0.606531  # log of the strongest decay, as in rwkv_gpu/ops/reference.py
HEAD_EPS = 64e-5


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; `bits` is how finely a file will keep its matrices, in blocks of 32."""

    vocabulary: int = 2048
    width: int = 512
    layers: int = 4
    inner: int = 1024
    head: int = 64
    decay: int = 32
    iclr: int = 32
    value: int = 32
    gate: int = 64
    eps: float = 1e-5


class Vector(nn.Module):
    """A parameter by the name of `weight`."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(values)


class Matrix(nn.Module):
    """y = W x. While `rounding` is 1, W is seen as a file of `bits` would keep it, and trained as if it were not."""

    def __init__(self, inputs: int, outputs: int, bits: int, gain: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bits = bits
        self.register_buffer("rounding", torch.zeros(()), persistent=False)
        if gain:
            nn.init.orthogonal_(self.weight, gain)
        else:
            nn.init.zeros_(self.weight)

    def seen(self) -> Tensor:
        if not self.bits:
            return self.weight
        return self.weight + self.rounding * (rounded(self.weight, self.bits) - self.weight).detach()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.seen())


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Every block of 32 on a grid of its own from its least to its greatest weight."""
    blocks = weight.view(-1, 32)
    low, high = blocks.amin(1, keepdim=True).clamp(max=0), blocks.amax(1, keepdim=True)
    step = (high - low).clamp(min=1e-9) / (2**bits - 1)
    return (((blocks - low) / step).round() * step + low).view_as(weight)


def shifted(x: Tensor, fresh: Tensor) -> Tensor:
    """What stood before each token: zero where a document begins. x [B, T, D], fresh [B, T, 1]"""
    return F.pad(x, (0, 0, 1, 0))[:, :-1] * (1 - fresh)


class Block(nn.Module):
    """A time mix and a channel mix; see rwkv_gpu/models/rwkv7.py for the maths."""

    def __init__(self, s: Shape, index: int) -> None:
        super().__init__()
        self.shape, self.index = s, index
        d, depth = s.width, index / max(1, s.layers - 1)
        place = torch.arange(d) / d
        for name in ("attn_norm", "attn_norm_2", "time_mix_ln"):
            self.add_module(name, nn.LayerNorm(d, s.eps))
        curve = 1 - place ** torch.tensor([0.2, 0.9, 0.7, 0.7, 0.9, 0.2])[:, None] ** (1 + depth)  # r w k v a g
        self.time_mix_lerp_fused = Vector(curve.view(6, 1, 1, d).clone())
        for name in ("receptance", "key", "value"):
            self.add_module(f"time_mix_{name}", Matrix(d, d, 5, 0.5 if name != "key" else 0.2))
        self.time_mix_output = Matrix(d, d, 5, 0)
        for letter, rank in (("w", s.decay), ("a", s.iclr), ("v", s.value if index else s.iclr), ("g", s.gate)):
            self.add_module(f"time_mix_{letter}1", Matrix(d, rank, 0, 0 if letter != "g" else 0.3))
            self.add_module(f"time_mix_{letter}2", Matrix(rank, d, 0, 0.1 if letter != "g" else 1.0))
        self.time_mix_w0 = Vector(-5.5 + 6 * place ** (0.9 + depth**0.5))
        self.time_mix_a0 = Vector(torch.zeros(d))
        self.time_mix_v0 = Vector(torch.full((d,), 0.7))
        self.time_mix_k_k = Vector(torch.full((d,), 0.8))
        self.time_mix_k_a = Vector(torch.ones(d))
        self.time_mix_r_k = Vector(torch.zeros(d))
        self.channel_mix_lerp_k = Vector(1 - place ** (1 - depth / 2) ** 4)
        self.channel_mix_key = Matrix(d, s.inner, 4, 1.0)
        self.channel_mix_value = Matrix(s.inner, d, 4, 0)

    def forward(self, x: Tensor, v_first: Tensor | None, fresh: Tensor, keeps: Tensor) -> tuple[Tensor, Tensor]:
        mixed, v_first = self.time_mix(self.attn_norm(x), v_first, fresh, keeps)
        x = x + mixed
        xx = self.attn_norm_2(x)
        xk = xx + (shifted(xx, fresh) - xx) * self.channel_mix_lerp_k.weight
        return x + self.channel_mix_value(F.relu(self.channel_mix_key(xk)) ** 2), v_first

    def time_mix(self, xx: Tensor, v_first: Tensor | None, fresh: Tensor, keeps: Tensor) -> tuple[Tensor, Tensor]:
        size, before = self.shape.head, shifted(xx, fresh) - xx
        xr, xw, xk, xv, xa, xg = (xx + before * mu.view(-1) for mu in self.time_mix_lerp_fused.weight)
        r, k, v = self.time_mix_receptance(xr), self.time_mix_key(xk), self.time_mix_value(xv)
        low = self.time_mix_w2(torch.tanh(self.time_mix_w1(xw)))
        w = torch.exp(DECAY * torch.sigmoid(self.time_mix_w0.weight + low.float()))
        a = torch.sigmoid(self.time_mix_a0.weight + self.time_mix_a2(self.time_mix_a1(xa)))
        gate = self.time_mix_g2(torch.sigmoid(self.time_mix_g1(xg)))
        if v_first is None:
            v_first = v
        else:
            v = v + (v_first - v) * torch.sigmoid(self.time_mix_v0.weight + self.time_mix_v2(self.time_mix_v1(xv)))
        by_head = (*xx.shape[:2], -1, size)
        kk = F.normalize((k * self.time_mix_k_k.weight).float().view(by_head), dim=-1)
        k = k * (1 + (a - 1) * self.time_mix_k_a.weight)
        r, w, k, v, a = (given.view(by_head) for given in (r, w, k, v, a))
        y = wkv(r, w, k, v, -kk, kk * a, keeps).float()
        y = F.layer_norm(y, (size,), eps=HEAD_EPS).flatten(2) * self.time_mix_ln.weight + self.time_mix_ln.bias
        y = y + ((r * k * self.time_mix_r_k.weight.view(-1, size)).sum(-1, keepdim=True) * v).flatten(2)
        return self.time_mix_output(y * gate), v_first


class RWKV7(nn.Module):
    """Ids to logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        nn.init.uniform_(self.token_embd.weight, -0.1, 0.1)
        self.token_embd_norm = nn.LayerNorm(shape.width, shape.eps)
        self.blk = nn.ModuleList(Block(shape, i) for i in range(shape.layers))
        self.output_norm = nn.LayerNorm(shape.width, shape.eps)
        self.output = Matrix(shape.width, shape.vocabulary, 0, 0.5)

    def forward(self, ids: Tensor, first: Tensor) -> Tensor:
        """Logits [B, T, V] of ids [B, T]; first [B, T / CHUNK] is 1 where a document begins."""
        fresh = F.pad(first[:, :, None], (0, CHUNK - 1)).flatten(1)[:, :, None]
        x = self.token_embd_norm(self.token_embd(ids))
        v_first = None
        for block in self.blk:
            x, v_first = block(x, v_first, fresh, 1 - first)
        return self.output(self.output_norm(x))

    def round(self, how: float) -> None:
        """Whether matrices are seen rounded: 1 or 0."""
        for module in self.modules():
            if isinstance(module, Matrix):
                module.rounding.fill_(how)
