"""What the tests of bench/cpu_peers.py and bench/cpu_scaling.py share: running the program, what it says without PyTorch,
and a run of it in which every output counts as wrong. Standard library only."""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import cli
from cli import CliTest

ROOT = Path(__file__).resolve().parents[2]
HAVE_TORCH = importlib.util.find_spec("torch") is not None
WRONG = """
import sys
sys.path.insert(0, {bench!r})
import cpu_peers, {name} as program
cpu_peers.BOUND = dict.fromkeys(cpu_peers.BOUND, -1.0)
sys.argv = {argv!r}
sys.exit(program.main())
"""


class CpuBenchTest(CliTest):
    NAME = ""  # of the program

    def python(self, *arguments, code=0, env=None):
        done = subprocess.run([sys.executable, "-B", *arguments], capture_output=True, text=True, cwd=self.dir,
                              env={**os.environ, **(env or {})}, timeout=280)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def script(self, *arguments, **kwargs):
        return self.python(str(ROOT / f"bench/{self.NAME}.py"), *arguments, **kwargs)

    def wrong(self, *arguments):
        """What the program says where no error is small enough."""
        text = WRONG.format(bench=str(ROOT / "bench"), name=self.NAME, argv=["x", *arguments])
        return self.python(str(self.write("wrong.py", text.encode())), code=1)

    def built_library(self):
        library = Path(cli.ATTN).resolve().parents[2] / "src/libattn.so.0"
        if not HAVE_TORCH or cli.SMALL or not library.exists():
            self.skipTest("PyTorch is not installed, or the library is a sanitizer's or static")
        absent = self.script("--library", str(self.dir / "absent.so"), "--quick", code=2)
        self.assertIn("no libattn under", absent)
        return str(library)

    def expect_word_without_pytorch(self):
        self.write("torch.py", b"raise ImportError('none')\n")
        self.write("numpy.py", b"")
        self.assertIn("PyTorch is not installed", self.script("--quick", code=2, env={"PYTHONPATH": str(self.dir)}))
