#!/usr/bin/env python3
"""How libattn's CPU backend scales with threads, beside what the machine can do and beside PyTorch, in one process.

    bench/cpu_scaling.py --library build/src/libattn.so.0 --machine xeon-amx-16c
    bench/cpu_scaling.py --quick                   # a cell of each kind
    bench/cpu_scaling.py --table bench/results/xeon-amx-16c/cpu-scaling.json

On 1, 2, 4, 8 and 16 threads, as far as there are CPUs: heads of 2048 (all thread counts in fp32; the ends in bf16), with
the FMA peak of as many threads before and after each cell; heads of 512, 128, 64 and 32, where a call is short; decode
over 8k and 64k keys in three layouts, with the bandwidth of reading memory before and after. Products take turns with
PyTorch as in bench/cpu_peers.py. Every output is checked against attention in float64. Writes bench/results/<machine>/
cpu-scaling.json and prints it as a table; a cell that starts after --budget-seconds is left out, and said so. Needs
what bench/cpu_peers.py needs, a C++ compiler ($CXX or c++) and libattn.a beside the library: the peak and the bandwidth
are those of `attn bench`. Exit codes: 0 measured; 1 an output is wrong; 2 what is needed is missing.
Tested in tests/cli/cpu_scaling_test.py."""
import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True

COUNTS = (1, 2, 4, 8, 16)
RESERVE_S = 6  # of the budget, for the ceilings at the end


def missing(what):
    print(f"cpu_scaling.py: {what}", file=sys.stderr)
    sys.exit(2)


class Scaling:
    """One run: what is measured so far, and the time that is left."""

    def __init__(self, options):
        import cpu_peers  # says what is missing, and exits
        import torch
        from cpu_ceilings import Ceilings

        self.peers, self.torch, self.quick = cpu_peers, torch, options.quick
        self.lib = cpu_peers.find_library(options.library)
        try:
            self.ceilings_of = Ceilings(self.lib.c._name)
        except RuntimeError as error:
            missing(error)
        self.cpus = len(os.sched_getaffinity(0))
        self.counts = [n for n in COUNTS if n <= self.cpus]
        self.ends = sorted({1, 2, self.counts[-1]} & set(self.counts))
        self.start, self.budget = time.perf_counter(), options.budget_seconds
        self.rows, self.ceilings, self.left_out, self.wrong = [], {}, [], 0

    def elapsed(self):
        return time.perf_counter() - self.start

    def late(self, what, threads):
        if self.elapsed() > self.budget - RESERVE_S:
            self.left_out.append(f"{what}, {threads} threads")
            return True
        return False

    def check(self, impl, problem, error, bound):
        if not error <= bound:
            print(f"wrong: {impl} on {problem}: {error}, allowed {bound}", file=sys.stderr)
            self.wrong += 1

    def measure_ceilings(self, when):
        words = (16 if self.quick else 512) * self.peers.MIB // 4
        data = self.torch.ones(words)
        for n in self.counts:
            self.torch.set_num_threads(n)
            mine = self.ceilings_of.stream(n, 0.15)
            theirs = words * 4 / min(self.peers.seconds_of(data.sum, 1) for _ in range(4)) * 1e-9
            for name, rate in (("fma_peak_gflops", self.ceilings_of.fma_peak(n, 0.06)), ("stream_gbs", mine),
                               ("stream_torch_gbs", theirs)):
                self.ceilings.setdefault(name, {}).setdefault(when, {})[str(n)] = rate

    def product(self, kind, dtype, heads, seqlen, dim, causal, counts, seconds, beside=True):
        """A dense problem on each thread count, in turns with PyTorch."""
        cell = self.peers.Cell(kind, dtype, 1, heads, heads, [seqlen], [seqlen], dim, causal, "bhsd")
        for n in counts:
            if self.late(cell.problem, n):
                continue
            self.torch.set_num_threads(n)
            ours, name = cell.libattn(self.lib, n)
            calls = [ours] + ([cell.torch()] if beside else [])
            with self.torch.no_grad():
                errors = [cell.error(call()) for call in calls]
                peaks = [self.ceilings_of.fma_peak(n)] if seqlen >= 2048 else []
                samples = self.peers.measure(calls, 2e-3, seconds)
                peaks += [self.ceilings_of.fma_peak(n)] if peaks else []
            self.check(name, cell.problem, errors[0], self.peers.BOUND[dtype] * 4)
            for impl, error, times in zip((name, "torch-cpu"), errors, samples):
                row = {"kind": kind, "problem": cell.problem, "impl": impl, "threads": n, **spread(times), "max_error": error,
                       "fma_peak_before": peaks[0] if peaks else None, "fma_peak_after": peaks[1] if peaks else None}
                self.rows.append({**row, "gflops": cell.flops / row["median_us"] * 1e-3})

    def decode(self, dtype, batch, keys, layout, counts):
        cell = self.peers.Decode(dtype, batch, keys, layout)
        for n in counts:
            if self.late(f"{cell.problem} {layout}", n):
                continue
            self.torch.set_num_threads(n)
            run, name = cell.libattn(self.lib, n)
            error = cell.error(run())
            self.check(layout, cell.problem, error, self.peers.BOUND[dtype] * cell.largest)
            before = self.ceilings_of.stream(n)
            times, theirs = self.decode_times(run, cell.torch() if layout == "bhsd" else None)
            self.rows.append({
                "kind": "decode", "problem": cell.problem, "layout": layout, "impl": name, "threads": n, **spread(times),
                "gbs": cell.bytes / statistics.median(times) * 1e-9, "mib": cell.bytes // self.peers.MIB,
                "stream_before": before, "stream_after": self.ceilings_of.stream(n), "max_error": error,
                "torch_median_us": 1e6 * statistics.median(theirs) if theirs else None, "splits": cell.splits})

    def decode_times(self, run, peer):
        """Single calls, each after one more of its own: what PyTorch leaves in the caches does not count."""
        times, theirs = [], []
        start = time.perf_counter()
        with self.torch.no_grad():
            while len(times) < 5 or (time.perf_counter() - start < 0.25 and len(times) < 40):
                run()
                times.append(self.peers.seconds_of(run, 1))
                if peer and len(theirs) < 7:
                    theirs.append(self.peers.seconds_of(peer, 1))
                    time.sleep(self.peers.REST_S)
        return times, theirs

    def measure(self):
        self.ceilings_of.fma_peak(self.counts[-1], 0.3)  # clocks rise
        self.measure_ceilings("before")
        both, dims, masks = ("fp32", "bf16"), (64, 128), (False, True)
        if self.quick:
            self.product("grid", "fp32", 2, 2048, 64, True, self.counts, 0.1)
            self.product("grid", "bf16", 8, 128, 128, False, self.ends, 0.1)
            self.product("small", "fp32", 12, 32, 64, False, self.ends, 0.1)
            self.product("call", "bf16", 1, 1, 16, False, (1,), 0.1)
            for layout in ("bshd", "paged16", "bhsd"):
                self.decode("bf16", 1, 1024, layout, (1, self.counts[-1]))
            return
        for seqlen, seconds in ((2048, 0.35), (512, 0.3), (128, 0.3)):
            for dtype in both:
                for dim in dims:
                    for causal in masks:
                        counts = self.counts if seqlen == 2048 and dtype == "fp32" else self.ends
                        self.product("grid", dtype, 1024 // dim, seqlen, dim, causal, counts, seconds)
        for dtype in both:
            for seqlen in (32, 64):
                self.product("small", dtype, 12, seqlen, 64, False, self.ends, 0.2)
            self.product("call", dtype, 1, 1, 16, False, (1,), 0.2)
        for dtype in both if self.counts[-1] >= 8 else ():  # more tasks than threads by far
            self.product("many", dtype, 64, 2048, 128, True, (self.counts[-1],), 0.5, beside=False)
        ends = sorted({1, self.counts[-1]})
        for keys, batch, layouts in ((65536, 1, ("bshd", "paged16", "bhsd")), (8192, 8, ("bshd", "paged16", "bhsd")),
                                     (8192, 1, ("bshd", "paged16"))):
            for dtype in (*both, "fp16"):
                for layout in layouts:
                    self.decode(dtype, batch, keys, layout, ends)
        self.product("grid", "fp16", 8, 2048, 128, False, (1,), 0.3)
        self.measure_ceilings("after")


def spread(seconds):
    us = sorted(1e6 * s for s in seconds)
    return {"median_us": statistics.median(us), "min_us": us[0], "p10_us": us[len(us) // 10],
            "p90_us": us[len(us) * 9 // 10], "samples": len(us)}


def ratio(row, rows):
    """PyTorch's time by libattn's, of the same cell; None where it was not beside it."""
    if row["kind"] == "decode":
        return row["torch_median_us"] / row["median_us"] if row["torch_median_us"] else None
    for other in rows:
        if other["impl"] == "torch-cpu" and (other["problem"], other["threads"]) == (row["problem"], row["threads"]):
            return other["median_us"] / row["median_us"]
    return None


def table(document):
    context, rows = document["context"], document["rows"]
    ours = [row for row in rows if row["impl"] != "torch-cpu"]
    one = {row["problem"]: row["median_us"] for row in ours if row["threads"] == 1 and row["kind"] != "decode"}
    print("| problem | threads | time | rate | speed-up | of the ceiling beside it | by PyTorch |")
    print("|---|---|---|---|---|---|---|")
    behind = []
    for row in ours:
        by = ratio(row, rows)
        if by is not None and by < 1:
            behind.append(row)
        decode = row["kind"] == "decode"
        rate = f"{row['gbs']:.1f} GB/s" if decode else f"{row['gflops']:.0f} GFLOP/s"
        tops = [row[k] for k in (("stream_before", "stream_after") if decode else ("fma_peak_before", "fma_peak_after"))]
        share = f"{100 * row['gbs' if decode else 'gflops'] / max(tops):.0f} %" if tops[0] else ""
        gain = f"{one[row['problem']] / row['median_us']:.2f}" if not decode and row["problem"] in one else ""
        layout = f" {row['layout']}" if decode else ""
        print(f"| `{row['problem']}`{layout} | {row['threads']} | {row['median_us']:.4g} µs | {rate} | {gain} | {share} "
              f"| {'' if by is None else f'{by:.2f}'} |")
    for name, runs in document["ceilings"].items():
        for when, rates in runs.items():
            print(f"{name} {when}: " + ", ".join(f"{n} threads {rate:.1f}" for n, rate in rates.items()))
    for what in document["left_out"]:
        print(f"left out, the time was used up: {what}")
    print(f"{context['cpu']}, {context['cpus']} CPUs, {context['date'][:10]}, commit `{context['commit'][:7]}`, PyTorch "
          f"{context['versions']['torch']}; libattn behind in {len(behind)} cells. Again: `{document['command']}`.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n    bench", maxsplit=1)[0],
                                     epilog="\n\n".join(__doc__.split("\n\n")[2:]),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="path of libattn.so.0, libattn.a beside it (default: that of build)")
    parser.add_argument("--machine", default=platform.node(), help="name of the folder under bench/results")
    parser.add_argument("--output", help="file to write; - for none")
    parser.add_argument("--commit", default="", help="what is measured, where git cannot say it")
    parser.add_argument("--budget-seconds", type=float, default=132, help="no cell starts later (default 132)")
    parser.add_argument("--quick", action="store_true", help="a small cell of each kind")
    parser.add_argument("--table", help="prints the table of a results file and does nothing else")
    options = parser.parse_args()
    if options.table:
        table(json.loads(Path(options.table).read_text(encoding="utf-8")))
        return 0
    run = Scaling(options)
    load = os.getloadavg()
    run.measure()
    peers = run.peers
    revision, dirty = (options.commit, False) if options.commit else peers.commit()
    document = {
        "schema": 1, "what": "cpu-scaling", "command": " ".join(["python3 bench/cpu_scaling.py", *sys.argv[1:]]),
        "context": {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "commit": revision,
                    "dirty": dirty, "machine": options.machine, "cpu": peers.cpu_model(), "cpus": run.cpus, "layout": "bhsd",
                    "fma_level": run.ceilings_of.level.decode(), "load": load, "load_after": os.getloadavg(),
                    "seconds": run.elapsed(),
                    "versions": {"attn": run.lib.c.attn_version().decode(), "torch": run.torch.__version__,
                                 "numpy": peers.numpy.__version__, "python": platform.python_version()},
                    "reference": "float64; products up to 64 rows a sequence, decode two heads of the first"},
        "ceilings": run.ceilings, "left_out": run.left_out, "rows": run.rows}
    table(document)
    if options.output != "-":
        path = Path(options.output) if options.output else ROOT / "bench/results" / options.machine / "cpu-scaling.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"written: {path}")
    return 1 if run.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
