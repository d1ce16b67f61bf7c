"""Exact fused attention, softmax(scale · q·kᵀ)·v, for arrays of any library, without a deep learning framework.

    import attn
    o = attn.attention(q, k, v, causal="bottom_right")

`attention` for dense arrays, `varlen_attention` for packed sequences, `Plan` for repeated calls, paged K/V and caches that
grow, `merge` for partial results, `explain` for what runs and why. NumPy, PyTorch, CuPy and JAX arrays and anything with
``__dlpack__`` are taken as they are, nothing is copied, and the result is the caller's kind of array. What a call means:
docs/contract.md of libattn.
"""
from __future__ import annotations

import sys as _sys

from ._api import attention, explain, merge, varlen_attention
from ._errors import (
    ArrayTypeError,
    AttnError,
    BackendError,
    InternalError,
    InvalidArgumentError,
    OutOfMemoryError,
    UnavailableError,
    UnsupportedError,
)
from ._library import version as _version
from ._plan import Plan

__version__ = _version()

if "torch" in _sys.modules:  # its operators exist before anything is traced
    from . import _torch as _torch

__all__ = [
    "ArrayTypeError",
    "AttnError",
    "BackendError",
    "InternalError",
    "InvalidArgumentError",
    "OutOfMemoryError",
    "Plan",
    "UnavailableError",
    "UnsupportedError",
    "attention",
    "explain",
    "merge",
    "varlen_attention",
]
