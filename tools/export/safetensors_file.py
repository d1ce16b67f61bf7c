"""The .safetensors files of samples/: read and written with NumPy alone.

Contract: read() accepts F32, BF16 and I64 with offsets without gaps, and fails loudly on anything else.
bf16 is held as the float32 values it stands for. Every sample is read back by check_sample.py, and by the C++
reader of src/io. Format: https://github.com/huggingface/safetensors
"""

import json
import os
import struct

import numpy as np

_ITEM_TYPES = {"F32": "<f4", "BF16": "<u2", "I64": "<i8"}
_ALIGNMENT = 8  # the header is padded with spaces to this, as the format's own writer does


def bf16_from_float32(values):
    """The bit patterns of float32 values rounded once, to nearest even. The values must be finite."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _float32_from_bf16(bits):
    return (bits.astype("<u4") << 16).view("<f4")


def bf16_round(values):
    """The nearest bf16 values of the nearest fp32 values, as float32."""
    return _float32_from_bf16(bf16_from_float32(values))


def write(path, tensors, metadata):
    """tensors: (name, "F32" or "BF16", array) in file order. The file appears by rename, complete."""
    header, chunks, offset = {"__metadata__": dict(metadata)}, [], 0
    for name, dtype, array in tensors:
        array = np.ascontiguousarray(array, dtype="<f4")
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: not finite")
        data = (array if dtype == "F32" else bf16_from_float32(array)).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        chunks.append(data)
        offset += len(data)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with open(f"{path}.part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(chunks))
    os.replace(f"{path}.part", path)


def read(path):
    """({name: float32 array}, {name: dtype as the file says it}, metadata), without tensors of integers."""
    with open(path, "rb") as file:
        return parse(file.read(), path)


def parse(data, path):
    """The same for a file's bytes; `path` is for messages."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    metadata, body = header.pop("__metadata__", {}), data[8 + length :]
    arrays, dtypes, expected = {}, {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        item_type = _ITEM_TYPES[entry["dtype"]]
        flat = np.frombuffer(body[begin:end], dtype=item_type)
        if begin != expected or flat.size != np.prod(entry["shape"], dtype=np.int64):
            raise ValueError(f"{path}: {name}: offsets {begin}..{end} do not fit {entry['shape']}")
        expected = end
        if entry["dtype"] == "I64":
            continue
        values = flat if entry["dtype"] == "F32" else _float32_from_bf16(flat)
        arrays[name], dtypes[name] = values.reshape(entry["shape"]), entry["dtype"]
    if expected != len(body):
        raise ValueError(f"{path}: {len(body) - expected} bytes belong to no tensor")
    return arrays, dtypes, metadata
