"""bench/peers.py without a GPU: its cells are those of the benchmark and problems of the library, its ratios are those
counted by hand, a worker that dies or hangs costs one cell, and (where PyTorch is installed) the whole program on the CPU."""
import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import cli
from cli import CliTest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
sys.dont_write_bytecode = True
from forward_peers import cells, report, supervise  # noqa: E402

WORKER = """
    import json, os, signal, sys, time
    config = json.loads(sys.stdin.read())
    def send(event, **fields):
        print(json.dumps({"event": event, **fields}), flush=True)
    send("context", versions={})
    for cell in config["cells"]:
        key = "%(section)s: " % cell
        key = [k for k in config["keys"] if k.startswith(key) and " d%(head_dim)d " % cell in k][0]
        rows = []
        for name in ("fa2", "libattn"):
            if name in config["skip"].get(key, []) or name in config["dropped"]:
                continue
            send("now", cell=key, contender=name, step="first call", limit=0.5)
            BAD
            rows.append({"impl": name, "tflops": 100.0, "median_us": 1.0})
        send("cell", cell=key, rows=rows)
    send("done")
"""


class Cells(CliTest):
    def test_grid(self):
        grid = cells.choose("grid", "bf16")
        self.assertEqual(len(grid), 36)
        self.assertEqual(len({cell.key for cell in grid}), 36)
        for cell in grid:
            self.assertEqual((cell.batch * cell.seqlen_q, cell.heads_q * cell.head_dim), (16384, 2048))
        names = [cell.label for cell in cells.choose("all", "fp16")]
        self.assertEqual(len(names), 36 + 20 + 6 + 14)
        for name in ("d128 full 4k 32/8 b4 h32", "d192,128 causal 4k b4 h16", "d128 causal 1kx16k", "d128 causal 16k w1k"):
            self.assertIn(name.split(" b")[0], [n.split(" b")[0] for n in names])

    def test_problems_are_canonical(self):
        problems = sorted({cell.problem for cell in cells.choose("all", "bf16")})
        found = json.loads(self.attn("explain", "--backend", "cpu", "--json", *problems).stdout)
        self.assertEqual([entry["problem"] for entry in found], problems)

    def test_flops(self):
        full = cells.square("grid", 512, 64, False, "bf16")
        self.assertEqual(full.flops, 4 * 512 * 512 * 64 * 32 * 32)
        self.assertEqual(cells.square("grid", 512, 64, True, "bf16").flops, full.flops / 2)
        for cell in (cells.Cell("extra", 1, 2, 2, 5, 9, 8, 4, "bf16", True), cells.Cell("extra", 1, 2, 2, 9, 9, 8, 8, "bf16", True, 3)):
            pairs = sum(last - first + 1 for first, last in (cells.visible_bounds(cell, i) for i in range(cell.seqlen_q)))
            self.assertEqual(cell.flops, 2 * 2 * pairs * (cell.head_dim + cell.head_dim_v))
        self.assertEqual(cells.visible_bounds(cells.Cell("extra", 1, 1, 1, 5, 9, 8, 8, "bf16", True), 0), (0, 4))


class Report(CliTest):
    def rows(self, **rates):
        return [{"impl": {"libattn": "libattn:sm90", "before": "libattn-before:sm90", "fa2": "torch-fa2"}.get(name, name),
                 "tflops": rate} for name, rate in rates.items()]

    def test_ratio(self):
        rows = self.rows(fa2=300.0, fa3=700.0, libattn=770.0, before=900.0)
        self.assertAlmostEqual(report.ratio(rows), 1.1)
        rows[1]["wrong"] = "error"
        self.assertAlmostEqual(report.ratio(rows), 770 / 300)
        rows[2]["wrong"] = "error"
        self.assertIsNone(report.ratio(rows))
        self.assertIsNone(report.ratio(self.rows(libattn=5.0)))
        self.assertEqual([report.name_of(row) for row in rows], ["fa2", "fa3", "libattn", "before"])

    def test_table(self):
        few = cells.choose("grid", "bf16")[:2]
        outcome = supervise.Outcome(few)
        outcome.rows[few[0].key] = self.rows(fa3=400.0, libattn=800.0, before=500.0)
        outcome.rows[few[1].key] = self.rows(fa3=400.0, libattn=200.0)
        text = "\n".join(report.table(outcome, ["fa3", "libattn", "before"]))
        self.assertIn("2 of 2 cells, 2 compared; libattn / best peer: geometric mean 1.000, worst 0.500 (d128 causal 4k)", text)
        self.assertIn("libattn / before: geometric mean 1.600", text)

    def test_parts_are_kept(self):
        path = self.dir / "x.json"
        report.write(path, "forward-peers", {"bf16": {"rows": [1]}, "fp16": {"rows": [2]}})
        report.write(path, "forward-peers", {"bf16": {"rows": [3]}})
        parts = json.loads(path.read_text())["parts"]
        self.assertEqual((parts["bf16"]["rows"], parts["fp16"]["rows"]), ([3], [2]))
        self.assertEqual([p.name for p in self.dir.iterdir()], ["x.json"])


    def test_adopt(self):
        path = self.dir / "run/forward-peers.json"
        report.write(path, "forward-peers", {"fp16": {"rows": [2]}})
        report.write(self.dir / "forward-peers.json", "forward-peers", {"bf16": {"rows": [1]}})
        subprocess.run([sys.executable, "-B", str(cli.ROOT / "bench/peers.py"), "--adopt", str(path), "--output", str(self.dir)],
                       check=True, capture_output=True)
        self.assertEqual(set(json.loads((self.dir / "forward-peers.json").read_text())["parts"]), {"bf16", "fp16"})


    def test_files_and_documents(self):
        """What a run writes has no folders of the machine in it, and becomes the tables of the README."""
        for dtype in ("fp16", "bf16"):
            every = cells.choose("all", dtype)
            outcome = supervise.Outcome(every)
            outcome.missing = {"fa3": "/opt/x/y.so: undefined symbol"}
            outcome.context = {"gpu": "some GPU", "versions": {"torch": "2.11"}}
            outcome.ceilings = {"gemm_tflops": 790.0}
            for cell in every:
                outcome.rows[cell.key] = self.rows(cudnn=500.0, libattn=600.0)
            outcome.rows[every[0].key] = [{"impl": "libattn", "refused": "no"}]
            report.Results(self.dir / "h200", dtype, "python3 bench/peers.py", "turns", "h200", "abc").save(outcome)
        names = sorted(p.name for p in (self.dir / "h200").iterdir())
        self.assertEqual(names, ["forward-peers.json", "sustained.json"])
        part = json.loads((self.dir / "h200/forward-peers.json").read_text())["parts"]["bf16"]
        self.assertEqual(part["missing"]["fa3"], "y.so: undefined symbol")
        self.assertEqual(part["context"]["commit"], "abc")
        script = f"import sys; sys.path.insert(0, {str(cli.ROOT / 'bench')!r}); import tables, pathlib; "
        absent = subprocess.run([sys.executable, "-B", "-c", script + f"tables.RESULTS = pathlib.Path({str(self.dir / 'no')!r}); "
                                 "tables.forward(); tables.hard()"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(absent.count("not measured yet"), 2)
        text = subprocess.run([sys.executable, "-B", "-c", script + f"tables.RESULTS = pathlib.Path({str(self.dir)!r}); "
                               "tables.forward(); tables.hard()"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(text.count("600 (1.20)"), 2 * (35 + 4 * 6 - 1))
        self.assertIn("35 cells: geometric mean 1.200, worst 1.200", text)

    def test_commands_name_no_folder(self):
        sys.path.insert(0, str(cli.ROOT / "bench"))
        import peers

        options, _ = peers.parse(["--libattn", "/a/b.so", "--against", "/c/d.so", "--output", "/e", "--dtype", "fp16", "--cells",
                                  "grid,hard", "--window", "5"])  # fmt: skip
        self.assertEqual(peers.command_of(options), "python3 bench/peers.py --libattn build/python --dtype fp16 --cells "
                         "grid,hard --window 5 --against BEFORE")


class Supervise(CliTest):
    def run_with(self, bad, seconds=30):
        few = [cells.square("grid", 512, d, False, "bf16") for d in (64, 128, 256)]
        script = self.write("worker.py", textwrap.dedent(WORKER).replace("BAD", bad).encode())
        saved = []
        outcome = supervise.run({"keys": [c.key for c in few]}, few, seconds, lambda o: saved.append(len(o.rows)),
                                lambda *_: None, [sys.executable, str(script)])
        return few, outcome, saved

    def test_good(self):
        few, outcome, saved = self.run_with("pass")
        self.assertEqual(([c.key for c in few], saved), (list(outcome.rows), [1, 2, 3]))
        self.assertEqual((outcome.notes, outcome.fatal), ([], ""))

    def test_a_death_costs_one_row(self):
        for bad, says in (("os.kill(os.getpid(), signal.SIGSEGV)", "ended with -11"), ("time.sleep(60)", "no progress for"),
                          ("send('cell_failed', cell=key, rows=[], why='illegal address', broken=True); os._exit(3)", "illegal address")):
            with self.subTest(bad):
                few, outcome, _ = self.run_with(f"if name == 'libattn' and cell['head_dim'] == 128: {bad}")
                self.assertEqual(set(outcome.rows), {c.key for c in few})
                rows = {row["impl"]: row for row in outcome.rows[few[1].key]}
                self.assertEqual(rows["fa2"]["tflops"], 100)
                self.assertIn(says, rows["libattn"]["failed"])
                self.assertEqual([len(outcome.rows[c.key]) for c in few], [2, 2, 2])
                self.assertNotIn("failed", outcome.rows[few[2].key][1])

    def test_who_dies_always_is_left_out(self):
        few, outcome, _ = self.run_with("if name == 'fa2': os._exit(1)")
        self.assertEqual(len(outcome.rows), 3)
        self.assertEqual(outcome.dropped(), ["fa2"])

    def test_time(self):
        grace, supervise.GRACE_S = supervise.GRACE_S, 0
        try:
            _, outcome, _ = self.run_with("time.sleep(0.4)", seconds=1.0)
        finally:
            supervise.GRACE_S = grace
        self.assertLess(len(outcome.rows), 3)
        self.assertIn("time is used up", outcome.notes[0])

    def test_a_worker_that_cannot_start(self):
        few = cells.choose("grid", "bf16")[:1]
        outcome = supervise.run({}, few, 30, lambda o: None, lambda *_: None, [sys.executable, "-c", "raise SystemExit(7)"])
        self.assertIn("7", outcome.fatal)


class WholeProgram(CliTest):
    def test_on_the_cpu(self):
        """Every kind of cell, through the Python package around this build's library, beside PyTorch's own."""
        if importlib.util.find_spec("torch") is None or cli.SMALL:
            self.skipTest("PyTorch is not installed, or the library is a sanitizer's")
        library = Path(cli.ATTN).resolve().parents[2] / "python"
        done = subprocess.run(
            [sys.executable, "-B", str(cli.ROOT / "bench/peers.py"), "--device", "cpu", "--shrink", "64", "--rounds", "2",
             "--window", "1", "--pause", "0", "--sustain", "0.01", "--output", str(self.dir), "--libattn", str(library),
             "--against", str(self.dir / "absent.so"), "--machine", "none"], capture_output=True, text=True, timeout=280)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("missing: before", done.stdout)
        for name, sections in (("forward-peers", {"grid", "hard", "extra"}), ("sustained", {"sustained"})):
            part = json.loads((self.dir / f"{name}.json").read_text())["parts"]["bf16"]
            self.assertEqual({row["section"] for row in part["rows"]}, sections)
            for row in part["rows"]:
                if row["impl"].startswith("libattn"):
                    self.assertGreater(row["tflops"], 0, row)
                    self.assertLess(row["max_error_of_bound"], 1, row)
                    self.assertNotIn("wrong", row)


if __name__ == "__main__":
    cli.main()
