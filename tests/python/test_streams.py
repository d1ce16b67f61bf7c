"""The GPU road of the package, without a GPU: arrays that say they lie on CUDA devices, and a library call that is only
recorded. Which stream a call goes to, that foreign arrays are ordered before it, where scratch comes from, which mixtures
are refused (reports B37 and B38: tensors on different devices; work on the default stream instead of the caller's)."""
import ctypes
import unittest
from unittest import mock

import attn
from attn import _arrays, _plan
from test_dlpack import Producer

SHAPE = (1, 8, 2, 16)


class FakeArray:
    """Of a library that has streams."""

    def __init__(self, shape=SHAPE, dtype="fp32", device=(2, 0), address=1 << 20):
        self.shape, self.dtype, self.device, self.address = tuple(shape), dtype, device, address


class FakeKind(_arrays.Kind):
    name = "fake"
    current_stream = 0xABC0

    def __init__(self):
        self.made = []

    def token(self, x):
        return x.shape, x.dtype, x.device

    def pointer(self, x):
        return x.address

    def info(self, name, x):
        strides, step = [], 1
        for n in reversed(x.shape):
            strides.append(step)
            step *= n
        return _arrays.Info(x.shape, strides[::-1], x.dtype, x.device)

    def empty(self, shape, dtype, like):
        array = FakeArray(shape, like.dtype if dtype == "like" else dtype, like.device, (1 << 30) + 17 + len(self.made))
        self.made.append(array)
        return array

    def stream(self, like):
        return self.current_stream


class Streams(unittest.TestCase):
    def setUp(self):
        self.kind = FakeKind()
        self.calls = []
        patches = [mock.patch.dict(_arrays._kinds, {FakeArray: self.kind}), mock.patch.object(_plan, "attn_run", self.record)]
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)
        # What a CUDA build would plan, as far as the package can see it.
        self.plan = attn.Plan("b1 hq2 hk2 sq8 sk8 d16 fp32", backend="cpu")
        self.plan._backend, self.plan._device = "cuda", (2, 0)

    def record(self, handle, tensors, workspace, workspace_bytes, stream):
        views = attn._library.Tensors.from_address(tensors)
        data = [attn._library.TensorView.from_address(getattr(views, name)).data for name in "qkvo"]
        self.calls.append({"stream": stream, "workspace": workspace, "data": data})
        return 0

    def test_the_librarys_current_stream(self):
        q, k, v = (FakeArray(address=(n + 1) << 20) for n in range(3))
        out = self.plan(q, k, v)
        self.assertEqual(self.calls[0]["stream"], 0xABC0)
        self.assertEqual(self.calls[0]["data"], [1 << 20, 2 << 20, 3 << 20, out.address])
        FakeKind.current_stream = 0xDEF0
        self.addCleanup(setattr, FakeKind, "current_stream", 0xABC0)
        self.plan(q, k, v)
        self.assertEqual(self.calls[1]["stream"], 0xDEF0)

    def test_a_stream_of_the_callers_choice(self):
        self.plan(FakeArray(), FakeArray(), FakeArray(), stream=0x1230)
        self.assertEqual(self.calls[0]["stream"], 0x1230)

    def test_scratch_is_the_librarys_and_aligned(self):
        self.plan._workspace_bytes = 1000
        self.plan(FakeArray(), FakeArray(), FakeArray())
        scratch = next(a for a in self.kind.made if a.dtype == "uint8")
        self.assertEqual(self.calls[0]["workspace"] % 256, 0)
        self.assertTrue(scratch.address <= self.calls[0]["workspace"] <= scratch.address + scratch.shape[0] - 1000)

    def test_foreign_arrays_are_ordered_before_the_stream(self):
        k, v = Producer(device=(2, 0)), Producer(device=(2, 0))
        self.plan(FakeArray(), k, v)
        for lent in (k, v):
            self.assertEqual(lent.asked, [{"max_version": (1, 0), "stream": 0xABC0}])
            self.assertEqual(lent.deleted, 1)
        self.assertEqual(self.calls[0]["data"][1], ctypes.addressof(k.memory))

    def test_without_a_known_library_it_is_the_legacy_default_stream(self):
        q, k, v, out = (Producer(device=(2, 0)) for _ in range(4))
        self.plan._workspace_bytes = 100
        with self.assertRaisesRegex(TypeError, "does not say how to make an array"):  # nor where to get scratch
            self.plan(*(Producer(device=(2, 0)) for _ in range(3)), out=Producer(device=(2, 0)))
        small = FakeArray((354,), "uint8")
        with self.assertRaisesRegex(ValueError, r"workspace shape is .354,.; allowed: at least .355,."):
            self.plan(*(Producer(device=(2, 0)) for _ in range(3)), out=Producer(device=(2, 0)), workspace=small)
        self.assertEqual(self.calls, [])
        self.plan(q, k, v, out=out, workspace=FakeArray((355,), "uint8", address=(1 << 20) + 1))
        self.assertEqual(self.calls[0]["workspace"], (1 << 20) + 256)
        self.assertEqual([x.asked[0]["stream"] for x in (q, k, v, out)], [1, 1, 1, 1])
        self.assertEqual((self.calls[0]["stream"], out.deleted), (1, 1))

    def test_mixed_devices_are_refused_before_any_call(self):
        cases = [
            ("k is on CUDA device 1; allowed: CUDA device 0", (FakeArray(), FakeArray(device=(2, 1)), FakeArray())),
            ("v is on the host; allowed: CUDA device 0", (FakeArray(), FakeArray(), FakeArray(device=(1, 0)))),
            ("q is on the host", (FakeArray(device=(3, 0)), FakeArray(), FakeArray())),
            ("k is on CUDA device 1", (FakeArray(), Producer(device=(2, 1)), FakeArray())),
        ]
        for pattern, arrays in cases:
            with self.assertRaisesRegex(ValueError, pattern):
                self.plan(*arrays)
        self.assertEqual(self.calls, [])
        self.plan(FakeArray(), FakeArray(device=(13, 0)), FakeArray())  # managed memory of the same device
        self.assertEqual(len(self.calls), 1)

    def test_attention_asks_for_the_backend_where_the_arrays_are(self):
        with self.assertRaises(attn.AttnError) as caught:  # this build may have a CUDA backend, this machine no GPU
            attn.attention(*(FakeArray(device=(2, 77)) for _ in range(3)))
        self.assertIsInstance(caught.exception, (attn.UnavailableError, attn.UnsupportedError, attn.InvalidArgumentError))
        self.assertEqual(self.calls, [])


if __name__ == "__main__":
    unittest.main()
