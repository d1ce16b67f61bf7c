#!/usr/bin/env python3
"""What a call of the Python package costs above the bare C call, on a problem so small that little else is left.

  PYTHONPATH=build/python python3 bench/python_overhead.py [--json FILE] [--problem TEXT]

In one run and in turns: attn_run and attn_forward from C (bench/bare_call.c, built with $CC or cc), attn.Plan and
attn.attention from Python with NumPy arrays, and with PyTorch tensors where it is installed; with `out` given (the call
alone) and without (the result's allocation too). Prints a table; --json writes the form of bench/results. The goal is at
most 10 us above the bare call with a plan and 20 us without, by medians."""
import argparse
import ctypes
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import attn
from attn import _library

try:
    import numpy as np
except ImportError:
    print("SKIP: numpy is not installed")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[1]


def build_bare(folder):
    """bare_call.c, resolved against the library that the package has loaded."""
    path = Path(folder) / "bare_call.so"
    lib = Path(_library._lib._name).resolve()
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", f"-I{ROOT / 'include'}", ROOT / "bench/bare_call.c",
                    "-o", path, lib, f"-Wl,-rpath,{lib.parent}"], check=True)  # fmt: skip
    return ctypes.CDLL(str(path))


def timed(function, calls):
    clock, samples = time.perf_counter_ns, []
    for _ in range(calls):
        begin = clock()
        function()
        samples.append(clock() - begin)
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="b1 hq2 hk2 sq1 sk16 d64 fp32")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--calls", type=int, default=500, help="of each kind in a round")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--machine", default=platform.machine())
    options = parser.parse_args()

    plan = attn.Plan(options.problem, backend="cpu", threads=1)
    p = plan._problem
    rng = np.random.default_rng(0)
    dtype = {0: np.float32, 1: np.float16}[p.dtype]
    q = rng.standard_normal((p.batch, p.seqlen_q, p.heads_q, p.head_dim_qk)).astype(dtype)
    k = rng.standard_normal((p.batch, p.seqlen_kv, p.heads_kv, p.head_dim_qk)).astype(dtype)
    v = rng.standard_normal((p.batch, p.seqlen_kv, p.heads_kv, p.head_dim_v)).astype(dtype)
    out = np.empty((p.batch, p.seqlen_q, p.heads_q, p.head_dim_v), dtype)

    plan(q, k, v, out=out)
    frame = plan._frames[-1]  # its struct holds the addresses of q, k, v and out from here on
    bare = build_bare(tempfile.mkdtemp())
    ns = (ctypes.c_int64 * options.calls)()
    run_arguments = (ctypes.c_void_p(plan._handle), ctypes.c_void_p(frame.address), ctypes.c_void_p(frame.workspace_address),
                     ctypes.c_size_t(plan.workspace_bytes), ctypes.c_int64(options.calls), ns)  # fmt: skip
    plan._frames.clear()  # Python's calls get a frame of their own

    def bare_run():
        assert bare.time_run(*run_arguments) == 0
        return list(ns)

    def bare_forward():
        assert bare.time_forward(ctypes.c_void_p(frame.address), ctypes.c_int64(options.calls), ns) == 0
        return list(ns)

    kinds = {
        "bare C attn_run": bare_run,
        "bare C attn_forward": bare_forward,
        "Plan, NumPy, out given": lambda: timed(lambda: plan(q, k, v, out=out), options.calls),
        "Plan, NumPy": lambda: timed(lambda: plan(q, k, v), options.calls),
        "attention, NumPy, out given": lambda: timed(lambda: attn.attention(q, k, v, out=out), options.calls),
        "attention, NumPy": lambda: timed(lambda: attn.attention(q, k, v), options.calls),
    }
    versions = {"python": platform.python_version(), "numpy": np.__version__, "attn": attn.__version__}
    try:
        import torch
    except ImportError:
        print("torch is not installed: NumPy only")
    else:
        versions["torch"] = torch.__version__
        tq, tk, tv, tout = (torch.from_numpy(x) for x in (q, k, v, out))
        kinds["Plan, torch, out given"] = lambda: timed(lambda: plan(tq, tk, tv, out=tout), options.calls)
        kinds["Plan, torch"] = lambda: timed(lambda: plan(tq, tk, tv), options.calls)
        kinds["attention, torch, out given"] = lambda: timed(lambda: attn.attention(tq, tk, tv, out=tout), options.calls)
        kinds["attention, torch"] = lambda: timed(lambda: attn.attention(tq, tk, tv), options.calls)

    samples = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, function in kinds.items():
            samples[name] += function()[options.calls // 10 :]  # the first tenth warms up

    rows = []
    base = {"Plan": np.median(samples["bare C attn_run"]), "attention": np.median(samples["bare C attn_forward"])}
    print(f"{plan.problem}, {plan.kernel}, {len(samples['bare C attn_run'])} calls each")
    print(f"{'':32s}{'median us':>10s}{'p10':>9s}{'p90':>9s}{'above bare':>12s}")
    for name, values in samples.items():
        p10, median, p90 = (float(x) / 1e3 for x in np.percentile(values, (10, 50, 90)))
        row = {"problem": plan.problem, "impl": f"libattn:{plan.kernel}, {name}", "median_us": round(median, 3),
               "p10_us": round(p10, 3), "p90_us": round(p90, 3), "samples": len(values)}  # fmt: skip
        above = base.get(name.split(",")[0])
        if above is not None:
            row["above_bare_us"] = round(median - float(above) / 1e3, 3)
        rows.append(row)
        print(f"{name:32s}{median:10.2f}{p10:9.2f}{p90:9.2f}{row.get('above_bare_us', 0):12.2f}")

    if options.json:
        def git(*arguments):
            return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True).stdout.strip()

        cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
        context = {
            "date": datetime.date.today().isoformat(), "commit": git("rev-parse", "--short", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--untracked-files=no")), "machine": options.machine, "cpu": cpu,
            "threads": 1, "versions": versions,
        }  # fmt: skip
        command = "PYTHONPATH=build/python python3 bench/python_overhead.py"
        result = {"schema": 1, "what": "python-overhead", "command": command, "context": context, "rows": rows}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
