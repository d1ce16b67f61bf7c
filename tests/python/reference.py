"""Attention in float64 NumPy for these tests, from the contract's words and without a thought for speed."""
import numpy as np


def attention(q, k, v, *, causal=None, alignment=None, window=None, scale=None, softcap=None, sinks=None,
              alibi_slopes=None):
    """(O, LSE) of arrays (batch, seqlen, heads, head_dim); LSE (batch, heads, seqlen)."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, sq, hq, dim = q.shape
    sk, hk = k.shape[1], k.shape[2]
    off = sk - sq if (causal or alignment) == "bottom_right" else 0
    i, j = np.arange(sq)[:, None] + off, np.arange(sk)[None, :]
    visible = np.ones((sq, sk), bool)
    if causal:
        visible &= j <= i
    left, right = window or (None, None)
    if left is not None and left >= 0:
        visible &= j >= i - left
    if right is not None and right >= 0:
        visible &= j <= i + right
    o, lse = np.zeros((batch, sq, hq, v.shape[3])), np.full((batch, hq, sq), -np.inf)
    for b in range(batch):
        for h in range(hq):
            s = q[b, :, h] @ k[b, :, h // (hq // hk)].T * (1 / np.sqrt(dim) if scale is None else scale)
            if softcap:
                s = softcap * np.tanh(s / softcap)
            if alibi_slopes is not None:
                slopes = np.asarray(alibi_slopes, np.float64)
                s = s + (slopes[b, h] if slopes.ndim == 2 else slopes[h]) * (j - i)
            s = np.where(visible, s, -np.inf)
            if sinks is not None:
                s = np.concatenate([s, np.full((sq, 1), float(sinks[h]))], axis=1)
            top = s.max(axis=1, initial=-np.inf, keepdims=True)
            p = np.exp(s - np.where(np.isfinite(top), top, 0))
            total = p.sum(axis=1)
            alive = total > 0
            with np.errstate(divide="ignore"):
                lse[b, h] = np.where(alive, np.log(total) + top[:, 0], -np.inf)
            p = p[:, :sk] / np.where(alive, total, 1)[:, None]
            o[b, :, h] = np.where(visible, p, 0) @ v[b, :, h // (hq // hk)]
    return o, lse


def tensors(seed, sq, sk, hq=4, hk=2, dim=16, dim_v=None, batch=2, dtype=np.float32):
    rng = np.random.default_rng(seed)
    shapes = ((batch, sq, hq, dim), (batch, sk, hk, dim), (batch, sk, hk, dim_v or dim))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)
