"""Imports that tests can do without: the module, or a skip of the whole test module with the reason."""
import importlib
import unittest


def need(name, why="pip install"):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise unittest.SkipTest(f"{name} is not installed ({why} {name}): {error}") from None
