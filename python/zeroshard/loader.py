"""Defines the data loader that ``zeroshard.initialize`` makes. A checkpoint contains its position."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler


class ShardedSampler(Sampler[int]):
    """Shuffles samples by seed + epoch, in the same order for any number of ranks. Samples go to the ranks in turn.

    Every rank gets the same number of samples. If the samples do not divide evenly, ``drop_last`` leaves the last ones
    out. Without ``drop_last``, the first samples of the order are repeated at the end. The ``sequence_size`` ranks of a
    sequence group get the same samples. Leaves out the first ``consumed`` samples of the epoch, so that another number
    of ranks can continue an epoch.
    """

    def __init__(self, num_samples: int, drop_last: bool, seed: int = 0, sequence_size: int = 1) -> None:
        self._num_samples = num_samples
        self._drop_last = drop_last
        self._seed = seed
        self._sequence_size = sequence_size
        self.epoch = 0
        self.consumed = 0

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed + self.epoch)
        order = torch.randperm(self._num_samples, generator=generator).tolist()
        rank, ranks = _rank() // self._sequence_size, self.ranks
        left = order[self.consumed :]
        if self._drop_last:
            left = left[: len(left) // ranks * ranks]
        elif len(left) % ranks != 0:
            short = ranks - len(left) % ranks
            left += (order * (short // len(order) + 1))[:short]
        return iter(left[rank::ranks])

    def __len__(self) -> int:
        left = self._num_samples - self.consumed
        return left // self.ranks if self._drop_last else -(-left // self.ranks)

    @property
    def ranks(self) -> int:
        """Returns the number of ranks that have samples of their own. The ranks of a sequence group count as one."""
        return _ranks() // self._sequence_size


class Loader(DataLoader):
    """A ``DataLoader`` whose position in the epoch is part of a checkpoint.

    Each iteration begins the next epoch, even if the iteration before it was left early. After ``load_state_dict`` the
    first iteration continues the saved epoch. An iterator ends when a later iterator begins, because the loader has
    only one position. An ``IterableDataset`` always begins at its start, because only the dataset itself could skip
    samples.

    ``len()`` is the number of batches of the running iteration or, if none runs, of the next one.
    """

    def __init__(
        self,
        dataset: Dataset,
        micro_batch_size: int,
        collate_fn: Callable | None,
        drop_last: bool,
        *,
        sequence_size: int = 1,
    ) -> None:
        iterable = isinstance(dataset, IterableDataset)
        # Also warns if ranks form sequence groups, because each rank loads its own rows for its group.
        if iterable and _ranks() > 1 and _rank() == 0:
            warnings.warn(
                "training_data is an IterableDataset: every rank iterates over all of it, unless it takes its own "
                "share by torch.distributed.get_rank()",
                stacklevel=2,
            )
        self._own_sampler = None if iterable else ShardedSampler(len(dataset), drop_last, sequence_size=sequence_size)
        self._epoch = 0
        self._batches = 0  # batches that this rank got in the current iteration
        self._start = 0  # samples of the epoch that all ranks together had got before this iteration
        self._iterations = 0  # number of iterations that have begun
        self._runs = False  # true: the last iteration is still running
        super().__init__(
            dataset,
            batch_size=micro_batch_size,
            sampler=self._own_sampler,
            collate_fn=collate_fn,
            drop_last=drop_last,
            # Each iteration draws a random number from this generator. With torch's default generator, a run resumed
            # within an epoch would draw one more number than a run that was not stopped.
            generator=torch.Generator(),
        )

    def __iter__(self) -> Iterator[Any]:
        # This is a generator, so nothing runs before the first batch is requested.
        if self._batches > 0:  # the last iteration was left before its end
            self._begin_next_epoch()
        self._iterations += 1
        own = self._iterations
        self._runs = True
        if self._own_sampler is not None:
            self._own_sampler.epoch, self._own_sampler.consumed = self._epoch, self._start
        self.generator.manual_seed(self._epoch)
        try:
            for batch in super().__iter__():
                if self._iterations != own:
                    return
                self._batches += 1
                yield batch
            if self._iterations == own:
                self._begin_next_epoch()
        finally:
            if self._iterations == own:
                self._runs = False

    def __len__(self) -> int:
        if self._own_sampler is not None:  # between iterations, the sampler still has the position of the last one
            self._own_sampler.consumed = self._start if self._runs or self._batches == 0 else 0
        return super().__len__()

    def _begin_next_epoch(self) -> None:
        self._epoch += 1
        self._start = self._batches = 0

    def state_dict(self) -> dict[str, int]:
        ranks = self._own_sampler.ranks if self._own_sampler is not None else _ranks()
        consumed = self._start + self._batches * self.batch_size * ranks
        return {"epoch": self._epoch, "consumed": min(consumed, self._size())}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._epoch, self._start, self._batches = state["epoch"], state["consumed"], 0
        self._iterations += 1  # so that an older iterator that continues does not change the loaded position
        self._runs = False
        if self._own_sampler is None and self._start > 0:
            warnings.warn(
                "the IterableDataset starts from its beginning, because a checkpoint does not hold the position in it. "
                "Save the position in client_state, and skip to it after load_checkpoint",
                stacklevel=2,
            )

    def _size(self) -> int:
        return len(self.dataset) if self._own_sampler is not None else 2**62


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
