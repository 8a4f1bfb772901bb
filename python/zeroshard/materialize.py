"""Models larger than one rank's memory: parameters on the meta device, given memory one unit at a time."""

from __future__ import annotations

from types import TracebackType

import torch
from torch import nn

from .units import Unit


class Init:
    """Context in which modules are built without memory for their parameters.

    Parameters that are registered inside live on the meta device; ``zeroshard.initialize`` gives them memory and
    initial values one unit at a time (by the model's own ``_init_weights`` or ``reset_parameters``), so that a rank
    never holds more than its shards and one unit. Buffers keep their values. Contexts may be nested. DeepSpeed's
    arguments are accepted for compatibility and have no effect.
    """

    def __init__(self, *args: object, enabled: bool = True, **kwargs: object) -> None:
        self._enabled = enabled
        self._register_parameter = None

    def __enter__(self) -> Init:
        if not self._enabled:
            return self
        original = nn.Module.register_parameter
        self._register_parameter = original

        def register_on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
            original(module, name, param)
            if param is not None and not param.is_meta:
                meta = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
                module._parameters[name] = meta

        nn.Module.register_parameter = register_on_meta
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._register_parameter is not None:
            nn.Module.register_parameter = self._register_parameter
            self._register_parameter = None


def materialize(model: nn.Module, unit: Unit, device: torch.device) -> None:
    """Gives the unit's meta parameters memory on ``device`` and initial values. Does nothing when there are none.

    Raises ``ValueError`` naming a module that cannot initialise its parameters.
    """
    pending = [param for param in unit.params if param.tensors[0].is_meta]
    if not pending:
        return
    owners: list[nn.Module] = []
    for param in pending:
        old = param.tensors[0]
        new = nn.Parameter(torch.empty(old.shape, dtype=old.dtype, device=device), requires_grad=old.requires_grad)
        for name, owner in zip(param.names, param.owners, strict=True):
            owner._parameters[name.rpartition(".")[2]] = new
            if not any(owner is other for other in owners):
                owners.append(owner)
        param.tensors = [new]
    with torch.no_grad():
        for owner in owners:
            _initialize(model, owner, unit.name)


def _initialize(model: nn.Module, module: nn.Module, unit: str) -> None:
    for candidate in (model, *model.modules()):
        if hasattr(candidate, "_init_weights"):
            candidate._init_weights(module)
            return
    if not hasattr(module, "reset_parameters"):
        raise ValueError(
            f"a {type(module).__name__} in unit '{unit}' was built on the meta device and has no reset_parameters(): "
            "give it one, or build the model outside of zeroshard.Init()"
        )
    module.reset_parameters()
