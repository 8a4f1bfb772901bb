"""A sparse gradient is refused on every rank, with the parameter and the way out; training goes on afterwards."""

import models
import pytest
import torch
import world
import zeroshard
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(600, 4, sparse=True), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.table(ids))


def train_after_a_sparse_gradient(stage, dtype):
    config = models.configuration(stage, dtype, optimizer=models.adamw())
    engine = zeroshard.initialize(model=Network(), config=config)[0]
    ids = torch.tensor([1, 2])
    with pytest.raises(RuntimeError, match="parameter 'table.weight' got a sparse gradient.*sparse=False"):
        engine.backward(engine(ids).float().pow(2).mean())
    engine.zero_grad()
    engine.module.table.sparse = False
    engine.backward(engine(ids).float().pow(2).mean())
    engine.step()
    assert engine.global_steps == 1


@pytest.mark.parametrize(
    ("ranks", "stage", "dtype"), [(1, 0, "fp32"), (1, 3, "bf16"), (3, 1, "bf16"), (3, 2, "fp32"), (3, 3, "fp32")]
)
def test_a_sparse_gradient_names_its_parameter(ranks, stage, dtype):
    world.run(ranks, train_after_a_sparse_gradient, stage=stage, dtype=dtype)
