#!/usr/bin/env python3
"""Compiles one kernel (the heaviest) and checks what that costs: compile_cost.py SECONDS MEBIBYTES NVCC ARGUMENTS…

CPU seconds of the compiler and all it starts, and the largest resident set of any one of them. A machine that is busy
with other work counts up to twice the CPU time (shared caches and hardware threads), so twice SECONDS fail.
"""
import resource
import subprocess
import sys


def main():
    seconds, mebibytes, command = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    print(f"{cpu:.1f} s of CPU time (limit {seconds:.0f}, {2 * seconds:.0f} on a busy machine), {memory:.0f} MiB "
          f"(limit {mebibytes:.0f})")
    return 0 if cpu <= 2 * seconds and memory <= mebibytes else 1


if __name__ == "__main__":
    sys.exit(main())
