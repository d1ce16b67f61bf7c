#!/usr/bin/env python3
"""libattn from a script on a GPU machine, by the standard library alone: a plan from a problem string, run on device
pointers and a stream, so that it can be timed beside peers in their own framework. Users take the package attn instead.

    from libattn_ctypes import Libattn
    lib = Libattn("build/src/libattn.so.0")
    run = lib.plan("b2 hq16 hk16 sq4096 d128 bf16 causal=br", backend="cuda")
    run.bind(q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), o=o.data_ptr(), workspace=scratch.data_ptr())
    run(torch.cuda.current_stream().cuda_stream)

Tensors are compact in the order (batch, seqlen, heads, head_dim) of the problem, or as `strides` says. As a program it
checks itself on the CPU: python3 bench/libattn_ctypes.py build/src/libattn.so.0 (the test bench.libattn_ctypes)."""
import ctypes
import math
import sys
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_int64, c_size_t, c_void_p

BACKENDS = {"auto": 0, "cpu": 1, "cuda": 2}


class View(ctypes.Structure):  # attn_tensor_view_t
    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("dtype", c_int32), ("reserved", c_int32),
                ("shape", c_int64 * 4), ("strides", c_int64 * 4)]


class Problem(ctypes.Structure):  # attn_problem_t
    _fields_ = (
        [("struct_size", c_size_t), ("dtype", c_int32), ("alignment", c_int32)]
        + [(n, c_int64) for n in ("batch", "seqlen_q", "seqlen_kv", "heads_q", "heads_kv", "head_dim_qk", "head_dim_v")]
        + [("has_softmax_scale", c_int32), ("softmax_scale", c_float), ("causal", c_int32), ("softcap", c_float),
           ("window_left", c_int64), ("window_right", c_int64)]
        + [(n, c_int32) for n in ("sinks", "lse_with_sink", "alibi", "varlen_q", "varlen_kv", "seqused_kv")]
        + [(n, c_int64) for n in ("total_q", "total_kv", "page_size", "num_pages", "seqlen_new", "rotary_dim")]
        + [(n, c_int32) for n in ("rotary_style", "want_lse", "batch_invariant", "deterministic")]
        + [("num_splits", c_int64)]
    )


class Options(ctypes.Structure):  # attn_plan_options_t
    _fields_ = [("struct_size", c_size_t), ("backend", c_int32), ("device", c_int32), ("threads", c_int32),
                ("reserved", c_int32), ("cpu_level", c_char_p)]


class Tensors(ctypes.Structure):  # attn_tensors_t
    _fields_ = (
        [("struct_size", c_size_t)]
        + [(n, POINTER(View)) for n in ("q", "k", "v", "o", "lse")]
        + [(n, c_void_p) for n in ("cu_seqlens_q", "cu_seqlens_kv", "seqused_kv", "page_table")]
        + [("page_table_stride", c_int64)]
        + [(n, POINTER(View)) for n in ("k_new", "v_new", "rotary_cos", "rotary_sin")]
        + [("sinks", c_void_p), ("alibi_slopes", c_void_p), ("alibi_batch_stride", c_int64)]
    )


class Libattn:
    def __init__(self, path="libattn.so.0"):
        self.c = ctypes.CDLL(path)
        for name in ("attn_version", "attn_last_error"):
            getattr(self.c, name).restype = c_char_p
        self.c.attn_run.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]
        self.c.attn_plan_destroy.argtypes = [c_void_p]

    def check(self, status):
        if status != 0:
            raise RuntimeError(f"libattn: {self.c.attn_last_error().decode()}")

    def plan(self, problem, backend="auto", device=0, threads=0, cpu_level=None):
        return Run(self, problem, Options(ctypes.sizeof(Options), BACKENDS[backend], device, threads, 0,
                                          cpu_level and cpu_level.encode()))


class Run:
    """A plan and the arguments bound to it; calling it is one attn_run and nothing else."""

    def __init__(self, lib, text, options):
        self.lib, self.problem, self.handle = lib, Problem(ctypes.sizeof(Problem)), c_void_p()
        lib.check(lib.c.attn_problem_parse(text.encode(), byref(self.problem)))
        lib.check(lib.c.attn_plan_create(byref(self.problem), byref(options), byref(self.handle)))
        size = c_size_t()
        lib.check(lib.c.attn_plan_workspace_bytes(self.handle, byref(size)))
        self.workspace_bytes = size.value  # the caller's to allocate, 256-byte aligned on a GPU
        self.workspace, self.tensors = None, Tensors(ctypes.sizeof(Tensors))
        self.run, self.address = lib.c.attn_run, ctypes.addressof(self.tensors)

    def explain(self):
        text = ctypes.create_string_buffer(8192)
        self.lib.check(self.lib.c.attn_plan_explain(self.handle, text, c_size_t(len(text)), None))
        return text.value.decode()

    def shape(self, name):
        """(batch, seqlen, heads, head_dim) of an argument."""
        p = self.problem
        if name in ("q", "o", "lse"):
            batch, rows = (1, p.total_q) if p.varlen_q else (p.batch, p.seqlen_q)
            if name == "lse":
                return (batch, p.heads_q, rows, 1)
            return (batch, rows, p.heads_q, p.head_dim_qk if name == "q" else p.head_dim_v)
        dim = p.head_dim_qk if name.startswith("k") else p.head_dim_v
        if name in ("k_new", "v_new"):
            return (p.batch, p.seqlen_new, p.heads_kv, dim)
        batch, rows = (1, p.total_kv) if p.varlen_kv else (p.batch, p.seqlen_kv)
        if p.page_size:
            batch, rows = p.num_pages, p.page_size
        return (batch, rows, p.heads_kv, dim)

    def bind(self, workspace=None, strides=None, page_table_stride=0, **pointers):
        """Addresses of q, k, v, o, lse, k_new, v_new (tensors) and of sinks, cu_seqlens_q, … (plain arrays);
        `strides`: {"k": (in elements, of batch, seqlen, heads, head_dim)} where they are not compact."""
        for name, address in pointers.items():
            if name in ("q", "k", "v", "o", "lse", "k_new", "v_new"):
                shape = self.shape(name)
                compact = (shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1)
                dtype = 0 if name == "lse" else self.problem.dtype
                view = View(ctypes.sizeof(View), address, dtype, 0, shape, (strides or {}).get(name, compact))
                setattr(self.tensors, name, ctypes.pointer(view))
            else:
                setattr(self.tensors, name, address)
        self.tensors.page_table_stride = page_table_stride
        self.workspace = workspace

    def __call__(self, stream=None):
        status = self.run(self.handle, self.address, self.workspace, self.workspace_bytes, stream)
        if status != 0:
            self.lib.check(status)

    def __del__(self):
        if self.handle:
            self.lib.c.attn_plan_destroy(self.handle)


def self_test(path):
    """q = (1, 0), keys (1, 0) and (0, 1), scale ln 3: P = (3/4, 1/4), so that O = (3, 2) and LSE = ln 4."""
    lib = Libattn(path)
    run = lib.plan(f"sq1 sk2 d2 fp32 scale={math.log(3):.9g} lse", backend="cpu")
    q, k, v = (c_float * 2)(1, 0), (c_float * 4)(1, 0, 0, 1), (c_float * 4)(4, 0, 0, 8)
    o, lse, scratch = (c_float * 2)(), (c_float * 1)(), ctypes.create_string_buffer(run.workspace_bytes + 64)
    arguments = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
    run.bind(workspace=(ctypes.addressof(scratch) + 63) // 64 * 64,
             **{name: ctypes.addressof(x) for name, x in arguments.items()})
    run()
    print(run.explain() + f"o = {list(o)}, lse = {lse[0]}, libattn {lib.c.attn_version().decode()}")
    right = abs(o[0] - 3) < 1e-5 and abs(o[1] - 2) < 1e-5 and abs(lse[0] - math.log(4)) < 1e-5
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(self_test(*sys.argv[1:2]))
