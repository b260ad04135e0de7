"""The recurrence of RWKV-7: S = S diag(w) + v kᵀ + (S a) bᵀ, then y = S r; by a loop here, by a kernel on a GPU."""

import torch
from torch import Tensor

CHUNK = 16  # documents begin at multiples of it, and the kernel keeps a state as often


def wkv(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, keeps: Tensor) -> Tensor:
    """y [B, T, H, N] of inputs of that shape; keeps [B, T / CHUNK] is 0 where the state is forgotten first."""
    if r.is_cuda:
        from .wkv_triton import wkv_kernel

        inputs = (given.to(torch.bfloat16).contiguous() for given in (r, k, v, a, b))
        r, k, v, a, b = inputs
        return wkv_kernel(r, w.float().contiguous(), k, v, a, b, keeps.contiguous())
    return wkv_loop(r, w, k, v, a, b, keeps)


def wkv_loop(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, keeps: Tensor) -> Tensor:
    """As its equation says, step by step; what the kernel is held against."""
    batch, steps, heads, size = r.shape
    state = r.new_zeros(batch, heads, size, size, dtype=w.dtype)
    ys = []
    for t in range(steps):
        if t % CHUNK == 0:
            state = state * keeps[:, t // CHUNK, None, None, None]
        recalled = state @ a[:, t, :, :, None].to(state.dtype)
        state = state * w[:, t, :, None, :] + v[:, t, :, :, None] * k[:, t, :, None, :] + recalled * b[:, t, :, None, :]
        ys.append((state @ r[:, t, :, :, None].to(state.dtype))[..., 0])
    return torch.stack(ys, 1)
