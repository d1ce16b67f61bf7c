"""`attn run` on bad command lines: each names the option, its value and what is allowed, exits with the documented
code and leaves the directory as it was.
"""
import cli
from cli import FILE, UNSUPPORTED, USAGE, CliTest, safetensors_bytes

FILES = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")
OUT = ("--out", "o.npy")


class Errors(CliTest):
    def setUp(self):
        super().setUp()
        for n in "qkv":
            self.npy(f"{n}.npy", (1, 4, 2, 8), range(64))
        self.npy("o.npy", (1,), [42])  # what was there stays

    def bad(self, *options, says, code=USAGE, files=FILES, out=OUT):
        self.refused(code, "run", *files, *options, *out, says=says)

    def test_missing(self):
        self.bad(files=("--q", "q.npy", "--k", "k.npy"), says=["--v is missing"])
        self.bad(files=(), says=["--q is missing"])
        self.bad(out=(), says=["--out is missing", "--verify"])

    def test_options(self):
        for options, says in (
                (["--causal", "yes"], ["--causal", "'yes'", "br|tl"]),
                (["--causal", "br", "--align", "tl"], ["--align", "'tl'", "br"]),
                (["--window", "3"], ["--window", "'3'", "LEFT,RIGHT"]),
                (["--window", "3,-2", "--align", "br"], ["--window", "'3,-2'"]),
                (["--window", "a,0"], ["--window", "'a,0'"]),
                (["--window", "1,2,3"], ["--window", "'1,2,3'"]),
                (["--window", "3,0"], ["alignment"]),
                (["--softcap", "-1"], ["softcap", "-1"]),
                (["--softcap", "nan"], ["--softcap", "'nan'"]),
                (["--scale", "inf"], ["--scale", "'inf'"]),
                (["--scale", "1,5"], ["--scale", "'1,5'"]),
                (["--scale", ""], ["--scale"]),
                (["--scale", "1e39"], ["--scale", "'1e39'"]),
                (["--splits", "-1"], ["--splits", "'-1'"]),
                (["--splits", "2x"], ["--splits", "'2x'"]),
                (["--splits", "99999"], ["splits", "99999"]),
                (["--threads", "0"], ["--threads", "'0'", "from 1"]),
                (["--threads", "99999999999999999999"], ["--threads", "'99999999999999999999'"]),
                (["--layout", "sbhd"], ["--layout", "'sbhd'", "bshd|bhsd"]),
                (["--dtype", "fp8"], ["--dtype", "'fp8'"]),
                (["--backend", "gpu"], ["--backend", "'gpu'", "auto|cpu|cuda"]),
                (["--no-such"], ["--no-such"]),
                (["--sinks", "1,2,3"], ["--sinks", "3 numbers", "2 wanted"]),
                (["--sinks", "1,x"], ["--sinks", "'x'"]),
                (["--alibi", "1,2"], ["alignment"]),
                (["--alibi", "1,2;3", "--align", "br"], ["--alibi", "rows of 2 and of 1"]),
                (["--lse-without-sink"], ["--lse-without-sink", "--sinks"]),
                (["--seqused-kv", "9"], ["seqused_kv", "9"]),
                (["--seqused-kv", "-1"], ["seqused_kv", "-1"]),
                (["--seqused-kv", "1.5"], ["--seqused-kv", "1.5"]),
                (["--seqused-kv", "1,1"], ["--seqused-kv", "2 numbers", "1 wanted"]),
                (["--seqused-kv", "4294967296"], ["--seqused-kv", "4294967296"]),
                (["--seqused-kv", "@used"], ["--seqused-kv", "'@used'"]),
                (["--cu-seqlens-q", "1,4"], ["cu_seqlens_q", "1"]),
                (["--cu-seqlens-q", "0,5"], ["cu_seqlens_q", "5"]),
                (["--cu-seqlens-q", "0,3,2", "--cu-seqlens-kv", "0,2,4"], ["cu_seqlens_q"]),
                (["--cu-seqlens-kv", "0,2,4"], ["--cu-seqlens-kv", "3 numbers"]),
                (["--page-table", "1", "--seqused-kv", "3"], ["page_table", "1"]),
                (["--page-table", "0;0"], ["--page-table", "2 rows"]),
                (["--k-new", "k.npy"], ["--v-new is missing"]),
                (["--k-new", "k.npy", "--v-new", "v.npy"], ["seqused"]),
                (["--rotary-cos", "q.npy"], ["--rotary-sin is missing"]),
                (["--k-out", "k2.npy"], ["--k-out", "append"]),
                (["--rotary-style", "half"], ["--rotary-style", "'half'", "--rotary-cos"]),
                (["--prefix", "a."], ["--prefix", "'a.'"]),
                (["--device", "-1"], ["--device", "'-1'"])):
            with self.subTest(options=options):
                self.bad(*options, says=says)

    def test_not_here(self):
        self.bad("--backend", "cuda", code=UNSUPPORTED, says=["cuda"])
        self.bad("--level", "avx9000", code=USAGE, says=["avx9000"])

    def test_outputs(self):
        for out, code, says in (
                (["--out", "o.txt"], USAGE, ["--out", "'o.txt'", ".npy or .safetensors"]),
                (["--out", "no/o.npy"], FILE, ["--out", "'no/o.npy'", "does not exist"]),
                (["--out", "x.npy", "--lse", "x.npy"], USAGE, ["--out", "--lse", "'x.npy'"]),
                (["--out", "x.safetensors", "--lse", "y.npy"], USAGE, ["--lse", "'y.npy'", "one kind"]),
                (["--out", "x.safetensors", "--lse", "y.safetensors"], USAGE, ["'y.safetensors'", "same path"]),
                (["--verify", "--out-dtype", "fp32"], USAGE, ["--out-dtype", "'fp32'"]),
                (["--out", "x.npy", "--dtype", "bf16"], USAGE, ["--out", "'x.npy'", "bf16"])):
            with self.subTest(out=out):
                self.bad(out=out, code=code, says=says)
        (self.dir / "d.npy").mkdir()
        self.bad(out=["--out", "d.npy"], code=FILE, says=["d.npy"])
        self.assertTrue((self.dir / "d.npy").is_dir())

    def test_all_or_nothing(self):
        """One output that cannot be written keeps the others from appearing."""
        (self.dir / "lse.npy").mkdir()
        self.bad(out=["--out", "new.npy", "--lse", "lse.npy"], code=FILE, says=["lse.npy"])
        self.assertFalse((self.dir / "new.npy").exists())

    def test_shapes(self):
        for name, shape, says in (("k5.npy", (1, 4, 2, 8, 1), ["--k", "(1, 4, 2, 8, 1)"]),
                                  ("k1.npy", (64,), ["--k", "(64,)"]),
                                  ("kd.npy", (1, 8, 2, 4), ["k shape", "(1, 8, 2, 4)"]),
                                  ("kb.npy", (2, 2, 2, 8), ["k shape", "(2, 2, 2, 8)"])):
            self.npy(name, shape, range(64))
            self.bad(files=("--q", "q.npy", "--k", name, "--v", "v.npy"), says=says)
        self.npy("h3.npy", (1, 4, 3, 8), range(96))
        self.bad(files=("--q", "h3.npy", "--k", "k.npy", "--v", "v.npy"), says=["heads_q", "3", "heads_kv"])

    def test_files(self):
        self.bad(files=("--q", "absent.npy", *FILES[2:]), code=FILE, says=["--q", "absent.npy"])
        self.bad(files=("--q", "/dev/null", *FILES[2:]), code=FILE, says=["--q", "/dev/null"])
        self.bad(files=("--q", ".", *FILES[2:]), code=FILE, says=["--q"])
        self.bad(files=("--q", "@q", *FILES[2:]), says=["--q", "'@q'"])
        self.bad(files=("--q", "x.safetensors", *FILES[2:]), says=["--q", "'x.safetensors'", "@NAME"])
        self.bad(files=("absent.safetensors",), code=FILE, says=["absent.safetensors"])
        self.write("t.safetensors", safetensors_bytes({n: ("F32", (1, 4, 2, 8), range(64)) for n in "qk"}))
        self.bad(files=("t.safetensors",), says=["--v", "t.safetensors", "'v'"])

    def test_mixed_dtypes(self):
        self.npy("q2.npy", (1, 4, 2, 8), range(64), "<f2")
        self.bad(files=("--q", "q2.npy", *FILES[2:]), says=["--k", "F32", "F16"])
        self.npy("q8.npy", (1, 4, 2, 8), range(64), "<f8")
        for n in "kv":
            self.npy(f"{n}8.npy", (1, 4, 2, 8), range(64), "<f8")
        self.bad(files=("--q", "q8.npy", "--k", "k8.npy", "--v", "v8.npy"), says=["F64", "--dtype"])


if __name__ == "__main__":
    cli.main()
