"""`attn selftest`: a few hundred cases in about a minute, every level, and a results document."""
import json
import time

import cli
from cli import SMALL, USAGE, CliTest


class Selftest(CliTest):
    def test_whole(self):
        start = time.monotonic()
        args = ["--random", "5", "--time-limit", "1"] if SMALL else []
        done = self.attn("selftest", "--json", *args)
        seconds = time.monotonic() - start
        document = json.loads(done.stdout)
        summary = document["summary"]
        self.assertEqual((summary["failed"], summary["stopped"]), (0, False))
        self.assertEqual(len(document["rows"]), summary["passed"] + summary["refused"])
        self.assertTrue(all(row["passed"] or row["refused"] for row in document["rows"]))
        levels = [x["level"] for x in json.loads(self.attn("list", "--json").stdout)["cpu_levels"] if x["runnable"]]
        self.assertEqual({row["kernel"] for row in document["rows"] if row["passed"]}, {f"cpu:{x}" for x in levels})
        if not SMALL:
            self.assertGreaterEqual(summary["passed"], 200)
            # 60 s is the promise on an idle machine; tests share theirs.
            self.assertLess(seconds, 150)

    def test_table(self):
        text = self.attn("selftest", "--random", "1", "--time-limit", "0.1", "--level", self.best()).stdout
        self.assertRegex(text, r"(?m)^kernel +passed +failed")
        self.assertRegex(text, rf"(?m)^cpu:{self.best()} +\d+ +0 ")
        self.assertRegex(text, r"(?m)^\d+ passed, 0 failed, \d+ refused in ")

    def best(self):
        levels = json.loads(self.attn("list", "--json").stdout)["cpu_levels"]
        return next(x["level"] for x in levels if x["runnable"])

    def test_usage(self):
        self.refused(USAGE, "selftest", "--random", "x", says=["--random", "'x'"])


if __name__ == "__main__":
    cli.main()
