"""`attn tune`: the candidates are measured, the choice is stored and read back, and a bad store is told before the work; and
`--config`, which runs a kernel by name."""
import json

import cli
from cli import FILE, UNSUPPORTED, USAGE, CliTest

QUICK = ("--backend", "cpu", "--min-time", "0", "--min-samples", "1", "--rounds", "1")
PROBLEM = "b1 hq2 hk2 sq16 sk16 d16 fp32"


class Tune(CliTest):
    def levels(self):
        levels = json.loads(self.attn("list", "--json").stdout)["cpu_levels"]
        return [level["kernel"] for level in levels if level["runnable"]]

    def kernel(self, *args, **kwargs):
        return json.loads(self.attn("explain", "--json", *args, PROBLEM, **kwargs).stdout)[0]["kernel"]

    def test_rows(self):
        document = json.loads(self.attn("tune", *QUICK, "--check", "--json", PROBLEM).stdout)
        rows = document["rows"]
        self.assertEqual(sorted(row["kernel"] for row in rows), sorted(self.levels()))
        self.assertEqual([row["now"] for row in rows], [True] + [False] * (len(rows) - 1))
        self.assertEqual(sum(row["best"] for row in rows), 1)
        self.assertTrue(all(row["passed"] for row in rows))
        best = next(row for row in rows if row["best"])
        self.assertTrue(best["now"] or best["median_us"] < 0.99 * rows[0]["median_us"])
        self.assertEqual([choice["kernel"] for choice in document["choices"]], [best["kernel"]])
        for line in self.attn("tune", *QUICK, "--check", PROBLEM).stdout.splitlines():
            self.assertLessEqual(len(line), 120, line)

    def test_stored_choices_decide(self):
        self.attn("tune", *QUICK, "--store", "tuned.json", PROBLEM, "b1 sq3 d8 fp32")
        document = json.loads((self.dir / "tuned.json").read_text())
        self.assertEqual((document["schema"], document["what"], len(document["choices"])), (1, "attn-tune", 2))
        mine = next(c for c in document["choices"] if c["problem"] == PROBLEM)
        mine["kernel"] = self.levels()[-1]
        self.write("tuned.json", json.dumps(document).encode())
        env = {"ATTN_TUNE_FILE": "tuned.json"}
        self.assertEqual(self.kernel(env=env), self.levels()[-1])
        self.assertEqual(self.kernel(), self.levels()[0])
        self.assertEqual(self.kernel("--config", self.levels()[0], env=env), self.levels()[0])
        self.assertIn("tuned: by tuned.json", self.attn("explain", PROBLEM, env=env).stdout)
        # Another run replaces its own choices and keeps the others.
        self.attn("tune", *QUICK, "--store", "tuned.json", "b1 sq3 d8 fp32")
        after = json.loads((self.dir / "tuned.json").read_text())["choices"]
        self.assertEqual(len(after), 2)
        self.assertIn(mine, after)
        self.assertEqual(sorted(p.name for p in self.dir.iterdir()), ["tuned.json"])

    def test_bad_files(self):
        self.write("bad.json", b'{"schema": 1, "what": "attn-tune", "choices": [')
        self.refused(FILE, "tune", *QUICK, "--store", "bad.json", PROBLEM, says=["--store is bad.json", "line 1"])
        self.refused(FILE, "tune", *QUICK, "--store", "no/tuned.json", PROBLEM, says=["no/tuned.json"])
        for name, says in (("bad.json", "line 1"), ("absent.json", "absent.json")):
            self.refused(USAGE, "explain", PROBLEM, says=["ATTN_TUNE_FILE", name, says], env={"ATTN_TUNE_FILE": name})

    def test_config(self):
        for kernel in self.levels():
            row = json.loads(self.attn("bench", "--min-time", "0", "--json", "--config", kernel, PROBLEM).stdout)["rows"][0]
            self.assertEqual(row["impl"], f"libattn:{kernel}")
        done = self.attn("bench", "--min-time", "0", "--config", "no_such_kernel", PROBLEM, code=UNSUPPORTED)
        self.assertIn("kernel is no_such_kernel", done.stdout)
        self.assertIn(self.levels()[0], done.stdout)

    def test_errors(self):
        self.refused(USAGE, "tune", says=["problem"])
        self.refused(USAGE, "tune", "--rounds", "0", PROBLEM, says=["--rounds"])


if __name__ == "__main__":
    cli.main()
