"""The process of bench/peers.py that holds the GPU: measures cell after cell and tells its parent, a JSON object a line.
What a contender raises is an entry of its row; what kills or hangs this process is the parent's to see (supervise.py).
Tested in tests/cli/peers_test.py."""
from __future__ import annotations

import json
import os
import sys
import time

from . import cells as cells_of
from . import contenders

STEP_S = 40  # a step that takes longer hangs; the parent ends it
SLOW_STEP_S = 150  # the first call of contenders that compile


class Channel:
    """Lines to the parent on what was standard output, which from now on goes where standard error goes."""

    def __init__(self):
        self.file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def send(self, event, **fields):
        self.file.write(json.dumps({"event": event, **fields}) + "\n")
        self.file.flush()


def context(torch, names):
    found = {"versions": {"python": sys.version.split()[0], "torch": torch.__version__,
                          **{c.name: c.version for c in names}}}  # fmt: skip
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_properties(0).name
        found["cuda"] = torch.version.cuda
    return found


def one_line(error):
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300]


def broken(torch, device):
    """Whether the GPU's context is lost, after which nothing runs in this process."""
    if device != "cuda":
        return False
    try:
        torch.cuda.synchronize()
        torch.ones(1, device="cuda").item()
    except Exception:  # noqa: BLE001
        return True
    return False


class Bench:
    def __init__(self, config, channel):
        import torch

        from . import data, measure

        self.torch, self.data, self.measure, self.config, self.channel = torch, data, measure, config, channel
        self.sustained = 0
        self.clock = measure.Cuda() if config["device"] == "cuda" else measure.Host()

    def now(self, cell, name, step, limit=STEP_S):
        self.channel.send("now", cell=cell.key, contender=name, step=step, limit=limit)

    def prepare(self, cell, entrants, tensors, judge, rows):
        """{name: Runner} of those that do the cell and are right; the others get their row here."""
        runners = {}
        for entrant in entrants:
            row = rows[entrant.name] = {"impl": entrant.name}
            self.now(cell, entrant.name, "first call", SLOW_STEP_S if entrant.slow_start else STEP_S)
            try:
                call = entrant.make(cell, *tensors)
                row["impl"] = entrant.impl(call)
                if hasattr(call, "plan"):
                    row["kernel"] = call.plan.kernel
                runner = self.measure.Runner(self.clock, call)
                worst, share, relative, wrong = judge.check(runner.out, getattr(entrant, "cast", False))
            except contenders.Refused as refusal:
                row["refused"] = one_line(refusal)
                continue
            except Exception as error:  # noqa: BLE001 - whatever a peer raises
                row["failed"] = one_line(error)
                if broken(self.torch, self.clock.device):
                    raise
                continue
            row.update(max_error=worst, max_error_of_bound=round(share, 4), relative_error=relative,
                       reference="float64, chosen rows")  # fmt: skip
            if wrong:
                row["wrong"] = wrong
            runners[entrant.name] = runner
        return runners

    def measure_cell(self, cell, entrants):
        """The rows of a cell, by contender."""
        rows = {}
        try:
            tensors = self.data.make(cell, self.clock.device)
            judge = self.data.Judge(cell, *tensors)
            runners = self.prepare(cell, entrants, tensors, judge, rows)
            if cell.section == "sustained":
                samples = self.sustain(cell, runners)
            else:
                samples = self.measure.turns(runners, self.config["rounds"], self.config["window_ms"],
                                             self.config["pause_ms"], lambda name: self.now(cell, name, "replay"))  # fmt: skip
            for name, values in samples.items():
                numbers = self.measure.summary(values)
                rows[name].update(numbers, tflops=float(f"{cell.flops / numbers['median_us'] * 1e-6:.5g}"))
        except Exception as error:  # noqa: BLE001
            lost = broken(self.torch, self.clock.device)
            self.channel.send("cell_failed", cell=cell.key, rows=list(rows.values()), why=one_line(error), broken=lost)
            if lost:
                os._exit(3)
            return
        self.channel.send("cell", cell=cell.key, rows=list(rows.values()))

    def sustain(self, cell, runners):
        """One window a contender; who begins changes from cell to cell, because the card warms up."""
        names, samples = list(runners), {}
        shift = self.sustained % max(1, len(names))
        self.sustained += 1
        for name in names[shift:] + names[:shift]:
            self.now(cell, name, "sustained load")
            time.sleep(self.config["sustain_s"])
            samples[name] = [runners[name].window(self.config["sustain_s"] * 1e3)]
        return samples

    def run(self):
        config, channel = self.config, self.channel
        contenders.quiet()
        entrants = contenders.gather(config["contenders"], config["dtype"], config["loaded"],
                                     lambda name, why: channel.send("missing", contender=name, why=why))
        channel.send("context", **context(self.torch, entrants))
        if not config["skip_ceilings"]:
            channel.send("now", cell="ceilings", contender="", step="ceilings", limit=STEP_S)
            small = {} if self.clock.device == "cuda" else {"size": 128, "copy_bytes": 1 << 20}
            channel.send("ceilings", **self.measure.ceilings(
                self.clock, self.data.DTYPES[config["dtype"]], config["sustain_s"], **small))
        last = 0.0
        for cell in config["cells"]:
            begin = time.monotonic()
            if begin + 1.2 * last > config["deadline"]:
                channel.send("stopped", cell=cell.key, why="the time is used up")
                return
            out = config["skip"].get(cell.key, [])
            self.measure_cell(cell, [e for e in entrants if e.name not in out and e.name not in config["dropped"]])
            last = time.monotonic() - begin
            if self.clock.device == "cuda":
                self.torch.cuda.empty_cache()
        channel.send("done")


def load_libraries(config, channel):
    """Before PyTorch is imported. {name: (module, backend, kernel)}."""
    backend = "cuda" if config["device"] == "cuda" else "cpu"
    loaded = {}
    for name, path, kernel in config["libattn"]:
        try:
            loaded[name] = (contenders.load_libattn(path, f"attn_{name.replace('-', '_').replace(':', '_')}"), backend, kernel)
        except Exception as error:  # noqa: BLE001
            channel.send("missing", contender=name, why=one_line(error))
            config["contenders"] = [c for c in config["contenders"] if c != name]
    return loaded


def main():
    """The configuration comes as one JSON object on standard input."""
    channel = Channel()
    config = json.loads(sys.stdin.read())
    config["cells"] = [cells_of.Cell(**cell) for cell in config["cells"]]
    config["deadline"] = time.monotonic() + config["seconds"]
    config["loaded"] = load_libraries(config, channel)
    import torch

    if config["device"] == "cuda" and not torch.cuda.is_available():
        channel.send("fatal", why="PyTorch sees no CUDA device")
        return 2
    with torch.no_grad():
        torch.backends.cuda.matmul.allow_tf32 = False
        Bench(config, channel).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
