"""Computes losses and MLPs for one tile of the sequence at a time (``zeroshard.tile``)."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn

from . import _C
from .hooks import TileLoop

_ALONG_SEQUENCE = 1  # the sequence's dimension in hidden states and labels
# The names of the layers in those MLPs of transformers that compute each token independently of the others.
_MLPS = (
    {"gate_proj", "up_proj", "down_proj"},
    {"gate_up_proj", "down_proj"},
    {"c_fc", "c_proj"},
    {"fc1", "fc2"},
    {"dense_h_to_4h", "dense_4h_to_h"},
)


def tile(model: nn.Module, loss: str | int | None = "auto", mlp: str | int | None = "auto") -> None:
    """Computes the loss and the MLPs of a model of transformers for one tile of the sequence at a time.

    Logits and intermediate results of MLPs then exist for one tile at a time. The results are the same as without
    tiles. ``tile`` works before and after ``zeroshard.initialize``, and without an engine. A second call changes the
    numbers of tiles.

    Args:
        model: a causal language model of transformers, or a module that contains one.
        loss: number of tiles of the loss while the model trains. ``"auto"``: a tile's logits take at most 256 MiB.
            None: no tiles, and the model returns whole logits. Without labels, the model always returns whole logits.
            In evaluation it also returns them, unless the call of its forward has ``skip_logits=True``.
        mlp: number of tiles of each MLP. ``"auto"``: a tile has at most as many tokens as a hidden state has
            elements. None: no tiles.

    >>> zeroshard.tile(model)
    >>> engine, *_ = zeroshard.initialize(model=model, config=config)
    """
    for name, tiles in (("loss", loss), ("mlp", mlp)):
        is_number = isinstance(tiles, int) and not isinstance(tiles, bool) and tiles >= 1
        if not is_number and tiles is not None and tiles != "auto":
            raise _C.ValueError(f'tile: {name} is {tiles!r}, expected "auto", None or a number of tiles from 1 on')
    models = [module for module in model.modules() if _has_causal_loss(module)]
    mlps = [module for module in model.modules() if _is_mlp(module)]
    # With "auto", does not change models of Liger, because Liger's own function for the loss creates no logits either.
    ligers = [each for each in models if _is_of_liger(each)] if loss == "auto" else []
    kind = type(model).__name__
    if loss is not None and not models:
        raise _C.ValueError(
            f"tile: {kind} has no causal language model of transformers, whose loss zeroshard could compute in tiles: "
            "give loss=None, and compute the loss by deepspeed's TiledFusedLogitsLoss or sequence_tiled_compute "
            "(zeroshard.compat.tiles)"
        )
    if mlp is not None and not mlps:
        raise _C.ValueError(
            f"tile: {kind} has no MLP whose layers zeroshard knows ({_known_mlps()}): give mlp=None, and let its "
            "forward call deepspeed's TiledMLP (zeroshard.compat.tiles)"
        )
    for each in models:
        _set_forward(each, _TiledLoss, None if each in ligers else loss)
    for each in mlps:
        _set_forward(each, _TiledMLP, mlp)


def compute_tiled(
    function: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor],
    params: Iterable[torch.Tensor],
    *,
    tiles: int,
    dim: int,
    join: _C.Join,
    num_cut: int | None = None,
    at_once: bool = False,
) -> torch.Tensor:
    """Computes ``function(*inputs)`` tile by tile. Cuts the first ``num_cut`` inputs (default: all) along ``dim``.

    For ``params``, ``join`` and ``at_once`` see src/hooks/tiles.h. Raises ``StateError`` inside a transform of
    torch.func.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise _C.StateError("tiles are not for functions that torch.func transforms: compute without tiles there")
    with TileLoop() as loop:
        result = _C.compute_tiled(
            lambda of_tile: function(*of_tile),
            list(inputs),
            list(params),
            tiles=tiles,
            dim=dim,
            num_cut=len(inputs) if num_cut is None else num_cut,
            join=join,
            at_once=at_once,
            around_backward=_around,
        )
        loop.outputs.append(result)
    return result


def _around(loop: Callable[[], None]) -> None:
    with TileLoop():
        loop()


class _Tiled:
    """Replaces the forward of a module by one that computes tile by tile."""

    def __init__(self, module: nn.Module, tiles: str | int) -> None:
        self.before = module.forward
        self.is_of_class = "forward" not in vars(module)
        self.module = module
        self.tiles = tiles
        self._call = torch.compiler.disable(_call)  # not done at import, because disable() imports torch's compiler
        functools.update_wrapper(self, self.before, updated=())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_call"}  # _call cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _call=torch.compiler.disable(_call))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self, *args, **kwargs)  # a copy of this object shares the function, and passes itself

    def run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def _call(tiled: _Tiled, *args: Any, **kwargs: Any) -> Any:
    """Runs the tiled forward outside of compiled code. Graphs of enclosing modules end before it and go on after it."""
    return tiled.run(*args, **kwargs)


class _TiledMLP(_Tiled):
    def run(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        (x,) = (*args, *kwargs.values())
        tiles = _C.mlp_tiles(x.shape[-2], x.shape[-1]) if self.tiles == "auto" else self.tiles
        if min(tiles, x.shape[-2]) <= 1:
            return self.before(x)
        params = self.module.parameters()
        return compute_tiled(self.before, [x], params, tiles=tiles, dim=-2, join=_C.Join.ALONG_DIM)


class _TiledLoss(_Tiled):
    """The forward of a causal language model. The part after the model's body is called for one tile after another.

    So the model still changes its logits in its own way, for example by capping them, and computes the loss with its
    own function. Calls the original forward if the caller needs logits, if there are no labels, or for a single tile.
    """

    def run(self, *args: Any, skip_logits: bool | None = None, **kwargs: Any) -> Any:
        given = self._named(args, kwargs)
        labels = given.get("labels")
        skips = self.module.training if skip_logits is None else skip_logits
        keeps = given.get("logits_to_keep")
        if not skips or labels is None or isinstance(keeps, torch.Tensor) or keeps:
            return self.before(*args, **kwargs)
        targets = given.get("shift_labels")
        ignored = given.get("ignore_index", -100)
        if targets is None:
            targets = nn.functional.pad(labels, (0, 1), value=ignored)[..., 1:]
        tiles = _C.loss_tiles(targets.numel(), self._vocabulary()) if self.tiles == "auto" else self.tiles
        if min(tiles, targets.shape[-1]) <= 1:
            return self.before(*args, **kwargs)
        return_dict = given.pop("return_dict", None)
        body = self._run_body(given)
        targets = targets.to(body.last_hidden_state.device)
        return self._with_loss(given, body, targets, ignored, tiles, return_dict)

    def _named(self, args: tuple, kwargs: dict) -> dict[str, Any]:
        named = inspect.signature(self.before).bind(*args, **kwargs).arguments
        rest = [p.name for p in inspect.signature(self.before).parameters.values() if p.kind is p.VAR_KEYWORD]
        more = named.pop(rest[0], {}) if rest else {}
        return {**named, **more}

    def _vocabulary(self) -> int:
        return self.module.config.get_text_config().vocab_size

    def _run_body(self, given: dict[str, Any]) -> Any:
        body = self.module.base_model

        def stop(*args: Any, **kwargs: Any) -> NoReturn:
            raise _BodyEnded(body(*args, **kwargs))

        output = None
        try:
            with _in_place_of(self.module, {self.module.base_model_prefix: _Body(body, stop)}):
                self.before(**given)
        except _BodyEnded as end:
            output = end.output
        if getattr(output, "last_hidden_state", None) is None:
            self._refuse(
                f"its forward does not call self.{self.module.base_model_prefix}, or gets no last_hidden_state from it "
                "(return_dict=False in its config?)"
            )
        return output

    def _with_loss(
        self, given: dict, body: Any, targets: torch.Tensor, ignored: int, tiles: int, return_dict: bool | None
    ) -> Any:
        number = given.get("num_items_in_batch")
        number = (targets != ignored).sum() if number is None else number
        outputs = []

        def of_tile(hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            losses = []

            def loss(*args: Any, **kwargs: Any) -> torch.Tensor:
                kwargs |= {"shift_labels": labels.contiguous(), "num_items_in_batch": number}
                losses.append(function(*args, **kwargs))
                return losses[-1]

            output = type(body)(**{**body, "last_hidden_state": hidden})
            ready = _Body(self.module.base_model, lambda *args, **kwargs: output)
            places = {self.module.base_model_prefix: ready, "_loss_function": loss}
            with _in_place_of(self.module, places):
                result = self.before(**{**given, "labels": labels})
            if len(losses) != 1 or result.loss is not losses[0]:
                self._refuse("its forward changes what self.loss_function returns, or does not call it")
            result["loss"] = result["logits"] = None  # so that both are freed with the tile
            outputs[:] = [result]
            return losses.pop()

        function = self._loss_function()
        loss = compute_tiled(
            of_tile,
            [body.last_hidden_state, targets],
            self.module.get_output_embeddings().parameters(),
            tiles=tiles,
            dim=_ALONG_SEQUENCE,
            join=_C.Join.SUM,
            at_once=True,
        )
        result = outputs.pop()  # of_tile must not refer to the loss, because the graph of the loss refers to of_tile
        result["loss"], result["logits"] = loss, NoLogits()
        wants_tuple = not (self.module.config.return_dict if return_dict is None else return_dict)
        return result.to_tuple() if wants_tuple else result

    def _loss_function(self) -> Callable[..., torch.Tensor]:
        from transformers.loss.loss_utils import ForCausalLMLoss

        function = self.module.loss_function
        if function is not ForCausalLMLoss:
            name = getattr(function, "__name__", type(function).__name__)
            self._refuse(f"its loss is {name}, and not ForCausalLMLoss of transformers")
        return function

    def _refuse(self, reason: str) -> NoReturn:
        raise _C.StateError(
            f"zeroshard.tile: the loss of {type(self.module).__name__} cannot be computed in tiles, because {reason}: "
            "call zeroshard.tile(model, loss=None), which leaves the loss as it is, or compute the loss by deepspeed's "
            "TiledFusedLogitsLoss"
        )


class NoLogits:
    """Replaces the logits in the output of a model whose loss was computed in tiles."""

    _TEXT = (
        "the logits are gone: zeroshard.tile() computed the loss in tiles. Pass skip_logits=False to the model's "
        "forward where they are needed, or call zeroshard.tile(model, loss=None)"
    )

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name}: {self._TEXT}")

    def __getitem__(self, index: Any) -> NoReturn:
        raise _C.StateError(self._TEXT)

    def __repr__(self) -> str:
        return f"<{self._TEXT}>"


class _BodyEnded(BaseException):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


class _Body:
    """Replaces a model's body during a call of the model. It has the body's attributes."""

    def __init__(self, body: nn.Module, call: Callable[..., Any]) -> None:
        self._body, self._call = body, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)


@contextmanager
def _in_place_of(module: nn.Module, values: dict[str, Any]) -> Iterator[None]:
    """Gives the module's attributes these values inside.

    ``values`` may also replace submodules, because Python finds attributes of the instance first.
    """
    own = vars(module)
    before = {name: own[name] for name in values if name in own}
    own.update(values)
    try:
        yield
    finally:
        for name in values:
            del own[name]
        own.update(before)


def _set_forward(module: nn.Module, kind: type[_Tiled], tiles: str | int | None) -> None:
    found = vars(module).get("forward")
    if isinstance(found, kind) and found.module is module:
        if tiles is not None:
            found.tiles = tiles
        elif found.is_of_class:
            del module.forward
        else:
            module.forward = found.before
    elif tiles is not None:
        module.forward = kind(module, tiles)


def _has_causal_loss(module: nn.Module) -> bool:
    transformers = sys.modules.get("transformers.modeling_utils")
    if transformers is None or not isinstance(module, transformers.PreTrainedModel):
        return False
    names = inspect.signature(module.forward).parameters
    return module.base_model is not module and module.get_output_embeddings() is not None and "labels" in names


def _is_of_liger(module: nn.Module) -> bool:
    function = inspect.unwrap(module.forward)
    return getattr(function, "__module__", "").partition(".")[0] == "liger_kernel"


def _is_mlp(module: nn.Module) -> bool:
    layers = {name for name, child in module.named_children() if next(child.parameters(), None) is not None}
    takes_one = len(inspect.signature(module.forward).parameters) == 1  # has no residual argument
    return type(module).__name__.endswith("MLP") and layers in _MLPS and takes_one


def _known_mlps() -> str:
    return "; ".join(", ".join(sorted(names)) for names in _MLPS)
