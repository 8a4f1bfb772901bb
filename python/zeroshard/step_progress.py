"""What has happened since the last update: it is taken back when its gradients are discarded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .hooks import naming_the_way_out
from .messages import log

if TYPE_CHECKING:
    from .engine import Engine


class StepProgress:
    """Of an engine's current step."""

    def __init__(self) -> None:
        self.micro_batches = 0  # that engine.step() has counted
        self.samples = 0
        self.called_backward = False  # in this micro-batch
        self.had_gradients = False  # before this micro-batch
        self.unsynced = False  # the last backward was under no_sync
        self._discards = 0  # of the core, when this was last up to date
        self._warned_of_discards = False

    def count(self, engine: Engine, updated: bool) -> None:
        """A micro-batch is over; with ``updated`` its step is, too."""
        samples = engine.train_micro_batch_size_per_gpu() * engine.world_size()
        engine.micro_steps += 1
        engine.global_samples += samples
        self.called_backward = False
        self.had_gradients = engine._core.has_pending_gradients
        self.micro_batches = 0 if updated else self.micro_batches + 1
        self.samples = 0 if updated else self.samples + samples

    def _take_back(self, engine: Engine) -> None:
        """When the core has discarded gradients, the counts go back to those of the last update."""
        if self._discards == engine._core.discards:
            return
        self._discards = engine._core.discards
        engine.micro_steps -= self.micro_batches
        engine.global_samples -= self.samples
        self.micro_batches = self.samples = 0
        self.called_backward = self.had_gradients = self.unsynced = False

    @contextmanager
    def taking_back(self, engine: Engine) -> Iterator[None]:
        """Around what raises when some rank has discarded its gradients."""
        try:
            yield
        except BaseException:  # Ctrl-C, too
            self._take_back(engine)
            raise

    @contextmanager
    def backward(self, engine: Engine) -> Iterator[None]:
        """Around ``loss.backward()``. What it raises is told to all ranks, which discard the step's gradients.

        So is an interruption just before or after its end: whoever catches it begins the step again.
        """
        self.called_backward = True
        engine._core.begin_backward(engine._sync)
        has_ended = False
        with self.taking_back(engine):
            try:
                with naming_the_way_out():
                    yield
                has_ended = True
                engine._core.end_backward()
            except BaseException as error:
                if not has_ended or not isinstance(error, Exception):
                    engine._core.fail_backward(f"{type(error).__name__}: {error}")
                raise
        self.unsynced = not engine._sync

    def zero_grad(self, engine: Engine) -> None:
        before = self.micro_batches
        engine._core.zero_grad()
        self._take_back(engine)
        if before and not self.micro_batches and not self._warned_of_discards:
            self._warned_of_discards = True
            log(
                f"warning: zero_grad() discarded the gradients of {before} micro-batch(es) of a step of "
                f"{engine.gradient_accumulation_steps()}, which begins again: between its micro-batches, leave it out"
            )
