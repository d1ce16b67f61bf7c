"""bench/compare.py: ratios by hand, matching of problems, exit codes; and it reads what `attn bench` writes."""
import json
import subprocess
import sys

import cli
from cli import CliTest


def document(rows, **context):
    return json.dumps({"schema": 1, "context": context, "rows": [
        {"problem": p, "impl": impl, "median_us": us, "p10_us": us * 0.9, "p90_us": us * 1.1} for p, impl, us in rows]})


class Compare(CliTest):
    def compare(self, *args, code=0):
        done = subprocess.run([sys.executable, "-B", str(cli.ROOT / "bench/compare.py"), *args], cwd=self.dir,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def test_ratios(self):
        self.write("a.json", document([("p1", "x", 100), ("p2", "x", 50), ("p3", "x", 7)], cpu="one").encode())
        self.write("b.json", document([("p1", "x", 50), ("p2", "x", 100), ("p4", "x", 7)], cpu="two").encode())
        text = self.compare("a.json", "b.json").stdout
        lines = text.splitlines()
        self.assertEqual([line.split()[-1] for line in lines[1:3]], ["2.000", "0.500"])
        self.assertIn("2 problems, geometric mean 1.000, worst 0.500, best 2.000", text)
        self.assertIn("only in a.json: p3", text)
        self.assertIn("only in b.json: p4", text)
        self.assertIn("differs: cpu: one | two", text)
        self.assertIn("±10%", lines[1])
        self.compare("--fail-below", "0.6", "a.json", "b.json", code=1)
        self.compare("--fail-below", "0.5", "a.json", "b.json")

    def test_implementations(self):
        self.write("a.json", document([("p", "x", 100), ("p", "y", 10)]).encode())
        self.write("b.json", document([("p", "y", 20), ("p", "x", 100)]).encode())
        rows = self.compare("a.json", "b.json").stdout.splitlines()[1:3]
        self.assertEqual([(row.split()[1], row.split()[-1]) for row in rows], [("x", "1.000"), ("y", "0.500")])
        self.write("c.json", document([("q", "x", 100)]).encode())
        self.write("d.json", document([("q", "z", 50)]).encode())
        self.assertIn("x → z", self.compare("c.json", "d.json").stdout)

    def test_parts_and_data(self):
        """Files in parts; hard data of a problem is another row than its plain data."""
        rows = [{"problem": "p", "impl": "x", "median_us": 10, "data": "plain"},
                {"problem": "p", "impl": "x", "median_us": 40, "data": "ramp"}]
        self.write("a.json", json.dumps({"schema": 1, "parts": {"bf16": {"rows": rows[:1]}, "more": {"rows": rows[1:]}}}).encode())
        self.write("b.json", json.dumps({"schema": 1, "rows": [{**row, "median_us": 10} for row in rows]}).encode())
        text = self.compare("a.json", "b.json").stdout
        self.assertEqual([(line.split()[0:2], line.split()[-1]) for line in text.splitlines()[1:3]],
                         [(["p", "x"], "1.000"), (["p", "data=ramp"], "4.000")])

    def test_bad(self):
        self.write("a.json", document([("p", "x", 1)]).encode())
        self.write("none.json", document([("q", "x", 1)]).encode())
        for name, data in (("text.json", b"hello"), ("array.json", b"[]"), ("rows.json", b'{"rows": [1]}'), ("bytes.json", b"\xff")):
            self.write(name, data)
            self.assertIn(name, self.compare("a.json", name, code=2).stderr)
        self.compare("a.json", "absent.json", code=2)
        self.compare("a.json", "none.json", code=2)

    def test_reads_bench(self):
        self.attn("bench", "--min-time", "0", "--output", "a.json", "b1 sq8 d8 fp32")
        self.assertIn("geometric mean 1.000", self.compare("a.json", "a.json").stdout)


if __name__ == "__main__":
    cli.main()
