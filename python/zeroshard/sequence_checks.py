"""Checks whether a model's sequence can be cut. The checks need no other rank, and all ranks raise the same error."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "attention"}  # values of config.layer_types
_OVER_THE_SEQUENCE = ("mamba", "rwkv", "deltanet", "linearattention", "shortconv", "recurrent", "xlstm", "retention")
_DROPOUTS = (
    "attention_dropout",
    "attn_pdrop",
    "attention_probs_dropout_prob",
    "attn_dropout",
    "attention_dropout_prob",
)


def text_config(model: nn.Module) -> Any:
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        raise ValueError(
            "sequence parallelism needs a model of transformers, whose attention can be replaced: "
            f"{type(model).__name__} has no configuration of transformers"
        )
    return config.get_text_config()


def check_model(model: nn.Module, size: int, attention: str | None) -> None:
    """Raises ``ValueError`` for a model that cannot train with a sequence cut into ``size`` pieces.

    ``attention`` is the name of the attention that the caller wants, or None for the model's own.
    """
    name = type(model).__name__
    text_config(model)
    _check_adapters(model, name)
    _check_attention(model, name, attention)
    check_config(model.config, name, size)
    _check_layers(model, name)


def check_config(whole: Any, name: str, size: int) -> None:
    """Makes the checks of ``check_model`` that need only the model's configuration."""
    config = whole.get_text_config()
    _check_heads(config, name, size)
    if kinds := sorted(set(getattr(config, "layer_types", None) or ()) - _ATTENTION):
        _refuse_layers(name, [f"layers of type {kind}" for kind in kinds])
    if getattr(whole, "is_encoder_decoder", False):
        raise ValueError(f"sequence parallelism: {name} has an encoder and a decoder; only decoders can be cut")
    _check_positions(config, name, size)
    if getattr(config, "output_router_logits", False):
        raise ValueError(
            f"sequence parallelism: output_router_logits of {name} is True: a loss over the routers of a piece is not "
            "that of the row. Set output_router_logits=False in the model's configuration"
        )
    for key in _DROPOUTS:
        if getattr(config, key, 0):
            raise ValueError(
                f"sequence parallelism: {key} of {name} is {getattr(config, key)}: with dropout inside of attention a "
                f"run would depend on the number of ranks. Make the model with {key}=0"
            )


def rope_types(config: Any) -> dict[str, dict[str, Any]]:
    """Returns the settings of rotary embeddings by their type. Each type of layer can have settings of its own."""
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    each = [given, *(value for value in given.values() if isinstance(value, dict))] if isinstance(given, dict) else []
    return {rope.get("rope_type", rope.get("type")): rope for rope in each if isinstance(rope, dict)}


def has_longrope(module: nn.Module) -> bool:
    """Returns whether ``module`` is a rotary embedding that chooses its frequencies by the last position."""
    kinds = getattr(module, "rope_type", None)
    return kinds == "longrope" or (isinstance(kinds, dict) and "longrope" in kinds.values())


def _check_positions(config: Any, name: str, size: int) -> None:
    ropes = rope_types(config)
    if "dynamic" in ropes:
        raise ValueError(
            f"sequence parallelism: rope_type of {name} is 'dynamic', whose frequencies depend on the length of the "
            "row: choose a rope_type whose frequencies do not, such as 'linear' or 'yarn'"
        )
    if "longrope" in ropes:
        border = ropes["longrope"].get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        if border and border % size:  # padding could make a row cross the border
            raise ValueError(
                f"sequence parallelism: original_max_position_embeddings of {name} is {border}, which {size} ranks do "
                "not divide: with rope_type='longrope' choose a size that does"
            )
    if getattr(config, "attn_temperature_tuning", False):
        raise ValueError(
            f"sequence parallelism: attn_temperature_tuning of {name} is {config.attn_temperature_tuning}: its layers "
            "count words from the start of a piece. Make the model with attn_temperature_tuning=False"
        )


def _check_adapters(model: nn.Module, name: str) -> None:
    adapters = getattr(model, "peft_config", None)
    for adapter, settings in adapters.items() if isinstance(adapters, dict) else ():
        if getattr(settings, "is_prompt_learning", False):
            raise ValueError(
                f"sequence parallelism: the adapter '{adapter}' of {name} is {type(settings).__name__}, which puts "
                "words in front of each piece: train an adapter of weights, such as LoRA"
            )


def check_attention_name(attention: Any) -> None:
    if attention is not None and "eager" in str(attention):
        raise ValueError(
            f"sequence parallelism: the attention of the model is '{attention}', which needs memory for the square of "
            "the sequence: load the model with attn_implementation='sdpa', 'flex_attention' or a flash attention"
        )


def _check_attention(model: nn.Module, name: str, attention: str | None) -> None:
    has = getattr(model.config, "_attn_implementation", None)
    check_attention_name(has)
    check_attention_name(attention)
    if attention is not None and has is not None and has != attention:
        raise ValueError(
            f"sequence parallelism: core_attn_implementation='{attention}' does not match the model's "
            f"attn_implementation='{has}': set both to the same"
        )
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not getattr(inner, "_supports_attention_backend", False):
        raise ValueError(
            f"sequence parallelism: {name} does not call its attention through transformers' attention interface"
        )


def _check_heads(config: Any, name: str, size: int) -> None:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads

    def fits(ranks: int) -> bool:
        return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)

    if fits(size):
        return
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    sizes = [each for each in range(1, heads + 1) if fits(each)]
    here = [each for each in sizes if ranks % each == 0]
    raise ValueError(
        f"sequence parallelism: {size} ranks cannot share the {heads} attention heads and {kv_heads} key-value heads "
        f"of {name}. Sizes that fit the heads: {_listed(sizes)}; those of them that divide the {ranks} ranks: "
        f"{_listed(here)}"
    )


def _check_layers(model: nn.Module, name: str) -> None:
    batch_norm = nn.modules.batchnorm._BatchNorm
    found = []
    for path, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.RNNBase | nn.Conv1d | nn.Conv2d | nn.Conv3d | batch_norm) or any(
            part in kind.lower() for part in _OVER_THE_SEQUENCE
        ):
            found.append(f"{path} ({kind})")
    if found:
        _refuse_layers(name, found)


def _refuse_layers(name: str, found: list[str]) -> None:
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    raise ValueError(
        f"sequence parallelism: {name} has {', '.join(found[:3])}{more}: they compute along the sequence outside of "
        "attention, so a piece of a row would give other values than the row"
    )


def _listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes)) or "none"
