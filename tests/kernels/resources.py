#!/usr/bin/env python3
"""What the compiler made of the kernels, checked without a GPU; writes kernels.json.

  resources.py MANIFEST FOLDER OUTPUT [--cuobjdump PATH] [--bounds FILE]

FOLDER holds NAME.cubin and NAME.log (what ptxas said, and the compiler's CPU time) of each kernel of the
manifest's list "kernels". Fails on: a stack frame that is more than its spills, spills over the bound, a warning
that WGMMA was serialised or that setmaxnreg was ignored (any C75xx), registers that are not what the launch needs,
compile time over 20 CPU seconds (when it was measured on an idle machine: see BUSY), and code without wgmma or
bulk tensor copies. Exit code 0 only if every kernel passes.
"""
import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

MAX_SPILL_BYTES = 24    # measured: 0 with two consumer warpgroups, 8 with three, at a tile's ends
MAX_CPU_SECONDS = 20.0
BUSY = 2.0              # a CPU that others use as well counts up to twice the time (shared caches and threads)
# SASS that must be there: wgmma, TMA loads and stores, matrix stores to shared memory, the register hand-over.
REQUIRED = {"HGMMA": "wgmma", "UTMALDG": "TMA loads", "UTMASTG": "TMA stores", "STSM": "stmatrix",
            "USETMAXREG": "setmaxnreg", "MUFU.EX2": "ex2"}
# … and what must not be: matrix products of older kinds.
FORBIDDEN = {"HMMA": "mma.sync products"}


def cpu_seconds(log):
    lines = re.findall(r"^(\d+)m([\d.]+)s (\d+)m([\d.]+)s$", log, re.M)
    if not lines:
        return None
    a, b, c, d = map(float, lines[-1])
    seconds = 60 * (a + c) + b + d
    return round(seconds, 2) if seconds > 0 else None


def ptxas(log):
    def number(pattern):
        found = re.search(pattern, log)
        return int(found.group(1)) if found else None
    return {"registers": number(r"Used (\d+) registers"), "stack_bytes": number(r"(\d+) bytes stack frame"),
            "spill_store_bytes": number(r"(\d+) bytes spill stores"),
            "spill_load_bytes": number(r"(\d+) bytes spill loads"),
            "warnings": re.findall(r"\((C75\d\d)\)[^\n]*", log)}


def opcodes(cuobjdump, cubin):
    text = subprocess.run([cuobjdump, "-sass", str(cubin)], capture_output=True, text=True, check=True).stdout
    counts = {}
    for line in text.splitlines():
        found = re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)", line)
        if found:
            counts[found.group(1)] = counts.get(found.group(1), 0) + 1
    return counts


def shared_bytes(k):
    """As sm90/config.hpp: shared_bytes."""
    tile_m = 64 * k["warpgroups"]
    stored = lambda d: (d + 63) // 64 * 64
    return (2 * stored(k["head_dim_qk"]) * (k["q_slots"] * tile_m + k["k_stages"] * k["tile_n"]) +
            2 * stored(k["head_dim_v"]) * k["v_stages"] * k["tile_n"] +
            (4 * k["warpgroups"] * 2 * 16 * 128 if k["q_slots"] == 1 else 0) + 1024)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("manifest", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--cuobjdump", default="cuobjdump")
    arguments = parser.parse_args()
    # nvdisasm is looked for on PATH by cuobjdump.
    os.environ["PATH"] = str(Path(arguments.cuobjdump).resolve().parent) + os.pathsep + os.environ["PATH"]
    have_sass = subprocess.run([arguments.cuobjdump, "--version"], capture_output=True, check=False).returncode == 0 \
        if Path(arguments.cuobjdump).exists() else False

    failures, rows = [], []
    for kernel in json.loads(arguments.manifest.read_text())["kernels"]:
        name = kernel["name"]
        log = (arguments.folder / f"{name}.log").read_text()
        cubin = arguments.folder / f"{name}.cubin"
        row = {"name": name, **ptxas(log), "shared_bytes": shared_bytes(kernel), "cubin_bytes": cubin.stat().st_size,
               "compile_cpu_seconds": cpu_seconds(log)}

        def expect(condition, text):
            if not condition:
                failures.append(f"{name}: {text}")

        threads = 128 * (kernel["warpgroups"] + 1)
        launch_registers = 65536 // threads // 8 * 8
        expect(row["registers"] == launch_registers,
               f"{row['registers']} registers at launch; setmaxnreg counts on {launch_registers}")
        expect(row["spill_store_bytes"] is not None and row["spill_store_bytes"] <= MAX_SPILL_BYTES,
               f"{row['spill_store_bytes']} bytes of spills; allowed: {MAX_SPILL_BYTES}")
        # ptxas puts spills on the stack, in units of 8 bytes; anything beyond them is an array in local memory.
        expect(row["stack_bytes"] <= (row["spill_store_bytes"] + 7) // 8 * 8,
               f"a stack frame of {row['stack_bytes']} bytes beside {row['spill_store_bytes']} of spills")
        expect(not row["warnings"], f"ptxas said {', '.join(sorted(set(row['warnings'])))}")
        expect(row["shared_bytes"] <= 232448, f"{row['shared_bytes']} bytes of shared memory")
        seconds = row["compile_cpu_seconds"]
        expect(seconds is None or seconds <= MAX_CPU_SECONDS * BUSY, f"compiled in {seconds} s of CPU time")
        if have_sass:
            counts = opcodes(arguments.cuobjdump, cubin)
            total = lambda prefix: sum(n for op, n in counts.items() if op == prefix or op.startswith(prefix + "."))
            row["instructions"] = sum(counts.values())
            row["sass"] = {op: total(op) for op in (*REQUIRED, *FORBIDDEN, "FMNMX", "LDL", "STL")}
            for op, what in REQUIRED.items():
                expect(row["sass"][op] > 0, f"no {op} in the code: {what} are missing")
            for op, what in FORBIDDEN.items():
                expect(row["sass"][op] == 0, f"{row['sass'][op]} {op} in the code: {what}")
        rows.append(row)

    arguments.output.write_text(json.dumps({"kernels": rows}, indent=1) + "\n")
    print(f"{'kernel':34} {'regs':>5} {'spill':>6} {'smem':>7} {'cubin':>7} {'cpu s':>6} {'HGMMA':>6}")
    for row in rows:
        print(f"{row['name']:34} {row['registers']:5} {row['spill_store_bytes']:6} {row['shared_bytes']:7} "
              f"{row['cubin_bytes']:7} {row['compile_cpu_seconds'] or 0:6.1f} {row.get('sass', {}).get('HGMMA', 0):6}")
    if not have_sass:
        print("no cuobjdump: the machine code was not looked at")
    for failure in failures:
        print(f"FAIL {failure}")
    return 1 if failures or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
