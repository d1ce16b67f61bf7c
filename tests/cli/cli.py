"""What the tests of the command share: running it, a scratch directory, .npy and .safetensors written byte by
byte, and attention in plain Python, which shares nothing with the library. Standard library only.
"""
import argparse
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ATTN = ""
ROOT = Path()
# ./dev asan and slow machines: sizes that a tenfold slower build gets through.
SMALL = os.environ.get("ATTN_TEST_SMALL") == "1"

OK, CHECK_FAILED, USAGE, UNSUPPORTED, FILE, INTERNAL = 0, 1, 2, 3, 4, 5


def main():
    """Parses --attn and --root, then runs the tests of the calling module."""
    global ATTN, ROOT
    parser = argparse.ArgumentParser()
    parser.add_argument("--attn", required=True)
    parser.add_argument("--root", required=True, type=Path)
    options, rest = parser.parse_known_args()
    ATTN, ROOT = options.attn, options.root.resolve()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


class CliTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="attn-cli-")
        self.dir = Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def attn(self, *args, code=OK, env=None, **kwargs):
        """Runs the command in the scratch directory; stdout and stderr are text."""
        full_env = {**os.environ, **(env or {})}
        done = subprocess.run([ATTN, *map(str, args)], cwd=self.dir, stdin=subprocess.DEVNULL, capture_output=True,
                              env=full_env, timeout=280, **kwargs)
        done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
        self.assertEqual(done.returncode, code,
                         f"attn {' '.join(map(str, args))}\nstdout: {done.stdout}\nstderr: {done.stderr}")
        return done

    def refused(self, code, *args, says=(), **kwargs):
        """The command fails with the code, a one-line message that says all of `says`, and no file changed."""
        before = self.snapshot()
        done = self.attn(*args, code=code, **kwargs)
        self.assertEqual(self.snapshot(), before, f"attn {args} changed files")
        self.assertTrue(done.stderr.startswith("attn"), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for text in says:
            self.assertIn(text, done.stderr)
        return done

    def snapshot(self):
        return {p.name: p.read_bytes() for p in sorted(self.dir.iterdir()) if p.is_file() and not p.is_symlink()}

    def write(self, name, data):
        path = self.dir / name
        path.write_bytes(data)
        return path

    def npy(self, name, shape, values, descr="<f4", fortran=False):
        return self.write(name, npy_bytes(shape, values, descr, fortran))

    def close(self, got, wanted, tolerance=1e-6):
        self.assertEqual(len(got), len(wanted))
        for i, (g, w) in enumerate(zip(got, wanted)):
            if math.isinf(w) or math.isnan(w):
                self.assertTrue(g == w or (math.isnan(g) and math.isnan(w)), f"element {i}: {g}, wanted {w}")
            else:
                self.assertLessEqual(abs(g - w), tolerance, f"element {i}: {g}, wanted {w}")


# --- files -----------------------------------------------------------------------------------------------


def product(shape):
    return math.prod(shape)


def bf16_bits(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


FORMATS = {"f2": "e", "f4": "f", "f8": "d", "i4": "i", "i8": "q", "i2": "h", "b1": "?", "u1": "B"}


def npy_bytes(shape, values, descr="<f4", fortran=False):
    """A version 1.0 file; `values` are in row order and stored in column order where fortran is set."""
    values = list(values)
    if fortran:
        strides = [product(shape[i + 1:]) for i in range(len(shape))]
        order = [0]
        for size, stride in zip(shape, strides):  # the first axis runs fastest, so it is expanded first
            order = [o + i * stride for i in range(size) for o in order]
        values = [values[i] for i in order]
    shape_text = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
    header = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape_text}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    if descr in ("<V2", "|V2"):
        data = struct.pack(f"<{len(values)}H", *(bf16_bits(v) for v in values))
    elif descr[1:] in FORMATS:
        data = struct.pack((">" if descr[0] == ">" else "<") + str(len(values)) + FORMATS[descr[1:]], *values)
    else:
        data = bytes(8 * len(values))
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def read_npy(path):
    """(shape, values) of what the command wrote; asserts the form that every writer of ours has."""
    data = Path(path).read_bytes()
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    length = struct.unpack("<H", data[8:10])[0]
    header = eval(data[10:10 + length], {})  # noqa: S307 (our own output)
    assert not header["fortran_order"], "the writer always writes row order"
    values = unpack(header["descr"], data[10 + length:])
    assert len(values) == product(header["shape"]), (header, len(values))
    return header["shape"], values


def unpack(descr, data):
    kind = descr[1:]
    width = int(kind[1:])
    if kind == "V2":
        return [struct.unpack("<f", struct.pack("<I", b << 16))[0] for b in struct.unpack(f"<{len(data) // 2}H", data)]
    return list(struct.unpack(f"<{len(data) // width}{FORMATS[kind]}", data))


ST_TYPES = {"F16": "f2", "F32": "f4", "F64": "f8", "BF16": "V2", "I32": "i4", "I64": "i8", "BOOL": "b1", "U8": "u1"}


def safetensors_bytes(tensors, metadata=None):
    """tensors: {name: (dtype, shape, values)}."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, values) in tensors.items():
        if dtype == "BF16":
            raw = struct.pack(f"<{len(values)}H", *(bf16_bits(v) for v in values))
        else:
            raw = struct.pack(f"<{len(values)}{FORMATS[ST_TYPES[dtype]]}", *values)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return safetensors_raw(json.dumps(header), data)


def safetensors_raw(header, data, length=None):
    text = header.encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def read_safetensors(path):
    data = Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        descr = "<" + ST_TYPES[info["dtype"]]
        tensors[name] = (info["dtype"], tuple(info["shape"]), unpack(descr, data[8 + length + begin:8 + length + end]))
    return tensors, metadata


# --- attention, by the words of docs/contract.md -----------------------------------------------------------


def normal(seed, count):
    """`count` values that fp32 and fp16 hold exactly: multiples of 1/64."""
    rng = random.Random(seed)
    return [round(rng.gauss(0, 1) * 64) / 64 for _ in range(count)]


def attention(q, k, v, *, sq, sk, hq, hk, d, dv, scale=None, causal=None, window=(-1, -1), softcap=0, sinks=None,
              alibi=None, lse_with_sink=True):
    """One sequence: q[sq·hq·d], k[sk·hk·d], v[sk·hk·dv] in bshd order; O in the same, and LSE as [hq][sq]."""
    scale = 1 / math.sqrt(d) if scale is None else scale
    off = sk - sq if causal in (None, "br", "align-br") else 0
    o, lse = [0.0] * (sq * hq * dv), []
    for h in range(hq):
        g = h // (hq // hk)
        for i in range(sq):
            logits = {}
            for j in range(sk):
                at = i + off
                right = 0 if causal in ("br", "tl") and (window[1] < 0 or window[1] > 0) else window[1]
                if (right >= 0 and j > at + right) or (window[0] >= 0 and j < at - window[0]):
                    continue
                s = scale * sum(q[(i * hq + h) * d + c] * k[(j * hk + g) * d + c] for c in range(d))
                s = softcap * math.tanh(s / softcap) if softcap else s
                logits[j] = s + (alibi[h] * (j - at) if alibi else 0)
            every = list(logits.values()) + ([sinks[h]] if sinks else [])
            if not every:
                lse.append(-math.inf)
                continue
            top = max(every)
            total = sum(math.exp(s - top) for s in every)
            for j, s in logits.items():
                p = math.exp(s - top) / total
                for c in range(dv):
                    o[(i * hq + h) * dv + c] += p * v[(j * hk + g) * dv + c]
            own = every if lse_with_sink or not sinks else list(logits.values())
            lse.append(top + math.log(sum(math.exp(s - top) for s in own)) if own else -math.inf)
    return o, lse
