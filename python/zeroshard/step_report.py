"""Reports steps on rank 0: prints a line every ``steps_per_print`` steps, and records the metrics of each step."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from .messages import log
from .metrics import Metrics
from .run import Run


class StepReport:
    """Reports loss, pace and memory on rank 0: in printed lines and, if metrics are enabled, as metrics of each step.

    The loss is the mean over this rank's micro-batches of the step. The pace is that of all ranks together. Tokens are
    the elements of the argument ``input_ids`` or, without it, of the first argument, if that tensor has two dimensions
    and is not of a floating-point dtype.
    """

    def __init__(self, run: Run) -> None:
        config = run.config
        self._every = config.steps_per_print if config.steps_per_print > 0 and run.rank == 0 else 0
        blocks = (config.tensorboard, config.csv_monitor, config.wandb)
        wanted = run.rank == 0 and run.trains and any(block.enabled for block in blocks)
        self._metrics = Metrics(config) if wanted else None
        self._breakdown = _Breakdown(run.device) if self._every and run.config.wall_clock_breakdown else None
        self._losses: list[torch.Tensor] = []  # losses of the current step
        self._tokens = 0  # tokens of this rank
        self.restart(run)

    def restart(self, run: Run) -> None:
        """Begins to measure the pace anew, because something other than a step has changed the counts."""
        self._begin_line(run)
        self._since_step = _Mark(run, self._tokens)

    def part(self, name: str) -> AbstractContextManager[None]:
        """Surrounds a part of a step. With ``wall_clock_breakdown`` the next line shows the time of the part."""
        return nullcontext() if self._breakdown is None else self._breakdown.part(name)

    def note_inputs(self, args: tuple, kwargs: dict[str, Any]) -> None:
        if self._every or self._metrics is not None:
            ids = kwargs.get("input_ids", args[0] if args else None)
            if isinstance(ids, torch.Tensor) and ids.dim() == 2 and not ids.is_floating_point():
                self._tokens += ids.numel()

    def note_loss(self, run: Run, loss: torch.Tensor) -> None:
        if self._metrics is not None or self._prints(run.global_steps + 1):
            self._losses.append(loss.detach())

    def end_step(self, run: Run) -> None:
        """Reports the step. The engine calls this method after an update, applied or not."""
        prints = self._prints(run.global_steps)
        loss = self._mean_loss() if prints or self._metrics is not None else None
        self._losses.clear()
        if self._metrics is not None:
            self._metrics.record(run.global_steps, self._values(run, loss))
            self._since_step = _Mark(run, self._tokens)
        if prints:
            log(self._line(run, loss))
            self._begin_line(run)

    def finish(self) -> None:
        """Writes all metrics to the disk for good. Later calls do nothing."""
        if self._metrics is not None:
            self._metrics.finish()

    def _begin_line(self, run: Run) -> None:
        self._since_line = _Mark(run, self._tokens)
        if self._breakdown is not None:
            self._breakdown.seconds.clear()

    def _prints(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0

    def _mean_loss(self) -> float | None:
        if not self._losses:
            return None
        return sum(loss.float().mean().item() for loss in self._losses) / len(self._losses)

    def _values(self, run: Run, loss: float | None) -> dict[str, float]:
        """Returns the metrics of a step, with the names that `zeroshard train` uses."""
        values = {} if loss is None else {"loss": loss}
        values["grad_norm"] = run.grad_norm
        rates = run.optimizer.rates()
        values["lr"] = rates[0]
        values |= {f"lr/{group}": rate for group, rate in enumerate(rates) if group > 0}
        if run.config.fp16_enabled:
            values["loss_scale"] = run.core.loss_scale
        values |= self._since_step.pace(run, self._tokens)
        values["memory_bytes"] = _peak_bytes(run.device)
        return values

    def _line(self, run: Run, loss: float | None) -> str:
        parts = [f"step={run.global_steps}", f"skipped={run.skipped_steps}"]
        if loss is not None:
            parts.append(f"loss={loss:.4g}")
        parts.append(f"lr={run.optimizer.rates()}")
        parts.append(f"grad_norm={run.grad_norm:.4g}")
        pace = self._since_line.pace(run, self._tokens)
        if (seconds := pace.get("step_seconds")) is not None:
            parts.append(f"step_time={seconds:.3g} s")
            if self._breakdown is not None:
                parts += self._breakdown.fields(seconds, pace["steps"])
        for name, unit in (("samples_per_second", "samples/s"), ("tokens_per_second", "tokens/s")):
            if name in pace:
                parts.append(f"{unit}={pace[name]:.4g}")
        parts.append(f"peak_memory={_peak_bytes(run.device) / 1e6:.0f} MB")
        return ", ".join(parts)


class _Breakdown:
    """Measures the time of this rank in forward, backward and step, as DeepSpeed's ``wall_clock_breakdown`` does.

    It waits for a CUDA device before and after each part, so that the time of a part is that of the part's own kernels.
    A pass that a script starts with ``loss.backward()`` counts as ``other``, and so does all code between the parts.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds: dict[str, float] = {}  # by part

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = self._now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - began

    def fields(self, step_seconds: float, steps: int) -> list[str]:
        """Returns text about the mean of ``steps`` steps, each of which took ``step_seconds``."""
        parts = {name: self.seconds.get(name, 0.0) / steps for name in ("forward", "backward", "step")}
        parts["other"] = max(step_seconds - sum(parts.values()), 0.0)
        return [f"{name}={seconds:.3g} s" for name, seconds in parts.items()]

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.monotonic()


class _Mark:
    """A moment of the run, from which its pace is measured."""

    def __init__(self, run: Run, tokens: int) -> None:
        self._time, self._steps, self._samples = time.monotonic(), run.global_steps, run.global_samples
        self._tokens = tokens

    def pace(self, run: Run, tokens: int) -> dict[str, float]:
        """Returns the pace of all ranks since the mark, by name. Has only the values that are known.

        ``tokens`` is the present count of this rank's tokens.
        """
        seconds = max(time.monotonic() - self._time, 1e-9)
        pace = {}
        if (steps := run.global_steps - self._steps) > 0:
            pace["step_seconds"], pace["steps"] = seconds / steps, steps
        if (samples := run.global_samples - self._samples) > 0:
            pace["samples_per_second"] = samples / seconds
        if tokens > self._tokens:
            pace["tokens_per_second"] = (tokens - self._tokens) * run.world_size / seconds
        return pace


def _peak_bytes(device: torch.device) -> int:
    """Returns the peak memory of this process: that of the device, or the resident memory if the device is the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
