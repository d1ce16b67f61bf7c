"""`attn explain`: the decision and a sentence for each backend that cannot."""
import json

import cli
from cli import UNSUPPORTED, CliTest

PROBLEM = "b2 hq8 hk2 sq64 sk64 d64 bf16 causal=br"


class Explain(CliTest):
    def test_text(self):
        text = self.attn("explain", PROBLEM).stdout
        for line in (f"problem: {PROBLEM}", "backend: cpu", "kernel: cpu:", "splits: ", "workspace: ", "not cuda: "):
            self.assertIn(line, text)
        self.assertIn("tile", text)

    def test_json(self):
        one, two = json.loads(self.attn("explain", "--json", PROBLEM, PROBLEM + " splits=3").stdout)
        self.assertEqual((one["problem"], one["backend"]), (PROBLEM, "cpu"))
        self.assertTrue(one["kernel"].startswith("cpu:"))
        self.assertEqual(two["splits"], 3)
        self.assertGreater(two["workspace_bytes"], 0)
        self.assertEqual([b["backend"] for b in one["backends"]], ["cpu", "cuda"])
        self.assertTrue(one["backends"][0]["supported"])
        self.assertNotEqual(one["backends"][1]["reason"], "")

    def test_levels(self):
        for level in json.loads(self.attn("list", "--json").stdout)["cpu_levels"]:
            if level["runnable"]:
                self.assertIn(level["level"], self.attn("explain", "--level", level["level"], PROBLEM).stdout)
                self.assertIn(level["level"],
                              self.attn("explain", PROBLEM, env={"ATTN_CPU_LEVEL": level["level"]}).stdout)

    def test_impossible(self):
        text = self.attn("explain", "--backend", "cuda", PROBLEM, code=UNSUPPORTED).stdout
        self.assertIn("backend: none", text)
        self.assertIn("not cuda: ", text)
        (one,) = json.loads(self.attn("explain", "--backend", "cuda", "--json", PROBLEM, code=UNSUPPORTED).stdout)
        self.assertIsNone(one["backend"])
        self.assertIn("cuda", one["refusal"])


if __name__ == "__main__":
    cli.main()
