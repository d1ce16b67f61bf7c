"""What bench/peers.py measures: the cells of the forward grid, of hard data, of further shapes and of sustained load,
in the order in which a run that is cut off is still of use. No PyTorch here. Tested in tests/cli/peers_test.py."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import List, Tuple

TOKENS = 16384  # batch * seqlen of the grid, and
WIDTH = 2048  # heads * head_dim: FlashAttention's own benchmark
GRID_SEQLENS = (4096, 16384, 1024, 512, 8192, 2048)  # long and short first
GRID_DIMS = (128, 64, 256)
# "before" in the order in which the kernels of this field walk: from the last keys of a row to its first.
HARD_DATA = {
    "plain": "standard normal",
    "sd8": "logits of standard deviation 8",
    "sinkkey": "the first key's logit 30 above all others",
    "drift": "each block of 128 keys 12 above the one before",
    "ramp": "each key 1/8 above the one before, 512 along a row",
    "sample": "Q, K, V of SmolLM2's layer 18, repeated to the size",
}


@dataclass(frozen=True)
class Cell:
    section: str
    batch: int
    heads_q: int
    heads_kv: int
    seqlen_q: int
    seqlen_kv: int
    head_dim: int
    head_dim_v: int
    dtype: str
    causal: bool = False
    window_left: int = -1
    data: str = "plain"

    @property
    def problem(self) -> str:
        """As attn::to_string prints it."""
        text = f"b{self.batch} hq{self.heads_q} hk{self.heads_kv} sq{self.seqlen_q} sk{self.seqlen_kv} d{self.head_dim}"
        text += f" dv{self.head_dim_v}" if self.head_dim_v != self.head_dim else ""
        text += f" {self.dtype}" + (" causal=br" if self.causal else "")
        return text + (f" window={self.window_left},-1" if self.window_left >= 0 else "")

    @property
    def key(self) -> str:
        return f"{self.section}: {self.problem}: {self.data}"

    @property
    def label(self) -> str:
        """Short, for a table."""
        d = f"d{self.head_dim}" + (f",{self.head_dim_v}" if self.head_dim_v != self.head_dim else "")
        size = f"{_k(self.seqlen_q)}" + (f"x{_k(self.seqlen_kv)}" if self.seqlen_kv != self.seqlen_q else "")
        text = f"{d} {'causal' if self.causal else 'full'} {size}"
        if self.heads_kv != self.heads_q:
            text += f" {self.heads_q}/{self.heads_kv}"
        if self.window_left >= 0:
            text += f" w{_k(self.window_left)}"
        if self.batch * self.seqlen_q != TOKENS and self.seqlen_q == self.seqlen_kv:
            text += f" b{self.batch} h{self.heads_q}"
        return text + (f" {self.data}" if self.section == "hard" else "")

    @property
    def flops(self) -> float:
        """Of both products. Causal squares count as half a square, as FlashAttention's own benchmark does it; other
        masks by their visible scores."""
        pairs = self.seqlen_q * self.seqlen_kv
        if self.causal and self.window_left < 0 and self.seqlen_q == self.seqlen_kv:
            pairs /= 2
        elif self.causal:
            off = self.seqlen_kv - self.seqlen_q
            pairs = 0
            for i in range(self.seqlen_q):
                last = min(i + off, self.seqlen_kv - 1)
                first = max(0, i + off - self.window_left) if self.window_left >= 0 else 0
                pairs += max(0, last - first + 1)
        return 2.0 * self.batch * self.heads_q * pairs * (self.head_dim + self.head_dim_v)


def _k(n: int) -> str:
    return f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n)


def square(section: str, s: int, d: int, causal: bool, dtype: str, **more) -> Cell:
    heads = more.pop("heads", WIDTH // d)
    batch = more.pop("batch", max(1, TOKENS // s))
    return Cell(section, batch, heads, more.pop("heads_kv", heads), s, s, d, more.pop("dv", d), dtype, causal, **more)


def grid(dtype: str) -> List[Cell]:
    return [square("grid", s, d, causal, dtype) for s in GRID_SEQLENS for d in GRID_DIMS for causal in (False, True)]


def hard(dtype: str) -> List[Cell]:
    return [square("hard", 4096, d, causal, dtype, data=data)
            for data in HARD_DATA if data != "plain" for d in (128, 64) for causal in (False, True)]


def extra(dtype: str) -> List[Cell]:
    cells = []
    for causal in (False, True):
        cells.append(square("extra", 4096, 128, causal, dtype, heads=32, heads_kv=8))
        cells += [square("extra", s, 128, causal, dtype, batch=1, heads=32) for s in (2048, 4096)]
        cells += [square("extra", 4096, d, causal, dtype, dv=dv, heads=16) for d, dv in ((96, 96), (192, 192), (192, 128))]
    cells.append(Cell("extra", 1, 16, 16, 1024, 16384, 128, 128, dtype, True))
    cells.append(square("extra", 16384, 128, True, dtype, window_left=1024))
    return cells


def sustained(dtype: str) -> List[Cell]:
    return [square("sustained", 8192, d, causal, dtype) for d in GRID_DIMS for causal in (False, True)]


SECTIONS = {"grid": grid, "hard": hard, "sustained": sustained, "extra": extra}


def quick(dtype: str) -> List[Cell]:
    few = [c for c in grid(dtype) if c.seqlen_q in (512, 4096)]
    return few + [c for c in hard(dtype) if c.head_dim == 128 and not c.causal]


def choose(names: str, dtype: str) -> List[Cell]:
    """The cells of a comma-separated list of sections, "quick" or "all"; raises KeyError."""
    cells: List[Cell] = []
    for name in list(SECTIONS) if names == "all" else names.split(","):
        cells += quick(dtype) if name == "quick" else SECTIONS[name](dtype)
    return cells


def shrunk(cell: Cell, by: int) -> Cell:
    """A smaller cell of the same kind, for trying the program on a CPU."""
    def few(n: int) -> int:
        return max(64, n // by)

    group = cell.heads_q // cell.heads_kv
    return replace(cell, batch=1, heads_q=2 * group, heads_kv=2, seqlen_q=few(cell.seqlen_q),
                   seqlen_kv=few(cell.seqlen_kv), window_left=cell.window_left // by if cell.window_left >= 0 else -1)


def visible_bounds(cell: Cell, row: int) -> Tuple[int, int]:
    """First and last key that a query row sees."""
    off = cell.seqlen_kv - cell.seqlen_q
    last = min(row + off, cell.seqlen_kv - 1) if cell.causal else cell.seqlen_kv - 1
    return (max(0, row + off - cell.window_left) if cell.window_left >= 0 else 0), last
