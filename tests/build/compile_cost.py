#!/usr/bin/env python3
"""Reports B44 (Dao-AILab/flash-attention PR#2079, #945, #1581, pytorch/pytorch PR#130443): builds that took gigabytes
for each compiler process and killed the machine, or wanted a CUDA toolkit that the user had no use for.

  memory  compiles the units of src with the largest objects again, one at a time, and holds each to the memory that ./dev counts
          on for one job; prints memory and CPU seconds
  cuda    what this build found and runs holds no CUDA compiler unless it was asked for (ATTN_CUDA)
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

MOST_BYTES = 1 << 30  # MEMORY_PER_JOB of ./dev
UNITS = 3


def built_units(build, source):
    """(object size, command, position of its output, entry) of what src has built here, the largest first."""
    units = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        command = shlex.split(entry["command"])
        if not Path(entry["file"]).is_relative_to(source / "src") or "-o" not in command:
            continue
        at = command.index("-o") + 1
        target = Path(entry["directory"]) / command[at]
        if target.exists():
            units.append((target.stat().st_size, command, at, entry))
    return sorted(units, key=lambda unit: -unit[0])


def check_memory(build, source):
    if not (build / "compile_commands.json").exists():
        print("SKIP: no compile_commands.json (the presets make it)")
        return 77
    units = built_units(build, source)[:UNITS]
    if not units:
        print("no unit of src was built here")
        return 1
    failed = 0
    for _, command, at, entry in units:
        with tempfile.NamedTemporaryFile(suffix=".o") as target:
            command[at] = target.name
            # Without the launcher: a cache would compile nothing.
            command = command[next(i for i, word in enumerate(command) if "ccache" not in word):]
            process = subprocess.Popen(command, cwd=entry["directory"])
            _, status, usage = os.wait4(process.pid, 0)
        peak, seconds = usage.ru_maxrss << 10, usage.ru_utime + usage.ru_stime
        print(f"{Path(entry['file']).relative_to(source)}: {peak >> 20} MiB, {seconds:.1f} CPU seconds")
        if status != 0 or peak > MOST_BYTES:
            print(f"  exit status {status}; allowed: 0 and {MOST_BYTES >> 20} MiB")
            failed += 1
    return 1 if failed else 0


def check_cuda(build):
    cache = (build / "CMakeCache.txt").read_text(errors="replace")
    if "ATTN_CUDA:" in cache and "ATTN_CUDA:STRING=OFF" not in cache:
        print("SKIP: this build has GPU kernels")
        return 77
    entries = [line for line in cache.splitlines() if not line.startswith(("//", "#")) and not line.endswith("=")]
    found = [line for line in entries if "nvcc" in line.lower() or line.startswith("CMAKE_CUDA_COMPILER:")]
    print("\n".join(found) if found else "no CUDA compiler in this build")
    return 1 if found else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=["memory", "cuda"])
    parser.add_argument("--build", required=True, type=Path)
    parser.add_argument("--source", required=True, type=Path)
    options = parser.parse_args()
    build, source = options.build.resolve(), options.source.resolve()
    return check_memory(build, source) if options.check == "memory" else check_cuda(build)


if __name__ == "__main__":
    sys.exit(main())
