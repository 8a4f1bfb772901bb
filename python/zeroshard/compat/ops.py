"""Has DeepSpeed's optimizers with their names and arguments.

Without an engine, each is a plain PyTorch optimizer. If one is given to ``initialize``, the core makes its updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import _C
from ..optimizer import runs_in_core


def _loss_of(closure: Callable | None) -> Any:
    """Returns the result of the closure of a step(). The closure computes gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class _Fp32States:
    """Makes an optimizer update fp32 copies of 16-bit parameters, so that its states are fp32, as DeepSpeed's are.

    With ``fp32_optimizer_states`` false, the optimizer updates the 16-bit parameters themselves.
    """

    fp32_optimizer_states = True

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> Any:
        loss = _loss_of(closure)
        with self._in_fp32():
            super().step()
        return loss

    @contextmanager
    def _in_fp32(self) -> Iterator[None]:
        params = [list(group["params"]) for group in self.param_groups]
        copies: dict[torch.Tensor, torch.Tensor] = {}
        for param in (param for own in params for param in own if param.dtype in (torch.bfloat16, torch.float16)):
            if self.fp32_optimizer_states and param.grad is not None:
                copies[param] = param.detach().float()
                copies[param].grad = param.grad.float()
                self.state[copies[param]] = _as_fp32(self.state.pop(param, {}))
        try:
            for group, own in zip(self.param_groups, params, strict=True):
                group["params"] = [copies.get(param, param) for param in own]
            yield
        finally:
            for group, own in zip(self.param_groups, params, strict=True):
                group["params"] = own
            for param, copy in copies.items():
                param.copy_(copy)
                self.state[param] = self.state.pop(copy)


def _as_fp32(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in state.items()
    }


class _Adam(torch.optim.Adam):
    """Is torch's Adam, with DeepSpeed's ``bias_correction``."""

    def __init__(self, params: Iterable, decoupled: bool, bias_correction: bool, **settings: Any) -> None:
        super().__init__(params, decoupled_weight_decay=decoupled, **settings)
        self.defaults["bias_correction"] = bool(bias_correction)
        self.adam_w_mode = decoupled
        for group in self.param_groups:
            # Param groups of another optimizer can have different values, but DeepSpeed has one value for all groups.
            group["decoupled_weight_decay"] = decoupled
            group.setdefault("bias_correction", bool(bias_correction))

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> Any:
        groups = self.param_groups
        corrected = [group for group in groups if group["bias_correction"]]
        others = [group for group in groups if not group["bias_correction"]]
        try:
            self.param_groups = corrected
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        for group in others:
            for param in (param for param in group["params"] if param.grad is not None):
                self._update_uncorrected(param, group)
        return loss

    def _update_uncorrected(self, param: torch.Tensor, group: dict[str, Any]) -> None:
        if group["amsgrad"]:
            raise ValueError(f"{type(self).__name__}: amsgrad without bias_correction is not supported")
        state, grad = self.state[param], param.grad
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        state["step"] += 1
        grad = -grad if group["maximize"] else grad
        lr, decay, (beta1, beta2) = group["lr"], group["weight_decay"], group["betas"]
        if group["decoupled_weight_decay"]:
            param.mul_(1 - lr * decay)
        elif decay != 0:
            grad = grad.add(param, alpha=decay)
        state["exp_avg"].lerp_(grad, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        param.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt().add_(group["eps"]), value=-float(lr))


class _Lion(torch.optim.Optimizer):
    """Is Lion (https://arxiv.org/abs/2302.06675), which moves by the sign of a mean of momentum and gradient."""

    def __init__(self, params: Iterable, lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        if float(lr) < 0:
            raise ValueError(f"{type(self).__name__}: lr is {lr}, expected a number that is not negative")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"{type(self).__name__}: betas are {betas}, expected two numbers of at least 0, below 1")
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> Any:
        loss = _loss_of(closure)
        for group in self.param_groups:
            lr, (beta1, beta2) = float(group["lr"]), group["betas"]
            for param in (param for param in group["params"] if param.grad is not None):
                state = self.state[param]
                if not state:
                    state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
                param.mul_(1 - lr * group["weight_decay"])
                param.add_(state["exp_avg"].lerp(param.grad, 1 - beta1).sign_(), alpha=-lr)
                state["exp_avg"].lerp_(param.grad, 1 - beta2)
        return loss


@runs_in_core(_C.OptimizerType.ADAMW)
class DeepSpeedCPUAdam(_Fp32States, _Adam):
    """Is AdamW, or Adam with ``adamw_mode=False``. States are always fp32 in an engine."""

    def __init__(
        self,
        model_params: Iterable,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(model_params, bool(adamw_mode), bias_correction, **settings)
        self.fp32_optimizer_states = fp32_optimizer_states


@runs_in_core(_C.OptimizerType.ADAMW)
class FusedAdam(_Adam):
    """Is AdamW, or Adam with ``adam_w_mode=False``."""

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, bool(adam_w_mode), bias_correction, **settings)
        self.set_grad_none = set_grad_none


@runs_in_core(_C.OptimizerType.ADAGRAD)
class DeepSpeedCPUAdagrad(_Fp32States, torch.optim.Adagrad):
    def __init__(
        self,
        model_params: Iterable,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
    ) -> None:
        if amsgrad:
            raise ValueError("DeepSpeedCPUAdagrad: amsgrad is a variant of Adam, and Adagrad has none: leave it out")
        super().__init__(model_params, lr=lr, eps=eps, weight_decay=weight_decay)
        self.fp32_optimizer_states = fp32_optimizer_states


@runs_in_core(_C.OptimizerType.LION)
class DeepSpeedCPULion(_Fp32States, _Lion):
    def __init__(
        self,
        model_params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(model_params, lr, betas, weight_decay)
        self.fp32_optimizer_states = fp32_optimizer_states


@runs_in_core(_C.OptimizerType.LION)
class FusedLion(_Lion):
    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, lr, betas, weight_decay)
        self.set_grad_none = set_grad_none


@runs_in_core(_C.OptimizerType.MUON)
class MuonWithAuxAdam(torch.optim.Optimizer):
    """Is Muon for param groups with ``use_muon``, and AdamW for the others. Only an engine can step it."""

    def __init__(self, param_groups: Iterable[dict[str, Any]]) -> None:
        groups = list(param_groups)
        for group in groups:
            if "use_muon" not in group:
                raise ValueError("MuonWithAuxAdam: each param group needs use_muon, True for matrices to orthogonalise")
        muon = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.0, "ns_method": "gram"}
        adam = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-10, "weight_decay": 0.0}
        super().__init__([(muon if group["use_muon"] else adam) | group for group in groups], {})

    def step(self, closure: Callable | None = None) -> Any:
        raise _C.StateError("MuonWithAuxAdam has no step() of its own: pass it to initialize, whose engine steps it")
