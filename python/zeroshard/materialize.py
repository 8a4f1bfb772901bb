"""Models larger than one rank's memory: parameters on the meta device, given memory one unit at a time."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from .units import Param, Unit

_INITIALIZERS = ("reset_parameters", "_reset_parameters", "_init_weights")
_OVERWRITES = ("normal_", "uniform_", "fill_", "zero_", "copy_", "eye")


class Init:
    """Context in which modules are built without memory for their parameters.

    Parameters that a module registers inside live on the meta device; ``zeroshard.initialize`` gives them memory and
    initial values one unit at a time, by ``reset_parameters`` of their modules and the model's ``_init_weights``, so
    that a rank never holds more than its shards and one unit. A parameter that takes the place of another keeps its
    memory and values: ``from_pretrained``, ``load_state_dict(..., assign=True)``, an assignment. So do buffers, and
    parameters that are no floating-point numbers. Values that ``initialize`` cannot make again, those written in place
    into a parameter without memory by other code than these methods, are an error there. Contexts may be nested.

    Args:
        dtype: of floating-point parameters; None leaves each its own. The other arguments are DeepSpeed's and have no
            effect, but for ``enabled``.

    Raises ``ValueError`` when ``dtype`` is no floating-point type.
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        data_parallel_group: Any = None,
        mem_efficient_linear: bool = True,
        remote_device: Any = None,
        pin_memory: bool = False,
        config_dict_or_path: Any = None,
        config: Any = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        *args: object,
        **kwargs: object,
    ) -> None:
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"zeroshard.Init: dtype must be a floating-point torch.dtype, got {dtype!r}")
        self._enabled = enabled
        self._dtype = dtype
        self._register_parameter = None
        self._writes = _Writes()
        self._names = WeakIdKeyDictionary()  # of parameters that each module has had
        self._placed = WeakIdKeyDictionary()  # what stands for a parameter: one on the meta device, or None for itself

    def __enter__(self) -> Init:
        if not self._enabled:
            return self
        original = nn.Module.register_parameter
        self._register_parameter = original

        def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
            original(module, name, self._place(module, name, param))

        nn.Module.register_parameter = register
        self._writes.__enter__()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._register_parameter is not None:
            nn.Module.register_parameter = self._register_parameter
            self._register_parameter = None
            self._writes.__exit__(kind, error, trace)
            self._writes.mark()

    def _place(self, module: nn.Module, name: str, param: nn.Parameter | None) -> nn.Parameter | None:
        """What to register in the place of ``param``: the same for the same one, so that ties stay."""
        lazy = isinstance(param, nn.parameter.UninitializedTensorMixin)
        if not isinstance(param, nn.Parameter) or lazy or not param.is_floating_point():
            return param
        names = self._names.setdefault(module, set())
        replaces = name in names or module.__dict__.get("_parameters", {}).get(name) is not None
        names.add(name)
        if not param.is_meta and param not in self._placed:
            stand_in = None
            if not replaces:
                stand_in = _without_memory(param)
                stand_in._zeroshard_home = module
            self._placed[param] = stand_in
        if not param.is_meta:
            param = self._placed[param] if self._placed[param] is not None else param
        if self._dtype is not None and param.dtype != self._dtype:
            param.data = param.data.to(self._dtype)  # the same object: who loads weights marks them
        if param.is_meta:
            self._writes.params[param] = True
        return param


class _Writes(TorchDispatchMode):
    """Notes which tensors of the meta device lose values: what was written last cannot be written again later.

    The note is on the storage, as views write to it, and at the end on the parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.params = WeakIdKeyDictionary()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # skipping it means importing it, which takes longer than building most models

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func._schema.is_mutable:
            for tensor in _written_by(func, args, kwargs):
                self._note(func, tensor)
        elif any(_is_lost(tensor) for tensor in _meta_tensors((args, kwargs))):
            for tensor in _meta_tensors(result):  # a copy, or a view
                tensor.untyped_storage()._zeroshard_lost = True
        return result

    def mark(self) -> None:
        """Remembers of every parameter whether values are lost, and its version: later writes are lost, too."""
        for param in self.params:
            param._zeroshard_lost = _is_lost(param)
            param._zeroshard_version = param._version

    def _note(self, func: Any, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if not _inside_initializer():
            storage._zeroshard_lost = True
        elif func.overloadpacket.__name__ in _OVERWRITES and tensor.nbytes == storage.nbytes():
            storage._zeroshard_lost = False
        base = tensor if tensor._base is None else tensor._base
        if isinstance(base, nn.Parameter):
            self.params[base] = True


def _without_memory(param: nn.Parameter) -> nn.Parameter:
    meta = torch.empty(param.shape, dtype=param.dtype, device="meta")
    return nn.Parameter(meta, requires_grad=param.requires_grad)


def _meta_tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.is_meta]


def _written_by(func: Any, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    written = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += _meta_tensors(args[index] if index < len(args) else kwargs.get(argument.name))
    return written


def _is_lost(tensor: torch.Tensor) -> bool:
    return getattr(tensor, "_zeroshard_lost", False) or getattr(tensor.untyped_storage(), "_zeroshard_lost", False)


def _inside_initializer() -> bool:
    """Whether the caller is a method that ``materialize`` calls again."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name not in _INITIALIZERS:
        frame = frame.f_back
    return frame is not None


def materialize(model: nn.Module, unit: Unit, device: torch.device) -> None:
    """Gives the unit's meta parameters memory on ``device`` and initial values. Does nothing when there are none.

    The values are those of building the model eagerly: every module resets its parameters, inner ones first, then
    ``_init_weights`` is applied. Modules around the unit take part for the sake of its parameters.

    Raises ``ValueError`` naming a parameter that gets no values, or had values that cannot be made again.
    """
    pending = [param for param in unit.params if param.tensors[0].is_meta]
    if not pending:
        return
    with torch.no_grad(), _others_hidden(model, {id(param.tensors[0]) for param in pending}):
        fills = [_Fill(param, unit.name, device) for param in pending]
        modules = list(_modules_around(model, {id(owner) for param in pending for owner in param.owners}))
        with _buffers_kept([module for module, _ in modules]):
            for module, _ in modules:
                for reset in _resets(module):
                    reset()
            for fill in fills:
                fill.tie()
            for module, enclosing in modules:
                for initializer in enclosing:
                    initializer._init_weights(module)
        for fill in fills:
            fill.finish()


class _Fill:
    """One parameter of the meta device while it gets its values: NaN where nothing was written yet."""

    def __init__(self, param: Param, unit: str, device: torch.device) -> None:
        old = param.tensors[0]
        self._param = param
        self._unit = unit
        if not (old.is_floating_point() or old.is_complex()):
            raise ValueError(f"{self._name()} is of {old.dtype} and on the meta device, where it has no value")
        if _is_lost(old) or old._version != getattr(old, "_zeroshard_version", old._version):
            raise ValueError(
                f"{self._name()} was written in place while it had no memory, by other code than reset_parameters() "
                "and _init_weights(module): the values are lost. Write them there, assign a new parameter inside "
                "zeroshard.Init() (load_state_dict: assign=True), or build the model outside of zeroshard.Init()"
            )
        values = torch.full(old.shape, float("nan"), dtype=old.dtype, device=device)
        self._new = nn.Parameter(values, requires_grad=old.requires_grad)
        param.tensors = [self._new]
        # A tied parameter has the values of the module that it was made for; the others' went with what it replaced.
        home = getattr(old, "_zeroshard_home", None)
        if not any(home is owner for owner in param.owners):
            home = next((owner for owner in param.owners if _resets(owner)), param.owners[0])
        self._put(lambda owner: self._new if owner is home else old)

    def tie(self) -> None:
        self._put(lambda owner: self._new)

    def finish(self) -> None:
        for name, owner in self._slots():
            given = owner._parameters[name]
            if given is not self._new and given is not None and not given.is_meta:
                self._new.copy_(given)  # an initialiser that assigns
        self.tie()
        if torch.isnan(self._new).any():
            raise ValueError(
                f"{self._name()} was built on the meta device and gets no value: neither reset_parameters() of its "
                "module nor _init_weights(module) of the model writes all of it. Write it in one of them, or build "
                "the model outside of zeroshard.Init()"
            )

    def _name(self) -> str:
        owner = type(self._param.owners[0]).__name__
        return f"parameter '{self._param.names[0]}' of a {owner} in unit '{self._unit}'"

    def _slots(self) -> Iterator[tuple[str, nn.Module]]:
        for name, owner in zip(self._param.names, self._param.owners, strict=True):
            yield name.rpartition(".")[2], owner

    def _put(self, tensor_for: Callable[[nn.Module], nn.Parameter]) -> None:
        for name, owner in self._slots():
            owner._parameters[name] = tensor_for(owner)


@contextmanager
def _others_hidden(model: nn.Module, pending: set[int]) -> Iterator[None]:
    """Hides all parameters but ``pending`` behind ones without memory: initialisers may reach beyond the unit."""
    hidden = [
        (module, name, param)
        for module in model.modules()
        for name, param in module._parameters.items()
        if param is not None and id(param) not in pending
    ]
    try:
        for module, name, param in hidden:
            module._parameters[name] = _without_memory(param)
        yield
    finally:
        for module, name, param in hidden:
            module._parameters[name] = param


@contextmanager
def _buffers_kept(modules: list[nn.Module]) -> Iterator[None]:
    """Restores what ``reset_parameters`` does to buffers, which have their values already."""
    kept = [
        (module, name, buffer, buffer.clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    yield
    for module, name, buffer, values in kept:
        module._buffers[name] = buffer.copy_(values)


def _modules_around(model: nn.Module, owners: set[int]) -> Iterator[tuple[nn.Module, list[nn.Module]]]:
    """The modules with one of ``owners`` in them, inner ones first, and whose ``_init_weights`` each gets, in order."""
    seen: dict[int, bool] = {}
    found = []

    def visit(module: nn.Module, enclosing: list[nn.Module]) -> bool:
        if id(module) in seen:
            return seen[id(module)]
        if _initialises_others(module):
            # Of several of Hugging Face the innermost applies alone: it marks what it has initialised.
            keep = [m for m in enclosing if not (_of_hugging_face(m) and _of_hugging_face(module))]
            enclosing = [module, *keep]
        inside = [visit(child, enclosing) for child in module.children()]
        seen[id(module)] = any(inside) or id(module) in owners
        if seen[id(module)]:
            found.append((module, enclosing))
        return seen[id(module)]

    visit(model, [])
    yield from found


def _resets(module: nn.Module) -> list[Callable[[], Any]]:
    """The methods by which the module writes its own parameters when it is built."""
    methods = (getattr(module, name, None) for name in _INITIALIZERS)
    return [method for method in methods if method is not None and _takes_nothing(method)]


def _initialises_others(module: nn.Module) -> bool:
    method = getattr(module, "_init_weights", None)
    return method is not None and not _takes_nothing(method)


def _of_hugging_face(module: nn.Module) -> bool:
    return hasattr(module, "_initialize_weights")


def _takes_nothing(method: Callable) -> bool:
    try:
        inspect.signature(method).bind()
    except TypeError:
        return False
    return True
