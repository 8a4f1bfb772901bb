"""Finds changes to parameters during training that would silently keep the parameters from learning."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from . import _C
from .messages import a_type
from .names import plain_name
from .units import Param, Unit

# The number of forwards between two walks through all modules. Walks are rare because they take longer than the other
# checks.
_WALK_EVERY = 64


class ParameterCheck:
    """Checks the parameters of ``model`` that are in ``units``.

    ``units`` must be empty if the model does not train. Nothing is checked in this case.
    """

    def __init__(self, model: nn.Module, units: Sequence[Unit]) -> None:
        self._model = model
        self._forwards = 0
        self._known = {id(tensor) for unit in units for param in unit.params for tensor in param.tensors}
        params = [(unit, param, tensor) for unit in units for param in unit.params for tensor in param.tensors]
        self._dtypes = [(tensor, tensor.dtype, _name(unit, param)) for unit, param, tensor in params]
        self._frozen = [(tensor, _name(unit, param)) for unit, param, tensor in params if not tensor.requires_grad]

    def check_forward(self) -> None:
        """Makes the checks of ``check()``. Once in many forwards, also looks for new parameters in ``model``."""
        self.check()
        if self._known and self._forwards % _WALK_EVERY == 0:
            self._check_known()
        self._forwards += 1

    def check(self) -> None:
        """Raises ``StateError`` if a parameter was cast, or requires a gradient that it did not require before."""
        if cast := [(tensor, dtype, name) for tensor, dtype, name in self._dtypes if tensor.dtype != dtype]:
            tensor, dtype, name = cast[0]
            raise _C.StateError(
                f"parameter {name}{_others(cast)} is {tensor.dtype} now, and was {dtype} after zeroshard.initialize: a "
                "cast gives it other memory than is updated. Cast the model before, or let the configuration say in "
                "what it trains (bf16, fp16)"
            )
        if unfrozen := [name for tensor, name in self._frozen if tensor.requires_grad]:
            raise _C.StateError(
                f"parameter {unfrozen[0]}{_others(unfrozen)} requires a gradient, but did not at zeroshard.initialize, "
                "which gave it neither gradients nor optimizer states: it would keep its value. Let it require one "
                "there, and freeze it afterwards (requires_grad_(False)) until it is to train; or freeze it again"
            )

    def _check_known(self) -> None:
        params = self._model.named_parameters(remove_duplicate=False)
        if added := [name for name, tensor in params if tensor.requires_grad and id(tensor) not in self._known]:
            raise _C.StateError(
                f"parameter '{plain_name(added[0])}'{_others(added)} came into the model after zeroshard.initialize, "
                "which gave it neither gradients nor optimizer states: it would keep its value. Change the model before"
            )


def _name(unit: Unit, param: Param) -> str:
    return f"'{param.names[0]}' of {a_type(param.owners[0])} in unit '{unit.name}'"


def _others(found: Sequence) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""
