"""The shared library and the structs of <attn/attn.h>, by ctypes. Their layout is compared with the compiler's in
tests/python/test_library.py."""
from __future__ import annotations

import ctypes
import os
from ctypes import c_char_p, c_float, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Optional

from ._errors import BY_CODE, InternalError

# The soname: a library of another major version has another ABI.
SONAME = "libattn.so.0"

OK = 0
INVALID_ARGUMENT = 1
DTYPES = {"fp32": 0, "fp16": 1, "bf16": 2}
BACKENDS = {"auto": 0, "cpu": 1, "cuda": 2}
BACKEND_NAMES = {value: name for name, value in BACKENDS.items()}


class TensorView(ctypes.Structure):
    """attn_tensor_view_t"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("dtype", c_int32),
        ("reserved", c_int32),
        ("shape", c_int64 * 4),
        ("strides", c_int64 * 4),
    ]


class Problem(ctypes.Structure):
    """attn_problem_t"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("dtype", c_int32),
        ("alignment", c_int32),
        ("batch", c_int64),
        ("seqlen_q", c_int64),
        ("seqlen_kv", c_int64),
        ("heads_q", c_int64),
        ("heads_kv", c_int64),
        ("head_dim_qk", c_int64),
        ("head_dim_v", c_int64),
        ("has_softmax_scale", c_int32),
        ("softmax_scale", c_float),
        ("causal", c_int32),
        ("softcap", c_float),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("sinks", c_int32),
        ("lse_with_sink", c_int32),
        ("alibi", c_int32),
        ("varlen_q", c_int32),
        ("varlen_kv", c_int32),
        ("seqused_kv", c_int32),
        ("total_q", c_int64),
        ("total_kv", c_int64),
        ("page_size", c_int64),
        ("num_pages", c_int64),
        ("seqlen_new", c_int64),
        ("rotary_dim", c_int64),
        ("rotary_style", c_int32),
        ("want_lse", c_int32),
        ("batch_invariant", c_int32),
        ("deterministic", c_int32),
        ("num_splits", c_int64),
    ]

    def __init__(self, **fields: object) -> None:
        # ATTN_PROBLEM_INIT, and then the fields given.
        defaults = {
            "struct_size": ctypes.sizeof(Problem), "dtype": 2, "batch": 1, "seqlen_q": 1, "seqlen_kv": 1, "heads_q": 1,
            "heads_kv": 1, "head_dim_qk": 64, "head_dim_v": 64, "window_left": -1, "window_right": -1,
            "lse_with_sink": 1, "deterministic": 1,
        }  # fmt: skip
        super().__init__(**{**defaults, **fields})


class PlanOptions(ctypes.Structure):
    """attn_plan_options_t"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_int32),
        ("device", c_int32),
        ("threads", c_int32),
        ("reserved", c_int32),
        ("cpu_level", c_char_p),
        ("kernel", c_char_p),
    ]


class Tensors(ctypes.Structure):
    """attn_tensors_t, every pointer as an address."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_kv", c_void_p),
        ("seqused_kv", c_void_p),
        ("page_table", c_void_p),
        ("page_table_stride", c_int64),
        ("k_new", c_void_p),
        ("v_new", c_void_p),
        ("rotary_cos", c_void_p),
        ("rotary_sin", c_void_p),
        ("sinks", c_void_p),
        ("alibi_slopes", c_void_p),
        ("alibi_batch_stride", c_int64),
    ]


def _load() -> ctypes.CDLL:
    """The library that the wheel brought, or else one that the system's loader finds."""
    own = Path(__file__).parent / "lib" / SONAME
    if own.exists():
        return ctypes.CDLL(str(own), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    try:
        return ctypes.CDLL(SONAME, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise ImportError(
            f"attn: neither {own} nor a {SONAME} on the loader's path can be loaded ({error}); install the wheel "
            "(`pip install .` in libattn's source builds it), or set LD_LIBRARY_PATH to where libattn is installed"
        ) from None


_lib = _load()


def _declare(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_lib, name)
    function.restype = result
    function.argtypes = list(arguments)
    return function


_address = c_void_p
_out_size = ctypes.POINTER(c_size_t)
attn_version = _declare("attn_version", c_char_p)
attn_version_number = _declare("attn_version_number", c_int32)
attn_last_error = _declare("attn_last_error", c_char_p)
attn_problem_parse = _declare("attn_problem_parse", c_int32, c_char_p, _address)
attn_problem_to_string = _declare("attn_problem_to_string", c_int32, _address, c_char_p, c_size_t, _out_size)
attn_support = _declare(
    "attn_support", c_int32, _address, _address, c_int32, ctypes.POINTER(c_int32), c_char_p, c_size_t, _out_size
)
attn_plan_create = _declare("attn_plan_create", c_int32, _address, _address, ctypes.POINTER(c_void_p))
attn_plan_destroy = _declare("attn_plan_destroy", None, _address)
attn_plan_workspace_bytes = _declare("attn_plan_workspace_bytes", c_int32, _address, _out_size)
attn_plan_backend = _declare("attn_plan_backend", c_int32, _address, ctypes.POINTER(c_int32))
attn_plan_num_splits = _declare("attn_plan_num_splits", c_int32, _address, ctypes.POINTER(c_int32))
attn_plan_kernel = _declare("attn_plan_kernel", c_int32, _address, c_char_p, c_size_t, _out_size)
attn_plan_explain = _declare("attn_plan_explain", c_int32, _address, c_char_p, c_size_t, _out_size)
attn_run = _declare("attn_run", c_int32, _address, _address, _address, c_size_t, _address)
attn_merge_partials = _declare("attn_merge_partials", c_int32, c_size_t, _address, _address, _address, _address)


def raise_status(status: int) -> None:
    """Raises the exception of a status that is not OK, with this thread's last message."""
    message = attn_last_error().decode("utf-8", "replace")
    raise BY_CODE.get(status, InternalError)(message)


def check(status: int) -> None:
    if status != OK:
        raise_status(status)


def text_of(function: Any, *arguments: Any) -> str:
    """The text of a C function that takes (…, buffer, capacity, length)."""
    length = c_size_t()
    buffer = ctypes.create_string_buffer(1024)
    check(function(*arguments, buffer, len(buffer), ctypes.byref(length)))
    if length.value >= len(buffer):
        buffer = ctypes.create_string_buffer(length.value + 1)
        check(function(*arguments, buffer, len(buffer), ctypes.byref(length)))
    return buffer.value.decode("utf-8", "replace")


def parse_problem(text: str) -> Problem:
    problem = Problem()
    check(attn_problem_parse(text.encode(), ctypes.addressof(problem)))
    return problem


def problem_text(problem: Problem) -> str:
    return text_of(attn_problem_to_string, ctypes.addressof(problem))


def plan_options(
    backend: str, device: int, threads: int, cpu_level: Optional[str], kernel: Optional[str] = None
) -> PlanOptions:
    if backend not in BACKENDS:
        from ._errors import InvalidArgumentError

        raise InvalidArgumentError(f"backend is {backend!r}; allowed: {', '.join(map(repr, BACKENDS))}")
    level = None if cpu_level is None else cpu_level.encode()
    name = None if kernel is None else kernel.encode()
    return PlanOptions(ctypes.sizeof(PlanOptions), BACKENDS[backend], device, threads, 0, level, name)


def version() -> str:
    """The library's version, such as "0.1.0"."""
    return attn_version().decode()
