"""Times the sm90 kernels, each by name, beside PyTorch's FlashAttention-2 and cuDNN on one GPU, in turns in one process.

  speed.py LIBRARY [--cells SET,… | --problem LINE …] [--study] [--larger] [--also NAME=LIBRARY …] [--out FILE] …

LIBRARY is libsm90_kernels.so (tests/kernels). A cell is a line such as "b4 hq16 hk16 sq4096 sk4096 d128 dv64 causal
window=1024 softcap=30"; SET is grid (heads · head_dim = 2048, batch · seqlen = 16384), dims, masks or few. 4·S²·d FLOPs a
head, less what the mask hides. Calls are in CUDA graphs of as many as last a millisecond; a window of a candidate is a few
milliseconds of replays between two events, candidates take turns, and the median over the rounds counts. Outputs are compared with an
fp32 computation of some rows once. --larger adds kernels with larger tiles of head_dim than the smallest that
fits; --also adds the same kernels of another build. The last lines are a table; FILE gets everything.
"""
import argparse
import ctypes
import json
import math
import statistics
import subprocess
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


class Problem(ctypes.Structure):
    _fields_ = [(name, ctypes.c_longlong) for name in
                ("batch", "seqlen_q", "seqlen_kv", "heads_q", "heads_kv", "head_dim_qk", "head_dim_v", "window_left",
                 "window_right")] + [("softcap", ctypes.c_float), ("order_mode", ctypes.c_int)]


class Cell:
    def __init__(self, line):
        self.line = line
        sizes = {"b": 1, "hk": None, "dv": None, "window": -1, "softcap": 0.0}
        self.causal = False
        for token in line.split():
            if token == "causal":
                self.causal = True
            elif "=" in token:
                name, value = token.split("=")
                sizes[name] = float(value)
            else:
                name = token.rstrip("0123456789")
                sizes[name] = int(token[len(name):])
        self.b, self.hq, self.sq, self.sk, self.d = (sizes[n] for n in ("b", "hq", "sq", "sk", "d"))
        self.hk = sizes["hk"] or self.hq
        self.dv = sizes["dv"] or self.d
        self.window, self.softcap = int(sizes["window"]), sizes["softcap"]
        self.band = self.causal or self.window >= 0 or self.softcap != 0

    def problem(self, order):
        right = 0 if self.causal else -1
        return Problem(self.b, self.sq, self.sk, self.hq, self.hk, self.d, self.dv, self.window, right, self.softcap,
                       order)

    def visible(self):
        """Scores a head that are not masked."""
        off = self.sk - self.sq
        if not self.causal and self.window < 0:
            return self.sq * self.sk
        if self.sq == self.sk and self.window < 0:
            return self.sq * self.sk / 2  # as the field counts it
        return sum(max(0, min(self.sk, i + off + 1 if self.causal else self.sk) -
                       (max(0, i + off - self.window) if self.window >= 0 else 0)) for i in range(self.sq))

    def flops(self):
        return 2 * (self.d + self.dv) * self.visible() * self.hq * self.b

    def mask(self, rows, device):
        i = torch.as_tensor(rows, device=device)[:, None] + self.sk - self.sq
        j = torch.arange(self.sk, device=device)[None]
        seen = torch.ones(len(rows), self.sk, dtype=torch.bool, device=device)
        if self.causal:
            seen &= j <= i
        if self.window >= 0:
            seen &= j >= i - self.window
        return seen


class Caller:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.sm90_forward.restype = ctypes.c_char_p
        self.workspace = torch.zeros(256, dtype=torch.uint8, device="cuda")
        self.kernels, text = [], ctypes.create_string_buffer(1024)
        while self.library.sm90_kernel(len(self.kernels), text, 1024):
            self.kernels.append(json.loads(text.value))

    def __call__(self, name, cell, q, k, v, o, lse, order=0):
        error = self.library.sm90_forward(
            name.encode(), ctypes.byref(cell.problem(order)),
            *[ctypes.c_void_p(t.data_ptr()) for t in (q, k, v, o, lse, self.workspace)],
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if error:
            raise RuntimeError(f"{name}: {error.decode()}")

    def candidates(self, cell, bf16, study, larger):
        fits = [k for k in self.kernels if bool(k["bf16"]) == bf16 and k["head_dim_qk"] >= cell.d and
                k["head_dim_v"] >= cell.dv and (k["band"] or not cell.band) and k["changed"] == (cell.softcap != 0) and
                (study or not k["name"].startswith("study"))]
        columns = lambda k: k["head_dim_qk"] + k["head_dim_v"]
        sizes = sorted({columns(k) for k in fits})[:2 if larger else 1]
        return [k["name"] for k in fits if columns(k) in sizes]


class Calls:
    """A graph of as many calls as last a millisecond, so that starting it costs nothing."""

    def __init__(self, function):
        self.count = 1
        self.graph = self.capture(function)
        once = window(self, 0)
        self.count = max(1, min(16, round(1 / max(once, 1e-3))))
        self.graph = self.capture(function)

    def capture(self, function):
        function()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(self.count):
                function()
        return graph

    def replay(self):
        self.graph.replay()


def window(graph, milliseconds):
    """Milliseconds a call."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    replays = max(3, int(milliseconds / max(begin.elapsed_time(end), 1e-3)))
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / replays / graph.count


def expected(cell, q, k, v, rows):
    """fp32, of some rows of the first and the last head of the last batch entry: (2, rows, head_dim_v)."""
    out = []
    for h in (0, cell.hq - 1):
        kv = h * cell.hk // cell.hq
        s = q[-1, rows, h].float() @ k[-1, :, kv].float().T / math.sqrt(cell.d)
        if cell.softcap:
            s = cell.softcap * torch.tanh(s / cell.softcap)
        s = s.masked_fill(~cell.mask(rows, q.device), -math.inf)
        out.append(torch.softmax(s, dim=-1) @ v[-1, :, kv].float())
    return torch.stack(out)


def peers_of(cell, q, k, v):
    qt, kt, vt = (t.transpose(1, 2) for t in (q, k, v))
    if cell.window >= 0 or cell.softcap or (cell.causal and cell.sq != cell.sk):
        return {}

    def call(backend):
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(qt, kt, vt, is_causal=cell.causal,
                                                                    enable_gqa=cell.hk != cell.hq)
    return {"fa2": lambda: call(SDPBackend.FLASH_ATTENTION), "cudnn": lambda: call(SDPBackend.CUDNN_ATTENTION)}


def cells_of(names):
    sets = {"grid": [f"b{16384 // s} hq{2048 // d} sq{s} sk{s} d{d}{m}" for d in (64, 128, 256) for m in ("", " causal")
                     for s in (512, 1024, 2048, 4096, 16384)],
            "dims": [f"b4 hq{hq} sq4096 sk4096 d{d} dv{dv}{m}" for d, dv, hq in
                     ((32, 32, 64), (80, 80, 24), (96, 96, 20), (112, 112, 16), (128, 64, 16), (160, 160, 12),
                      (192, 128, 10), (192, 192, 10)) for m in ("", " causal")],
            "masks": ["b1 hq16 sq16384 sk16384 d128 causal window=1024", "b1 hq32 sq16384 sk16384 d64 causal window=1024",
                      "b1 hq8 sq16384 sk16384 d256 causal window=1024", "b4 hq16 sq4096 sk4096 d128 softcap=30",
                      "b4 hq16 sq4096 sk4096 d128 causal softcap=30", "b4 hq8 sq4096 sk4096 d256 causal softcap=50"],
            "few": ["b1 hq32 sq2048 sk2048 d128", "b1 hq32 sq4096 sk4096 d128 causal",
                    "b4 hq32 hk8 sq4096 sk4096 d128 causal", "b1 hq16 sq1024 sk16384 d128 causal"]}
    return [cell for name in names.split(",") for cell in sets[name]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=LIBRARY",
                        help="the same kernels of another build, under NAME:")
    parser.add_argument("--out")
    parser.add_argument("--cells", default="grid")
    parser.add_argument("--problem", action="append")
    parser.add_argument("--study", action="store_true")
    parser.add_argument("--larger", action="store_true")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--data", default="plain", choices=("plain", "q30", "drift", "steps"),
                        help="q30: Q times 30; drift, steps: the maximum grows by 12, 30 from one block of 128 "
                             "keys to the next, in the order in which the kernels take them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=10)
    parser.add_argument("--pause", type=float, default=20, help="milliseconds before a window")
    arguments = parser.parse_args()
    libraries = {"": Caller(arguments.library)}
    for text in arguments.also:
        name, path = text.split("=", 1)
        libraries[name + ":"] = Caller(path)
    torch.manual_seed(0)
    dtype = torch.float16 if arguments.fp16 else torch.bfloat16
    rows = []
    for line in arguments.problem or cells_of(arguments.cells):
        cell = Cell(line)
        q, k, v = (torch.randn(cell.b, s, h, d, device="cuda", dtype=dtype) for s, h, d in
                   ((cell.sq, cell.hq, cell.d), (cell.sk, cell.hk, cell.d), (cell.sk, cell.hk, cell.dv)))
        if arguments.data == "q30":
            q *= 30
        elif arguments.data != "plain":
            q[..., 0] = cell.d ** 0.5
            blocks = torch.arange(cell.sk, device="cuda") // 128
            k[..., 0] = (-{"drift": 12, "steps": 30}[arguments.data] * blocks).to(dtype)[None, :, None]
        lse = torch.empty(cell.b, cell.hq, cell.sq, device="cuda")
        some = sorted({0, 1, cell.sq // 2, cell.sq - 1} | set(torch.randint(cell.sq, (60,)).tolist()))
        want = expected(cell, q, k, v, some)
        calls, keep = {}, []
        for prefix, caller in libraries.items():
            for name in caller.candidates(cell, not arguments.fp16, arguments.study, arguments.larger):
                o = torch.full((cell.b, cell.sq, cell.hq, cell.dv), float("nan"), device="cuda", dtype=dtype)
                keep.append(o)  # the graph holds its address, not the tensor

                def call(caller=caller, name=name, o=o):
                    caller(name, cell, q, k, v, o, lse)
                    return o.transpose(1, 2)
                calls[prefix + name] = call
        if not arguments.no_peer:
            calls.update(peers_of(cell, q, k, v))
        graphs = {}
        for name, call in calls.items():
            try:
                got = call()[-1].transpose(0, 1)[some][:, [0, cell.hq - 1]].transpose(0, 1).float()
                worst = (got - want).abs().max().item()
                if not worst < 0.02 + 0.01 * want.abs().max().item():
                    print(f"WRONG {name} {line}: {worst}", flush=True)
                    continue
                graphs[name] = Calls(call)
            except RuntimeError as error:
                print(f"{name} cannot {line}: {str(error)[:90]}", flush=True)
        times = {name: [] for name in graphs}
        for graph in graphs.values():
            window(graph, 2)
        for _ in range(arguments.rounds):
            for name, graph in graphs.items():
                time.sleep(arguments.pause * 1e-3)  # the power limit then treats all alike
                times[name].append(window(graph, arguments.window))
        for name, values in times.items():
            tflops = [cell.flops() / t * 1e-9 for t in values]
            rows.append({"problem": line, "impl": name, "tflops": round(statistics.median(tflops), 1),
                         "tflops_min": round(min(tflops), 1), "tflops_max": round(max(tflops), 1)})
        del graphs
    write(arguments, rows, str(dtype)[6:])


def write(arguments, rows, dtype):
    props = torch.cuda.get_device_properties(0)
    smi = subprocess.run(["nvidia-smi", "--query-gpu=driver_version,power.limit,clocks.sm", "--format=csv,noheader"],
                         capture_output=True, text=True).stdout.strip()
    driver, power, clock = (smi.split(", ") + ["", "", ""])[:3]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    if arguments.out:
        result = {"schema": 1, "what": "sm90-kernels", "command": "python3 " + " ".join(sys.argv),
                  "context": {"date": time.strftime("%Y-%m-%d"), "commit": commit, "machine": "h200", "gpu": props.name,
                              "driver": driver, "power_limit_w": power, "clocks_mhz": clock, "data": arguments.data,
                              "dtype": dtype, "protocol": f"graphs, {arguments.rounds} rounds in turns, windows of "
                              f"{arguments.window} ms, medians", "versions": {"torch": torch.__version__}},
                  "rows": rows}
        with open(arguments.out, "w") as file:
            json.dump(result, file, indent=0)
    print(props.name, smi)
    last = None
    for row in rows:
        if row["problem"] != last:
            last = row["problem"]
            print(last)
        print(f"    {row['impl'].replace('sm90_fwd_', ''):40} {row['tflops']:7.0f}  ({row['tflops_min']:.0f}-{row['tflops_max']:.0f})")


if __name__ == "__main__":
    main()
