#!/usr/bin/env python3
"""Runs one test module under ctest: exit code 77 and a line 'SKIP: reason' where all of it was skipped."""
import importlib
import sys
import unittest


def main(module):
    try:
        suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))
    except unittest.SkipTest as reason:
        print(f"SKIP: {reason}")
        return 77
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    if not result.wasSuccessful() or result.testsRun == 0:
        return 1
    if len(result.skipped) == result.testsRun:
        print(f"SKIP: {result.skipped[0][1]}")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
