"""bench/host_overhead.py without a GPU: on the CPU backend, and its launches against a stand-in for the driver that
refuses what a launch must not be."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cli
from cli import CliTest

DRIVER = """
#include <stdlib.h>
#include <string.h>
#define OK(name) int name() { return 0; }
OK(cuInit) OK(cuDeviceGet) OK(cuDevicePrimaryCtxRetain) OK(cuCtxSetCurrent) OK(cuStreamCreate) OK(cuModuleLoadData)
OK(cuModuleGetFunction) OK(cuFuncSetAttribute) OK(cuStreamSynchronize)
int cuDeviceGetName(char* s, int n, int d) { (void)n, (void)d; strcpy(s, "stand-in"); return 0; }
int cuMemAlloc_v2(unsigned long long* p, size_t n) {
  *p = (unsigned long long)aligned_alloc(256, (n + 255) / 256 * 256); return 0; }
int cuMemsetD8_v2(unsigned long long p, unsigned char c, size_t n) { memset((void*)p, c, n); return 0; }
struct Config { unsigned grid[3], block[3], shared; void* stream; void* attributes; unsigned number; };
int cuLaunchKernelEx(const struct Config* c, void* f, void** a, void** e) {
  (void)f, (void)e;
  return c->grid[0] != 132 || c->block[0] != 384 || c->shared != 204800 || c->number || !a[0]; }
"""
RUN = """
import sys
sys.path.insert(0, {bench!r})
import host_overhead
plan = host_overhead.Libattn.plan
host_overhead.Libattn.plan = lambda self, problem, backend: plan(self, problem, backend="cpu")
sys.argv = {argv!r}
sys.exit(host_overhead.main())
"""


class HostOverhead(CliTest):
    def setUp(self):
        super().setUp()
        self.library = Path(cli.ATTN).resolve().parents[2] / "src/libattn.so.0"
        self.cc = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
        if cli.SMALL or not self.library.exists() or not self.cc:
            self.skipTest("a sanitizer's or static library, or no C compiler")

    def run_script(self, *command, env=None):
        done = subprocess.run([sys.executable, "-B", *command], capture_output=True, text=True, cwd=self.dir,
                              env={**os.environ, "CC": self.cc, **(env or {})}, timeout=280)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def arguments(self):
        return [str(self.library), "--problems", "sq2 d8 fp32", "sq2 d8 bf16 causal=br", "--calls", "50", "--rounds", "2",
                "--json", "out.json"]

    def test_on_the_cpu(self):
        self.run_script(str(cli.ROOT / "bench/host_overhead.py"), *self.arguments(), "--backend", "cpu")
        document = json.loads((self.dir / "out.json").read_text())
        self.assertEqual([row["call"] for row in document["rows"]], ["attn_run", "attn_forward"] * 2)
        for row in document["rows"]:
            self.assertEqual(row["samples"], 90)
            self.assertLessEqual(0 < row["p10_us"], row["median_us"] <= row["p90_us"])

    def test_against_a_driver(self):
        source = self.write("driver.c", DRIVER.encode())
        subprocess.run([self.cc, "-shared", "-fPIC", "-w", "-o", self.dir / "driver.so", source], check=True)
        script = self.write("run.py", RUN.format(bench=str(cli.ROOT / "bench"), argv=["x", *self.arguments()]).encode())
        self.run_script(str(script), env={"ATTN_BENCH_LIBCUDA": str(self.dir / "driver.so")})
        document = json.loads((self.dir / "out.json").read_text())
        self.assertEqual(document["context"]["gpu"], "stand-in")
        rows = document["rows"]
        self.assertEqual([row["call"] for row in rows[:3]], ["bare cuLaunchKernelEx", "attn_run", "attn_forward"])
        self.assertAlmostEqual(rows[1]["above_bare_us"], rows[1]["median_us"] - rows[0]["median_us"], places=2)


if __name__ == "__main__":
    cli.main()
