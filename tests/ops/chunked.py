"""The chunked form of a recurrence in numpy, in the same steps as the kernels."""

import numpy as np

Array = np.ndarray


def recur_in_chunks(s: Array, r: Array, w: Array, k: Array, v: Array, a: Array, b: Array, tokens: int) -> Array:
    """y[t] = S r[t] after S = S diag(w[t]) + v[t] k[t]ᵀ + (S a[t]) b[t]ᵀ, of one head; S [N, N] is changed in place."""
    y = np.empty_like(v)
    for first in range(0, len(r), tokens):
        rows = slice(first, first + tokens)
        y[rows] = _chunk(s, r[rows], w[rows], k[rows], v[rows], a[rows], b[rows])
    return y


def _chunk(s: Array, r: Array, w: Array, k: Array, v: Array, a: Array, b: Array) -> Array:
    count = len(r)
    past = np.cumprod(np.vstack([np.ones_like(w[:1]), w]), axis=0)  # decay of S from the start to before t
    rest = np.array([np.prod(w[i + 1 :], axis=0) for i in range(count)], w.dtype)  # decay from i to the end
    ak, ab, rk, rb = (np.zeros((count, count), w.dtype) for _ in range(4))
    for i in range(count):
        on_the_way = np.ones_like(w[0])  # the decays between i and t as products, because quotients would overflow
        for t in range(i, count):
            if t > i:
                ak[t, i], ab[t, i] = a[t] @ (k[i] * on_the_way), a[t] @ (b[i] * on_the_way)
                on_the_way = on_the_way * w[t]
            rk[t, i], rb[t, i] = r[t] @ (k[i] * on_the_way), r[t] @ (b[i] * on_the_way)
    from_s, from_v = a * past[:-1], ak @ v
    for t in range(1, count):  # by forward substitution: powers of the matrix would grow and cancel
        from_s[t] += ab[t, :t] @ from_s[:t]
        from_v[t] += ab[t, :t] @ from_v[:t]
    u = from_s @ s.T + from_v
    y = (r * past[1:] + rb @ from_s) @ s.T + rk @ v + rb @ from_v
    s[:] = s * past[-1] + v.T @ (k * rest) + u.T @ (b * rest)
    return y
