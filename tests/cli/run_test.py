"""`attn run`: what it computes, by hand-worked values and by attention in plain Python; every option changes the
result as it should; every form of input and output.
"""
import json
import math

import cli
from cli import CliTest, attention, normal, read_npy, read_safetensors, safetensors_bytes


class Values(CliTest):
    def test_alignment_by_hand(self):
        """Dao-AILab/flash-attention#402: with fewer queries than keys, bottom-right and top-left differ."""
        for descr, bits in (("<f4", 1e-6), ("<f2", 1e-6)):
            self.npy("q.npy", (1, 2, 1, 8), [0] * 16, descr)
            self.npy("k.npy", (1, 5, 1, 8), [0] * 40, descr)
            self.npy("v.npy", (1, 5, 1, 8), [j for j in range(5) for _ in range(8)], descr)
            files = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy", "--lse", "lse.npy")
            self.attn("run", *files, "--causal", "br", "--verify")
            self.assertEqual(read_npy(self.dir / "o.npy"), ((1, 2, 1, 8), [1.5] * 8 + [2.0] * 8))
            shape, lse = read_npy(self.dir / "lse.npy")
            self.assertEqual(shape, (1, 1, 2))
            self.close(lse, [math.log(4), math.log(5)], bits)
            self.attn("run", *files, "--causal", "tl", "--verify")
            self.assertEqual(read_npy(self.dir / "o.npy")[1], [0.0] * 8 + [0.5] * 8)

    def test_empty_rows(self):
        """Dao-AILab/flash-attention#1778: rows without a visible key are exactly 0, their LSE −inf."""
        self.npy("q.npy", (1, 5, 1, 8), [0] * 40)
        self.npy("k.npy", (1, 2, 1, 8), [0] * 16)
        self.npy("v.npy", (1, 2, 1, 8), [1] * 8 + [3] * 8)
        self.attn("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--causal", "br", "--out", "o.npy", "--lse",
                  "lse.npy", "--verify")
        self.assertEqual(read_npy(self.dir / "o.npy")[1][::8], [0, 0, 0, 1, 2])
        self.close(read_npy(self.dir / "lse.npy")[1], [-math.inf, -math.inf, -math.inf, 0, math.log(2)])

    def test_bf16_by_conversion(self):
        """--dtype converts once, to nearest even, and O can be stored as fp32."""
        self.npy("q.npy", (1, 1, 1, 2), [0, 0], "<f8")
        self.npy("k.npy", (1, 1, 1, 2), [0, 0], "<f8")
        self.npy("v.npy", (1, 1, 1, 2), [1 + 2 ** -8, 1 + 3 * 2 ** -8], "<f8")  # ties: to 1 and to 1 + 2⁻⁶
        self.attn("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--dtype", "bf16", "--out", "o.npy",
                  "--out-dtype", "fp32")
        self.assertEqual(read_npy(self.dir / "o.npy")[1], [1.0, 1 + 2 ** -6])


SHAPE = {"sq": 5, "sk": 7, "hq": 4, "hk": 2, "d": 8, "dv": 4}


class Options(CliTest):
    """Each option against plain Python, and against the call without it: an ignored option fails."""

    def setUp(self):
        super().setUp()
        s = SHAPE
        self.q, self.k, self.v = (normal(1, s["sq"] * s["hq"] * s["d"]), normal(2, s["sk"] * s["hk"] * s["d"]),
                                  normal(3, s["sk"] * s["hk"] * s["dv"]))
        self.npy("q.npy", (1, s["sq"], s["hq"], s["d"]), self.q)
        self.npy("k.npy", (1, s["sk"], s["hk"], s["d"]), self.k)
        self.npy("v.npy", (1, s["sk"], s["hk"], s["dv"]), self.v)

    def run_options(self, *options):
        done = self.attn("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy", "--lse", "lse.npy",
                         "--verify", "--json", *options)
        summary = json.loads(done.stdout)
        self.assertTrue(summary["verify"]["passed"])
        return read_npy(self.dir / "o.npy")[1], read_npy(self.dir / "lse.npy")[1], summary

    def expect(self, options, token, lse_only=False, **meaning):
        plain_o, plain_lse, _ = self.run_options()
        o, lse, summary = self.run_options(*options)
        wanted_o, wanted_lse = attention(self.q, self.k, self.v, **SHAPE, **meaning)
        self.close(o, wanted_o, 2e-6)
        self.close(lse, wanted_lse, 2e-6)
        self.assertIn(token, summary["problem"])
        self.assertNotEqual(lse, plain_lse)
        if not lse_only:
            self.assertNotEqual(o, plain_o)

    def test_plain(self):
        o, lse, summary = self.run_options()
        wanted_o, wanted_lse = attention(self.q, self.k, self.v, **SHAPE)
        self.close(o, wanted_o, 2e-6)
        self.close(lse, wanted_lse, 2e-6)
        self.assertEqual(summary["problem"], "b1 hq4 hk2 sq5 sk7 d8 dv4 fp32 lse")
        self.assertEqual(summary["outputs"], [{"tensor": "o", "path": "o.npy"}, {"tensor": "lse", "path": "lse.npy"}])

    def test_causal(self):
        self.expect(["--causal", "br"], " causal=br", causal="br")
        self.expect(["--causal", "tl"], " causal=tl", causal="tl")

    def test_window(self):
        self.expect(["--window", "2,0", "--align", "br"], " align=br window=2,0", window=(2, 0))
        self.expect(["--window", "-1,1", "--align", "tl"], " align=tl window=-1,1", window=(-1, 1), causal="align-tl")
        self.expect(["--window=0,3", "--causal", "br"], " causal=br window=0,3", window=(0, 3), causal="br")

    def test_scale(self):
        self.expect(["--scale", "-0.5"], " scale=-0.5", scale=-0.5)
        self.expect(["--scale", "0"], " scale=0", scale=0)

    def test_softcap(self):
        self.expect(["--softcap", "0.75"], " softcap=0.75", softcap=0.75)

    def test_sinks(self):
        self.expect(["--sinks", "0.5,-1,2,1e-3"], " sinks", sinks=[0.5, -1, 2, 1e-3])
        self.expect(["--sinks", "0.5,-1,2,1e-3", "--causal", "br", "--lse-without-sink"], " lse_without_sink",
                    sinks=[0.5, -1, 2, 1e-3], causal="br", lse_with_sink=False)
        self.npy("sinks.npy", (4,), [0.5, -1, 2, 0.25], "<f8")
        self.expect(["--sinks", "sinks.npy"], " sinks", sinks=[0.5, -1, 2, 0.25])

    def test_alibi(self):
        slopes = [0.5, 0.25, 0.125, 1]
        self.expect(["--alibi", "0.5,0.25,0.125,1", "--align", "br"], " alibi", alibi=slopes)
        self.npy("slopes.npy", (1, 4), slopes)
        self.expect(["--alibi", "slopes.npy", "--align", "tl"], " alibi", alibi=slopes, causal="align-tl")

    def test_seqused(self):
        o, lse, summary = self.run_options("--seqused-kv", "4")
        wanted = attention(self.q, self.k, self.v, **{**SHAPE, "sk": 4})
        self.close(o, wanted[0], 2e-6)
        self.close(lse, wanted[1], 2e-6)
        self.assertIn(" seqused", summary["problem"])

    def test_how_it_runs(self):
        """Splits, threads, batch-invariant: the same result, and the problem or plan says so."""
        wanted = attention(self.q, self.k, self.v, **SHAPE)
        for options, token in ((["--splits", "3"], " splits=3"), (["--batch-invariant"], " invariant"),
                               (["--nondeterministic"], " nondeterministic"), (["--threads", "1"], ""),
                               (["--backend", "cpu"], "")):
            o, lse, summary = self.run_options(*options)
            self.close(o, wanted[0], 2e-6)
            self.close(lse, wanted[1], 2e-6)
            self.assertIn(token, summary["problem"])
        self.assertEqual(self.run_options("--splits", "3")[2]["splits"], 3)

    def test_every_level(self):
        levels = json.loads(self.attn("list", "--json").stdout)["cpu_levels"]
        runnable = [level["level"] for level in levels if level["runnable"]]
        self.assertTrue(runnable)
        wanted = attention(self.q, self.k, self.v, **SHAPE, causal="br")
        for level in runnable:
            o, lse, summary = self.run_options("--level", level, "--causal", "br")
            self.assertIn(level, summary["impl"])
            self.close(o, wanted[0], 2e-6)
            self.close(lse, wanted[1], 2e-6)


class Sequences(CliTest):
    """Variable lengths, pages and appends: each sequence equals the call on it alone, in plain Python."""

    def test_packed(self):
        lens_q, lens_kv, hq, d = [3, 0, 2], [4, 5, 1], 2, 4
        q, k, v = normal(4, 5 * hq * d), normal(5, 10 * hq * d), normal(6, 10 * hq * d)
        # Two slack rows of NaN after the last sequence: not read, and their O is 0.
        nan = [math.nan] * (2 * hq * d)
        self.npy("q.npy", (7, hq, d), q + nan)
        self.npy("k.npy", (1, 12, hq, d), k + nan)
        self.npy("v.npy", (12, hq, d), v + nan)
        self.npy("cu_kv.npy", (4,), [0, 4, 9, 10], "<i8")
        for cu_q in ("0,3,3,5", "cu_q.npy"):
            self.npy("cu_q.npy", (4,), [0, 3, 3, 5], "<i4")
            self.attn("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--cu-seqlens-q", cu_q,
                      "--cu-seqlens-kv", "cu_kv.npy", "--causal", "br", "--out", "o.npy", "--lse", "lse.npy", "--verify")
            shape, o = read_npy(self.dir / "o.npy")
            lse_shape, lse = read_npy(self.dir / "lse.npy")
            self.assertEqual((shape, lse_shape), ((7, hq, d), (hq, 7)))
            begin_q = begin_kv = 0
            for sq, sk in zip(lens_q, lens_kv):
                row = hq * d
                wanted, wanted_lse = attention(q[begin_q * row:], k[begin_kv * row:], v[begin_kv * row:], sq=sq, sk=sk,
                                               hq=hq, hk=hq, d=d, dv=d, causal="br")
                self.close(o[begin_q * row:(begin_q + sq) * row], wanted, 2e-6)
                for h in range(hq):
                    self.close(lse[h * 7 + begin_q:h * 7 + begin_q + sq], wanted_lse[h * sq:(h + 1) * sq], 2e-6)
                begin_q, begin_kv = begin_q + sq, begin_kv + sk
            self.assertEqual(o[5 * hq * d:], [0.0] * (2 * hq * d))

    def paged_files(self, table):
        """Two sequences of 5 and 3 keys in pages of 2, the unused slots NaN."""
        d = 4
        k, v = normal(8, 8 * d), normal(9, 8 * d)
        pool = {"k": [math.nan] * (8 * 2 * d), "v": [math.nan] * (8 * 2 * d)}
        for name, data in (("k", k), ("v", v)):
            at = 0
            for length, pages in zip((5, 3), table):
                for j in range(length):
                    slot = (pages[j // 2] * 2 + j % 2) * d
                    pool[name][slot:slot + d] = data[at:at + d]
                    at += d
        self.npy("k.npy", (8, 2, 1, d), pool["k"])
        self.npy("v.npy", (8, 2, 1, d), pool["v"])
        return k, v

    def test_pages(self):
        q, d = normal(7, 2 * 2 * 4), 4
        self.npy("q.npy", (2, 1, 2, d), q)
        k, v = self.paged_files([[6, 1, 4], [0, 7, 3]])
        self.npy("table.npy", (2, 3), [6, 1, 4, 0, 7, 3], "<i4")
        results = []
        for table in ("6,1,4;0,7,3", "6,1,4,0,7,3", "table.npy"):
            self.attn("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--page-table", table, "--seqused-kv", "5,3",
                      "--out", "o.npy", "--verify")
            results.append(read_npy(self.dir / "o.npy"))
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0], results[2])
        self.assertEqual(results[0][0], (2, 1, 2, d))
        common = {"sq": 1, "hq": 2, "hk": 1, "d": d, "dv": d}
        self.close(results[0][1], attention(q, k, v, sk=5, **common)[0] +
                   attention(q[2 * d:], k[5 * d:], v[5 * d:], sk=3, **common)[0], 2e-6)

    def test_append(self):
        """New rows land behind the used ones, and the query sees them; --k-out and --v-out hold the caches."""
        d = 4
        q, k, v = normal(10, d), normal(11, 6 * d), normal(12, 6 * d)
        k_new, v_new = normal(13, 2 * d), normal(14, 2 * d)
        self.npy("q.npy", (1, 1, 1, d), q)
        for name, shape, data in (("k", (1, 6, 1, d), k), ("v", (1, 6, 1, d), v), ("kn", (1, 2, 1, d), k_new),
                                  ("vn", (1, 2, 1, d), v_new)):
            self.npy(f"{name}.npy", shape, data)
        self.attn("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--k-new", "kn.npy", "--v-new", "vn.npy",
                  "--seqused-kv", "3", "--out", "out.safetensors", "--k-out", "out.safetensors", "--v-out",
                  "out.safetensors", "--verify")
        tensors, _ = read_safetensors(self.dir / "out.safetensors")
        full_k, full_v = k[:3 * d] + k_new + k[5 * d:], v[:3 * d] + v_new + v[5 * d:]
        self.assertEqual(tensors["k"][2], full_k)
        self.assertEqual(tensors["v"][2], full_v)
        self.close(tensors["o"][2], attention(q, full_k, full_v, sq=1, sk=5, hq=1, hk=1, d=d, dv=d)[0], 2e-6)

    def test_rotary(self):
        """Both styles, by hand: a quarter turn at position 1, none at 0. The key at position 1 is turned with
        the query there, so their product is as without; the key at 0 meets the turned query."""
        self.npy("cos.npy", (2, 1), [1, 0])
        self.npy("sin.npy", (2, 1), [0, 1])
        self.npy("q.npy", (1, 1, 1, 2), [1, 0])
        self.npy("k.npy", (1, 2, 1, 2), [0, 3, 9, 9])
        self.npy("kn.npy", (1, 1, 1, 2), [1, 0])
        self.npy("v.npy", (1, 2, 1, 2), [0, 0, 9, 9])
        self.npy("vn.npy", (1, 1, 1, 2), [1, 1])
        for style in ("half", "interleaved"):
            self.attn("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--k-new", "kn.npy", "--v-new", "vn.npy",
                      "--rotary-cos", "cos.npy", "--rotary-sin", "sin.npy", "--rotary-style", style, "--seqused-kv", "1",
                      "--causal", "br", "--scale", "1", "--out", "o.npy", "--k-out", "k2.npy", "--verify")
            self.assertEqual(read_npy(self.dir / "k2.npy")[1], [0, 3, 0, 1])
            # q turned is (0, 1): logits 3 and 1.
            p = math.exp(1) / (math.exp(1) + math.exp(3))
            self.close(read_npy(self.dir / "o.npy")[1], [p, p], 1e-6)

    def test_rotary_style(self):
        """Which channels pair: (c, c + 2) or (2c, 2c + 1) of four; the first pair makes a quarter turn."""
        self.npy("cos.npy", (1, 2), [0, 1])
        self.npy("sin.npy", (1, 2), [1, 0])
        self.npy("kn.npy", (1, 1, 1, 4), [1, 0, 0, 0])
        for n in ("q", "k", "v"):
            self.npy(f"{n}.npy", (1, 1, 1, 4), [0] * 4)
        for style, wanted in (("half", [0, 0, 1, 0]), ("interleaved", [0, 1, 0, 0])):
            self.attn("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--k-new", "kn.npy", "--v-new", "kn.npy",
                      "--rotary-cos", "cos.npy", "--rotary-sin", "sin.npy", "--rotary-style", style, "--seqused-kv", "0",
                      "--align", "tl", "--out", "o.npy", "--k-out", "k2.npy", "--verify")
            self.assertEqual(read_npy(self.dir / "k2.npy")[1], wanted)


class Forms(CliTest):
    """Layouts, ranks, names, files: other forms of the same data give the same bits."""

    def setUp(self):
        super().setUp()
        self.b, self.s, self.h, self.d = 2, 3, 2, 4
        count = self.b * self.s * self.h * self.d
        self.data = {n: normal(20 + i, count) for i, n in enumerate("qkv")}
        for n in "qkv":
            self.npy(f"{n}.npy", (self.b, self.s, self.h, self.d), self.data[n])
        self.attn("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--causal", "br", "--out", "plain.npy", "--lse",
                  "plain_lse.npy", "--verify")
        self.plain = read_npy(self.dir / "plain.npy")[1]

    def bhsd(self, values):
        b, s, h, d = self.b, self.s, self.h, self.d
        return [values[((i * s + j) * h + n) * d + c] for i in range(b) for n in range(h) for j in range(s) for c in range(d)]

    def test_bhsd(self):
        for n in "qkv":
            self.npy(f"{n}2.npy", (self.b, self.h, self.s, self.d), self.bhsd(self.data[n]))
        self.attn("run", "--q", "q2.npy", "--k", "k2.npy", "--v", "v2.npy", "--layout", "bhsd", "--causal", "br", "--out",
                  "o.npy")
        self.assertEqual(read_npy(self.dir / "o.npy"), ((self.b, self.h, self.s, self.d), self.bhsd(self.plain)))

    def test_rank_2_and_3(self):
        for n in "qkv":
            one = self.data[n][:self.s * self.d]
            self.npy(f"{n}2.npy", (self.s, self.d), one)
            self.npy(f"{n}3.npy", (self.s, 1, self.d), one)
        for rank, shape in ((2, (self.s, self.d)), (3, (self.s, 1, self.d))):
            self.attn("run", "--q", f"q{rank}.npy", "--k", f"k{rank}.npy", "--v", f"v{rank}.npy", "--out", "o.npy", "--lse",
                      "l.npy", "--verify")
            got = read_npy(self.dir / "o.npy")
            self.assertEqual(got[0], shape)
            self.assertEqual(read_npy(self.dir / "l.npy")[0], (1, self.s))
            wanted = attention(*(self.data[n] for n in "qkv"), sq=self.s, sk=self.s, hq=1, hk=1, d=self.d, dv=self.d)
            self.close(got[1], wanted[0], 2e-6)

    def test_safetensors(self):
        shape = (self.b, self.s, self.h, self.d)
        tensors = {n: ("F32", shape, self.data[n]) for n in "qkv"}
        tensors["m.q"], tensors["query"] = tensors["q"], tensors["q"]
        tensors["m.k"], tensors["m.v"] = tensors["k"], tensors["v"]
        tensors["other"] = ("I64", (1,), [7])  # of no concern
        self.write("t.safetensors", safetensors_bytes(tensors, {"format": "pt"}))
        wanted = (self.dir / "plain.npy").read_bytes()
        for options in ([], ["--q", "@query"], ["--prefix", "m."], ["--q", "@m.q", "--k", "k.npy", "--v", "@m.v"]):
            self.attn("run", "t.safetensors", *options, "--causal", "br", "--out", "o.npy")
            self.assertEqual((self.dir / "o.npy").read_bytes(), wanted, options)
        self.attn("run", "t.safetensors", "--causal", "br", "--out", "o.safetensors", "--lse", "o.safetensors")
        out, metadata = read_safetensors(self.dir / "o.safetensors")
        self.assertEqual(out["o"], ("F32", shape, self.plain))
        self.assertEqual(out["lse"][1], (self.b, self.h, self.s))
        self.assertEqual(out["lse"][2], read_npy(self.dir / "plain_lse.npy")[1])
        self.assertEqual(metadata["attn.problem"], "b2 hq2 hk2 sq3 sk3 d4 fp32 causal=br lse")

    def test_lengths_from_safetensors(self):
        shape = (self.b, self.s, self.h, self.d)
        results = set()
        for dtype in ("I32", "I64", "F32"):
            tensors = {n: ("F32", shape, self.data[n]) for n in "qkv"}
            tensors["used"] = (dtype, (2,), [3, 1])
            self.write("t.safetensors", safetensors_bytes(tensors))
            self.attn("run", "t.safetensors", "--seqused-kv", "@used", "--out", "o.npy", "--verify")
            results.add((self.dir / "o.npy").read_bytes())
        self.attn("run", "t.safetensors", "--seqused-kv", "3,1", "--out", "o.npy")
        self.assertEqual(results, {(self.dir / "o.npy").read_bytes()})
        self.attn("run", "t.safetensors", "--seqused-kv", "3,2", "--out", "o.npy")
        self.assertNotIn((self.dir / "o.npy").read_bytes(), results)

    def test_bf16(self):
        shape = (self.b, self.s, self.h, self.d)
        self.write("t.safetensors", safetensors_bytes({n: ("BF16", shape, self.data[n]) for n in "qkv"}))
        self.attn("run", "t.safetensors", "--out", "o.safetensors", "--verify")
        dtype, _, o = read_safetensors(self.dir / "o.safetensors")[0]["o"]
        self.assertEqual(dtype, "BF16")
        self.attn("run", "t.safetensors", "--out", "o.npy", "--out-dtype", "fp32")
        self.assertEqual(read_npy(self.dir / "o.npy")[1], o)
        self.attn("run", "t.safetensors", "--out", "o.npy", "--npy-bf16")
        self.assertEqual(read_npy(self.dir / "o.npy")[1], o)
        for n in "qkv":
            self.npy(f"{n}.npy", shape, self.data[n], "|V2")
        self.attn("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--npy-bf16", "--out", "o2.npy")
        self.assertEqual((self.dir / "o2.npy").read_bytes(), (self.dir / "o.npy").read_bytes())

    def test_verify_only(self):
        before = self.snapshot()
        done = self.attn("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--verify")
        self.assertIn("passed", done.stdout)
        self.assertEqual(self.snapshot(), before)

    def test_empty(self):
        """No queries, or no keys: success, an empty or a zero O."""
        self.npy("q0.npy", (2, 0, 2, 4), [])
        self.attn("run", "--q", "q0.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy", "--verify")
        self.assertEqual(read_npy(self.dir / "o.npy"), ((2, 0, 2, 4), []))
        self.npy("kv0.npy", (2, 0, 2, 4), [])
        self.attn("run", "--q", "q.npy", "--k", "kv0.npy", "--v", "kv0.npy", "--out", "o.npy", "--lse", "l.npy", "--verify")
        self.assertEqual(set(read_npy(self.dir / "o.npy")[1]), {0.0})
        self.assertEqual(set(read_npy(self.dir / "l.npy")[1]), {-math.inf})


if __name__ == "__main__":
    cli.main()
