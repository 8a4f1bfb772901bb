"""Defines the optimizer that users see. It has torch's ``param_groups``, while its states are sharded."""

from __future__ import annotations

import inspect
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

from . import _C
from .low_bit import LowBit, kind_of, known_base, plain_states, read_low_bit, settings_of, updates_as
from .marks import made_with, mark_of, step_of
from .messages import a_type
from .names import plain_name

_MUON = _C.OptimizerType.MUON

# The settings that an optimizer of the configuration reads besides learning rate and weight decay. They have torch's
# names, because schedulers of torch use these names. A scheduler that cycles momentum changes betas, or momentum if
# there are no betas.
_ADAM = ("betas", "eps", "bias_correction", "decoupled_weight_decay")
_SETTINGS = {
    _C.OptimizerType.ADAM: _ADAM,
    _C.OptimizerType.ADAMW: _ADAM,
    _C.OptimizerType.SGD: ("momentum", "dampening", "nesterov"),
    _C.OptimizerType.LION: ("betas",),
    _C.OptimizerType.ADAGRAD: ("eps", "lr_decay"),
}

# The states that the core keeps itself, in the core's order and with torch's names.
STATE_NAMES = {
    _C.OptimizerType.ADAM: ("exp_avg", "exp_avg_sq"),
    _C.OptimizerType.ADAMW: ("exp_avg", "exp_avg_sq"),
    _C.OptimizerType.SGD: ("momentum_buffer",),
    _C.OptimizerType.LION: ("exp_avg",),
    _C.OptimizerType.ADAGRAD: ("sum",),
    _MUON: ("momentum_buffer",),  # of matrices; other parameters have the states of AdamW
}

# Elementwise optimizers. They compute the same update for flat shards as for whole parameters.
_ELEMENTWISE = {"Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}
# Optimizers whose updates the core can compute itself, each with the core's type of optimizer. Subclasses that do not
# override step() count, too.
_IN_CORE: dict[type[torch.optim.Optimizer], _C.OptimizerType] = {
    torch.optim.AdamW: _C.OptimizerType.ADAMW,
    torch.optim.Adam: _C.OptimizerType.ADAM,
    torch.optim.SGD: _C.OptimizerType.SGD,
    torch.optim.Adagrad: _C.OptimizerType.ADAGRAD,
}
if hasattr(torch.optim, "Muon"):  # since torch 2.9
    _IN_CORE[torch.optim.Muon] = _MUON
# Optimizers that are not elementwise, and why. With one flat slice of each parameter they would compute wrong results.
_WHOLE = {
    "Adafactor": "keeps its second moments by row and column of whole matrices",
    "CPUOffloadOptimizer": "makes an optimizer of its own for each whole parameter",
    "LBFGS": "needs a closure, and the gradients of all parameters at once",
    "Muon": "orthogonalises whole matrices",
    "SparseAdam": "needs sparse gradients",
}


@dataclass
class OptimizerSetup:
    """The facts about the optimizer that the engine needs before it takes over the parameters."""

    param_groups: list[dict[str, Any]]
    group_of: dict[int, int]  # id(parameter) -> index of its param group
    type: _C.OptimizerType
    trains: bool = True
    inner: torch.optim.Optimizer | None = None  # the user's optimizer
    external: bool = False  # `inner` computes the updates itself
    is_elementwise: bool = True  # False: not known to be elementwise
    # The states of each parameter that has any.
    states: list[tuple[torch.Tensor, dict[str, Any]]] = field(default_factory=list)
    defaults: dict[str, Any] = field(default_factory=dict)
    low_bit: LowBit | None = None  # set if the optimizer is of bitsandbytes or torchao

    def plain(self, state: dict[str, Any], only_shapes: bool = False) -> dict[str, Any]:
        """Returns the states of a parameter. Those of bitsandbytes and torchao get the core's names and are decoded."""
        return state if self.low_bit is None else plain_states(state, only_shapes)


def make_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Callable | None,
    model_parameters: Iterable | None,
    parsed: _C.ParsedConfig,
) -> OptimizerSetup:
    """Chooses how parameters are updated. Raises ``ValueError`` for an optimizer that cannot run over shards."""
    groups = (
        list(model_parameters) if model_parameters is not None else [p for p in model.parameters() if p.requires_grad]
    )
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        if not callable(optimizer):
            raise ValueError(f"optimizer is {a_type(optimizer)}: pass a torch.optim.Optimizer or a callable")
        optimizer = optimizer(groups)
    if optimizer is not None:
        return _from_torch(optimizer, model, parsed)
    return _from_config(groups, model, parsed.config)


def _from_config(groups: list, model: nn.Module, config: _C.Config) -> OptimizerSetup:
    if config.has_optimizer and config.optimizer_type() == _MUON:
        return _muon_from_config(groups, model, config)
    options = config.param_group_options()
    values = {"betas": (options.beta1, options.beta2)} | {name: getattr(options, name) for name in options.FIELDS}
    defaults = {name: values[name] for name in ("lr", "weight_decay", *_SETTINGS[config.optimizer_type()])}
    if groups and not isinstance(groups[0], dict):
        groups = [{"params": groups}]
    param_groups = [{**defaults, **group, "params": [_unnamed(p) for p in group["params"]]} for group in groups]
    group_of = _index(param_groups, model, "model_parameters has", "pass parameters of the model that is passed")
    return OptimizerSetup(
        param_groups, group_of, config.optimizer_type(), trains=config.has_optimizer, defaults=defaults
    )


def _muon_from_config(groups: list, model: nn.Module, config: _C.Config) -> OptimizerSetup:
    """Makes Muon from the configuration as DeepSpeed does: splits each param group into matrices and other parameters.

    Each part takes over those settings of the group that Muon has for the part. Frozen parameters are left out.
    """
    if not groups or not isinstance(groups[0], dict):
        groups = [{"params": groups}]
    names: dict[int, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(param), []).append(plain_name(name))
    matrices, others = (config.muon_options(of_matrices) for of_matrices in (True, False))
    halves = (
        ("muon", True, _settings_of(matrices, "lr", "weight_decay", "momentum", "nesterov")),
        ("adam", False, _settings_of(others, "lr", "weight_decay", "eps") | {"betas": (others.beta1, others.beta2)}),
    )
    halves[0][2]["ns_method"] = "gram" if matrices.ns_gram else "standard"
    param_groups = []
    for index, group in enumerate(groups):
        params = [_unnamed(param) for param in group["params"]]
        prefix = group.get("name") or (f"group{index}" if len(groups) > 1 else "")
        for label, use_muon, settings in halves:
            own = [p for p in params if _C.is_hidden_matrix(names.get(id(p), []), list(p.shape)) == use_muon]
            own = [p for p in own if p.requires_grad]
            if own:
                given = {key: group[key] for key in settings if key in group}
                name = f"{prefix}-{label}-params".removeprefix("-")
                param_groups.append({**settings, **given, "params": own, "use_muon": use_muon, "name": name})
    group_of = _index(param_groups, model, "model_parameters has", "pass parameters of the model that is passed")
    return OptimizerSetup(param_groups, group_of, _MUON)


def _settings_of(options: _C.ParamGroupOptions, *names: str) -> dict[str, Any]:
    return {name: getattr(options, name) for name in names}


def _unnamed(param: torch.Tensor | tuple[str, torch.Tensor]) -> torch.Tensor:
    return param[1] if isinstance(param, tuple) else param


def _from_torch(optimizer: torch.optim.Optimizer, model: nn.Module, parsed: _C.ParsedConfig) -> OptimizerSetup:
    advice = "make it from model.parameters() of the model that is passed, or pass a callable that makes it"
    params = made_with(optimizer)
    groups = [{**group, "params": own} for group, own in zip(optimizer.param_groups, params, strict=True)]
    group_of = _index(groups, model, "the optimizer has", advice)
    kind = _kind_in_core(optimizer)
    low_bit = None
    if kind is not None and known_base(optimizer) is not None:
        low_bit = read_low_bit(optimizer, chain.from_iterable(params), parsed)
    elif any(group.get("amsgrad") or group.get("initial_accumulator_value") for group in optimizer.param_groups):
        kind = None
    external = kind is None
    for name in (base.__name__ for base in type(optimizer).__mro__):
        if name in _WHOLE and external:
            raise ValueError(
                f"{name} cannot run over shards: it {_WHOLE[name]}. Choose an elementwise one, of "
                f"{sorted(_ELEMENTWISE)}: at stages 1 to 3 each rank keeps its share of the states alone"
            )
    if external:
        _check_can_be_saved(optimizer)
    states = {} if isinstance(optimizer.state, _StatesOfTheCore) else optimizer.state
    is_elementwise = not external or _is_elementwise(optimizer)
    if not is_elementwise and not parsed.config.allow_untested_optimizer:
        name = type(optimizer).__name__
        if not _steps_as(optimizer, type(optimizer)):
            name += ", of which step() was replaced,"
        raise ValueError(
            f"{name} is not known to be elementwise, and only elementwise optimizers give the same result over shards; "
            f"known are {sorted(_ELEMENTWISE)}. If it is, set zero_allow_untested_optimizer to true"
        )
    return OptimizerSetup(
        optimizer.param_groups,
        group_of,
        kind if kind is not None else _C.OptimizerType.ADAMW,
        inner=optimizer,
        external=external,
        is_elementwise=is_elementwise,
        states=[(p, states[p]) for own in params for p in own if states.get(p)],
        defaults=optimizer.defaults,
        low_bit=low_bit,
    )


def _check_can_be_saved(optimizer: torch.optim.Optimizer) -> None:
    """Raises ``ValueError`` if an external optimizer is a low-bit one of torchao, because it cannot be saved."""
    for base in type(optimizer).__mro__:
        if base.__module__.startswith("torchao.") and base.__name__.endswith(("8bit", "4bit", "Fp8")):
            raise ValueError(
                f"{base.__name__} of torchao keeps its states 'exp_avg' and 'exp_avg_sq' in tensors of a class of its "
                "own, which a checkpoint cannot hold: choose AdamW8bit of torchao or bitsandbytes (Trainer: "
                "optim='adamw_8bit'), whose work zeroshard does with its own 8-bit moments, or AdamW"
            )


def runs_in_core(kind: _C.OptimizerType) -> Callable[[type], type]:
    """Returns a decorator for an optimizer class whose ``step()`` the core can do."""

    def note(optimizer_type: type) -> type:
        _IN_CORE[optimizer_type] = kind
        return optimizer_type

    return note


def _kind_in_core(optimizer: torch.optim.Optimizer) -> _C.OptimizerType | None:
    """Returns the core's type for an optimizer, or None if the optimizer updates in a way of its own."""
    known = next((base for base in type(optimizer).__mro__ if _type_in_core(base) is not None), None)
    if known is None or not _steps_as(optimizer, known):
        return None
    return _type_in_core(known) if kind_of(known) is None or updates_as(optimizer, known) else None


def _type_in_core(optimizer_type: type) -> _C.OptimizerType | None:
    kind = _IN_CORE.get(optimizer_type)
    return kind_of(optimizer_type) if kind is None else kind


def _is_torchs(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether the optimizer's ``step()`` is torch's own, or one that runs in the core."""
    bases = type(optimizer).__mro__
    known = [each for each in bases if _type_in_core(each) is not None or each.__module__.startswith("torch.optim")]
    return bool(known) and known[0] is not torch.optim.Optimizer and _steps_as(optimizer, known[0])


def _is_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether the optimizer has the ``step()`` of a class that is in ``_ELEMENTWISE`` or runs in the core.

    If it returns False, nothing is known about the optimizer.
    """
    known = [
        base for base in type(optimizer).__mro__ if _type_in_core(base) is not None or base.__name__ in _ELEMENTWISE
    ]
    return bool(known) and _steps_as(optimizer, known[0])


def _steps_as(optimizer: torch.optim.Optimizer, known: type) -> bool:
    """Returns whether the optimizer has the ``step()`` of ``known``, and no subclass or object replaces it.

    The function looks through wrappers: torch wraps the ``step()`` of every class that has an instance, and a scheduler
    wraps the ``step()`` of its optimizer.
    """
    step = inspect.unwrap(step_of(optimizer))
    return getattr(step, "__func__", step) is inspect.unwrap(known.step)


def _index(param_groups: list[dict[str, Any]], model: nn.Module, who: str, advice: str) -> dict[int, int]:
    """Returns a dict from id(parameter) to the index of the parameter's group.

    Raises ``ValueError`` for a parameter of another model or in two groups.
    """
    names = {id(param): plain_name(name) for name, param in model.named_parameters()}
    group_of: dict[int, int] = {}
    strangers = 0
    for index, group in enumerate(param_groups):
        for param in group["params"]:
            if group_of.setdefault(id(param), index) != index:
                raise ValueError(f"{who} '{names.get(id(param), 'a parameter')}' in two param groups")
            strangers += id(param) not in names
    if strangers:
        raise ValueError(f"{who} {strangers} parameters that are not the model's: {advice}")
    return group_of


@contextmanager
def settings_kept(param_groups: list[dict[str, Any]]) -> Iterator[None]:
    """Restores the settings of param groups after an exception inside, because a new scheduler can have set some."""
    before = [{name: _kept(value) for name, value in group.items() if name != "params"} for group in param_groups]
    try:
        yield
    except BaseException:
        for group, settings in zip(param_groups, before, strict=True):
            params = group["params"]
            group.clear()
            group.update(params=params, **{name: restored() for name, restored in settings.items()})
        raise


def _kept(value: Any) -> Callable[[], Any]:
    """Returns a function that returns ``value`` as it is now.

    If ``value`` is a tensor, the returned function first writes the tensor's present values back into it.
    """
    values = value.clone() if isinstance(value, torch.Tensor) else None
    return lambda: value if values is None else value.copy_(values)


def take_settings(param_groups: list[dict[str, Any]], saved: list[dict[str, Any]]) -> None:
    """Gives each group its settings in ``saved``.

    If a group already has a one-element tensor for a setting, writes the saved number into this tensor. If several
    groups share the tensor, it gets the first group's number, and a group with another number gets a tensor of its own.
    """
    given: dict[int, float] = {}
    for group, settings in zip(param_groups, saved, strict=True):
        for name, value in settings.items():
            own = group.get(name)
            if not (isinstance(own, torch.Tensor) and own.numel() == 1 and _is_number(value)):
                group[name] = value
            elif given.setdefault(id(own), float(value)) == float(value):
                own.fill_(float(value))
            else:
                group[name] = torch.full_like(own, float(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def group_options(group: dict[str, Any], kind: _C.OptimizerType) -> _C.ParamGroupOptions:
    """Returns the current hyper-parameters of a param group."""
    options = _C.ParamGroupOptions()
    options.decoupled_weight_decay = kind in (_C.OptimizerType.ADAMW, _MUON)
    values = dict(group)
    if kind == _MUON:
        values |= _muon_values(group)
    if "betas" in group:  # torch's name for beta1 and beta2
        values["beta1"], values["beta2"] = group["betas"]
    for name in options.FIELDS:
        if name in values:
            setattr(options, name, type(getattr(options, name))(values[name]))
    return options


def _muon_values(group: dict[str, Any]) -> dict[str, Any]:
    """Returns the core's settings for a param group of Muon. Raises ``ValueError`` for values that the core lacks.

    A group without ``use_muon`` is one of ``torch.optim.Muon``, whose groups have only matrices.
    """
    if not group.get("use_muon", True):
        return {"use_muon": False}
    method = group.get("ns_method", "standard")
    if method not in ("gram", "standard"):
        raise ValueError(f"ns_method is {method!r}: Muon orthogonalises by 'gram' or 'standard'")
    rate = group.get("adjust_lr_fn")
    if rate not in (None, "original", "match_rms_adamw"):
        raise ValueError(f"adjust_lr_fn is {rate!r}: Muon has 'original' and 'match_rms_adamw'")
    steps, coefficients = group.get("ns_steps", 5), group.get("ns_coefficients", (3.4445, -4.7750, 2.0315))
    if not 0 <= steps < 100:
        raise ValueError(f"ns_steps is {steps}: Muon takes 0 to 99 steps")
    if len(coefficients) != 3:
        raise ValueError(f"ns_coefficients is {coefficients!r}: Muon has three")
    values = dict(zip(("ns_a", "ns_b", "ns_c"), coefficients, strict=True))
    return values | {
        "use_muon": True,
        "nesterov": group.get("nesterov", True),
        "ns_gram": method == "gram",
        "ns_steps": steps,
        "eps": group.get("eps", 1e-7),
        "rate_by_rms": rate == "match_rms_adamw",
    }


def _refuse_states(*_: Any, **__: Any) -> NoReturn:
    raise _C.StateError(
        "optimizer.state has no states of whole parameters, because each rank has a part of them: "
        "zeroshard.get_optimizer_state(param, name) reads a state of a parameter, and "
        "zeroshard.set_optimizer_state(param, name, values) sets it"
    )


def _copied_as_new(_: dict) -> tuple:
    """Makes ``copy`` and ``pickle`` create an ordinary dict of states, which is empty."""
    return defaultdict, (dict,)


def state_names(kind: _C.OptimizerType, group: dict[str, Any]) -> tuple[str, ...]:
    """Returns the names of the states that the core keeps for parameters of a param group."""
    is_other = kind == _MUON and not group.get("use_muon", True)
    return STATE_NAMES[_C.OptimizerType.ADAMW if is_other else kind]


class _StatesOfTheCore(dict):
    """The ``state`` of an optimizer whose states are in the core. Reading or changing the dict is an error."""

    __missing__ = __contains__ = __iter__ = __len__ = __bool__ = __reversed__ = _refuse_states
    __setitem__ = __delitem__ = __or__ = __ior__ = _refuse_states
    get = keys = values = items = copy = clear = pop = popitem = setdefault = update = _refuse_states
    __reduce__ = _copied_as_new


class _StatesOfSlices(defaultdict):
    """The ``state`` of an external optimizer. It has states of slices, and raises for whole parameters."""

    __reduce__ = _copied_as_new

    def __missing__(self, param: torch.Tensor) -> dict:
        if mark_of(param) is not None:
            _refuse_states()
        return super().__missing__(param)

    def __contains__(self, param: object) -> bool:
        return super().__contains__(param) or (mark_of(param) is not None and _refuse_states())

    def __setitem__(self, param: torch.Tensor, states: dict) -> None:
        if mark_of(param) is not None:
            _refuse_states()
        super().__setitem__(param, states)


class Optimizer(torch.optim.Optimizer):
    """Is the engine's optimizer. Schedulers change its ``param_groups``.

    If there is an optimizer of the user, both share the ``param_groups``. ``engine.step()`` updates the parameters and
    clears the gradients. The optimizer's own ``step()`` also updates if there are gradients that no update has used,
    but it steps no scheduler. ``zero_grad()`` is ``engine.zero_grad()``. While an engine uses an optimizer of the user,
    that optimizer has these methods, too. Each update calls the step hooks of both.

    The states are sharded. ``state`` can only be read if the user's own optimizer makes the updates.
    """

    def __init__(self, setup: OptimizerSetup) -> None:
        # Does not call Optimizer.__init__, because it would copy the dicts, but schedulers of the user's optimizer have
        # the originals.
        self.param_groups = setup.param_groups
        self.defaults = setup.defaults
        self.overflow = False
        self.loss_scale = 1.0
        self._kind = setup.type
        # A function that returns the settings of a param group that the core reads. None if the user's optimizer makes
        # the updates.
        self._settings_of = None if setup.external else dict if setup.low_bit is None else settings_of
        # setup.is_elementwise is also true for other packages' classes with a name of torch's, such as the 8-bit AdamW
        # of bitsandbytes. So this also checks where step() comes from.
        self._is_elementwise = setup.is_elementwise and (setup.inner is None or _is_torchs(setup.inner))
        self._engine: Callable[[], Any] = lambda: None
        self._states = _StatesOfTheCore()
        # This object shares its hooks with the user's optimizer, so that hooks on either are called.
        self._optimizer_step_pre_hooks = getattr(setup.inner, "_optimizer_step_pre_hooks", OrderedDict())
        self._optimizer_step_post_hooks = getattr(setup.inner, "_optimizer_step_post_hooks", OrderedDict())
        self._inner = setup.inner  # last, because a subclass can pass later assignments on to the user's optimizer

    def belong_to(self, engine: Any) -> None:
        """Connects to ``engine``, which has ``zero_grad`` and ``_update``.

        The engine can be destroyed before this object.
        """
        self._engine = weakref.ref(engine)

    @property
    def _outside(self) -> bool:
        return self._settings_of is None

    @property
    def state(self) -> dict:
        return self._inner.state if self._outside else self._states

    @state.setter
    def state(self, value: Any) -> None:
        _refuse_states()

    def hold_states(self) -> None:
        """Makes the ``state`` of the user's optimizer raise for whole parameters.

        If the optimizer is not external, every use of its ``state`` raises. An external optimizer keeps the states of
        its slices in its ``state``, so only whole parameters raise there. If an external optimizer's ``state`` is of
        another class than torch's, does nothing.
        """
        if self._outside and type(self._inner.state) is defaultdict:
            self._inner.state = _StatesOfSlices(dict, self._inner.state)
        elif self._inner is not None and not self._outside:
            self._inner.state = self._states

    def release_states(self) -> None:
        """Leaves the user's optimizer without states, because the engine ends."""
        if self._inner is not None:
            self._inner.state = defaultdict(dict)

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The user's own optimizer, or None."""
        return self._inner

    @property
    def name(self) -> str:
        """Returns the name of the external optimizer's class, or of the core's own optimizer."""
        return type(self._inner).__name__ if self._outside else self._kind.name

    def state_names(self, part: _C.OptimizerSlice) -> tuple[str, ...]:
        """Returns the names of the states that the core keeps for a slice, which are none for an external optimizer."""
        return () if self._outside else state_names(self._kind, self.param_groups[part.param_group])

    @property
    def is_elementwise(self) -> bool:
        """Returns whether an update of flat shards is known to equal the update of whole parameters."""
        return self._is_elementwise

    def rates(self) -> list[float]:
        """Returns the learning rate of each param group."""
        return [float(group["lr"]) for group in self.param_groups]

    def options(self) -> list[_C.ParamGroupOptions]:
        """Returns the hyper-parameters of each param group, or default ones for groups of an external optimizer."""
        if self._outside:
            return [_C.ParamGroupOptions() for _ in self.param_groups]
        return [group_options(self._settings_of(group), self._kind) for group in self.param_groups]

    def outside_rates(self) -> list[_C.ParamGroupOptions]:
        """Returns the learning rates of an external optimizer for comparison among ranks. A group may have none."""
        rates = [group.get("lr") for group in self.param_groups]
        return [group_options({"lr": float(rate)} if _is_number(rate) else {}, self._kind) for rate in rates]

    def step(self, closure: Callable | None = None) -> None:
        if closure is not None:
            raise ValueError("zeroshard's optimizer takes no closure: call engine.step()")
        engine = self._engine()
        if engine is None:
            raise _C.StateError("optimizer.step(): its engine is gone: keep what zeroshard.initialize returns first")
        engine._update()

    def begin_update(self) -> None:
        """Calls the hooks that ``step()`` of the user's optimizer would call first. Called before the core updates.

        If something has replaced the ``state`` of the user's optimizer, puts the former ``state`` back and raises
        ``StateError``.
        """
        if self._inner is not None and self._inner.state is not self._states:
            self._inner.state = self._states
            _refuse_states()
        self._call(torch_optimizer._global_optimizer_pre_hooks, self._optimizer_step_pre_hooks)

    def end_update(self) -> None:
        """Calls the hooks that ``step()`` would call last. Called after the core has updated."""
        self._call(self._optimizer_step_post_hooks, torch_optimizer._global_optimizer_post_hooks)

    def _call(self, *hooks: dict) -> None:
        who = self if self._inner is None else self._inner
        for hook in chain.from_iterable(list(each.values()) for each in hooks):
            hook(who, (), {})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        raise ValueError("param groups cannot be added to a sharded optimizer: pass them all to zeroshard.initialize")

    def state_dict(self) -> dict[str, Any]:
        raise ValueError(
            "optimizer.state_dict() is not supported, because each rank has only a part of the states: "
            "engine.save_checkpoint saves them"
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise ValueError(
            "optimizer.load_state_dict() is not supported, because each rank has only a part of the states: "
            "engine.load_checkpoint loads them. Load states of a torch optimizer into it before zeroshard.initialize, "
            "which keeps them"
        )

    def mark_step(self) -> None:
        """Tells torch's schedulers that the optimizer has stepped. Otherwise they warn about the order of calls."""
        for optimizer in (self, self._inner):
            if optimizer is not None:
                optimizer._opt_called = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        if (engine := self._engine()) is not None:
            engine.zero_grad()

    def train(self) -> None:
        if hasattr(self._inner, "train"):
            self._inner.train()

    def eval(self) -> None:
        if hasattr(self._inner, "eval"):
            self._inner.eval()

    step.hooked = True  # without this, torch would wrap it, and hooks would be called twice

    def __repr__(self) -> str:
        return f"zeroshard.Optimizer({self._kind.name}, {len(self.param_groups)} param groups)"
