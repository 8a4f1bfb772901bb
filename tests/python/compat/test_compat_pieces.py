"""``ds_tensor`` of an engine's parameters: the memory of the elements that a rank has."""

import models
import pytest
import torch
import world
import zeroshard
from deepspeed_engines import make


def pieces(stage, dtype):
    """Whether ds_tensor of all ranks together are the values, and what a write to them does."""
    engine = make(stage, dtype=dtype)
    param = engine.module.blocks[0].up.weight
    own = param.ds_tensor
    assert own.dtype == param.dtype and own.dim() == 1 and own.ds_numel == own.numel()
    parts = [None] * world.size()
    torch.distributed.all_gather_object(parts, own.clone())
    with zeroshard.gathered([param]):
        whole = param.detach().clone()
    same = torch.equal(torch.cat(parts), whole.reshape(-1))
    param.ds_tensor.zero_()  # asked for anew, so that no rank reads it for its gather any more
    with zeroshard.gathered([param]):
        written = param.detach().abs().max().item()
    return same, written, [part.numel() for part in parts], sum(p.ds_tensor.numel() for p in engine.module.parameters())


@pytest.mark.parametrize("ranks,dtype", [(2, "bf16"), (3, "fp32")])
def test_pieces_of_an_engines_parameters(ranks, dtype):
    found = world.run(ranks, pieces, stage=3, dtype=dtype)
    assert all(same and written == 0 for same, written, *_ in found), found
    assert sum(found[0][2]) == models.stack().blocks[0].up.weight.numel()
    assert sum(total for *_, total in found) == sum(param.numel() for param in models.stack().parameters())
