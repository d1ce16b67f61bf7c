"""attn with NumPy: causal attention of packed projections without a copy, its LSE, and two halves merged into a whole."""
import sys

try:
    import numpy as np
except ImportError:
    print("SKIP: numpy is not installed")
    sys.exit(77)
import attn

rng = np.random.default_rng(0)
batch, seqlen, heads, head_dim = 2, 200, 8, 64

# One projection that holds q, k and v side by side: the three are views with strides.
qkv = rng.standard_normal((batch, seqlen, 3, heads, head_dim)).astype(np.float32)
q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]

o, lse = attn.attention(q, k, v, causal="bottom_right", return_lse=True)
print(f"o {o.shape} {o.dtype}, lse {lse.shape}")
assert np.allclose(o[:, 0], v[:, 0], atol=1e-5), "the first query sees the first key alone"

# Two calls over half of the keys each, merged, are the call over all of them.
whole = attn.attention(q, k, v)
halves = [attn.attention(q, k[:, part], v[:, part], return_lse=True) for part in (slice(0, 77), slice(77, None))]
merged, _ = attn.merge([h[0] for h in halves], [h[1] for h in halves])
print(f"merged halves differ from the whole by at most {np.abs(merged - whole).max():.1e}")
assert np.allclose(merged, whole, atol=1e-5)

# For repeated calls of one problem: a plan, and memory of our own for the results.
plan = attn.Plan(f"b{batch} hq{heads} sq{seqlen} d{head_dim} fp32 causal=bottom_right window=31,0")
out = np.empty_like(whole)
for _ in range(3):
    plan(q, k, v, out=out)
print(plan.explain())
