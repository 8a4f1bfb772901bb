"""Parameters that are sharded before an engine has them: each rank keeps 1/N of the elements of each."""

from __future__ import annotations

import functools
import itertools
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

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
_homes: weakref.WeakValueDictionary[int, Shard] = (
    weakref.WeakValueDictionary()
)  # by the address of the storage without memory


@dataclass(eq=False)
class Shard:
    """This rank's elements of one parameter, or of several tied ones."""

    name: str  # for messages: "Linear.weight"
    ranks: _C.World
    piece: torch.Tensor  # a part of the flat parameter, [ceil(numel / ranks)]; the last ranks' are padded
    shape: torch.Size
    params: list[weakref.ref[nn.Parameter]] = field(default_factory=list)
    home: torch.UntypedStorage | None = None  # of the parameters' tensors while they have no memory
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

    @property
    def data(self) -> HollowData:
        return torch.Tensor.data.__get__(self).as_subclass(HollowData)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if not (isinstance(value, HollowData) and value.shape == self.shape):
            torch.Tensor.data.__set__(self, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) in memo:
            return memo[id(self)]
        shard = shard_of(self)
        with torch._C.DisableTorchFunctionSubclass():
            copied = _class_before(type(self))(torch.empty(0, dtype=self.dtype, device=self.device), self.requires_grad)
        _belong(copied, Shard(shard.name, shard.ranks, piece_of(self).clone(), shard.shape))
        _free(copied)
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
        return _hollow(self.shape, dtype or self.dtype, device or self.device, _describe(self))

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


class HollowData(torch.Tensor):
    """``param.data`` of a parameter without memory. To use an element is an error; to pad by nothing is not.

    (transformers pads the bias of every tied head, and assigns the result to its ``data``.)
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is nn.functional.pad and not any(args[1] if len(args) > 1 else (kwargs or {}).get("pad", ())):
            return args[0]
        return super().__torch_function__(func, types, args, kwargs or {})


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


def hollow_like(tensor: torch.Tensor, param: nn.Parameter) -> torch.Tensor:
    """A tensor with the shape of ``tensor`` and no memory, which was made from ``param``."""
    return _hollow(tensor.shape, tensor.dtype, param.device, f"a tensor made from {_describe(param)}")


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
                _belong(param, shard)
                _mix_in(param)
                continue
            memory = (storage._cdata, param.storage_offset(), param.shape, param.stride(), param.dtype)
            if (first := first_with.setdefault(memory, param)) is not param:
                _belong(param, shard_of(first))
                _free(param)
                continue
            ranks = _world()
            if dtype is not None and param.is_floating_point():
                param.data = param.data.to(dtype)
            _belong(param, Shard(name, ranks, torch.empty(0), param.shape))
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
    for sharded in {id(tied): tied for param in params for tied in _tied(param)}.values():
        delattr(sharded, _SHARD)


def _gather(params: Iterable[nn.Parameter]) -> None:
    """Gives parameters their memory and values."""
    for param in params:
        if is_whole(param):  # tied to one before
            continue
        shard, piece = shard_of(param), piece_of(param)
        what = f"gather of {_describe(param)}"
        with torch.no_grad(), _aborting(shard.ranks):
            values = torch.empty(shard.shape, dtype=piece.dtype, device=piece.device)
            for rank, part in enumerate(_parts(values.view(-1), piece.numel(), shard.ranks.size)):
                if rank == shard.ranks.rank:
                    part.copy_(piece[: part.numel()])
                shard.ranks.broadcast(part, rank, what)
            for tied in _tied(param):
                tied.__class__ = _class_before(type(tied))
                tied.data = values


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
    """Frees the memory of a parameter, and of those that are tied to it."""
    shard = shard_of(param)
    hollow = _hollow(shard.shape, shard.piece.dtype, shard.piece.device, _describe(param))
    for tied in _tied(param):
        tied.__class__ = _class_before(type(tied))
        tied.data = hollow
        _mix_in(tied)
    shard.home = hollow.untyped_storage()
    _homes[shard.home._cdata] = shard


def _belong(param: nn.Parameter, shard: Shard) -> None:
    setattr(param, _SHARD, shard)
    shard.params.append(weakref.ref(param))


def _tied(param: nn.Parameter) -> list[nn.Parameter]:
    """The parameters that have the same shard."""
    return [tied for ref in shard_of(param).params if (tied := ref()) is not None and shard_of(tied) is not None]


def _parts(flat: torch.Tensor, length: int, ranks: int) -> list[torch.Tensor]:
    """Each rank's elements of ``flat``; of the last ranks fewer than ``length``, or none."""
    return [flat[rank * length : (rank + 1) * length] for rank in range(ranks)]


def _hollow(shape: torch.Size, dtype: torch.dtype, device: torch.device, what: str) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype, device=device)
    _C.make_hollow(
        tensor,
        list(shape),
        f"{what} is sharded: make it whole around this with deepspeed.zero.GatheredParameters (zeroshard.gathered)",
    )
    return tensor


def _mix_in(param: nn.Parameter) -> None:
    if param.numel() > 0:
        param.__class__ = _class_without_memory(_class_before(type(param)))


@functools.cache
def _class_without_memory(before: type[nn.Parameter]) -> type[nn.Parameter]:
    names = {"__module__": before.__module__, "_before": before}
    return type(before)(before.__name__, (ShardedParameter, before), names)


def _class_before(kind: type[nn.Parameter]) -> type[nn.Parameter]:
    return nn.Parameter if kind is HollowData else getattr(kind, "_before", kind)


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
