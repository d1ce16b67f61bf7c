#!/usr/bin/env python3
"""The performance tables of the documents, from committed results: bench/tables.py cpu | forward | hard.

Standard library only. tests/docs checks that each block `<!-- begin: bench/tables.py NAME -->` holds what this
prints; ./dev docs --update rewrites them.
"""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
from forward_peers import cells, report  # noqa: E402

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


def parts_of(name):
    """The parts of a results file, bf16 first; none where there is no such run yet."""
    path = RESULTS / name
    if not path.exists():
        print("| |\n|---|\n| not measured yet |")
        return {}
    return dict(sorted(json.loads(path.read_text(encoding="utf-8"))["parts"].items()))


def by_cell(part, sections):
    found = {}
    for row in part["rows"]:
        if row["section"] in sections:
            found.setdefault((row["problem"], row["data"]), []).append(row)
    return found


def entry(rows, ratios):
    """What libattn did in a cell, and its ratio to the best peer there."""
    mine = next((row for row in rows or [] if report.name_of(row) == report.OURS and report.counts(row)), None)
    ratio = report.ratio(rows or [])
    if ratio:
        ratios.append((ratio, rows))
    return f"{mine['tflops']:.0f}" + (f" ({ratio:.2f})" if ratio else "") if mine else "–"


def mean_and_worst(ratios, what):
    def said(ratios):
        worst, rows = min(ratios, key=lambda item: item[0])
        return (f"geometric mean {report.geometric_mean([r for r, _ in ratios]):.3f}, worst "
                f"{worst:.3f} (`{rows[0]['problem']}`{'' if rows[0]['data'] == 'plain' else ', ' + rows[0]['data']})")

    if ratios:
        text = f"\nlibattn / best peer, {what}: {said(ratios)}"
        own = [[row for row in rows if report.name_of(row) != "fa3-bf16"] for _, rows in ratios]
        if any(len(rows) < len(all_rows) for rows, (_, all_rows) in zip(own, ratios)):
            own = [(report.ratio(rows), rows) for rows in own if report.ratio(rows)]
            text += f". Of the peers that compute in that type, without FlashAttention-3 in bf16: {said(own)}"
        print(text + ".")


def closing(part):
    context = part["context"]
    peers = dict.fromkeys(report.name_of(row) for row in part["rows"] if not report.ours(row) and report.counts(row))
    names = {"fa2": "FlashAttention-2 as PyTorch ships it", "cudnn": "cuDNN", "fa3": "FlashAttention-3",
             "fa3-bf16": "FlashAttention-3 in bf16", "fa4": "FlashAttention-4", "flex": "compiled flex_attention"}  # fmt: skip
    gemm = part["ceilings"].get("gemm_tflops")
    print(f"\nPeers: {', '.join(names.get(p, p) for p in peers)}. {context.get('gpu', '')}, "
          f"{context.get('power_limit_w', 0):.0f} W, driver {context.get('driver', '')}, PyTorch "
          f"{context['versions'].get('torch')}, {context['date']}, commit `{context['commit']}`"
          + (f"; a matrix product of 8192³ in the same run: {gemm:.0f} TFLOP/s" if gemm else "")
          + f". {context['protocol']}. Again, on a machine with an H200: `{part['command']}`.")


def forward():
    """The benchmark grid: TFLOP/s of libattn, and in brackets how many times that of the best peer in the same run."""
    for number, (dtype, part) in enumerate(parts_of("h200/forward-peers.json").items()):
        print(end="\n" if number else "")
        rows, ratios, sizes = by_cell(part, ("grid",)), [], sorted(cells.GRID_SEQLENS)
        print(f"| {dtype}, seqlen | " + " | ".join(cells._k(s) for s in sizes) + " |\n|---|" + "---|" * len(sizes))
        for d in sorted(cells.GRID_DIMS):
            for causal in (False, True):
                line = [entry(rows.get((cells.square("grid", s, d, causal, dtype).problem, "plain")), ratios) for s in sizes]
                print(f"| d {d}, {'causal' if causal else 'full'} | " + " | ".join(line) + " |")
        mean_and_worst(ratios, f"{dtype}, {len(ratios)} cells")
        closing(part)


def hard():
    """S = 4096 on data that is hard for a softmax of one pass, beside the same problem on plain data."""
    rows = {}
    for number, (dtype, part) in enumerate(parts_of("h200/forward-peers.json").items()):
        print(end="\n" if number else "")
        rows, ratios, plain = by_cell(part, ("grid", "hard")), [], []
        print(f"| {dtype}, 4k | " + " | ".join(cells.HARD_DATA) + " |\n|---|" + "---|" * len(cells.HARD_DATA))
        for d in (64, 128):
            for causal in (False, True):
                problem = cells.square("hard", 4096, d, causal, dtype).problem
                line = [entry(rows.get((problem, data)), plain if data == "plain" else ratios) for data in cells.HARD_DATA]
                print(f"| d {d}, {'causal' if causal else 'full'} | " + " | ".join(line) + " |")
        mean_and_worst(ratios, f"{dtype}, {len(ratios)} cells of hard data")
    if rows:
        print("\n" + "; ".join(f"{name}: {text}" for name, text in cells.HARD_DATA.items())
              + ". (Before: in the order of the kernels, which walk from the last keys to the first.) Of the same runs.")


if __name__ == "__main__":
    {"cpu": cpu, "forward": forward, "hard": hard}[sys.argv[1]]()
