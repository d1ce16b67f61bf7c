"""The array libraries: what each needs to be read without a copy, and to get an array of its own back. NumPy, PyTorch,
CuPy and JAX have a class here; anything else comes through DLPack, and through the array API standard's namespace where
a result is to be made. No library is imported that the caller has not imported already.

Tested in tests/python/test_numpy.py, test_torch.py, test_jax.py, test_dlpack.py."""
from __future__ import annotations

import ctypes
import sys
from ctypes import c_void_p, py_object
from typing import Any, Dict, Optional, Sequence, Tuple

from . import _dlpack
from ._dlpack import CPU, CUDA, CUDA_HOST, CUDA_MANAGED, Borrowed
from ._errors import ArrayTypeError, InvalidArgumentError, UnavailableError, UnsupportedError

Device = Tuple[int, int]  # (DLPack device type, index)
HOST: Device = (CPU, 0)


class Info:
    """What a slot must know of an array; strides in elements, dtype by the problem string's names."""

    __slots__ = ("shape", "strides", "dtype", "device")

    def __init__(self, shape: Sequence[int], strides: Sequence[int], dtype: str, device: Device) -> None:
        self.shape, self.strides, self.dtype, self.device = tuple(shape), tuple(strides), dtype, device


class Kind:
    """One array library. `token` is cheap, and equal for two arrays only if `info` is."""

    name = ""

    def token(self, x: Any) -> Any:
        raise NotImplementedError

    def pointer(self, x: Any) -> int:
        raise NotImplementedError

    def info(self, name: str, x: Any) -> Info:
        raise NotImplementedError

    def check_writable(self, name: str, x: Any) -> None:
        """Raises if the array may not be written."""

    def empty(self, shape: Sequence[int], dtype: str, like: Any) -> Any:
        """A fresh compact array of the library on the device of `like`; dtype "like": that of `like`."""
        raise NotImplementedError

    def stream(self, like: Any) -> int:
        """The library's current stream on a CUDA array's device, as an address."""
        return 0

    def finish(self, like: Any, stream: int) -> None:
        """Called after work was queued, for libraries that do not know of the stream."""


# --- NumPy -----------------------------------------------------------------------------------------------

_from_buffer = ctypes.c_char.from_buffer
_addressof = ctypes.addressof
# struct PyArrayInterface: 24 bytes of scalars, then shape, strides, data; as an array of pointers, data is the sixth.
_array_struct = ctypes.PYFUNCTYPE(ctypes.POINTER(c_void_p), py_object, c_void_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_NUMPY_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int32": "int32", "uint16": "uint16",
                 "uint8": "uint8"}  # fmt: skip
_FROM_NAME = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int32": "int32", "uint16": "uint16",
              "uint8": "uint8"}  # fmt: skip


class NumpyKind(Kind):
    name = "numpy"

    def __init__(self) -> None:
        self.empty_array = sys.modules["numpy"].empty

    def token(self, x: Any) -> Any:
        return x.shape, x.strides, x.dtype

    def pointer(self, x: Any) -> int:
        try:  # the quick way, for arrays that are compact and writable
            return _addressof(_from_buffer(x))
        except (TypeError, ValueError, BufferError):
            return _array_struct(x.__array_struct__, None)[5] or 0

    def info(self, name: str, x: Any) -> Info:
        dtype = x.dtype
        size = dtype.itemsize
        known = _NUMPY_DTYPES.get(dtype.name, dtype.name) if dtype.isnative else f"{dtype.name} of foreign byte order"
        if any(stride % size for stride in x.strides if size):
            raise InvalidArgumentError(f"{name} has strides of {x.strides} bytes; allowed: multiples of its {size}-byte "
                                       "elements")  # fmt: skip
        return Info(x.shape, [stride // size for stride in x.strides] if size else x.strides, known, HOST)

    def check_writable(self, name: str, x: Any) -> None:
        if not x.flags.writeable:
            raise InvalidArgumentError(f"{name} is a read-only array; allowed: a writable one")

    def empty(self, shape: Sequence[int], dtype: str, like: Any) -> Any:
        return self.empty_array(shape, like.dtype if dtype == "like" else _FROM_NAME[dtype])


# --- PyTorch ---------------------------------------------------------------------------------------------


class TorchKind(Kind):
    name = "torch"

    def __init__(self) -> None:
        self.torch = torch = sys.modules["torch"]
        self.is_grad_enabled = torch.is_grad_enabled
        self.dtypes = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int32: "int32",
                       torch.uint8: "uint8"}  # fmt: skip
        if hasattr(torch, "uint16"):
            self.dtypes[torch.uint16] = "uint16"
        self.by_name = {value: key for key, value in self.dtypes.items()}
        self.devices = {"cpu": CPU, "cuda": CUDA}

    def token(self, x: Any) -> Any:
        if x.requires_grad and self.is_grad_enabled():
            raise InvalidArgumentError(
                "a tensor requires a gradient, and libattn computes the forward pass only; allowed: tensors without, or "
                "a call under torch.no_grad() or torch.inference_mode()"
            )
        return x.shape, x.stride(), x.dtype, x.device, x.is_neg()

    def pointer(self, x: Any) -> int:
        return x.data_ptr()

    def info(self, name: str, x: Any) -> Info:
        device = x.device
        if device.type not in self.devices:
            raise UnsupportedError(f"{name} is on device {device}; allowed: cpu, cuda")
        if x.is_neg() or x.is_conj():
            raise InvalidArgumentError(f"{name} is a lazily negated view; allowed: what .resolve_neg() gives")
        if device.type == "cuda" and self.torch.version.hip:
            raise UnsupportedError(f"{name} is on a ROCm device; allowed: cpu, cuda")
        dtype = self.dtypes.get(x.dtype, str(x.dtype).replace("torch.", ""))
        return Info(x.shape, x.stride(), dtype, (self.devices[device.type], device.index or 0))

    def empty(self, shape: Sequence[int], dtype: str, like: Any) -> Any:
        return self.torch.empty(
            tuple(shape), dtype=like.dtype if dtype == "like" else self.by_name[dtype], device=like.device
        )

    def stream(self, like: Any) -> int:
        return self.torch.cuda.current_stream(like.device).cuda_stream


# --- CuPy ------------------------------------------------------------------------------------------------


class CupyKind(Kind):
    name = "cupy"

    def __init__(self) -> None:
        self.cupy = sys.modules["cupy"]

    def token(self, x: Any) -> Any:
        return x.shape, x.strides, x.dtype, x.device.id

    def pointer(self, x: Any) -> int:
        return x.data.ptr

    def info(self, name: str, x: Any) -> Info:
        size = x.dtype.itemsize
        dtype = _NUMPY_DTYPES.get(x.dtype.name, x.dtype.name)
        return Info(x.shape, [stride // size for stride in x.strides], dtype, (CUDA, x.device.id))

    def empty(self, shape: Sequence[int], dtype: str, like: Any) -> Any:
        with like.device:
            return self.cupy.empty(tuple(shape), like.dtype if dtype == "like" else _FROM_NAME[dtype])

    def stream(self, like: Any) -> int:
        with like.device:
            return self.cupy.cuda.get_current_stream().ptr


# --- JAX -------------------------------------------------------------------------------------------------


class JaxKind(Kind):
    """Inputs come through DLPack, so that JAX orders its own work before ours. A result is a fresh array of JAX, filled
    before anybody else has seen it; JAX knows nothing of foreign streams, so the call waits for them to be done."""

    name = "jax"

    def __init__(self) -> None:
        self.jax = sys.modules["jax"]

    def token(self, x: Any) -> Any:
        return x.shape, x.dtype, id(x.sharding)

    def pointer(self, x: Any) -> int:
        return x.unsafe_buffer_pointer()

    def info(self, name: str, x: Any) -> Info:
        platform = next(iter(x.devices())).platform
        if platform not in ("cpu", "gpu", "cuda"):
            raise UnsupportedError(f"{name} is on a JAX device of platform {platform}; allowed: cpu, cuda")
        strides, step = [], 1
        for size in reversed(x.shape):
            strides.append(step)
            step *= size
        device = HOST if platform == "cpu" else (CUDA, next(iter(x.devices())).local_hardware_id or 0)
        return Info(x.shape, strides[::-1], _NUMPY_DTYPES.get(x.dtype.name, x.dtype.name), device)

    def check_writable(self, name: str, x: Any) -> None:
        raise InvalidArgumentError(f"{name} is a JAX array, which is immutable; allowed: leave it out, the result is new")

    def empty(self, shape: Sequence[int], dtype: str, like: Any) -> Any:
        jax = self.jax
        with jax.default_device(next(iter(like.devices()))):
            fresh = jax.numpy.empty(tuple(shape), like.dtype if dtype == "like" else _FROM_NAME[dtype])
        return fresh.block_until_ready()

    def finish(self, like: Any, stream: int) -> None:
        if next(iter(like.devices())).platform != "cpu":
            synchronize(stream)


# --- anything with __dlpack__ ----------------------------------------------------------------------------


class DLPackKind(Kind):
    """Of what has been borrowed through DLPack already (`Borrowed`)."""

    name = "dlpack"

    def token(self, x: Borrowed) -> Any:
        return x.shape, x.strides, x.dtype, x.device

    def pointer(self, x: Borrowed) -> int:
        return x.pointer

    def info(self, name: str, x: Borrowed) -> Info:
        return Info(x.shape, x.strides, x.dtype, x.device)

    def check_writable(self, name: str, x: Borrowed) -> None:
        if x.readonly:
            raise InvalidArgumentError(f"{name} is a read-only array; allowed: a writable one")


class NamespaceKind(Kind):
    """Makes results for arrays of the array API standard (`__array_namespace__`)."""

    name = "array API"

    def empty(self, shape: Sequence[int], dtype: str, like: Any) -> Any:
        namespace = like.__array_namespace__()
        wanted = like.dtype if dtype == "like" else getattr(namespace, _FROM_NAME[dtype])
        return namespace.empty(tuple(shape), dtype=wanted, device=like.device)


_DLPACK = DLPackKind()
_NAMESPACE = NamespaceKind()
_kinds: Dict[type, Optional[Kind]] = {Borrowed: _DLPACK}  # None: through DLPack
_singletons: Dict[str, Kind] = {}


def _kind_of_type(cls: type) -> Optional[Kind]:
    for base in cls.__mro__:
        root = base.__module__.split(".")[0]
        named = (root, base.__name__)
        if named == ("numpy", "ndarray"):
            return _singletons.setdefault("numpy", NumpyKind())
        if named == ("torch", "Tensor"):
            return _singletons.setdefault("torch", TorchKind())
        if named == ("cupy", "ndarray") and "cupy" in sys.modules:
            return _singletons.setdefault("cupy", CupyKind())
        if root in ("jaxlib", "jax") and base.__name__ == "ArrayImpl":
            return _singletons.setdefault("jax", JaxKind())
    return None


def kind_of(x: Any) -> Optional[Kind]:
    """The kind of an array, or None where it comes through DLPack."""
    cls = type(x)
    try:
        return _kinds[cls]
    except KeyError:
        kind = _kinds[cls] = _kind_of_type(cls)
        return kind


def take(name: str, x: Any, stream: Optional[int] = None) -> Tuple[Kind, Any]:
    """An array as (kind, what the kind reads): itself, or what it lent through DLPack (to be released)."""
    kind = kind_of(x)
    if kind is not None and kind.name != "jax":
        return kind, x
    if kind is not None:
        x.block_until_ready()
        if len(x.devices()) != 1:
            raise UnsupportedError(f"{name} is spread over {len(x.devices())} devices; allowed: an array on one")
        return _DLPACK, _dlpack.borrow(name, x, stream)
    if "Tracer" in type(x).__name__:
        raise ArrayTypeError(f"{name} is being traced by JAX; allowed: a call outside jax.jit, or in jax.pure_callback")
    if not hasattr(x, "__dlpack__") and not _dlpack.is_capsule(x):
        raise ArrayTypeError(
            f"{name} is a {type(x).__name__}; allowed: an array of NumPy, PyTorch, CuPy or JAX, anything with "
            "__dlpack__, or a DLPack capsule"
        )
    return _DLPACK, _dlpack.borrow(name, x, stream)


def maker_for(x: Any) -> Kind:
    """The kind that makes results for callers who brought x."""
    kind = kind_of(x)
    if kind is not None and kind is not _DLPACK:
        return kind
    if hasattr(x, "__array_namespace__"):
        return _NAMESPACE
    raise ArrayTypeError(
        f"out is None, and a {type(x).__name__} does not say how to make an array like it (it has no "
        "__array_namespace__); allowed: pass out="
    )


def on_host(device: Device) -> bool:
    return device[0] in (CPU, CUDA_HOST)


def backend_of(name: str, device: Device) -> str:
    """The backend that can read an array where it lies."""
    if on_host(device):
        return "cpu"
    if device[0] in (CUDA, CUDA_MANAGED):
        return "cuda"
    what = _dlpack.DEVICE_NAMES.get(device[0], "unknown")
    raise UnsupportedError(f"{name} is on device type {device[0]} ({what}); allowed: cpu or cuda memory")


def same_device(a: Device, b: Device) -> bool:
    return a == b or (on_host(a) and on_host(b)) or (not on_host(a) and not on_host(b) and a[1] == b[1])


def synchronize(stream: int) -> None:
    """Waits for a CUDA stream, through the driver that the array library has loaded."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UnavailableError(f"the CUDA driver cannot be loaded: {error}") from None
    driver.cuStreamSynchronize.argtypes = [c_void_p]
    status = driver.cuStreamSynchronize(stream)
    if status != 0:
        from ._errors import BackendError

        raise BackendError(f"cuStreamSynchronize failed with {status}")
