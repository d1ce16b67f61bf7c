"""Puts the tile study together: every variant's config, what the compiler said, and its TFLOP/s.

  tiles.py SPEED_JSON LOG_FOLDER OUTPUT     (LOG_FOLDER holds kernels/NAME.log and study/NAME.log of one build)
"""
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIELDS = ("warpgroups", "tile_n", "k_stages", "v_stages", "q_slots", "q_in_registers", "softmax", "short_first",
          "ping_pong", "overlap", "producer_registers", "consumer_registers")
DEFAULTS = {"q_in_registers": False, "short_first": False, "ping_pong": True, "overlap": True}


def said(log):
    number = lambda pattern: int(re.search(pattern, log).group(1))
    return {"registers_at_launch": number(r"Used (\d+) registers"),
            "spill_bytes": number(r"(\d+) bytes spill stores"),
            "warnings": sorted(set(re.findall(r"\((C75\d\d)\)", log)))}


def main():
    speed = json.loads(Path(sys.argv[1]).read_text())
    logs = Path(sys.argv[2])
    manifest = json.loads((ROOT / "src/cuda/instances/manifest.json").read_text())
    tflops = {}
    for row in speed["rows"]:
        tflops.setdefault((row["kernel"], row["head_dim"], row["mask"]), {})[str(row["seqlen"])] = row["tflops"]
    variants = []
    for group in ("kernels", "study"):
        for k in manifest[group]:
            measured = tflops.get((k["name"], k["head_dim"], k["mask"]))
            if measured is None:
                continue
            tile_m = 64 * k["warpgroups"]
            variants.append({
                "name": k["name"], "built_into_library": group == "kernels", "head_dim": k["head_dim"],
                "mask": k["mask"], "element": k["element"], "tile_m": tile_m,
                **{f: k.get(f, DEFAULTS.get(f)) for f in FIELDS},
                "shared_bytes": 2 * k["head_dim"] * (k["q_slots"] * tile_m +
                                                     (k["k_stages"] + k["v_stages"]) * k["tile_n"]) + 1024,
                **said((logs / group / f"{k['name']}.log").read_text()), "tflops_by_seqlen": measured})
    peers = [{"name": name, "head_dim": d, "mask": mask, "tflops_by_seqlen": values}
             for (name, d, mask), values in tflops.items() if name == "fa2"]
    head = {**{key: value for key, value in speed.items() if key != "rows"}, "what": "tiles"}
    Path(sys.argv[3]).write_text(json.dumps({**head, "peers": peers, "variants": variants}, indent=1) + "\n")


if __name__ == "__main__":
    main()
