"""`attn run` killed at any moment: the outputs are there whole or not at all, an older output stays until then,
and nothing else is left in the directory (but, after SIGKILL, perhaps a complete file before its last rename).
"""
import random
import signal
import subprocess
import time

import cli
from cli import SMALL, CliTest, normal


class Signals(CliTest):
    def test_killed(self):
        s, h, d = (64, 2, 16) if SMALL else (512, 4, 64)
        for i, n in enumerate("qkv"):
            self.npy(f"{n}.npy", (1, s, h, d), normal(i, s * h * d))
        args = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy", "--lse", "lse.npy"]
        start = time.monotonic()
        self.attn(*args)
        whole = time.monotonic() - start
        complete = self.snapshot()
        rng = random.Random(1)
        states = set()
        for turn in range(24):
            number = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)[turn % 3]
            for name in ("o.npy", "lse.npy"):
                (self.dir / name).write_bytes(b"older")
            process = subprocess.Popen([cli.ATTN, *args], cwd=self.dir, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE)
            time.sleep(rng.uniform(0, 1.2 * whole))
            process.send_signal(number)
            stderr = process.communicate(timeout=60)[1]
            self.assertIn(process.returncode, (0, -number), stderr)
            after = self.snapshot()
            for name in set(after) - set(complete):
                # Between the naming of a complete file and its rename nothing can tidy up after SIGKILL.
                self.assertEqual((number, name.startswith(".attn-")), (signal.SIGKILL, True), f"{name} was left behind")
                self.assertIn(after.pop(name), complete.values(), f"{name} is partial")
                (self.dir / name).unlink()
            self.assertEqual(set(after), set(complete), "a file is missing")
            for name in ("o.npy", "lse.npy"):
                self.assertIn(after[name], (b"older", complete[name]), f"{name} is partial after {number}")
                states.add(after[name] == complete[name])
            if process.returncode == 0:
                self.assertEqual(after, complete)
        self.assertIn(False, states, "no turn was early enough to interrupt the run")

    def test_disk_full(self):
        """A file size limit stands for a full disk: an error, the older output stays, nothing is left."""
        import resource

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # as a shell leaves it
        for i, n in enumerate("qkv"):
            self.npy(f"{n}.npy", (1, 64, 2, 64), normal(i, 64 * 2 * 64))
        self.npy("o.npy", (1,), [42])
        self.refused(cli.FILE, "run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy", "--lse", "lse.npy",
                     says=["o.npy"], preexec_fn=limit)


if __name__ == "__main__":
    cli.main()
