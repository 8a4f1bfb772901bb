"""Shards parameters before an engine has them: each rank keeps 1/N of the elements of each parameter."""

from __future__ import annotations

import functools
import itertools
import json
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import _C
from .distributed import device_of_rank, init_distributed
from .group_life import end_groups_with
from .groups import connect

# The name of the attribute in which a parameter has its shard. The storage of the parameter's tensor has a weak
# reference to the shard in an attribute of the same name.
_SHARD = "_zeroshard_shard"
# Methods that initialize a tensor in place.
_INITIALIZERS = (
    "fill_",
    "zero_",
    "copy_",
    "normal_",
    "uniform_",
    "bernoulli_",
    "add_",
    "sub_",
    "mul_",
    "div_",
    "clamp_",
)
_ids = itertools.count()
_ranks: tuple[object, _C.World] | None = None  # the default process group, and the ranks that were connected for it
_failed: weakref.WeakKeyDictionary[_C.World, str] = (
    weakref.WeakKeyDictionary()
)  # worlds whose ranks cannot reach one another any more, and why

initializes = False  # true: _INITIALIZERS of a sharded parameter gather it (collective); false: they raise


@dataclass(eq=False)
class Shard:
    """This rank's elements of one parameter, or of several tied ones."""

    name: str  # name for messages: "Linear.weight"
    ranks: _C.World
    piece: torch.Tensor  # part of the flat parameter, [ceil(numel / ranks)]; on the last ranks with padding
    shape: torch.Size
    params: list[weakref.ref[nn.Parameter]] = field(default_factory=list)
    gathered: torch.UntypedStorage | None = None  # memory that the parameters have while they are gathered
    modify_rank: int | None = None  # modify_rank of the context that keeps the shard gathered
    is_held: bool = False  # true: a context keeps the shard gathered
    id: int = field(default_factory=lambda: next(_ids))  # in the same order on every rank

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)} {str(self.piece.dtype)[6:]}"


def _initializer(name: str) -> Callable[..., torch.Tensor]:
    own = getattr(torch.Tensor, name)

    @functools.wraps(own)
    def initialize(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        shard = _shard_of_memory(tensor)
        is_view = shard is None or tensor.shape != shard.shape or tensor.storage_offset() != 0
        if not initializes or is_view or is_whole(tensor):
            return own(tensor, *args, **kwargs)
        params = _tied(shard)
        with whole(params, 0):
            own(tensor if isinstance(tensor, nn.Parameter) else params[0].data, *args, **kwargs)
        return tensor

    return initialize


class _Castable:
    """The methods that cast or initialize a tensor, for a tensor that has no memory because it is sharded.

    A cast returns another tensor without memory. ``piece_of`` later casts the shard, when the result has become the
    parameter's ``data``. An initializer gathers the parameter if ``initializes`` is true.
    """

    __slots__ = ()

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        if device in (None, self.device) and dtype in (None, self.dtype):
            return self
        shard = _shard_of_memory(self)
        if shard is None or self.shape != shard.shape or is_whole(self):
            return super().to(*args, **kwargs)
        return _hollow(shard, dtype or self.dtype, device or self.device)

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.to("cpu")

    def cuda(self, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.to(torch.device("cuda") if device is None else torch.device("cuda", device))

    def type(self, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        return self.to(dtype) if isinstance(dtype, torch.dtype) else super().type(dtype, *args, **kwargs)

    def double(self) -> torch.Tensor:
        return self.to(torch.float64)

    def float(self) -> torch.Tensor:
        return self.to(torch.float32)

    def half(self) -> torch.Tensor:
        return self.to(torch.float16)

    def bfloat16(self) -> torch.Tensor:
        return self.to(torch.bfloat16)


for _name in _INITIALIZERS:
    setattr(_Castable, _name, _initializer(_name))


class ShardedParameter(_Castable):
    """A mixin for the class of a parameter whose tensor has a shape but no memory. A deepcopy also copies the shard."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{shard_of(self)}, sharded"

    def data_ptr(self) -> int:
        """Returns 0, because there is no memory. Defined because Trainer calls it with 8-bit optimizers."""
        return 0

    @property
    def data(self) -> HollowData:
        return torch.Tensor.data.__get__(self).as_subclass(HollowData)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if is_whole(value):
            self.__class__ = _class_before(type(self))
            self.data = value
            return
        shard = shard_of(self)
        if _shard_of_memory(value) is not shard or value.shape != shard.shape:
            raise _C.StateError(
                f"{shard} is given the data of another parameter that is sharded: make both whole around that with "
                "deepspeed.zero.GatheredParameters"
            )
        for tied in _tied(shard):
            torch.Tensor.data.__set__(tied, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) in memo:
            return memo[id(self)]
        shard = shard_of(self)
        with torch._C.DisableTorchFunctionSubclass():
            copied = _class_before(type(self))(torch.empty(0, dtype=self.dtype, device=self.device), self.requires_grad)
        copy = Shard(shard.name, shard.ranks, piece_of(self).clone(), shard.shape)
        _belong(copied, copy)
        _free(copy)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise _C.StateError(
            f"{shard_of(self)} is sharded, so it cannot be pickled: make it whole around that with "
            "zeroshard.gathered (deepspeed.zero.GatheredParameters), or save a checkpoint"
        )


class HollowData(_Castable, torch.Tensor):
    """The ``data`` of a parameter without memory. Using an element is an error, but padding by 0 elements is not.

    Padding is allowed because transformers pads the bias of every tied head, and assigns the result to its ``data``.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is nn.functional.pad and not any(args[1] if len(args) > 1 else (kwargs or {}).get("pad", ())):
            return args[0]
        return super().__torch_function__(func, types, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"data {list(self.shape)} of a sharded parameter"


def shard_of(tensor: torch.Tensor) -> Shard | None:
    """Returns the shard of a parameter that is sharded and belongs to no engine yet, else None."""
    return getattr(tensor, _SHARD, None)


def is_whole(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor has its memory, or needs none because it is on the meta device or empty."""
    if tensor.is_meta or tensor.numel() == 0:
        return True
    try:
        return tensor.untyped_storage().data_ptr() != 0
    except RuntimeError:  # somebody has freed the storage
        return False


def piece_of(param: nn.Parameter) -> torch.Tensor:
    """Casts the parameter's shard to the parameter's dtype and device, and returns the shard's elements."""
    shard = shard_of(param)
    shard.piece = shard.piece.to(param.device, param.dtype)
    return shard.piece


def hollow_like(tensor: torch.Tensor, param: nn.Parameter) -> torch.Tensor:
    """Returns a tensor with the shape of ``tensor`` and no memory. Errors say that it was made from ``param``."""
    return _without_memory(tensor.shape, tensor.dtype, param.device, f"a tensor made from {shard_of(param)}")


def cut(
    named: Iterable[tuple[str, nn.Parameter]], dtype: torch.dtype | None = None, timeout_s: float | None = None
) -> None:
    """Keeps this rank's elements of each parameter, with rank 0's values, and frees the parameter's memory. Collective.

    Casts floating-point parameters to ``dtype``, if it is given. Parameters that share all their memory stay tied. Does
    not change parameters that are sharded, uninitialized or on the meta device. Parameters without elements are only
    cast. ``timeout_s`` says how long ranks wait for one another if this is the first call. Raises ``ValueError`` for
    parameters that share a part of their memory, and ``StateError`` for a parameter that is a part of another, sharded
    parameter.
    """
    first_with: dict[object, tuple[str, nn.Parameter]] = {}
    ties = []
    with torch.no_grad():
        for name, param in named:
            if isinstance(param, nn.parameter.UninitializedTensorMixin) or param.is_meta or shard_of(param) is not None:
                continue
            if dtype is not None and param.is_floating_point() and param.numel() == 0:
                param.data = param.data.to(dtype)
            if param.numel() == 0 or _tie_to_shard(name, param):
                continue
            memory = (param.data_ptr(), param.shape, param.stride(), param.dtype)
            first = first_with.setdefault(memory, (name, param))
            if first[1] is not param:
                ties.append((param, first[1]))
        _C.check_apart(list(first_with.values()))
        ranks = _world(timeout_s) if first_with else None
        for name, param in first_with.values():
            if dtype is not None and param.is_floating_point():
                param.data = param.data.to(dtype)
            shard = Shard(name, ranks, torch.empty(0, dtype=param.dtype), param.shape)
            _belong(param, shard)
            with _aborting(ranks):
                _keep(shard, root=0)
        for param, first in ties:
            _belong(param, shard_of(first))
            _free(shard_of(first))


def _tie_to_shard(name: str, param: nn.Parameter) -> bool:
    """Ties ``param`` to the sharded parameter from whose data it was made. Returns False if there is none.

    Raises ``StateError`` if ``param`` has other elements than the sharded parameter, or has lost its values.
    """
    shard = _shard_of_memory(param)
    if shard is None or (is_whole(param) and not (shard.is_held and _is_of(param, shard.gathered))):
        if not is_whole(param):
            raise _C.StateError(
                f"{name} {list(param.shape)} has no values: it was made from a sharded parameter. Make that one "
                "whole around it with deepspeed.zero.GatheredParameters"
            )
        return False
    if param.shape != shard.shape or param.storage_offset() != 0 or not param.is_contiguous():
        raise _C.StateError(
            f"{name} {list(param.shape)} shares memory with {shard}, but they are not the same elements: give it "
            "memory of its own (.clone()), with the other one whole inside deepspeed.zero.GatheredParameters"
        )
    _belong(param, shard)
    if not is_whole(param):
        _mix_in(param)
    return True


@contextmanager
def whole(tensors: Iterable[torch.Tensor], modify_rank: int | None) -> Iterator[None]:
    """Makes sharded parameters whole in this context. Collective, except over parameters that a context already holds.

    At the end every rank takes over the writes of rank ``modify_rank``. Without ``modify_rank``, or after an exception,
    drops the writes. A parameter to which the user had assigned values before the context is different: without
    ``modify_rank`` every rank takes over the values of rank 0, and after an exception the parameter stays whole. An
    inner context does nothing with parameters that an outer context already holds, so it may run on one rank alone.
    Raises ``StateError`` if an inner context has a ``modify_rank``, and the outer context of a parameter has another
    one or none.
    """
    shards = {shard.id: shard for tensor in tensors if (shard := shard_of(tensor)) is not None}
    for shard in shards.values():
        _check_modify_rank(shard, modify_rank)
    mine = [shard for _, shard in sorted(shards.items()) if not shard.is_held]
    assigned = {shard.id for shard in mine if _values(shard) is not None}  # values assigned outside of any context
    done = False
    try:
        for shard in mine:
            _gather(shard)
        for shard in mine:
            shard.is_held, shard.modify_rank = True, modify_rank
        yield
        done = True
    finally:
        for shard in mine:
            shard.is_held, shard.modify_rank = False, None
            if not _tied(shard):  # an engine has the parameters now, or they are gone
                continue
            if done and (modify_rank is not None or shard.id in assigned):
                with _aborting(shard.ranks):
                    _keep(shard, modify_rank or 0)
            elif shard.id not in assigned:
                if done:
                    piece_of(_tied(shard)[0])  # casts the shard if the parameter was cast
                _free(shard)


def take(params: Iterable[torch.Tensor]) -> None:
    """Turns parameters that have shards into whole, ordinary parameters. Collective.

    Raises ``StateError`` inside a context with a ``modify_rank`` for one of them.
    """
    shards = {shard.id: shard for param in params if (shard := shard_of(param)) is not None}.values()
    for shard in shards:
        if shard.is_held and shard.modify_rank is not None:
            raise _C.StateError(
                f"{shard} is held by a GatheredParameters with modifier_rank={shard.modify_rank}, and writes would be "
                "lost: end that before zeroshard.initialize"
            )
    for shard in shards:
        _gather(shard)
        for param in _tied(shard):
            delattr(param, _SHARD)


@torch.inference_mode(False)
def _gather(shard: Shard) -> None:
    """Gives the shard's parameters memory and values.

    Collective, unless one of the parameters already has values, either gathered or assigned by the user.
    """
    params, values = _tied(shard), _values(shard)
    if values is None:
        if (why := _failed.get(shard.ranks)) is not None:
            raise _C.StateError(
                f"{shard} cannot be gathered: its ranks cannot reach one another any more. Make the model anew. What "
                f"happened: {why}"
            )
        piece = piece_of(params[0])
        with torch.no_grad(), _aborting(shard.ranks):
            values = torch.empty(shard.shape, dtype=piece.dtype, device=piece.device)
            for rank, part in enumerate(_parts(values.view(-1), piece.numel(), shard.ranks.size)):
                if rank == shard.ranks.rank:
                    part.copy_(piece[: part.numel()])
                shard.ranks.broadcast(part, rank, f"gather of {shard}")
    shard.gathered = values.untyped_storage()
    setattr(shard.gathered, _SHARD, weakref.ref(shard))
    for param in params:
        param.__class__ = _class_before(type(param))
        param.data = values


@torch.inference_mode(False)
@torch.no_grad()
def _keep(shard: Shard, root: int) -> None:
    """Makes the shard anew from the values of rank ``root``, and frees the parameters' memory. Collective.

    The values can have another shape than before. The new shape must be the same on every rank.
    """
    values = _values(shard).to(_device()).contiguous()
    flat = values.view(-1)
    shard.ranks.broadcast(flat, root, f"values of {shard}")
    length = -(-flat.numel() // shard.ranks.size)
    part = _parts(flat, length, shard.ranks.size)[shard.ranks.rank]
    shard.piece = torch.zeros(length, dtype=flat.dtype, device=flat.device)
    shard.piece[: part.numel()] = part
    shard.shape = values.shape
    _free(shard)


def _values(shard: Shard) -> torch.Tensor | None:
    """Returns the values of the shard's parameters, or None if none of them has memory.

    Values that the user has assigned come before gathered ones. Raises ``StateError`` if tied parameters were given
    different values.
    """
    found = [param for param in _tied(shard) if is_whole(param)]
    assigned = [param for param in found if not _is_of(param, shard.gathered)]
    if any(param.data_ptr() != assigned[0].data_ptr() for param in assigned):
        raise _C.StateError(f"{shard} belongs to tied parameters, and they were given different data")
    return next((param.data for param in (*assigned, *found)), None)


@torch.inference_mode(False)
def _free(shard: Shard) -> None:
    """Frees the memory of the shard's parameters."""
    hollow = _hollow(shard, shard.piece.dtype, shard.piece.device)
    shard.gathered = None
    for param in _tied(shard):
        param.__class__ = _class_before(type(param))
        param.data = hollow
        _mix_in(param)


def _belong(param: nn.Parameter, shard: Shard) -> None:
    setattr(param, _SHARD, shard)
    shard.params.append(weakref.ref(param))


def _tied(shard: Shard) -> list[nn.Parameter]:
    """Returns the living parameters that have the shard."""
    living = [(ref, param) for ref in shard.params if (param := ref()) is not None and shard_of(param) is shard]
    shard.params = [ref for ref, _ in living]
    return [param for _, param in living]


def _shard_of_memory(tensor: torch.Tensor) -> Shard | None:
    """Returns the shard whose parameters have the storage of ``tensor``, with or without memory, else None."""
    found = getattr(tensor.untyped_storage(), _SHARD, None)
    return found() if found is not None else None


def _is_of(tensor: torch.Tensor, storage: torch.UntypedStorage | None) -> bool:
    return storage is not None and tensor.untyped_storage()._cdata == storage._cdata


def _parts(flat: torch.Tensor, length: int, ranks: int) -> list[torch.Tensor]:
    """Returns each rank's elements of ``flat``. The last ranks can have fewer than ``length`` elements, or none."""
    return [flat[rank * length : (rank + 1) * length] for rank in range(ranks)]


def _hollow(shard: Shard, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    hollow = _without_memory(shard.shape, dtype, device, str(shard)).as_subclass(HollowData)
    setattr(hollow.untyped_storage(), _SHARD, weakref.ref(shard))
    return hollow


def _without_memory(shape: torch.Size, dtype: torch.dtype, device: torch.device, what: str) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype, device=device)
    _C.make_hollow(
        tensor,
        list(shape),
        f"{what} is sharded: make it whole around this with deepspeed.zero.GatheredParameters (zeroshard.gathered)",
    )
    return tensor


def _mix_in(param: nn.Parameter) -> None:
    if not is_whole(param):
        param.__class__ = _class_without_memory(_class_before(type(param)))


@functools.cache
def _class_without_memory(before: type[nn.Parameter]) -> type[nn.Parameter]:
    names = {"__module__": before.__module__, "_before": before}
    return type(before)(before.__name__, (ShardedParameter, before), names)


def _class_before(kind: type[nn.Parameter]) -> type[nn.Parameter]:
    return nn.Parameter if kind is HollowData else getattr(kind, "_before", kind)


def _check_modify_rank(shard: Shard, modify_rank: int | None) -> None:
    if modify_rank is None:
        return
    if not 0 <= modify_rank < shard.ranks.size:
        raise ValueError(f"gathered: modify_rank is {modify_rank}, expected 0 to {shard.ranks.size - 1}")
    if shard.is_held and shard.modify_rank != modify_rank:
        outer = "only reads" if shard.modify_rank is None else f"takes the values of rank {shard.modify_rank}"
        raise _C.StateError(
            f"{shard} is to be modified by rank {modify_rank}, inside a context that holds it gathered and "
            f"{outer}: give the outer context that rank, or end it first"
        )


def _world(timeout_s: float | None) -> _C.World:
    """Returns the ranks of the job.

    Connects them at the first call, after a failure, and if the default process group is another one than before. These
    calls are collective.
    """
    global _ranks
    init_distributed()
    group = dist.group.WORLD if dist.is_initialized() else None
    if _ranks is None or _ranks[0] is not group:
        size = dist.get_world_size() if group is not None else 1
        settings = {"train_micro_batch_size_per_gpu": 1}
        if timeout_s is not None:
            settings["zeroshard"] = {"timeout_s": timeout_s}
        config = _C.ParsedConfig.parse(json.dumps(settings), world_size=size).config
        ranks = connect(config.timeout_ms, lambda groups: _C.World(config, _device(), **groups))
        end_groups_with(ranks)
        _ranks = (group, ranks)
    return _ranks[1]


def _device() -> torch.device:
    """Returns the device for shards: the rank's GPU if it has one, but the CPU with Gloo."""
    if dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO:
        return torch.device("cpu")
    return device_of_rank(_C.rank_environment().local_rank)


@contextmanager
def _aborting(ranks: _C.World) -> Iterator[None]:
    """Makes the other ranks fail if this rank fails inside, because otherwise they would wait for it."""
    global _ranks
    try:
        yield
    except BaseException as error:
        ranks.abort(f"rank {ranks.rank} failed: {type(error).__name__}: {error}")
        _failed[ranks] = str(error)
        if _ranks is not None and _ranks[1] is ranks:
            _ranks = None
        raise
