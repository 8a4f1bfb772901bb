"""The workloads every peer runs: shapes, weights and data depend on the arguments and the seed alone."""

from dataclasses import dataclass

LEARNING_RATE = 1e-4
BETAS = (0.9, 0.999)
EPS = 1e-8
WEIGHT_DECAY = 0.01
# Few distinct batches, seen again and again: the loss then moves, so that parity has something to compare.
DISTINCT_BATCHES = 4


@dataclass(frozen=True)
class Shape:
    """A Llama model and the micro-batch of one rank."""

    hidden: int
    layers: int
    mlp: int
    heads: int
    vocab: int
    batch: int
    sequence: int


@dataclass(frozen=True)
class Wide:
    """`units` small layers, each a unit of its own, and the rows that a rank passes through them."""

    units: int
    hidden: int
    batch: int


SHAPES = {
    "small": Shape(hidden=512, layers=8, mlp=1376, heads=8, vocab=8192, batch=2, sequence=128),
    "deep": Shape(hidden=128, layers=64, mlp=344, heads=4, vocab=2048, batch=1, sequence=32),
    # Nothing but what each unit costs. The same per unit, where nothing grows with their number.
    "wide": Wide(units=1000, hidden=64, batch=16),
    "wide100": Wide(units=100, hidden=64, batch=16),
    "wide10000": Wide(units=10000, hidden=64, batch=16),
    # Seconds in all: only to see that every peer runs.
    "smoke": Shape(hidden=64, layers=2, mlp=176, heads=2, vocab=256, batch=1, sequence=16),
    "wide_smoke": Wide(units=4, hidden=16, batch=2),
}


def build_model(shape, seed, dtype):
    """Returns the model; with bf16 the weights are rounded once, whatever dtype a peer keeps them in."""
    import torch

    torch.manual_seed(seed)
    model = _wide(shape) if isinstance(shape, Wide) else _llama(shape)
    if dtype == "bf16":
        model = model.to(torch.bfloat16)
    return model.train()


def blocks_of(model):
    """What peers that are told their units are to take for one."""
    return model.layers if hasattr(model, "layers") else model.model.layers


def num_units(shape):
    """How many units a shape has that is there to measure what one costs; None for others."""
    return shape.units if isinstance(shape, Wide) else None


def _wide(shape):
    import torch
    from torch import nn
    from transformers.modeling_outputs import CausalLMOutput

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(shape.hidden, shape.hidden) for _ in range(shape.units)])

        def forward(self, x, target):
            for layer in self.layers:
                x = x + layer(x) / shape.units  # so that what passes through all of them stays of one size
            return CausalLMOutput(loss=torch.nn.functional.mse_loss(x, target), logits=x)

    return Model()


def _llama(shape):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        intermediate_size=shape.mlp,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        vocab_size=shape.vocab,
        max_position_embeddings=max(shape.sequence, 64),
        tie_word_embeddings=False,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def make_batch(shape, seed, step, rank, dtype="fp32"):
    """Returns the micro-batch of `rank` at `step`.

    int64 [batch, sequence], labels = inputs; of `Wide`, an input and a target, [batch, hidden].
    """
    import torch

    generator = torch.Generator().manual_seed(seed * 1_000_003 + (step % DISTINCT_BATCHES) * 1009 + rank)
    if isinstance(shape, Wide):
        dtype = torch.bfloat16 if dtype == "bf16" else torch.float32
        x, target = torch.randn(2, shape.batch, shape.hidden, generator=generator).to(dtype)
        return {"x": x, "target": target}
    tokens = torch.randint(shape.vocab, (shape.batch, shape.sequence), generator=generator)
    return {"input_ids": tokens, "labels": tokens}
