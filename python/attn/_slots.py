"""Arrays into the fields of attn_tensors_t. A slot remembers the last array's shape, strides, dtype and device, so that
a repeated call costs a comparison and the pointer. A frame is all of a call's slots; threads never share one.
Tested in tests/python/test_plan.py."""
from __future__ import annotations

import ctypes
from typing import Any, List, Optional, Tuple

from . import _library
from ._arrays import Device, Info, Kind, on_host, same_device
from ._errors import ArrayTypeError, InvalidArgumentError

# How an array's axes become (batch, seqlen, heads, head_dim): the array's number of axes and what they are called;
# then, for each axis of the view, the array's axis, or None for an axis of size 1.
FORMS = {
    "bshd": (4, "(batch, seqlen, heads, head_dim)", (0, 1, 2, 3)),
    "bhsd": (4, "(batch, heads, seqlen, head_dim)", (0, 2, 1, 3)),
    "packed": (3, "(total rows, heads, head_dim)", (None, 0, 1, 2)),
    "pages": (4, "(num_pages, page_size, heads, head_dim)", (0, 1, 2, 3)),
    "pages_bhsd": (4, "(num_pages, heads, page_size, head_dim)", (0, 2, 1, 3)),
    "lse": (3, "(batch, heads, seqlen)", (0, 1, 2, None)),
    "packed_lse": (2, "(heads, total rows)", (None, 0, 1, None)),
    "rotary": (2, "(positions, rotary_dim / 2)", (None, 0, None, 1)),
}

_view_size = ctypes.sizeof(_library.TensorView)


def fill_view(view: _library.TensorView, name: str, info: Info, form: str) -> None:
    """Shape, strides and dtype of an array into a view."""
    ndim, axes, order = FORMS[form]
    if len(info.shape) != ndim:
        raise InvalidArgumentError(f"{name} has {len(info.shape)} axes, shape {info.shape}; allowed: {ndim}, {axes}")
    code = _library.DTYPES.get(info.dtype)
    if code is None:
        hint = "; uint16 arrays that hold bf16 need dtype='bf16'" if info.dtype == "uint16" else ""
        raise ArrayTypeError(f"{name} dtype is {info.dtype}; allowed: {', '.join(_library.DTYPES)}{hint}")
    view.struct_size = _view_size
    view.dtype = code
    view.shape[:] = [1 if axis is None else info.shape[axis] for axis in order]
    view.strides[:] = [1 if axis is None else info.strides[axis] for axis in order]


class Slot:
    """One view of a frame."""

    __slots__ = ("name", "form", "as_bf16", "device", "view", "address", "kind", "token")

    def __init__(self, name: str, form: str, as_bf16: bool, device: Device) -> None:
        self.name, self.form, self.as_bf16, self.device = name, form, as_bf16, device
        self.view = _library.TensorView()
        self.address = ctypes.addressof(self.view)
        self.kind: Optional[Kind] = None
        self.token: Any = None

    def load(self, kind: Kind, x: Any) -> None:
        token = kind.token(x)
        if kind is not self.kind or token != self.token:
            self.kind = None  # nothing is remembered if this fails
            info = kind.info(self.name, x)
            if self.as_bf16 and info.dtype == "uint16":
                info.dtype = "bf16"
            if not same_device(info.device, self.device):
                raise InvalidArgumentError(
                    f"{self.name} is on {place(info.device)}; allowed: {place(self.device)}, as the plan and the others"
                )
            fill_view(self.view, self.name, info, self.form)
            self.kind, self.token = kind, token
        self.view.data = kind.pointer(x)


def place(device: Device) -> str:
    return "the host" if on_host(device) else f"CUDA device {device[1]}"


def vector(name: str, kind: Kind, x: Any, dtype: str, shapes: List[Tuple[int, ...]], device: Device) -> Info:
    """Checks an array that is passed by its address alone: dtype, one of some shapes (-1: any size), contiguous along
    its last axis, and on the plan's device."""
    info = kind.info(name, x)
    if info.dtype != dtype:
        raise ArrayTypeError(f"{name} dtype is {info.dtype}; allowed: {dtype}")
    fits = any(
        len(shape) == len(info.shape) and all(want in (-1, have) for want, have in zip(shape, info.shape))
        for shape in shapes
    )
    if not fits:
        wanted = " or ".join(str(tuple("any" if n < 0 else n for n in shape)) for shape in shapes)
        raise InvalidArgumentError(f"{name} shape is {info.shape}; allowed: {wanted}".replace("'any'", "any"))
    if info.shape[-1] > 1 and info.strides[-1] != 1:
        raise InvalidArgumentError(f"{name} has a stride of {info.strides[-1]} along its last axis; allowed: 1")
    if not same_device(info.device, device):
        raise InvalidArgumentError(f"{name} is on {place(info.device)}; allowed: {place(device)}")
    return info
