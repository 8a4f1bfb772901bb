"""The one workload every peer runs: shapes, weights and data depend on the arguments and the seed alone."""

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


SHAPES = {
    "small": Shape(hidden=512, layers=8, mlp=1376, heads=8, vocab=8192, batch=2, sequence=128),
    "deep": Shape(hidden=128, layers=64, mlp=344, heads=4, vocab=2048, batch=1, sequence=32),
    # Seconds in all: only to see that every peer runs.
    "smoke": Shape(hidden=64, layers=2, mlp=176, heads=2, vocab=256, batch=1, sequence=16),
}


def build_model(shape, seed, dtype):
    """Returns the Hugging Face model; with bf16 the weights are rounded once, whatever dtype a peer keeps them in."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
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
    model = LlamaForCausalLM(config)
    if dtype == "bf16":
        model = model.to(torch.bfloat16)
    return model.train()


def make_batch(shape, seed, step, rank):
    """Returns the micro-batch of `rank` at `step`: int64 [batch, sequence], labels = inputs."""
    import torch

    generator = torch.Generator().manual_seed(seed * 1_000_003 + (step % DISTINCT_BATCHES) * 1009 + rank)
    tokens = torch.randint(shape.vocab, (shape.batch, shape.sequence), generator=generator)
    return {"input_ids": tokens, "labels": tokens}
