"""Times the sm90 kernels beside PyTorch's FlashAttention-2 on one GPU, in turns in one process.

  speed.py LIBRARY [--out FILE] [--seqlens 512,4096] [--dims 64,128,256] [--study] [--rounds N] [--window MS]

LIBRARY is libsm90_kernels.so (tests/kernels). Shapes as in the FlashAttention papers: heads · head_dim = 2048,
batch · seqlen = 16384; 4·S²·d·heads·batch FLOPs, half of it for causal. Every call is in a CUDA graph; a window
of a candidate is `MS` milliseconds of replays between two events, candidates take turns, and the median over the
rounds counts. Outputs are compared with PyTorch's once. The last lines are a table; FILE gets everything.
"""
import argparse
import ctypes
import json
import statistics
import subprocess
import time
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def kernels_of(library):
    kernels = []
    text = ctypes.create_string_buffer(1024)
    while library.sm90_kernel(len(kernels), text, 1024):
        kernels.append(json.loads(text.value))
    return kernels


class Caller:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.sm90_forward.restype = ctypes.c_char_p
        self.kernels = kernels_of(self.library)
        self.workspace = torch.zeros(256, dtype=torch.uint8, device="cuda")

    def __call__(self, name, q, k, v, o, lse, order=0):
        b, sq, hq, _ = q.shape
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (q, k, v, o, lse)]
        sizes = [ctypes.c_longlong(x) for x in (b, sq, k.shape[1], hq, k.shape[2])]
        error = self.library.sm90_forward(name.encode(), *pointers, *sizes, order,
                                          ctypes.c_void_p(self.workspace.data_ptr()),
                                          ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if error:
            raise RuntimeError(f"{name}: {error.decode()}")


def graph_of(function):
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def window(graph, milliseconds):
    """Milliseconds a replay."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    count = max(3, int(milliseconds / max(begin.elapsed_time(end), 1e-3)))
    begin.record()
    for _ in range(count):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--out")
    parser.add_argument("--seqlens", default="512,1024,2048,4096,16384")
    parser.add_argument("--dims", default="64,128,256")
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--study", action="store_true")
    parser.add_argument("--static-too", action="store_true", help="causal kernels in static tile order as well")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--data", default="plain", choices=("plain", "q30", "drift", "steps"),
                        help="q30: Q times 30; drift, steps: the maximum grows by 12, 30 from one block of 128 "
                             "keys to the next, in the order in which the kernels take them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=12)
    arguments = parser.parse_args()
    call = Caller(arguments.library)
    torch.manual_seed(0)
    rows = []
    for d in map(int, arguments.dims.split(",")):
        for mask in arguments.masks.split(","):
            causal = mask == "causal"
            for s in map(int, arguments.seqlens.split(",")):
                dtype = torch.float16 if arguments.fp16 else torch.bfloat16
                batch, heads = max(1, 16384 // s), 2048 // d
                q, k, v = (torch.randn(batch, s, heads, d, device="cuda", dtype=dtype) for _ in range(3))
                if arguments.data == "q30":
                    q *= 30
                elif arguments.data != "plain":
                    step = {"drift": 12, "steps": 30}[arguments.data]
                    q[..., 0] = d ** 0.5
                    blocks = torch.arange(s, device="cuda") // 128
                    k[..., 0] = (-step * blocks).to(dtype)[None, :, None]
                lse = torch.empty(batch, heads, s, device="cuda")
                flops = 4 * s * s * d * heads * batch * (0.5 if causal else 1)
                qt, kt, vt = (t.transpose(1, 2) for t in (q, k, v))

                def peer():
                    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                        return torch.nn.functional.scaled_dot_product_attention(qt, kt, vt, is_causal=causal)

                want = peer().transpose(1, 2)
                keep = []
                graphs = {} if arguments.no_peer else {"fa2": graph_of(peer)}
                for kernel in call.kernels:
                    name = kernel["name"]
                    if kernel["head_dim"] != d or kernel["causal"] != causal or kernel["bf16"] == arguments.fp16:
                        continue
                    if name.startswith("study") and not arguments.study:
                        continue
                    o = torch.full_like(q, float("nan"))
                    call(name, q, k, v, o, lse)
                    worst = (o.float() - want.float()).abs().max().item()
                    if not worst < 0.02 + 0.01 * want.float().abs().max().item():
                        print(f"WRONG {name} s{s}: {worst}", flush=True)
                        continue
                    keep.append(o)  # the graph holds its address, not the tensor
                    graphs[name] = graph_of(lambda name=name, o=o: call(name, q, k, v, o, lse))
                    if causal and arguments.static_too:
                        graphs[name + ":static"] = graph_of(lambda name=name, o=o: call(name, q, k, v, o, lse, 1))
                times = {name: [] for name in graphs}
                for name, graph in graphs.items():
                    window(graph, 2)
                for _ in range(arguments.rounds):
                    for name, graph in graphs.items():
                        times[name].append(window(graph, arguments.window))
                for name, values in times.items():
                    tflops = [flops / t * 1e-9 for t in values]
                    rows.append({"kernel": name, "head_dim": d, "mask": mask, "seqlen": s, "dtype": str(dtype)[6:],
                                 "tflops": round(statistics.median(tflops), 1), "tflops_min": round(min(tflops), 1),
                                 "tflops_max": round(max(tflops), 1)})
                del graphs
    props = torch.cuda.get_device_properties(0)
    smi = subprocess.run(["nvidia-smi", "--query-gpu=driver_version,power.limit,clocks.sm", "--format=csv,noheader"],
                         capture_output=True, text=True).stdout.strip()
    driver, power, clock = (smi.split(", ") + ["", "", ""])[:3]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()

    def problem(r):
        tail = " causal=br" if r["mask"] == "causal" else ""
        return (f"b{16384 // r['seqlen']} hq{2048 // r['head_dim']} hk{2048 // r['head_dim']} sq{r['seqlen']} "
                f"sk{r['seqlen']} d{r['head_dim']} {'bf16' if r['dtype'] == 'bfloat16' else 'fp16'}{tail}")

    result = {"schema": 1, "what": "sm90-kernels", "command": "python3 " + " ".join(sys.argv),
              "context": {"date": time.strftime("%Y-%m-%d"), "commit": commit, "machine": "h200", "gpu": props.name,
                          "driver": driver, "power_limit_w": power, "clocks_mhz": clock, "data": arguments.data,
                          "protocol": f"graphs, {arguments.rounds} rounds in turns, windows of {arguments.window} ms, "
                                      "medians", "versions": {"torch": torch.__version__}},
              "rows": [{**r, "problem": problem(r), "impl": "torch-fa2" if r["kernel"] == "fa2" else "libattn:" + r["kernel"]}
                       for r in rows]}
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump(result, file, indent=0)
    print(props.name, smi)
    groups = {}
    for r in rows:
        groups.setdefault((r["head_dim"], r["mask"], r["kernel"]), {})[r["seqlen"]] = r["tflops"]
    seqlens = sorted({r["seqlen"] for r in rows})
    print(f"{'kernel':44}" + "".join(f"{s:>8}" for s in seqlens))
    for (d, mask, kernel), values in groups.items():
        print(f"{f'd{d} {mask} ' + kernel.replace('sm90_fwd_', ''):44}" + "".join(f"{values.get(s, 0):8.0f}" for s in seqlens))


if __name__ == "__main__":
    main()
