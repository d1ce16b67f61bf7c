"""attn.Plan: a decision made once, for calls of one problem. Tested in tests/python/test_plan.py."""
from __future__ import annotations

import ctypes
from ctypes import c_int32, c_size_t, c_void_p
from typing import Any, List, Optional, Tuple

from . import _arrays, _library
from ._arrays import CUDA, HOST, Kind
from ._errors import InvalidArgumentError
from ._library import attn_run
from ._slots import Slot, vector

_WORKSPACE_ALIGNMENT = {"cpu": 64, "cuda": 256}


class _Frame:
    """What one call in flight needs: the struct, its views, and on the CPU its workspace."""

    __slots__ = ("tensors", "address", "q", "k", "v", "o", "lse", "extra", "dirty", "workspace", "workspace_address")

    def __init__(self, plan: "Plan") -> None:
        self.tensors = _library.Tensors(ctypes.sizeof(_library.Tensors))
        self.address = ctypes.addressof(self.tensors)
        self.q, self.k, self.v, self.o = (plan._slot(name) for name in ("q", "k", "v", "o"))
        self.lse = plan._slot("lse")
        for slot in (self.q, self.k, self.v, self.o):
            setattr(self.tensors, slot.name, slot.address)
        if plan._lse_shape is not None:
            self.tensors.lse = self.lse.address
        self.extra: dict = {}
        self.dirty = False
        self.workspace = None
        self.workspace_address = 0
        if plan.backend == "cpu" and plan.workspace_bytes > 0:
            self.workspace = ctypes.create_string_buffer(plan.workspace_bytes + 63)
            self.workspace_address = (ctypes.addressof(self.workspace) + 63) // 64 * 64


class Plan:
    """A plan for one problem: which backend and kernel, how it is cut, how much scratch it needs. Made once, it may be
    called from several threads at a time; each call costs little more than the library's own.

    Args:
        problem: a problem string such as ``"b2 hq32 hk8 sq4096 sk4096 d128 bf16 causal=bottom_right"``; every token is
            in libattn's docs/problem-string.md (``causal=br`` and ``causal=bottom_right`` are the same). With ``lse`` in
            it, calls return the LSE too.
        backend: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        device: CUDA device ordinal.
        threads: CPU only: at most so many threads; 0: as many as CPU affinity and container quota allow.
        cpu_level: CPU only: a SIMD level such as ``"avx2"``; None: the best, or what ATTN_CPU_LEVEL says.
        kernel: a kernel by its name, as the property ``kernel`` and the command ``attn list`` give it; None: chosen.
        layout: order of the axes of q, k, v, k_new, v_new and the result: ``"bshd"`` or ``"bhsd"``.

    Raises:
        InvalidArgumentError: the problem is not well formed. UnsupportedError: no backend can do it.
        UnavailableError: the backend cannot be used on this machine.
    """

    def __init__(
        self,
        problem: str,
        *,
        backend: str = "auto",
        device: int = 0,
        threads: int = 0,
        cpu_level: Optional[str] = None,
        kernel: Optional[str] = None,
        layout: str = "bshd",
    ) -> None:
        self._handle: Optional[int] = None
        text = problem.replace("bottom_right", "br").replace("top_left", "tl")
        self._make(_library.parse_problem(text), backend, device, threads, cpu_level, layout, kernel)

    @classmethod
    def _of(cls, problem: _library.Problem, backend: str, device: int, layout: str) -> "Plan":
        plan = cls.__new__(cls)
        plan._handle = None
        plan._make(problem, backend, device, 0, None, layout)
        return plan

    def _make(self, problem: _library.Problem, backend: str, device: int, threads: int, cpu_level: Optional[str],
              layout: str, kernel: Optional[str] = None) -> None:  # fmt: skip
        if layout not in ("bshd", "bhsd"):
            raise InvalidArgumentError(f"layout is {layout!r}; allowed: 'bshd', 'bhsd'")
        options = _library.plan_options(backend, device, threads, cpu_level, kernel)
        handle = c_void_p()
        _library.check(
            _library.attn_plan_create(ctypes.addressof(problem), ctypes.addressof(options), ctypes.byref(handle))
        )
        self._handle = handle.value
        size, number = c_size_t(), c_int32()
        _library.check(_library.attn_plan_workspace_bytes(self._handle, ctypes.byref(size)))
        self._workspace_bytes = size.value
        _library.check(_library.attn_plan_backend(self._handle, ctypes.byref(number)))
        self._backend = _library.BACKEND_NAMES[number.value]
        self._problem, self._layout = problem, layout
        self._device = HOST if self._backend == "cpu" else (CUDA, device)
        p = problem
        if p.varlen_q:
            self._out_shape: Tuple[int, ...] = (p.total_q, p.heads_q, p.head_dim_v)
            lse_shape: Tuple[int, ...] = (p.heads_q, p.total_q)
        else:
            rows = (p.seqlen_q, p.heads_q) if layout == "bshd" else (p.heads_q, p.seqlen_q)
            self._out_shape = (p.batch, *rows, p.head_dim_v)
            lse_shape = (p.batch, p.heads_q, p.seqlen_q)
        self._lse_shape = lse_shape if p.want_lse else None
        self._frames: List[_Frame] = []  # append and pop are atomic

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle is not None:
            _library.attn_plan_destroy(handle)

    @property
    def problem(self) -> str:
        """The problem string."""
        return _library.problem_text(self._problem)

    @property
    def backend(self) -> str:
        """``"cpu"`` or ``"cuda"``."""
        return self._backend

    @property
    def kernel(self) -> str:
        """The kernel's name, such as ``"cpu:avx3"``."""
        return _library.text_of(_library.attn_plan_kernel, self._handle)

    @property
    def num_splits(self) -> int:
        """In how many parts the keys are cut."""
        number = c_int32()
        _library.check(_library.attn_plan_num_splits(self._handle, ctypes.byref(number)))
        return number.value

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch that a call takes (and the plan keeps, on the CPU)."""
        return self._workspace_bytes

    def explain(self) -> str:
        """Several lines: problem, backend, kernel, tiles, splits, and why other backends were not taken."""
        return _library.text_of(_library.attn_plan_explain, self._handle)

    def __repr__(self) -> str:
        return f"attn.Plan({self.problem!r}, backend={self.backend!r}, layout={self._layout!r})"

    def _slot(self, name: str) -> Slot:
        p = self._problem
        if name in ("q", "o"):
            form = "packed" if p.varlen_q else self._layout
        elif name in ("k", "v"):
            paged = "pages" if self._layout == "bshd" else "pages_bhsd"
            form = "packed" if p.varlen_kv else paged if p.page_size else self._layout
        elif name == "lse":
            form = "packed_lse" if p.varlen_q else "lse"
        else:
            form = self._layout if name in ("k_new", "v_new") else "rotary"
        return Slot(name, form, p.dtype == 2 and name != "lse", self._device)

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        out: Any = None,
        lse: Any = None,
        sinks: Any = None,
        alibi_slopes: Any = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_kv: Any = None,
        seqused_kv: Any = None,
        page_table: Any = None,
        k_new: Any = None,
        v_new: Any = None,
        rotary_cos: Any = None,
        rotary_sin: Any = None,
        workspace: Any = None,
        stream: Optional[int] = None,
    ) -> Any:
        """Computes the problem on these arrays, and returns the result (with ``lse`` in the problem: result and LSE).

        Args:
            q: (batch, seqlen_q, heads_q, head_dim_qk) in the plan's layout, or (total_q, heads_q, head_dim_qk).
            k: (batch, seqlen_kv, heads_kv, head_dim_qk), or (total_kv, heads_kv, head_dim_qk), or paged
                (num_pages, page_size, heads_kv, head_dim_qk). With ``new=`` in the problem its memory is written.
            v: as k, with head_dim_v.
            out: an array to write the result to; None: a new one of q's library.
            lse: fp32 (batch, heads_q, seqlen_q) or (heads_q, total_q), to write the LSE to; None: a new one.
            sinks: fp32 (heads_q,). alibi_slopes: fp32 (heads_q,) or (batch, heads_q).
            cu_seqlens_q, cu_seqlens_kv: int32 (batch + 1,), the sequences' row offsets.
            seqused_kv: int32 (batch,), keys in use (before new ones are appended).
            page_table: int32 (batch, pages a sequence).
            k_new, v_new: (batch, seqlen_new, heads_kv, head_dim) in the plan's layout, appended before they are read.
            rotary_cos, rotary_sin: fp32 (positions, rotary_dim / 2).
            workspace: CUDA only: a uint8 array of at least workspace_bytes + 255 elements on the device, in use until the
                work is done; None: a new one of q's library. (On the CPU the plan keeps its own.)
            stream: CUDA only: the stream's address; None: the current stream of q's library.

        Raises:
            InvalidArgumentError: an array does not fit the problem; nothing has been written.
        """
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = _Frame(self)
        borrowed: List[Any] = []
        try:
            cuda = self._backend == "cuda"
            source = _arrays.kind_of(q)
            if cuda and stream is None:
                stream = source.stream(q) if source is not None else 1
            kinds = _arrays._kinds
            q_in, k_in, v_in = q, k, v
            kind = kinds.get(type(q))
            if kind is None or kind.name == "jax":
                kind, q_in = self._take("q", q, stream, borrowed)
            frame.q.load(kind, q_in)
            kind_k = kinds.get(type(k))
            if kind_k is None or kind_k.name == "jax" or (cuda and kind_k is not kind):
                kind_k, k_in = self._take("k", k, stream, borrowed, cuda and kind_k is not kind)
            frame.k.load(kind_k, k_in)
            kind_v = kinds.get(type(v))
            if kind_v is None or kind_v.name == "jax" or (cuda and kind_v is not kind):
                kind_v, v_in = self._take("v", v, stream, borrowed, cuda and kind_v is not kind)
            frame.v.load(kind_v, v_in)

            maker = source
            if out is None:
                maker = source or _arrays.maker_for(q)
                out = maker.empty(self._out_shape, "like", q)
                self._load_made(frame.o, maker, out, stream, borrowed)
            else:
                self._load_given(frame.o, out, stream, borrowed)
            if self._lse_shape is not None:
                if lse is None:
                    maker = source or _arrays.maker_for(q)
                    lse = maker.empty(self._lse_shape, "fp32", q)
                    self._load_made(frame.lse, maker, lse, stream, borrowed)
                else:
                    self._load_given(frame.lse, lse, stream, borrowed)
            elif lse is not None:
                raise InvalidArgumentError("lse is given; allowed: None, since the problem does not ask for it ('lse')")
            if (sinks is not None or alibi_slopes is not None or cu_seqlens_q is not None or cu_seqlens_kv is not None
                    or seqused_kv is not None or page_table is not None or k_new is not None or v_new is not None
                    or rotary_cos is not None or rotary_sin is not None or frame.dirty):  # fmt: skip
                views = {"k_new": k_new, "v_new": v_new, "rotary_cos": rotary_cos, "rotary_sin": rotary_sin}
                arrays = {
                    "sinks": sinks, "alibi_slopes": alibi_slopes, "cu_seqlens_q": cu_seqlens_q,
                    "cu_seqlens_kv": cu_seqlens_kv, "seqused_kv": seqused_kv, "page_table": page_table,
                }  # fmt: skip
                self._load_extra(frame, views, arrays, stream, borrowed)
                if k_new is not None:
                    for name, kept, cache in (("k", kind_k, k_in), ("v", kind_v, v_in)):
                        kept.check_writable(name, cache)

            scratch, address = None, frame.workspace_address
            if cuda or workspace is not None:
                scratch, address = self._scratch(workspace, q, source, stream, borrowed)
            status = attn_run(self._handle, frame.address, address, self._workspace_bytes, stream)
            if status != 0:
                _library.raise_status(status)
            if cuda and maker is not None:
                maker.finish(q, stream or 0)
        finally:
            for lent in borrowed:
                lent.release()
            self._frames.append(frame)
        return out if self._lse_shape is None else (out, lse)

    def _scratch(self, given: Any, q: Any, source: Optional[Kind], stream: Optional[int], borrowed: List[Any]
                 ) -> Tuple[Any, int]:  # fmt: skip
        """Device scratch for one call, to be kept until the call is queued, and its aligned address."""
        if self._backend != "cuda":
            raise InvalidArgumentError("workspace is given; allowed: None, since a plan on the CPU keeps its own")
        if self._workspace_bytes == 0:
            return None, 0
        size = self._workspace_bytes + 255
        scratch = given
        if given is None:
            maker = source or _arrays.maker_for(q)
            scratch = maker.empty((size,), "uint8", q)
            if maker is not _arrays._NAMESPACE:
                return scratch, (maker.pointer(scratch) + 255) // 256 * 256
        kind, lent = self._take("workspace", scratch, stream, borrowed)
        vector("workspace", kind, lent, "uint8", [(-1,)], self._device)
        if lent.shape[0] < size:
            raise InvalidArgumentError(f"workspace shape is {tuple(lent.shape)}; allowed: at least ({size},)")
        return scratch, (kind.pointer(lent) + 255) // 256 * 256

    @staticmethod
    def _take(name: str, x: Any, stream: Optional[int], borrowed: List[Any], by_dlpack: bool = False) -> Tuple[Kind, Any]:
        """As _arrays.take; `by_dlpack` for arrays of another library than q's, whose stream is not q's."""
        if by_dlpack and hasattr(x, "__dlpack__"):
            from . import _dlpack

            borrowed.append(_dlpack.borrow(name, x, stream))
            return _arrays._DLPACK, borrowed[-1]
        kind, lent = _arrays.take(name, x, stream)
        if kind is _arrays._DLPACK and lent is not x:
            borrowed.append(lent)
        return kind, lent

    def _load_made(self, slot: Slot, maker: Kind, x: Any, stream: Optional[int], borrowed: List[Any]) -> None:
        if maker is _arrays._NAMESPACE:
            maker, x = self._take(slot.name, x, stream, borrowed)
        slot.load(maker, x)

    def _load_given(self, slot: Slot, x: Any, stream: Optional[int], borrowed: List[Any]) -> None:
        kind = _arrays.kind_of(x)
        if kind is not None:
            kind.check_writable("out" if slot.name == "o" else slot.name, x)
        kind, lent = self._take(slot.name, x, stream, borrowed)
        kind.check_writable("out" if slot.name == "o" else slot.name, lent)
        slot.load(kind, lent)

    def _load_extra(self, frame: _Frame, views: dict, arrays: dict, stream: Optional[int], borrowed: List[Any]) -> None:
        tensors, p = frame.tensors, self._problem
        frame.dirty = True
        for name, x in views.items():
            if x is None:
                setattr(tensors, name, None)
                continue
            slot = frame.extra.get(name)
            if slot is None:
                slot = frame.extra[name] = self._slot(name)
            slot.load(*self._take(name, x, stream, borrowed))
            setattr(tensors, name, slot.address)
        tensors.page_table_stride = tensors.alibi_batch_stride = 0
        for name, x in arrays.items():
            if x is None:
                setattr(tensors, name, None)
                continue
            kind, lent = self._take(name, x, stream, borrowed)
            if name in ("sinks", "alibi_slopes"):
                shapes: List[Tuple[int, ...]] = [(p.heads_q,)]
                if name == "alibi_slopes":
                    shapes.append((p.batch, p.heads_q))
                info = vector(name, kind, lent, "fp32", shapes, self._device)
                if len(info.shape) == 2:
                    tensors.alibi_batch_stride = info.strides[0] if p.batch > 1 else p.heads_q
            elif name == "page_table":
                info = vector(name, kind, lent, "int32", [(p.batch, -1)], self._device)
                pages = -(-p.seqlen_kv // p.page_size) if p.page_size else 0
                if info.shape[1] < pages:
                    raise InvalidArgumentError(
                        f"page_table shape is {info.shape}; allowed: at least {pages} pages a sequence, seqlen_kv / page_size"
                    )
                tensors.page_table_stride = info.strides[0] if p.batch > 1 else info.shape[1]
            else:
                size = p.batch if name == "seqused_kv" else p.batch + 1
                vector(name, kind, lent, "int32", [(size,)], self._device)
            setattr(tensors, name, kind.pointer(lent))


