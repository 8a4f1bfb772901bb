"""Progress lines: what rank 0 logs every ``steps_per_print`` steps."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import torch

from .messages import log
from .run import Run


class StepReport:
    """Loss, pace and memory since the last line. Costs nothing between steps that print.

    Loss: the mean over this rank's micro-batches of the step. Pace: of all ranks. Tokens are those of ``input_ids``, in
    case the model has such an argument, or of integers of two dimensions as the first one.
    """

    def __init__(self, run: Run) -> None:
        every = run.config.steps_per_print
        self._every = every if every > 0 and run.rank == 0 else 0
        self._losses: list[torch.Tensor] = []  # of the step that is computed
        self._tokens = 0
        self._begin_interval(run)

    def note_inputs(self, args: tuple, kwargs: dict[str, Any]) -> None:
        if self._every:
            ids = kwargs.get("input_ids", args[0] if args else None)
            if isinstance(ids, torch.Tensor) and ids.dim() == 2 and not ids.is_floating_point():
                self._tokens += ids.numel()

    def note_loss(self, run: Run, loss: torch.Tensor) -> None:
        if self._every and (run.global_steps + 1) % self._every == 0:
            self._losses.append(loss.detach())

    def end_step(self, run: Run) -> None:
        """After an update, applied or not."""
        if self._every and run.global_steps % self._every == 0:
            log(self._line(run))
            self._begin_interval(run)
        self._losses.clear()

    def _begin_interval(self, run: Run) -> None:
        self._start, self._steps, self._samples = time.monotonic(), run.global_steps, run.global_samples
        self._tokens = 0

    def _line(self, run: Run) -> str:
        parts = [f"step={run.global_steps}", f"skipped={run.skipped_steps}"]
        if self._losses:
            parts.append(f"loss={sum(loss.float().mean().item() for loss in self._losses) / len(self._losses):.4g}")
        parts.append(f"lr={run.optimizer.rates()}")
        parts.append(f"grad_norm={run.grad_norm:.4g}")
        seconds = max(time.monotonic() - self._start, 1e-9)
        if steps := run.global_steps - self._steps:
            parts.append(f"step_time={seconds / steps:.3g} s")
        if samples := run.global_samples - self._samples:
            parts.append(f"samples/s={samples / seconds:.4g}")
        if self._tokens:
            parts.append(f"tokens/s={self._tokens * run.world_size / seconds:.4g}")
        parts.append(f"peak_memory={_peak_bytes(run.device) / 1e6:.0f} MB")
        return ", ".join(parts)


def _peak_bytes(device: torch.device) -> int:
    """The most that this process has held so far: of the device's memory, or on the CPU resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
