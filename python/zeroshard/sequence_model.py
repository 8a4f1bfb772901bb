"""Cuts models of transformers: their forward gets a piece of each row, and their attention sees whole rows.

Outside of attention, a rank has a piece of the row for all heads. Inside of attention, it has the whole row for its own
heads. An exchange among ranks at the beginning of each layer's attention changes from pieces for all heads to whole
rows for some heads. An exchange at its end changes back. The model itself makes its masks, for whole rows. For these,
each forward gathers positions and padding once.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from . import _C
from .sequence_checks import check_attention_name, check_model, has_longrope, text_config
from .sequence_groups import SequenceGroup
from .sequence_rows import PIECE_WITHOUT_LABELS

_NO_GRAPH = "sequence parallelism exchanges pieces of rows here, between graphs: compile without fullgraph=True"
_PER_HEAD = ("position_bias", "s_aux", "alibi", "head_mask")  # arguments of attention with a part per head: refused

# Maps each module of a cut model to the model's cut.
_cuts: weakref.WeakKeyDictionary[nn.Module, Cut] = weakref.WeakKeyDictionary()
_replaced: dict[str, Callable] = {}  # attention functions of transformers that were replaced for cut models, by name
_running: list[Forward] = []  # at most one: the running forward


class Forward(NamedTuple):
    """The positions and the padding of the whole rows of a forward."""

    length: int
    positions: torch.Tensor
    padding: torch.Tensor | None


class Cut:
    """The sequence parallelism of one model."""

    def __init__(
        self, model: nn.Module, group: SequenceGroup, *, averages_loss: bool, in_evaluation: bool, by_engine: bool
    ) -> None:
        self.group = group
        self.averages_loss = averages_loss
        self.by_engine = by_engine
        self.layers = text_config(model).num_hidden_layers
        self._in_evaluation = in_evaluation
        self._model = weakref.ref(model)
        self._is_on = False  # true: the running forward gets pieces
        self._outermost: nn.Module | None = None  # the outermost module with hooks of this cut whose forward is running
        self.attended = 0  # number of calls of attention in the running forward
        self._whole_positions = WeakIdKeyDictionary()  # position_ids of a piece -> those of the whole rows
        self._handles = []
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        for module in dict.fromkeys((model, inner)):  # a model with an adapter generates with its inner model
            self._add_hooks(module, _begin_forward, _end_forward)
        for module in filter(has_longrope, model.modules()):
            self._add_hooks(module, _append_last_position, _drop_last_position)

    def _add_hooks(self, module: nn.Module, before: Callable, after: Callable) -> None:
        self._handles += [
            module.register_forward_pre_hook(self._hook(before), with_kwargs=True),
            module.register_forward_hook(self._hook(after), with_kwargs=True, always_call=True),
        ]

    def _hook(self, step: Callable) -> Callable:
        mine = weakref.ref(self)

        def hook(model: nn.Module, *arguments: Any) -> Any:
            cut = mine()
            return step(cut, model, *arguments) if cut is not None and _cuts.get(model) is cut else None

        return torch.compiler.disable(hook, reason=_NO_GRAPH)  # compiled models run the hook between graphs

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def is_on(self) -> bool:
        """Returns whether attention gets pieces now.

        In training this is always true in a backward pass, because a backward pass can repeat forwards. Raises
        ``StateError`` if attention would need whole rows outside of the model's forward.
        """
        model = self._model()
        training = model is not None and model.training
        if torch._C._current_graph_task_id() != -1 and training:
            return True
        if self._outermost is None and (training or self._is_always_on_in_evaluation):
            raise _C.StateError(
                "sequence parallelism: a part of the model is called outside of the model's forward, which alone knows "
                "the whole rows: call the engine, or the module that it was made for"
            )
        return self._is_on

    @property
    def _is_always_on_in_evaluation(self) -> bool:
        return self._in_evaluation and not self.averages_loss  # as in DeepSpeed

    def begin(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        if self._outermost is not None and self._outermost is not model:
            return None
        self._outermost, self._is_on, self.attended = model, False, 0
        _running.clear()
        if not self._takes_pieces(model, kwargs):
            return None
        forward = _whole_rows(self.group, args, kwargs, averages_loss=self.averages_loss, model=model)
        self._is_on = True
        if (positions := kwargs.get("position_ids")) is not None:
            self._whole_positions[positions] = forward.positions
        _running.append(forward)
        labels = kwargs.get("shift_labels")
        if labels is not None and labels.dtype == PIECE_WITHOUT_LABELS:
            return args, {key: value for key, value in kwargs.items() if key != "shift_labels"}
        if self.averages_loss and kwargs.get("labels") is None and labels is not None:
            return args, kwargs | {"labels": labels}  # models compute no loss without labels
        return None

    def _takes_pieces(self, model: nn.Module, kwargs: dict[str, Any]) -> bool:
        if _generates(kwargs):
            return False
        if model.training or (self._in_evaluation and kwargs.get("shift_labels") is not None):
            return True
        if self._in_evaluation and not self._is_always_on_in_evaluation and kwargs.get("past_key_values") is None:
            _check_is_no_piece(self.group, kwargs.get("position_ids"))
        return self._is_always_on_in_evaluation

    def end(self, model: nn.Module, kwargs: dict[str, Any], output: Any) -> Any:
        if self._outermost is not model:
            return None
        was_on, self._is_on, self._outermost = self._is_on, False, None
        _running.clear()
        if not was_on:
            return None
        if output is None:
            _tell_failure(self.group, sys.exc_info()[1])
            return None
        if self.attended < self.layers:
            raise _C.StateError(
                f"sequence parallelism: {self.attended} of {self.layers} layers called their attention through "
                "transformers' attention interface, so the others saw pieces of rows: this model is not supported"
            )
        labels = kwargs.get("shift_labels")
        if not self.averages_loss or labels is None:
            return None
        loss = output[0] if isinstance(output, tuple) else getattr(output, "loss", None)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            return None
        if kwargs.get("num_items_in_batch") is None:
            mean = self.group.core.mean(loss, (labels != -100).sum())
        else:  # each loss is a sum over a piece, divided by the items of the whole rows
            mean = self.group.core.mean(loss, torch.ones((), device=loss.device)) * self.group.size
        if isinstance(output, tuple):
            return mean, *output[1:]
        output.loss = mean
        return output

    def whole_positions(self, piece: torch.Tensor) -> torch.Tensor:
        if piece not in self._whole_positions:
            self._whole_positions[piece] = self.group.core.gather(piece)
        return self._whole_positions[piece]


def _begin_forward(cut: Cut, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
    return cut.begin(model, args, kwargs)


def _end_forward(cut: Cut, model: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
    return cut.end(model, kwargs, output)


def _append_last_position(cut: Cut, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Appends the last position of whole rows to the input of a rotary embedding that chooses frequencies by it."""
    if not _running:
        return None
    arguments = inspect.signature(model.forward).bind(*args, **kwargs)
    piece = arguments.arguments["position_ids"]
    last = _running[-1].positions.max().to(piece.dtype).expand(*piece.shape[:-1], 1)
    arguments.arguments["position_ids"] = torch.cat([piece, last], dim=-1)
    return arguments.args, arguments.kwargs


def _drop_last_position(cut: Cut, model: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
    if not _running or output is None:
        return None
    return tuple(each[:, :-1] for each in output)


def _generates(kwargs: dict[str, Any]) -> bool:
    """Returns whether the model generates text. Generation gets whole rows, even in training mode."""
    if torch.is_grad_enabled() or kwargs.get("shift_labels") is not None:
        return False
    last = kwargs.get("logits_to_keep")  # `generate` requests only the last logits, even without a cache
    return kwargs.get("past_key_values") is not None or (isinstance(last, int) and last == 1)


def _check_is_no_piece(group: SequenceGroup, positions: Any) -> None:
    if group.rank == 0 or not isinstance(positions, torch.Tensor) or positions.ndim != 2 or not positions.numel():
        return
    first = group.rank * positions.shape[1]
    if bool((positions[:, 0] == first).all()):
        raise _C.StateError(
            f"sequence parallelism: position_ids begin at {first}, as those of a piece of a row do, and in evaluation "
            "the model takes pieces only with their shift_labels: leave shift_labels in the batch"
        )


def tell_failed_backward(model: nn.Module, error: BaseException) -> None:
    """Makes waits of the ranks that share rows with this rank fail with ``error``, if there are such ranks."""
    if (cut := _cuts.get(model)) is not None:
        _tell_failure(cut.group, error, "backward")


def _tell_failure(group: SequenceGroup, error: BaseException | None, what: str = "forward") -> None:
    """Makes waits of the group's other ranks fail with ``error``, unless they raise the same error themselves."""
    if error is not None and not str(error).startswith("sequence parallelism:"):
        rank = group.first_rank + group.rank
        group.core.abort(f"the {what} failed on rank {rank}: {type(error).__name__}: {error}")


def cut_of(model: nn.Module) -> Cut | None:
    return _cuts.get(model)


def cut_model(
    model: nn.Module,
    group: SequenceGroup,
    *,
    averages_loss: bool = True,
    in_evaluation: bool = True,
    by_engine: bool = False,
) -> None:
    """Makes the model's forward take pieces of rows. Raises ``ValueError`` if the model's sequence cannot be cut.

    Args:
        averages_loss: the model returns the mean of the loss over the group.
        in_evaluation: the forward also takes pieces in evaluation, if they have ``shift_labels``. Without
            ``averages_loss``, it then takes pieces with or without ``shift_labels``.
        by_engine: an engine's configuration has requested the cut. The configuration of the next engine decides anew.
    """
    check_model(model, group.size, None)
    uncut_model(model)
    replace_attention(model.config._attn_implementation)
    cut = Cut(model, group, averages_loss=averages_loss, in_evaluation=in_evaluation, by_engine=by_engine)
    for module in model.modules():
        _cuts[module] = cut


def uncut_model(model: nn.Module) -> None:
    if (cut := _cuts.get(model)) is None:
        return
    cut.remove()
    for module in model.modules():
        _cuts.pop(module, None)


def replace_attention(name: str) -> None:
    """Replaces the attention function ``name`` of transformers by one that calls it with whole rows of some heads.

    The new function has the old name, because models request the function by its name. For models that are not cut, it
    only calls the original. Also calls ``_replace_masks``. Raises ``ValueError`` for eager attention, and if
    transformers has no such function.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    check_attention_name(name)
    _replace_masks()
    if name in _replaced:
        return
    if "/" in name:  # a kernel of the hub is registered when somebody first requests it
        from transformers.modeling_flash_attention_utils import lazy_import_flash_attention

        lazy_import_flash_attention(name)
    if name not in ALL_ATTENTION_FUNCTIONS:
        known = ", ".join(ALL_ATTENTION_FUNCTIONS.valid_keys())
        raise ValueError(f"sequence parallelism: '{name}' is no attention of transformers, which has {known}")
    _replaced[name] = attention = ALL_ATTENTION_FUNCTIONS[name]

    @torch.compiler.disable(reason=_NO_GRAPH)
    def attend_with_pieces(cut: Cut, *arguments: Any, **options: Any) -> Any:
        if not cut.is_on:
            return attention(*arguments, **options)
        return _attend(attention, name, cut, *arguments, **options)

    @functools.wraps(attention)
    def attend(module: nn.Module, *arguments: Any, **options: Any) -> Any:
        cut = _cuts.get(module)
        if cut is None:
            return attention(module, *arguments, **options)
        return attend_with_pieces(cut, module, *arguments, **options)

    ALL_ATTENTION_FUNCTIONS[name] = attend


def _attend(
    attention: Callable,
    name: str,
    cut: Cut,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    *arguments: Any,
    **options: Any,
) -> tuple[torch.Tensor, Any]:
    length = query.shape[2] * cut.group.size
    _check_call(module, query, key, mask, length, options)
    cut.attended += 1
    query, key, value = cut.group.core.exchange([query, key, value])
    if isinstance(options.get("position_ids"), torch.Tensor) and "flash" in name:
        options["position_ids"] = cut.whole_positions(options["position_ids"])
    with _groups_of_heads(module, query.shape[1] // key.shape[1]):
        output, weights = attention(module, query, key, value, mask, *arguments, **options)
    return cut.group.core.exchange([output])[0], weights


def _check_call(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, mask: Any, length: int, options: dict[str, Any]
) -> None:
    name = type(module).__name__
    if options.get("dropout"):
        raise ValueError(f"sequence parallelism: {name} asks for dropout of {options['dropout']} inside of attention")
    causal = options.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise ValueError(f"sequence parallelism: {name} is not causal; only causal attention can be cut")
    if given := [option for option in _PER_HEAD if options.get(option) is not None]:
        raise ValueError(
            f"sequence parallelism: {name} gives attention {given[0]}, which has a part for each head. That is not "
            "supported, because each rank computes only some heads"
        )
    if query.shape[2] != key.shape[2]:
        raise ValueError(
            f"sequence parallelism: {name} attends with {query.shape[2]} queries to {key.shape[2]} keys: use no cache, "
            "and no other sequence, in a forward over pieces of rows"
        )
    shape = tuple(getattr(mask, "shape", (length,)))
    if any(words != length for words in shape[-2 if len(shape) == 4 else -1 :]):
        raise ValueError(
            f"sequence parallelism: the mask of {name} has the shape {shape}, and not that of whole rows, "
            f"which have {length} words: this model makes its own masks"
        )


@contextmanager
def _groups_of_heads(module: nn.Module, groups: int) -> Iterator[None]:
    """Sets, in this context, how many query heads share a key-value head.

    If key-value heads are replicated, this number is smaller than the one that the module itself has.
    """
    before = getattr(module, "num_key_value_groups", groups)
    if before == groups:
        yield
        return
    module.num_key_value_groups = groups
    try:
        yield
    finally:
        module.num_key_value_groups = before


# -- whole rows ------------------------------------------------------------------------------------------------------


def _whole_rows(
    group: SequenceGroup, args: tuple, kwargs: dict[str, Any], *, averages_loss: bool, model: nn.Module
) -> Forward:
    """Gathers positions and padding of whole rows. Collective.

    Raises ``ValueError`` on all ranks of the group if an input of any rank is wrong.
    """
    given = kwargs.get("input_ids")
    given = kwargs.get("inputs_embeds") if given is None else given
    given = args[0] if given is None and args else given
    positions, padding = kwargs.get("position_ids"), kwargs.get("attention_mask")
    shape = tuple(given.shape[:2]) if isinstance(given, torch.Tensor) and given.ndim >= 2 else (0, 0)
    items = _items(kwargs, model) if averages_loss else [-1, 0]
    wrong = _wrong_input(shape, positions, padding, kwargs) or (6 if items is None else 0)
    rows = tuple(positions.shape) if isinstance(positions, torch.Tensor) and positions.ndim == 2 else (-1, -1)
    kind = padding.element_size() if isinstance(padding, torch.Tensor) else -1
    told = group.core.tell([*shape, wrong, *rows, kind, *(items or [-1, 0])])
    for rank, numbers in enumerate(told, group.first_rank):
        if numbers[2]:
            raise ValueError(f"sequence parallelism: {_WRONG[numbers[2]]} (rank {rank})")
    if len({tuple(numbers[:6]) for numbers in told}) > 1:
        masked = [rank for rank, numbers in enumerate(told, group.first_rank) if numbers[5] >= 0]
        shapes = "; ".join(
            f"rank {rank}: {numbers[0]} x {numbers[1]}" for rank, numbers in enumerate(told, group.first_rank)
        )
        raise ValueError(
            "sequence parallelism: the ranks of a sequence group have different inputs. Take batches from "
            "zeroshard.sequence_parallel(model, loader), which gives the ranks pieces of the same rows."
            f"\n  rows x words of the pieces: {shapes}"
            f"\n  shapes of position_ids: {[tuple(numbers[3:5]) for numbers in told]}"
            f"\n  rank(s) {masked} have an attention_mask"
        )
    _check_items([numbers[6] for numbers in told], sum(numbers[7] for numbers in told))
    return Forward(
        shape[1] * group.size,
        group.core.gather(positions),
        group.core.gather(padding) if padding is not None else None,
    )


_PARTS = 1024  # ranks compare num_items_in_batch in 1024ths, because it is a fraction if it is a mean over ranks


def _items(kwargs: dict[str, Any], model: nn.Module) -> list[int] | None:
    """Returns ``num_items_in_batch`` in units of 1 / ``_PARTS``, and the number of labels of the piece.

    Returns [-1, 0] if ``num_items_in_batch`` is not given, and None if it is given but the model ignores it.
    """
    items, labels = kwargs.get("num_items_in_batch"), kwargs.get("shift_labels")
    if items is None:
        return [-1, 0]
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not getattr(inner, "accepts_loss_kwargs", True):
        return None
    count = int((labels != -100).sum()) if isinstance(labels, torch.Tensor) else 0
    return [round(float(items) * _PARTS), count]


def _check_items(parts: list[int], labels: int) -> None:
    if len(set(parts)) > 1 or 0 <= parts[0] < labels * _PARTS:
        each = ", ".join("none" if part < 0 else f"{part / _PARTS:g}" for part in parts)
        raise ValueError(
            f"sequence parallelism: num_items_in_batch is {each} on the ranks of a sequence group, whose rows have "
            f"{labels} labels: give all of them the number of labels in the whole rows of a step"
        )


_WRONG = [
    "",
    "forward needs input_ids or inputs_embeds by name, with rows and words",
    "forward needs position_ids of the piece, which continue those of the piece before: take batches from "
    "zeroshard.sequence_parallel(model, loader) or UlyssesSPDataLoaderAdapter",
    "forward has labels without shift_labels, and a piece lacks the word after its last one: take batches from "
    "zeroshard.sequence_parallel(model, loader) or UlyssesSPDataLoaderAdapter",
    "the attention_mask must be a tensor with a number for each word of the piece",
    "past_key_values are given: training over pieces of rows has no cache",
    "num_items_in_batch is given to a model whose loss does not take it: leave it out",
    "ignore_index is given, and words without a label have -100 here: set these labels to -100 and leave it out",
    "output_router_logits is given, and a loss over the routers of a piece is not that of the row: leave it out",
]


def _wrong_input(shape: tuple[int, ...], positions: Any, padding: Any, kwargs: dict[str, Any]) -> int:
    cache = kwargs.get("past_key_values")
    if shape == (0, 0):
        return 1
    if not isinstance(positions, torch.Tensor) or positions.ndim != 2 or positions.shape[1] != shape[1]:
        return 2
    shifted = kwargs.get("shift_labels")
    if kwargs.get("labels") is not None and (shifted is None or shifted.dtype == PIECE_WITHOUT_LABELS):
        return 3
    if padding is not None and (not isinstance(padding, torch.Tensor) or tuple(padding.shape) != shape):
        return 4
    if kwargs.get("ignore_index", -100) != -100:
        return 7
    if kwargs.get("output_router_logits"):
        return 8
    return 5 if cache is not None and hasattr(cache, "get_seq_length") and cache.get_seq_length() > 0 else 0


def _replace_masks() -> None:
    """Makes models of transformers build their masks for whole rows while a forward over pieces runs.

    Raises ``ImportError`` for a version of transformers that makes masks in another way.
    """
    from transformers import masking_utils

    inner = getattr(masking_utils, "_preprocess_mask_arguments", None)
    if inner is None or not hasattr(masking_utils, "maybe_pad_block_sequence_ids"):
        raise ImportError(
            "sequence parallelism: this version of transformers makes masks in a way that is not known here: use 4.53 "
            "to 5.23"
        )
    if getattr(inner, "of_whole_rows", False):
        return
    signature = inspect.signature(inner)

    @functools.wraps(inner)
    def preprocess(*args: Any, **kwargs: Any) -> Any:
        if not _running:
            return inner(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        given, forward = bound.arguments, _running[-1]
        if given.get("encoder_hidden_states") is not None:
            raise ValueError("sequence parallelism: attention to the output of an encoder is not supported")
        embeds, mask = given["inputs_embeds"], given.get("attention_mask")
        given["inputs_embeds"] = embeds[:, :1].expand(-1, forward.length, *embeds.shape[2:])
        if given.get("position_ids") is not None:
            given["position_ids"] = forward.positions
        if mask is not None:
            if forward.padding is None or mask.ndim != 2:
                raise ValueError(
                    "sequence parallelism: the model makes an attention_mask that the rank was not given. Only a mask "
                    "of rows and words that is passed to forward is supported"
                )
            given["attention_mask"] = forward.padding
        return inner(*bound.args, **bound.kwargs)

    remap = masking_utils.packed_sequence_compatibility_function

    @functools.wraps(remap)
    def remap_whole_rows(mask_function: Callable, positions: torch.Tensor, documents: torch.Tensor) -> Callable:
        whole = _running[-1].positions.expand(documents.shape) if _running else positions
        return remap(mask_function, whole, documents)

    pad_blocks = masking_utils.maybe_pad_block_sequence_ids

    @functools.wraps(pad_blocks)
    def refuse_blocks(*args: Any, **kwargs: Any) -> Any:
        if _running:
            raise ValueError("sequence parallelism: masks with blocks, as for the words of an image, are not supported")
        return pad_blocks(*args, **kwargs)

    preprocess.of_whole_rows = True
    masking_utils._preprocess_mask_arguments = preprocess
    masking_utils.packed_sequence_compatibility_function = remap_whole_rows
    masking_utils.maybe_pad_block_sequence_ids = refuse_blocks
