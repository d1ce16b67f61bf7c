"""attention, varlen_attention, merge and explain: one call each, on plans that are made when a problem is first seen.
Tested in tests/python."""
from __future__ import annotations

import ctypes
import os
import sys
from ctypes import c_void_p
from typing import Any, Dict, List, Optional, Sequence, Tuple, TypeVar

from . import _arrays, _library
from ._arrays import Info, Kind
from ._errors import InvalidArgumentError, UnsupportedError
from ._plan import Plan
from ._slots import fill_view

Array = TypeVar("Array")
Window = Optional[Tuple[Optional[int], Optional[int]]]

# Few distinct problems are alive at a time in one process; each holds a plan and its workspace.
_MOST_PLANS = 64
_plans: Dict[Any, Plan] = {}
_ALIGNMENTS = {None: 0, "top_left": 1, "bottom_right": 2}
_getenv = os.environ.get


def _alignment(causal: Optional[str], alignment: Optional[str]) -> Tuple[int, int]:
    """(causal, alignment) of attn_problem_t."""
    for name, value in (("causal", causal), ("alignment", alignment)):
        if not (value is None or isinstance(value, str)) or value not in _ALIGNMENTS:
            raise InvalidArgumentError(f"{name} is {value!r}; allowed: None, 'bottom_right', 'top_left'")
    if causal is not None and alignment not in (None, causal):
        raise InvalidArgumentError(f"alignment is {alignment!r}; allowed: {causal!r} or None, since causal is {causal!r}")
    return int(causal is not None), _ALIGNMENTS[causal if causal is not None else alignment]


def _window(window: Window) -> Tuple[int, int]:
    if window is None:
        return -1, -1
    try:
        left, right = window
        return -1 if left is None else int(left), -1 if right is None else int(right)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"window is {window!r}; allowed: None or (left, right), each a number from 0, or None or -1 for unbounded"
        ) from None


def _dtype_code(name: str, info: Info, dtype: Optional[str]) -> int:
    if dtype is not None and dtype not in _library.DTYPES:
        raise InvalidArgumentError(f"dtype is {dtype!r}; allowed: None, {', '.join(map(repr, _library.DTYPES))}")
    if info.dtype == "uint16" and dtype == "bf16":
        return _library.DTYPES["bf16"]
    if dtype is not None and info.dtype != dtype:
        raise InvalidArgumentError(f"dtype is {dtype!r}; allowed: {name}'s own, {info.dtype}")
    code = _library.DTYPES.get(info.dtype)
    if code is None:  # raises, with the reason
        fill_view(_library.TensorView(), name, info, {3: "packed"}.get(len(info.shape), "bshd"))
        raise AssertionError
    return code


def _need_axes(name: str, info: Info, ndim: int, axes: str) -> None:
    if len(info.shape) != ndim:
        raise InvalidArgumentError(f"{name} has {len(info.shape)} axes, shape {info.shape}; allowed: {ndim}, {axes}")


def _common_fields(causal: Optional[str], window: Window, scale: Optional[float], softcap: Optional[float], sinks: Any,
                   alibi_slopes: Any, return_lse: bool, alignment: Optional[str]) -> Dict[str, Any]:  # fmt: skip
    is_causal, align = _alignment(causal, alignment)
    left, right = _window(window)
    return {
        "causal": is_causal, "alignment": align, "window_left": left, "window_right": right,
        "has_softmax_scale": int(scale is not None), "softmax_scale": 0.0 if scale is None else float(scale),
        "softcap": float(softcap or 0.0), "sinks": int(sinks is not None), "alibi": int(alibi_slopes is not None),
        "want_lse": int(bool(return_lse)),
    }  # fmt: skip


def _keep(key: Any, plan: Plan) -> Plan:
    while len(_plans) >= _MOST_PLANS:
        try:
            _plans.pop(next(iter(_plans)))
        except (KeyError, StopIteration, RuntimeError):  # another thread was quicker
            break
    _plans[key] = plan
    return plan


def _taken(arrays: Sequence[Tuple[str, Any]], borrowed: List[Any]) -> List[Tuple[Kind, Any]]:
    """Arrays to look at. What is lent through DLPack replaces the array in the call that follows, since some may be
    asked only once."""
    result = []
    for name, x in arrays:
        kind, lent = _arrays.take(name, x, _stream_for(arrays[0][1]))
        if lent is not x:
            borrowed.append(lent)
        result.append((kind, lent))
    return result


def _stream_for(q: Any) -> Optional[int]:
    kind = _arrays.kind_of(q)
    if kind is None or kind.name in ("numpy", "dlpack", "jax"):
        return None
    info = kind.info("q", q)
    return None if _arrays.on_host(info.device) else kind.stream(q)


def _dense_plan(kinds: Sequence[Kind], arrays: Sequence[Any], layout: str, dtype: Optional[str],
                fields: Dict[str, Any]) -> Plan:  # fmt: skip
    if layout not in ("bshd", "bhsd"):
        raise InvalidArgumentError(f"layout is {layout!r}; allowed: 'bshd', 'bhsd'")
    infos = [kind.info(name, x) for name, kind, x in zip("qkv", kinds, arrays)]
    axes = "(batch, seqlen, heads, head_dim)" if layout == "bshd" else "(batch, heads, seqlen, head_dim)"
    for name, info in zip("qkv", infos):
        _need_axes(name, info, 4, axes)
    seqlen, heads = (1, 2) if layout == "bshd" else (2, 1)
    q, k, v = (info.shape for info in infos)
    problem = _library.Problem(
        dtype=_dtype_code("q", infos[0], dtype), batch=q[0], seqlen_q=q[seqlen], heads_q=q[heads], head_dim_qk=q[3],
        seqlen_kv=k[seqlen], heads_kv=k[heads], head_dim_v=v[3], **fields,
    )  # fmt: skip
    backend = _arrays.backend_of("q", infos[0].device)
    return Plan._of(problem, backend, infos[0].device[1] if backend == "cuda" else 0, layout)


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: Optional[str] = None,
    window: Window = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    return_lse: bool = False,
    out: Any = None,
    layout: str = "bshd",
    alignment: Optional[str] = None,
    dtype: Optional[str] = None,
) -> Any:
    """Exact attention, softmax(scale · q·kᵀ)·v, in one call.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim_qk); with ``layout="bhsd"`` (batch, heads_q, seqlen_q, head_dim_qk).
            float32, float16 or bfloat16, with any strides as long as head_dim is contiguous; nothing is copied.
            NumPy, PyTorch, CuPy, JAX, or anything with ``__dlpack__``.
        k: (batch, seqlen_kv, heads_kv, head_dim_qk) of q's dtype, where heads_kv divides heads_q.
        v: (batch, seqlen_kv, heads_kv, head_dim_v) of q's dtype.
        causal: None, ``"bottom_right"`` (query i sees keys up to i + seqlen_kv − seqlen_q) or ``"top_left"`` (up to i).
        window: (left, right): query i, at key position p, sees keys p − left … p + right, both ends included; None or −1
            is unbounded, 0 is a real 0.
        scale: of the logits; None: 1 / sqrt(head_dim_qk).
        softcap: logits become softcap · tanh(logit / softcap); None or 0: off.
        sinks: float32 (heads_q,): one more plain logit a head in the denominator, counted by the LSE too.
        alibi_slopes: float32 (heads_q,) or (batch, heads_q): slope · (key position − query position) is added.
        return_lse: return (result, lse), lse float32 (batch, heads_q, seqlen_q): natural log of the sum of exp(logits).
        out: an array for the result; None: a new one of q's library on q's device.
        layout: order of axes, ``"bshd"`` or ``"bhsd"``, of q, k, v and the result.
        alignment: where query rows stand beside keys if a window or ALiBi is used without causal: ``"bottom_right"``
            or ``"top_left"``. There is no default.
        dtype: ``"bf16"`` says that uint16 arrays hold bfloat16 (NumPy has no such type of its own; arrays of ml_dtypes
            need no word).

    Returns:
        The result, of q's library and dtype: (batch, seqlen_q, heads_q, head_dim_v) in the layout. A row that sees no key
        is 0 and its LSE −inf. On a GPU the work is queued on the library's current stream.

    Raises:
        InvalidArgumentError (a ValueError): what is wrong, and what is allowed; nothing has been written.
        UnsupportedError: no backend can do it where the arrays lie, with the reason.
    """
    torch = sys.modules.get("torch")
    if torch is not None and (torch.compiler.is_compiling() or _is_torch_subclass(torch, q)):
        from . import _torch

        return _torch.traced_attention(
            q, k, v, causal, window, scale, softcap, sinks, alibi_slopes, return_lse, out, layout, alignment, dtype
        )
    borrowed: List[Any] = []
    try:
        known = _arrays._kinds
        kq, kk, kv = known.get(type(q)), known.get(type(k)), known.get(type(v))
        q_in: Any = q
        k_in: Any = k
        v_in: Any = v
        if kq is None or kk is None or kv is None or kq.name == "jax":
            (kq, q_in), (kk, k_in), (kv, v_in) = _taken((("q", q), ("k", k), ("v", v)), borrowed)
        key = (
            q_in.shape, k_in.shape, v_in.shape, q_in.dtype, getattr(q_in, "device", None), kq.name, causal,
            window if type(window) is not list else tuple(window), scale, softcap, sinks is None, alibi_slopes is None,
            return_lse, layout, alignment, dtype, _getenv("ATTN_CPU_LEVEL"), _getenv("ATTN_NUM_THREADS"),
        )  # fmt: skip
        plan = _plans.get(key)
        if plan is None:
            fields = _common_fields(causal, window, scale, softcap, sinks, alibi_slopes, return_lse, alignment)
            plan = _keep(key, _dense_plan((kq, kk, kv), (q_in, k_in, v_in), layout, dtype, fields))
        if q_in is not q:
            return _finish_lent(plan, q, q_in, k_in, v_in, out, sinks=sinks, alibi_slopes=alibi_slopes)
        return plan(q, k_in, v_in, out=out, sinks=sinks, alibi_slopes=alibi_slopes)
    finally:
        for lent in borrowed:
            lent.release()


def _finish_lent(plan: Plan, q: Any, q_in: Any, k_in: Any, v_in: Any, out: Any, **extra: Any) -> Any:
    """Runs a plan on arrays that were lent through DLPack; results are made as q's library makes them."""
    lse = None
    maker = None
    if out is None:
        maker = _arrays.maker_for(q)
        out = _writable(maker, maker.empty(plan._out_shape, "like", q))
    if plan._lse_shape is not None:
        maker = _arrays.maker_for(q)
        lse = _writable(maker, maker.empty(plan._lse_shape, "fp32", q))
    if plan.backend == "cuda" and plan.workspace_bytes > 0:
        scratch_maker = _arrays.maker_for(q)
        scratch = scratch_maker.empty((plan.workspace_bytes + 255,), "uint8", q)
        extra["workspace"] = _writable(scratch_maker, scratch)
    plan(q_in, k_in, v_in, out=out, lse=lse, **extra)
    if maker is not None:
        maker.finish(q, 1)
    out = out.array if isinstance(out, _Fresh) else out
    return out if lse is None else (out, lse.array if isinstance(lse, _Fresh) else lse)


class _Fresh:
    """An array that nobody else has seen yet, and so may be written even where its library's arrays are immutable."""

    __slots__ = ("array", "kind")

    def __init__(self, array: Any, kind: Kind) -> None:
        self.array, self.kind = array, kind


class _FreshKind(Kind):
    name = "fresh"

    def token(self, x: _Fresh) -> Any:
        return x.kind.token(x.array)

    def pointer(self, x: _Fresh) -> int:
        return x.kind.pointer(x.array)

    def info(self, name: str, x: _Fresh) -> Info:
        return x.kind.info(name, x.array)


_arrays._kinds[_Fresh] = _FreshKind()


def _writable(maker: Kind, array: Any) -> Any:
    return _Fresh(array, maker) if maker.name == "jax" else array


def _is_torch_subclass(torch: Any, q: Any) -> bool:
    """Tensors without memory of their own (fake, functional, distributed ones): PyTorch must see the operator."""
    return isinstance(q, torch.Tensor) and type(q) is not torch.Tensor and type(q) is not torch.nn.Parameter


def varlen_attention(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Any,
    cu_seqlens_kv: Any,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_kv: Optional[int] = None,
    *,
    causal: Optional[str] = None,
    window: Window = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    return_lse: bool = False,
    out: Any = None,
    alignment: Optional[str] = None,
    dtype: Optional[str] = None,
    seqused_kv: Any = None,
) -> Any:
    """Attention over sequences of different lengths, packed one after the other.

    Args:
        q: (total_q, heads_q, head_dim_qk). k: (total_kv, heads_kv, head_dim_qk). v: (total_kv, heads_kv, head_dim_v).
        cu_seqlens_q: int32 (batch + 1,): sequence b is rows cu_seqlens_q[b] … cu_seqlens_q[b + 1] − 1 of q; the first
            entry is 0. On the device of q.
        cu_seqlens_kv: int32 (batch + 1,), likewise for k and v.
        max_seqlen_q, max_seqlen_kv: upper bounds of the lengths. None: read off the offsets on the host; on a GPU they
            must be given, since reading them would wait for the device.
        seqused_kv: int32 (batch,): only the first so many keys of each sequence exist.

    The other arguments, results and errors are those of `attention`; the result is (total_q, heads_q, head_dim_v), the
    LSE (heads_q, total_q). Alignment is that of each sequence.
    """
    torch = sys.modules.get("torch")
    if torch is not None and (torch.compiler.is_compiling() or _is_torch_subclass(torch, q)):
        from . import _torch

        return _torch.traced_varlen(
            q, k, v, cu_seqlens_q, cu_seqlens_kv, max_seqlen_q, max_seqlen_kv, causal, window, scale, softcap, sinks,
            alibi_slopes, return_lse, out, alignment, dtype, seqused_kv,
        )  # fmt: skip
    borrowed: List[Any] = []
    try:
        named = (("q", q), ("k", k), ("v", v), ("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_kv", cu_seqlens_kv))
        (kq, q_in), (kk, k_in), (kv, v_in), (kcq, cq), (kckv, ckv) = _taken(named, borrowed)
        infos = [kind.info(name, x) for name, kind, x in zip("qkv", (kq, kk, kv), (q_in, k_in, v_in))]
        for name, info in zip("qkv", infos):
            _need_axes(name, info, 3, "(total rows, heads, head_dim)")
        lengths = []
        batch = 0
        for name, kind, x, most in (
            ("cu_seqlens_q", kcq, cq, max_seqlen_q),
            ("cu_seqlens_kv", kckv, ckv, max_seqlen_kv),
        ):
            info = kind.info(name, x)
            if len(info.shape) != 1 or info.shape[0] < 1 or info.dtype != "int32":
                raise InvalidArgumentError(f"{name} is {info.dtype} of shape {info.shape}; allowed: int32 (batch + 1,)")
            if name == "cu_seqlens_q":
                batch = info.shape[0] - 1
            lengths.append(_longest(name, kind, x, info) if most is None else int(most))
        shapes = [info.shape for info in infos]
        key = (
            "varlen", *shapes, infos[0].dtype, infos[0].device, batch, *lengths, causal,
            window if type(window) is not list else tuple(window), scale, softcap, sinks is None, alibi_slopes is None,
            return_lse, alignment, dtype, seqused_kv is None, _getenv("ATTN_CPU_LEVEL"), _getenv("ATTN_NUM_THREADS"),
        )  # fmt: skip
        plan = _plans.get(key)
        if plan is None:
            fields = _common_fields(causal, window, scale, softcap, sinks, alibi_slopes, return_lse, alignment)
            problem = _library.Problem(
                dtype=_dtype_code("q", infos[0], dtype), batch=batch, seqlen_q=lengths[0], seqlen_kv=lengths[1],
                heads_q=shapes[0][1], heads_kv=shapes[1][1], head_dim_qk=shapes[0][2], head_dim_v=shapes[2][2],
                varlen_q=1, varlen_kv=1, total_q=shapes[0][0], total_kv=shapes[1][0],
                seqused_kv=int(seqused_kv is not None), **fields,
            )  # fmt: skip
            backend = _arrays.backend_of("q", infos[0].device)
            device = infos[0].device[1] if backend == "cuda" else 0
            plan = _keep(key, Plan._of(problem, backend, device, "bshd"))
        extra = {"cu_seqlens_q": cq, "cu_seqlens_kv": ckv, "seqused_kv": seqused_kv, "sinks": sinks,
                 "alibi_slopes": alibi_slopes}  # fmt: skip
        if q_in is not q:
            return _finish_lent(plan, q, q_in, k_in, v_in, out, **extra)
        return plan(q, k_in, v_in, out=out, **extra)
    finally:
        for lent in borrowed:
            lent.release()


def _longest(name: str, kind: Kind, x: Any, info: Info) -> int:
    """The longest sequence of host offsets; what is wrong with them is the library's to say."""
    if not _arrays.on_host(info.device):
        bound = name.replace("cu_seqlens", "max_seqlen")
        raise InvalidArgumentError(
            f"{bound} is None; allowed: a number, since {name} is on a GPU and reading it would wait for the device"
        )
    if info.shape[0] > 1 and info.strides[0] != 1:
        raise InvalidArgumentError(f"{name} has a stride of {info.strides[0]}; allowed: 1")
    offsets = (ctypes.c_int32 * info.shape[0]).from_address(kind.pointer(x))[:]
    return max((b - a for a, b in zip(offsets, offsets[1:])), default=0) if len(offsets) > 1 else 0


def merge(
    outs: Sequence[Array],
    lses: Sequence[Any],
    *,
    out: Any = None,
    return_lse: bool = True,
    layout: str = "bshd",
    dtype: Optional[str] = None,
) -> Any:
    """Merges partial results over disjoint sets of keys (splits, ring attention, shared prefixes) by log-sum-exp in
    float32.

    Args:
        outs: results (batch, seqlen_q, heads_q, head_dim_v) in the layout, or (total_q, heads_q, head_dim_v).
        lses: their LSEs, float32 (batch, heads_q, seqlen_q) or (heads_q, total_q).
        out: an array for the result, which may be one of outs, and of another dtype; None: a new one as outs[0].
        return_lse: return (result, lse), else the result alone.
        dtype: ``"bf16"`` says that uint16 arrays hold bfloat16.

    A row that is empty in all partials is 0 with LSE −inf. Arrays in host memory only.
    """
    if len(outs) == 0 or len(outs) != len(lses):
        raise InvalidArgumentError(f"outs and lses hold {len(outs)} and {len(lses)} arrays; allowed: one or more, as many")
    if layout not in ("bshd", "bhsd"):
        raise InvalidArgumentError(f"layout is {layout!r}; allowed: 'bshd', 'bhsd'")
    borrowed: List[Any] = []
    try:
        views: List[_library.TensorView] = []

        def view_of(name: str, x: Any, form: str, written: bool = False) -> Info:
            original = _arrays.kind_of(x)
            if written and original is not None:
                original.check_writable(name, x)
            kind, lent = _arrays.take(name, x)
            if lent is not x:
                borrowed.append(lent)
            if written:
                kind.check_writable(name, lent)
            info = kind.info(name, lent)
            if not _arrays.on_host(info.device):
                raise UnsupportedError(f"{name} is on device type {info.device[0]}; allowed: host memory")
            if info.dtype == "uint16" and dtype == "bf16":
                info.dtype = "bf16"
            view = _library.TensorView()
            packed = len(info.shape) == (2 if form == "lse" else 3)
            fill_view(view, name, info, ("packed_lse" if form == "lse" else "packed") if packed else form)
            view.data = kind.pointer(lent)
            views.append(view)
            return info

        infos = [view_of(f"outs[{i}]", x, layout) for i, x in enumerate(outs)]
        for i, x in enumerate(lses):
            view_of(f"lses[{i}]", x, "lse")
        number, shape = len(infos), infos[0].shape
        maker = None
        if out is None:
            maker = _arrays.maker_for(outs[0])
            out = _writable(maker, maker.empty(shape, "like", outs[0]))
        view_of("out", out, layout, True)
        lse = None
        if return_lse:
            maker = _arrays.maker_for(outs[0])
            if len(shape) == 3:
                lse_shape: Tuple[int, ...] = (shape[1], shape[0])
            else:
                lse_shape = (shape[0], shape[2], shape[1]) if layout == "bshd" else shape[:3]
            lse = _writable(maker, maker.empty(lse_shape, "fp32", outs[0]))
            view_of("lse", lse, "lse", True)
        addresses = [ctypes.addressof(view) for view in views]
        o_list, lse_list = (c_void_p * number)(*addresses[:number]), (c_void_p * number)(*addresses[number : 2 * number])
        _library.check(
            _library.attn_merge_partials(
                number, ctypes.addressof(o_list), ctypes.addressof(lse_list), addresses[2 * number],
                addresses[2 * number + 1] if return_lse else None,
            )
        )  # fmt: skip
        out = out.array if isinstance(out, _Fresh) else out
        return (out, lse.array if isinstance(lse, _Fresh) else lse) if return_lse else out
    finally:
        for lent in borrowed:
            lent.release()


def explain(
    q: Any,
    k: Any = None,
    v: Any = None,
    *,
    causal: Optional[str] = None,
    window: Window = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    return_lse: bool = False,
    out: Any = None,
    layout: str = "bshd",
    alignment: Optional[str] = None,
    dtype: Optional[str] = None,
) -> str:
    """Which kernel `attention` would run on these arguments, and why the others not; nothing is computed. Instead of
    arrays a problem string may be given alone: ``attn.explain("b1 hq8 sq128 d64 bf16")``.

    Raises: as `attention`.
    """
    if isinstance(q, str):
        if k is not None or v is not None:
            raise InvalidArgumentError("k and v are given; allowed: None, since q is a problem string")
        return Plan(q).explain()
    borrowed: List[Any] = []
    try:
        taken = _taken((("q", q), ("k", k), ("v", v)), borrowed)
        fields = _common_fields(causal, window, scale, softcap, sinks, alibi_slopes, return_lse, alignment)
        return _dense_plan([kind for kind, _ in taken], [x for _, x in taken], layout, dtype, fields).explain()
    finally:
        for lent in borrowed:
            lent.release()
