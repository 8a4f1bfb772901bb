"""How many samples a step takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import index

from . import _C


@dataclass(frozen=True)
class Batch:
    """The samples of one step: ``micro`` of each rank in each of ``accumulation`` micro-batches."""

    micro: int
    accumulation: int
    ranks: int

    @property
    def train(self) -> int:
        return self.micro * self.accumulation * self.ranks

    def with_train(self, samples: int) -> Batch:
        """The same micro-batch size, with as many as make ``samples``; raises ``ValueError`` when no number does."""
        samples, at_once = index(samples), self.micro * self.ranks
        if samples < at_once or samples % at_once != 0:
            raise ValueError(
                f"train_batch_size is {samples}, expected a multiple of train_micro_batch_size_per_gpu * world_size = "
                f"{self.micro} * {self.ranks} = {at_once}"
            )
        return replace(self, accumulation=samples // at_once)

    def with_micro(self, samples: int) -> Batch:
        """The same number of micro-batches of another size; raises ``ValueError`` if that is not possible."""
        samples = index(samples)
        if samples < 1:
            raise ValueError(f"train_micro_batch_size_per_gpu is {samples}, expected at least 1")
        return replace(self, micro=samples)


def check_accumulation(config: _C.Config, steps: int) -> None:
    """Raises ``ValueError`` if ``config`` would sum ``steps`` micro-batches in 16 bits without having asked for it."""
    dtype = config.reduced_grad_dtype(config.grad_accumulation_steps)
    if dtype != config.reduced_grad_dtype(steps) == "fp32":
        raise ValueError(
            f"train_batch_size: gradients of {steps} micro-batches would be summed in {dtype}, as the engine was made "
            'for one micro-batch per step. Set {"data_types": {"grad_accum_dtype": "fp32"}} in the configuration, '
            "or start with gradient_accumulation_steps of 2 or more"
        )
