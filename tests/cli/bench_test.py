"""`attn bench`: counts that must be exact, times that must be consistent, and the form of bench/results."""
import json

import cli
from cli import FILE, UNSUPPORTED, USAGE, CliTest

QUICK = ("--min-time", "0.01", "--json")


def visible(sq, sk, causal=None, window=(-1, -1)):
    """(query, key) pairs of one sequence and head, counted one by one; and keys that some query sees."""
    off, pairs = (sk - sq if causal != "tl" else 0), set()
    for i in range(sq):
        for j in range(sk):
            right = min(window[1], 0) if window[1] >= 0 else 0
            right = right if causal else window[1]
            if (right < 0 or j <= i + off + right) and (window[0] < 0 or j >= i + off - window[0]):
                pairs.add((i, j))
    return len(pairs), len({j for _, j in pairs})


class Bench(CliTest):
    def rows(self, *args, **kwargs):
        return json.loads(self.attn("bench", *QUICK, *args, **kwargs).stdout)

    def test_exact_counts(self):
        for problem, b, hq, hk, d, dv, size, lens, mask in (
                ("b2 hq6 hk2 sq17 sk23 d8 dv4 fp32", 2, 6, 2, 8, 4, 4, [(17, 23)] * 2, {}),
                ("b1 hq2 hk2 sq17 sk23 d8 bf16 causal=br", 1, 2, 2, 8, 8, 2, [(17, 23)], {"causal": "br"}),
                ("b1 hq2 hk1 sq23 sk17 d8 fp16 causal=tl", 1, 2, 1, 8, 8, 2, [(23, 17)], {"causal": "tl"}),
                ("b1 hq2 hk2 sq40 sk50 d8 fp32 align=br window=5,3", 1, 2, 2, 8, 8, 4, [(40, 50)], {"window": (5, 3)}),
                ("b3 hq2 hk2 sq9 sk16 d8 fp32 causal=br lens_kv=16,0,5", 3, 2, 2, 8, 8, 4, [(9, 16), (9, 0), (9, 5)],
                 {"causal": "br"}),
                ("b2 hq2 hk2 sq9 sk9 d8 fp32 lens_q=9,4 varlen_kv=15 lens_kv=9,6", 2, 2, 2, 8, 8, 4, [(9, 9), (4, 6)], {})):
            with self.subTest(problem):
                row = self.rows(problem)["rows"][0]
                scores = sum(visible(sq, sk, **mask)[0] for sq, sk in lens) * hq
                keys = sum(visible(sq, sk, **mask)[1] for sq, sk in lens)
                self.assertEqual(row["visible_scores"], scores)
                self.assertEqual(row["flops"], 2 * scores * (d + dv))
                self.assertEqual(row["bytes"], size * (d + dv) * (sum(sq for sq, _ in lens) * hq + keys * hk))
                self.assertAlmostEqual(row["gflops"] * row["median_us"] * 1e3, row["flops"], delta=1e-6 * row["flops"])
                self.assertLessEqual(row["p10_us"], row["median_us"])
                self.assertLessEqual(row["median_us"], row["p90_us"])
                self.assertGreaterEqual(row["samples"], 5)

    def test_document(self):
        problem = "b1 hq2 hk2 sq64 sk64 d64 fp32 causal=br"
        document = self.rows("--threads", "1", "--what", "quick", "--machine", "some-cpu", "--check", problem)
        self.assertEqual((document["schema"], document["what"]), (1, "quick"))
        self.assertTrue(document["command"].startswith("attn bench --min-time 0.01 --json --threads 1"))
        context = document["context"]
        for key in ("date", "commit", "dirty", "machine", "cpu", "threads", "compiler", "flags", "versions"):
            self.assertIn(key, context)
        self.assertRegex(context["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual((context["machine"], context["threads"]), ("some-cpu", 1))
        self.assertNotIn(__import__("socket").gethostname(), json.dumps(document))
        row = document["rows"][0]
        self.assertTrue(row["impl"].startswith("libattn:cpu:"))
        self.assertTrue(row["passed"])
        peak = document["ceilings"]["fma_peak_gflops"]
        self.assertGreater(document["ceilings"]["stream_gbs"], 0)
        self.assertAlmostEqual(row["share_of_peak"] * peak, row["gflops"], delta=1e-6 * row["gflops"])
        self.assertLess(row["share_of_peak"], 1.1)

    def test_output_file(self):
        self.write("out.json", b"older")
        done = self.attn("bench", "--min-time", "0", "--output", "out.json", "b1 sq8 d8 fp32")
        self.assertIn("b1 hq1 hk1 sq8 sk8 d8 fp32", done.stdout)
        document = json.loads((self.dir / "out.json").read_text())
        self.assertEqual(document["rows"][0]["problem"], "b1 hq1 hk1 sq8 sk8 d8 fp32")
        self.assertEqual(sorted(p.name for p in self.dir.iterdir()), ["out.json"])
        self.refused(FILE, "bench", "--min-time", "0", "--output", "no/out.json", "b1 sq8 d8 fp32", says=["no/out.json"])

    def test_refused_row(self):
        document = self.rows("--backend", "cuda", "b1 sq8 d8 fp32", code=UNSUPPORTED)
        self.assertIn("cuda", document["rows"][0]["refused"])
        self.assertIsNone(document["rows"][0]["impl"])

    def test_errors(self):
        self.refused(USAGE, "bench", "--min-time", "-1", "b1 sq8 d8 fp32", says=["--min-time", "'-1'"])
        self.refused(USAGE, "bench", "--min-samples", "0", "b1 sq8 d8 fp32", says=["--min-samples", "'0'"])
        self.refused(FILE, "bench", "--file", "absent.txt", says=["absent.txt"])

    def test_table_fits(self):
        for line in self.attn("bench", "--min-time", "0", "--check", "--file",
                              cli.ROOT / "bench/shapes/smoke.txt").stdout.splitlines():
            self.assertLessEqual(len(line), 120, line)


if __name__ == "__main__":
    cli.main()
