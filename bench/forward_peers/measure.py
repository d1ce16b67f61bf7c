"""How bench/peers.py measures: calls in a CUDA graph, windows between two events, contenders in turn with pauses.
`Cuda` is the real thing; `Host` runs the same steps on a CPU, so that the program can be tried without a GPU.
Needs PyTorch. Tested in tests/cli/peers_test.py."""
from __future__ import annotations

import math
import statistics
import time

import torch

GRAPH_MS = 1.0  # a graph holds as many calls as last so long, so that replaying it costs the host nothing
MOST_CALLS = 16


class Cuda:
    device = "cuda"

    def __init__(self):
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sync(self):
        torch.cuda.synchronize()

    def capture(self, call, calls):
        """(graph, output of its last call)."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(calls):
                out = call()
        torch.cuda.synchronize()
        return graph, out

    def elapsed_ms(self, step, times):
        self.begin.record()
        for _ in range(times):
            step()
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end)


class _Calls:
    def __init__(self, call, calls):
        self.call, self.calls, self.out = call, calls, call()

    def replay(self):
        for _ in range(self.calls):
            self.out.copy_(self.call())


class Host:
    device = "cpu"

    def sync(self):
        pass

    def capture(self, call, calls):
        graph = _Calls(call, calls)
        return graph, graph.out

    def elapsed_ms(self, step, times):
        begin = time.perf_counter()
        for _ in range(times):
            step()
        return (time.perf_counter() - begin) * 1e3


class Runner:
    """One contender's captured calls of one cell."""

    def __init__(self, clock, call):
        self.clock, self.call = clock, call
        call()  # loads, compiles, chooses: outside the capture
        clock.sync()
        estimate = clock.elapsed_ms(call, 2) / 2
        self.calls = max(1, min(MOST_CALLS, round(GRAPH_MS / max(estimate, 1e-3))))
        self.graph, self.out = clock.capture(call, self.calls)
        self.out.fill_(math.nan)  # a replay has to write all of it
        self.graph.replay()
        clock.sync()
        self.ms = clock.elapsed_ms(self.graph.replay, 2) / 2 / self.calls

    def window(self, ms):
        """Milliseconds a call over about so many milliseconds; one replay before it is not counted."""
        self.graph.replay()
        times = max(1, round(ms / (self.ms * self.calls)))
        return self.clock.elapsed_ms(self.graph.replay, times) / times / self.calls


def turns(runners, rounds, window_ms, pause_ms, tick=lambda name: None):
    """{name: milliseconds of each round}. Every window comes after the same pause; the order moves on by one each round
    and turns round each other, so that the power limit and the neighbour before treat all alike."""
    names, samples = list(runners), {name: [] for name in runners}
    for turn in range(rounds):
        shift = turn % max(1, len(names))
        order = names[shift:] + names[:shift]
        for name in order if turn % 2 == 0 else order[::-1]:
            tick(name)
            time.sleep(pause_ms / 1e3)
            samples[name].append(runners[name].window(window_ms))
    return samples


def summary(samples_ms):
    """Median, 10th and 90th percentile in microseconds."""
    ordered = sorted(samples_ms)

    def at(share):
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return {"median_us": round(statistics.median(ordered) * 1e3, 3), "p10_us": round(at(0.1) * 1e3, 3),
            "p90_us": round(at(0.9) * 1e3, 3), "samples": len(ordered)}  # fmt: skip


def ceilings(clock, dtype, seconds, size=8192, copy_bytes=2 << 30):
    """A matrix product of size³ in bursts and for a while, and a device copy: medians of nine windows of 10 ms."""
    a, b = (torch.randn(size, size, device=clock.device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(a)
    source = torch.empty(copy_bytes, dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)

    def multiply():
        torch.matmul(a, b, out=product)

    found = {}
    for name, step, work in (("gemm_tflops", multiply, 2 * size**3 * 1e-9),
                             ("copy_gbs", lambda: target.copy_(source), 2 * copy_bytes * 1e-6)):  # fmt: skip
        clock.elapsed_ms(step, 2)
        once = clock.elapsed_ms(step, 2) / 2
        times, samples = max(1, round(10 / once)), []
        for _ in range(9):
            time.sleep(0.02)
            step()
            samples.append(clock.elapsed_ms(step, times) / times)
        found[name] = round(work / statistics.median(samples), 1)
        if name == "gemm_tflops" and seconds:
            time.sleep(1)
            times = max(1, round(seconds * 1e3 / once))
            found["gemm_sustained_tflops"] = round(work * times / clock.elapsed_ms(step, times), 1)
    return found
