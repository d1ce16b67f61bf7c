"""attn.Plan: repeated calls, arrays that change, paged K/V, appends with rotary, threads, and what it refuses."""
import threading
import unittest

import attn
import reference
from needs import need

np = need("numpy")


class Repeated(unittest.TestCase):
    def test_calls_with_other_arrays_of_other_strides(self):
        plan = attn.Plan("b2 hq4 hk2 sq6 sk10 d16 fp32 causal=bottom_right lse", backend="cpu")
        for seed in range(4):
            q, k, v = reference.tensors(seed, 6, 10)
            if seed % 2:
                k = np.ascontiguousarray(k.swapaxes(1, 2)).swapaxes(1, 2)
            o, lse = plan(q, k, v)
            want, want_lse = reference.attention(q, k, v, causal="bottom_right")
            np.testing.assert_allclose(o, want, rtol=2e-5, atol=2e-5)
            np.testing.assert_allclose(lse, want_lse, rtol=2e-5, atol=2e-5)

    def test_out_and_lse_are_those_given(self):
        plan = attn.Plan("b2 hq4 hk2 sq6 sk10 d16 fp32 lse", layout="bhsd")
        q, k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in reference.tensors(5, 6, 10))
        out, lse = np.empty((2, 4, 6, 16), np.float32), np.empty((2, 4, 6), np.float32)
        o, given = plan(q, k, v, out=out, lse=lse)
        self.assertIs(o, out)
        self.assertIs(given, lse)
        np.testing.assert_array_equal(plan(q, k, v)[0], out)

    def test_arguments_of_one_call_do_not_stay_for_the_next(self):
        plan = attn.Plan("b2 hq4 hk2 sq6 sk10 d16 fp32 sinks")
        q, k, v = reference.tensors(6, 6, 10)
        first = plan(q, k, v, sinks=np.ones(4, np.float32))
        with self.assertRaisesRegex(ValueError, "sinks is null"):
            plan(q, k, v)
        np.testing.assert_array_equal(plan(q, k, v, sinks=np.ones(4, np.float32)), first)

    def test_threads_may_share_a_plan(self):
        plan = attn.Plan("b2 hq4 hk2 sq64 sk64 d16 fp32", backend="cpu", threads=1)
        cases = [reference.tensors(seed, 64, 64) for seed in range(4)]
        wanted = [plan(*case) for case in cases]
        wrong = []

        def work(n):
            for _ in range(50):
                if not np.array_equal(plan(*cases[n]), wanted[n]):
                    wrong.append(n)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_refusals_name_the_argument_and_write_nothing(self):
        plan = attn.Plan("b2 hq4 hk2 sq6 sk10 d16 fp32")
        q, k, v = reference.tensors(7, 6, 10)
        out = np.full((2, 6, 4, 16), 7, np.float32)
        for pattern, arrays, options in (
            ("q shape", (q[:, :5], k, v), {}),
            ("v dtype is", (q, k, v.astype(np.float16)), {}),
            ("lse is given", (q, k, v), {"lse": np.empty((2, 4, 6), np.float32)}),
            ("sinks is given", (q, k, v), {"sinks": np.ones(4, np.float32)}),
            ("k_new is given", (q, k, v), {"k_new": k}),
            ("page_table is given", (q, k, v), {"page_table": np.zeros((2, 1), np.int32)}),
        ):
            with self.assertRaisesRegex(ValueError, pattern):
                plan(*arrays, out=out, **options)
        self.assertTrue((out == 7).all())
        np.testing.assert_allclose(plan(q, k, v), reference.attention(q, k, v)[0], rtol=2e-5, atol=2e-5)


class Caches(unittest.TestCase):
    def test_pages_in_any_order(self):
        q, k, v = reference.tensors(8, 3, 12)
        table = np.array([[5, 0, 3], [1, 4, 2]], np.int32)
        pool_k, pool_v = (np.full((6, 4, 2, 16), np.nan, np.float32) for _ in range(2))
        for b in range(2):
            for e in range(3):
                pool_k[table[b, e]], pool_v[table[b, e]] = (x[b, 4 * e : 4 * e + 4] for x in (k, v))
        used = np.array([12, 7], np.int32)
        pool_k[2], pool_v[2] = np.nan, np.nan  # beyond the second sequence's end
        plan = attn.Plan("b2 hq4 hk2 sq3 sk12 d16 fp32 causal=bottom_right seqused page=4 pages=6")
        o = plan(q, pool_k, pool_v, page_table=table, seqused_kv=used)
        for b in range(2):
            n = used[b]
            want, _ = reference.attention(q[b : b + 1], k[b : b + 1, :n], v[b : b + 1, :n], causal="bottom_right")
            np.testing.assert_allclose(o[b], want[0], rtol=2e-5, atol=2e-5)
        with self.assertRaisesRegex(ValueError, r"page_table shape is \(2, 2\); allowed: at least 3"):
            plan(q, pool_k, pool_v, page_table=table[:, :2], seqused_kv=used)
        with self.assertRaisesRegex(ValueError, r"page_table\[0\]\[1\] is 6"):
            plan(q, pool_k, pool_v, page_table=np.where(table == 0, 6, table).astype(np.int32), seqused_kv=used)

    def test_append_with_rotary_steps_like_the_whole(self):
        rng = np.random.default_rng(9)
        steps, dim = 5, 16
        angles = np.arange(steps)[:, None] / 10.0 ** (np.arange(dim // 2) / 4)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        q, k, v = (rng.standard_normal((1, steps, h, dim)).astype(np.float32) for h in (4, 2, 2))

        def rotate(x):
            a, b = x[..., : dim // 2], x[..., dim // 2 :]
            c, s = cos[None, :, None], sin[None, :, None]
            return np.concatenate([a * c - b * s, a * s + b * c], axis=-1)

        want, _ = reference.attention(rotate(q), rotate(k), v, causal="bottom_right")
        cache_k, cache_v = (np.full((1, 8, 2, dim), np.nan, np.float32) for _ in range(2))
        plan = attn.Plan("b1 hq4 hk2 sq1 sk8 d16 fp32 causal=bottom_right seqused new=1 rotary=16,half")
        for t in range(steps):
            o = plan(q[:, t : t + 1], cache_k, cache_v, seqused_kv=np.array([t], np.int32), k_new=k[:, t : t + 1],
                     v_new=v[:, t : t + 1], rotary_cos=cos, rotary_sin=sin)  # fmt: skip
            np.testing.assert_allclose(o[0, 0], want[0, t], rtol=5e-5, atol=5e-5)
        np.testing.assert_array_equal(cache_v[:, :steps], v)
        np.testing.assert_allclose(cache_k[:, :steps], rotate(k), rtol=1e-5, atol=1e-5)
        self.assertTrue(np.isnan(cache_k[:, steps:]).all())

    def test_a_cache_that_may_not_be_written_is_refused(self):
        plan = attn.Plan("b1 hq2 hk2 sq1 sk4 d16 fp32 seqused new=1")
        q, k, v = reference.tensors(10, 1, 4, hq=2, batch=1)
        k.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "k is a read-only array"):
            plan(q, k, v, seqused_kv=np.array([0], np.int32), k_new=q, v_new=q)


if __name__ == "__main__":
    unittest.main()
