"""States of the user's own optimizer that no checkpoint can hold: told of at the first step, and refused by a save.

Tables and scales can be saved: test_table_states.py.
"""

import models
import pytest
import torch
import world
import zeroshard
from torch.testing._internal.two_tensor import TwoTensor


class Coded(torch.optim.Optimizer):
    """SGD that keeps other states beside it."""

    def __init__(self, params, kind):
        super().__init__(params, {"lr": 0.1})
        self._kind = kind

    @torch.no_grad()
    def step(self, closure=None):
        for param in (param for group in self.param_groups for param in group["params"]):
            if param.grad is None:
                continue
            param.sub_(0.1 * param.grad)
            state = self.state[param]
            state["step"] = state.get("step", 0) + 1
            if self._kind == "object":
                state["projector"] = torch.Generator()
            elif self._kind == "list of tensors":
                state["factors"] = [torch.ones(3)]
            elif self._kind == "subclass":
                state["momentum"] = TwoTensor(param.grad.clone(), param.grad.clone())


def save(folder, stage, kind):
    model = models.stack()
    config = models.configuration(stage) | {"zero_allow_untested_optimizer": True}
    engine, *_ = zeroshard.initialize(model=model, config=config, optimizer=Coded(model.parameters(), kind))
    for step in range(3):
        torch.manual_seed(step)
        engine.backward(engine(torch.randn(2, 10)).pow(2).mean())
        engine.step()
    error = None
    try:
        engine.save_checkpoint(folder)
        engine.wait_for_checkpoint()
    except zeroshard.ValueError as refused:
        error = str(refused)
    engine.save_16bit_model(folder)
    return error


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (3, 1), (3, 3)])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("object", "optimizer.blocks.0.norm.weight.projector is a "),
        ("list of tensors", "optimizer.blocks.0.norm.weight.factors[0] is a tensor of the shape [3]"),
        ("subclass", "the optimizer's state 'momentum' of parameter 'blocks.0.norm.weight' is a TwoTensor"),
    ],
)
def test_a_state_that_cannot_be_saved_is_told_at_the_first_step(tmp_path, ranks, stage, kind, said):
    results = world.run_ranks(ranks, save, folder=str(tmp_path), stage=stage, kind=kind)
    for rank in results:
        assert rank.error is None and said in rank.value, (rank.error, rank.value)
    assert results[0].log.count(f"warning: save_checkpoint cannot save Coded: {said}") == 1
    assert all("cannot save" not in rank.log for rank in results[1:])


def test_states_that_can_be_saved_say_nothing(tmp_path):
    for rank in world.run_ranks(2, save, folder=str(tmp_path), stage=2, kind="a count alone"):
        assert rank.error is None and rank.value is None
        assert "cannot save" not in rank.log
