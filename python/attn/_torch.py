"""PyTorch operators attn::attention and attn::varlen_attention, with what torch.compile must know of them (fake
implementations: shapes, dtypes and strides without data). Ordinary tensors do not come here: attn.attention calls the
library at once. Tested in tests/python/test_torch.py."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from . import _api
from ._errors import InvalidArgumentError, UnsupportedError

if not hasattr(torch.library, "custom_op"):
    raise UnsupportedError(f"torch is {torch.__version__}; allowed for torch.compile: 2.4 or newer")

# Options travel as plain values that a schema can hold: "" for None, -1 for unbounded, NaN is never a scale.


def _options(causal: str, left: int, right: int, scale: Optional[float], softcap: float, alignment: str) -> dict:
    return {
        "causal": causal or None,
        "window": None if left < 0 and right < 0 else (left, right),
        "scale": scale,
        "softcap": softcap,
        "alignment": alignment or None,
    }


def _lse_or_none(result: Any, return_lse: bool, like: Tensor) -> Tuple[Tensor, Tensor]:
    return result if return_lse else (result, like.new_empty((0,), dtype=torch.float32))


@torch.library.custom_op("attn::attention", mutates_args=())
def _attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], alibi_slopes: Optional[Tensor], causal: str, left: int,
    right: int, scale: Optional[float], softcap: float, return_lse: bool, layout: str, alignment: str,
) -> Tuple[Tensor, Tensor]:  # fmt: skip
    with torch.no_grad():
        result = _api.attention(
            q, k, v, sinks=sinks, alibi_slopes=alibi_slopes, return_lse=return_lse, layout=layout,
            **_options(causal, left, right, scale, softcap, alignment),
        )  # fmt: skip
    return _lse_or_none(result, return_lse, q)


@_attention.register_fake
def _(q, k, v, sinks, alibi_slopes, causal, left, right, scale, softcap, return_lse, layout, alignment):
    batch, one, two, _ = q.shape
    heads, seqlen = (two, one) if layout == "bshd" else (one, two)
    o = q.new_empty((batch, one, two, v.shape[3]))
    lse = q.new_empty((batch, heads, seqlen) if return_lse else (0,), dtype=torch.float32)
    return o, lse


@torch.library.custom_op("attn::attention_out", mutates_args={"out"})
def _attention_out(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, sinks: Optional[Tensor], alibi_slopes: Optional[Tensor], causal: str,
    left: int, right: int, scale: Optional[float], softcap: float, return_lse: bool, layout: str, alignment: str,
) -> Tensor:  # fmt: skip
    with torch.no_grad():
        result = _api.attention(
            q, k, v, sinks=sinks, alibi_slopes=alibi_slopes, return_lse=return_lse, out=out, layout=layout,
            **_options(causal, left, right, scale, softcap, alignment),
        )  # fmt: skip
    return _lse_or_none(result, return_lse, q)[1]


@_attention_out.register_fake
def _(q, k, v, out, sinks, alibi_slopes, causal, left, right, scale, softcap, return_lse, layout, alignment):
    batch, one, two, _ = q.shape
    heads, seqlen = (two, one) if layout == "bshd" else (one, two)
    return q.new_empty((batch, heads, seqlen) if return_lse else (0,), dtype=torch.float32)


@torch.library.custom_op("attn::varlen_attention", mutates_args=())
def _varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_kv: Tensor, max_seqlen_q: int, max_seqlen_kv: int,
    seqused_kv: Optional[Tensor], sinks: Optional[Tensor], alibi_slopes: Optional[Tensor], causal: str, left: int,
    right: int, scale: Optional[float], softcap: float, return_lse: bool, alignment: str,
) -> Tuple[Tensor, Tensor]:  # fmt: skip
    with torch.no_grad():
        result = _api.varlen_attention(
            q, k, v, cu_seqlens_q, cu_seqlens_kv, max_seqlen_q, max_seqlen_kv, seqused_kv=seqused_kv, sinks=sinks,
            alibi_slopes=alibi_slopes, return_lse=return_lse,
            **_options(causal, left, right, scale, softcap, alignment),
        )  # fmt: skip
    return _lse_or_none(result, return_lse, q)


@_varlen.register_fake
def _(q, k, v, cu_seqlens_q, cu_seqlens_kv, max_seqlen_q, max_seqlen_kv, seqused_kv, sinks, alibi_slopes, causal, left,
      right, scale, softcap, return_lse, alignment):  # fmt: skip
    total, heads, _ = q.shape
    return (
        q.new_empty((total, heads, v.shape[2])),
        q.new_empty((heads, total) if return_lse else (0,), dtype=torch.float32),
    )


def _plain(causal: Any, window: Any, scale: Any, softcap: Any, alignment: Any, dtype: Any) -> tuple:
    _api._alignment(causal, alignment)
    if dtype is not None:
        raise InvalidArgumentError(f"dtype is {dtype!r}; allowed: None for tensors of PyTorch, which has bfloat16")
    left, right = _api._window(window)
    return (
        causal or "", left, right, None if scale is None else float(scale), float(softcap or 0.0), alignment or "",
    )  # fmt: skip


def traced_attention(q: Any, k: Any, v: Any, causal: Any, window: Any, scale: Any, softcap: Any, sinks: Any,
                     alibi_slopes: Any, return_lse: bool, out: Any, layout: str, alignment: Any, dtype: Any) -> Any:
    """attn.attention where PyTorch must see an operator (torch.compile, tensors without memory)."""
    causal, left, right, scale, softcap, alignment = _plain(causal, window, scale, softcap, alignment, dtype)
    if out is not None:
        lse = torch.ops.attn.attention_out(
            q, k, v, out, sinks, alibi_slopes, causal, left, right, scale, softcap, return_lse, layout, alignment
        )
    else:
        out, lse = torch.ops.attn.attention(
            q, k, v, sinks, alibi_slopes, causal, left, right, scale, softcap, return_lse, layout, alignment
        )
    return (out, lse) if return_lse else out


def traced_varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_kv: Any, max_seqlen_q: Any, max_seqlen_kv: Any,
                  causal: Any, window: Any, scale: Any, softcap: Any, sinks: Any, alibi_slopes: Any, return_lse: bool,
                  out: Any, alignment: Any, dtype: Any, seqused_kv: Any) -> Any:
    """attn.varlen_attention where PyTorch must see an operator."""
    if out is not None:
        raise UnsupportedError("out is given; allowed: None for varlen_attention under torch.compile")
    if max_seqlen_q is None or max_seqlen_kv is None:
        raise InvalidArgumentError("max_seqlen_q or max_seqlen_kv is None; allowed: a number under torch.compile")
    causal, left, right, scale, softcap, alignment = _plain(causal, window, scale, softcap, alignment, dtype)
    o, lse = torch.ops.attn.varlen_attention(
        q, k, v, cu_seqlens_q, cu_seqlens_kv, max_seqlen_q, max_seqlen_kv, seqused_kv, sinks, alibi_slopes, causal, left,
        right, scale, softcap, return_lse, alignment,
    )  # fmt: skip
    return (o, lse) if return_lse else o
