"""Gathers each unit while the forward of its modules runs, and while forwards of other modules read its parameters."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.utils.hooks import RemovableHandle

from . import _C
from .leaves import tensors_in
from .marks import OwnHook
from .units import Unit

# These are used in place of a unit's index: for the forward of the model, for parameters of several units, and for code
# that is no module's forward.
_MODEL, _SEVERAL, _BETWEEN = -1, -2, -3
_SHARDED = re.compile(r"parameter '[^']*'(?= is sharded: outside of forward)")


def install_hooks(model: nn.Module, units: list[Unit], core: _C.Engine) -> Readers:
    """Installs hooks that tell ``core`` when the forward of a unit's module begins, and with which outputs it ends.

    If some units are sharded, ``core`` also learns when a forward only reads from a unit, such as a head that
    multiplies by ``embedding.weight`` without calling the embedding. Such a unit stays gathered until the innermost
    running forward, of a unit's module or of the model, has ended. It is gathered anew for the backward pass of that
    forward. A unit whose module returns a parameter or a view of one is treated in the same way. A unit from which a
    backward pass reads while no forward runs stays gathered until the backward pass needs other units.
    """
    readers = Readers(core)
    some_are_sharded = not all(core.is_replicated(index) for index in range(len(units)))
    for index, unit in enumerate(units):
        for module in unit.modules:
            if some_are_sharded:
                readers.handles += _watch(module, index, readers)
            readers.handles += _surround(module, index, core, readers)
        # Also reports reads from units that stay whole, so that the core gets the same calls for them as for sharded
        # units, and computes the same bits.
        if some_are_sharded:
            for param in unit.params:
                for name, owner in zip(param.names, param.owners, strict=True):
                    readers.report_reads(owner, name.rpartition(".")[2], index)
    if some_are_sharded:
        readers.handles += _watch(model, _MODEL, readers)
    return readers


@contextmanager
def explaining_sharded_parameters() -> Iterator[None]:
    """Surrounds a backward pass. Raises ``StateError`` in place of the error of a read from a sharded parameter."""
    try:
        yield
    except RuntimeError as error:
        if (found := _SHARDED.search(str(error))) is None:
            raise
        raise _C.StateError(
            f"backward needs {found[0]}, and the parameters of its unit are sharded again: its forward gave a tensor "
            "to others by another way than what it returned (an attribute, an argument that it changed, vmap, a "
            "tangent of torch.func), or a backward of the model's own computes with several units at once. Return the "
            "tensor, name in zeroshard.unit_classes a class of module that contains all who use it, or call forward "
            "and backward inside zeroshard.gathered(model.parameters())"
        ) from error


def _surround(module: nn.Module, unit: int, core: _C.Engine, readers: Readers) -> list[RemovableHandle]:
    def before(module: nn.Module, args: Any) -> None:
        if _thread.loop is None:
            core.pre_forward(unit)
        else:
            _thread.loop.use(readers, unit)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        if _thread.loop is not None:  # the core learns of the end of the unit's forward when the loop ends
            return
        if core.post_forward(unit, tensors_in(output)):
            readers.note_returned(unit)

    return [
        module.register_forward_pre_hook(OwnHook(before), prepend=True),
        module.register_forward_hook(OwnHook(after)),
    ]


def _watch(module: nn.Module, unit: int, readers: Readers) -> list[RemovableHandle]:
    def before(module: nn.Module, args: Any) -> None:
        if _thread.loop is None:
            readers.enter(unit)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        if _thread.loop is None:
            readers.leave(unit, output)

    return [
        module.register_forward_pre_hook(OwnHook(before), prepend=True),
        # always_call, because recomputation ends a forward early with an exception.
        module.register_forward_hook(OwnHook(after), always_call=True),
    ]


class TileLoop:
    """Surrounds a loop over tiles of one function.

    A unit that the function uses is gathered once, and freed when the loop ends. A unit whose backward pass is running
    is whole already and stays so. When the loop ends in a forward pass, ``outputs`` must contain its results, because
    the backward pass of the units begins with the gradients of these tensors. A loop inside of a loop is a part of the
    outer loop.
    """

    def __init__(self) -> None:
        self.outputs: list[torch.Tensor] = []
        self._around: TileLoop | None = None
        self._readers: list[Readers] = []  # of the engines whose units are used

    def __enter__(self) -> TileLoop:
        self._around, _thread.loop = _thread.loop, _thread.loop or self
        return self

    def __exit__(self, *exc: Any) -> None:
        _thread.loop = self._around
        for readers in reversed(self._readers):
            readers.leave(_BETWEEN, self.outputs)

    def use(self, readers: Readers, unit: int) -> None:
        # The core is not told of a use during the unit's backward pass. Ranks can have different numbers of tiles, so
        # they would make different calls.
        if readers.computes_backward(unit):
            return
        if readers not in self._readers:
            readers.enter(_BETWEEN)
            self._readers.append(readers)
        readers.gather_once(unit)


class _Thread(threading.local):
    loop: TileLoop | None = None  # the outermost loop


_thread = _Thread()


class Readers:
    """Tracks the running forwards, and the units from which each forward reads.

    While a forward runs, ignores reads on other threads than the one that began the last forward.
    """

    def __init__(self, core: _C.Engine) -> None:
        self._core: _C.Engine | None = core
        self.handles: list[RemovableHandle] = []  # handles of all hooks
        self.ownership: Any = None  # kept here so that it lives as long as the hooks
        self._watched: list[nn.Module] = []  # modules whose parameters report look-ups
        # The running forwards, the innermost last. Each entry has the unit of the forward, then the units from which
        # the forward has read.
        self._running: list[list[int]] = []
        self.innermost: int | None = None  # unit of the innermost forward
        self._thread = 0  # the thread that began the last forward

    def remove(self) -> None:
        """Removes all hooks from the model."""
        for handle in self.handles:
            handle.remove()
        for owner in self._watched:
            owner._parameters = dict(owner._parameters)
        self.handles.clear()
        self._watched.clear()
        self.reset()
        self._core = None  # so that this object does not keep an ended engine alive

    def report_reads(self, owner: nn.Module, name: str, unit: int) -> None:
        """Makes ``owner`` report each later look-up of its parameter ``name``. Scripted modules report none."""
        if isinstance(owner, torch.jit.ScriptModule):
            return
        if not isinstance(owner._parameters, _Reported):
            owner._parameters = _Reported(owner._parameters, self)
            self._watched.append(owner)
        owner._parameters.add(name, unit)

    def reset(self) -> None:
        """Forgets all running forwards, because an interrupted forward leaves its entries behind."""
        self._running.clear()
        self.innermost = None

    def enter(self, unit: int) -> None:
        self._running.append([unit])
        self.innermost = unit
        self._thread = get_ident()

    def leave(self, unit: int, output: Any) -> None:
        if all(units[0] != unit for units in self._running):
            return  # an exception in an earlier hook has prevented enter()
        while True:
            own, *read = self._running.pop()
            self.innermost = self._running[-1][0] if self._running else None
            tensors = tensors_in(output) if read else []
            for other in reversed(read):
                if self._core.post_forward(other, tensors):
                    self.note_returned(other)
            if own == unit:
                break

    def note_returned(self, unit: int) -> None:
        """Records that a forward inside of the innermost running one has returned memory of ``unit``.

        So the innermost running forward reads from ``unit``. Does nothing if no forward runs, or if one that runs
        already uses ``unit``.
        """
        if self._running and not self._is_running(unit):
            self._running[-1].append(unit)

    @contextmanager
    def reading(self, unit: int, made: list[torch.Tensor]) -> Iterator[None]:
        """Gathers ``unit`` in this context, and again for the backward of the tensors that ``made`` has at the end."""
        self.enter(_BETWEEN)
        try:
            self.read(unit)
            yield
        finally:
            self.leave(_BETWEEN, made)

    def read(self, unit: int) -> None:
        if _thread.loop is not None:
            _thread.loop.use(self, unit)
            return
        if not self._running:
            # In a backward pass, a function of the user can compute parts of a module a second time, without the
            # module's forward. Other reads outside of all forwards gather nothing.
            if torch._C._current_graph_task_id() != -1:
                self._core.pre_forward(unit)
            return
        self.gather_once(unit)

    def computes_backward(self, unit: int) -> bool:
        """Returns whether this thread is in a backward pass, and that of ``unit`` has begun and not ended."""
        return torch._C._current_graph_task_id() != -1 and self._core.is_in_backward(unit)

    def gather_once(self, unit: int) -> None:
        """Gathers ``unit`` until the innermost forward ends.

        Does nothing if a running forward already uses ``unit``, or if another thread runs the forwards.
        """
        if self._thread == get_ident() and not self._is_running(unit):
            self._running[-1].append(unit)
            self._core.pre_forward(unit)

    def _is_running(self, unit: int) -> bool:
        return any(unit in units for units in self._running)


class _Reported(dict):
    """Replaces the dict in which ``nn.Module`` looks up a module's parameters, and reports look-ups to ``Readers``.

    Does not report look-ups by the forward of the parameters' own unit, because that forward gathers the unit anyway.
    """

    __slots__ = ("readers", "unit", "units")

    def __init__(self, parameters: dict[str, nn.Parameter | None], readers: Readers) -> None:
        super().__init__(parameters)
        self.readers = readers
        self.units: dict[str, int] = {}
        self.unit = _SEVERAL

    def add(self, name: str, unit: int) -> None:
        self.units[name] = unit
        self.unit = unit if set(self.units.values()) == {unit} else _SEVERAL

    def __getitem__(self, name: str) -> nn.Parameter | None:
        # The forward of a block looks up about ten parameters, so this must be fast. is_compiling() must come first.
        # Otherwise the guards of compiled code would contain unit numbers, and no two blocks could share the code.
        if not is_compiling() and self.readers.innermost != self.unit:
            self._report(name)
        return dict.__getitem__(self, name)

    def _report(self, name: str) -> None:
        unit = self.units.get(name)
        if unit is not None:
            self.readers.read(unit)

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:
        return dict, (dict(self),)  # so that a copy of the module reports no look-ups
