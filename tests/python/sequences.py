"""Tiny models of several families, and rows for them, for tests of sequence parallelism."""

import math
from collections import defaultdict

import models
import torch
import zeroshard

LENGTH = 16
COMMON = {"attn_implementation": "sdpa", "num_attention_heads": 4, "hidden_size": 24, "max_position_embeddings": 64}


def llama(**changes):
    return models.tiny_llama(**{**COMMON, "num_key_value_heads": 2, "hidden": 24, "intermediate_size": 30, **changes})


def _gemma2():
    """Without the cap on scores, which only eager and flex attention know, and so with sdpa all the same."""
    model = _made("Gemma2", attn_implementation="eager", head_dim=6, sliding_window=5, attn_logit_softcapping=None)
    model.config._attn_implementation_internal = "sdpa"
    return model


def longrope(border):
    """Phi-3 with other frequencies for rows of more words than `border`."""
    factors = {"short_factor": [1.0] * 3, "long_factor": [1.5, 4.0, 9.0]}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    return _made("Phi3", rope_parameters=rope, original_max_position_embeddings=border, pad_token_id=0)


def _made(kind, text="", **changes):
    import transformers

    torch.manual_seed(0)
    config = {
        **COMMON,
        "vocab_size": models.VOCABULARY,
        "intermediate_size": 30,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "initializer_range": 0.1,
        "use_cache": False,
    }
    config = getattr(transformers, f"{kind}{text}Config")(**{**config, **changes})
    return getattr(transformers, f"{kind}ForCausalLM")(config)


FAMILIES = {
    "llama": llama,
    "one key-value head": lambda: llama(num_key_value_heads=1),
    "qwen3": lambda: _made("Qwen3", head_dim=8, intermediate_size=20, tie_word_embeddings=True),
    "gemma3": lambda: _made("Gemma3", text="Text", head_dim=6, sliding_window=5),
    "gemma2": lambda: _gemma2(),
    "mistral": lambda: _made("Mistral", sliding_window=5),
    "phi3 with longrope": lambda: longrope(8),
    "qwen2": lambda: _made("Qwen2"),
    "mixtral": lambda: _made("Mixtral", intermediate_size=32, num_local_experts=4, num_experts_per_tok=2),
    "phi": lambda: _made("Phi", hidden_size=32),
    "gpt-neox": lambda: _made("GPTNeoX"),
    "gpt2": lambda: models.tiny_gpt2(n_head=4, attn_implementation="sdpa"),
}
KINDS = ["plain", "packed", "padded", "padded in front"]


def rows(kind, step, count, length=LENGTH):
    """`count` rows of a step of all ranks together."""
    ids = models.tokens(step, 0, count, length)
    batch = {"input_ids": ids, "labels": ids.clone()}
    if kind == "packed":
        border = 5 + step % 3
        batch["position_ids"] = torch.cat([torch.arange(border), torch.arange(length - border)]).repeat(count, 1)
        batch["labels"][:, border] = -100
    if kind.startswith("padded"):
        mask = torch.ones_like(ids)
        for row in range(count):
            short = 2 + (3 * row + step) % 8
            mask[row, slice(length - short, None) if kind == "padded" else slice(None, short)] = 0
        batch["attention_mask"] = mask
        batch["labels"][mask == 0] = -100
    return batch


def configuration(stage, size, groups, accumulation=1, **changes):
    blocks = {"optimizer": models.adamw(1e-3, weight_decay=0.01), **changes}
    config = models.configuration(stage, "fp32", accumulation=accumulation, threshold=0, **blocks)
    config.pop("train_micro_batch_size_per_gpu", None)
    return {"train_batch_size": 4} | config | {"sequence_parallel_size": size}


def train(
    family,
    kind,
    steps,
    stage=0,
    size=1,
    groups=1,
    transport="auto",
    length=LENGTH,
    load="",
    save="",
    wrap=None,
    shard=None,
    rows_a_step=4,
    accumulation=1,
    **changes,
):
    """On a rank: losses of each micro-batch, which are means over a rank's rows, and the digest of the parameters.

    From a checkpoint in the folder `load`, and to one in `save`, where these are given. `wrap` changes the model.
    """
    ranks = models.world.size()
    accumulation *= groups if ranks == 1 else 1
    own = {"transport": transport, "mesh": {"shard": shard}}
    settings = configuration(stage, size, groups, accumulation, zeroshard=own, **changes)
    model = FAMILIES[family]()
    engine, *_ = zeroshard.initialize(model=WRAPS[wrap](model) if wrap else model, config=settings)
    if load:
        engine.load_checkpoint(load)
    first = engine.global_steps
    group, place = divmod(models.world.rank(), size)
    if size > 1:
        # Each rank has every S-th batch of its group.
        mine = range(first + place, first + steps, size)
        mine = [part_of(rows(kind, step, rows_a_step, length), group, groups) for step in mine]
        batches = list(zeroshard.sequence_parallel(engine, mine))
        assert len(batches) == steps
    else:
        parts = range(groups) if ranks == 1 else [group]
        each = [(step, part) for step in range(first, first + steps) for part in parts]
        batches = [part_of(rows(kind, step, rows_a_step, length), part, groups) for step, part in each]
    losses = []
    for batch in batches:
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    if save:
        engine.save_checkpoint(save)
    digest = engine.parameter_digest()
    engine.destroy()
    return losses, digest


def _checkpointed(model):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def _recomputed(model):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    return model


def _adapted(model):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))


def _compiled(model):
    for layer in model.model.layers:
        layer.compile(backend="eager")
    return model


def _whole(model):
    return torch.compile(model, backend="eager")


WRAPS = {
    "checkpointed": _checkpointed,
    "recomputed": _recomputed,
    "lora": _adapted,
    "compiled": _compiled,
    "compiled whole": _whole,
}


def part_of(batch, part, parts):
    return {key: value.chunk(parts)[part].clone() for key, value in batch.items()}


def collectives(run):
    """The bytes of each call of a process group of Gloo while `run` runs: what this rank gives, by kind of call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        run()
    found = defaultdict(list)
    for event in profile.events():
        if event.name.startswith("gloo:"):
            found[event.name].append(sum(math.prod(shape) for shape in event.input_shapes))
    return {kind: sorted(sizes) for kind, sizes in found.items()}
