"""Tiles: what a loop keeps, and what odd callers give it."""

import gc
import weakref

import models
import pytest
import torch
import zeroshard
from torch import nn
from zeroshard.compat import tiles as theirs

transformers = pytest.importorskip("transformers")


def test_nothing_outlives_a_step():
    """The graph of a loss holds the function of its tiles, through C++, where Python's collector finds no cycle."""
    model, rows = models.tiny_llama(), torch.randint(0, 61, (2, 11))
    zeroshard.tile(model, loss=4, mlp=3)
    output = model.train()(input_ids=rows, labels=rows)
    output.loss.backward()
    gone = [weakref.ref(output.loss), weakref.ref(model)]
    del output, model
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_a_parameter_that_is_named_twice_gets_one_gradient():
    layer, x = nn.Linear(4, 4, bias=False), torch.randn(2, 6, 4)
    layer(x).sum().backward()
    once, layer.weight.grad = layer.weight.grad.clone(), None
    theirs.TiledMLP.apply(
        lambda module, piece: module(piece), layer, x, 3, [layer.weight, layer.weight]
    ).sum().backward()
    assert torch.allclose(layer.weight.grad, once)


@pytest.mark.parametrize("tiles", [1, 2])
def test_a_loss_has_one_shape_however_many_tiles_there_are(tiles):
    layer, x = nn.Linear(4, 4), torch.randn(2, 6, 4)

    def apply(fn):
        return theirs.TiledFusedLogitsLoss.apply(fn, layer, x, x, None, tiles, [layer.weight], "sum")

    assert apply(lambda module, piece, targets: module(piece).sum().reshape(1)).shape == ()
    with pytest.raises(ValueError, match="elements: a sum, mean or list of tiles is of scalars"):
        apply(lambda module, piece, targets: module(piece).sum(-1))


def test_sparse_gradients_are_summed():
    table, rows = nn.Embedding(7, 3, sparse=True), torch.arange(6).reshape(1, 6)
    scale = torch.ones(1, 6, 1, requires_grad=True)
    theirs.sequence_tiled_compute(
        lambda scale, rows: table(rows) * scale,
        6,
        3,
        {"scale": scale, "rows": rows},
        {},
        "scale",
        output_reduction=None,
    ).sum().backward()
    assert table.weight.grad.to_dense().sum() == 18


def test_an_mlp_with_a_residual_is_refused():
    config = transformers.BloomConfig(vocab_size=61, hidden_size=24, n_layer=1, n_head=2)
    with pytest.raises(ValueError, match="has no MLP whose layers zeroshard knows"):
        zeroshard.tile(transformers.BloomForCausalLM(config))


def test_a_tiled_model_is_pickled(tmp_path):
    model, rows = models.tiny_llama().train(), torch.randint(0, 61, (2, 11))
    zeroshard.tile(model, loss=4, mlp=3)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert loaded.forward.module is loaded
    assert torch.equal(loaded(input_ids=rows, labels=rows).loss, model(input_ids=rows, labels=rows).loss)
