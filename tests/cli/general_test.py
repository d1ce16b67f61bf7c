"""The command as a whole: help and its examples, exit codes, streams, terminals, locale."""
import json
import os
import pty
import re
import shlex
import subprocess
import time

import cli
from cli import FILE, OK, SMALL, USAGE, CliTest, normal, safetensors_bytes

SUBCOMMANDS = ("run", "verify", "bench", "explain", "list", "selftest", "demo")


def with_terminal(args, cwd, which, env=None):
    """Runs with stdout or stderr on a terminal; returns the exit code, what the terminal got, and the other one."""
    parent, child = pty.openpty()
    other = "stderr" if which == "stdout" else "stdout"
    process = subprocess.Popen(args, cwd=cwd, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})},
                               **{which: child, other: subprocess.PIPE})
    os.close(child)
    seen = b""
    try:
        while chunk := os.read(parent, 65536):
            seen += chunk
    except OSError:  # how Linux says that the other side is closed
        pass
    rest = process.communicate(timeout=120)[0 if other == "stdout" else 1]
    os.close(parent)
    return process.returncode, seen.decode(), rest.decode()


class Help(CliTest):
    def examples(self, name):
        text = self.attn(name, "--help").stdout
        self.assertIn("Examples:\n", text)
        return [line.strip() for line in text.split("Examples:\n")[1].splitlines() if line.strip()]

    def test_help(self):
        text = self.attn("--help").stdout
        for name in SUBCOMMANDS:
            self.assertRegex(text, rf"(?m)^  {name}\s")
        for code in ("0", "1", "2", "3", "4", "5", "130"):
            self.assertRegex(text, rf"(?m)^  {code}  \w")

    def test_lines_fit(self):
        for name in ("", *SUBCOMMANDS):
            for line in self.attn(*([name] if name else []), "--help").stdout.splitlines():
                self.assertLessEqual(len(line), 120, line)

    def test_examples_run_as_printed(self):
        (self.dir / "samples").symlink_to(cli.ROOT / "samples")
        (self.dir / "bench").symlink_to(cli.ROOT / "bench")
        for i, n in enumerate("qkv"):
            self.npy(f"{n}.npy", (1, 32, 2, 16), normal(i, 1024))
        shape = (1, 2, 32, 16)
        self.write("qkv.safetensors", safetensors_bytes({"query": ("F16", shape, normal(1, 1024)),
                                                         "k": ("F16", shape, normal(2, 1024)),
                                                         "v": ("F16", shape, normal(3, 1024))}))
        for name in SUBCOMMANDS:
            examples = self.examples(name)
            self.assertTrue(examples)
            for line in examples:
                with self.subTest(line):
                    words = shlex.split(line)
                    self.assertEqual(words[:2], ["attn", name])
                    if words == ["attn", "selftest"] or (SMALL and name in ("bench", "demo", "selftest")):
                        continue  # demo_test.py and selftest_test.py run them
                    done = self.attn(*words[1:])
                    if "--json" in words:
                        json.loads(done.stdout)
        for written in ("o.npy", "lse.npy", "o.safetensors", "results.json"):
            self.assertTrue(SMALL or (self.dir / written).exists(), written)

    def test_documented(self):
        """docs/command.md names every subcommand, every option and every exit code."""
        document = (cli.ROOT / "docs/command.md").read_text(encoding="utf-8")
        for name in SUBCOMMANDS:
            self.assertIn(f"## attn {name}", document)
            for option in re.findall(r"(?m)^  (--[a-z0-9-]+)", self.attn(name, "--help").stdout):
                self.assertIn(f"`{option}", document, f"{option} of attn {name}")
        for line in re.findall(r"(?m)^  \d+  .*$", self.attn("--help").stdout.split("Exit codes:")[1]):
            self.assertIn(f"| {line.split()[0]} |", document)


class General(CliTest):
    def test_usage(self):
        self.refused(USAGE, says=["subcommand"])
        self.refused(USAGE, "runn", says=["runn"])
        self.refused(USAGE, "--what", says=["--what"])
        for name in SUBCOMMANDS:
            self.refused(USAGE, name, "--no-such-option", says=[f"attn {name}:", "--no-such-option"])
        for name in ("verify", "bench", "explain"):
            self.refused(USAGE, name, says=[f"attn {name}: a problem is missing"])
            self.refused(USAGE, name, "b1 sq4 d8", says=["dtype"])
            self.refused(USAGE, name, "b1", "sq4", "d8", "fp31", says=["'fp31'"])
            self.refused(USAGE, name, "b1 sq4 d8 fp32 window=3,0", says=["alignment"])
            self.refused(USAGE, name, "b1 hq3 hk2 sq4 d8 fp32", says=["heads_q"])
        self.refused(USAGE, "demo", says=["sample"])

    def test_version(self):
        for flag in ("--version", "-V"):
            self.assertRegex(self.attn(flag).stdout, r"^attn \d+\.\d+\.\d+\n$")

    def test_unquoted_problem(self):
        quoted = self.attn("explain", "b1 sq4 d8 fp32", "b1 sq5 d8 fp32").stdout
        self.assertEqual(quoted.count("problem: "), 2)
        self.assertEqual(self.attn("explain", "b1", "sq4", "d8", "fp32").stdout,
                         self.attn("explain", "b1 sq4 d8 fp32").stdout)

    def test_full_output(self):
        """What cannot be printed is an error, not a success."""
        with open("/dev/full", "wb") as full:
            done = subprocess.run([cli.ATTN, "list"], stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, FILE)
        self.assertIn(b"standard output", done.stderr)

    def test_closed_pipe(self):
        """A reader that goes away: no message."""
        read_end, write_end = os.pipe()
        os.close(read_end)
        process = subprocess.Popen([cli.ATTN, "list", "--support"], stdout=write_end, stderr=subprocess.PIPE)
        os.close(write_end)
        self.assertEqual(process.communicate(timeout=60)[1], b"")

    def test_locale(self):
        """Numbers are written and read with a point whatever the locale says."""
        args = ("run", "--q", "q.npy", "--k", "q.npy", "--v", "q.npy", "--scale", "0.25", "--softcap", "1.5", "--verify", "--json")
        self.npy("q.npy", (2, 2), [1, 0.5, 0.25, 2])
        results = []
        for locale in ("C", "de_DE.UTF-8", "fr_FR"):
            document = json.loads(self.attn(*args, env={"LC_ALL": locale, "LANG": locale}).stdout)
            for volatile in ("us", "gflops"):
                del document[volatile]
            results.append(document)
        self.assertIn("softcap=1.5 scale=0.25", results[0]["problem"])
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0], results[2])


class Terminals(CliTest):
    PROBLEM = "b1 hq1 sq4 d8 fp32"

    def test_colour(self):
        args = [cli.ATTN, "verify", self.PROBLEM]
        self.assertNotIn("\x1b", self.attn("verify", self.PROBLEM).stdout)
        env = {"TERM": "xterm", "NO_COLOR": ""}
        self.assertIn("\x1b[32mpassed\x1b[0m", with_terminal(args, self.dir, "stdout", env)[1])
        self.assertNotIn("\x1b", with_terminal(args, self.dir, "stdout", {**env, "NO_COLOR": "1"})[1])
        self.assertNotIn("\x1b", with_terminal(args, self.dir, "stdout", {**env, "TERM": "dumb"})[1])

    def test_progress(self):
        """Only on a terminal, only after two seconds, and erased at the end."""
        code, seen, stdout = with_terminal([cli.ATTN, "verify", "--forever", "--time-limit", "3"], self.dir, "stderr")
        self.assertEqual(code, OK, stdout)
        self.assertRegex(seen, r"\d+ problems: \d+ passed, 0 failed")
        self.assertTrue(seen.endswith("\r\x1b[K"), repr(seen[-40:]))
        self.assertNotIn("\n", seen)
        self.assertNotIn(" problems: ", stdout)
        start = time.monotonic()
        code, seen, _ = with_terminal([cli.ATTN, "verify", self.PROBLEM], self.dir, "stderr")
        if time.monotonic() - start < 2:
            self.assertEqual(seen, "")
        self.assertEqual(self.attn("verify", "--forever", "--time-limit", "3").stderr, "")


if __name__ == "__main__":
    cli.main()
