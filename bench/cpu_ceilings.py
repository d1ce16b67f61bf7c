"""What a CPU can do, as `attn bench` measures it: bench/cpu_ceilings.cpp compiled and linked with libattn.a. For
bench/cpu_peers.py and bench/cpu_scaling.py; tested in tests/cli/cpu_scaling_test.py. Standard library only."""
import ctypes
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Ceilings:
    """FMA peak and memory bandwidth; the peak on several threads at once. RuntimeError says what is missing."""

    def __init__(self, library):
        compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
        archive = Path(library).resolve().parent / "libattn.a"
        if not compiler or not archive.exists():
            raise RuntimeError(f"no {archive}" if compiler else "no C++ compiler; CXX names one")
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder) / "ceilings.so"
            done = subprocess.run([compiler, "-std=c++20", "-O2", "-shared", "-fPIC", f"-I{ROOT}/include", f"-I{ROOT}/src",
                                   ROOT / "bench/cpu_ceilings.cpp", archive, "-lhwy", "-ltbb", "-o", built],
                                  capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"bench/cpu_ceilings.cpp does not link with {archive}:\n{done.stderr}")
            self.c = ctypes.CDLL(str(built))
        self.c.cpu_fma_peak.restype = self.c.cpu_stream.restype = ctypes.c_double
        self.c.cpu_fma_peak.argtypes = [ctypes.c_char_p, ctypes.c_double]
        self.c.cpu_stream.argtypes = [ctypes.c_int, ctypes.c_double]
        levels = (b"avx3", b"avx2", b"neon", b"sse4", b"scalar")
        self.level = next(level for level in levels if self.c.cpu_fma_peak(level, 1e-3) > 0)

    def fma_peak(self, threads, seconds=0.02):
        """GFLOP/s of `threads` threads that are busy at once, summed; ctypes lets go of Python's lock."""
        rates = [0.0] * threads

        def body(i):
            rates[i] = self.c.cpu_fma_peak(self.level, seconds)

        team = [threading.Thread(target=body, args=(i,)) for i in range(threads)]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        return sum(rates)

    def stream(self, threads, seconds=0.05):
        return self.c.cpu_stream(threads, seconds)
