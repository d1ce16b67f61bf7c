#!/usr/bin/env python3
"""Recomputes the attention of every layer of a sample in float64 and compares it with the stored O.

Contract: prints one line per layer; exit 0 if all lie within the bound, 1 if one does not, 2 if a file cannot
be read or holds no layer, or NumPy is missing. The bound is what storing in fp32 alone can cause (see row_bound).
Usage: check_sample.py [FILE ...]; without one, every .safetensors of samples/.
"""

import pathlib
import re
import struct
import sys

try:
    import numpy as np
except ImportError:
    print("check_sample.py: needs NumPy (Debian: python3-numpy)", file=sys.stderr)
    sys.exit(2)

import safetensors_file
from attention import attention

_SAMPLES = pathlib.Path(__file__).resolve().parents[2] / "samples"


def row_bound(sizes, inputs_are_exact):
    """The largest error that the stored file may have, per row.

    The scale of the library is a float: 2⁻²⁴ relative. Unless O was made from the very Q, K, V of the file,
    those were rounded to fp32, 2⁻²⁴ each. So a logit moves by at most n · 2⁻²⁴ · max_j |scale| Σ|q_c k_c| with
    n = 1 or 3, and O by twice that times max|V|; rounding V and O to fp32 adds 2⁻²⁴ · max|V| each. 1 % on top
    covers second-order terms and float64. This lies within the library's own fp32 bound (docs/contract.md,
    rule 13), so a backend that meets its bound agrees with O to the sum of the two.
    """
    logit_size, value_size = sizes
    num_logit, num_value = (1, 1) if inputs_are_exact else (3, 2)
    return 1.01 * 2.0**-24 * (num_value + 2 * num_logit * logit_size) * value_size


def options(problem):
    """The tokens of a problem string that the samples use; any other is refused."""
    tokens = problem.split()
    sizes = {m[1]: int(m[2]) for t in tokens if (m := re.fullmatch(r"(b|hq|hk|sq|sk|d)(\d+)", t))}
    flags = set(tokens) - {f"{key}{value}" for key, value in sizes.items()}
    unknown = flags - {"fp32", "bf16", "seqused", "causal=br"}
    if unknown or len(sizes) != 6:
        raise ValueError(f"problem '{problem}': cannot check {sorted(unknown) or 'without all sizes'}")
    return sizes, flags


def check(path):
    arrays, dtypes, metadata = safetensors_file.read(path)
    layers = sorted({int(m[1]) for n in arrays if (m := re.fullmatch(r"layer(\d+)\.q", n))})
    if not layers:
        raise ValueError(f"{path}: no tensor layer<N>.q")
    print(f"{path.name}: {metadata['model']}, {path.stat().st_size} bytes")
    good = True
    for layer in layers:
        q, k, v, o = (arrays[f"layer{layer}.{t}"] for t in "qkvo")
        sizes, flags = options(metadata[f"layer{layer}.problem"])
        expected_q = tuple(sizes[x] for x in ("b", "sq", "hq", "d"))
        expected_k = tuple(sizes[x] for x in ("b", "sk", "hk", "d"))
        if (q.shape, k.shape, v.shape, o.shape) != (expected_q, expected_k, expected_k, expected_q):
            raise ValueError(f"{path}: layer {layer}: shapes differ from its problem string")
        if {dtypes[f"layer{layer}.{t}"] for t in "qkv"} != {"BF16" if "bf16" in flags else "F32"}:
            raise ValueError(f"{path}: layer {layer}: dtypes differ from its problem string")
        lengths = arrays["seqused_kv"] if "seqused" in flags else None
        if lengths is not None and [str(int(n)) for n in lengths] != metadata["seqused_kv"].split(","):
            raise ValueError(f"{path}: seqused_kv differs between tensor and metadata")
        scale = np.float64(np.float32(1.0 / np.sqrt(sizes["d"])))  # as Problem::scale() gives it
        reference, row_sizes = attention(q, k, v, lengths, "causal=br" in flags, scale)
        difference = np.abs(reference - o).max(axis=-1)
        bound = row_bound(row_sizes, metadata["o_made_from"] == "stored q, k, v")
        share = (difference / bound).max()
        ok = bool(share <= 1.0)  # false for a NaN too
        good = good and ok
        print(
            f"  layer {layer}: {metadata[f'layer{layer}.problem']}: max |dO| {difference.max():.3g}, "
            f"{share:.3f} of the bound at the worst row, max |O| {np.abs(o).max():.3g}, "
            f"largest scale*sum|q k| {row_sizes[0].max():.1f}: {'ok' if ok else 'FAIL'}"
        )
    return good


def main():
    paths = [pathlib.Path(a) for a in sys.argv[1:]] or sorted(_SAMPLES.glob("*.safetensors"))
    if not paths:
        print(f"no .safetensors in {_SAMPLES}", file=sys.stderr)
        return 2
    try:
        results = [check(path) for path in paths]
    except (OSError, ValueError, KeyError, struct.error) as error:
        print(f"check_sample.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
