#!/usr/bin/env python3
"""The performance tables of the documents, from committed results: bench/tables.py cpu | h200.

Standard library only. tests/docs checks that each block `<!-- begin: bench/tables.py NAME -->` holds what this
prints; ./dev docs --update rewrites them.
"""
import json
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def load(name):
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def cpu():
    """Rows of `attn bench`: time, rate and share of the core's own measured FMA peak."""
    result = load("xeon-amx-2c/cpu.json")
    context = result["context"]
    print("| problem | kernel | time | GFLOP/s | of FMA peak | GB/s |\n|---|---|---|---|---|---|")
    for row in result["rows"]:
        share = row.get("share_of_peak")
        print(f"| `{row['problem']}` | {row['impl'].removeprefix('libattn:')} | {row['median_us'] / 1000:.3g} ms "
              f"| {row['gflops']:.3g} | {f'{100 * share:.0f} %' if share is not None else ''} | {row['gbs']:.3g} |")
    print(f"\n{context['cpu']}, {context['threads']} thread(s), {context['date'][:10]}, commit "
          f"`{context['commit'][:7]}`, {context['compiler']}; peak {result['ceilings']['fma_peak_gflops']:.0f} GFLOP/s, "
          f"memory read at {result['ceilings']['stream_gbs']:.1f} GB/s in that run (a shared virtual machine). "
          f"Again: `{result['command']}`.")


def h200():
    """libattn's kernels beside FlashAttention-2 of the same run, S = 4096."""
    result = load("h200/full_4096_plain.json")
    context = result["context"]
    rates = {(row["problem"], row["impl"]): row["tflops"] for row in result["rows"]}
    print("| problem | libattn, TFLOP/s | FlashAttention-2 | ratio |\n|---|---|---|---|")
    for (problem, implementation), rate in rates.items():
        if implementation.startswith("libattn:sm90_fwd_"):
            peer = rates[problem, "torch-fa2"]
            print(f"| `{problem}` | {rate:.0f} | {peer:.0f} | {rate / peer:.2f} |")
    print(f"\n{context['gpu']}, {context['power_limit_w']:.0f} W, driver {context['driver']}, PyTorch "
          f"{context['versions']['torch']}, {context['date']}, commit `{context['commit']}`; {context['protocol']}. "
          f"Again, on a machine with an H200: `{result['command']}`.")


if __name__ == "__main__":
    {"cpu": cpu, "h200": h200}[sys.argv[1]]()
