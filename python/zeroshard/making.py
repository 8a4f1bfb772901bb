"""Makes the run of a module and its optimizer: finds units, installs hooks, builds the core."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from torch import nn

from . import _C, shards
from .activations import Keeper
from .buffers import find_buffers, named
from .gathering import take_loaded_state_dicts
from .group_life import end_groups_with
from .groups import connect
from .half_load import half_loaded, refuse_half_loaded
from .hooks import Readers, install_hooks
from .low_bit import LowBit
from .materialize import materialize
from .messages import log
from .optimizer import Optimizer, OptimizerSetup
from .optimizer_states import describe_states, take_states
from .ownership import Ownership, drop_gradients, take_back, taking_over
from .parameter_check import ParameterCheck
from .run import Run
from .units import Unit, find_units, is_packed, named_leaves


def make_run(
    module: nn.Module, parsed: _C.ParsedConfig, setup: OptimizerSetup, optimizer: Optimizer, device: torch.device
) -> tuple[Run, Readers, Ownership]:
    """Makes a run, whose core takes over the module's parameters and the states of its optimizer. Collective.

    If it raises before all ranks have agreed on the new engine, an earlier engine that has the parameters does not
    change.
    """
    config = parsed.config
    leaves, lacking = _leaves_of(module, parsed)
    units = find_units(module, config.unit_classes, leaves)
    with taking_over(module) as take_over:
        core = _make_core(module, parsed, units, setup, optimizer, device, take_over)
    run = Run(
        module=module,
        device=device,
        parsed=parsed,
        units=units,
        core=core,
        optimizer=optimizer,
        trains=setup.trains,
        external=setup.inner if setup.external else None,
        parameter_check=ParameterCheck(module, units if setup.trains else []),
    )
    if core.keeps_tensors:
        run.keeper = Keeper(module, core)
        run.at_end.append(run.keeper.end)
    if lacking and run.rank == 0:  # not an error, because one configuration may be for several models
        log(f"zero_optimization.leaf_module: {type(module).__name__} has no module {', '.join(lacking)}")
    if setup.low_bit is not None and run.rank == 0:
        _tell(setup.low_bit)
    readers = install_hooks(module, units, core)
    readers.handles += take_loaded_state_dicts(module)
    ownership = Ownership(run, readers)
    if run.external is not None:
        _give_slices(run)
    take_states(run, setup)
    optimizer.hold_states()
    end_groups_with(core)
    return run, readers, ownership


def _tell(low_bit: LowBit) -> None:
    """Logs that a user's optimizer runs in the core, and which of its settings have no effect."""
    moments = "8-bit" if low_bit.moments == "int8" else low_bit.moments
    unused = f"; without effect: {', '.join(low_bit.without_effect)}" if low_bit.without_effect else ""
    log(f"{low_bit.name} runs in the core with {moments} moments{unused}")


def _leaves_of(module: nn.Module, parsed: _C.ParsedConfig) -> tuple[list[nn.Module], list[str]]:
    """Returns the leaf modules that the configuration names, and the configured names that the model does not have."""
    key = "zero_optimization.leaf_module."
    wanted = {path.removeprefix(key): json.loads(value) for path, value, _ in parsed.values if path.startswith(key)}
    return named_leaves(module, **wanted)


def _make_core(
    module: nn.Module,
    parsed: _C.ParsedConfig,
    units: list[Unit],
    setup: OptimizerSetup,
    optimizer: Optimizer,
    device: torch.device,
    take_over: Callable[[], None],
) -> _C.Engine:
    _keep_layout(module)
    buffers = find_buffers(module, device, parsed)
    left = half_loaded(module)

    def begin() -> None:
        refuse_half_loaded(left)
        take_over()
        for buffer in buffers:
            buffer.place()
        drop_gradients(module)

    options = _C.EngineOptions()
    options.config = parsed.config
    if setup.low_bit is not None and setup.low_bit.moments == "int8":
        options.store_moments_as_codes()
    wide = setup.low_bit.wide if setup.low_bit is not None else set()
    options.device = device
    options.optimizer = setup.type
    options.external_optimizer = type(setup.inner).__name__ if setup.external else ""
    options.agreement = [
        ("versions", _versions(module)),
        ("configuration", [(path, value) for path, value, _ in parsed.values]),
        ("states of the optimizer", describe_states(setup, units)),
        ("parameters that a failed load_checkpoint left of two checkpoints", left),
    ]
    options.buffers = named(buffers)
    options.param_groups = optimizer.options()
    definitions = []
    for unit in units:
        params = [
            _C.ParamDefinition(
                names=list(dict.fromkeys(param.names)),
                shape=list(param.tensors[0].shape),
                dtype=param.tensors[0].dtype,
                requires_grad=param.tensors[0].requires_grad and setup.trains,
                param_group=next((setup.group_of[id(t)] for t in param.tensors if id(t) in setup.group_of), -1),
                packed=is_packed(param.tensors[0]),
                keeps_fp32_moments=any(id(t) in wide for t in param.tensors),
            )
            for param in unit.params
        ]
        tensors = _tensors_of(module, unit, device, None if definitions else begin)
        definitions.append(_C.UnitDefinition(unit.name, params, unit.parent, tensors))
    size = parsed.config.shard_size
    purpose = f"process groups with {size} rank(s) for each replica of the states" if size else "process groups"
    return connect(parsed.config.timeout_ms, lambda groups: _C.Engine(definitions, options, **groups), purpose)


def _keep_layout(module: nn.Module) -> None:
    """Stops bitsandbytes from giving 4-bit weights another layout, which their shards would not have.

    Without this, a forward in evaluation on a CPU with AVX512-BF16 replaces the weights by ones for another kernel,
    which knows no gradients.
    """
    for layer in module.modules():
        if getattr(layer, "support_avx512bf16_for_cpu", False):
            layer.support_avx512bf16_for_cpu = False
            layer.state_dict()  # replaces the weights by those from before, if an earlier forward has replaced them


def _tensors_of(
    module: nn.Module, unit: Unit, device: torch.device, begin: Callable[[], None] | None
) -> Callable[[], list[list[torch.Tensor]]]:
    """Returns a function that gives the core the tensors of a unit. The core calls it after all ranks have agreed.

    The function first calls ``begin``, if there is one. It then makes the unit's parameters whole, if an earlier engine
    or ``deepspeed.zero.Init`` has sharded them or if they are on the meta device.
    """

    def tensors() -> list[list[torch.Tensor]]:
        if begin is not None:
            begin()
        take_back(tensor for param in unit.params for tensor in param.tensors)
        shards.take(tensor for param in unit.params for tensor in param.tensors)
        materialize(module, unit, device)
        return [list(param.tensors) for param in unit.params]

    return tensors


def _give_slices(run: Run) -> None:
    """Gives the user's optimizer flat slices of the master weights instead of whole parameters."""
    for group in run.external.param_groups:
        group["params"] = []
    for part in run.core.slices():
        if part.param_group >= 0:
            run.external.param_groups[part.param_group]["params"].append(nn.Parameter(part.master))


def _versions(module: nn.Module) -> list[tuple[str, str]]:
    """Returns the versions that can change results: of zeroshard, torch and the packages of the model's modules."""
    packages = {type(child).__module__.partition(".")[0] for child in module.modules()}
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in packages}
    found |= {"zeroshard": _C.__version__, "torch": torch.__version__}
    return sorted((name, str(version)) for name, version in found.items() if isinstance(version, str))
