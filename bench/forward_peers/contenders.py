"""Who takes part in bench/peers.py. A contender makes, for a cell and its tensors, a function of no arguments that
computes the cell on the current stream and returns O as (batch, seqlen, heads, head_dim); it raises Refused where it
does not do the cell. Needs PyTorch. Tested in tests/cli/peers_test.py."""
from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SONAME = "libattn.so.0"


class Refused(Exception):
    """The contender does not do this cell; the message says why."""


def load_libattn(path, name):
    """The package attn as a module of its own name: from a folder that holds the package `attn` with its library
    (build/python), or around a shared library. Before PyTorch is imported, so that no operator is registered twice."""
    path = Path(path).resolve()
    if not path.exists():
        raise Refused(f"{path} does not exist")
    if path.is_dir():
        package = next((p for p in (path, path / "attn") if (p / "_library.py").exists()), None)
        if package is None:
            raise Refused(f"{path} holds no package attn")
    else:
        package = Path(tempfile.mkdtemp(prefix="libattn-")) / name
        shutil.copytree(ROOT / "python/attn", package, ignore=shutil.ignore_patterns("__pycache__", "lib"))
        (package / "lib").mkdir()
        (package / "lib" / SONAME).symlink_to(path)
    spec = importlib.util.spec_from_file_location(name, package / "__init__.py", submodule_search_locations=[str(package)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        raise Refused(str(error)) from None
    # The loader answers with a library of the same soname that is loaded already, where it finds no file.
    if not Path(module._library._lib._name).is_absolute():
        raise Refused(f"{package} has no {SONAME} in lib")
    return module


class Libattn:
    def __init__(self, name, module, backend, kernel=None):
        self.name, self.module, self.backend, self.kernel = name, module, backend, kernel
        self.version = module.__version__
        self.slow_start = False

    def impl(self, call):
        family = call.plan.kernel.split(":")[0] if self.backend == "cuda" else call.plan.kernel
        return f"{'libattn' if self.name == 'libattn' else 'libattn-' + self.name}:{family}"

    def make(self, cell, q, k, v):
        import torch

        more = {"kernel": self.kernel} if self.kernel else {}
        try:
            plan = self.module.Plan(cell.problem, backend=self.backend, **more)
        except (self.module.UnsupportedError, self.module.UnavailableError, self.module.InvalidArgumentError) as error:
            raise Refused(str(error)) from None
        out = torch.full((*q.shape[:3], cell.head_dim_v), float("nan"), device=q.device, dtype=q.dtype)
        scratch = {}
        if self.backend == "cuda" and plan.workspace_bytes:
            scratch = {"workspace": torch.empty(plan.workspace_bytes + 255, dtype=torch.uint8, device=q.device)}

        def call():
            plan(q, k, v, out=out, **scratch)
            return out

        call.plan = plan
        return call


class Torch:
    """scaled_dot_product_attention with one backend. What it cannot say (bottom-right of unequal lengths, windows) goes
    to FlashAttention-2's own operator, and is refused for cuDNN."""

    slow_start = False

    def __init__(self, name, backend):
        import torch
        from torch.nn.attention import SDPBackend

        self.name, self.backend = name, getattr(SDPBackend, backend)
        self.version = torch.__version__ if name == "fa2" else str(torch.backends.cudnn.version())

    def impl(self, call):
        return {"fa2": "torch-fa2"}.get(self.name, self.name)

    def make(self, cell, q, k, v):
        import torch
        from torch.nn.attention import sdpa_kernel

        if cell.window_left >= 0 or (cell.causal and cell.seqlen_q != cell.seqlen_kv):
            if self.name != "fa2":
                raise Refused("PyTorch's interface to it has no windows and no bottom-right alignment")
            window = {"window_size_left": cell.window_left, "window_size_right": 0} if cell.window_left >= 0 else {}
            return lambda: torch.ops.aten._flash_attention_forward(
                q, k, v, None, None, cell.seqlen_q, cell.seqlen_kv, 0.0, cell.causal, False, **window)[0]
        qt, kt, vt = (t.transpose(1, 2) for t in (q, k, v))
        grouped = {"enable_gqa": True} if cell.heads_q != cell.heads_kv else {}

        def call():
            with sdpa_kernel(self.backend):
                return torch.nn.functional.scaled_dot_product_attention(qt, kt, vt, is_causal=cell.causal, **grouped
                                                                        ).transpose(1, 2)

        return call


class Flex:
    """Compiled flex_attention, head dim 128 at 1k, 4k and 16k: each shape compiles for many seconds."""

    name, slow_start = "flex", True

    def __init__(self):
        import torch

        self.version, self.compiled = torch.__version__, None

    def impl(self, call):
        return "flex"

    def make(self, cell, q, k, v):
        if cell.section != "grid" or cell.head_dim != 128 or cell.seqlen_q not in (1024, 4096, 16384):
            raise Refused("measured at head dim 128 and 1k, 4k, 16k of the grid")
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        if self.compiled is None:
            self.compiled = torch.compile(flex_attention, dynamic=False)
        mask = None
        if cell.causal:
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, cell.seqlen_q, cell.seqlen_kv, device=q.device)
        qt, kt, vt = (t.transpose(1, 2) for t in (q, k, v))
        return lambda: self.compiled(qt, kt, vt, block_mask=mask).transpose(1, 2)


class FlashAttention3:
    """PyPI fa3-fwd. Its wheel has no fp16: a run in fp16 times it in bf16 on the rounded tensors, under another name."""

    slow_start = False

    def __init__(self, dtype):
        self.function = importlib.import_module("fa3_fwd_interface").flash_attn_func
        self.cast = dtype == "fp16"
        self.name = "fa3-bf16" if self.cast else "fa3"
        self.version = _version("fa3-fwd")

    def impl(self, call):
        return self.name

    def make(self, cell, q, k, v):
        import torch

        if self.cast:
            q, k, v = (t.to(torch.bfloat16) for t in (q, k, v))
        window = {"window_size": (cell.window_left, 0)} if cell.window_left >= 0 else {}

        def call():
            out = self.function(q, k, v, causal=cell.causal, **window)
            return out[0] if isinstance(out, tuple) else out

        return call


class FlashAttention4:
    """PyPI flash-attn-4, its Hopper path; compiles each kind of case for some seconds."""

    name, slow_start = "fa4", True

    def __init__(self):
        for folder in map(Path, list(sys.path)):
            if (folder / "nvidia_cutlass_dsl/dsl_packages").is_dir():
                sys.path.insert(0, str(folder / "nvidia_cutlass_dsl/dsl_packages"))
                break
        self.function = importlib.import_module("flash_attn.cute.interface").flash_attn_func
        self.version = _version("flash-attn-4")

    def impl(self, call):
        return "fa4"

    def make(self, cell, q, k, v):
        window = {"window_size": (cell.window_left, 0)} if cell.window_left >= 0 else {}

        def call():
            out = self.function(q, k, v, causal=cell.causal, **window)
            return out[0] if isinstance(out, tuple) else out

        return call


def _version(distribution):
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"


def gather(names, dtype, libattn, missing):
    """The contenders of these names, in order; `missing(name, why)` is told of each that is not to be had. `libattn`:
    {name: (module, backend, kernel)}, loaded already."""
    makers = {"fa2": lambda: Torch("fa2", "FLASH_ATTENTION"), "cudnn": lambda: Torch("cudnn", "CUDNN_ATTENTION"),
              "flex": Flex, "fa3": lambda: FlashAttention3(dtype), "fa4": FlashAttention4}  # fmt: skip
    found = []
    for name in names:
        try:
            found.append(Libattn(name, *libattn[name]) if name in libattn else makers[name]())
        except Exception as error:  # noqa: BLE001 - a peer's import may fail in any way
            missing(name, f"{type(error).__name__}: {error}".splitlines()[0][:300])
    return found


def quiet():
    """Peers' warnings would fill the log, a line for each cell."""
    warnings.filterwarnings("ignore")
