"""Q, K, V of a cell, (batch, seqlen, heads, head_dim), and the judge: float64 attention of chosen rows and rule 13 of
docs/contract.md. Needs PyTorch. Tested in tests/cli/peers_test.py."""
from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import torch

SAMPLE = Path(__file__).resolve().parents[2] / "samples/smollm2-attention-bf16.safetensors"
UNIT = {"bf16": 2.0**-9, "fp16": 2.0**-12}
# Far above what rounding P to the dtype gives (2e-3, 3e-4: docs/kernels), far below what a wrong tile gives.
RELATIVE = {"bf16": 0.02, "fp16": 0.004}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def sample_tensors():
    """q (227, 9, 64) and k, v (227, 3, 64) of the shipped sample, bf16."""
    with open(SAMPLE, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        body = file.read()
    tensors = []
    for name in ("q", "k", "v"):
        entry = header[f"layer18.{name}"]
        begin, end = entry["data_offsets"]
        tensors.append(torch.frombuffer(bytearray(body[begin:end]), dtype=torch.bfloat16).reshape(entry["shape"])[0])
    return tensors


def _sample(cell, device):
    """The sample's heads one after the other, its tokens repeated; head dims of a multiple of 64 take several heads side
    by side, with Q scaled so that the logit is their sum."""
    q, k, v = (t.to(device) for t in sample_tensors())
    parts = cell.head_dim // 64
    tokens_q = torch.arange(cell.seqlen_q, device=device) % q.shape[0]
    tokens_kv = torch.arange(cell.seqlen_kv, device=device) % k.shape[0]
    heads = torch.arange(cell.heads_q * parts, device=device) % q.shape[1]
    group = q.shape[1] // k.shape[1]

    def pick(t, tokens, which):
        return t[tokens][:, which].reshape(len(tokens), -1, 64 * parts)[None].expand(cell.batch, -1, -1, -1)

    q = pick(q, tokens_q, heads).float() * math.sqrt(parts)
    return q, pick(k, tokens_kv, heads // group), pick(v, tokens_kv, heads // group)


def make(cell, device, seed=0):
    dtype = DTYPES[cell.dtype]
    generator = torch.Generator(device=device).manual_seed(seed)
    if cell.data == "sample":
        return [t.to(dtype).contiguous() for t in _sample(cell, device)]

    def normal(s, heads, d):
        return torch.randn(cell.batch, s, heads, d, device=device, dtype=dtype, generator=generator)

    q = normal(cell.seqlen_q, cell.heads_q, cell.head_dim)
    k = normal(cell.seqlen_kv, cell.heads_kv, cell.head_dim)
    v = normal(cell.seqlen_kv, cell.heads_kv, cell.head_dim_v)
    root = math.sqrt(cell.head_dim)
    from_last = torch.arange(cell.seqlen_kv - 1, -1, -1, device=device)  # 0: the key that kernels come to first
    if cell.data == "sd8":
        q *= 8
    elif cell.data == "sinkkey":
        q[..., 0] = root
        k[..., 0] = 0
        k[:, 0, :, 0] = 30
    elif cell.data == "drift":  # every value exact in bf16
        q[..., 0] = root
        k[..., 0] = (12 * (from_last // 128)).to(dtype)[None, :, None]
    elif cell.data == "ramp":  # 16 a block in one channel, and 1/8 a key in another, so that bf16 holds them
        q[..., :2] = root
        k[..., 0] = (16 * (from_last // 128)).to(dtype)[None, :, None]
        k[..., 1] = (from_last % 128 / 8).to(dtype)[None, :, None]
    elif cell.data != "plain":
        raise KeyError(cell.data)
    return [q, k, v]


def chosen_rows(seqlen, generator):
    fixed = [0, 1, 63, 64, 127, 128, 191, 192, seqlen - 129, seqlen - 128, seqlen - 2, seqlen - 1]
    drawn = torch.randint(0, seqlen, (116,), generator=generator).tolist()
    return sorted({row for row in fixed + drawn if 0 <= row < seqlen})


class Judge:
    """Float64 attention of some rows of four heads, and the bound of rule 13 for each; `check` looks at one output."""

    def __init__(self, cell, q, k, v, seed=1):
        generator = torch.Generator().manual_seed(seed)
        self.cell, self.parts = cell, []
        rows = chosen_rows(cell.seqlen_q, generator)
        self.rows = torch.tensor(rows, device=q.device)
        heads = [(0, 0), (cell.batch - 1, cell.heads_q - 1)]
        heads += [(int(torch.randint(0, cell.batch, (1,), generator=generator)),
                   int(torch.randint(0, cell.heads_q, (1,), generator=generator))) for _ in range(2)]
        scale = 1 / math.sqrt(cell.head_dim)
        off = cell.seqlen_kv - cell.seqlen_q
        keys = torch.arange(cell.seqlen_kv, device=q.device)[None, :]
        seen = torch.ones(len(rows), cell.seqlen_kv, dtype=torch.bool, device=q.device)
        if cell.causal:
            seen &= keys <= self.rows[:, None] + off
        if cell.window_left >= 0:
            seen &= keys >= self.rows[:, None] + off - cell.window_left
        for b, h in heads:
            qs = q[b, self.rows, h].double()
            ks, vs = (t[b, :, h * cell.heads_kv // cell.heads_q].double() for t in (k, v))
            logits = (qs @ ks.T * scale).masked_fill_(~seen, -math.inf)
            want = torch.softmax(logits, 1) @ vs
            spread = (qs.abs() @ ks.abs().T * scale).masked_fill_(~seen, 0).amax(1)
            most = torch.where(seen, vs.abs().amax(1)[None, :], 0).amax(1)
            bound = (4 * UNIT[cell.dtype] + 2 * 2.0**-22 * spread) * most
            self.parts.append((b, h, want, bound))
        self.first = None  # a whole output that was right on the rows: the others are compared with all of it

    def check(self, out, stand_in=False):
        """(largest error, its share of the bound, relative error of the chosen rows, "" or what is wrong). A stand-in
        computes on tensors rounded to another dtype: only gross errors can be told."""
        worst = share = below = above = 0.0
        for b, h, want, bound in self.parts:
            error = (out[b, self.rows, h].double() - want).abs().nan_to_num(nan=math.inf)
            worst = max(worst, error.max().item())
            share = max(share, (error.amax(1) / bound).max().item())
            above += error.square().sum().item()
            below += want.square().sum().item()
        relative = math.sqrt(above / below)
        most = RELATIVE[self.cell.dtype]
        wrong = ""
        if stand_in:
            wrong = "" if relative <= 0.3 else f"{relative:.3g} relative"
        elif not (share <= 2 and relative <= most):  # 2: the contract's peer rule
            wrong = f"error {worst:.3g}, {share:.3g} of the bound, {relative:.3g} relative"
        elif not bool(torch.isfinite(out).all()):
            wrong = "not finite somewhere"
        elif self.first is None:
            self.first = out.clone()
        else:
            difference = max(_block_difference(a, b) for a, b in zip(out, self.first))
            if not difference <= 2 * most:
                wrong = f"a block differs by {difference:.3g}, relative, from the first contender's output"
        return worst, share, relative, wrong


def _block_difference(a, b, rows=64):
    """The largest relative difference of a block of rows of one head; a, b: (seqlen, heads, head_dim)."""
    a, b = a.float(), b.float()
    above, below = ((t.square().sum(2)[: len(t) // rows * rows].reshape(-1, rows, t.shape[1]).sum(1)) for t in (a - b, b))
    return (above / below).sqrt().nan_to_num(nan=math.inf).max().item()
