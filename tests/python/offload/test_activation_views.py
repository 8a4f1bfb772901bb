"""Views of parameters as arguments of checkpointed parts: they stay, since updates and gathers write to them."""

import models
import pytest
import simulated
import torch
import world
import zeroshard
from torch import nn

WIDTH, ROWS = 64, 96


class Part(nn.Linear):
    """Gives views of its parameters, which have a gradient, to the part that is computed again."""

    def forward(self, x):
        return zeroshard.recompute(self.compute, x, self.weight.t(), self.bias.view(1, -1), use_reentrant=False)

    @staticmethod
    def compute(x, weight, bias):
        return torch.tanh(torch.addmm(bias.view(-1), x, weight))


def train_with_kept_views(folder, where, stage, persistent, on_host=False):
    """Digests, of a model that is also run for a value which is kept and never given to backward."""
    device = world.device()
    torch.manual_seed(0)
    model = nn.Sequential(*(Part(WIDTH, WIDTH) for _ in range(5))).to(device)
    config = models.configuration(stage, "fp32", optimizer=models.adamw(1e-1))
    config["zeroshard"] |= {"offload": {"activations": where}, "unit_classes": ["Part"]}
    zero = config["zero_optimization"]
    zero["stage3_param_persistence_threshold"] = 10**6 if persistent else 0
    zero["offload_optimizer"] = {"device": "cpu" if on_host else "none", "nvme_path": folder}
    if on_host:
        zero["offload_param"] = {"device": "cpu"}
    engine = zeroshard.initialize(model=model, config=config)[0]
    digests, kept = [], []
    for step in range(3):
        torch.manual_seed(10 * step + world.rank())
        x = torch.randn(ROWS, WIDTH).to(device).requires_grad_(True)
        kept.append(engine(x).square().mean())
        engine.backward(engine(x).square().mean())
        engine.step()
        digests.append(engine.parameter_digest())
    engine.destroy()
    return digests


@pytest.mark.parametrize("stage,persistent", [(0, False), (2, False), (3, False), (3, True)])
def test_views_of_parameters_are_not_taken_for_what_they_were_on_the_cpu(tmp_path, stage, persistent):
    plain, files = (
        world.run(2, train_with_kept_views, folder=str(tmp_path), where=where, stage=stage, persistent=persistent)
        for where in ("none", "nvme")
    )
    assert plain == files


@pytest.mark.parametrize(
    "ranks,stage,persistent,on_host,on",
    [
        simulated.case(1, 0, False, False, "eager"),
        simulated.case(1, 3, False, True, "late"),
        simulated.case(2, 3, False, True, "lazy"),
        simulated.case(2, 3, True, False, "late"),
    ],
)
def test_views_of_parameters_are_not_copied_beside_a_gather_on_a_device(
    ranks, stage, persistent, on_host, on, tmp_path
):
    options = {"folder": str(tmp_path), "stage": stage, "persistent": persistent, "on_host": on_host, "on": on}
    plain, host, files = (
        world.run(ranks, train_with_kept_views, where=where, **options) for where in ("none", "cpu", "nvme")
    )
    assert plain == host == files
