#!/usr/bin/env python3
"""What the library costs the host above the driver's own launch: CPU time of attn_run on an existing plan and of
attn_forward with a cached plan, beside a bare cuLaunchKernelEx of an empty kernel with as many parameter bytes.

    python3 bench/host_overhead.py build/src/libattn.so.0 [--json FILE]

On a machine with a GPU and a C compiler ($CC or cc); no PyTorch. In one process and in turns, medians of single calls, the
stream emptied every 100. The empty kernel is PTX that the driver compiles (or, where it cannot, nvcc). The goals: run at
most 1.5 us above the bare launch, forward at most 3 us. --backend cpu leaves the launch out, to try the program.
Tested in tests/cli/host_overhead_test.py."""
import argparse
import ctypes
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from ctypes import byref, c_int64, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from libattn_ctypes import Libattn  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
PROBLEMS = ("b1 hq1 hk1 sq128 sk128 d128 bf16", "b1 hq1 hk1 sq128 sk128 d64 bf16 causal=br",
            "b2 hq64 hk64 sq256 sk256 d128 bf16 causal=br")  # the last: more tiles than SMs, so that tiles are claimed
PTX = """.version 7.8
.target sm_90
.address_size 64
.visible .entry empty(.param .align 64 .b8 p[{bytes}]) {{ ret; }}
"""
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Device:
    """The driver, by ctypes: memory, a stream, and the empty kernel."""

    def __init__(self, ordinal, parameter_bytes, shared_bytes):
        self.driver = ctypes.CDLL(os.environ.get("ATTN_BENCH_LIBCUDA", "libcuda.so.1"))
        self.call("cuInit", c_uint(0))
        device, context = ctypes.c_int(), c_void_p()
        self.call("cuDeviceGet", byref(device), ctypes.c_int(ordinal))
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, ctypes.c_int(128), device)
        self.name, self.stream, self.function, module = name.value.decode(), c_void_p(), c_void_p(), c_void_p()
        self.call("cuStreamCreate", byref(self.stream), c_uint(1))  # CU_STREAM_NON_BLOCKING
        text = PTX.format(bytes=parameter_bytes)
        try:
            self.call("cuModuleLoadData", byref(module), ctypes.c_char_p(text.encode()))
        except RuntimeError as error:
            self.call("cuModuleLoadData", byref(module), ctypes.c_char_p(assembled(text, error)))
        self.call("cuModuleGetFunction", byref(self.function), module, ctypes.c_char_p(b"empty"))
        self.call("cuFuncSetAttribute", self.function, ctypes.c_int(MAX_DYNAMIC_SHARED), ctypes.c_int(shared_bytes))

    def call(self, name, *arguments):
        status = getattr(self.driver, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} failed with {status}")

    def allocate(self, size):
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(max(size, 256)))
        self.call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), c_size_t(max(size, 256)))
        return address.value

    def address_of(self, name):
        return ctypes.cast(getattr(self.driver, name), c_void_p)


def assembled(text, why):
    """The PTX as a cubin, where the driver has no compiler."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(nvcc):
        raise RuntimeError(f"{why}, and there is no nvcc to compile the empty kernel")
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "empty.ptx", Path(folder) / "empty.cubin"
        source.write_text(text)
        subprocess.run([nvcc, "-cubin", "-arch=sm_90", "-o", cubin, source], check=True)
        return cubin.read_bytes()


class Host:
    name, stream = "", c_void_p()

    def __init__(self):
        self.kept = []

    def allocate(self, size):
        self.kept.append(ctypes.create_string_buffer(size + 64))
        return (ctypes.addressof(self.kept[-1]) + 63) // 64 * 64


def build_calls(library):
    folder = tempfile.mkdtemp()
    path = Path(folder) / "host_calls.so"
    library = Path(library).resolve()
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", f"-I{ROOT / 'include'}", ROOT / "bench/host_calls.c",
                    "-o", path, library, f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined"], check=True)  # fmt: skip
    return ctypes.CDLL(str(path))


def bound(lib, device, problem, backend):
    """A plan with tensors of the device, and its workspace."""
    run = lib.plan(problem, backend=backend)
    size = {0: 4, 1: 2, 2: 2}[run.problem.dtype]
    addresses = {}
    for name in ("q", "k", "v", "o"):
        b, s, h, d = run.shape(name)
        addresses[name] = device.allocate(b * s * h * d * size)
    run.bind(workspace=device.allocate(run.workspace_bytes) if run.workspace_bytes else None, **addresses)
    return run


def percentiles(values):
    cuts = statistics.quantiles(values, n=10)
    return cuts[0] / 1e3, statistics.median(values) / 1e3, cuts[8] / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libattn.so.0")
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--backend", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--calls", type=int, default=500, help="of each kind in a round")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--parameter-bytes", type=int, default=768, help="of the empty kernel; the kernels have about so many")
    parser.add_argument("--shared-bytes", type=int, default=200 * 1024)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--machine", default="h200")
    parser.add_argument("--commit", default="")
    options = parser.parse_args()

    cuda = options.backend == "cuda"
    device = Device(options.device, options.parameter_bytes, options.shared_bytes) if cuda else Host()
    lib = Libattn(str(Path(options.library).resolve()))
    calls = build_calls(options.library)
    ns = (c_int64 * options.calls)()
    count = c_int64(options.calls)
    stopper = device.address_of("cuStreamSynchronize") if cuda else c_void_p()

    def timed(name, *arguments):
        status = getattr(calls, name)(*arguments, count, ns)
        if status != 0:
            raise RuntimeError(f"{name} failed with {status}: {lib.c.attn_last_error().decode()}")
        return list(ns)[options.calls // 10:]  # the first tenth warms up

    argument = ctypes.create_string_buffer(options.parameter_bytes + 64)
    launch = lambda: timed("host_launch", device.address_of("cuLaunchKernelEx"), stopper, device.function, c_uint(132),  # noqa: E731
                           c_uint(384), c_uint(options.shared_bytes), argument, device.stream)  # fmt: skip
    rows, lines = [], []
    for problem in options.problems:
        run = bound(lib, device, problem, options.backend)
        causal = ctypes.c_int32(1 if run.problem.causal else 0)
        kinds = {"bare cuLaunchKernelEx": launch} if cuda else {}
        kinds["attn_run"] = lambda run=run: timed("host_run", stopper, run.handle, c_void_p(run.address), c_void_p(run.workspace),
                                                  c_size_t(run.workspace_bytes), device.stream)  # fmt: skip
        kinds["attn_forward"] = lambda run=run, causal=causal: timed("host_forward", stopper, c_void_p(run.address), causal,
                                                                     device.stream)  # fmt: skip
        samples = {name: [] for name in kinds}
        for _ in range(options.rounds):
            for name, kind in kinds.items():
                samples[name] += kind()
        base = statistics.median(samples["bare cuLaunchKernelEx"]) / 1e3 if cuda else None
        for name, values in samples.items():
            p10, median, p90 = percentiles(values)
            row = {"problem": problem, "impl": "driver" if name.startswith("bare") else "libattn", "call": name,
                   "median_us": round(median, 3), "p10_us": round(p10, 3), "p90_us": round(p90, 3), "samples": len(values)}  # fmt: skip
            if base is not None:
                row["above_bare_us"] = round(median - base, 3)
            rows.append(row)
            lines.append(f"{problem:48}{name:24}{median:10.2f}{p10:9.2f}{p90:9.2f}{row.get('above_bare_us', 0):12.2f}")
        if options.json:
            write(options, device, rows)
    print(f"{'problem':48}{'call':24}{'median us':>10}{'p10':>9}{'p90':>9}{'above bare':>12}")
    print("\n".join(lines))
    return 0


def write(options, device, rows):
    def git(*arguments):
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    context = {"date": datetime.date.today().isoformat(), "commit": options.commit or git("rev-parse", "--short", "HEAD"),
               "dirty": bool(git("status", "--porcelain", "--untracked-files=no")), "machine": options.machine,
               "gpu": device.name, "cpu": cpu, "versions": {"python": platform.python_version()},
               "protocol": f"single calls in turns, {options.rounds} rounds of {options.calls}, stream emptied every 100"}  # fmt: skip
    result = {"schema": 1, "what": "host-overhead", "command": "python3 bench/host_overhead.py build/src/libattn.so.0",
              "context": context, "rows": rows}  # fmt: skip
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
