"""`attn verify`: tables, JSON, files, refusals, soaks; and a failure is a failure: exit code 1 and a line that
reproduces it."""
import json
import re
import shlex
import signal
import subprocess
import time

import cli
from cli import FILE, OK, UNSUPPORTED, USAGE, CliTest

GOOD = ("b2 hq4 hk2 sq5 sk9 d8 fp32 causal=br", "b1 hq2 hk2 sq16 sk16 d16 bf16 lse", "b1 hq1 hk1 sq1 sk7 d3 fp16")


class Verify(CliTest):
    def test_table(self):
        done = self.attn("verify", *GOOD)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), len(GOOD) + 2)
        for problem, line in zip(GOOD, lines[1:]):
            self.assertTrue(line.startswith(problem), line)
            self.assertRegex(line, r"cpu:\w+ +\d+ .* passed$")
        self.assertRegex(lines[-1], r"^3 passed, 0 failed, 0 refused in ")

    def test_json(self):
        document = json.loads(self.attn("verify", "--json", *GOOD).stdout)
        self.assertEqual(document["schema"], 1)
        self.assertEqual([row["problem"] for row in document["rows"]], list(GOOD))
        for row, rows in zip(document["rows"], (2 * 4 * 5, 2 * 16, 1)):
            self.assertTrue(row["passed"])
            self.assertEqual(row["rows_checked"], rows)
            self.assertLess(row["max_error_of_bound"], 1)
        self.assertGreater(document["rows"][1]["max_error"], 0)
        self.assertEqual(document["summary"]["passed"], 3)

    def test_long_lines_wrap(self):
        problem = ("b2 hq8 hk2 sq1 sk304 d64 bf16 causal=br window=100,0 softcap=30 scale=0.25 page=16 splits=3 sinks alibi "
                   "lens_kv=300,17 lse data=drift seed=7")
        output = self.attn("verify", problem).stdout
        for line in output.splitlines():
            self.assertLessEqual(len(line), 120)
        for token in problem.split():
            self.assertIn(token, output.split())

    def test_every_level(self):
        levels = [x["level"] for x in json.loads(self.attn("list", "--json").stdout)["cpu_levels"] if x["runnable"]]
        document = json.loads(self.attn("verify", "--all-levels", "--bitwise", "--json", GOOD[0]).stdout)
        self.assertEqual([row["impl"] for row in document["rows"]], [f"libattn:cpu:{level}" for level in levels])
        self.refused(USAGE, "verify", "--all-levels", "--level", levels[0], GOOD[0], says=["--all-levels", "--level"])

    def test_reproduce(self):
        """The line that is printed runs, and runs the same."""
        document = json.loads(self.attn("verify", "--json", "--bitwise", "--threads", "1", GOOD[0] + " data=ramp seed=9").stdout)
        words = shlex.split(document["rows"][0]["reproduce"])
        self.assertEqual(words[:2], ["attn", "verify"])
        again = json.loads(self.attn(*words[1:], "--json").stdout)
        for key in ("problem", "impl", "max_error", "reproduce"):
            self.assertEqual(again["rows"][0][key], document["rows"][0][key])

    def test_refused(self):
        done = self.attn("verify", "--backend", "cuda", GOOD[0], code=UNSUPPORTED)
        self.assertIn("refused", done.stdout)
        self.assertIn("0 passed, 0 failed, 1 refused", done.stdout)

    def test_file(self):
        self.write("shapes.txt", f"# two\n{GOOD[0]}\n\n{GOOD[1]}  # one more\n".encode())
        self.assertIn("3 passed", self.attn("verify", "--file", "shapes.txt", GOOD[2]).stdout)
        self.write("bad.txt", f"{GOOD[0]}\nb1 sq4 d8 fp33\n".encode())
        self.refused(USAGE, "verify", "--file", "bad.txt", says=["bad.txt", "2", "'fp33'"])
        self.refused(FILE, "verify", "--file", "absent.txt", says=["absent.txt"])
        self.refused(FILE, "verify", "--file", "/dev/zero", says=["/dev/zero"])
        self.write("empty.txt", b"# nothing\n")
        self.refused(USAGE, "verify", "--file", "empty.txt", says=["a problem is missing"])

    def test_shape_files_of_the_project(self):
        for path in sorted((cli.ROOT / "bench/shapes").glob("*.txt")):
            self.attn("explain", *[line for line in path.read_text().splitlines() if line.split("#")[0].strip()])


class Soak(CliTest):
    def test_time_limit_and_seed(self):
        start = time.monotonic()
        document = json.loads(self.attn("verify", "--forever", "--time-limit", "1", "--seed", "5", "--json").stdout)
        self.assertLess(time.monotonic() - start, 60)
        self.assertGreater(document["summary"]["passed"], 0)
        self.assertEqual(document["summary"]["failed"], 0)
        self.assertEqual(document["failures"], [])
        self.assertEqual(sum(row["problems_passed"] for row in document["rows"]), document["summary"]["passed"])
        self.assertTrue(all(row["passed"] and row["kernel"].startswith("cpu:") for row in document["rows"]))
        self.refused(USAGE, "verify", "--forever", GOOD[0], says=["--forever"])
        self.refused(USAGE, "verify", "--time-limit", "1", GOOD[0], says=["--time-limit", "--forever"])
        self.refused(USAGE, "verify", "--seed", "2", GOOD[0], says=["--seed", "seed="])
        self.refused(USAGE, "verify", "--forever", "--time-limit", "-1", says=["--time-limit", "'-1'"])

    def test_interrupt_ends_with_summary(self):
        process = subprocess.Popen([cli.ATTN, "verify", "--forever"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)
        self.assertEqual(process.returncode, OK, stderr)
        self.assertTrue(re.search(r"(?m)^\d+ passed, 0 failed", stdout), stdout)

    def test_cases_jobs_and_output(self):
        """So many problems, several at once, against the CPU backend: the same ones whatever the number of jobs."""
        documents = []
        for jobs in ("1", "3"):
            done = self.attn("verify", "--forever", "--dense", "--cases", "12", "--jobs", jobs, "--against", "cpu", "--seed", "9",
                             "--output", f"soak{jobs}.json")
            self.assertRegex(done.stdout, r"(?m)^kernel +passed +failed")
            self.assertRegex(done.stdout, r"(?m)^12 passed, 0 failed, 0 refused in ")
            documents.append(json.loads((self.dir / f"soak{jobs}.json").read_text()))
        for document in documents:
            self.assertEqual(document["summary"]["problems"], 12)
            self.assertEqual({row["reference"] for row in document["rows"]}, {"cpu fp32"})
        self.assertEqual(*(document["summary"]["worst_problem"] for document in documents))
        self.assertEqual(*({row["kernel"]: row["problems_passed"] for row in document["rows"]} for document in documents))
        for flag in (["--cases", "2"], ["--jobs", "2"], ["--dense"]):
            self.refused(USAGE, "verify", *flag, GOOD[0], says=[flag[0], "--forever"])
        self.refused(FILE, "verify", "--output", "absent/x.json", GOOD[0], says=["--output", "absent"])

    def test_refusals_are_counted_by_reason(self):
        usable = subprocess.run([cli.ATTN, "explain", "--backend", "cuda", "b1 sq1 sk1 d64 bf16"], capture_output=True).returncode == OK
        self.attn("verify", "--forever", "--dense", "--cases", "3", "--backend", "cuda", "--output", "soak.json",
                  code=OK if usable else UNSUPPORTED)
        document = json.loads((self.dir / "soak.json").read_text())
        summary = document["summary"]
        self.assertEqual(summary["passed"] + summary["failed"] + summary["refused"], 3)
        self.assertEqual(sum(document["refused"].values()), summary["refused"])
        self.assertEqual(summary["refused"], 0 if usable else 3)

    def test_every_kernel(self):
        document = json.loads(self.attn("verify", "--all-kernels", "--backend", "cpu", "--json", GOOD[1]).stdout)
        self.assertGreaterEqual(len(document["rows"]), 1)
        for row in document["rows"]:
            self.assertTrue(row["passed"], row)
            words = shlex.split(row["reproduce"])
            self.assertIn("--config", words)
            self.attn(*words[1:])
        self.refused(USAGE, "verify", "--all-kernels", "--all-levels", GOOD[0], says=["--all-kernels", "--all-levels"])


if __name__ == "__main__":
    cli.main()
