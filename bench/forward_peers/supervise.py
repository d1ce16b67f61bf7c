"""Runs the worker of bench/peers.py, and starts it again without the guilty contender when it dies or hangs, so that one
bad kernel costs one cell. Standard library only. Tested in tests/cli/peers_test.py with workers that do all of this."""
from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

BENCH = Path(__file__).resolve().parents[1]
START_S = 150  # imports, and building what peers build at import
GRACE_S = 20  # beyond the time, for the cell that is under way
MOST_DEATHS = 3  # of one contender; then it is left out


class Outcome:
    """What a run has found so far."""

    def __init__(self, cells):
        self.cells = cells
        self.rows = {}  # cell key: rows
        self.context, self.ceilings, self.missing, self.notes = {}, {}, {}, []
        self.deaths, self.skip, self.fatal = {}, {}, ""
        self.lost = {}  # cell key: rows of contenders that took the worker down

    def dropped(self):
        return [name for name, count in self.deaths.items() if count >= MOST_DEATHS]

    def blame(self, now, why):
        cell, name = now.get("cell"), now.get("contender")
        if not name:
            return False
        self.deaths[name] = self.deaths.get(name, 0) + 1
        self.skip.setdefault(cell, []).append(name)
        self.lost.setdefault(cell, []).append({"impl": name, "failed": f"{why} during {now.get('step')}"})
        if name in self.dropped():
            self.notes.append(f"{name} is left out after {MOST_DEATHS} such ends")
        return True

    def take(self, cell, rows):
        lost = self.lost.get(cell, [])
        self.rows[cell] = rows + lost


def run(config, cells, seconds, save, say, command=None):
    """Measures the cells within so many seconds; `save(outcome)` after each. `command`: another worker, for tests."""
    outcome, deadline = Outcome(cells), time.monotonic() + seconds
    while True:
        left = [cell for cell in cells if cell.key not in outcome.rows]
        remaining = deadline - time.monotonic()
        if not left or remaining <= 0:
            break
        ended = _once(config, left, remaining, outcome, save, say, command)
        if ended != "again":
            break
    return outcome


def _once(config, left, seconds, outcome, save, say, command):
    process = subprocess.Popen(command or [sys.executable, "-u", "-m", "forward_peers.worker"], cwd=os.getcwd(),
                               env={**os.environ, "PYTHONPATH": os.pathsep.join(
                                   [str(BENCH), *filter(None, [os.environ.get("PYTHONPATH")])])},
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)  # fmt: skip
    sent = {**config, "cells": [asdict(cell) for cell in left], "seconds": seconds, "skip": outcome.skip,
            "dropped": outcome.dropped(), "skip_ceilings": config.get("skip_ceilings") or bool(outcome.ceilings)}  # fmt: skip
    try:
        process.stdin.write(json.dumps(sent).encode())
        process.stdin.close()
    except BrokenPipeError:
        pass
    now, done = {"limit": START_S, "step": "start"}, ""
    last, end = time.monotonic(), time.monotonic() + seconds + GRACE_S
    for message in _messages(process, lambda: min(last + now["limit"], end)):
        last = time.monotonic()
        event = message.pop("event")
        if event == "now":
            now = message
        elif event == "cell":
            outcome.take(message["cell"], message["rows"])
            save(outcome)
            say(message["cell"], outcome.rows[message["cell"]])
            now = {"limit": now["limit"], "step": "between cells"}
        elif event == "cell_failed":
            if message["broken"]:  # the worker ends; the cell is measured again without the one that did it
                now["why"] = message["why"]
            else:
                outcome.take(message["cell"], [{"failed": message["why"], **row} for row in message["rows"]])
                outcome.notes.append(f"{message['cell']}: {message['why']}")
                save(outcome)
        elif event == "missing":
            outcome.missing[message["contender"]] = message["why"]
        elif event == "context":
            outcome.context = message
        elif event == "ceilings":
            outcome.ceilings = message
            now = {"limit": START_S, "step": "between cells"}
        elif event == "fatal":
            outcome.fatal = message["why"]
            done = event
        elif event in ("done", "stopped"):
            if event == "stopped":
                outcome.notes.append(f"stopped before {message['cell']}: {message['why']}")
            done = event
        if done:
            break
    waited = time.monotonic() - last
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    code = process.wait()
    process.stdout.close()
    if done:
        return done
    if time.monotonic() >= end:
        outcome.notes.append(f"the time is used up; ended during {now.get('step')} of {now.get('cell', 'nothing')}")
        return "stopped"
    hung = "why" not in now and code == -signal.SIGKILL and waited >= now["limit"]
    why = f"no progress for {waited:.0f} s" if hung else now.get("why", f"the process ended with {code}")
    outcome.notes.append(f"{why}: {now.get('contender') or 'nobody'} during {now.get('step')} of {now.get('cell', 'nothing')}")
    if outcome.blame(now, why):
        return "again"
    if now.get("step") == "ceilings":
        outcome.ceilings = {"failed": why}
        return "again"
    outcome.fatal = f"the worker ended during {now.get('step')}: {why}"
    return "fatal"


def _messages(process, deadline):
    """The worker's lines until it closes its end or the deadline passes, which moves with each line."""
    descriptor, buffer = process.stdout.fileno(), b""
    while True:
        wait = deadline() - time.monotonic()
        if wait <= 0:
            return
        if not select.select([descriptor], [], [], min(wait, 1.0))[0]:
            if process.poll() is not None:  # a child of its own may hold the pipe open
                return
            continue
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return
        buffer += chunk
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                continue
