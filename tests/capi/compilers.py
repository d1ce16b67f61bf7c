#!/usr/bin/env python3
"""Report B45: programs in C11 and in C++ with either std::string ABI, built by every compiler on PATH, link libattn and
compute right values, in an environment without any variable. Prints what was built; exit code 1 at the first failure.
"""
import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=Path, help="libattn.so")
    parser.add_argument("--include", required=True, type=Path)
    parser.add_argument("compilers", nargs="*", help="beside gcc, clang, g++ and clang++")
    options = parser.parse_args()
    c_compilers = [c for c in ("gcc", "clang") if shutil.which(c)]
    cxx_compilers = [c for c in ("g++", "clang++", *options.compilers) if shutil.which(c)]
    jobs = [([c, "-std=c11"], "client.c", "C11") for c in c_compilers]
    jobs += [([c, "-std=c++11", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-DATTN_EXPECTED_ABI={abi}"], "client.cpp",
              f"C++ with string ABI {abi}") for c in cxx_compilers for abi in (0, 1)]
    if not jobs:
        print("SKIP: no compiler on PATH")
        return 77
    folder = options.library.parent
    with tempfile.TemporaryDirectory() as work:
        for number, (compiler, source, what) in enumerate(jobs):
            program = Path(work) / f"client{number}"
            subprocess.run([*compiler, "-Wall", "-Wextra", "-Werror", f"-I{options.include}", HERE / source, "-o", program,
                            f"-L{folder}", "-lattn", f"-Wl,-rpath,{folder}", "-lm"], check=True)
            done = subprocess.run([program], env={}, capture_output=True, text=True)
            print(f"{compiler[0]}, {what}: exit code {done.returncode}, {done.stdout.strip()} {done.stderr.strip()}")
            if done.returncode != 0 or "0 failed" not in done.stdout:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
