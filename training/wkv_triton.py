"""The recurrence of RWKV-7 as a Triton kernel, forward and backward: the state stays in registers.

Rows of a head's state do not meet, so that a program has ROWS of them and fits in one warp. Forward keeps the state at
the end of each chunk and, for every step, S a. Backward starts from a kept state and undoes the chunk's steps one by
one: S before = (S - v kᵀ - (S a) bᵀ) / w, which 16 steps of w > 0.54 leave exact enough. What all rows contribute to
is added up afterwards.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .wkv import CHUNK

ROWS = 16  # of a state, in one program


@triton.jit
def forward_kernel(
    r_ptr, w_ptr, k_ptr, v_ptr, a_ptr, b_ptr, keeps_ptr, y_ptr, recalled_ptr, states_ptr,
    chunks, H: tl.constexpr, N: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    batch, head = program // H, program % H
    j = tl.arange(0, N)
    i = tl.program_id(1) * R + tl.arange(0, R)
    base = (batch.to(tl.int64) * chunks * C * H + head) * N
    square = i[:, None] * N + j[None, :]
    state = tl.zeros((R, N), tl.float32)  # [value, key]
    for chunk in range(chunks):
        state = state * tl.load(keeps_ptr + batch * chunks + chunk)
        for _ in range(C):
            r, w = tl.load(r_ptr + base + j).to(tl.float32), tl.load(w_ptr + base + j)
            a, b = tl.load(a_ptr + base + j).to(tl.float32), tl.load(b_ptr + base + j).to(tl.float32)
            k, v = tl.load(k_ptr + base + j).to(tl.float32), tl.load(v_ptr + base + i).to(tl.float32)
            recalled = tl.sum(state * a[None, :], axis=1)
            state = state * w[None, :] + v[:, None] * k[None, :] + recalled[:, None] * b[None, :]
            tl.store(recalled_ptr + base + i, recalled)
            tl.store(y_ptr + base + i, tl.sum(state * r[None, :], axis=1).to(y_ptr.dtype.element_ty))
            base += H * N
        tl.store(states_ptr + (program.to(tl.int64) * chunks + chunk) * N * N + square, state)


@triton.jit
def backward_kernel(
    r_ptr, w_ptr, k_ptr, v_ptr, a_ptr, b_ptr, keeps_ptr, recalled_ptr, states_ptr, dy_ptr,
    dr_ptr, dw_ptr, dk_ptr, da_ptr, db_ptr, dv_ptr,
    chunks, part_size, H: tl.constexpr, N: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    batch, head = program // H, program % H
    j = tl.arange(0, N)
    i = tl.program_id(1) * R + tl.arange(0, R)
    base = ((batch.to(tl.int64) * chunks * C + chunks * C - 1) * H + head) * N
    part = tl.program_id(1).to(tl.int64) * part_size
    square = i[:, None] * N + j[None, :]
    grad = tl.zeros((R, N), tl.float32)
    for back in range(chunks):
        chunk = chunks - 1 - back
        state = tl.load(states_ptr + (program.to(tl.int64) * chunks + chunk) * N * N + square)
        for _ in range(C):
            r, w = tl.load(r_ptr + base + j).to(tl.float32), tl.load(w_ptr + base + j)
            a, b = tl.load(a_ptr + base + j).to(tl.float32), tl.load(b_ptr + base + j).to(tl.float32)
            k, v = tl.load(k_ptr + base + j).to(tl.float32), tl.load(v_ptr + base + i).to(tl.float32)
            recalled, dy = tl.load(recalled_ptr + base + i), tl.load(dy_ptr + base + i).to(tl.float32)
            to = part + base + j
            tl.store(dr_ptr + to, tl.sum(state * dy[:, None], axis=0))
            grad += dy[:, None] * r[None, :]
            tl.store(dk_ptr + to, tl.sum(grad * v[:, None], axis=0))
            tl.store(dv_ptr + base + i, tl.sum(grad * k[None, :], axis=1).to(dv_ptr.dtype.element_ty))
            tl.store(db_ptr + to, tl.sum(grad * recalled[:, None], axis=0))
            drecalled = tl.sum(grad * b[None, :], axis=1)
            state = (state - v[:, None] * k[None, :] - recalled[:, None] * b[None, :]) * (1 / w)[None, :]
            tl.store(dw_ptr + to, tl.sum(grad * state, axis=0))
            tl.store(da_ptr + to, tl.sum(state * drecalled[:, None], axis=0))
            grad = grad * w[None, :] + drecalled[:, None] * a[None, :]
            base -= H * N
        grad = grad * tl.load(keeps_ptr + batch * chunks + chunk)


def forward(inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """y, S a of each step, and the state at the end of each chunk."""
    r, w, *_ = inputs
    batch, steps, heads, size = r.shape
    chunks, rows = steps // CHUNK, min(ROWS, size)
    y, recalled = torch.empty_like(r), torch.empty_like(w)
    states = w.new_empty(batch, heads, chunks, size, size)
    grid, constants = (batch * heads, size // rows), {"H": heads, "N": size, "C": CHUNK, "R": rows}
    forward_kernel[grid](*inputs, y, recalled, states, chunks, **constants, num_warps=1)
    return y, recalled, states


def backward(inputs: tuple[Tensor, ...], recalled: Tensor, states: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """The gradients of r, w, k, v, a, b."""
    batch, steps, heads, size = dy.shape
    chunks, rows = steps // CHUNK, min(ROWS, size)
    parts = recalled.new_empty(5, size // rows, *dy.shape)
    dv = torch.empty_like(inputs[3])
    grid, constants = (batch * heads, size // rows), {"H": heads, "N": size, "C": CHUNK, "R": rows}
    kept = (recalled, states, dy.contiguous())
    backward_kernel[grid](*inputs, *kept, *parts, dv, chunks, dy.numel(), **constants, num_warps=1)
    dr, dw, dk, da, db = (part.sum(0).to(x.dtype) for part, x in zip(parts, (*inputs[:3], *inputs[4:6]), strict=True))
    return dr, dw, dk, dv, da, db


class Wkv(torch.autograd.Function):
    """Both kernels as one differentiable step."""

    @staticmethod
    def forward(ctx, *inputs):
        y, recalled, states = forward(inputs)
        ctx.save_for_backward(*inputs, recalled, states)
        return y

    @staticmethod
    def backward(ctx, dy):
        *inputs, recalled, states = ctx.saved_tensors
        return (*backward(tuple(inputs), recalled, states, dy), None)


@torch.compiler.disable
def wkv_kernel(*inputs: Tensor) -> Tensor:
    """y of r, w, k, v, a, b and keeps."""
    return Wkv.apply(*inputs)
