"""Attention in float64, the exporters' and check_sample.py's one statement of docs/contract.md, rule 1.

Contract: q (b, sq, hq, d), k and v (b, sk, hk, ·); key j of batch entry b exists for j < lengths[b]; causal is
bottom-right. Masked keys have no influence at all. NumPy only, written to be read, not to be quick.
"""

import numpy as np


def attention(q, k, v, lengths=None, causal=False, scale=None):
    """(O, bound terms): O (b, sq, hq, dv), and per row the two sizes that its rounding error scales with:
    max_j |scale| · Σ_c |q_c k_c| and max |v| over the visible keys, both (b, sq, hq)."""
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    (batch, seqlen_q, heads_q, head_dim), (_, seqlen_kv, heads_kv, _) = q.shape, k.shape
    group = heads_q // heads_kv
    if scale is None:
        scale = 1.0 / np.sqrt(head_dim)
    output = np.zeros((batch, seqlen_q, heads_q, v.shape[-1]))
    logit_size = np.zeros((batch, seqlen_q, heads_q))
    value_size = np.zeros((batch, seqlen_q, heads_q))
    rows, columns = np.arange(seqlen_q)[:, None], np.arange(seqlen_kv)[None, :]
    for b in range(batch):
        length = seqlen_kv if lengths is None else int(lengths[b])
        visible = np.broadcast_to(columns < length, (seqlen_q, seqlen_kv))
        if causal:
            visible = visible & (columns <= rows + (seqlen_kv - seqlen_q))
        if not visible.any(axis=1).all():
            raise ValueError(f"batch entry {b} has a row that sees no key")
        for h in range(heads_q):
            q_h, k_h, v_h = q[b, :, h], k[b, :, h // group], v[b, :, h // group]
            s = np.where(visible, scale * (q_h @ k_h.T), -np.inf)
            p = np.exp(s - s.max(axis=1, keepdims=True))
            output[b, :, h] = (p @ v_h) / p.sum(axis=1, keepdims=True)
            sizes = np.where(visible, abs(scale) * (np.abs(q_h) @ np.abs(k_h).T), 0.0)
            logit_size[b, :, h] = sizes.max(axis=1)
            value_size[b, :, h] = np.where(visible, np.abs(v_h).max(axis=1), 0.0).max(axis=1)
    return output, (logit_size, value_size)
