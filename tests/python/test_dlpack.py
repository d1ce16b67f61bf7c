"""DLPack, by capsules made by hand. The cases are those of public reports: NVIDIA/cuda-python#2592 and cupy/cupy#2095
(byte_offset ignored: another slice was read; strides NULL crashed), iree-org/iree PR#21153 (a consumer that did not
give the tensor back, or twice)."""
import ctypes
import gc
import unittest

import attn
from attn import _dlpack

_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_DELETER = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)

SHAPE = (1, 8, 2, 16)
COUNT = 8 * 2 * 16


class Producer:
    """A tensor of floats with every field of DLTensor free to choose; counts how often its deleter runs."""

    def __init__(self, shape=SHAPE, strides=None, values=None, *, byte_offset=0, data_bytes_before=0, device=(1, 0),
                 dtype=(2, 32, 1), versioned=False, version=(1, 0), flags=0, null_deleter=False):
        size = 1
        for n in shape:
            size *= n
        values = [((i * 37) % 64) / 32 - 1 for i in range(size)] if values is None else values
        before = data_bytes_before // 4
        self.memory = (ctypes.c_float * (before + len(values)))(*([1e9] * before), *values)
        self.shape_memory = (ctypes.c_int64 * len(shape))(*shape)
        self.strides_memory = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self.deleted = 0
        self.device = device
        self.asked = []
        self.deleter = _DELETER(self._delete)
        cls = _dlpack.DLManagedTensorVersioned if versioned else _dlpack.DLManagedTensor
        self.managed = cls()
        self.managed.deleter = None if null_deleter else ctypes.cast(self.deleter, ctypes.c_void_p).value
        tensor = self.managed.dl_tensor
        tensor.data = ctypes.addressof(self.memory)
        tensor.device_type, tensor.device_id = device
        tensor.ndim = len(shape)
        tensor.code, tensor.bits, tensor.lanes = dtype
        tensor.shape = ctypes.cast(self.shape_memory, ctypes.POINTER(ctypes.c_int64))
        if strides is not None:
            tensor.strides = ctypes.cast(self.strides_memory, ctypes.POINTER(ctypes.c_int64))
        tensor.byte_offset = byte_offset
        self.name = b"dltensor_versioned" if versioned else b"dltensor"
        if versioned:
            self.managed.major, self.managed.minor = version
            self.managed.flags = flags

    def _delete(self, address):
        assert address == ctypes.addressof(self.managed)
        self.deleted += 1

    def capsule(self):
        return _new(ctypes.addressof(self.managed), self.name, None)

    def __dlpack__(self, **arguments):
        self.asked.append(arguments)
        return self.capsule()

    def __dlpack_device__(self):
        return self.device


class LegacyProducer(Producer):
    """From before DLPack 1.0: no max_version."""

    def __dlpack__(self, stream=None):
        return self.capsule()


def floats(producer):
    return list(producer.memory)


def run(q, k=None, v=None, **options):
    """Attention with a result that the caller brings; returns its values."""
    out = Producer(SHAPE, values=[7.0] * COUNT)
    k = Producer() if k is None else k
    v = Producer() if v is None else v
    attn.attention(q, k, v, out=out, **options)
    assert k.deleted == 1 and v.deleted == 1 and out.deleted == 1
    return floats(out)


class Right(unittest.TestCase):
    def setUp(self):
        self.wanted = run(Producer())

    def test_the_result_is_attention(self):
        # v constant along the keys: O is v whatever q and k are.
        v = Producer(values=[float(i % 32) for i in range(COUNT)])
        for got, want in zip(run(Producer(), Producer(), v), [float(i % 32) for i in range(COUNT)]):
            self.assertAlmostEqual(got, want, 4)

    def test_byte_offset_is_honoured(self):
        q = Producer(byte_offset=64, data_bytes_before=64)
        self.assertEqual(run(q), self.wanted)
        self.assertEqual(q.deleted, 1)
        out = Producer(SHAPE, values=[7.0] * COUNT, byte_offset=64, data_bytes_before=64)
        attn.attention(Producer(), Producer(), Producer(), out=out)
        self.assertEqual(floats(out)[16:], self.wanted)
        self.assertEqual(floats(out)[:16], [1e9] * 16)  # what lies before the tensor is left alone

    def test_null_strides_are_compact_row_major(self):
        self.assertEqual(run(Producer(strides=(256, 32, 16, 1))), self.wanted)
        self.assertEqual(run(Producer(strides=None)), self.wanted)

    def test_strides_of_size_1_axes_do_not_matter(self):
        for stride in (0, 1, -5, 2**40):
            self.assertEqual(run(Producer(strides=(stride, 32, 16, 1))), self.wanted)

    def test_zero_and_negative_strides(self):
        k = Producer(strides=(0, 0, 16, 1))  # one key row for all: P is uniform
        self.assertEqual(k.managed.dl_tensor.strides[1], 0)
        one_row = floats(Producer())[:32]
        self.assertEqual(run(Producer(), k), run(Producer(), Producer(values=one_row * 8)))
        values = floats(Producer())
        rows = [values[32 * i : 32 * i + 32] for i in range(8)]
        backwards = Producer(values=[x for row in reversed(rows) for x in row], strides=(256, -32, 16, 1),
                             byte_offset=7 * 32 * 4)  # fmt: skip
        self.assertEqual(run(Producer(), backwards), self.wanted)

    def test_versioned_and_legacy_capsules(self):
        q = Producer(versioned=True, flags=_dlpack.READ_ONLY)  # read-only inputs are fine
        self.assertEqual(run(q), self.wanted)
        self.assertEqual((q.deleted, q.asked), (1, [{"max_version": (1, 0)}]))
        q = Producer(versioned=True, version=(1, 9))  # a newer minor version only adds
        self.assertEqual(run(q), self.wanted)
        q = LegacyProducer()
        self.assertEqual(run(q), self.wanted)
        self.assertEqual(q.deleted, 1)
        self.assertEqual(run(Producer(null_deleter=True)), self.wanted)

    def test_bare_capsules(self):
        q = Producer()
        self.assertEqual(run(q.capsule()), self.wanted)
        self.assertEqual(q.deleted, 1)

    def test_bf16_code(self):
        def bf16(shape=SHAPE, bits=0x3F80):
            return Producer(shape, values=[0.0] * (COUNT // 2), dtype=(4, 16, 1)), bits

        q, _ = bf16()
        out = Producer(SHAPE, values=[7.0] * (COUNT // 2), dtype=(4, 16, 1))
        v = Producer(SHAPE, values=[0.0] * (COUNT // 2), dtype=(4, 16, 1))
        ctypes.memset(v.memory, 0x3F, ctypes.sizeof(v.memory))  # 0x3F3F: 0.74609375
        attn.attention(q, bf16()[0], v, out=out)
        self.assertEqual(bytes(out.memory), b"\x3f\x3f" * COUNT)

    def test_many_calls_give_every_tensor_back_once(self):
        for _ in range(50):
            q = Producer()
            run(q)
            self.assertEqual(q.deleted, 1)
            del q
        gc.collect()


class Refused(unittest.TestCase):
    def refused(self, pattern, q, error=attn.AttnError, deleted=1, **options):
        out = Producer(SHAPE, values=[7.0] * COUNT)
        with self.assertRaisesRegex(error, pattern):
            attn.attention(q, Producer(), Producer(), out=out, **options)
        gc.collect()
        self.assertEqual(floats(out), [7.0] * COUNT, "something was written")
        if isinstance(q, Producer):
            self.assertEqual(q.deleted, deleted)

    def test_lanes(self):
        self.refused("q has a dtype of 2 lanes", Producer(dtype=(2, 32, 2)), TypeError)

    def test_dtypes(self):
        self.refused("q dtype is float64", Producer(dtype=(2, 64, 1)), TypeError)
        self.refused("q dtype is int32", Producer(dtype=(0, 32, 1)), TypeError)
        self.refused("q dtype is bool8", Producer(dtype=(6, 8, 1)), TypeError)
        self.refused("q dtype is code 200 of 8", Producer(dtype=(200, 8, 1)), TypeError)

    def test_dimensions(self):
        self.refused("q has 3 axes", Producer(shape=(8, 2, 16)))
        self.refused("q has 0 axes", Producer(shape=()))
        bad = Producer()
        bad.managed.dl_tensor.ndim = -1
        self.refused("q has -1 dimensions", bad)

    def test_devices(self):
        # Refused before a capsule is asked for, so that there is none to give back.
        for device, name in ((99, "unknown"), (10, "rocm"), (4, "opencl")):
            self.refused(f"device type {device} .{name}", Producer(device=(device, 0)), attn.UnsupportedError, deleted=0)
        # A bare capsule says it only then.
        producer = Producer(device=(99, 0))
        self.refused("device type 99", producer.capsule(), attn.UnsupportedError)
        self.assertEqual(producer.deleted, 1)

    def test_used_capsule(self):
        producer = Producer()
        capsule = producer.capsule()
        run(capsule)
        self.refused("used before", capsule, TypeError)
        self.assertEqual(producer.deleted, 1)
        self.refused("of no DLPack tensor", _new(8, b"something else", None), TypeError)

    def test_other_major_version(self):
        self.refused("version 2.0", Producer(versioned=True, version=(2, 0)), attn.UnsupportedError)

    def test_read_only_out(self):
        out = Producer(versioned=True, flags=_dlpack.READ_ONLY)
        with self.assertRaisesRegex(ValueError, "out is a read-only array"):
            attn.attention(Producer(), Producer(), Producer(), out=out)
        self.assertEqual(out.deleted, 1)

    def test_all_are_given_back_when_a_later_one_is_refused(self):
        q, k, v = Producer(), Producer(), Producer(dtype=(2, 32, 4))
        with self.assertRaises(TypeError):
            attn.attention(q, k, v, out=Producer())
        self.assertEqual((q.deleted, k.deleted, v.deleted), (1, 1, 1))
        q, k, v, out = Producer(), Producer(shape=(1, 8, 2, 8)), Producer(), Producer()
        with self.assertRaises(ValueError):
            attn.attention(q, k, v, out=out)
        self.assertEqual((q.deleted, k.deleted, v.deleted, out.deleted), (1, 1, 1, 1))

    def test_no_way_to_make_a_result(self):
        q = Producer()
        with self.assertRaisesRegex(TypeError, "out is None, and a Producer"):
            attn.attention(q, Producer(), Producer())
        self.assertEqual(q.deleted, 1)


class Streams(unittest.TestCase):
    def test_the_stream_is_handed_over(self):
        # No GPU is needed to see what a producer on one is asked for.
        q = Producer(device=(2, 0))
        _dlpack.borrow("q", q).release()
        _dlpack.borrow("q", q, 0).release()
        _dlpack.borrow("q", q, 140737000).release()
        self.assertEqual([asked["stream"] for asked in q.asked], [1, 1, 140737000])
        q = Producer()  # on the CPU there is none
        _dlpack.borrow("q", q).release()
        self.assertNotIn("stream", q.asked[0])


if __name__ == "__main__":
    unittest.main()
