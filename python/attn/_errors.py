"""Exceptions: one class a status of the C ABI, each also of the built-in class that callers expect."""
from __future__ import annotations


class AttnError(Exception):
    """What libattn refused or could not do. The message names the argument, its value and what is allowed."""

    code = 7
    """The value of attn_status_t (<attn/attn.h>)."""


class InvalidArgumentError(AttnError, ValueError):
    """An argument is not well formed, whatever the backend."""

    code = 1


class ArrayTypeError(InvalidArgumentError, TypeError):
    """An argument is no array that can be used, or its dtype is none of those allowed."""


class UnsupportedError(AttnError, NotImplementedError):
    """Well formed, but no backend (or not the one asked for) can do it."""

    code = 2


class UnavailableError(AttnError, RuntimeError):
    """The backend cannot be used on this machine."""

    code = 3


class OutOfMemoryError(AttnError, MemoryError):
    """An allocation failed."""

    code = 4


class BackendError(AttnError, RuntimeError):
    """The driver reported a failure."""

    code = 5


class InternalError(AttnError, RuntimeError):
    """A defect of libattn."""

    code = 7


BY_CODE = {
    cls.code: cls
    for cls in (InvalidArgumentError, UnsupportedError, UnavailableError, OutOfMemoryError, BackendError, InternalError)
}
