#!/usr/bin/env python3
"""libattn's forward pass beside its peers on one GPU, in one run: FlashAttention's benchmark grid, hard data, further
shapes, sustained load.

    python3 bench/peers.py --libattn build/python --dtype bf16
    python3 bench/peers.py --libattn build/src/libattn.so.0 --against before/libattn.so.0 --cells quick

On a machine with a GPU and PyTorch. Peers: PyTorch's FlashAttention-2 and cuDNN backends, FlashAttention-3 (PyPI fa3-fwd),
and where asked for flex_attention (--flex) and FlashAttention-4 (--fa4, PyPI flash-attn-4); one that is not installed is
named as missing. All over the same tensors, calls in a CUDA graph, windows in turn with pauses, medians; every output is
judged against float64 on chosen rows of four heads, and everywhere against the first that was right. A contender that
crashes or hangs costs its cell and no more. Files are written after every cell; the table is printed last.

Times of a default run on an H200, at most: start 30 s, ceilings 5 s, 3 s a cell of the grid (36), of hard data (20) and of
further shapes (14), 8 s of sustained load (6): 290 s. --flex and --fa4 add up to 15 s a compiled case.
Tested in tests/cli/peers_test.py.
"""
import argparse
import json
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from forward_peers import cells as cells_of  # noqa: E402
from forward_peers import report, supervise  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("fa2", "cudnn", "fa3")


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libattn", default=str(ROOT / "build/python"), metavar="PATH",
                        help="folder with the package attn, or a libattn.so.0 (default build/python)")
    parser.add_argument("--against", metavar="PATH", help="another build's, as one more contender: before")
    parser.add_argument("--kernels", default="", metavar="NAMES",
                        help="kernels by name (attn list), comma-separated, each as one more contender: k1, k2, …")
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--cells", default="all", help="grid, hard, sustained, extra (comma-separated), quick, or all")
    parser.add_argument("--only", default="", metavar="REGEX", help="of these, cells whose name in the table matches")
    parser.add_argument("--peers", default=",".join(PEERS), help="default fa2,cudnn,fa3")
    parser.add_argument("--flex", action="store_true", help="flex_attention too, at d 128 and 1k, 4k, 16k")
    parser.add_argument("--fa4", action="store_true", help="FlashAttention-4 too")
    parser.add_argument("--budget-seconds", type=float, default=480, help="no cell starts that would end later")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--window", type=float, default=10, metavar="MS")
    parser.add_argument("--pause", type=float, default=20, metavar="MS", help="before each window")
    parser.add_argument("--sustain", type=float, default=1, metavar="S", help="of load, and of rest before it")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default bench/results/MACHINE")
    parser.add_argument("--machine", default="h200")
    parser.add_argument("--commit", default="", help="what is measured, where git cannot say it")
    parser.add_argument("--adopt", type=Path, nargs="+", metavar="FILE", help="measure nothing: put the parts of these files "
                        "(another machine's runs) into --output's")
    parser.add_argument("--no-ceilings", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the program")
    parser.add_argument("--shrink", type=int, default=1, help="smaller cells, to try the program")
    options = parser.parse_args(argv)
    try:
        cells = cells_of.choose(options.cells, options.dtype)
        cells = [cell for cell in cells if re.search(options.only, cell.label)]
    except (KeyError, re.error) as error:
        parser.error(f"--cells or --only: {error}; allowed: {', '.join(cells_of.SECTIONS)}, quick, all, and a regex")
    if options.shrink > 1:
        cells = list({c.key: c for c in (cells_of.shrunk(cell, options.shrink) for cell in cells)}.values())
    if not cells:
        parser.error("no cell is left")
    return options, cells


def adopt(files, folder):
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        report.write(folder / f"{document['what']}.json", document["what"], document["parts"])
        print(f"{folder / document['what']}.json: {', '.join(document['parts'])}")
    return 0


def command_of(options):
    """What measures this again from the repository's root, wherever this run had its files."""
    words = ["python3 bench/peers.py --libattn build/python", f"--dtype {options.dtype}"]
    defaults = parse([])[0]
    for name in ("cells", "only", "kernels", "peers", "rounds", "window", "pause", "sustain", "device", "shrink"):
        value = getattr(options, name)
        if value != getattr(defaults, name):
            words.append(f"--{name} {value:g}" if isinstance(value, float) else f"--{name} '{value}'" if name == "only" else
                         f"--{name} {value}")
    return " ".join(words + ["--flex"] * options.flex + ["--fa4"] * options.fa4 + ["--against BEFORE"] * bool(options.against))


def main(argv):
    options, cells = parse(argv)
    if options.adopt:
        return adopt(options.adopt, options.output or ROOT / "bench/results" / options.machine)
    libraries = [["libattn", options.libattn, None]]
    if options.against:
        libraries.append(["before", options.against, None])
    kernels = [name for name in options.kernels.split(",") if name]
    libraries += [[f"k{i}", options.libattn, name] for i, name in enumerate(kernels, 1)]
    peers = [name for name in options.peers.split(",") if name]
    peers += ["flex"] * options.flex + ["fa4"] * options.fa4
    names = peers + [name for name, _, _ in libraries]
    config = {"contenders": names, "dtype": options.dtype, "libattn": libraries, "device": options.device,
              "rounds": options.rounds, "window_ms": options.window, "pause_ms": options.pause,
              "sustain_s": options.sustain, "skip_ceilings": options.no_ceilings}  # fmt: skip
    protocol = (f"CUDA graphs, {options.rounds} rounds in turns, windows of {options.window:g} ms after pauses of "
                f"{options.pause:g} ms, medians; sustained: {options.sustain:g} s of load after as much rest")
    results = report.Results(options.output or ROOT / "bench/results" / options.machine, options.dtype,
                             command_of(options), protocol, options.machine, options.commit)
    print(f"{len(cells)} cells, {', '.join(names)}; at most {options.budget_seconds:.0f} s", flush=True)
    labels = {cell.key: cell.label for cell in cells}
    begin = time.monotonic()

    def say(key, rows):
        rates = ", ".join(f"{report.name_of(r)} {report._entry(r)}" for r in rows)
        print(f"[{time.monotonic() - begin:4.0f} s] {labels[key]}: {rates}", file=sys.stderr, flush=True)

    outcome = supervise.run(config, cells, options.budget_seconds, results.save, say)
    results.save(outcome)
    shown = [{"fa3": "fa3-bf16"}.get(n, n) if options.dtype == "fp16" else n for n in names if n not in outcome.missing]
    lines = report.reasons(outcome) + [f"note: {note[:300]}" for note in outcome.notes[:12]]
    lines += [f"missing: {name}: {why[:200]}" for name, why in outcome.missing.items()]
    lines += [f"k{i}: {name}" for i, name in enumerate(kernels, 1)] + report.table(outcome, shown)
    print("\n".join(lines))
    print(f"TFLOP/s, {options.dtype}; ceilings: "
          + (", ".join(f"{k} {v}" for k, v in outcome.ceilings.items()) or "not measured")
          + f"; {time.monotonic() - begin:.0f} s; {results.folder}")
    if outcome.fatal:
        print(f"peers.py: {outcome.fatal}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
