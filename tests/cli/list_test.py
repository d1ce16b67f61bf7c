"""`attn list`: what is there, and the support table says what `attn explain` says."""
import json

import cli
from cli import USAGE, CliTest


class List(CliTest):
    def test_all(self):
        text = self.attn("list").stdout
        document = json.loads(self.attn("list", "--json").stdout)
        self.assertEqual([b["backend"] for b in document["backends"]], ["cpu", "cuda"])
        self.assertTrue(document["backends"][0]["usable"])
        runnable = [level for level in document["cpu_levels"] if level["runnable"]]
        self.assertTrue(runnable)
        for level in document["cpu_levels"]:
            self.assertIn(level["level"], text)
            self.assertEqual(level["kernel"], f"cpu:{level['level']}" if level["runnable"] else None)

    def test_threads_follow_affinity(self):
        """dmlc/xgboost#7653: bound to one CPU, the backend says one thread."""
        import os
        one = {min(os.sched_getaffinity(0))}
        text = self.attn("list", preexec_fn=lambda: os.sched_setaffinity(0, one)).stdout
        self.assertRegex(text, r"usable, threads: 1\n")

    def test_support(self):
        rows = json.loads(self.attn("list", "--support", "--json").stdout)
        self.assertGreaterEqual(len(rows), 15)
        text = self.attn("list", "--support").stdout
        markdown = self.attn("list", "--support", "--markdown").stdout.splitlines()
        self.assertEqual(markdown[0], "| feature | cpu | cuda |")
        self.assertEqual(len(markdown), len(rows) + 2)
        for row, line in zip(rows, markdown[2:]):
            self.assertIn(row["feature"], text)
            cells = ["yes" if row["backends"][b]["supported"] else "–" for b in ("cpu", "cuda")]
            self.assertEqual(line, f"| {row['feature']} | {cells[0]} | {cells[1]} |")
            self.assertTrue(row["backends"]["cpu"]["supported"], row)
            self.attn("explain", "--backend", "cpu", row["problem"])
            if not row["backends"]["cuda"]["supported"]:
                self.assertNotEqual(row["backends"]["cuda"]["reason"], "")
                self.attn("explain", "--backend", "cuda", row["problem"], code=cli.UNSUPPORTED)

    def test_env(self):
        rows = json.loads(self.attn("list", "--env", "--json", env={"ATTN_NUM_THREADS": "3"}).stdout)
        values = {row["name"]: row["value"] for row in rows}
        self.assertEqual(values["ATTN_NUM_THREADS"], "3")
        self.assertIn("ATTN_CPU_LEVEL", values)
        for row in rows:
            self.assertIn(row["name"], self.attn("list", "--env").stdout)
            self.assertNotEqual(row["meaning"], "")

    def test_fits(self):
        for options in ([], ["--support"], ["--env"]):
            for line in self.attn("list", *options).stdout.splitlines():
                self.assertLessEqual(len(line), 120)

    def test_usage(self):
        self.refused(USAGE, "list", "--support", "--env", says=["--support", "--env"])
        self.refused(USAGE, "list", "--json", "--markdown", says=["--json", "--markdown"])


if __name__ == "__main__":
    cli.main()
