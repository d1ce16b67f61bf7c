"""What bench/peers.py writes (shared form of bench/results: a part a dtype, each with its own context) and prints.
Standard library only. Tested in tests/cli/peers_test.py."""
from __future__ import annotations

import json
import math
import os
import re
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = "libattn"


def ours(row):
    return row["impl"].split(":")[0].split("-")[0] == OURS


def name_of(row):
    """The contender of a row, from its implementation: libattn:sm90 is libattn, libattn-before:sm90 before, torch-fa2
    fa2."""
    name = row["impl"].split(":")[0]
    return {"torch-fa2": "fa2"}.get(name, name.removeprefix("libattn-"))


def counts(row):
    return "tflops" in row and "wrong" not in row


def best_peer(rows):
    return max((row for row in rows if not ours(row) and counts(row)), key=lambda row: row["tflops"], default=None)


def ratio(rows):
    """libattn over the best peer of the same cell; None where one of them has no right result."""
    mine = next((row for row in rows if name_of(row) == OURS and counts(row)), None)
    best = best_peer(rows)
    return mine["tflops"] / best["tflops"] if mine and best else None


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _git(*arguments):
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def _smi():
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=driver_version,power.limit,clocks.max.sm,clocks.max.memory",
                               "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=30)  # fmt: skip
        driver, power, sm, memory = done.stdout.splitlines()[0].split(", ")
        return {"driver": driver, "power_limit_w": float(power), "clocks_mhz": {"sm_max": int(sm), "memory_max": int(memory)}}
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return {}


def without_paths(value):
    """The same texts without the folders of the machine that measured."""
    if isinstance(value, str):
        return re.sub(r"(?<![\w.:/])/(?:[\w.+-]+/)+", "", value)
    if isinstance(value, dict):
        return {key: without_paths(one) for key, one in value.items()}
    return [without_paths(one) for one in value] if isinstance(value, list) else value


class Results:
    """The two files, written again after each cell so that a run that is cut off has left what it found."""

    def __init__(self, folder, dtype, command, protocol, machine, commit):
        self.folder, self.dtype, self.command = Path(folder), dtype, command
        dirty = bool(_git("status", "--porcelain", "--untracked-files=no"))
        self.fixed = {"date": time.strftime("%Y-%m-%d"), "commit": commit or _git("rev-parse", "--short", "HEAD"),
                      "dirty": dirty, "machine": machine, **_smi(), "protocol": protocol}  # fmt: skip

    def part(self, outcome, sections):
        rows = []
        for cell in outcome.cells:
            if cell.section in sections:
                for row in outcome.rows.get(cell.key, []):
                    rows.append({"section": cell.section, "cell": cell.label, "problem": cell.problem, "data": cell.data,
                                 **row})  # fmt: skip
        found = {key: value for key, value in outcome.context.items() if key != "event"}
        return without_paths({"command": self.command, "context": {**self.fixed, **found}, "ceilings": outcome.ceilings,
                              "missing": outcome.missing, "notes": outcome.notes, "rows": rows})  # fmt: skip

    def save(self, outcome):
        for what, sections in (("forward-peers", ("grid", "hard", "extra")), ("sustained", ("sustained",))):
            part = self.part(outcome, sections)
            if part["rows"]:
                write(self.folder / f"{what}.json", what, {self.dtype: part})


def write(path, what, parts):
    """Replaces these parts of a file and keeps its others; it appears by rename."""
    kept = {}
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8")).get("parts", {})
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.tmp")
    document = {"schema": 1, "what": what, "parts": {**kept, **parts}}
    fresh.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def _entry(row):
    if row is None:
        return "-"
    if "wrong" in row:
        return "WRONG"
    return f"{row['tflops']:.0f}" if "tflops" in row else "fail" if "failed" in row else "-"


def table(outcome, names):
    """Lines: a cell each, grouped by section, with its mean and worst ratio."""
    width = max([len(cell.label) for cell in outcome.cells] + [12])
    lines = []
    for section in dict.fromkeys(cell.section for cell in outcome.cells):
        lines.append(f"{section:{width}}" + "".join(f"{n[:9]:>10}" for n in names) + f"{'/best':>8}{'of bound':>9}")
        ratios = []
        for cell in (c for c in outcome.cells if c.section == section and c.key in outcome.rows):
            rows = outcome.rows[cell.key]
            by_name = {name_of(row): row for row in rows}
            value = ratio(rows)
            if value:
                ratios.append((value, cell.label))
            share = by_name.get(OURS, {}).get("max_error_of_bound")
            lines.append(f"{cell.label:{width}}" + "".join(f"{_entry(by_name.get(n)):>10}" for n in names)
                         + (f"{value:>8.3f}" if value else f"{'-':>8}") + (f"{share:>9.2f}" if share is not None else ""))
        measured = sum(c.section == section and c.key in outcome.rows for c in outcome.cells)
        total = sum(c.section == section for c in outcome.cells)
        text = f"{section}: {measured} of {total} cells"
        if ratios:
            text += (f", {len(ratios)} compared; libattn / best peer: geometric mean "
                     f"{geometric_mean([r for r, _ in ratios]):.3f}, worst {min(ratios)[0]:.3f} ({min(ratios)[1]})")
        lines.append(text)
        for other in names:  # another libattn of the same run
            pairs = []
            for cell in (c for c in outcome.cells if c.section == section):
                by_name = {name_of(row): row for row in outcome.rows.get(cell.key, []) if counts(row)}
                if other != OURS and other in by_name and OURS in by_name and ours(by_name[other]):
                    pairs.append((by_name[OURS]["tflops"] / by_name[other]["tflops"], cell.label))
            if pairs:
                lines.append(f"{section}: libattn / {other}: geometric mean {geometric_mean([r for r, _ in pairs]):.3f}, "
                             f"worst {min(pairs)[0]:.3f} ({min(pairs)[1]}), best {max(pairs)[0]:.3f} ({max(pairs)[1]})")
    return lines


def reasons(outcome, most=16):
    """Why cells have no number, the same reason once."""
    found = {}
    for cell in outcome.cells:
        for row in outcome.rows.get(cell.key, []):
            for kind in ("failed", "wrong", "refused"):
                if kind in row:
                    found.setdefault((kind, name_of(row), row[kind][:160]), []).append(cell.label)
                    break
    ordered = sorted(found.items(), key=lambda item: ("failed", "wrong", "refused").index(item[0][0]))
    lines = [f"{kind}: {name}, {len(labels)} cell(s), first {labels[0]}: {text}" for (kind, name, text), labels in ordered]
    return lines[:most] + ([f"… and {len(lines) - most} more reasons, in the file"] if len(lines) > most else [])
