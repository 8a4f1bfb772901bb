"""Has the names with which scripts for DeepSpeed compute in tiles, with DeepSpeed's arguments.

All tensors that require a gradient get one, and so do all parameters that the function uses, even if ``compute_params``
does not name them. A parameter gets one gradient for all tiles together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import _C
from ..tiles import compute_tiled as _compute_tiled

compute_tiled = torch.compiler.disable(_compute_tiled)  # graphs of compiled functions end before it
_JOINS = {None: _C.Join.STACK, "mean": _C.Join.MEAN, "sum": _C.Join.SUM}


def sequence_tiled_compute(
    fn: Callable[..., torch.Tensor],
    seqlen: int,
    shards: int,
    kwargs_to_shard: dict[str, torch.Tensor],
    kwargs_to_pass: dict[str, Any],
    grad_requiring_tensor_key: str,
    compute_params: Iterable[torch.Tensor] | None = None,
    output_unshard_dimension: int = 1,
    output_reduction: str | None = "mean",
) -> torch.Tensor:
    """Computes ``fn(**kwargs_to_shard, **kwargs_to_pass)`` for one of ``shards`` tiles of the sequence at a time."""
    return SequenceTiledCompute.apply(
        fn,
        seqlen,
        shards,
        list(kwargs_to_shard),
        list(kwargs_to_pass),
        grad_requiring_tensor_key,
        compute_params,
        output_unshard_dimension,
        output_reduction,
        *kwargs_to_shard.values(),
        *kwargs_to_pass.values(),
    )


class SequenceTiledCompute:
    """Tiles a function of tensors (batch, sequence, ...). The backward pass computes each tile a second time."""

    @staticmethod
    def apply(
        fn: Callable[..., torch.Tensor],
        seqlen: int,
        shards: int,
        keys_to_shard: list[str],
        keys_to_pass: list[str],
        grad_requiring_tensor_key: str,
        compute_params: Iterable[torch.Tensor] | None,
        output_unshard_dimension: int,
        output_reduction: str | None,
        *args: Any,
    ) -> torch.Tensor:
        values = dict(zip([*keys_to_shard, *keys_to_pass], args, strict=True))
        if grad_requiring_tensor_key not in values:
            raise ValueError(f"grad_requiring_tensor_key is {grad_requiring_tensor_key!r}, expected one of {[*values]}")
        for key in keys_to_shard:
            if values[key].shape[1] != seqlen:
                raise ValueError(f"{key} has shape {tuple(values[key].shape)}, expected the length {seqlen} (seqlen)")
        if output_unshard_dimension not in (0, 1):
            raise ValueError(f"output_unshard_dimension is {output_unshard_dimension}, expected 0 (scalars) or 1")
        _check_reduction(output_reduction, (None, "mean", "sum"))
        passed = [key for key in keys_to_pass if isinstance(values[key], torch.Tensor)]
        keys = [*keys_to_shard, *passed]
        rest = {key: value for key, value in values.items() if key not in keys}
        result = compute_tiled(
            lambda *tensors: fn(**dict(zip(keys, tensors, strict=True)), **rest),
            [values[key] for key in keys],
            compute_params or (),
            tiles=shards,
            dim=1,
            num_cut=len(keys_to_shard),
            join=_JOINS[output_reduction] if output_unshard_dimension == 0 else _C.Join.ALONG_DIM,
        )
        if output_unshard_dimension == 0 or output_reduction is None:
            return result
        return result.mean() if output_reduction == "mean" else result.sum()


class TiledMLP:
    """Tiles ``fn(self, x)``, which computes each token by itself. Backward computes each tile a second time."""

    @staticmethod
    def apply(
        fn: Callable[[Any, torch.Tensor], torch.Tensor],
        self: Any,
        x: torch.Tensor,
        shards: int,
        compute_params: Iterable[torch.Tensor] | None,
    ) -> torch.Tensor:
        return compute_tiled(
            lambda tile: fn(self, tile), [x], compute_params or (), tiles=shards, dim=-2, join=_C.Join.ALONG_DIM
        )


class TiledFusedLogitsLoss:
    """Computes the mean or sum of ``fn(self, x, y)`` or ``fn(self, x, y, mask)`` over tiles of all tokens of the batch.

    The forward pass computes the gradients together with the loss, unless the loss is in fp16.
    """

    @staticmethod
    def apply(
        fn: Callable[..., torch.Tensor],
        self: Any,
        x: torch.Tensor,
        y: torch.Tensor,
        mask: torch.Tensor | None,
        shards: int,
        compute_params: Iterable[torch.Tensor] | None,
        output_reduction: str,
    ) -> torch.Tensor:
        _check_reduction(output_reduction, ("mean", "sum"))
        for name, tensor in (("x", x), ("y", y)):
            if tensor.dim() < 2:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected (batch, sequence, ...)")
        if x.shape[:2] != y.shape[:2] or (mask is not None and mask.shape != x.shape[:2]):
            shapes = [tuple(tensor.shape) for tensor in (x, y, mask) if tensor is not None]
            raise ValueError(f"x, y and mask have shapes {shapes}, which differ in (batch, sequence)")
        inputs = [x, y] if mask is None else [x, y, mask]
        return compute_tiled(
            lambda *tensors: fn(self, *tensors),
            [tensor.flatten(0, 1) for tensor in inputs],
            compute_params or (),
            tiles=shards,
            dim=0,
            join=_JOINS[output_reduction],
            at_once=True,
        )


def _check_reduction(reduction: str | None, known: tuple[str | None, ...]) -> None:
    if reduction not in known:
        raise ValueError(f"output_reduction is {reduction!r}, expected one of {', '.join(map(str, known))}")
