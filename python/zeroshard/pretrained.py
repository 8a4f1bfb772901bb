"""Writes a trained model as a directory that ``from_pretrained`` reads."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from .gathering import gathered
from .messages import a_type
from .names import original, plain_names
from .run import Run
from .together import together

# Files that are next to the weights of a model, and without which nobody can use the model.
_COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "preprocessor_config.json",
    "processor_config.json",
)
# Texts by which the names of PEFT's adapter parameters are recognised, besides the adapter's own prefix ("lora_").
_ADAPTER_PARTS = ("modules_to_save.", "trainable_tokens_", "prompt_encoder.")


def save_pretrained(run: Run, save_dir: str | os.PathLike, tokenizer: Any, options: dict[str, Any]) -> None:
    """Does the work of ``Engine.save_pretrained``."""
    module = original(run.module)

    def check() -> None:
        if not hasattr(module, "save_pretrained"):
            raise ValueError(
                f"save_pretrained: {a_type(module)} has no such method, as models of transformers, PEFT and "
                "diffusers have: save_16bit_model writes the weights of any module"
            )
        if os.path.exists(save_dir) and not os.path.isdir(save_dir):
            raise ValueError(f"save_pretrained: '{os.fspath(save_dir)}' is a file: name a directory")
        if refused := options.keys() & {"state_dict", "is_main_process", "push_to_hub"}:
            raise ValueError(
                f"save_pretrained: {sorted(refused)[0]} cannot be given: all ranks call this, and rank 0 writes"
            )

    together(run, check, "save_pretrained")

    def write(**weights: Any) -> None:
        if run.rank == 0:
            with _only_originals(module):
                module.save_pretrained(save_dir, **weights, **options)
            _save_tokenizer(module, save_dir, tokenizer)

    # Gathers adapters on the device instead of copying them to the CPU. They are small, and PEFT computes the values of
    # a prompt from the parameters of the model itself.
    if _is_peft(module):
        with gathered(_adapter_params(module)):
            together(run, write, "save_pretrained")
    else:
        weights = state_dict_of_rank_0(run, lambda param: True)
        together(run, lambda: write(state_dict=weights), "save_pretrained")


def save_config(run: Run, save_dir: str | os.PathLike) -> None:
    """Writes the model's config.json and generation_config.json next to its weights. Only rank 0 calls it.

    Leaves a file that exists. Writes nothing for a model without such a configuration.
    """
    module = original(run.module)
    for name, part in (("config.json", "config"), ("generation_config.json", "generation_config")):
        config = getattr(module, part, None)
        if not hasattr(config, "save_pretrained") or os.path.exists(os.path.join(save_dir, name)):
            continue
        if part == "config" and getattr(config, "architectures", None) is None:
            config.architectures = [type(module).__name__]  # as transformers does when it saves
        config.save_pretrained(save_dir)


def state_dict_of_rank_0(run: Run, wanted: Callable[[torch.Tensor], bool]) -> dict[str, Any] | None:
    """Returns the ``state_dict`` with the ``wanted`` parameters and all buffers, on the CPU of rank 0.

    Collective. Returns None on other ranks. The names do not have the parts that torch.compile adds. Gathers parameters
    unit by unit. So no rank needs more memory than in a step, except rank 0 for its copies. Publishes a delayed update
    first, unless there are pending gradients.
    """
    if not run.core.has_pending_gradients:  # pending gradients belong to the parameters before the update
        run.core.publish_update()
    copies: dict[int, torch.Tensor] = {}  # by id() of the parameter; tied ones share a copy
    failures: list[Exception] = []

    def copy(tensors: Iterable[torch.Tensor]) -> None:
        try:  # an error must not end the gathers, because the other ranks take part in them
            own = next(iter(tensors)).detach().to("cpu", copy=True)
            copies.update(dict.fromkeys(map(id, tensors), own))
        except Exception as error:  # noqa: BLE001 - raised below, on every rank
            failures.append(error)

    for unit in run.units:
        params = [param for param in unit.params if wanted(param.tensors[0])]
        with gathered([param.tensors[0] for param in params]):
            for param in params if run.rank == 0 and not failures else []:
                copy(param.tensors)

    def report() -> None:
        if failures:
            raise failures[0]

    together(run, report, "gathering the state_dict")
    if run.rank != 0:
        return None
    left_out = {id(param) for param in run.module.parameters() if not wanted(param)}
    found = run.module.state_dict(keep_vars=True)
    kept = {name: value for name, value in found.items() if id(value) not in left_out}
    plain = plain_names((name, id(copies.get(id(value), value))) for name, value in kept.items())
    return {plain[name]: _on_cpu(value, copies) for name, value in kept.items()}


def _on_cpu(value: Any, copies: dict[int, torch.Tensor]) -> Any:
    if id(value) in copies:
        return copies[id(value)]
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


@contextlib.contextmanager
def _only_originals(model: nn.Module) -> Iterator[None]:
    """Replaces compiled modules in ``model`` by their originals in this context.

    So the names of parameters do not have the parts that torch.compile adds.
    """
    places = [(each._modules, name, child) for each in model.modules() for name, child in each._modules.items()]
    places = [place for place in places if place[2] is not None]
    try:
        for children, name, child in places:
            children[name] = original(child)
        yield
    finally:
        for children, name, child in places:
            children[name] = child


def _is_peft(module: nn.Module) -> bool:
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(module, peft.PeftModel)


def _adapter_params(module: nn.Module) -> list[torch.Tensor]:
    """Returns the parameters of all adapters, trained or not, and all other parameters that are trained."""
    parts = (*_ADAPTER_PARTS, getattr(module.base_model, "prefix", "lora_"))
    return [
        param for name, param in module.named_parameters() if param.requires_grad or any(part in name for part in parts)
    ]


def _save_tokenizer(module: nn.Module, save_dir: str | os.PathLike, tokenizer: Any) -> None:
    if tokenizer is not None:
        tokenizer.save_pretrained(save_dir)
        return
    source = getattr(getattr(module, "config", None), "_name_or_path", "") or ""
    if not os.path.isdir(source):
        return
    for name in _COMPANIONS:
        path, copy = os.path.join(source, name), os.path.join(save_dir, name)
        if os.path.isfile(path) and not os.path.exists(copy):
            with contextlib.suppress(shutil.SameFileError):
                shutil.copyfile(path, copy)
