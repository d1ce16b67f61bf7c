"""attn on PyTorch tensors: values against PyTorch's own attention, no copies, what is refused, torch.compile through the
registered operators. The GPU part runs where there is one and this build has a CUDA backend."""
import threading
import unittest

import attn
from needs import need

torch = need("torch")
functional = torch.nn.functional


def tensors(seed, sq, sk, hq=4, hk=2, dim=32, batch=2, dtype=torch.float32, device="cpu"):
    torch.manual_seed(seed)
    shapes = ((batch, sq, hq, dim), (batch, sk, hk, dim), (batch, sk, hk, dim))
    return tuple(torch.randn(shape).to(dtype).to(device) for shape in shapes)


def peer(q, k, v, causal=False):
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


class Eager(unittest.TestCase):
    def test_values_and_kind(self):
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)):
            q, k, v = tensors(1, 6, 6, dtype=dtype)
            o, lse = attn.attention(q, k, v, causal="top_left", return_lse=True)
            self.assertEqual((type(o), o.dtype, o.shape), (torch.Tensor, dtype, q.shape))
            self.assertEqual((lse.dtype, lse.shape), (torch.float32, (2, 4, 6)))
            torch.testing.assert_close(o.double(), peer(q, k, v, True), rtol=tolerance, atol=tolerance)

    def test_strided_views_and_layouts(self):
        q, k, v = tensors(2, 6, 10)
        fused = torch.cat([k, v], dim=3)
        want = attn.attention(q, k, v)
        got = attn.attention(q, fused[..., :32], fused[..., 32:])
        self.assertTrue(torch.equal(got, want))
        swapped = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        self.assertTrue(torch.equal(attn.attention(*swapped, layout="bhsd").transpose(1, 2), want))
        out = torch.empty_like(want)
        self.assertIs(attn.attention(q, k, v, out=out), out)
        self.assertTrue(torch.equal(out, want))

    def test_plan_varlen_and_merge(self):
        q, k, v = tensors(3, 6, 10)
        want, want_lse = attn.attention(q, k, v, return_lse=True)
        o, lse = attn.Plan("b2 hq4 hk2 sq6 sk10 d32 fp32 lse")(q, k, v)
        self.assertTrue(torch.equal(o, want) and torch.equal(lse, want_lse))
        cu_q, cu_kv = torch.tensor([0, 6, 12], dtype=torch.int32), torch.tensor([0, 10, 20], dtype=torch.int32)
        packed = attn.varlen_attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cu_q, cu_kv)
        torch.testing.assert_close(packed.view_as(want), want, rtol=1e-5, atol=1e-6)
        parts = [attn.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 4), slice(4, 10))]
        merged, _ = attn.merge([p[0] for p in parts], [p[1] for p in parts])
        torch.testing.assert_close(merged, want, rtol=1e-5, atol=1e-6)

    def test_parameters_and_mixed_libraries(self):
        q, k, v = tensors(4, 6, 10)
        parameter = torch.nn.Parameter(q, requires_grad=False)
        self.assertTrue(torch.equal(attn.attention(parameter, k, v), attn.attention(q, k, v)))
        mixed = attn.attention(q, k.numpy(), v.numpy())
        self.assertIs(type(mixed), torch.Tensor)
        self.assertTrue(torch.equal(mixed, attn.attention(q, k, v)))

    def test_refusals(self):
        q, k, v = tensors(5, 6, 10)
        with self.assertRaisesRegex(ValueError, "requires a gradient"):
            attn.attention(q.clone().requires_grad_(), k, v)
        with torch.no_grad():
            self.assertEqual(attn.attention(q.clone().requires_grad_(), k, v).shape, q.shape)
        with self.assertRaisesRegex(ValueError, "requires a gradient"):  # also when the plan is there already
            attn.attention(q.clone().requires_grad_(), k, v)
        with self.assertRaisesRegex(TypeError, "q dtype is float64"):
            attn.attention(q.double(), k.double(), v.double())
        with self.assertRaisesRegex(NotImplementedError, "q is on device meta"):
            attn.attention(*(x.to("meta") for x in (q, k, v)))
        with self.assertRaisesRegex(ValueError, "lazily negated"):
            attn.attention(torch._neg_view(q), k, v)
        with self.assertRaises(Exception):
            attn.attention(q.to_sparse(), k, v)

    def test_threads(self):
        cases = [tensors(seed, 33, 33) for seed in range(4)]
        want = [attn.attention(*case) for case in cases]
        wrong = []

        def work(n):
            for _ in range(30):
                if not torch.equal(attn.attention(*cases[n]), want[n]):
                    wrong.append(n)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


@unittest.skipUnless(hasattr(torch.library, "custom_op"), f"torch {torch.__version__} has no torch.library.custom_op")
class Operators(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import attn._torch  # noqa: F401 (torch was imported after attn here)

    def test_they_are_what_pytorch_expects_of_operators(self):
        q, k, v = tensors(6, 5, 7)
        check = ("test_schema", "test_faketensor")
        for layout, causal, lse in (("bshd", "bottom_right", True), ("bhsd", "", False)):
            arguments = (q, k, v, None, None, causal, -1, -1, None, 0.0, lse, layout, "")
            if layout == "bhsd":
                arguments = (*(x.transpose(1, 2) for x in (q, k, v)), *arguments[3:])
            torch.library.opcheck(torch.ops.attn.attention.default, arguments, test_utils=check)
        out = torch.empty_like(q)
        torch.library.opcheck(
            torch.ops.attn.attention_out.default,
            (q, k, v, out, None, None, "", -1, -1, 0.5, 2.0, True, "bshd", ""), test_utils=check,
        )  # fmt: skip
        cu_q, cu_kv = torch.tensor([0, 4, 10], dtype=torch.int32), torch.tensor([0, 7, 14], dtype=torch.int32)
        torch.library.opcheck(
            torch.ops.attn.varlen_attention.default,
            (q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cu_q, cu_kv, 7, 7, None, None, None, "", -1, -1, None,
             0.0, True, ""), test_utils=check,
        )  # fmt: skip

    def test_fake_tensors(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            q, k, v = torch.empty(2, 5, 4, 32), torch.empty(2, 7, 2, 32), torch.empty(2, 7, 2, 16)
            o, lse = attn.attention(q, k, v, return_lse=True)
            self.assertEqual((o.shape, lse.shape), ((2, 5, 4, 16), (2, 4, 5)))

    def compiled(self, function):
        torch._dynamo.reset()
        return torch.compile(function, fullgraph=True, backend="aot_eager")

    def test_compile_has_the_call_in_one_graph(self):
        q, k, v = tensors(7, 6, 10)

        def block(q, k, v):
            o, lse = attn.attention(q * 2, k, v, causal="bottom_right", window=(3, None), softcap=2.0, return_lse=True)
            return o + 1, lse * 2

        o, lse = self.compiled(block)(q, k, v)
        want, want_lse = block(q, k, v)
        self.assertTrue(torch.equal(o, want) and torch.equal(lse, want_lse))

    def test_compile_with_out(self):
        q, k, v = tensors(8, 6, 10)

        def block(q, k, v, out):
            attn.attention(q, k, v, out=out)
            return out * 2

        out = torch.zeros_like(q)
        got = self.compiled(block)(q, k, v, out)
        want = attn.attention(q, k, v)
        self.assertTrue(torch.equal(out, want) and torch.equal(got, want * 2))

    def test_compile_varlen(self):
        q, k, v = tensors(9, 6, 10)
        cu_q, cu_kv = torch.tensor([0, 6, 12], dtype=torch.int32), torch.tensor([0, 10, 20], dtype=torch.int32)

        def block(q, k, v, cu_q, cu_kv):
            return attn.varlen_attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cu_q, cu_kv, 6, 10)

        got = self.compiled(block)(q, k, v, cu_q, cu_kv)
        self.assertTrue(torch.equal(got, block(q, k, v, cu_q, cu_kv)))

    def test_compile_says_what_is_wrong(self):
        q, k, v = tensors(10, 6, 10)
        with self.assertRaisesRegex(Exception, "alignment is unset"):
            self.compiled(lambda q, k, v: attn.attention(q, k, v, window=(1, 1)))(q, k, v)


def cuda_backend():
    if not torch.cuda.is_available():
        return "no GPU that PyTorch can use"
    try:
        attn.Plan("sq128 d64 bf16", backend="cuda")
    except attn.AttnError as error:
        return f"the CUDA backend cannot be used: {error}"
    return None


@unittest.skipIf(cuda_backend(), cuda_backend() or "")
class Gpu(unittest.TestCase):
    """Reports B35 and B38: the same bits each time; work on the caller's stream; graphs replay with new contents."""

    def test_values_on_a_side_stream(self):
        q, k, v = tensors(11, 128, 128, hq=8, hk=8, dim=64, dtype=torch.bfloat16, device="cuda")
        want = peer(q, k, v)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            late = torch.zeros_like(q)
            torch.cuda._sleep(50_000_000)
            late.copy_(q)
            o = attn.attention(late, k, v)
        stream.synchronize()
        torch.testing.assert_close(o.double(), want, rtol=2e-2, atol=2e-2)

    def test_same_bits_each_time(self):
        q, k, v = tensors(12, 512, 512, hq=8, hk=2, dim=128, dtype=torch.bfloat16, device="cuda")
        first = attn.attention(q, k, v, causal="bottom_right")
        for _ in range(50):
            self.assertTrue(torch.equal(attn.attention(q, k, v, causal="bottom_right"), first))

    def test_graph_replays_with_new_contents(self):
        q, k, v = tensors(13, 256, 256, hq=8, hk=8, dim=64, dtype=torch.bfloat16, device="cuda")
        out = torch.empty_like(q)
        plan = attn.Plan("b2 hq8 hk8 sq256 sk256 d64 bf16", backend="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            plan(q, k, v, out=out)
        new = tensors(14, 256, 256, hq=8, hk=8, dim=64, dtype=torch.bfloat16, device="cuda")
        for old, fresh in zip((q, k, v), new):
            old.copy_(fresh)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(out, plan(*new)))

    def test_host_tensors_are_refused(self):
        q, k, v = tensors(15, 128, 128, hq=8, hk=8, dim=64, dtype=torch.bfloat16, device="cuda")
        with self.assertRaisesRegex(ValueError, "k is on the host"):
            attn.attention(q, k.cpu(), v)


if __name__ == "__main__":
    unittest.main()
