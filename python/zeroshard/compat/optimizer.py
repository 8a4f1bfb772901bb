"""Defines the optimizer that scripts for DeepSpeed see."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from inspect import isfunction
from typing import Any

import torch

from .. import _C
from ..marks import made_with
from ..names import plain_name
from ..optimizer import Optimizer, OptimizerSetup, take_settings
from ..run import Run
from . import ops

_OTHERS = "engine.load_checkpoint loads states for any number of ranks and any stage"


class NoHooks:
    """Replaces the hooks that TRL removes before a generation and registers after it.

    The hooks of zeroshard stay, because they do nothing while the parameters are gathered.
    """

    class _NoModule:
        @staticmethod
        def named_parameters(recurse: bool = True) -> list:
            return []

        @staticmethod
        def ds_external_parameters() -> list:
            return []

    class _NoTrace:
        @staticmethod
        def is_invalid_trace() -> bool:
            return True

        @staticmethod
        def _invalidate_trace() -> None:
            """Does nothing, because zeroshard itself notices a new order of units."""

    def __init__(self) -> None:
        self.module = self._NoModule()
        self.forward_hooks: list = []
        self.backward_hooks: list = []
        self.param_coordinator = self._NoTrace()

    def _register_deepspeed_module(self, module: Any) -> None:
        """Does nothing, because zeroshard's hooks were never removed."""


class DeepSpeedOptimizer(Optimizer):
    """Is ``engine.optimizer``. Unlike zeroshard's own, its ``state_dict()`` returns this rank's part of the states."""

    def __init__(self, setup: OptimizerSetup) -> None:
        self._run: Callable[[], Run | None] = lambda: None
        self.parameter_offload = NoHooks()
        super().__init__(setup)

    def __init_subclass__(cls, **_: Any) -> None:
        """Does not call the method of the caller's class, because the caller has made no subclass (see ``_also``)."""

    def serve(self, run: Run) -> None:
        self._run = weakref.ref(run)

    @property
    def cur_scale(self) -> float:
        """The loss scale."""
        return self.loss_scale

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of this rank's part of the states, by parameter, and the settings of all param groups.

        ``load_state_dict`` accepts the result in a run with the same ranks and layout. It does not contain the weights.
        """
        run = self._living()
        updates = dict(run.core.updates())
        names = {id(tensor): param.names[0] for unit in run.units for param in unit.params for tensor in param.tensors}
        outside = {part.param: run.external.state.get(param, {}) for part, param in run.external_params()}
        states = {}
        for part in (part for part in run.core.slices() if part.param_group >= 0):
            own = outside.get(part.param) or dict(zip(self.state_names(part), part.moments, strict=False))
            states[part.param] = {
                "begin": part.begin,
                "numel": part.master.numel(),
                **{kind: _copied(value) for kind, value in own.items()},
            }
        members = made_with(run.external) if run.external is not None else [g["params"] for g in self.param_groups]
        groups = [
            {**_settings(group), "params": [names.get(id(param), "") for param in params]}
            for group, params in zip(self.param_groups, members, strict=True)
        ]
        return {
            "state": states,
            "param_groups": groups,
            "updates": updates,
            "rank": run.rank,
            "world_size": run.world_size,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads this rank's part of the states, the numbers of updates, and the settings of the param groups.

        For the part of another rank or of another layout, raises ``ValueError`` and changes nothing.
        """
        run = self._living()
        if not isinstance(state_dict, dict) or not {"state", "param_groups", "updates", "rank"} <= state_dict.keys():
            raise ValueError(f"optimizer.load_state_dict: this is no optimizer.state_dict() of zeroshard's: {_OTHERS}")
        saved = state_dict["rank"], state_dict["world_size"]
        if saved != (run.rank, run.world_size):
            raise ValueError(
                f"optimizer.load_state_dict: the part is rank {saved[0]}'s of {saved[1]}, this is rank {run.rank} of "
                f"{run.world_size}: {_OTHERS}"
            )
        parts = {part.param: part for part in run.core.slices() if part.param_group >= 0}
        if state_dict["state"].keys() != parts.keys():  # earlier versions wrote the names of compiled modules
            state_dict = state_dict | {key: _with_plain_names(state_dict[key]) for key in ("state", "updates")}
        _check_parts(state_dict, parts, len(self.param_groups))
        self._take(run, state_dict, parts)
        for name, updates in state_dict["updates"].items():
            run.core.set_updates(name, updates)
        take_settings(self.param_groups, [_settings(group) for group in state_dict["param_groups"]])

    def _take(self, run: Run, state_dict: dict[str, Any], parts: dict[str, _C.OptimizerSlice]) -> None:
        if run.external is not None:
            for part, param in run.external_params():
                own = {k: v for k, v in state_dict["state"][part.param].items() if k not in ("begin", "numel")}
                run.external.state[param] = {
                    kind: _copied(value).to(param.device) if isinstance(value, torch.Tensor) else value
                    for kind, value in own.items()
                }
            return
        for name, part in parts.items():
            for slot, kind in enumerate(self.state_names(part)[: len(part.moments)]):
                if kind in state_dict["state"][name]:
                    run.core.set_moment(name, slot, state_dict["state"][name][kind])

    def _living(self) -> Run:
        run = self._run()
        if run is None or run.has_ended:
            raise _C.StateError("the optimizer's engine has ended, and its states with it")
        return run


class DeepSpeedZeroOptimizer(DeepSpeedOptimizer):
    """The class of the optimizer at stages 1 and 2."""


class DeepSpeedZeroOptimizer_Stage3(DeepSpeedOptimizer):  # noqa: N801 - DeepSpeed's name
    """The class of the optimizer at stage 3."""


def make_front(setup: OptimizerSetup, parsed: _C.ParsedConfig) -> DeepSpeedOptimizer:
    """Makes an engine's optimizer, of a class with the name that DeepSpeed's optimizer would have.

    At stages 1 to 3 this is one of the two classes above. At stage 0 in fp32 it is a subclass with the name of the
    caller's class, or of the class of the configured optimizer. At stage 0 in 16 bits, or without training, it is
    ``DeepSpeedOptimizer``.
    """
    stage = parsed.config.stage
    if stage > 0:
        return (DeepSpeedZeroOptimizer_Stage3 if stage == 3 else DeepSpeedZeroOptimizer)(setup)
    if parsed.config.compute_dtype != "fp32" or not setup.trains:
        return DeepSpeedOptimizer(setup)
    if setup.inner is None:
        return _also(_CONFIGURED[setup.type])(setup)
    # A class whose param_groups is computed, and not an attribute, cannot take the param groups of another optimizer.
    has_groups = "param_groups" in vars(setup.inner)
    return _also(type(setup.inner))(setup) if has_groups else DeepSpeedOptimizer(setup)


_CONFIGURED = {
    _C.OptimizerType.ADAM: ops.FusedAdam,
    _C.OptimizerType.ADAMW: ops.FusedAdam,
    _C.OptimizerType.SGD: torch.optim.SGD,
    _C.OptimizerType.LION: ops.FusedLion,
    _C.OptimizerType.ADAGRAD: torch.optim.Adagrad,
    _C.OptimizerType.MUON: getattr(torch.optim, "Muon", torch.optim.Optimizer),
}


@functools.cache
def _also(named: type[torch.optim.Optimizer]) -> type[DeepSpeedOptimizer]:
    """Makes a subclass of DeepSpeedOptimizer and of ``named``, with the attributes of the caller's object.

    Does not call ``__init__`` of ``named``, because the new object has no states of its own. Methods, properties and
    ``with`` statements that ``named`` has and DeepSpeedOptimizer lacks act on the caller's object, because that object
    makes the updates.
    """
    own: dict[str, Any] = {"__getattr__": _get_of_inner, "__setattr__": _set_of_inner, "__delattr__": _delete_of_inner}
    for name in {name for each in named.__mro__ if each not in DeepSpeedOptimizer.__mro__ for name in vars(each)}:
        is_special = name.startswith("__") and not isfunction(getattr(named, name))
        if not is_special and name not in own and not hasattr(DeepSpeedOptimizer, name):
            own[name] = _of_inner(name)
    if hasattr(named, "__del__"):
        own["__del__"] = lambda front: None  # the caller's object has a ``__del__`` of its own
    return type(named.__name__, (DeepSpeedOptimizer, named), own)


def _of_inner(name: str) -> property:
    def get(front: DeepSpeedOptimizer) -> Any:
        inner = front.__dict__.get("_inner")
        return getattr(super(Optimizer, front) if inner is None else inner, name)

    return property(get, lambda front, value: setattr(front._inner, name, value), lambda f: delattr(f._inner, name))


def _has_inner(front: DeepSpeedOptimizer, name: str) -> bool:
    """Returns whether an attribute that the front's class lacks can be read from the caller's object.

    Private attributes can be read only if the caller's object itself has them.
    """
    inner = front.__dict__.get("_inner")
    if inner is None or name in front.__dict__ or name.startswith(("__", "_zeroshard")):
        return False
    return not name.startswith("_") or name in vars(inner)


def _get_of_inner(front: DeepSpeedOptimizer, name: str) -> Any:
    if not _has_inner(front, name):
        raise AttributeError(f"{type(front).__name__} of an engine has no attribute '{name}'", name=name, obj=front)
    return getattr(front._inner, name)


def _set_of_inner(front: DeepSpeedOptimizer, name: str, value: Any) -> None:
    if not hasattr(type(front), name) and _has_inner(front, name):
        setattr(front._inner, name, value)
    else:
        object.__setattr__(front, name, value)


def _delete_of_inner(front: DeepSpeedOptimizer, name: str) -> None:
    if not hasattr(type(front), name) and _has_inner(front, name):
        delattr(front._inner, name)
    else:
        object.__delattr__(front, name)


def _check_parts(state_dict: dict[str, Any], parts: dict[str, _C.OptimizerSlice], groups: int) -> None:
    states = state_dict["state"]
    if different := sorted(states.keys() ^ parts.keys()):
        raise ValueError(
            f"optimizer.load_state_dict: the parameters differ, '{different[0]}' is on one side only: {_OTHERS}"
        )
    if len(state_dict["param_groups"]) != groups:
        raise ValueError(
            f"optimizer.load_state_dict: the part has {len(state_dict['param_groups'])} param groups, the optimizer "
            f"{groups}: {_OTHERS}"
        )
    for name, part in parts.items():
        saved = states[name]
        if (saved["begin"], saved["numel"]) != (part.begin, part.master.numel()):
            raise ValueError(
                f"optimizer.load_state_dict: the part has elements {saved['begin']} to "
                f"{saved['begin'] + saved['numel']} of '{name}', this rank {part.begin} to "
                f"{part.begin + part.master.numel()}: {_OTHERS}"
            )


def _with_plain_names(values: dict[str, Any]) -> dict[str, Any]:
    return {plain_name(name): value for name, value in values.items()}


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: _copied(value) for name, value in group.items() if name != "params"}


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
