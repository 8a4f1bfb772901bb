"""Tiny models, batches and configurations for tests; everything is a function of its arguments alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import world
import zeroshard
from torch import nn

VOCABULARY = 61
DTYPES = ("fp32", "bf16", "fp16")


def tiny_llama(seed: int = 0, layers: int = 2, hidden: int = 24, tied: bool = False, **changes) -> nn.Module:
    """A Llama whose sizes no world size divides."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden + 2,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32,
        "tie_word_embeddings": tied,
        "use_cache": False,
        "initializer_range": 0.1,
        "attn_implementation": "eager",
    }
    return LlamaForCausalLM(LlamaConfig(**{**config, **changes}))


def tiny_gpt2(seed: int = 0, **changes) -> nn.Module:
    """GPT-2, whose head is tied to its embedding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = {"vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 32, "use_cache": False}
    config |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.1}
    return GPT2LMHeadModel(GPT2Config(**{**config, **changes}))


def tiny_deberta() -> nn.Module:
    """DeBERTa v2: its encoder reads the weight of an embedding that it does not call."""
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM

    torch.manual_seed(0)
    config = {"vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2}
    config |= {
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
    }
    config |= {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "initializer_range": 0.1}
    model = DebertaV2ForMaskedLM(DebertaV2Config(hidden_dropout_prob=0, attention_probs_dropout_prob=0, **config))
    for name, param in model.named_parameters():
        if name.endswith("key_proj.bias"):  # from 0 it would move by rounding errors alone
            nn.init.normal_(param, std=0.1)
    return model


def held_as_planned(planned: dict[str, int], measured: dict[str, int]) -> bool:
    """Bytes by category. What a step needs for a moment is a bound: ranks need less than the one that needs most."""
    planned, measured = dict(planned), dict(measured)
    return measured.pop("temporaries", 0) <= planned.pop("temporaries", 0) and measured == planned


def tokens(step: int, micro: int, samples: int, length: int = 9) -> torch.Tensor:
    """The token ids of one micro-batch of all ranks together, on this rank's device."""
    generator = torch.Generator().manual_seed(1000 * step + micro)
    return placed(torch.randint(0, VOCABULARY, (samples, length), generator=generator))


def placed(tensor: torch.Tensor) -> torch.Tensor:
    """On this rank's device, without a wait of the host."""
    device = world.device()
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def language_loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Mean next-token loss in fp32, whatever the model computes in, and wherever it is."""
    ids = ids.to(next(model.parameters()).device)
    logits = model(input_ids=ids).logits[:, :-1].float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def take_step(engine, step: int, accumulation: int = 1) -> float:
    """Trains a language model on this rank's part of a batch; the mean loss of its micro-batches."""
    losses = []
    for micro in range(accumulation):
        loss = language_loss(engine, share(tokens(step, micro, 2 * world.size()), world.rank(), world.size()))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def squared_error(model, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean-square loss in fp32, whatever the model computes in."""
    return nn.functional.mse_loss(model(x.to(next(model.parameters()).dtype)).float(), y)


def part_loss(model, step: int, micro: int = 0, rank: int | None = None, ranks: int = 1, width: int = 10):
    """Of a rank's part of a batch of all ranks; without `rank`, of this rank's."""
    rank, ranks = (world.rank(), world.size()) if rank is None else (rank, ranks)
    return squared_error(model, *(share(each, rank, ranks) for each in vectors(step, micro, 2 * ranks, width)))


def batch_loss(model, step: int, micro: int = 0, width: int = 10) -> torch.Tensor:
    """Of a batch of all ranks: an engine's of this rank's part, a plain model's of the whole."""
    if isinstance(model, zeroshard.Engine):
        return part_loss(model, step, micro, width=width)
    return squared_error(model, *vectors(step, micro, 2 * world.size(), width))


def own_loss(model, step: int, micro: int = 0) -> torch.Tensor:
    """Of samples that no other rank has."""
    return squared_error(model, *vectors(step, 10 * world.rank() + micro, 2))


def same_loss(model, step: int = 0) -> torch.Tensor:
    """Of samples that every rank has."""
    return squared_error(model, *vectors(step, 0, 2))


def train(engine, steps: Iterable[int], loss_of: Callable = part_loss, accumulation: int = 1) -> None:
    """`steps` are numbers of batches, `loss_of(engine, step, micro)` is the loss of one."""
    for step in steps:
        for micro in range(accumulation):
            engine.backward(loss_of(engine, step, micro))
            engine.step()


def inner_width(width: int) -> int:
    """Of a Residual: so large that each of 2, 3, 4 or 7 ranks owns a part of one, unless `width` is large."""
    return max(3 * width, 3100 // width)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        inner = inner_width(width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    """Residual blocks over vectors, with a mean-square loss: well conditioned, and quick."""

    def __init__(self, width: int = 10, layers: int = 3, block: type[Residual] = Residual) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block(width) for _ in range(layers)])
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def stack(seed: int = 0, **sizes) -> Stack:
    torch.manual_seed(seed)
    return Stack(**sizes)


def vectors(step: int, micro: int, samples: int, width: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one micro-batch of all ranks together, on this rank's device."""
    generator = torch.Generator().manual_seed(1000 * step + micro)
    return tuple(placed(torch.randn(samples, size, generator=generator)) for size in (width, 5))


def share(batch: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """This rank's samples of a batch of all ranks."""
    size = len(batch) // world_size
    return batch[rank * size : (rank + 1) * size]


class Tied(nn.Module):
    """A tied weight, a frozen layer, one without a gradient, and sizes that no number of ranks divides."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Residual(30) for _ in range(2)])
        self.first = nn.Linear(10, 30)
        self.last = nn.Linear(30, 10, bias=False)
        self.again = nn.Linear(10, 30, bias=False)
        self.again.weight = self.first.weight
        self.frozen = nn.Linear(30, 30).requires_grad_(False)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        x = self.first(x) + self.again(x)
        for block in self.blocks:
            x = block(x)
        return self.last(self.frozen(x))[:, :5]


def tied():
    torch.manual_seed(0)
    return Tied()


class LowRank(nn.Module):
    """A frozen linear layer with a trainable low-rank addition."""

    def __init__(self, linear):
        super().__init__()
        self.base = linear
        self.down = nn.Linear(linear.in_features, 18, bias=False)  # each of 3 ranks owns a part of a layer's additions
        self.up = nn.Linear(18, linear.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def lora_llama():
    model = tiny_llama()
    for param in model.parameters():
        param.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
        layer.mlp.down_proj = LowRank(layer.mlp.down_proj)
    return model


def configuration(stage: int = 3, dtype: str = "fp32", *, accumulation: int = 1, threshold: int = 0, **blocks) -> dict:
    """Of micro-batches of two samples; at stage 3 units of more than `threshold` elements are sharded.

    `blocks` are added, and merged with those that are here.
    """
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": threshold},
        "zeroshard": {"timeout_s": 30},
    }
    if dtype != "fp32":
        config[dtype] = {"enabled": True}
    for name, value in blocks.items():
        config[name] = config.get(name, {}) | value if isinstance(value, dict) else value
    return config


def stack_engine(stage: int, dtype: str, transport: str = "auto") -> zeroshard.Engine:
    config = configuration(stage, dtype, optimizer=adamw(), zeroshard={"transport": transport})
    return zeroshard.initialize(model=stack(), config=config)[0]


def adamw(lr: float = 1e-2, **params) -> dict:
    return {"type": "AdamW", "params": {"lr": lr, **params}}


def sgd(lr: float, **params) -> dict:
    return {"type": "SGD", "params": {"lr": lr, **params}}
