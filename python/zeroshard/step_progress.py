"""What has happened since the last update: it is taken back when its gradients are discarded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .hooks import explaining_sharded_parameters
from .messages import log
from .run import Run


class StepProgress:
    """Of a run's current step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.sync = True  # else inside no_sync
        self.micro_batches = 0  # that engine.step() has counted
        self.samples = 0
        self.called_backward = False  # in this micro-batch
        self.had_gradients = False  # before this micro-batch
        self.unsynced = False  # the last backward was under no_sync
        self._discards = 0  # of the core, when this was last up to date
        self._warned_of_discards = False

    def count(self, updated: bool) -> None:
        """A micro-batch is over; with ``updated`` its step is, too."""
        run = self._run
        samples = run.batch.micro * run.batch.ranks
        run.micro_steps += 1
        run.global_samples += samples
        self.called_backward = False
        self.had_gradients = run.core.has_pending_gradients
        self.micro_batches = 0 if updated else self.micro_batches + 1
        self.samples = 0 if updated else self.samples + samples

    def _take_back(self) -> None:
        """When the core has discarded gradients, the counts go back to those of the last update."""
        run = self._run
        if self._discards == run.core.discards:
            return
        self._discards = run.core.discards
        run.micro_steps -= self.micro_batches
        run.global_samples -= self.samples
        self.micro_batches = self.samples = 0
        self.called_backward = self.had_gradients = self.unsynced = False

    @contextmanager
    def taking_back(self) -> Iterator[None]:
        """Around what raises when some rank has discarded its gradients."""
        try:
            yield
        except BaseException:  # Ctrl-C, too
            self._take_back()
            raise

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around ``loss.backward()``. What it raises is told to all ranks, which discard the step's gradients.

        So is an interruption just before or after its end: whoever catches it begins the step again.
        """
        self.called_backward = True
        core = self._run.core
        core.begin_backward(self.sync)
        has_ended = False
        with self.taking_back():
            try:
                with explaining_sharded_parameters():
                    yield
                has_ended = True
                core.end_backward()
            except BaseException as error:
                if not has_ended or not isinstance(error, Exception):
                    core.fail_backward(f"{type(error).__name__}: {error}")
                raise
        self.unsynced = not self.sync

    def zero_grad(self) -> None:
        before = self.micro_batches
        self._run.core.zero_grad()
        self._take_back()
        if before and not self.micro_batches and not self._warned_of_discards:
            self._warned_of_discards = True
            log(
                f"warning: zero_grad() discarded the gradients of {before} micro-batch(es) of a step of "
                f"{self._run.batch.accumulation}, which begins again: between its micro-batches, leave it out"
            )
