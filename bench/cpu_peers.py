#!/usr/bin/env python3
"""libattn's CPU backend beside PyTorch's scaled_dot_product_attention: in turns, in one process, on the same memory.

    bench/cpu_peers.py --library build/src/libattn.so.0 --machine xeon-amx-2c
    bench/cpu_peers.py --quick                     # a cell of each kind
    bench/cpu_peers.py --table bench/results/xeon-amx-2c/cpu-peers.json

Writes bench/results/<machine>/cpu-peers.json in the form of all results there and prints a table. Every
output is checked against attention in float64 first. Decode (one query row, 8k and 64k keys, contiguous and in pages of
16; PyTorch beside the contiguous ones) is measured on one thread and on all, beside the bandwidth of reading memory with
as many. Needs Python, NumPy and PyTorch, and an installed or built libattn; the bandwidth also a C++ compiler ($CXX or
c++) and libattn.a beside the library. Exit codes: 0 measured; 1 an output is wrong; 2 what is needed is missing. Tested
in tests/cli/cpu_peers_test.py.

A cell is timed in rounds: each candidate gets some calls for at least `--slice` seconds, then the other, whose order
alternates; the median over rounds of the time of a call counts. Tensors lie as (batch, heads, seqlen, head_dim) in memory,
PyTorch's own order; with --layout bshd as (batch, seqlen, heads, head_dim), which is how projections leave them."""
import argparse
import ctypes
import datetime
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True

BOUND = {"fp32": 1e-5, "bf16": 2.0**-6, "fp16": 2.0**-9}  # on values of normal size: 4 u · max |v| and some


def missing(what):
    print(f"cpu_peers.py: {what}", file=sys.stderr)
    sys.exit(2)


try:
    import numpy  # noqa: F401
except ImportError:
    missing("NumPy is not installed")
try:
    import torch
except ImportError:
    missing("PyTorch is not installed (any CPU build will do): there is nothing to compare with")

from cpu_ceilings import Ceilings  # noqa: E402
from libattn_ctypes import Libattn  # noqa: E402

# Before a candidate's turn. PyTorch's OpenMP threads spin for 4 to 5 ms after a call (CPU time of a process that
# sleeps; libgomp of PyTorch 2.15), and would take the other's CPUs from it.
REST_S = 10e-3

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def find_library(path):
    names = [path] if path else ["build/src/libattn.so.0", "libattn.so.0"]
    for name in names:
        local = ROOT / name
        try:
            return Libattn(str(local if local.exists() else name))
        except OSError:
            continue
    return missing(f"no libattn under {', '.join(names)}; --library PATH names one")


class Cell:
    """One problem: its tensors, and a callable of each candidate."""

    def __init__(self, kind, dtype, batch, heads_q, heads_kv, lens_q, lens_kv, dim, causal, layout):
        self.kind, self.dtype, self.dim, self.causal = kind, dtype, dim, causal
        self.batch, self.heads_q, self.heads_kv = batch, heads_q, heads_kv
        self.lens_q, self.lens_kv = lens_q, lens_kv
        self.varlen = kind == "varlen"
        self.layout = layout
        mask = " causal=br" if causal else ""
        heads = f"hq{heads_q} hk{heads_kv}"
        if self.varlen:
            self.problem = (f"b{batch} {heads} sq{max(lens_q)} sk{max(lens_kv)} d{dim} {dtype}{mask} "
                            f"varlen_q={sum(lens_q)} varlen_kv={sum(lens_kv)}")
        else:
            self.problem = f"b{batch} {heads} sq{lens_q[0]} sk{lens_kv[0]} d{dim} {dtype}{mask}"
        generator = torch.Generator().manual_seed(1)

        def tensor(heads_of, rows):
            shape = (1 if self.varlen else batch, rows, heads_of, dim)
            if layout == "bhsd" and not self.varlen:
                data = torch.randn(shape[0], shape[2], shape[1], dim, generator=generator).to(DTYPES[dtype])
                return data.transpose(1, 2)
            return torch.randn(shape, generator=generator).to(DTYPES[dtype])

        rows_q = sum(lens_q) if self.varlen else lens_q[0]
        rows_kv = sum(lens_kv) if self.varlen else lens_kv[0]
        self.q, self.k, self.v = (tensor(heads_q, rows_q), tensor(heads_kv, rows_kv), tensor(heads_kv, rows_kv))
        self.o = torch.empty_like(self.q)  # axes: batch, seqlen, heads, head_dim

    @property
    def flops(self):
        pairs = 0
        for m, n in zip(self.lens_q, self.lens_kv):
            pairs += sum(max(0, min(n, i + 1 + n - m)) for i in range(m)) if self.causal else m * n
        return 4.0 * pairs * self.heads_q * self.dim

    def libattn(self, lib, threads):
        run = lib.plan(self.problem, backend="cpu", threads=threads)
        scratch = ctypes.create_string_buffer(run.workspace_bytes + 64)
        more = {}
        if self.varlen:
            self.cu_q, self.cu_kv = (torch.tensor([0] + list(x), dtype=torch.int32).cumsum(0, dtype=torch.int32)
                                     for x in (self.lens_q, self.lens_kv))
            more = {"cu_seqlens_q": self.cu_q.data_ptr(), "cu_seqlens_kv": self.cu_kv.data_ptr()}
        tensors = {"q": self.q, "k": self.k, "v": self.v, "o": self.o}
        run.bind(workspace=(ctypes.addressof(scratch) + 63) // 64 * 64,
                 strides={name: tuple(x.stride()) for name, x in tensors.items()},
                 **{name: x.data_ptr() for name, x in tensors.items()}, **more)
        run.keep = scratch
        kernel = next(line.split()[-1] for line in run.explain().splitlines() if line.strip().startswith("kernel:"))
        return (lambda: (run(), self.o)[1]), f"libattn:{kernel}"

    def torch(self):
        sdpa = torch.nn.functional.scaled_dot_product_attention
        gqa = {"enable_gqa": True} if self.heads_q != self.heads_kv else {}
        if not self.varlen:
            q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
            return lambda: sdpa(q, k, v, is_causal=self.causal, **gqa).transpose(1, 2)
        parts, at_q, at_kv = [], 0, 0
        for m, n in zip(self.lens_q, self.lens_kv):
            parts.append((self.q[:, at_q:at_q + m].transpose(1, 2), self.k[:, at_kv:at_kv + n].transpose(1, 2),
                          self.v[:, at_kv:at_kv + n].transpose(1, 2)))
            at_q, at_kv = at_q + m, at_kv + n
        return lambda: torch.cat([sdpa(q, k, v, is_causal=self.causal, **gqa) for q, k, v in parts],
                                 dim=2).transpose(1, 2)

    def error(self, o):
        """Largest difference from float64 on up to 64 rows of each sequence, every head."""
        worst, at_q, at_kv = 0.0, 0, 0
        for index, (m, n) in enumerate(zip(self.lens_q, self.lens_kv)):
            if not self.varlen and index >= min(self.batch, 2):
                break
            b = 0 if self.varlen else index
            rows = torch.arange(m) if m <= 64 else torch.linspace(0, m - 1, 64).long()
            q = self.q[b, at_q + rows].double().transpose(0, 1)
            k, v = (x[b, at_kv:at_kv + n].double().transpose(0, 1).repeat_interleave(
                self.heads_q // self.heads_kv, dim=0) for x in (self.k, self.v))
            s = q @ k.transpose(1, 2) / math.sqrt(self.dim)
            if self.causal:
                s.masked_fill_(torch.arange(n)[None, :] > (rows + n - m)[:, None], -math.inf)
            expected = torch.softmax(s, -1) @ v
            got = o[b, at_q + rows].double().transpose(0, 1)
            worst = max(worst, (got - expected).abs().max().item())
            if self.varlen:
                at_q, at_kv = at_q + m, at_kv + n
        return worst


class Decode:
    """One query a sequence, 8 heads of 128, each key and value read once: what memory gives. Layouts: bshd, bhsd (each
    head's keys one after another) and paged16, whose pages lie in any order."""
    kind, heads, dim, page = "decode", 8, 128, 16

    def __init__(self, dtype, batch, keys, layout):
        self.dtype, self.layout = dtype, layout
        kind, heads, dim, page = DTYPES[dtype], self.heads, self.dim, self.page

        def fill(*shape):  # a block of random numbers over and over: whole tensors would take longer than the calls
            block, size = torch.randn(MIB).to(kind), math.prod(shape)
            return block.repeat(-(-size // MIB))[:size].reshape(shape)

        self.q = torch.randn(batch, 1, heads, dim).to(kind)
        self.o = torch.empty_like(self.q)
        self.problem = f"b{batch} hq{heads} hk{heads} sq1 sk{keys} d{dim} {dtype}"
        self.more = {}
        if layout == "paged16":
            pages = batch * keys // page
            self.k, self.v = fill(pages, page, heads, dim), fill(pages, page, heads, dim)
            order = list(range(pages))
            random.Random(1).shuffle(order)
            self.table = torch.tensor(order, dtype=torch.int32).reshape(batch, -1)
            self.problem += f" page={page} pages={pages}"
            self.more = {"page_table": self.table.data_ptr(), "page_table_stride": self.table.shape[1]}
            first = [x[self.table[0].long()].reshape(keys, heads, dim) for x in (self.k, self.v)]
        else:
            self.k, self.v = ((fill(batch, keys, heads, dim) if layout == "bshd"
                               else fill(batch, heads, keys, dim).transpose(1, 2)) for _ in range(2))
            first = [self.k[0], self.v[0]]
        self.some = [0, heads - 1]  # heads that are checked, of the first sequence
        scores = torch.einsum("hd,khd->hk", self.q[0, 0, self.some].double(), first[0][:, self.some].double())
        self.expected = torch.einsum("hk,khd->hd", torch.softmax(scores / math.sqrt(dim), -1),
                                     first[1][:, self.some].double())
        self.largest = self.expected.abs().max().item()
        self.bytes = 2 * batch * keys * heads * dim * self.k.element_size()
        self.flops = 4.0 * batch * keys * heads * dim

    def libattn(self, lib, threads):
        run = lib.plan(self.problem, backend="cpu", threads=threads)
        scratch = ctypes.create_string_buffer(run.workspace_bytes + 64)
        tensors = {"q": self.q, "k": self.k, "v": self.v, "o": self.o}
        run.bind(workspace=(ctypes.addressof(scratch) + 63) // 64 * 64,
                 strides={name: tuple(x.stride()) for name, x in tensors.items()},
                 **{name: x.data_ptr() for name, x in tensors.items()}, **self.more)
        run.keep = scratch
        says = dict(line.strip().split(": ", 1) for line in run.explain().splitlines() if ": " in line)
        self.splits = int(says["splits"])
        return (lambda: (run(), self.o)[1]), f"libattn:{says['kernel']}"

    def torch(self):
        """None where it has no such thing: pages."""
        if self.layout == "paged16":
            return None
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    def error(self, o):
        return (o[0, 0, self.some].double() - self.expected).abs().max().item()


def cells(quick, layout):
    def dense(kind, dtype, heads_q, heads_kv, seqlen, dim, causal, batch=1):
        return Cell(kind, dtype, batch, heads_q, heads_kv, [seqlen] * batch, [seqlen] * batch, dim, causal, layout)

    dtypes = ("fp32", "bf16")
    for dtype in dtypes:
        for dim in (64, 128):
            for seqlen in (128, 512, 2048, 8192):
                heads = 2 if seqlen == 8192 else 1024 // dim
                for causal in (False, True):
                    if not quick or (seqlen == 512 and dim == 64):
                        yield lambda a=(dtype, heads, heads, seqlen, dim, causal): dense("grid", *a)
        for causal in (False, True):
            if not quick or causal:
                yield lambda a=(dtype, 32, 8, 512, 128, causal): dense("gqa", *a)
        lens = [31, 517, 128, 64, 260, 9, 1000, 77]
        yield lambda a=(dtype, 8, 12, 12, lens, lens, 64, False): Cell("varlen", *a, layout)
        for seqlen in (32, 64, 128):
            if not quick or seqlen == 64:
                yield lambda a=(dtype, 12, 12, seqlen, 64, False): dense("small", *a)
        if not quick:
            yield lambda a=(dtype, 12, 12, 32, 32, False, 8): dense("small", *a)
        yield lambda a=(dtype, 1, 1, 1, 16, False): dense("call", *a)
    for dtype in (*dtypes, "fp16"):
        for keys in (1024,) if quick else (8192, 65536):
            for where in (layout, "paged16"):
                if not quick or dtype == "bf16":
                    yield lambda a=(dtype, 1, keys, where): Decode(*a)


def seconds_of(call, calls):
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def measure(candidates, slice_s, budget_s):
    """Seconds a call of each round; candidates take turns."""
    calls = []
    for call in candidates:
        # As many as a slice holds once its threads are awake: the first calls take several times as long.
        once, start = seconds_of(call, 1), time.perf_counter()
        while time.perf_counter() - start < slice_s:
            once = min(once, seconds_of(call, 1))
        calls.append(max(1, int(slice_s / max(once, 1e-7))))
    samples = [[] for _ in candidates]
    start = time.perf_counter()
    while (time.perf_counter() - start < budget_s or len(samples[0]) < 5) and len(samples[0]) < 60:
        order = range(len(candidates)) if len(samples[0]) % 2 == 0 else reversed(range(len(candidates)))
        for i in order:
            time.sleep(REST_S)
            candidates[i]()
            samples[i].append(seconds_of(candidates[i], calls[i]))
    return samples


def cpu_model():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor()


def commit():
    def git(*arguments):
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    return git("rev-parse", "--short=12", "HEAD"), bool(git("status", "--porcelain", "--", "src", "include"))


def rate(row):
    if row["kind"] != "decode":
        return f"{row['gflops']:.0f} GFLOP/s"
    tops = [row["stream_before"], row["stream_after"]]
    return f"{row['gbs']:.1f} GB/s" + (f", {100 * row['gbs'] / max(tops):.0f} % of memory" if all(tops) else "")


def table(document):
    rows = {}
    for row in document["rows"]:
        key = (row["kind"], row["problem"], row["threads"])
        rows.setdefault(key, {})["torch" if row["impl"] == "torch-cpu" else "libattn"] = row
    print("| problem | threads | libattn | PyTorch | ratio |\n|---|---|---|---|---|")
    behind = beside = 0
    shares = {}  # of decode, by threads
    for (_, problem, threads), pair in rows.items():
        ours, theirs = pair["libattn"], pair.get("torch")
        last = "– | –"
        if theirs:
            ratio = theirs["median_us"] / ours["median_us"]
            behind, beside = behind + (ratio < 1), beside + 1
            last = f"{theirs['median_us']:.4g} µs | {ratio:.2f}"
        print(f"| `{problem}` | {threads} | {ours['median_us']:.4g} µs, {rate(ours)} ({ours['impl'][8:]}) | {last} |")
        if ours["kind"] == "decode" and ours["stream_before"]:
            shares.setdefault(threads, []).append(ours["gbs"] / max(ours["stream_before"], ours["stream_after"]))
    context = document["context"]
    print(f"\n{context['cpu']}, {context['cpus']} CPUs, {context['date'][:10]}, commit `{context['commit'][:7]}`, PyTorch "
          f"{context['versions']['torch']}; {beside} cells beside it, libattn behind in {behind}. "
          + "".join(f"Decode on {n} thread{'s' if n > 1 else ''}: {100 * min(x):.0f} % of the bandwidth of reading memory "
                    f"with as many at least, {100 * statistics.median(x):.0f} % in the median. "
                    for n, x in sorted(shares.items()))
          + f"Again: `{document['command']}`.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--library", help="path of libattn.so.0")
    parser.add_argument("--machine", default=platform.node(), help="name of the folder under bench/results")
    parser.add_argument("--output", help="file to write; - for none")
    parser.add_argument("--threads", help="such as 1,2; all of 1, 2 and 16 that this machine has when left out")
    parser.add_argument("--layout", choices=("bhsd", "bshd"), default="bhsd")
    parser.add_argument("--only", default="", help="cells whose `kind problem` contains this, such as 'decode b1'")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--slice", type=float, default=2e-3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each cell and thread count, about")
    parser.add_argument("--table", help="prints the table of a results file and does nothing else")
    options = parser.parse_args()
    if options.table:
        table(json.loads(Path(options.table).read_text(encoding="utf-8")))
        return 0
    lib = find_library(options.library)
    cpus = len(os.sched_getaffinity(0))
    counts = ([int(x) for x in options.threads.split(",")] if options.threads
              else [n for n in (1, 2, 16) if n <= cpus])
    ceilings = None
    try:
        ceilings = Ceilings(lib.c._name)
    except RuntimeError as error:
        print(f"decode without the bandwidth of memory: {error}", file=sys.stderr)
    rows, wrong = [], 0
    for make in cells(options.quick, options.layout):
        cell = make()
        if options.only not in f"{cell.kind} {cell.problem}":
            continue
        decode = cell.kind == "decode"
        for threads in sorted({counts[0], counts[-1]}) if decode else counts:
            torch.set_num_threads(threads)
            ours, name = cell.libattn(lib, threads)
            theirs = cell.torch()
            calls = [call for call in (ours, theirs) if call]
            with torch.no_grad():
                errors = [cell.error(call()) for call in calls]
                before = ceilings.stream(threads) if decode and ceilings else None
                samples = measure(calls, options.slice, options.seconds)
            if not errors[0] <= BOUND[cell.dtype] * (cell.largest if decode else 4):
                print(f"wrong: {name} on {cell.problem}: {errors[0]}", file=sys.stderr)
                wrong += 1
            more = {}
            if decode:
                more = {"layout": cell.layout, "mib": cell.bytes // MIB, "stream_before": before,
                        "stream_after": ceilings.stream(threads) if ceilings else None}
            for impl, error, seconds in zip((name, "torch-cpu"), errors, samples):
                microseconds = sorted(1e6 * s for s in seconds)
                median = statistics.median(microseconds)
                rows.append({"kind": cell.kind, "problem": cell.problem, "impl": impl, "threads": threads,
                             "median_us": median, "p10_us": microseconds[len(microseconds) // 10],
                             "p90_us": microseconds[len(microseconds) * 9 // 10], "samples": len(microseconds),
                             "gflops": cell.flops / median * 1e-3,
                             **({"gbs": cell.bytes / median * 1e-3} if decode else {}), **more, "max_error": error,
                             "reference": "float64, two heads" if decode else "float64, up to 64 rows a sequence"})
            mine, peer = rows[-len(calls)], rows[-1] if theirs else None
            ratio = peer["median_us"] / mine["median_us"] if peer else math.nan
            print(f"{cell.kind:6} {threads:2} {cell.problem:62} {mine['median_us']:11.1f} µs {rate(mine):>18}"
                  + (f"  PyTorch {peer['median_us']:11.1f} µs  {ratio:5.2f}" if peer else "")
                  + ("  BEHIND" if ratio < 1 else ""), flush=True)
    revision, dirty = commit()
    document = {
        "schema": 1, "what": "cpu-peers", "command": "python3 " + " ".join(["bench/cpu_peers.py", *sys.argv[1:]]),
        "context": {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                    "commit": revision, "dirty": dirty, "machine": options.machine, "cpu": cpu_model(), "cpus": cpus,
                    "layout": options.layout,
                    "versions": {"attn": lib.c.attn_version().decode(), "torch": torch.__version__,
                                 "numpy": numpy.__version__, "python": platform.python_version()}},
        "rows": rows}
    if options.output != "-" and rows:
        path = Path(options.output) if options.output else ROOT / "bench/results" / options.machine / "cpu-peers.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"written: {path}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
