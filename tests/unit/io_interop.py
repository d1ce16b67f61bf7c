"""Files for tests/unit/io_interop_test.cpp: `write DIR` makes them with NumPy (and ml_dtypes and safetensors where
installed), `check DIR` reads those that libattn made. Element i (row-major) of every array is i - 2.5."""
import itertools
import pathlib
import sys

try:
    import numpy as np
except ImportError:
    sys.exit(77)  # the test skips
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None
try:
    from safetensors import numpy as st
    from safetensors import safe_open
except ImportError:
    st = None

SHAPES = [(), (6,), (2, 3), (1, 3, 2, 4), (0, 4)]


def array(shape, dtype):
    return (np.arange(int(np.prod(shape))) - 2.5).astype(dtype).reshape(shape)


def write(folder):
    for n, (shape, dtype) in enumerate(itertools.product(SHAPES, ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8"])):
        np.save(folder / f"row{n}.npy", array(shape, dtype))
        np.save(folder / f"column{n}.npy", np.asfortranarray(array(shape, dtype)))
        version = (2 + n % 2, 0)
        with open(folder / f"version{n}.npy", "wb") as out:
            np.lib.format.write_array(out, array(shape, dtype), version=version)
    if ml_dtypes:
        np.save(folder / "bf16.npy", array((2, 3), ml_dtypes.bfloat16))
    if st:
        tensors = {t: array((2, 3), t) for t in ("float16", "float32", "float64")}
        st.save_file(tensors, folder / "all.safetensors", metadata={"k": "v"})


def check(folder):
    for name, dtype in (("f2", "<f2"), ("f4", "<f4"), ("f8", "<f8")):
        got = np.load(folder / f"{name}.npy", allow_pickle=False)
        assert got.dtype == np.dtype(dtype) and got.shape == (2, 3), (got.dtype, got.shape)
        assert (got == array((2, 3), dtype)).all(), got
    if ml_dtypes:
        got = np.load(folder / "bf16.npy", allow_pickle=False).view(ml_dtypes.bfloat16)
        assert (got == array((2, 3), ml_dtypes.bfloat16)).all(), got
    if st:
        got = st.load_file(folder / "o.safetensors")
        assert sorted(got) == ["f2", "f4", "f8"], sorted(got)
        for name, value in got.items():
            assert (value == array((2, 3), value.dtype)).all(), value
        with safe_open(folder / "o.safetensors", "np") as opened:
            assert opened.metadata() == {"k": "v"}, opened.metadata()


{"write": write, "check": check}[sys.argv[1]](pathlib.Path(sys.argv[2]))
