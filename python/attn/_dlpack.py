"""DLPack (https://dmlc.github.io/dlpack/latest/python_spec.html) as a consumer, in ctypes: the legacy DLManagedTensor
and the versioned one. What is borrowed is given back exactly once, whatever is refused in between.
Tested in tests/python/test_dlpack.py with hand-made capsules (reports dlpack B17)."""
from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object
from typing import Any, Optional, Tuple

from ._errors import ArrayTypeError, UnsupportedError

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
DEVICE_NAMES = {1: "cpu", 2: "cuda", 3: "cuda pinned host", 4: "opencl", 7: "vulkan", 8: "metal", 9: "vpi", 10: "rocm",
                11: "rocm pinned host", 12: "extension", 13: "cuda managed", 14: "oneapi", 15: "webgpu", 16: "hexagon",
                17: "maia"}  # fmt: skip
_CODE_NAMES = {0: "int", 1: "uint", 2: "float", 3: "opaque", 4: "bfloat", 5: "complex", 6: "bool"}
_DTYPES = {(2, 32): "fp32", (2, 16): "fp16", (4, 16): "bf16", (0, 32): "int32", (1, 16): "uint16", (1, 8): "uint8"}
READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", c_void_p), ("deleter", c_void_p)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("dl_tensor", DLTensor),
    ]


# The deleter may touch Python objects, so the interpreter's lock is kept while it runs.
_Deleter = ctypes.PYFUNCTYPE(None, c_void_p)

_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, py_object, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, py_object, c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
_new_capsule = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_Capsule = type(_new_capsule(1, None, None))

# A capsule keeps the pointer to its name, so these bytes must live as long as the process.
_LEGACY, _VERSIONED = b"dltensor", b"dltensor_versioned"
_USED_LEGACY, _USED_VERSIONED = b"used_dltensor", b"used_dltensor_versioned"


def is_capsule(x: object) -> bool:
    return type(x) is _Capsule


class Borrowed:
    """A tensor taken out of a capsule: what it is, and `release`, to be called when the work is done."""

    __slots__ = ("pointer", "shape", "strides", "dtype", "device", "readonly", "_managed", "_deleter")

    def __init__(self, name: str, capsule: Any) -> None:
        self._managed: Optional[int] = None
        if _is_valid(capsule, _VERSIONED):
            address = _get_pointer(capsule, _VERSIONED)
            versioned = DLManagedTensorVersioned.from_address(address)
            _set_name(capsule, _USED_VERSIONED)
            self._managed, self._deleter = address, versioned.deleter
            if versioned.major != 1:
                # Of another major version only the position of the deleter is fixed.
                found = f"{versioned.major}.{versioned.minor}"
                self.release()
                raise UnsupportedError(f"{name} is a DLPack tensor of version {found}; allowed: 1.x and older")
            tensor, self.readonly = versioned.dl_tensor, bool(versioned.flags & READ_ONLY)
        elif _is_valid(capsule, _LEGACY):
            address = _get_pointer(capsule, _LEGACY)
            legacy = DLManagedTensor.from_address(address)
            _set_name(capsule, _USED_LEGACY)
            self._managed, self._deleter = address, legacy.deleter
            tensor, self.readonly = legacy.dl_tensor, False
        else:
            used = _is_valid(capsule, _USED_LEGACY) or _is_valid(capsule, _USED_VERSIONED)
            raise ArrayTypeError(
                f"{name} is a DLPack capsule that was used before; allowed: a fresh one, each can be taken once"
                if used
                else f"{name} is a capsule, but of no DLPack tensor; allowed: 'dltensor' or 'dltensor_versioned'"
            )
        try:
            self._read(name, tensor)
        except BaseException:
            self.release()
            raise

    def _read(self, name: str, tensor: DLTensor) -> None:
        if tensor.lanes != 1:
            raise ArrayTypeError(f"{name} has a dtype of {tensor.lanes} lanes; allowed: 1")
        code, bits = tensor.code, tensor.bits
        self.dtype = _DTYPES.get((code, bits), f"{_CODE_NAMES.get(code, f'code {code} of ')}{bits}")
        if not 0 <= tensor.ndim <= 64:
            raise ArrayTypeError(f"{name} has {tensor.ndim} dimensions; allowed: 0 to 64")
        self.shape = tuple(tensor.shape[: tensor.ndim])
        if tensor.strides:
            self.strides = tuple(tensor.strides[: tensor.ndim])
        else:  # compact, row-major
            strides, step = [], 1
            for size in reversed(self.shape):
                strides.append(step)
                step *= size
            self.strides = tuple(reversed(strides))
        self.device: Tuple[int, int] = (tensor.device_type, tensor.device_id)
        self.pointer = (tensor.data or 0) + tensor.byte_offset

    def release(self) -> None:
        """Gives the tensor back to its producer; further calls do nothing."""
        managed, self._managed = self._managed, None
        if managed is not None and self._deleter:
            _Deleter(self._deleter)(managed)

    def __del__(self) -> None:
        self.release()


def borrow(name: str, x: Any, stream: Optional[int] = None) -> Borrowed:
    """Takes a capsule, or asks an object with `__dlpack__` for one. On CUDA devices the producer makes `stream` (1: the
    legacy default stream) wait for whatever it still has to do to the data."""
    if is_capsule(x):
        return Borrowed(name, x)
    arguments = {}
    device = getattr(x, "__dlpack_device__", None)
    if device is not None:
        kind = int(device()[0])
        if kind not in (CPU, CUDA, CUDA_HOST, CUDA_MANAGED):
            raise UnsupportedError(
                f"{name} is on device type {kind} ({DEVICE_NAMES.get(kind, 'unknown')}); allowed: cpu or cuda memory"
            )
        if kind in (CUDA, CUDA_MANAGED):
            arguments["stream"] = 1 if not stream else stream
    try:
        capsule = x.__dlpack__(max_version=(1, 0), **arguments)
    except TypeError:  # a producer from before DLPack 1.0
        capsule = x.__dlpack__(**arguments)
    return Borrowed(name, capsule)
