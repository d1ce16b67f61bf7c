"""The package without any array library: layouts as the compiler's, errors, plans from problem strings, explain."""
import ctypes
import json
import os
import pickle
import subprocess
import sys
import threading
import unittest

import attn
from attn import _library


class Layout(unittest.TestCase):
    def test_structs_are_as_the_compiler_lays_them_out(self):
        program = os.environ.get("ATTN_LAYOUT_PROGRAM")
        if not program:
            self.skipTest("ATTN_LAYOUT_PROGRAM is not set: the C program tests/capi/layout.c was not built")
        wanted = json.loads(subprocess.run([program], check=True, capture_output=True, text=True).stdout)
        ours = {
            "attn_tensor_view_t": _library.TensorView,
            "attn_problem_t": _library.Problem,
            "attn_plan_options_t": _library.PlanOptions,
            "attn_tensors_t": _library.Tensors,
        }
        self.assertEqual(wanted.keys(), ours.keys())
        for name, cls in ours.items():
            fields = {field: [getattr(cls, field).offset, getattr(cls, field).size] for field, _ in cls._fields_}
            self.assertEqual(wanted[name], {"size": ctypes.sizeof(cls), "fields": fields}, name)

    def test_problem_defaults_are_those_of_the_initialiser(self):
        self.assertEqual(_library.problem_text(_library.Problem()), "b1 hq1 hk1 sq1 sk1 d64 bf16")
        parsed = _library.parse_problem("sq1 d64 bf16")
        self.assertEqual(bytes(parsed), bytes(_library.Problem()))


class Errors(unittest.TestCase):
    def test_each_error_is_also_the_builtin_that_callers_expect(self):
        with self.assertRaises(ValueError) as caught:
            attn.Plan("sq1 d8 fp64")
        self.assertIsInstance(caught.exception, attn.InvalidArgumentError)
        self.assertIsInstance(caught.exception, attn.AttnError)
        self.assertIn("'fp64'", str(caught.exception))
        self.assertEqual(caught.exception.code, 1)
        self.assertTrue(issubclass(attn.UnsupportedError, NotImplementedError))
        self.assertTrue(issubclass(attn.OutOfMemoryError, MemoryError))
        self.assertTrue(issubclass(attn.ArrayTypeError, TypeError))

    def test_errors_can_be_pickled(self):
        error = pickle.loads(pickle.dumps(attn.UnsupportedError("text")))
        self.assertEqual((type(error), str(error)), (attn.UnsupportedError, "text"))

    def test_what_is_not_an_array_is_named(self):
        with self.assertRaisesRegex(TypeError, "q is a list"):
            attn.attention([1.0], [1.0], [1.0])
        with self.assertRaisesRegex(TypeError, "q is a NoneType"):
            attn.attention(None, None, None)

    def test_a_message_belongs_to_its_thread(self):
        messages = []

        def refuse(text):
            for _ in range(200):
                try:
                    attn.Plan(text)
                except attn.InvalidArgumentError as error:
                    messages.append(text in str(error))

        threads = [threading.Thread(target=refuse, args=(f"word{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((len(messages), all(messages)), (800, True))


class Plans(unittest.TestCase):
    def test_a_plan_says_what_it_is(self):
        plan = attn.Plan("b2 hq4 hk2 sq3 sk5 d16 fp32 causal=bottom_right lse", backend="cpu", threads=1)
        self.assertEqual(plan.problem, "b2 hq4 hk2 sq3 sk5 d16 fp32 causal=br lse")
        self.assertEqual(plan.backend, "cpu")
        self.assertTrue(plan.kernel.startswith("cpu:"))
        self.assertGreaterEqual(plan.num_splits, 1)
        self.assertIn("kernel: " + plan.kernel, plan.explain())
        self.assertIn(plan.problem, repr(plan))

    def test_options_reach_the_plan(self):
        self.assertIn("level: scalar", attn.Plan("sq8 d64 fp32", cpu_level="scalar").explain())
        self.assertEqual(attn.Plan("sq8 d64 fp32", kernel="cpu:scalar").kernel, "cpu:scalar")
        with self.assertRaisesRegex(attn.UnsupportedError, "kernel is no-such-kernel"):
            attn.Plan("sq8 d64 fp32", kernel="no-such-kernel")
        with self.assertRaisesRegex(attn.AttnError, "no-such-level"):
            attn.Plan("sq8 d64 fp32", cpu_level="no-such-level")
        with self.assertRaisesRegex(ValueError, "threads is -1"):
            attn.Plan("sq8 d64 fp32", threads=-1)
        with self.assertRaisesRegex(ValueError, "backend is 'gpu'; allowed: 'auto', 'cpu', 'cuda'"):
            attn.Plan("sq8 d64 fp32", backend="gpu")
        with self.assertRaisesRegex(ValueError, "layout is 'sbhd'"):
            attn.Plan("sq8 d64 fp32", layout="sbhd")

    def test_explain_of_a_problem_string(self):
        text = attn.explain("b1 hq2 sq4 d8 fp32 causal=br")
        self.assertIn("problem: b1 hq2 hk2 sq4 sk4 d8 fp32 causal=br", text)
        self.assertIn("kernel: ", text)

    def test_no_array_library_is_imported(self):
        code = "import sys, attn; attn.Plan('sq1 d8 fp32').explain(); print({'numpy', 'torch', 'jax'} & set(sys.modules))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.strip(), "set()")


if __name__ == "__main__":
    unittest.main()
