"""Turns Python values into JSON and back. Code in a checkpoint cannot run, because a checkpoint has no pickles."""

from __future__ import annotations

import base64
import math
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin

from .messages import a_type

# The largest number of JSON lists and objects around a value. The core refuses more than 64, and adds a few itself.
MAX_DEPTH = 56

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip
_KNOWN = frozenset(DTYPES.values())
_HALVES = "surrogatepass"


def check_tensor(tensor: torch.Tensor, what: str, advice: str) -> None:
    """Raises a ``ValueError`` that names ``what`` if a checkpoint cannot hold the tensor.

    A checkpoint holds dense tensors of ``DTYPES`` that have a shape and keep their values themselves.
    """
    if isinstance(tensor, UninitializedTensorMixin):
        raise ValueError(f"{what} has no shape yet: run a forward of its module before zeroshard.initialize")
    if is_made_of_others(tensor):
        raise ValueError(
            f"{what} is {a_type(tensor)}, which keeps its values in other tensors, and a checkpoint holds dense "
            f"tensors only: {advice}"
        )
    if tensor.dtype not in _KNOWN or tensor.layout != torch.strided:
        layout = "" if tensor.layout == torch.strided else f" and {str(tensor.layout).removeprefix('torch.')}"
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES.values())
        raise ValueError(
            f"{what} is {str(tensor.dtype).removeprefix('torch.')}{layout}, and a checkpoint holds dense tensors of "
            f"{known} only: {advice}"
        )


def is_made_of_others(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor's class keeps its values in inner tensors, as quantized or distributed tensors do.

    Such classes are recognised by a ``__torch_dispatch__`` of their own.
    """
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def encode(value: Any, where: str, tensors: dict[str, torch.Tensor] | None, depth: int = 0) -> Any:
    """Returns ``value`` as JSON from which ``decode`` restores it.

    Puts tensors into ``tensors``, except scalars, which become a part of the JSON. Without ``tensors``, all tensors
    must be scalars. ``where`` is the path of ``value``, such as "client_state.lists[0]", for the names of tensors and
    for errors. ``depth`` is the number of JSON lists and objects around ``value``. Raises ``ValueError`` for a value
    that is nested too deeply or is not a number, text, tensor, list, tuple, dict or None.
    """
    if depth > MAX_DEPTH:
        raise ValueError(
            f"{where} lies in more than {MAX_DEPTH} lists and dicts (a tuple counts as two, a dict whose keys are not "
            "all text as three), or in itself: a checkpoint cannot hold it"
        )
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, where, tensors, depth)
    if value is None or isinstance(value, (bool, int)):
        fits = value is None or -(2**63) <= value < 2**63  # a JSON reader can round larger integers
        return value if fits else {"__int__": hex(value)}
    if isinstance(value, str):
        # Text from file names can have halves of surrogate pairs, which JSON readers refuse.
        return value if _is_text(value) else {"__utf8__": base64.b64encode(value.encode(errors=_HALVES)).decode()}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"__float__": str(value)}
    if isinstance(value, (list, tuple)):
        inner = depth + (1 if isinstance(value, list) else 2)
        items = [encode(item, f"{where}[{index}]", tensors, inner) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"__tuple__": items}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("__") and _is_text(key) for key in value):
            return {key: encode(item, f"{where}.{key}", tensors, depth + 1) for key, item in value.items()}
        pairs = [
            [encode(key, f"{where} (a key)", tensors, depth + 3), encode(item, f"{where}[{key!r}]", tensors, depth + 3)]
            for key, item in value.items()
        ]
        return {"__dict__": pairs}
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a numpy scalar
        plain = value.item()
        if type(plain) is not type(value):  # item() of a longdouble returns a longdouble
            return encode(plain, where, tensors, depth)
    raise ValueError(
        f"{where} is {a_type(value)}, and a checkpoint holds numbers, text, tensors, lists, tuples and dicts "
        "only (it runs no code when it is loaded): convert it"
    )


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encode_tensor(value: torch.Tensor, where: str, tensors: dict[str, torch.Tensor] | None, depth: int) -> Any:
    if value.dim() == 0 and value.layout == torch.strided:
        number = encode(value.item(), where, None, depth + 1)
        return {"__scalar__": number, "dtype": str(value.dtype).removeprefix("torch.")}
    if tensors is None:
        raise ValueError(f"{where} is a tensor of the shape {list(value.shape)}: only scalars can be saved there")
    check_tensor(value, where, "convert it")
    name = base = where.encode(errors="backslashreplace").decode()
    count = 1
    while name in tensors:  # for example {"a.b": one, "a": {"b": another}}
        count += 1
        name = f"{base}#{count}"
    tensors[name] = value.detach().cpu().contiguous()
    return {"__tensor__": name}


def decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Returns the value that ``encode`` turned into JSON."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "__tensor__" in value:
        return tensors[value["__tensor__"]]
    if "__scalar__" in value:
        dtype = getattr(torch, value["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"the checkpoint has a scalar of the unknown dtype {value['dtype']!r}")
        return torch.tensor(decode(value["__scalar__"], tensors), dtype=dtype)
    if "__int__" in value:
        return int(value["__int__"], 16)
    if "__utf8__" in value:
        return base64.b64decode(value["__utf8__"]).decode(errors=_HALVES)
    if "__float__" in value:
        return float(value["__float__"])
    if "__tuple__" in value:
        return tuple(decode(item, tensors) for item in value["__tuple__"])
    if "__dict__" in value:
        return {decode(key, tensors): decode(item, tensors) for key, item in value["__dict__"]}
    return {key: decode(item, tensors) for key, item in value.items()}
