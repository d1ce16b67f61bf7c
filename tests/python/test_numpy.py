"""attention, varlen_attention and merge on NumPy arrays, against float64 and by hand; strides, layouts, bf16."""
import math
import unittest

import attn
import reference
from needs import need

np = need("numpy")

OPTIONS = [
    {},
    {"causal": "bottom_right"},
    {"causal": "top_left"},
    {"window": (3, 1), "alignment": "bottom_right"},
    {"window": (2, None), "causal": "top_left"},
    {"window": (0, 0), "alignment": "top_left"},
    {"scale": -0.7},
    {"scale": 0.0},
    {"softcap": 1.5},
    {"sinks": np.array([0.5, -1, 2, 0], np.float32)},
    {"alibi_slopes": np.array([0.5, 0.25, -0.125, 1], np.float32), "alignment": "bottom_right"},
    {"alibi_slopes": np.arange(8, dtype=np.float32).reshape(2, 4) / 8, "causal": "bottom_right"},
]


class Attention(unittest.TestCase):
    def near(self, got, wanted, tolerance=2e-5):
        np.testing.assert_allclose(np.asarray(got, np.float64), wanted, rtol=tolerance, atol=tolerance)

    def test_by_hand(self):
        q = np.array([1, 0], np.float32).reshape(1, 1, 1, 2)
        k = np.eye(2, dtype=np.float32).reshape(1, 2, 1, 2)
        v = np.array([4, 0, 0, 8], np.float32).reshape(1, 2, 1, 2)
        o, lse = attn.attention(q, k, v, scale=math.log(3), return_lse=True)
        self.assertIs(type(o), np.ndarray)
        self.assertEqual((o.shape, o.dtype, lse.shape, lse.dtype), ((1, 1, 1, 2), np.float32, (1, 1, 1), np.float32))
        self.near(o.ravel(), [3, 2])
        self.near(lse.ravel(), [math.log(4)])

    def test_every_option_has_its_effect(self):
        seen = []
        for options in OPTIONS:
            for sq, sk in ((5, 9), (9, 5), (1, 12)):
                with self.subTest(sq=sq, sk=sk, **options):
                    q, k, v = reference.tensors(sq * 100 + sk, sq, sk)
                    o, lse = attn.attention(q, k, v, return_lse=True, **options)
                    wanted, wanted_lse = reference.attention(q, k, v, **options)
                    self.near(o, wanted)
                    self.near(lse, wanted_lse)
                    if (sq, sk) == (5, 9):
                        seen.append(o)
        for i, a in enumerate(seen):
            for b in seen[:i]:
                self.assertFalse(np.array_equal(a, b))

    def test_fp16_and_head_dim_v(self):
        q, k, v = reference.tensors(1, 7, 11, dim=32, dim_v=24, dtype=np.float16)
        o = attn.attention(q, k, v)
        self.assertEqual((o.dtype, o.shape), (np.float16, (2, 7, 4, 24)))
        self.near(o, reference.attention(q, k, v)[0], 4e-3)

    def test_layouts_agree_bit_for_bit(self):
        q, k, v = reference.tensors(2, 6, 10)
        o, lse = attn.attention(q, k, v, causal="bottom_right", return_lse=True)
        swapped = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
        o2, lse2 = attn.attention(*swapped, causal="bottom_right", return_lse=True, layout="bhsd")
        np.testing.assert_array_equal(o2, o.swapaxes(1, 2))
        np.testing.assert_array_equal(lse2, lse)

    def test_strides_change_nothing(self):
        q, k, v = reference.tensors(3, 6, 10)
        wanted = attn.attention(q, k, v)
        wide = np.full((2, 10, 2, 48), np.nan, np.float32)
        wide[..., 16:32] = k
        k_view = wide[..., 16:32]  # rows with other data between them
        v_view = np.ascontiguousarray(v[:, ::-1])[:, ::-1]  # a negative stride
        q_view = np.ascontiguousarray(q.swapaxes(0, 2)).swapaxes(0, 2)
        self.assertEqual((k_view.strides[1] > k.strides[1], v_view.strides[1] < 0), (True, True))
        np.testing.assert_array_equal(attn.attention(q_view, k_view, v_view), wanted)
        one = np.broadcast_to(k[:1, :, :1], k.shape)  # strides of 0
        np.testing.assert_array_equal(attn.attention(q, one, v), attn.attention(q, np.ascontiguousarray(one), v))
        for x in (q, k, v):
            x.flags.writeable = False
        np.testing.assert_array_equal(attn.attention(q, k, v), wanted)

    def test_out_is_written_where_it_lies(self):
        q, k, v = reference.tensors(4, 6, 10)
        whole = np.full((2, 8, 4, 20), 7, np.float32)
        out = whole[:, 1:7, :, 2:18]
        self.assertIs(attn.attention(q, k, v, out=out), out)
        np.testing.assert_array_equal(out, attn.attention(q, k, v))
        outside = np.ones(whole.shape, bool)
        outside[:, 1:7, :, 2:18] = False
        self.assertTrue((whole[outside] == 7).all())

    def test_bf16_of_ml_dtypes_and_as_uint16(self):
        q, k, v = reference.tensors(5, 6, 10)
        as_bits = [((x.view(np.uint32) + 0x8000) >> 16).astype(np.uint16) for x in (q, k, v)]
        rounded = [(x.astype(np.uint32) << 16).view(np.float32) for x in as_bits]
        wanted, _ = reference.attention(*rounded)
        o = attn.attention(*as_bits, dtype="bf16")
        self.assertEqual(o.dtype, np.uint16)
        self.near((o.astype(np.uint32) << 16).view(np.float32), wanted, 2e-2)
        with self.assertRaisesRegex(TypeError, "uint16.*dtype='bf16'"):
            attn.attention(*as_bits)
        plan = attn.Plan("b2 hq4 hk2 sq6 sk10 d16 bf16")
        np.testing.assert_array_equal(plan(*as_bits), o)
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("ml_dtypes is not installed: only uint16 was tested")
        typed = attn.attention(*(x.view(ml_dtypes.bfloat16) for x in as_bits))
        self.assertEqual(typed.dtype, ml_dtypes.bfloat16)
        np.testing.assert_array_equal(typed.view(np.uint16), o)

    def test_empty_shapes(self):
        q, k, v = reference.tensors(6, 3, 0)
        o, lse = attn.attention(q, k, v, return_lse=True)
        self.assertTrue((o == 0).all() and (lse == -np.inf).all())
        q, k, v = reference.tensors(6, 0, 3)
        self.assertEqual(attn.attention(q, k, v).shape, (2, 0, 4, 16))
        q, k, v = reference.tensors(6, 3, 3, batch=0)
        self.assertEqual(attn.attention(q, k, v).shape, (0, 3, 4, 16))

    def test_explain_of_arrays(self):
        q, k, v = reference.tensors(7, 6, 10)
        self.assertIn("b2 hq4 hk2 sq6 sk10 d16 fp32 causal=br", attn.explain(q, k, v, causal="bottom_right"))


class Refusals(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = reference.tensors(8, 6, 10)

    def refused(self, pattern, *arrays, error=ValueError, **options):
        out = np.full((2, 6, 4, 16), 7, np.float32)
        with self.assertRaisesRegex(error, pattern):
            attn.attention(*(arrays or (self.q, self.k, self.v)), out=out, **options)
        self.assertTrue((out == 7).all(), "something was written")

    def test_options(self):
        self.refused("alignment is unset", window=(3, 3))
        self.refused("alignment is unset", alibi_slopes=np.ones(4, np.float32))
        self.refused("causal is True", causal=True)
        self.refused("causal is 'yes'", causal="yes")
        self.refused("alignment is 'top_left'", causal="bottom_right", alignment="top_left")
        self.refused("window is 5", window=5, causal="top_left")
        self.refused("window_left", window=(-2, 0), causal="top_left")
        self.refused("softcap", softcap=-1.0)
        self.refused("softmax_scale", scale=math.nan)
        self.refused("layout is 'bdhs'", layout="bdhs")
        self.refused("dtype is 'fp16'", dtype="fp16")
        self.refused("dtype is 'f8'", dtype="f8")

    def test_arrays(self):
        q, k, v = self.q, self.k, self.v
        self.refused("q dtype is float64", q.astype(np.float64), k, v, error=TypeError)
        self.refused("k dtype is", q, k.astype(np.float16), v)
        self.refused("q has 3 axes", q[0], k, v)
        self.refused("k shape", q, k[:1], v)
        self.refused("heads_q", q[:, :, :3], k, v)
        self.refused("foreign byte order", q.astype(">f4"), k, v, error=TypeError)
        self.refused("stride of its last axis", q, np.asfortranarray(k), v)
        self.refused("sinks shape", sinks=np.ones(3, np.float32))
        self.refused("sinks dtype", sinks=np.ones(4), error=TypeError)
        self.refused("alibi_slopes has a stride", alibi_slopes=np.ones(8, np.float32)[::2], alignment="top_left")
        bytes_ = np.zeros(q.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(q.shape)
        self.refused("q address", bytes_, k, v)

    def test_out(self):
        out = np.empty((2, 6, 4, 16), np.float32)
        out.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "out is a read-only array"):
            attn.attention(self.q, self.k, self.v, out=out)
        with self.assertRaisesRegex(ValueError, "o shape"):
            attn.attention(self.q, self.k, self.v, out=np.empty((2, 6, 4, 8), np.float32))
        with self.assertRaisesRegex(ValueError, "share an address"):
            attn.attention(self.q, self.k, self.v, out=np.lib.stride_tricks.as_strided(
                np.empty((1, 6, 4, 16), np.float32), (2, 6, 4, 16), (0, 256, 64, 4)))
        wanted = attn.attention(self.q, self.k, self.v)  # the call after refused ones works
        np.testing.assert_allclose(wanted, reference.attention(self.q, self.k, self.v)[0], rtol=1e-5, atol=1e-5)


class Varlen(unittest.TestCase):
    def test_each_sequence_is_its_own_call(self):
        rng = np.random.default_rng(9)
        lengths_q, lengths_kv = [3, 0, 7, 1], [5, 4, 7, 0]
        cu_q, cu_kv = (np.concatenate([[0], np.cumsum(n)]).astype(np.int32) for n in (lengths_q, lengths_kv))
        q = rng.standard_normal((11, 4, 16)).astype(np.float32)
        k, v = (rng.standard_normal((16, 2, 16)).astype(np.float32) for _ in range(2))
        for options in ({}, {"causal": "bottom_right"}, {"sinks": np.ones(4, np.float32)}):
            o, lse = attn.varlen_attention(q, k, v, cu_q, cu_kv, return_lse=True, **options)
            self.assertEqual((o.shape, lse.shape), ((11, 4, 16), (4, 11)))
            for b in range(4):
                rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_kv[b], cu_kv[b + 1])
                want, want_lse = reference.attention(q[None, rows], k[None, keys], v[None, keys], **options)
                np.testing.assert_allclose(o[rows], want[0], rtol=2e-5, atol=2e-5)
                np.testing.assert_allclose(lse[:, rows], want_lse[0], rtol=2e-5, atol=2e-5)
            np.testing.assert_array_equal(attn.varlen_attention(q, k, v, cu_q, cu_kv, 20, 20, **options), o)

    def test_seqused(self):
        q, k, v = reference.tensors(10, 4, 6, batch=1)
        cu_q, cu_kv = np.array([0, 4], np.int32), np.array([0, 6], np.int32)
        o = attn.varlen_attention(q[0], k[0], v[0], cu_q, cu_kv, seqused_kv=np.array([5], np.int32))
        np.testing.assert_allclose(o, reference.attention(q, k[:, :5], v[:, :5])[0][0], rtol=2e-5, atol=2e-5)

    def test_refusals(self):
        q, k, v = reference.tensors(11, 4, 6, batch=1)
        cu_q, cu_kv = np.array([0, 4], np.int32), np.array([0, 6], np.int32)
        bad = [
            ("cu_seqlens_q is int64", ValueError, (cu_q.astype(np.int64), cu_kv)),
            (r"cu_seqlens_kv shape is \(3,\)", ValueError, (cu_q, np.array([0, 3, 6], np.int32))),
            (r"cu_seqlens_q\[1\] is 5", ValueError, (np.array([0, 5], np.int32), cu_kv)),
            (r"cu_seqlens_kv\[0\] is 1", ValueError, (cu_q, np.array([1, 6], np.int32))),
        ]
        for pattern, error, offsets in bad:
            with self.assertRaisesRegex(error, pattern):
                attn.varlen_attention(q[0], k[0], v[0], *offsets)
        with self.assertRaisesRegex(ValueError, "at most seqlen_q, 3"):
            attn.varlen_attention(q[0], k[0], v[0], cu_q, cu_kv, 3)


class Merge(unittest.TestCase):
    def test_parts_make_the_whole(self):
        q, k, v = reference.tensors(12, 5, 12)
        want, want_lse = attn.attention(q, k, v, return_lse=True)
        parts = [attn.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 3), slice(3, 11), slice(11, 12))]
        o, lse = attn.merge([p[0] for p in parts], [p[1] for p in parts])
        np.testing.assert_allclose(o, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-6)
        out = parts[1][0]  # in place
        self.assertIs(attn.merge([p[0] for p in parts], [p[1] for p in parts], out=out, return_lse=False), out)
        np.testing.assert_array_equal(out, o)

    def test_layout_packed_and_dtype(self):
        q, k, v = reference.tensors(13, 5, 8)
        a, la = attn.attention(q, k[:, :4], v[:, :4], return_lse=True)
        b, lb = attn.attention(q, k[:, 4:], v[:, 4:], return_lse=True)
        o, lse = attn.merge([a, b], [la, lb])
        o2, lse2 = attn.merge([a.swapaxes(1, 2), b.swapaxes(1, 2)], [la, lb], layout="bhsd")
        np.testing.assert_array_equal(o2, o.swapaxes(1, 2))
        np.testing.assert_array_equal(lse2, lse)
        o3, lse3 = attn.merge([a[0], b[0]], [la[0], lb[0]])  # packed rows
        np.testing.assert_array_equal(o3, o[0])
        np.testing.assert_array_equal(lse3, lse[0])
        half = np.empty(o.shape, np.float16)
        attn.merge([a, b], [la, lb], out=half)
        np.testing.assert_array_equal(half, o.astype(np.float16))

    def test_empty_rows_and_refusals(self):
        zero, nothing = np.zeros((1, 1, 1, 2), np.float32), np.full((1, 1, 1), -np.inf, np.float32)
        o, lse = attn.merge([zero, zero], [nothing, nothing])
        self.assertTrue((o == 0).all() and (lse == -np.inf).all())
        with self.assertRaisesRegex(ValueError, "0 and 0 arrays"):
            attn.merge([], [])
        with self.assertRaisesRegex(ValueError, r"partials\[1\].o shape"):
            attn.merge([zero, np.zeros((1, 2, 1, 2), np.float32)], [nothing, nothing])


if __name__ == "__main__":
    unittest.main()
