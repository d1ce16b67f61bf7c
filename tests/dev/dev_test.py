#!/usr/bin/env python3
"""Tests of ./dev: passed, failed and skipped are counted for what they are, no result is ever lost, and a machine
where nothing may be installed gets a sentence that names the packages. Run by ctest (label dev)."""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

DEV = Path(__file__).resolve().parents[2] / "dev"
LOADER = importlib.machinery.SourceFileLoader("dev", str(DEV))
dev = importlib.util.module_from_spec(importlib.util.spec_from_loader("dev", LOADER))
LOADER.exec_module(dev)

PASS = '<testcase name="good" status="run"/>'
FAIL = '<testcase name="bad" status="fail"><failure message=""/></testcase>'
SKIP = ('<testcase name="away" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>'
        "<system-out>SKIP: no moon\n</system-out></testcase>")
GTEST_SKIP = ('<testcase name="dark" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>'
              "<system-out>a.cpp:3: Skipped\nno sun\n\n[  SKIPPED ] x\n</system-out></testcase>")
NO_PROGRAM = '<testcase name="gone" status="notrun"><skipped message="Unable to find executable: x"/></testcase>'
DISABLED = '<testcase name="off" status="disabled"><skipped message="Disabled"/></testcase>'


def report(*cases):
    """What dev prints about a JUnit file with these cases, and what it returns."""
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "results.xml"
        junit.write_text(f"<testsuite>{''.join(cases)}</testsuite>")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            failed = dev.report(junit, dev.ROOT / "build")
    return failed, printed.getvalue().splitlines()


class Counting(unittest.TestCase):
    def test_each_kind_is_counted_for_what_it_is(self):
        failed, lines = report(PASS, PASS, FAIL, SKIP, GTEST_SKIP, NO_PROGRAM, DISABLED)
        self.assertEqual(failed, 2)
        self.assertEqual(lines[-1], "2 passed, 2 failed, 3 skipped")
        self.assertIn("dev: skipped 1: no moon (away)", lines)
        self.assertIn("dev: skipped 1: no sun (dark)", lines)
        self.assertIn("dev: failed: gone", lines)

    def test_no_test_at_all_is_not_a_success(self):
        self.assertEqual(report(), (None, ["0 passed, 0 failed, 0 skipped"]))
        self.assertIsNone(report(SKIP)[0])

    def test_no_result_file_is_not_a_success(self):
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertIsNone(dev.report(Path("/nonexistent"), dev.ROOT / "build"))

    def test_a_failing_ctest_fails_even_if_every_case_passed(self):
        for code, failed, expected in ((0, 0, 0), (8, 0, 1), (0, 1, 1), (0, None, 1)):
            with mock.patch.object(dev, "run_ctest", return_value=(code, None)), \
                 mock.patch.object(dev, "report", return_value=failed):
                self.assertEqual(dev.test_in(dev.BUILD, []), expected)


class Packages(unittest.TestCase):
    def missing(self, on_path, installed, environment=None):
        listed = "".join(f"{name} installed\n" for name in installed)
        done = subprocess.CompletedProcess([], 0, stdout=listed)
        with mock.patch.object(dev.shutil, "which", lambda tool: tool if tool in on_path else None), \
             mock.patch.object(dev.subprocess, "run", return_value=done), \
             mock.patch.dict(os.environ, environment or {}, clear=True):
            return dev.missing_packages()

    def test_only_what_is_missing(self):
        self.assertEqual(self.missing(dev.TOOL_PACKAGES, dev.LIBRARY_PACKAGES), [])
        self.assertEqual(self.missing({"g++", "ninja", "pkg-config", "objdump"}, dev.LIBRARY_PACKAGES[1:]),
                         ["cmake", dev.LIBRARY_PACKAGES[0]])

    def test_a_compiler_of_the_users_own_needs_no_package(self):
        tools = set(dev.TOOL_PACKAGES) - {"g++"}
        self.assertEqual(self.missing(tools, dev.LIBRARY_PACKAGES), ["g++"])
        self.assertEqual(self.missing(tools, dev.LIBRARY_PACKAGES, {"CXX": "/opt/cc"}), [])

    def refusal(self, environment, uid):
        with mock.patch.dict(os.environ, environment, clear=True), \
             mock.patch.object(dev.os, "geteuid", return_value=uid), \
             mock.patch.object(dev.shutil, "which", return_value=None), \
             contextlib.redirect_stderr(io.StringIO()) as printed, self.assertRaises(SystemExit) as ended:
            dev.apt_install(["libhwy-dev", "cmake"])
        self.assertEqual(ended.exception.code, 1)
        return printed.getvalue()

    def test_refusals_name_the_packages(self):
        self.assertIn("apt-get install libhwy-dev cmake", self.refusal({"ATTN_NO_INSTALL": "1"}, 0))
        self.assertIn("apt-get install libhwy-dev cmake", self.refusal({}, 1000))


class Cross(unittest.TestCase):
    def call(self, args, aarch64, x86_64):
        with mock.patch.object(dev, "cross_aarch64", return_value=aarch64) as arm, \
             mock.patch.object(dev, "cross_x86_64", return_value=x86_64) as intel, \
             mock.patch.object(dev, "ensure_packages"), mock.patch.object(dev, "apt_install") as install, \
             mock.patch.object(dev.os, "uname", return_value=mock.Mock(machine="x86_64")), \
             mock.patch.object(dev.shutil, "which", lambda tool: tool if tool == "dpkg-query" else None), \
             contextlib.redirect_stdout(io.StringIO()):
            return dev.command_cross(args), arm, intel, install

    def test_a_failure_on_either_machine_is_a_failure(self):
        for aarch64, x86_64, expected in ((0, 0, 0), (1, 0, 1), (0, 1, 1)):
            self.assertEqual(self.call([], aarch64, x86_64)[0], expected)

    def test_only_what_was_asked_for_is_run_and_installed(self):
        code, arm, intel, install = self.call(["x86_64", "--all", "-R", "append"], 1, 0)
        self.assertEqual(code, 0)
        arm.assert_not_called()
        intel.assert_called_once_with(["-R", "append"], True)
        install.assert_called_once_with(["qemu-user"])
        for packages in dev.CROSS_PACKAGES.values():  # ./dev test and the others never install these
            self.assertFalse(set(packages) & set(dev.TOOL_PACKAGES))


class Preset(unittest.TestCase):
    def test_a_build_that_is_there_is_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder) / "CMakeCache.txt"
            for environment, fresh in (({}, "default"), ({"CI": "true"}, "ci"), ({"CI": "true", "CXX": "c"}, "default")):
                with mock.patch.dict(os.environ, environment, clear=True):
                    self.assertEqual(dev.choose_preset(cache), fresh)
            for value, kept in (("ON", "ci"), ("OFF", "default")):
                cache.write_text(f"ATTN_WERROR:BOOL={value}\n")
                for environment in ({}, {"CI": "true"}):
                    with mock.patch.dict(os.environ, environment, clear=True):
                        self.assertEqual(dev.choose_preset(cache), kept)


class CommandLine(unittest.TestCase):
    def call(self, *args):
        return subprocess.run([sys.executable, "-B", DEV, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              cwd="/")

    def test_help_and_mistakes(self):
        told = self.call("help")
        self.assertEqual(told.returncode, 0)
        for command in dev.COMMANDS:
            self.assertRegex(told.stdout, rf"(?m)^  {command} ")
        self.assertEqual(self.call().returncode, 2)
        mistake = self.call("tset")
        self.assertEqual(mistake.returncode, 2)
        self.assertIn("unknown command 'tset'", mistake.stderr)

    def test_the_first_line_says_what_machine_this_is(self):
        for environment, words in (({}, "machine: "), ({"CXX": "/opt/cc"}, "a compiler of your own (CXX=/opt/cc)")):
            with mock.patch.dict(os.environ, environment), \
                 contextlib.redirect_stdout(io.StringIO()) as printed:
                dev.describe_machine()
            self.assertIn(words, printed.getvalue())

    def test_jobs_stay_within_the_machine(self):
        self.assertGreaterEqual(dev.job_count(), 1)
        self.assertLessEqual(dev.job_count(), dev.cpu_count())


if __name__ == "__main__":
    unittest.main()
