"""Connects a module with its engine until another engine takes the module over or the engine ends."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn

from . import _C
from .exit_code import end_with_code_1
from .half_load import describe, half_loaded
from .hooks import Readers
from .marks import STEP_OF_USER, Mark, mark, mark_optimizer, owners_of, unmark, unmark_optimizer
from .messages import log
from .names import plain_name
from .printing import show_sharded_parameters
from .publishing import Publishing
from .run import Run
from .together import together

# Methods that the user's optimizer gets from the engine's optimizer, because the user's optimizer itself has neither
# gradients nor whole states.
_BORROWED = ("zero_grad", "add_param_group", "state_dict", "load_state_dict")


class Ownership:
    """The hooks in a module, the marks on its parameters and the methods of the user's optimizer that an engine owns.

    The module's hooks keep this object alive, and this object keeps the core alive, even after the engine object is
    gone.
    """

    def __init__(self, run: Run, readers: Readers) -> None:
        self._run = weakref.ref(run)
        self.core: _C.Engine | None = run.core
        self._tensors = [[tensor for param in unit.params for tensor in param.tensors] for unit in run.units]
        self.readers = readers
        self.readers.ownership = self
        self._sharded = [not run.core.is_replicated(index) for index in range(len(run.units))]
        self._publishing: Publishing | None = None  # set for an external optimizer, whose groups get slices
        self.params_of_groups = [list(group["params"]) for group in run.optimizer.param_groups]
        self._inner = run.optimizer.optimizer
        # The user's own step(). For an external optimizer, methods that this step() calls publish nothing.
        self.step_of_user = None if self._inner is None else self._inner.step
        self._own_methods: dict[str, Any] = {}  # attributes of the optimizer that `_borrowed` replaces until detach()
        self._borrowed: dict[str, Any] = {}  # methods that are attributes of the user's optimizer until detach()
        if self._inner is not None:
            self._borrowed = {name: getattr(run.optimizer, name) for name in _BORROWED}
            own_step = self._inner.step
            if run.external is not None:
                self._publishing = publishing = Publishing(run.external, run.core)
                publishing.begin()
                self.step_of_user, own_step = publishing.inside(own_step), publishing.publishing(own_step)
                self._borrowed |= publishing.methods()
            self._borrowed["step"] = _step_in_place_of(self._inner, own_step, run)
            own = vars(self._inner)
            self._own_methods = {name: own[name] for name in self._borrowed if name in own}
            own.update(self._borrowed)
            mark_optimizer(self._inner, self)
        self._release_states = run.optimizer.release_states
        show_sharded_parameters()
        core, mine = weakref.ref(run.core), weakref.ref(self)  # weak, because the core keeps the tensors alive
        for index, unit in enumerate(run.units):
            for position, param in enumerate(unit.params):
                for tensor in param.tensors:
                    mark(tensor, Mark(core, index, position, mine))

    def detach(self, why: str) -> None:
        """Removes the hooks, and gives the user's optimizer its own methods and whole parameters back.

        After that, every call of the engine raises an error with the reason ``why``.
        """
        self.readers.remove()
        if self._inner is not None:
            own = vars(self._inner)
            for name in [name for name, method in self._borrowed.items() if own.get(name) == method]:
                del own[name]
                if name in self._own_methods:
                    own[name] = self._own_methods[name]
            unmark_optimizer(self._inner)
            self._release_states()
            self._inner = self.step_of_user = None
        if self._publishing is not None:
            self._publishing.end()
            for group, params in zip(self._publishing.optimizer.param_groups, self.params_of_groups, strict=True):
                group["params"] = params
            self._publishing = None
        if (run := self._run()) is not None:
            run.end(why)

    @property
    def run(self) -> Run | None:
        """Returns the engine's run, or None if the engine object is gone."""
        return self._run()

    @property
    def has_sharded_units(self) -> bool:
        """Returns whether there are units left whose parameters are spread over ranks."""
        return any(sharded and tensors for sharded, tensors in zip(self._sharded, self._tensors, strict=True))

    def check_can_give(self) -> None:
        """Raises ``StateError`` if sharded parameters cannot be gathered any more. Collective if some are sharded."""
        if self.core is None or not self.has_sharded_units:
            return
        try:
            self.core.together(lambda: None, "zeroshard.initialize")
        except _C.CommError as error:
            raise _C.StateError(
                "zeroshard.initialize: the module's parameters are shards of an engine whose ranks cannot reach one "
                "another any more, and nobody can gather them. Make the model anew, and load the newest checkpoint by "
                f"the engine that has it. What happened: {error}"
            ) from error

    def return_unit(self, index: int) -> None:
        """Turns a unit's parameters into ordinary tensors, unless that was done. Collective if they are sharded."""
        if self.core is None or not self._tensors[index]:
            return
        self.core.return_unit(index)
        for tensor in self._tensors[index]:
            unmark(tensor)
        self._tensors[index] = []

    def publish(self) -> None:
        """Publishes a delayed update, because no later step will publish it. Errors are only logged. Collective."""
        if self.core is None:
            return
        try:
            self.core.publish_update(ends=True)
        except _C.Error as error:
            log(f"the parameters do not have the last step's update: {error}")

    def end(self, *, gather: bool = True) -> None:
        """Calls ``return_unit`` for all remaining units, and frees the core. Collective with ``gather``.

        Without ``gather``, parameters lose their values if their unit is sharded, or if there is no memory for it. With
        ``gather`` a lack of memory raises ``MemoryError``.
        """
        for index, sharded in enumerate(self._sharded):
            try:
                if gather or not sharded:
                    self.return_unit(index)
            except MemoryError as error:
                if gather:
                    raise
                log(f"a unit's parameters have no values any more: {error}")
        for tensor in (tensor for tensors in self._tensors for tensor in tensors):
            unmark(tensor)
        self._tensors = [[] for _ in self._tensors]
        self.core = None


def _step_in_place_of(optimizer: torch.optim.Optimizer, own: Callable, run: Run) -> MethodType:
    """Returns a bound ``step()`` that calls the engine's optimizer.

    It calls ``own`` instead if the user has set gradients of an external optimizer's slices.
    """
    front, outside, replaced = run.optimizer, run.external is not None, optimizer.step

    def step(_: Any, closure: Callable | None = None) -> Any:
        params = (param for group in optimizer.param_groups for param in group["params"]) if outside else ()
        if any(param.grad is not None for param in params):
            return own(closure)
        return front.step(closure)

    step._wrapped_by_lr_sched = True  # keeps torch's schedulers from wrapping it; the engine counts steps for them
    setattr(step, STEP_OF_USER, replaced)
    return MethodType(step, optimizer)


def take_back(params: Iterable[torch.Tensor]) -> None:
    """Turns parameters that another engine has into ordinary tensors, with all other parameters of their units.

    Publishes that engine's delayed update first. Collective if the parameters are sharded.
    """
    for owner, unit in owners_of(params):
        owner.publish()
        owner.return_unit(unit)


def drop_gradients(module: nn.Module) -> None:
    """Drops gradients that parameters have before the engine exists, because its first step would add them."""
    with_gradient = [(name, param) for name, param in module.named_parameters() if param.grad is not None]
    for _, param in with_gradient:
        param.grad = None
    if with_gradient:
        log(
            f"warning: zeroshard.initialize drops the gradient of '{plain_name(with_gradient[0][0])}' (and of "
            f"{len(with_gradient) - 1} more): no update had used it"
        )


@contextmanager
def taking_over(module: nn.Module) -> Iterator[Callable[[], None]]:
    """Surrounds the code that makes an engine, and ends the earlier engines that own the module's parameters.

    Collective. Yields a function that detaches the earlier engines. The caller must call it after all ranks have agreed
    to make the new engine. The end of the context returns the units that the new engine has not taken. An exception
    before the call leaves the engines unchanged. After a later exception, sharded parameters have no values.
    """
    owners = list(dict.fromkeys(owner for owner, _ in owners_of(module.parameters())))
    begun = False

    def begin() -> None:
        nonlocal begun
        for owner in owners:
            owner.check_can_give()
        begun = True
        for owner in owners:
            if (error := _wait_for_save(owner.core)) is not None:
                log(f"a checkpoint of the engine before was not saved: {error}")
                end_with_code_1()
            owner.detach(
                "this engine's module belongs to another engine now: zeroshard.initialize was called with it again, "
                "which takes the parameters over as they are. Use the engine that it returned"
            )

    try:
        yield begin
    except BaseException:  # the other ranks can be anywhere, so this rank gathers nothing
        for owner in owners if begun else []:
            owner.end(gather=False)
        raise
    for owner in owners:
        owner.end()


def destroy(run: Run, ownership: Ownership) -> None:
    """Ends the engine as ``Engine.destroy`` describes."""
    if run.has_ended:
        return
    at_peace = sys.exc_info()[0] is None  # while an exception is handled, the other ranks can be anywhere
    gather = at_peace and (not ownership.has_sharded_units or _fits(run))
    unsaved = _wait_for_save(run.core) if at_peace else None
    left = half_loaded(run.module) if gather or not ownership.has_sharded_units else []
    if left and run.rank == 0:
        log(f"warning: destroy: {describe(left)}")
    ownership.detach("this engine was destroyed (engine.destroy()): make another one with zeroshard.initialize")
    if at_peace:
        ownership.publish()
    try:
        ownership.end(gather=gather)
    except (_C.CommError, MemoryError) as error:
        log(f"destroy: the sharded parameters cannot be gathered, and have no values any more: {error}")
        ownership.end(gather=False)
    if unsaved is not None:
        raise unsaved


def _wait_for_save(core: _C.Engine) -> _C.Error | None:
    """Waits for a background save. Returns its error if nobody has reported it yet, else None."""
    try:
        core.wait_for_checkpoint()
    except _C.Error as error:
        return error
    return None


def _fits(run: Run) -> bool:
    """Returns whether every rank has memory for the whole model. The answer is the same on all ranks. Collective.

    Returns False, too, if the ranks cannot reach one another. Logs the reason for False.
    """
    needed = sum(param.tensors[0].nbytes for unit in run.units for param in unit.params)

    def check() -> None:
        if needed > (free := _free_bytes(run.device)):
            raise ValueError(
                f"the whole model takes {needed} bytes, and {free} are free for this rank: the parameters have no "
                "values from here on. Save them before (save_checkpoint, save_16bit_model)"
            )

    try:
        together(run, check, "destroy")
    except _C.ValueError as error:
        log(f"destroy: {error}")
        return False
    except _C.CommError as error:  # an earlier collective has failed, so no rank can be reached
        log(f"destroy: the sharded parameters cannot be gathered, and have no values any more: {error}")
        return False
    return True


def _free_bytes(device: torch.device) -> int:
    if device.type != "cpu":
        return torch.get_device_module(device).mem_get_info(device)[0]
    ranks = max(1, _C.rank_environment().local_world_size)
    with open("/proc/meminfo") as file:
        available = next(line for line in file if line.startswith("MemAvailable"))
    return int(available.split()[1]) * 1024 // ranks
