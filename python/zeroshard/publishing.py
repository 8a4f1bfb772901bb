"""Publishes weights that the user's optimizer writes outside of ``step()``, for example in ``eval()``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from inspect import isfunction, isgenerator
from typing import Any

import torch

from . import _C

# Methods of torch.optim.Optimizer. They write no weights, even if a class overrides them, except step(), which gets
# wrapped separately.
_NOT_THESE = frozenset(name for name in dir(torch.optim.Optimizer) if not name.startswith("__"))
_OF_STATEMENTS = ("__call__", "__enter__", "__exit__")  # Python looks these up in the class, not in the object


def _make(make: Callable, *arguments: Any) -> Any:
    # A copy of the optimizer gets the script's class, and not the subclass that Publishing has made. pickle's usual
    # function (copyreg.__newobj__) may only make an object of the same class, so pickle gets this function.
    return make(*arguments)


class _Silent:
    """Keeps a class from learning of a subclass. It comes before the class in the subclass's resolution order."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Hides this method of the class, which could register the subclass or require keywords."""


def _mro_of_silent(made: type) -> list[type]:
    # Puts _Silent only into the method resolution order. As a base class it would change the layout of objects, and
    # then the class of an existing object could not be replaced.
    first, *others = type.mro(made)
    return [first, _Silent, *others]


class Publishing:
    """Publishes values that methods of an external optimizer write to its slices of the master weights.

    A rank whose slices have elements publishes if the method has changed them. A rank without elements cannot see
    whether the method writes, so it publishes after every method. Publishing is collective, so every rank must call a
    method that writes weights. A method that writes no weights may be called on one rank alone, if that rank has
    elements.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, core: _C.Engine) -> None:
        self.optimizer = optimizer
        self._core: _C.Engine | None = core
        self._class = type(optimizer)
        self._is_inside = False  # true: inside step(), which the engine publishes, or inside another method

    def methods(self) -> dict[str, Callable]:
        """Returns the optimizer's own public methods by name, wrapped so that each of them publishes."""
        names = [name for name, method in self._own().items() if isfunction(method)]
        return {
            name: self.publishing(getattr(self.optimizer, name))
            for name in names
            if not name.startswith("_") and name not in _NOT_THESE
        }

    def begin(self) -> None:
        """Makes property setters, ``with`` statements and calls of the optimizer itself publish, too.

        For this the optimizer gets a class of its own, unless its class has nothing of the kind.
        """
        self.optimizer.__class__ = self._subclass()

    def end(self) -> None:
        """Gives the optimizer its class back. From then on, wrapped methods that the user has kept do not publish."""
        self.optimizer.__class__ = self._class
        self._core = None

    def _subclass(self) -> type:
        own, optimizer_type = self._own(), self._class
        made: dict[str, Any] = {
            name: property(each.fget, self._of_class(each.fset), each.fdel, each.__doc__)
            for name, each in own.items()
            if isinstance(each, property) and each.fset is not None
        }
        made |= {name: self._of_class(own[name]) for name in _OF_STATEMENTS if isfunction(own.get(name))}
        if not made:
            return optimizer_type

        def reduce(optimizer: torch.optim.Optimizer, protocol: Any) -> tuple:  # a copy gets the script's class
            make, (_, *arguments), *more = optimizer_type.__reduce_ex__(optimizer, protocol)
            return _make, (make, optimizer_type, *arguments), *more

        names = {name: getattr(optimizer_type, name) for name in ("__module__", "__qualname__", "__doc__")}
        names["__reduce_ex__"] = reduce
        silent = type("silent", (type(optimizer_type),), {"mro": _mro_of_silent})
        return silent(optimizer_type.__name__, (optimizer_type,), names | made)

    def _own(self) -> dict[str, Any]:
        """Returns the attributes that the optimizer's classes below torch.optim.Optimizer define."""
        own: dict[str, Any] = {}
        for each in reversed(self._class.__mro__):
            own |= vars(each) if each not in torch.optim.Optimizer.__mro__ else {}
        return own

    def _of_class(self, method: Callable) -> Callable:
        """Wraps ``method`` so that it publishes for this optimizer, but not for a copy of it."""

        @functools.wraps(method)
        def call(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            bound = functools.partial(method, optimizer)
            return (self.publishing(bound) if optimizer is self.optimizer else bound)(*args, **kwargs)

        return call

    def inside(self, method: Callable) -> Callable:
        """Wraps ``method`` so that other methods that it calls publish nothing."""

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            before, self._is_inside = self._is_inside, True
            try:
                return method(*args, **kwargs)
            finally:
                self._is_inside = before

        return call

    def publishing(self, method: Callable) -> Callable:
        """Wraps ``method`` so that it publishes, unless another method of the optimizer has called it."""
        inside = self.inside(method)

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside or self._core is None:
                return method(*args, **kwargs)
            self._core.await_readers_of_master_weights()
            before = self._sums()
            try:
                return self._later(inside(*args, **kwargs))
            finally:
                if self._core is not None and (not before or self._sums() != before):
                    self._core.publish_master_weights()

        return call

    def _later(self, result: Any) -> Any:
        """Returns the ``result`` of a method. If it is a generator, or a context manager made from one, wraps it.

        The code of a generator runs only in the generator's steps, so each step publishes.
        """
        if isgenerator(result):
            return self._steps(result)
        if isinstance(result, AbstractContextManager) and isgenerator(getattr(result, "gen", None)):
            result.gen = self._steps(result.gen)  # a context manager made by contextlib.contextmanager
        return result

    def _steps(self, generator: Generator) -> Generator:
        send, throw, close = (self.publishing(step) for step in (generator.send, generator.throw, generator.close))
        try:
            value = send(None)
            while True:
                try:
                    sent = yield value
                except GeneratorExit:
                    close()
                    raise
                except BaseException as error:
                    value = throw(error)
                else:
                    value = send(sent)
        except StopIteration as end:
            return end.value

    def _sums(self) -> list[int]:
        """Returns for each slice that has elements the sum of its elements, whose bits are read as integers."""
        slices = [param.detach() for group in self.optimizer.param_groups for param in group["params"]]
        return [int(each.view(torch.int32).sum(dtype=torch.int64)) for each in slices if each.numel() > 0]
