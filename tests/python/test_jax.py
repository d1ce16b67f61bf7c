"""attn on JAX arrays (CPU): values, kind, bfloat16, immutability, tracing."""
import unittest

import attn
import reference
from needs import need

np = need("numpy")
jax = need("jax")
jnp = jax.numpy


class Jax(unittest.TestCase):
    def arrays(self, seed, dtype=jnp.float32):
        return tuple(jnp.asarray(x, dtype) for x in reference.tensors(seed, 6, 10))

    def test_values_and_kind(self):
        for dtype, tolerance in ((jnp.float32, 2e-5), (jnp.float16, 4e-3), (jnp.bfloat16, 3e-2)):
            q, k, v = self.arrays(1, dtype)
            o, lse = attn.attention(q, k, v, causal="bottom_right", return_lse=True)
            self.assertIsInstance(o, jax.Array)
            self.assertEqual((o.dtype, o.shape, lse.dtype, lse.shape), (dtype, q.shape, jnp.float32, (2, 4, 6)))
            want, want_lse = reference.attention(
                *(np.asarray(x.astype(jnp.float32)) for x in (q, k, v)), causal="bottom_right"
            )
            np.testing.assert_allclose(np.asarray(o.astype(jnp.float32)), want, rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(np.asarray(lse), want_lse, rtol=1e-3, atol=1e-3)

    def test_results_are_fresh(self):
        q, k, v = self.arrays(2)
        first = attn.attention(q, k, v)
        kept = np.array(first)
        for seed in range(3, 8):
            attn.attention(*self.arrays(seed))
        np.testing.assert_array_equal(np.asarray(first), kept)
        np.testing.assert_array_equal(np.asarray(jnp.zeros(first.shape)), np.zeros(first.shape))  # no shared zeros

    def test_results_of_jax_work_as_inputs(self):
        q, k, v = self.arrays(9)
        double = jax.jit(lambda x: x * 2)
        o = attn.attention(double(q), k, v, scale=0.25)
        np.testing.assert_allclose(np.asarray(o), np.asarray(attn.attention(q, k, v, scale=0.5)), rtol=1e-5, atol=1e-6)

    def test_plan_varlen_and_merge(self):
        q, k, v = self.arrays(10)
        o, lse = attn.Plan("b2 hq4 hk2 sq6 sk10 d16 fp32 lse")(q, k, v)
        self.assertIsInstance(o, jax.Array)
        parts = [attn.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 4), slice(4, 10))]
        merged, merged_lse = attn.merge([p[0] for p in parts], [p[1] for p in parts])
        self.assertIsInstance(merged, jax.Array)
        np.testing.assert_allclose(np.asarray(merged), np.asarray(o), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(np.asarray(merged_lse), np.asarray(lse), rtol=1e-5, atol=1e-6)
        cu_q, cu_kv = jnp.array([0, 6, 12], jnp.int32), jnp.array([0, 10, 20], jnp.int32)
        packed = attn.varlen_attention(*(x.reshape(-1, *x.shape[2:]) for x in (q, k, v)), cu_q, cu_kv)
        np.testing.assert_allclose(np.asarray(packed).reshape(o.shape), np.asarray(o), rtol=1e-5, atol=1e-6)

    def test_refusals(self):
        q, k, v = self.arrays(11)
        with self.assertRaisesRegex(ValueError, "out is a JAX array, which is immutable"):
            attn.attention(q, k, v, out=jnp.zeros(q.shape))
        with self.assertRaisesRegex(TypeError, "q is being traced by JAX"):
            jax.jit(attn.attention)(q, k, v)
        out = np.empty(q.shape, np.float32)  # an array of another library can be written
        self.assertIs(attn.attention(q, k, v, out=out), out)
        np.testing.assert_array_equal(out, np.asarray(attn.attention(q, k, v)))


if __name__ == "__main__":
    unittest.main()
