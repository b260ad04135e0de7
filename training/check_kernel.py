"""Holds the kernel of the recurrence against its loop in float64, and times it. Needs a GPU.

python -m training.check_kernel
"""

import time

import torch
import torch.nn.functional as F
from torch import Tensor

from .wkv import CHUNK, wkv_loop
from .wkv_triton import wkv_kernel


def inputs(batch: int, steps: int, heads: int, kind: torch.dtype) -> list[Tensor]:
    """r, w, k, v, a, b of the sizes that a model gives; w always float32."""
    r, k, v, kk, w, a = (torch.randn(batch, steps, heads, 64, device="cuda") for _ in range(6))
    w = torch.exp(-0.606531 * torch.sigmoid(3 * w - 2))
    kk = F.normalize(kk, dim=-1)
    made = (r.to(kind), w, 0.3 * k.to(kind), v.to(kind), -kk.to(kind), (kk * torch.sigmoid(a)).to(kind))
    return [given.detach().requires_grad_() for given in made]


def error(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).norm() / theirs.norm()).item()


def check(kind: torch.dtype) -> None:
    """Prints the relative error of y and of each gradient."""
    given, keeps = inputs(2, 4 * CHUNK, 2, kind), torch.tensor([[0.0, 1, 0, 1], [0, 1, 1, 1]], device="cuda")
    dy = torch.randn_like(given[0])
    exact = [value.detach().double().requires_grad_() for value in given]
    true = wkv_loop(*exact, keeps.double())
    ours = wkv_kernel(*given, keeps)
    grads = zip(torch.autograd.grad(ours, given, dy), torch.autograd.grad(true, exact, dy.double()), strict=True)
    print(
        kind,
        f"y {error(ours, true):.1e}",
        *(f"d{name} {error(a, b):.1e}" for name, (a, b) in zip("rwkvab", grads, strict=True)),
    )


def clock() -> None:
    """Prints milliseconds for 64 rows of 1,024 tokens and 8 heads."""
    given, keeps = inputs(64, 1024, 8, torch.bfloat16), torch.ones(64, 1024 // CHUNK, device="cuda")
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        y = wkv_kernel(*given, keeps)
        torch.cuda.synchronize()
        middle = time.perf_counter()
        torch.autograd.grad(y, given, torch.ones_like(y))
        torch.cuda.synchronize()
        print(f"forward {1e3 * (middle - start):.2f} ms, backward {1e3 * (time.perf_counter() - middle):.2f} ms")


if __name__ == "__main__":
    check(torch.float32)
    check(torch.bfloat16)
    clock()
