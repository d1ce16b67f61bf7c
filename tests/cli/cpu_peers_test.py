"""bench/cpu_peers.py: tables of the committed run and of rows made by hand count what was counted by hand, what is missing
ends it with 2, and (where PyTorch is installed) a cell of each kind runs, writes the form of bench/results, and a wrong
output is seen."""
import json

import cli
from cpu_bench import HAVE_TORCH, ROOT, CpuBenchTest

RESULT = ROOT / "bench/results/xeon-amx-2c/cpu-peers.json"


class CpuPeers(CpuBenchTest):
    NAME = "cpu_peers"

    def test_table(self):
        if not HAVE_TORCH:
            self.skipTest("PyTorch is not installed")
        self.assertIn("libattn behind in 0", self.script("--table", str(RESULT)))
        document = json.loads(RESULT.read_text())
        context = {"kind": "decode", "threads": 2, "stream_before": 8.0, "stream_after": 10.0}
        document["rows"] = [
            {**context, "problem": "contiguous", "impl": "libattn:cpu:amx", "median_us": 50.0, "gbs": 9.0},
            {**context, "problem": "contiguous", "impl": "torch-cpu", "median_us": 40.0, "gbs": 11.25},
            {**context, "problem": "paged", "impl": "libattn:cpu:amx", "median_us": 60.0, "gbs": 8.0},
            {**context, "problem": "alone", "threads": 1, "impl": "libattn:cpu:amx", "median_us": 60.0, "gbs": 8.0,
             "stream_before": None, "stream_after": None}]
        text = self.script("--table", str(self.write("rows.json", json.dumps(document).encode())))
        self.assertIn("| `contiguous` | 2 | 50 µs, 9.0 GB/s, 90 % of memory (cpu:amx) | 40 µs | 0.80 |", text)
        self.assertIn("| `paged` | 2 | 60 µs, 8.0 GB/s, 80 % of memory (cpu:amx) | – | – |", text)
        self.assertIn("| `alone` | 1 | 60 µs, 8.0 GB/s (cpu:amx) | – | – |", text)
        self.assertIn("; 1 cells beside it, libattn behind in 1. Decode on 2 threads: 80 % of", text)
        self.assertIn("at least, 85 % in the median", text)

    def test_without_pytorch(self):
        self.expect_word_without_pytorch()

    def test_quick(self):
        library = self.built_library()
        arguments = ["--library", library, "--quick", "--machine", "none", "--output", "out.json", "--seconds", "0.05"]
        self.script(*arguments)
        document, committed = json.loads((self.dir / "out.json").read_text()), json.loads(RESULT.read_text())
        self.assertLessEqual(set(committed), set(document))
        kinds = {row["kind"] for row in document["rows"]}
        self.assertEqual(kinds, {"grid", "gqa", "varlen", "small", "call", "decode"})
        for row in document["rows"]:
            self.assertLessEqual(set(committed["rows"][0]), set(row))
            self.assertTrue(0 < row["p10_us"] <= row["median_us"] <= row["p90_us"], row)
        decode = [row for row in document["rows"] if row["kind"] == "decode"]
        for row in decode:
            self.assertEqual(row["mib"], 4)  # 2 · 1024 keys · 8 heads · 128 · 2 bytes
            self.assertAlmostEqual(row["gbs"] * row["median_us"], row["mib"] * 2**20 / 1000, delta=1)
            self.assertGreater(min(row["stream_before"], row["stream_after"]), 0)
        beside = {(row["layout"], row["impl"] == "torch-cpu") for row in decode}
        self.assertEqual(beside, {("bhsd", False), ("bhsd", True), ("paged16", False)})
        self.assertEqual(self.wrong(*arguments, "--only", "decode").count("wrong: libattn:cpu:"),
                         2 * len({row["threads"] for row in decode}))


if __name__ == "__main__":
    cli.main()
