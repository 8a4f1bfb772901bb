"""Implements ``deepspeed.zero``: shards parameters before there is an engine, and makes them whole for other code."""

from __future__ import annotations

import enum
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from .. import _C, shards
from ..gathering import gathered, gathered_to_drop
from ..marks import mark_of, unit_of
from ..names import plain_name
from ..sequence_groups import size_of_mesh
from ..shards import Shard, cut, hollow_like, is_whole, piece_of, shard_of
from .accelerator import get_accelerator  # noqa: F401 - scripts look it up here
from .comm import init_distributed
from .leaf_modules import z3_leaf_parameter  # noqa: F401 - scripts look it up here
from .trl_hash import gather_for_hashes

_FIRST_ID_OF_ENGINES = 1 << 40  # the lowest ds_id of parameters of engines; ids of other shards count from 0
_EXTERNAL = "_external_params"  # the name that DeepSpeed uses


class ZeroParamStatus(enum.Enum):
    """The values of ``param.ds_status``."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


def _shard_of(param: nn.Parameter) -> Shard | None:
    """Returns the parameter's shard, or None if an engine has the parameter at stage 3.

    Raises AttributeError if the parameter is not sharded.
    """
    shard = shard_of(param)
    if shard is None and not _is_of_stage_3(param):
        raise AttributeError("the parameter is not sharded: it has no attributes of deepspeed.zero")
    return shard


def _is_of_stage_3(param: nn.Parameter) -> bool:
    """Returns whether an engine has ``param`` at stage 3, even if each rank keeps it whole, as a single rank does."""
    if (mark := mark_of(param)) is None:
        return False
    owner = mark.owner()
    run = owner.run if owner is not None else None
    return (run is not None and run.config.stage == 3) or not mark.core().is_replicated(mark.unit)


def _ds_id(param: nn.Parameter) -> int:
    shard = _shard_of(param)
    return (
        shard.id if shard is not None else _FIRST_ID_OF_ENGINES + (mark_of(param).unit << 20) + mark_of(param).position
    )


def _ds_shape(param: nn.Parameter) -> torch.Size:
    _shard_of(param)
    return param.shape


def _ds_numel(param: nn.Parameter) -> int:
    _shard_of(param)
    return param.numel()


def _ds_persist(param: nn.Parameter) -> bool:
    return _shard_of(param) is None and mark_of(param).core().is_replicated(mark_of(param).unit)


def _ds_tensor(param: nn.Parameter) -> torch.Tensor:
    if _shard_of(param) is not None:
        piece = piece_of(param)
    elif (piece := mark_of(param).core().local_param(mark_of(param).unit, mark_of(param).position)) is None:
        raise AttributeError(
            "ds_tensor: the parameter lies in a file, as offload_param says: use "
            "deepspeed.utils.safe_get_local_fp32_param, which reads it"
        )
    piece.ds_numel = piece.numel()
    return piece


def _ds_status(param: nn.Parameter) -> ZeroParamStatus:
    _shard_of(param)
    return ZeroParamStatus.AVAILABLE if is_whole(param) else ZeroParamStatus.NOT_AVAILABLE


def _ds_active_sub_modules(param: nn.Parameter) -> set[int]:
    _shard_of(param)
    return param.__dict__.setdefault("_ds_active_sub_modules", set())


def _ds_summary(param: nn.Parameter) -> Callable[..., dict[str, Any]]:
    _shard_of(param)
    return lambda *args, **kwargs: {
        "id": param.ds_id,
        "status": param.ds_status.name,
        "numel": param.ds_numel,
        "shape": tuple(param.ds_shape),
    }


def _partition_numel(param: nn.Parameter) -> Callable[[], int]:
    _shard_of(param)
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    return lambda: -(-param.numel() // ranks)


# The attributes that scripts read from a sharded parameter. Other parameters do not have these attributes. ``ds_shape``
# is always the shape of the whole parameter.
_ATTRIBUTES = {
    "ds_id": _ds_id,
    "ds_shape": _ds_shape,
    "ds_numel": _ds_numel,
    "ds_tensor": _ds_tensor,  # memory of this rank's elements, which can be empty
    "ds_persist": _ds_persist,
    "ds_status": _ds_status,
    # For hooks of scripts, which clear it. zeroshard itself knows which forwards run and does not need it.
    "ds_active_sub_modules": _ds_active_sub_modules,
    "ds_summary": _ds_summary,
    "partition_numel": _partition_numel,  # computed as if each parameter was cut by itself
}
for _name, _read_attribute in _ATTRIBUTES.items():
    setattr(nn.Parameter, _name, property(_read_attribute))


class ZeroParamType(enum.Enum):
    """The kinds of parameters that DeepSpeed distinguishes."""

    NORMAL = 1
    PARTITIONED = 2
    REMOTE = 3


class Init:
    """A context in which each module keeps 1/N of its parameters on each rank as soon as its constructor has ended.

    The values are rank 0's. ``Init(module=model)`` shards an existing model in the same way. The parameters keep their
    shapes. ``GatheredParameters`` makes them whole, and ``deepspeed.initialize`` takes them over unit by unit.

    Args:
        config_dict_or_path: if it enables bf16 or fp16, floating-point parameters get this dtype.
        dtype: overrides the configuration's dtype. Without either, each parameter keeps its own dtype.
        enabled: False: the context does nothing.
        data_parallel_group: must be None, because zeroshard shards over all ranks.
        sequence_data_parallel_group: must be None or the group of all ranks.
        mpu: an ``mpu`` of sequence groups, or None. The other arguments have no effect.

    Raises ``ConfigError`` for a wrong configuration or the ``remote_device`` "nvme", and ``ValueError`` for other wrong
    arguments.
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        data_parallel_group: Any = None,
        mem_efficient_linear: bool = True,
        remote_device: str | None = None,
        pin_memory: bool = False,
        config_dict_or_path: Any = None,
        config: Any = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        mpu: Any = None,
        zero_param_parallel_group: Any = None,
        zero_quantized_weights: bool = False,
        zero_quantized_nontrainable_weights: bool = False,
        sequence_data_parallel_group: Any = None,
        param_swapper: Any = None,
    ) -> None:
        is_over_all = sequence_data_parallel_group in (None, dist.group.WORLD)
        if mpu is not None:  # raises for an mpu of other groups; nothing is sharded over sequence groups
            size_of_mesh(mpu)
        if data_parallel_group is not None or not is_over_all:
            raise ValueError("deepspeed.zero.Init: zeroshard shards over all ranks; leave data_parallel_group out")
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"deepspeed.zero.Init: dtype must be a floating-point torch.dtype, got {dtype!r}")
        if remote_device == "nvme":
            raise _C.ConfigError(
                "deepspeed.zero.Init: remote_device is 'nvme': say it by zero_optimization.offload_param.device instead"
            )
        settings = config_dict_or_path if config_dict_or_path is not None else config
        settings = _read(settings) if settings is not None and not isinstance(settings, dict) else settings or {}
        if enabled:
            init_distributed()
        self._enabled = enabled
        self._dtype = dtype if dtype is not None else _dtype_of(settings)
        self._timeout_s = (settings.get("zeroshard") or {}).get("timeout_s")
        if module is not None and enabled:
            self._cut(module)

    def __enter__(self) -> Init:
        if self._enabled:
            _active.append(self)
            if len(_active) == 1:
                _wrap_constructors()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._enabled:
            _active.remove(self)
            if not _active:
                _unwrap_constructors()
                gather_for_hashes()

    def _cut(self, module: nn.Module) -> None:
        name = type(module).__name__
        named = [
            (f"{name}.{plain_name(path)}", param) for path, param in module.named_parameters() if mark_of(param) is None
        ]
        cut(named, self._dtype, self._timeout_s)


class GatheredParameters:
    """Makes sharded parameters of ``Init`` or of an engine whole in the context.

    ``params`` is a tensor, or an iterable that may also have None, duplicates, buffers and parameters that are not
    sharded. With ``modifier_rank`` every rank takes over the values that rank ``modifier_rank`` wrote. Without
    ``modifier_rank``, the writes are dropped, except for writes to parameters of an engine at stages 0 to 2, because
    these are whole anyway. Collective, except over parameters that an outer context holds. The outer context writes
    such parameters back, so an inner context with only such parameters may run on one rank alone. Raises ``StateError``
    if this context has a ``modifier_rank``, and the outer context of such a parameter has another one or none.
    """

    def __init__(
        self,
        params: torch.Tensor | Iterable[torch.Tensor | None],
        modifier_rank: int | None = None,
        fwd_module: nn.Module | None = None,
        enabled: bool = True,
    ) -> None:
        given = [params] if params is None or isinstance(params, torch.Tensor) else list(params)
        self._params = [param for param in given if isinstance(param, torch.Tensor)] if enabled else []
        self._modifier_rank = modifier_rank
        self._stack = ExitStack()
        if fwd_module is not None:
            for param in self._params:
                register_external_parameter(fwd_module, param)

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(_unit_context(self._params, self._modifier_rank))
            self._stack = stack.pop_all()

    def __exit__(self, *exception: Any) -> bool | None:
        return self._stack.__exit__(*exception)


_active: list[Init] = []  # entered contexts, innermost last
_building: set[int] = set()  # modules whose constructors are running
_wrapped: list[tuple[type[nn.Module], Callable, Callable]] = []  # classes, their constructors, and the replacements
# The units of engines that contexts hold gathered, each with the modifier_rank of its context.
_units_held: dict[tuple[_C.Engine, int], int | None] = {}


@contextmanager
def _unit_context(params: list[torch.Tensor], modifier_rank: int | None) -> Iterator[None]:
    mine, keys = [], []
    for param in params:
        mark = mark_of(param)
        if mark is not None and modifier_rank is None and not _is_of_stage_3(param):
            continue
        key = unit_of(mark)
        if key is None or key not in _units_held:
            mine.append(param)
            keys += [key] if key is not None else []
        elif modifier_rank is not None and _units_held[key] != modifier_rank:
            raise _C.StateError(
                f"a parameter is to be modified by rank {modifier_rank} inside a GatheredParameters that holds it with "
                f"modifier_rank={_units_held[key]}: give the outer context that rank, or end it first"
            )
    with gathered_to_drop(mine) if modifier_rank is None else gathered(mine, modifier_rank):
        _units_held.update(dict.fromkeys(keys, modifier_rank))
        try:
            yield
        finally:
            for key in keys:
                _units_held.pop(key, None)


def _dtype_of(settings: dict[str, Any]) -> torch.dtype | None:
    """Returns bf16 or fp16 if the configuration, which can still have "auto" values, enables one of them, else None."""
    for name, dtype in (("bf16", torch.bfloat16), ("bfloat16", torch.bfloat16), ("fp16", torch.float16)):
        if (settings.get(name) or {}).get("enabled") == 1:  # also for True, but not for "auto"
            return dtype
    return None


def _read(settings: str | os.PathLike) -> dict[str, Any]:
    text = os.fspath(settings)
    if not text.lstrip().startswith("{"):
        try:
            with open(text) as file:
                text = file.read()
        except OSError as error:
            raise _C.ConfigError(f"deepspeed.zero.Init: cannot read the configuration {text!r}: {error}") from error
    try:
        read = json.loads(text)
    except json.JSONDecodeError as error:
        raise _C.ConfigError(f"deepspeed.zero.Init: the configuration is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise _C.ConfigError(f"deepspeed.zero.Init: the configuration is no JSON object, it is {read!r}")
    return read


# -- constructors ----------------------------------------------------------------------------------------------------


def _wrap_constructors() -> None:
    for kind in _subclasses(nn.Module):
        _wrap(kind)

    def init_subclass(cls: type[nn.Module], **kwargs: Any) -> None:
        super(nn.Module, cls).__init_subclass__(**kwargs)
        _wrap(cls)

    nn.Module.__init_subclass__ = classmethod(init_subclass)
    nn.Module.apply = _apply_gathered
    shards.initializes = True


def _unwrap_constructors() -> None:
    del nn.Module.__init_subclass__
    nn.Module.apply = _own_apply
    shards.initializes = False
    for kind, constructor, wrapper in _wrapped:
        if vars(kind).get("__init__") is wrapper:  # otherwise somebody else has replaced it
            kind.__init__ = constructor
    _wrapped.clear()


_own_apply = nn.Module.apply


def _apply_gathered(module: nn.Module, fn: Callable[[nn.Module], None]) -> nn.Module:
    """Replaces ``nn.Module.apply``, which models call to initialize modules. Makes parameters whole for ``fn``."""
    for child in module.children():
        child.apply(fn)
    with GatheredParameters(module.parameters(recurse=False), modifier_rank=0):
        fn(module)
    return module


def _subclasses(kind: type) -> set[type]:
    found, left = set(), [kind]
    while left:
        for child in type.__subclasses__(left.pop()):
            if child not in found:
                found.add(child)
                left.append(child)
    return found


def _wrap(kind: type[nn.Module]) -> None:
    constructor = vars(kind).get("__init__")
    if constructor is None or issubclass(kind, torch.jit.ScriptModule):
        return

    @functools.wraps(constructor)
    def construct(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not _active or id(module) in _building:
            constructor(module, *args, **kwargs)
            return
        _building.add(id(module))
        try:
            constructor(module, *args, **kwargs)
        finally:
            _building.discard(id(module))
        _active[-1]._cut(module)

    _wrapped.append((kind, constructor, construct))
    kind.__init__ = construct


def _forward_of_shards(parametrization: ParametrizationList) -> torch.Tensor:
    """Returns the value of a parametrization. While its parameters are sharded, the value has a shape but no memory.

    transformers initializes such values. They are temporary, so it does not matter that writes to them are lost.
    """
    params = dict(parametrization.named_parameters(recurse=False))
    if all(shard_of(param) is None or is_whole(param) for param in params.values()):
        return _forward_of_parametrization(parametrization)
    on_meta = {name: torch.empty_like(param, device="meta") for name, param in params.items()}
    value = hollow_like(torch.func.functional_call(parametrization, on_meta, ()), next(iter(params.values())))
    value._is_hf_initialized = True
    return value


_forward_of_parametrization = ParametrizationList.forward
ParametrizationList.forward = _forward_of_shards


# -- modules ---------------------------------------------------------------------------------------------------------


def register_external_parameter(module: nn.Module, parameter: torch.Tensor) -> None:
    """Records that the forward of ``module`` uses another module's parameter. zeroshard itself finds such uses, too."""
    if not isinstance(module, nn.Module):
        raise RuntimeError(f"register_external_parameter: expected a module, got {type(module).__name__}")
    if not isinstance(parameter, nn.Parameter):
        raise RuntimeError(f"register_external_parameter: expected a parameter, got {type(parameter).__name__}")
    module.__dict__.setdefault(_EXTERNAL, {})[id(parameter)] = parameter


def unregister_external_parameter(module: nn.Module, parameter: torch.Tensor) -> None:
    noted = getattr(module, _EXTERNAL, {})
    if id(parameter) not in noted:
        raise RuntimeError("unregister_external_parameter: the parameter is not registered for this module")
    del noted[id(parameter)]


def _external_parameters(module: nn.Module) -> Iterable[tuple[int, nn.Parameter]]:
    return module.__dict__.get(_EXTERNAL, {}).items()


nn.Module.ds_external_parameters = _external_parameters


_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(fn: Callable, target_fp_dtype: Any = None, **kwargs: Any) -> Callable:
    """Returns ``fn``, because ``Init`` casts parameters without wrapping constructors of tensors.

    Scripts may replace this function.
    """
    return fn
