"""Refuses system calls to this process, for tests."""

import ctypes
import struct

import pytest

_IO_URING_SETUP = 425  # on every architecture
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_ENOSYS = 38


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def refuse_io_uring() -> None:
    """From now on, and in what this process starts: files are read and written by pread and pwrite."""
    instructions = [
        (_LOAD, 0, 0, 0),  # the number of the call
        (_JUMP_IF_EQUAL, 0, 1, _IO_URING_SETUP),
        (_RETURN, 0, 0, _FAIL | _ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in instructions))
    program = _Program(len(instructions), ctypes.cast(code, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    refused = libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
    if refused or libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        pytest.skip("the system refuses seccomp")
