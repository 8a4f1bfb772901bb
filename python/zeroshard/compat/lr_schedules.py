"""``deepspeed.runtime.lr_schedules``: DeepSpeed's schedules over any optimizer, with the core's values."""

from __future__ import annotations

import json
from typing import Any

from .. import _C
from ..schedule import LRScheduler

LR_RANGE_TEST = "LRRangeTest"
ONE_CYCLE = "OneCycle"
WARMUP_LR = "WarmupLR"
WARMUP_DECAY_LR = "WarmupDecayLR"
WARMUP_COSINE_LR = "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]


class _Schedule(LRScheduler):
    _FIRST: tuple[str, ...] = ()  # what may be given by position

    def __init__(self, optimizer: Any, *values: Any, last_batch_iteration: int = -1, **params: Any) -> None:
        if len(values) > len(self._FIRST):
            raise TypeError(
                f"{type(self).__name__} takes {', '.join(self._FIRST)} by position, and the rest by name; got {values}"
            )
        params |= dict(zip(self._FIRST, values, strict=False))
        block = {"type": type(self).__name__, "params": params}
        parsed = _C.ParsedConfig.parse(json.dumps({"train_batch_size": 1, "scheduler": block}), world_size=1)
        super().__init__(optimizer, parsed.config)
        if last_batch_iteration != -1:
            self.load_state_dict({"last_batch_iteration": last_batch_iteration})


class LRRangeTest(_Schedule):
    """Rates that rise from step to step, to find the largest one that trains."""

    _FIRST = (
        "lr_range_test_min_lr",
        "lr_range_test_step_size",
        "lr_range_test_step_rate",
        "lr_range_test_staircase",
    )


class OneCycle(_Schedule):
    """A rise and a fall, then a decay; momentum the other way round."""

    _FIRST = ("cycle_min_lr", "cycle_max_lr")


class WarmupLR(_Schedule):
    """A rise to the largest rate, which then stays."""

    _FIRST = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type")


class WarmupDecayLR(_Schedule):
    """A rise to the largest rate, then a linear fall to 0."""

    _FIRST = ("total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type")


class WarmupCosineLR(_Schedule):
    """A rise to the optimizer's rates, then a fall along a cosine."""

    _FIRST = ("total_num_steps", "warmup_min_ratio", "warmup_num_steps", "cos_min_ratio", "warmup_type")
