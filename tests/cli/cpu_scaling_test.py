"""bench/cpu_scaling.py: the table of the committed run says what its rows do, what is missing ends it with 2, and
(where PyTorch is installed) the whole program runs, writes the form of bench/results, and sees a wrong output."""
import json

import cli
from cpu_bench import ROOT, CpuBenchTest

RESULT = ROOT / "bench/results/xeon-amx-16c/cpu-scaling.json"


class CpuScaling(CpuBenchTest):
    NAME = "cpu_scaling"

    def test_table(self):
        text = self.script("--table", str(RESULT))
        document = json.loads(RESULT.read_text(encoding="utf-8"))
        rows = [r for r in document["rows"] if r["kind"] != "decode"]
        times = {(r["impl"] == "torch-cpu", r["problem"], r["threads"]): r["median_us"] for r in rows}
        behind = sum(times[False, *key] > us for (torch, *key), us in times.items() if torch)
        behind += sum(r["torch_median_us"] is not None and r["torch_median_us"] < r["median_us"]
                      for r in document["rows"] if r["kind"] == "decode")
        self.assertIn(f"libattn behind in {behind} cells", text)
        problem = "b1 hq16 hk16 sq2048 sk2048 d64 fp32"
        row = next(r for r in rows if r["problem"] == problem and r["threads"] == 16 and r["impl"] != "torch-cpu")
        us = row["median_us"]
        line = next(x for x in text.splitlines() if f"{problem}` | 16" in x)
        self.assertEqual(line.split("|")[4:8], [
            f" {4 * 2048 ** 2 * 64 * 16 / us * 1e-3:.0f} GFLOP/s ", f" {times[False, problem, 1] / us:.2f} ",
            f" {100 * row['gflops'] / max(row['fma_peak_before'], row['fma_peak_after']):.0f} % ",
            f" {times[True, problem, 16] / us:.2f} "])
        peak = document["ceilings"]["fma_peak_gflops"]["before"]["1"]
        self.assertIn(f"fma_peak_gflops before: 1 threads {peak:.1f}", text)

    def test_without_pytorch(self):
        self.expect_word_without_pytorch()

    def test_quick(self):
        library = self.built_library()
        arguments = ["--library", library, "--quick", "--machine", "none", "--output", "out.json"]
        self.script(*arguments)
        document, committed = json.loads((self.dir / "out.json").read_text()), json.loads(RESULT.read_text())
        self.assertLessEqual(set(committed), set(document))
        self.assertEqual(document["left_out"], [])
        kinds = {row["kind"] for row in document["rows"]}
        self.assertEqual(kinds, {"grid", "small", "call", "decode"})
        for kind in kinds:
            ours, theirs = (next(r for r in d["rows"] if r["kind"] == kind) for d in (document, committed))
            self.assertLessEqual(set(theirs), set(ours), kind)
        for row in document["rows"]:
            self.assertTrue(0 < row["min_us"] <= row["p10_us"] <= row["median_us"] <= row["p90_us"], row)
            self.assertGreater(row["gbs"] if row["kind"] == "decode" else row["gflops"], 0)
        self.assertGreater(document["ceilings"]["stream_gbs"]["before"]["1"], 0)
        self.assertIn("wrong: libattn:cpu:", self.wrong(*arguments))
        late = self.script(*arguments, "--budget-seconds", "1")
        self.assertIn("left out, the time was used up: b1 hq2 hk2 sq2048", late)


if __name__ == "__main__":
    cli.main()
