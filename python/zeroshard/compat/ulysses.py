"""Implements ``deepspeed.runtime.sequence_parallel.ulysses_sp``: sequence parallelism with DeepSpeed's names."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.utils.data import IterableDataset

from .. import _C
from ..sequence_checks import check_attention_name, check_config, check_model
from ..sequence_groups import current, make_group
from ..sequence_model import cut_model, replace_attention
from ..sequence_rows import PieceLoader
from .parallel_state import gather_losses


class UlyssesSPAttentionHF:
    """Registers sequence parallelism for a model of transformers. The model keeps the attention of transformers."""

    @classmethod
    def register_with_transformers(
        cls,
        model_name_or_path: Any,
        core_attn_implementation: str,
        sequence_parallel_size: int,
        micro_batch_size: int,
        seq_length: int | None = None,
        seq_length_is_variable: bool = True,
        disable_in_eval: bool = False,
        max_length: int | None = None,
    ) -> Any:
        """Makes the sequence groups, and returns the ``mpu`` for ``initialize``. Collective.

        The model may be given by its name before it is loaded. In that case ``initialize`` cuts it. Sequences may have
        different lengths in any case. For a ``sequence_parallel_size`` of 1, does nothing and returns None.

        Raises ``ValueError`` for a model whose sequence cannot be cut, and for a size that does not divide the ranks.
        """
        if sequence_parallel_size == 1:
            return None
        if not seq_length_is_variable and seq_length is None and max_length is None:
            raise ValueError("seq_length is missing: give it, or seq_length_is_variable=True")
        options = {"averages_loss": False, "in_evaluation": not disable_in_eval}
        if isinstance(model_name_or_path, nn.Module):
            check_model(model_name_or_path, sequence_parallel_size, core_attn_implementation)
            group = make_group(sequence_parallel_size)
            cut_model(model_name_or_path, group, **options)
        else:
            config = _read_config(model_name_or_path)
            check_attention_name(core_attn_implementation)
            check_config(config, type(config).__name__, sequence_parallel_size)
            group = make_group(sequence_parallel_size)
            replace_attention(core_attn_implementation)
            group.is_for_next_engine = True
        group.registered = options
        gather_losses()
        return importlib.import_module("deepspeed.runtime.sequence_parallel.parallel_state_sp")


def _read_config(name: Any) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(name)


class _Pieces(IterableDataset):
    def __init__(self, adapter: UlyssesSPDataLoaderAdapter) -> None:
        self._adapter = adapter

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._adapter)


class UlyssesSPDataLoaderAdapter:
    """Gives this rank its piece of each row, on the CPU. The rows are those of all ranks of the sequence group.

    Each rank's ``dl`` gives the rank's own rows, which must have ``position_ids``. Pieces have ``shift_labels`` in
    place of ``labels``.
    """

    def __init__(
        self, dl: Iterable, sp_rank: int, sp_group: dist.ProcessGroup, sp_world_size: int, device: Any
    ) -> None:
        group = current()
        if group is None or group.process_group is not sp_group or (group.rank, group.size) != (sp_rank, sp_world_size):
            raise _C.StateError(
                "UlyssesSPDataLoaderAdapter: sp_group, sp_rank and sp_world_size must be those of the mpu that "
                "UlyssesSPAttentionHF.register_with_transformers returned"
            )
        self.dl = dl
        # Sets these attributes because Accelerate's skip_first_batches makes a loader from them, so that a run can
        # continue within an epoch.
        self.dataset, self.batch_size, self.drop_last, self.prefetch_factor = _Pieces(self), None, False, None
        self._pieces = PieceLoader(dl, group, needs_positions=True)
        self._iterator: Iterator[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self._pieces)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._iterator = iter(self._pieces)
        return self

    def __next__(self) -> dict[str, Any]:
        if self._iterator is None:
            self._iterator = iter(self._pieces)
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = None  # the next call begins the next epoch
            raise

    def set_epoch(self, epoch: int) -> None:
        """Calls the loader's own ``set_epoch``, if it has one."""
        if hasattr(self.dl, "set_epoch"):
            self.dl.set_epoch(epoch)
