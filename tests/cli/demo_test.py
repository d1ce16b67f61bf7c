"""`attn demo`: the shipped samples agree with float64 and with the models, and a wrong sample does not."""
import json
import struct

import cli
from cli import CHECK_FAILED, FILE, CliTest, attention, normal, safetensors_bytes

QUICK = ("--small", "--min-time", "0")


class Demo(CliTest):
    def samples(self):
        found = sorted((cli.ROOT / "samples").glob("*.safetensors"))
        self.assertIn("minilm-attention.safetensors", [p.name for p in found])
        return found

    def test_samples(self):
        samples = self.samples()
        text = self.attn("demo", *samples, *QUICK).stdout
        for line in text.splitlines():
            self.assertTrue(len(line) <= 120 or str(cli.ROOT) in line, line)
        document = json.loads(self.attn("demo", *samples, *QUICK, "--json").stdout)
        rows = document["rows"]
        self.assertIn(f"{len(rows)} of {len(rows)} rows agree", text)
        layers = [row for row in rows if row["source"] != "seeded"]
        self.assertGreaterEqual(len(layers), 6)
        self.assertEqual(len(rows) - len(layers), 3)
        for row in rows:
            self.assertTrue(row["agrees"])
            self.assertLessEqual(row["max_error_of_bound"], 1)
            self.assertGreater(row["gflops"], 0)
            self.assertGreater(row["share_of_peak"], 0)
        for row in layers:
            # A comparison of an output with itself would show 0.
            self.assertGreater(row["model_error"], 0)
            self.assertLessEqual(row["model_error"], row["model_tolerance"])

    def tiny(self, **replaced):
        q, k, v = normal(1, 32), normal(2, 32), normal(3, 32)
        o, _ = attention(q, k, v, sq=4, sk=4, hq=2, hk=2, d=4, dv=4, causal="br")
        tensors = {n: ("F32", (1, 4, 2, 4), data) for n, data in (("a.q", q), ("a.k", k), ("a.v", v), ("a.o", o))}
        tensors.update(replaced.pop("tensors", {}))
        metadata = {"a.problem": "b1 hq2 hk2 sq4 sk4 d4 fp32 causal=br", "layout": "bshd", **replaced}
        self.write("s.safetensors", safetensors_bytes(tensors, metadata))
        return o

    def test_own_sample(self):
        self.tiny()
        self.attn("demo", "s.safetensors", *QUICK)

    def test_disagreement(self):
        """One element of the model's output off by 1e-3: exit 1, and the row is named."""
        o = self.tiny()
        o[5] += 1e-3
        self.tiny(tensors={"a.o": ("F32", (1, 4, 2, 4), o)})
        done = self.attn("demo", "s.safetensors", *QUICK, code=CHECK_FAILED)
        self.assertIn("WRONG", done.stdout)
        self.assertIn("3 of 4 rows agree", done.stdout)
        self.assertIn("s.safetensors a: ", done.stdout)
        o[5] = float("nan")
        self.tiny(tensors={"a.o": ("F32", (1, 4, 2, 4), o)})
        self.attn("demo", "s.safetensors", *QUICK, code=CHECK_FAILED)
        # The mask counts: the same output under another problem does not agree.
        self.tiny(**{"a.problem": "b1 hq2 hk2 sq4 sk4 d4 fp32"})
        self.attn("demo", "s.safetensors", *QUICK, code=CHECK_FAILED)

    def test_bad_samples(self):
        self.refused(FILE, "demo", "absent.safetensors", says=["absent.safetensors"])
        self.tiny(**{"a.problem": "b1 hq2 hk2 sq5 sk4 d4 fp32 causal=br"})
        self.refused(FILE, "demo", "s.safetensors", *QUICK, says=["s.safetensors", "sq5", "sq4"])
        self.write("s.safetensors", safetensors_bytes({"x": ("F32", (1,), [1])}, {}))
        self.refused(FILE, "demo", "s.safetensors", *QUICK, says=["s.safetensors", "NAME.q"])
        self.tiny(tensors={"a.o": ("F32", (1, 4, 2, 3), [0] * 24)})
        self.refused(FILE, "demo", "s.safetensors", *QUICK, says=["'a.o'", "(1, 4, 2, 3)"])
        self.write("s.safetensors", struct.pack("<Q", 1 << 60))
        self.refused(FILE, "demo", "s.safetensors", *QUICK, says=["s.safetensors"])


if __name__ == "__main__":
    cli.main()
