"""`attn run` on files of every dtype and order, and on hostile ones: never misread, never a signal, an error that
names what is wrong, and nothing written. Cases named by their upstream reports.
"""
import json
import resource
import struct

import cli
from cli import FILE, SMALL, UNSUPPORTED, USAGE, CliTest, npy_bytes, read_npy, safetensors_bytes, safetensors_raw


class Npy(CliTest):
    SHAPE = (1, 3, 2, 4)

    def setUp(self):
        super().setUp()
        for n in "qkv":
            self.npy(f"{n}.npy", self.SHAPE, range(24))

    def result(self, **replaced):
        """The bytes of O with some of q, k, v replaced by other files."""
        files = [part for n in "qkv" for part in (f"--{n}", replaced.get(n, f"{n}.npy"))]
        self.attn("run", *files, "--scale", "0.01", "--out", "o.npy", "--verify")
        return (self.dir / "o.npy").read_bytes()

    def test_column_order(self):
        """rogersce/cnpy#7, htwaijry/npy4th#2: column order gives the same bits, and O is in row order."""
        plain = self.result()
        self.npy("f.npy", self.SHAPE, range(24), fortran=True)
        self.assertNotEqual((self.dir / "f.npy").read_bytes()[128:], (self.dir / "q.npy").read_bytes()[128:])
        for n in "qkv":
            self.assertEqual(self.result(**{n: "f.npy"}), plain, n)
        self.assertEqual(self.result(q="f.npy", k="f.npy", v="f.npy"), plain)

    def test_column_order_of_lengths(self):
        """A page table saved in column order: the same table."""
        self.npy("q1.npy", (2, 1, 2, 4), range(16))
        self.npy("pool.npy", (4, 1, 2, 4), range(32))
        results = set()
        for fortran in (False, True):
            self.npy("t.npy", (2, 2), [0, 1, 2, 3], "<i4", fortran)
            self.attn("run", "--q", "q1.npy", "--k", "pool.npy", "--v", "pool.npy", "--page-table", "t.npy", "--out", "o.npy")
            results.add((self.dir / "o.npy").read_bytes())
        self.attn("run", "--q", "q1.npy", "--k", "pool.npy", "--v", "pool.npy", "--page-table", "0,1;2,3", "--out", "o.npy")
        self.assertEqual(results, {(self.dir / "o.npy").read_bytes()})

    def test_byte_order(self):
        """marcoheisig/numpy-file-format#2, visgl/loaders.gl PR#986: big-endian files hold the same values."""
        plain = self.result()
        for descr in (">f4", "=f4"):
            self.npy("b.npy", self.SHAPE, range(24), descr)
            self.assertEqual(self.result(q="b.npy"), plain, descr)
        self.npy("used.npy", (1,), [2], ">i4")
        self.attn("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--seqused-kv", "used.npy", "--out", "o1.npy")
        self.attn("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--seqused-kv", "2", "--out", "o2.npy")
        self.assertEqual((self.dir / "o1.npy").read_bytes(), (self.dir / "o2.npy").read_bytes())
        for n in "qkv":
            self.npy(f"{n}l.npy", self.SHAPE, range(24), "<f2")
            self.npy(f"{n}b.npy", self.SHAPE, range(24), ">f2")
        self.assertEqual(self.result(q="ql.npy", k="kl.npy", v="vl.npy"), self.result(q="qb.npy", k="kb.npy", v="vb.npy"))

    def test_other_dtypes(self):
        """jax-ml/ml_dtypes#41: void, integers, bools, objects, structures are refused by name."""
        for descr in ("|V2", "<V2", "<i4", "|b1", "|O", "<c8", "<U4"):
            self.write("x.npy", npy_bytes(self.SHAPE, [0] * 24, descr))
            self.refused(UNSUPPORTED, "run", "--q", "x.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy",
                         says=["--q", "x.npy", descr])
        structured = npy_bytes(self.SHAPE, range(24)).replace(b"'<f4'", b"[('a', '<f4')]")
        self.write("x.npy", structured)
        self.refused(UNSUPPORTED, "run", "--q", "x.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy", says=["--q", "x.npy"])

    def test_hostile(self):
        good = npy_bytes(self.SHAPE, range(24))
        header = good[10:10 + struct.unpack("<H", good[8:10])[0]]
        cases = {
            "empty": b"",
            "magic only": good[:6],
            "other magic": b"\x93NUMPX" + good[6:],
            "version 9": good[:6] + b"\x09\x00" + good[8:],
            "header past the end": good[:8] + b"\xff\xff" + good[10:],
            "version 2 length 2**32-1": good[:6] + b"\x02\x00\xff\xff\xff\xff" + good[10:],
            "cut data": good[:-1],
            "more data": good + b"x",
            "no data": good[:10 + len(header)],
            "no dict": good.replace(b"{", b" "),
            "code": good.replace(b"'<f4'", b"exit()"),
            "negative": good.replace(b"(1, 3, 2, 4)", b"(1, 3,-2, 4)"),
            "huge": good.replace(b"(1, 3, 2, 4)", b"(9999999999)"),
            "overflow": good.replace(b"(1, 3, 2, 4), }", b"(4294967296,4294967296,2,4),}"),
            "nested": good.replace(b"(1, 3, 2, 4)", b"((((((((((("),
            "not utf-8": good.replace(b"'descr'", b"'des\xffr'"),
        }
        for name, data in cases.items():
            with self.subTest(name):
                self.assertNotEqual(data, good)
                self.write("x.npy", data)
                self.refused(FILE, "run", "--q", "x.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy",
                             says=["--q", "x.npy"])
        # The same defects where lengths are read.
        lengths = npy_bytes((1,), [2], "<i4")
        for name, data in {"cut": lengths[:-1], "more": lengths + b"x", "empty": b"", "short": lengths[:9],
                           "code": lengths.replace(b"'<i4'", b"'<i4'+")}.items():
            with self.subTest(lengths=name):
                self.write("x.npy", data)
                self.refused(FILE, "run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--seqused-kv", "x.npy",
                             "--out", "o.npy", says=["x.npy"])
        for descr in ("<i2", "|u1", "|b1"):
            self.write("x.npy", npy_bytes((1,), [1], descr))
            self.refused(UNSUPPORTED, "run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--seqused-kv", "x.npy",
                         "--out", "o.npy", says=["--seqused-kv", "x.npy", descr])


class Safetensors(CliTest):
    SHAPE = (1, 3, 2, 4)

    def good(self):
        return {n: ("F32", self.SHAPE, list(range(24))) for n in "qkv"}

    def test_dtypes(self):
        """safetensors/safetensors#598, tinygrad/tinygrad PR#3310: BF16 is read; what attention cannot take is
        refused by name, also where only one tensor has it."""
        self.write("t.safetensors", safetensors_bytes({
            "q": ("BF16", (1, 1, 1, 2), [0, 0]), "k": ("BF16", (1, 1, 1, 2), [0, 0]), "v": ("BF16", (1, 1, 1, 2), [1, 3])}))
        self.attn("run", "t.safetensors", "--out", "o.npy", "--out-dtype", "fp32", "--verify")
        self.assertEqual(read_npy(self.dir / "o.npy")[1], [1.0, 3.0])
        for dtype in ("I64", "I32", "BOOL", "U8"):
            self.write("t.safetensors", safetensors_bytes({**self.good(), "k": (dtype, self.SHAPE, [1] * 24)}))
            done = self.attn("run", "t.safetensors", "--out", "x.npy", code=UNSUPPORTED)
            self.assertIn("--k", done.stderr)
            self.assertIn(dtype, done.stderr)
            self.assertFalse((self.dir / "x.npy").exists())
        self.write("t.safetensors", safetensors_bytes({**self.good(), "k": ("F16", self.SHAPE, [1] * 24)}))
        self.refused(USAGE, "run", "t.safetensors", "--out", "x.npy", says=["--k", "F16", "F32"])

    def test_hostile(self):
        """ml-explore/mlx#3363, ztxz16/fastllm PR#713, ohdearquant/lattice#752, run-ai/runai-model-streamer PR#121:
        one defect a file."""
        raw = safetensors_bytes(self.good())
        length = struct.unpack("<Q", raw[:8])[0]
        header, data = json.loads(raw[8:8 + length]), raw[8 + length:]

        def edited(edit):
            changed = json.loads(json.dumps(header))
            edit(changed)
            return safetensors_raw(json.dumps(changed), data)

        def offsets(name, value):
            return edited(lambda h: h[name].__setitem__("data_offsets", value))

        def shape(name, value):
            return edited(lambda h: h[name].__setitem__("shape", value))

        text = raw[8:8 + length].decode()
        cases = {
            "offsets below the shape": shape("q", [1000, 1000]),
            "end before begin": offsets("q", [96, 0]),
            "end past the file": offsets("v", [192, 289]),
            "one offset": offsets("q", [96]),
            "no offsets": edited(lambda h: h["q"].pop("data_offsets")),
            "negative": offsets("q", [-96, 0]),
            "fraction": offsets("q", [0, 96.5]),
            "overlap": offsets("k", [0, 96]),
            "gap": safetensors_raw(text.replace("[192, 288]", "[200, 296]"), data + bytes(8)),
            "uncovered tail": safetensors_raw(text, data + bytes(8)),
            "length 0": b"\0" * 8 + raw[8:],
            "length 2**63": safetensors_raw(text, data, 1 << 63),
            "length 2**64-1": safetensors_raw(text, data, (1 << 64) - 1),
            "length past the file": safetensors_raw(text, data, len(raw) + 1),
            "cut json": safetensors_raw(text[:-2], data),
            "array": safetensors_raw("[]", data),
            "duplicate": safetensors_raw(text[:-1] + ', "q": ' + json.dumps(header["q"]) + "}", data),
            "unknown dtype": edited(lambda h: h["q"].__setitem__("dtype", "F7")),
            "metadata": safetensors_raw('{"__metadata__": {"a": 1}, ' + text[1:], data),
            "nesting": safetensors_raw('{"a":' * 1000000 + "1" + "}" * 1000000, data),
            "overflow": shape("q", [1 << 40, 1 << 40]),
            "overflow to the same size": shape("q", [24 + (1 << 62), 4]),
            "empty": b"",
            "eight bytes": raw[:8],
            "cut data": raw[:-1],
            "not utf-8": safetensors_raw(text, data).replace(b'"q"', b'"\xff"'),
        }
        for name, file in cases.items():
            with self.subTest(name):
                self.write("t.safetensors", file)
                self.refused(FILE, "run", "t.safetensors", "--out", "o.npy", says=["t.safetensors"])
                # Where lengths are read from it, too.
        self.write("t.safetensors", safetensors_bytes({n: t for n, t in self.good().items() if n != "q"}))
        self.refused(USAGE, "run", "t.safetensors", "--out", "o.npy", says=["--q", "t.safetensors", "'q'"])

    def test_memory_is_bounded(self):
        """Small files that claim 2⁴⁰ bytes: refused within 2 GiB of address space."""
        if SMALL:
            self.skipTest("a sanitizer reserves more address space than the limit")
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        header = json.dumps({"q": {"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 1 << 40]}})
        self.write("t.safetensors", safetensors_raw(header, b""))
        self.refused(FILE, "run", "t.safetensors", "--out", "o.npy", says=["t.safetensors"], preexec_fn=limit)
        self.write("x.npy", npy_bytes((1,), [1]).replace(b"(1,), }", b"(274877906944,),}"))
        self.refused(FILE, "run", "--q", "x.npy", "--k", "x.npy", "--v", "x.npy", "--out", "o.npy", says=["x.npy"],
                     preexec_fn=limit)


if __name__ == "__main__":
    cli.main()
