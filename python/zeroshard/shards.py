"""Parameters that are sharded before an engine has them: each rank keeps 1/N of the elements of each."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import nn

from . import _C
from .distributed import default_device, init_distributed
from .group_life import end_groups_with
from .groups import connect

_SHARD = "_zeroshard_shard"
_ids = itertools.count()
_ranks: tuple[object, _C.World] | None = None  # the default process group, and the ranks that it connected
_homes: WeakValueDictionary[int, Shard] = WeakValueDictionary()  # by the address of the storage without memory


@dataclass(eq=False)
class Shard:
    """This rank's elements of one parameter, or of several tied ones."""

    name: str  # for messages: "Linear.weight"
    ranks: _C.World
    piece: torch.Tensor  # a part of the flat parameter, [ceil(numel / ranks)]; the last ranks' are padded
    shape: torch.Size
    home: torch.UntypedStorage | None = None  # of the parameter's tensor; has memory while it is gathered
    modify_rank: int | None = None  # of the context that holds it gathered
    is_held: bool = False
    id: int = field(default_factory=lambda: next(_ids))  # the same order on every rank


class ShardedParameter:
    """Mixed into the class of a parameter while its tensor has a shape and no memory.

    A deepcopy copies the shard. ``to`` and its relatives, which ``nn.Module.to`` calls, change dtype and device of the
    tensor; the shard follows when it is next used.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{_describe(self)}, sharded"

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) in memo:
            return memo[id(self)]
        shard = shard_of(self)
        copied = _class_before(type(self))(_without_memory(self), self.requires_grad)
        copy = Shard(shard.name, shard.ranks, shard.piece.clone(), shard.shape)
        setattr(copied, _SHARD, copy)
        _mix_in(copied)
        _set_home(copy, copied)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise _C.StateError(
            f"{_describe(self)} is sharded, so it cannot be pickled: make it whole around that with "
            "zeroshard.gathered (deepspeed.zero.GatheredParameters), or save a checkpoint"
        )

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        if device in (None, self.device) and dtype in (None, self.dtype):
            return self
        return _without_memory(self, dtype, device)

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.to("cpu")

    def cuda(self, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.to(torch.device("cuda") if device is None else torch.device("cuda", device))

    def double(self) -> torch.Tensor:
        return self.to(torch.float64)

    def float(self) -> torch.Tensor:
        return self.to(torch.float32)

    def half(self) -> torch.Tensor:
        return self.to(torch.float16)

    def bfloat16(self) -> torch.Tensor:
        return self.to(torch.bfloat16)


def shard_of(tensor: torch.Tensor) -> Shard | None:
    """None unless the tensor is a parameter that is sharded and belongs to no engine yet."""
    return getattr(tensor, _SHARD, None)


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether the tensor has its memory."""
    if tensor.is_meta or tensor.numel() == 0:
        return True
    try:
        return tensor.untyped_storage().data_ptr() != 0
    except RuntimeError:  # an engine has freed it
        return False


def piece_of(param: nn.Parameter) -> torch.Tensor:
    """The shard's elements, in the parameter's dtype and on its device."""
    shard = shard_of(param)
    shard.piece = shard.piece.to(param.device, param.dtype)
    return shard.piece


def cut(
    named: Iterable[tuple[str, nn.Parameter]],
    dtype: torch.dtype | None = None,
) -> None:
    """Keeps this rank's elements of each parameter, with rank 0's values, and frees its memory. Collective.

    Floating-point parameters become ``dtype``, if it is given. Parameters that share their memory stay tied. Those that
    are sharded, or on the meta device, stay as they are.
    """
    first_with: dict[object, nn.Parameter] = {}
    with torch.no_grad():
        for name, param in named:
            if param.is_meta or shard_of(param) is not None:
                continue
            storage = param.untyped_storage()
            if not is_whole(param):  # made from the data of a sharded parameter
                if (shard := _homes.get(storage._cdata)) is None:
                    raise _C.StateError(
                        f"{name} {list(param.shape)} was made from a parameter that is sharded and has no values: make "
                        "that one whole around it with deepspeed.zero.GatheredParameters"
                    )
                setattr(param, _SHARD, shard)
                _mix_in(param)
                continue
            memory = (storage._cdata, param.storage_offset(), param.shape, param.stride(), param.dtype)
            if (first := first_with.setdefault(memory, param)) is not param:
                param.data = first.data
                setattr(param, _SHARD, shard_of(first))
                _mix_in(param)
                continue
            ranks = _world()
            if dtype is not None and param.is_floating_point():
                param.data = param.data.to(dtype)
            setattr(param, _SHARD, Shard(name, ranks, torch.empty(0), param.shape))
            with _aborting(ranks):
                _keep_piece(param, root=0)


@contextmanager
def whole(tensors: Iterable[torch.Tensor], modify_rank: int | None) -> Iterator[None]:
    """Makes the parameters that have shards whole inside. Collective, except over those that a context holds already.

    At the end every rank takes over what rank ``modify_rank`` has written; without one, or after an exception, writes
    are dropped. A context inside another one leaves to it what the outer one holds: it may run on one rank alone.
    Raises ``StateError`` if it is to modify what the outer context only reads.
    """
    params = {shard.id: param for param in tensors if (shard := shard_of(param)) is not None}
    for param in params.values():
        _check_modify_rank(param, modify_rank)
    mine = [param for _, param in sorted(params.items()) if not shard_of(param).is_held]
    replaced = {id(param) for param in mine if is_whole(param)}  # its data was assigned outside of any context
    done = False
    try:
        _gather(param for param in mine if id(param) not in replaced)
        for param in mine:
            shard = shard_of(param)
            shard.is_held, shard.modify_rank = True, modify_rank
        yield
        done = True
    finally:
        for param in mine:
            shard = shard_of(param)
            if shard is None:  # an engine has it now
                continue
            shard.is_held, shard.modify_rank = False, None
            if done and (modify_rank is not None or id(param) in replaced):
                with torch.no_grad(), _aborting(shard.ranks):
                    _keep_piece(param, modify_rank or 0)
            else:
                _free(param)


def take(params: Iterable[torch.Tensor]) -> None:
    """Makes parameters that have shards whole, ordinary parameters. Collective."""
    params = [param for param in params if shard_of(param) is not None]
    _gather(param for param in params if not is_whole(param))
    for param in params:
        delattr(param, _SHARD)


def _gather(params: Iterable[nn.Parameter]) -> None:
    """Gives parameters their memory and values."""
    for param in params:
        param.__class__ = _class_before(type(param))
        if is_whole(param):  # tied to one before
            continue
        shard, piece = shard_of(param), piece_of(param)
        with torch.no_grad(), _aborting(shard.ranks):
            param.untyped_storage().resize_(param.nbytes)
            _set_home(shard, param)
            for rank, part in enumerate(_parts(param.data.view(-1), piece.numel(), shard.ranks.size)):
                if rank == shard.ranks.rank:
                    part.copy_(piece[: part.numel()])
                shard.ranks.broadcast(part, rank, f"gather of {_describe(param)}")


def _keep_piece(param: nn.Parameter, root: int) -> None:
    """Cuts the parameter's values of rank ``root``, which may have another shape than before."""
    shard = shard_of(param)
    values = param.data.to(_device()).contiguous()
    flat = values.view(-1)
    shard.ranks.broadcast(flat, root, f"values of {_describe(param)}")
    length = -(-flat.numel() // shard.ranks.size)
    part = _parts(flat, length, shard.ranks.size)[shard.ranks.rank]
    shard.piece = torch.zeros(length, dtype=flat.dtype, device=flat.device)
    shard.piece[: part.numel()] = part
    shard.shape = values.shape
    _free(param)


def _free(param: nn.Parameter) -> None:
    shard = shard_of(param)
    _mix_in(param)
    storage = param.untyped_storage()
    if shard.home is not None and storage._cdata == shard.home._cdata:
        storage.resize_(0)
        return
    param.data = _without_memory(shard.piece, shape=shard.shape)
    _set_home(shard, param)


def _set_home(shard: Shard, param: nn.Parameter) -> None:
    shard.home = param.untyped_storage()
    _homes[shard.home._cdata] = shard


def _parts(flat: torch.Tensor, length: int, ranks: int) -> list[torch.Tensor]:
    """Each rank's elements of ``flat``; of the last ranks fewer than ``length``, or none."""
    return [flat[rank * length : (rank + 1) * length] for rank in range(ranks)]


def _without_memory(
    like: torch.Tensor,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    shape: torch.Size | None = None,
) -> torch.Tensor:
    empty = torch.empty(like.shape if shape is None else shape, dtype=dtype or like.dtype, device=device or like.device)
    empty.untyped_storage().resize_(0)
    return empty


def _mix_in(param: nn.Parameter) -> None:
    if param.numel() > 0:
        param.__class__ = _class_without_memory(_class_before(type(param)))


@functools.cache
def _class_without_memory(before: type[nn.Parameter]) -> type[nn.Parameter]:
    names = {"__module__": before.__module__, "_before": before}
    return type(before)(before.__name__, (ShardedParameter, before), names)


def _class_before(kind: type[nn.Parameter]) -> type[nn.Parameter]:
    return getattr(kind, "_before", kind)


def _describe(param: nn.Parameter) -> str:
    shard = shard_of(param)
    return f"{shard.name if shard is not None else 'parameter'} {list(param.shape)} {str(param.dtype)[6:]}"


def _check_modify_rank(param: nn.Parameter, modify_rank: int | None) -> None:
    shard = shard_of(param)
    if modify_rank is None:
        return
    if not 0 <= modify_rank < shard.ranks.size:
        raise ValueError(f"gathered: modify_rank is {modify_rank}, expected 0 to {shard.ranks.size - 1}")
    if shard.is_held and shard.modify_rank != modify_rank:
        outer = "only reads" if shard.modify_rank is None else f"takes the values of rank {shard.modify_rank}"
        raise _C.StateError(
            f"{_describe(param)} is to be modified by rank {modify_rank}, inside a context that holds it gathered and "
            f"{outer}: give the outer context that rank, or end it first"
        )


def _world() -> _C.World:
    """The ranks of the job; connected at the first call, which is collective."""
    global _ranks
    init_distributed()
    group = dist.group.WORLD if dist.is_initialized() else None
    if _ranks is None or _ranks[0] is not group:
        size = dist.get_world_size() if group is not None else 1
        config = _C.ParsedConfig.parse('{"train_micro_batch_size_per_gpu": 1}', world_size=size).config
        ranks = connect(config.timeout_ms, lambda groups: _C.World(config, _device(), **groups))
        end_groups_with(ranks)
        _ranks = (group, ranks)
    return _ranks[1]


def _device() -> torch.device:
    """Where shards are: the GPU of a rank that has one."""
    on_host = os.environ.get("ACCELERATE_USE_CPU", "") == "true"
    if on_host or (dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO):
        return torch.device("cpu")
    return default_device(_C.rank_environment().local_rank)


@contextmanager
def _aborting(ranks: _C.World) -> Iterator[None]:
    """Lets the other ranks fail, too, when this one fails inside: they must not wait for it."""
    try:
        yield
    except BaseException as error:
        ranks.abort(f"rank {ranks.rank} failed: {type(error).__name__}: {error}")
        raise
