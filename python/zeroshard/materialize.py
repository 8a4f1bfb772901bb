"""Builds models larger than one rank's memory: gives meta parameters memory and values one unit at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from .units import Param, Unit, is_packed
from .writes import INITIALIZERS, Writes, is_initialized, is_lost, is_unwritten, was_written_after

_KEPT_BYTES = 64 * 2**20  # most bytes of all parameters together that were made from values and keep these, per context


class Init:
    """A context in which modules are built without memory for their parameters.

    Parameters that a module registers inside are on the meta device. ``zeroshard.initialize`` gives them memory and
    initial values one unit at a time, so that a rank never holds more than its shards and one unit. The values come
    from the ``reset_parameters`` of the modules and from the model's ``_init_weights``.

    Some tensors keep their memory and values. These are buffers, parameters that are no floating-point numbers,
    parameters that replace another one (``from_pretrained``, ``load_state_dict(..., assign=True)``, an assignment), and
    parameters made from values (``nn.Parameter(torch.ones(n) * 1e-6)``) up to 64 MiB together. Beyond 64 MiB, a
    parameter made from values may only have one value for all elements (``torch.zeros(n)``). If it has different
    values, and neither of the two methods above has written to it, ``initialize`` raises an error. ``initialize`` also
    raises an error if other code than these two methods has written in place into a parameter without memory, because
    ``initialize`` cannot make such values anew. Contexts may be nested.

    Args:
        dtype: the dtype of floating-point parameters. None: each parameter keeps its own. The other arguments are
            DeepSpeed's and have no effect, except ``enabled``.

    Raises ``ValueError`` if ``dtype`` is no floating-point type.

    >>> with zeroshard.Init():
    ...     model = LlamaForCausalLM(llama)
    >>> engine, *_ = zeroshard.initialize(model=model, config=config)
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
        self._writes = Writes()
        self._names = WeakIdKeyDictionary()  # names of all parameters that each module has had
        self._kept_bytes = 0
        self._placed = WeakIdKeyDictionary()  # parameter -> its replacement on the meta device, or None for itself

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
        """Returns the parameter to register in place of ``param``: one on the meta device, or ``param`` itself.

        The replacement is always the same for the same parameter, so that tied parameters stay tied. If this context
        has a dtype, casts floating-point parameters that are not packed.
        """
        lazy = isinstance(param, nn.parameter.UninitializedTensorMixin)
        if not isinstance(param, nn.Parameter) or lazy or not param.is_floating_point():
            return param
        names = self._names.setdefault(module, set())
        replaces = name in names or module.__dict__.get("_parameters", {}).get(name) is not None
        names.add(name)
        if not param.is_meta and param not in self._placed:
            self._placed[param] = None if replaces else self._stand_in(module, param)
        if not param.is_meta:
            param = self._placed[param] if self._placed[param] is not None else param
        if self._dtype is not None and param.dtype != self._dtype and not is_packed(param):
            param.data = param.data.to(self._dtype)  # the same object, because code that loads weights has marked it
        if param.is_meta:
            self._writes.params[param] = True
        return param

    def _stand_in(self, module: nn.Module, param: nn.Parameter) -> nn.Parameter | None:
        """Returns a parameter without memory to replace ``param``; None if ``param`` may keep memory and values."""
        has_values = not is_unwritten(param)
        if has_values and self._kept_bytes + param.nbytes <= _KEPT_BYTES:
            self._kept_bytes += param.nbytes
            return None
        stand_in = _without_memory(param)
        stand_in._zeroshard_home = module
        if has_values:
            low, high = torch.aminmax(param.detach())
            stand_in._zeroshard_value = low.item() if low == high else None
        return stand_in


def _without_memory(param: nn.Parameter) -> nn.Parameter:
    meta = torch.empty(param.shape, dtype=param.dtype, device="meta")
    return nn.Parameter(meta, requires_grad=param.requires_grad)


def materialize(model: nn.Module, unit: Unit, device: torch.device) -> None:
    """Gives the unit's meta parameters memory on ``device`` and initial values. Does nothing if there are none.

    The values are the same as in a model that is built with memory. First, modules reset their parameters, beginning
    with inner modules. Then ``_init_weights`` is applied. Modules that contain the unit take part in both, because
    their initializers can write to the unit's parameters.

    Raises a ``ValueError`` that names a parameter which gets no values, or whose lost values cannot be made anew.
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
    """A meta parameter while it gets its values.

    Elements that nothing has written yet are NaN, or the value from which the parameter was made.
    """

    def __init__(self, param: Param, unit: str, device: torch.device) -> None:
        old = param.tensors[0]
        self._param = param
        self._unit = unit
        if not (old.is_floating_point() or old.is_complex()):
            raise ValueError(f"{self._name()} is of {old.dtype} and on the meta device, where it has no value")
        if is_lost(old) or was_written_after(old):
            raise ValueError(
                f"{self._name()} was written in place while it had no memory, by other code than reset_parameters() "
                "and _init_weights(module): the values are lost. Write them there, assign a new parameter inside "
                "zeroshard.Init() (load_state_dict: assign=True), or build the model outside of zeroshard.Init()"
            )
        has_values, value = hasattr(old, "_zeroshard_value"), getattr(old, "_zeroshard_value", None)
        # If no initializer ran while the parameter was built, it keeps the values from which it was made.
        self._keeps = value if has_values and not is_initialized(old) else None
        if has_values and value is None and not is_initialized(old):
            raise ValueError(
                f"{self._name()} was made of values, and those that zeroshard.Init() keeps are more than "
                f"{_KEPT_BYTES // 2**20} MiB in all: the values are lost. Write them in reset_parameters() of its "
                "module, assign a new parameter inside zeroshard.Init(), or build the model outside of it"
            )
        values = torch.full(old.shape, float("nan") if value is None else value, dtype=old.dtype, device=device)
        self._new = nn.Parameter(values, requires_grad=old.requires_grad)
        param.tensors = [self._new]
        # A tied parameter gets the values of its home, the module for which it was made. In the other modules it has
        # replaced another parameter, so the values that these modules would give are not used.
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
                self._new.copy_(given)  # an initializer has assigned a new tensor instead of writing in place
        if self._keeps is not None:
            self._new.fill_(self._keeps)
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
    """Hides all parameters but those whose ``id()`` is in ``pending``, so that initializers cannot overwrite them."""
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
    """Restores the buffers that ``reset_parameters`` changes, because they already have their values."""
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
    """Yields the modules that are or contain one of ``owners``, inner ones first.

    ``owners`` has ``id()`` of modules. Yields with each module the modules whose ``_init_weights`` is applied to it.
    """
    seen: dict[int, bool] = {}
    found = []

    def visit(module: nn.Module, enclosing: list[nn.Module]) -> bool:
        if id(module) in seen:
            return seen[id(module)]
        if _initialises_others(module):
            # If several Hugging Face models contain the module, only the innermost one initializes it, as in
            # transformers, where a model marks the modules that it has initialized, and outer models skip them.
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
    """Returns the methods with which the module gives its own parameters their first values."""
    methods = (getattr(module, name, None) for name in INITIALIZERS)
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
