"""Has loaders that give each rank of a sequence group its piece of every row."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.functional import pad

from .sequence_groups import SequenceGroup

_PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx", "seq_lengths")
PIECE_WITHOUT_LABELS = torch.int8  # dtype of shift_labels that are no labels and only say that rows are pieces
_FILLED_WITH = {"labels": -100, "shift_labels": -100}


class _WrongBatch(ValueError):
    """A batch that cannot be cut."""


def whole_rows(batch: Any, size: int, *, needs_positions: bool = False) -> dict[str, Any]:
    """Returns the batch with ``position_ids`` and ``shift_labels``, padded to a length that ``size`` divides.

    The padding is at the end of rows and has no labels, so it changes no result. ``shift_labels`` of the batch are
    kept, or else made from ``labels``. If the batch has no labels of either kind, the result has ``shift_labels`` of
    the dtype ``PIECE_WITHOUT_LABELS``, or none with ``needs_positions``. Raises ``ValueError`` for a batch that cannot
    be cut, and with ``needs_positions`` for one without ``position_ids``.
    """
    if not isinstance(batch, Mapping) or not isinstance(batch.get("input_ids"), torch.Tensor):
        raise _WrongBatch(f"a batch must be a dict with input_ids, and is {type(batch).__name__}")
    rows, length = batch["input_ids"].shape[:2]
    if packed := [key for key in _PACKED if batch.get(key) is not None]:
        raise _WrongBatch(
            f"rows are packed by {packed[0]}: give position_ids that begin anew with each document instead"
        )
    if length < size:
        raise _WrongBatch(f"rows of {length} words are shorter than the {size} ranks that share them")
    whole = dict(batch)
    if whole.get("position_ids") is None:
        if needs_positions:
            raise _WrongBatch(
                "position_ids are missing: torch.arange(length) for each row, or positions that begin anew with each "
                "document of a packed row"
            )
        whole["position_ids"] = torch.arange(length, device=batch["input_ids"].device).expand(rows, -1)
    elif whole["position_ids"].shape == (1, length):
        whole["position_ids"] = whole["position_ids"].expand(rows, -1)
    for key, value in tensors_of(whole).items():
        if value.shape[:2] != (rows, length):
            shape = tuple(value.shape)
            raise _WrongBatch(f"{key} has the shape {shape}; rows and words of input_ids are {rows} x {length}")
    labels = whole.pop("labels", None)
    if labels is not None and whole.get("shift_labels") is None:
        whole["shift_labels"] = pad(labels[:, 1:], (0, 1), value=-100)
    elif whole.get("shift_labels") is None and not needs_positions:
        whole["shift_labels"] = torch.full_like(batch["input_ids"], -100, dtype=PIECE_WITHOUT_LABELS)
    short = -length % size
    return whole | {key: _filled(key, value, short) for key, value in tensors_of(whole).items()} if short else whole


def tensors_of(batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}


def _filled(key: str, value: torch.Tensor, short: int) -> torch.Tensor:
    if key == "position_ids":
        more = value[:, -1:] + torch.arange(1, short + 1, device=value.device)
        return torch.cat([value, more], dim=1)
    return pad(value, (*[0] * (2 * (value.ndim - 2)), 0, short), value=_FILLED_WITH.get(key, 0))


class PieceLoader:
    """Gives each rank of the group its piece of the rows in ``loader``, one rank's batch after another."""

    def __init__(self, loader: Iterable, group: SequenceGroup, *, needs_positions: bool = False) -> None:
        self.loader = loader
        self.group = group
        self._needs_positions = needs_positions

    def __len__(self) -> int:
        return len(self.loader) * self.group.size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = iter(self.loader)
        while dealt := self._deal(batches):
            yield from dealt

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def _deal(self, batches: Iterator[Any]) -> list[dict[str, Any]]:
        """Returns this rank's pieces of the next batch of each rank that has one. Collective.

        If one rank's loader raises, or gives a batch that cannot be cut, all ranks of the group raise an error.
        """
        values: list[torch.Tensor] = []
        failed: Exception | None = None
        wrong, packed = "", pickle.dumps(({}, {}))
        try:
            if (batch := next(batches, None)) is not None:
                whole = whole_rows(batch, self.group.size, needs_positions=self._needs_positions)
                tensors = tensors_of(whole)
                shapes = {key: (tuple(value.shape), value.dtype) for key, value in tensors.items()}
                others = {key: value for key, value in whole.items() if key not in tensors}
                values, packed = [value.cpu() for value in tensors.values()], pickle.dumps((shapes, others))
        except _WrongBatch as error:
            wrong = str(error)
        except Exception as error:  # raised after this rank has told the others, because they wait for it
            failed, wrong = error, f"the loader failed with {type(error).__name__}: {error}"
        told = self._tell((wrong, packed))
        if failed is not None:
            raise failed
        for rank, (text, _) in enumerate(told, self.group.first_rank):
            if text:
                raise ValueError(f"sequence parallelism: {text} (rank {rank})")
        unpacked = [pickle.loads(packed) for _, packed in told]
        like = [[torch.empty(s, dtype=d, device="meta") for s, d in shapes.values()] for shapes, _ in unpacked]
        pieces = self.group.core.deal(values, like)
        return [
            dict(zip(shapes, mine, strict=True)) | others
            for (shapes, others), mine in zip(unpacked, pieces, strict=True)
            if shapes
        ]

    def _tell(self, mine: Any) -> list[Any]:
        """Returns the value ``mine`` of each rank of the group. If a rank dies meanwhile, the error names it."""
        core, size = self.group.core, self.group.size
        packed = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8)
        like = [
            [torch.empty(1, size * length, dtype=torch.uint8, device="meta")] for (length,) in core.tell([len(packed)])
        ]
        return [pickle.loads(row.numpy().tobytes()) for (row,) in core.deal([packed.repeat(size)[None]], like)]


class SharedLoader(PieceLoader):
    """Gives each rank of the group its piece of rows that the first rank of the group has loaded.

    All ranks load rows, so that every loader has the same position. Only the rows of the first rank are used, because a
    dataset or collate_fn that draws random numbers gives other rows on other ranks.
    """

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = iter(self.loader)
        while dealt := self._deal(batches if self.group.rank == 0 else (None for _ in batches)):
            yield from dealt
