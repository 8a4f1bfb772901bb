"""Several replicas (zeroshard.mesh): readers and writers of values, quantized sums and weights, ranks that differ."""

import models
import pytest
import torch
import world
import zeroshard
from torch import nn


class Branches(nn.Module):
    """A model whose second branch only some ranks use."""

    def __init__(self, uses_both):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(10, 5), nn.Linear(10, 5)
        self.uses_both = uses_both

    def forward(self, x):
        return self.first(x) + (self.second(x) if self.uses_both else 0)


def gradients_of_a_branch(stage, shard):
    model = Branches(uses_both=world.rank() < 2)
    config = models.configuration(stage, optimizer=models.adamw(), zeroshard={"mesh": {"shard": shard}})
    engine, *_ = zeroshard.initialize(model=model, config=config)
    engine.backward(models.part_loss(engine, 0))
    gradient = zeroshard.get_gradient(model.second.weight)
    return [gradient.tolist(), zeroshard.get_gradient_norms(model)]


@pytest.mark.idle_ranks("it compares what ranks show, whoever owns it")
@pytest.mark.parametrize("stage", [0, 2])
def test_a_gradient_of_one_replicas_ranks_is_shown_on_all(stage):
    of_ranks = world.run(4, gradients_of_a_branch, stage=stage, shard=2)
    assert all(each == of_ranks[0] for each in of_ranks)
    assert of_ranks == world.run(4, gradients_of_a_branch, stage=stage, shard=4)
    assert "second.weight" in of_ranks[0][1]


def error_of_another_mesh(shards):
    own = {"mesh": {"shard": shards[world.rank()]}, "timeout_s": 30}
    with pytest.raises(zeroshard.CommError) as caught:
        zeroshard.initialize(model=nn.Linear(8, 8), config=models.configuration(3, zeroshard=own))
    return str(caught.value)


@pytest.mark.parametrize("shards", [[2, 2, 1, 2], [2, None, None, None]])
def test_ranks_that_ask_for_other_replicas_are_told_so(shards):
    for error in world.run(4, error_of_another_mesh, shards=shards):
        assert "2 rank(s) for each replica of the states" in error, error


class Wide(nn.Sequential):
    """Two layers of more elements than a part of a shard has."""

    def __init__(self):
        torch.manual_seed(1)
        super().__init__(nn.Linear(40, 150), nn.GELU(), nn.Linear(150, 20))


def step_on(engine, step):
    x = torch.randn(4, 40, generator=torch.Generator().manual_seed(100 * step + world.rank()))
    engine.backward(engine(x.to(next(engine.module.parameters()).dtype)).float().square().mean())


def values_through_the_engine(mesh, dtype, optimizer_device, folder):
    """Trains, and between steps reads and writes values of single parameters and states."""
    own = {"mesh": mesh, "unit_classes": ["Linear"]}
    zero = {"offload_optimizer": {"device": optimizer_device, "nvme_path": folder}}
    config = models.configuration(
        3, dtype, optimizer=models.adamw(1e-2), zero_optimization=zero, zeroshard=own, gradient_clipping=0.1
    )
    engine, *_ = zeroshard.initialize(model=Wide(), config=config)
    first, last = engine.module[0].weight, engine.module[2].weight
    found = []
    for step in range(3):
        step_on(engine, step)
        zeroshard.set_gradient(last, zeroshard.get_gradient(last).clamp(-1e-3, 1e-3))
        # Each rank adds the squares of its part in fp64, and with groups the parts are other ones.
        norms = [f"{norm:.12g}" for norm in zeroshard.get_gradient_norms(engine.module).values()]
        found += [zeroshard.get_gradient(first), *norms]
        engine.step()
        found += [zeroshard.get_master_weight(first), zeroshard.get_optimizer_state(last, "exp_avg")]
        with zeroshard.gathered(first, modify_rank=1), torch.no_grad():
            first[step] += 1 + world.rank()
        zeroshard.set_master_weight(last, zeroshard.get_master_weight(last) * 0.5)
        zeroshard.set_optimizer_state(first, "exp_avg_sq", zeroshard.get_optimizer_state(first, "exp_avg_sq") * 4)
    found.append(engine.get_global_grad_norm())
    return [each.tolist() if isinstance(each, torch.Tensor) else each for each in found], engine.parameter_digest()


@pytest.mark.parametrize("dtype,device", [("fp32", "none"), ("bf16", "none"), ("fp32", "nvme"), ("bf16", "nvme")])
def test_users_read_and_write_the_same_values_if_replicas_share_states(tmp_path, dtype, device):
    arguments = {"dtype": dtype, "optimizer_device": device, "folder": str(tmp_path)}
    whole, *others = world.run(4, values_through_the_engine, mesh={}, **arguments)
    assert all(other == whole for other in others)
    for shard in (1, 2):
        mesh = {"shard": shard, "outer": "optimizer"}
        assert all(each == whole for each in world.run(4, values_through_the_engine, mesh=mesh, **arguments))


def error_of_offloaded_parameters(folder):
    zero = {"offload_param": {"device": "nvme", "nvme_path": folder}, "zero_hpz_partition_size": 2}
    with pytest.raises(zeroshard.ConfigError) as caught:
        zeroshard.initialize(model=Wide(), config=models.configuration(3, zero_optimization=zero))
    return str(caught.value)


def test_parameters_of_groups_that_share_states_stay_in_memory(tmp_path):
    for error in world.run(4, error_of_offloaded_parameters, folder=str(tmp_path)):
        assert 'offload_param.device = "nvme"' in error and 'set outer to "replicate"' in error


def losses(quantized, seed, stage=2, mesh=None, dtype="fp32", key="zero_quantized_gradients"):
    """Of a model that learns the values of another one."""
    torch.manual_seed(seed)
    teacher, model = nn.Linear(24, 8), nn.Sequential(nn.Linear(24, 140), nn.GELU(), nn.Linear(140, 8))
    config = models.configuration(
        stage,
        dtype,
        optimizer=models.adamw(3e-3),
        zero_optimization={key: quantized},
        zeroshard={"mesh": mesh or {"shard": 2}},
    )
    engine, *_ = zeroshard.initialize(model=model, config=config)
    data = torch.Generator().manual_seed(world.rank())
    found = []
    for _ in range(150):
        x = torch.randn(16, 24, generator=data)
        loss = nn.functional.mse_loss(engine(x.to(model[0].weight.dtype)).float(), teacher(x).detach())
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    return sum(found[-20:])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_quantized_sums_of_gradients_train_as_well(seed):
    exact, coded = (sum(world.run(4, losses, quantized=each, seed=seed)) for each in (False, True))
    assert coded != exact
    assert coded == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_quantized_weights_train_nearly_as_well(seed):
    mesh = {"shard": 2, "outer": "optimizer"}
    arguments = {"seed": seed, "stage": 3, "mesh": mesh, "dtype": "bf16", "key": "zero_quantized_weights"}
    exact, coded = (sum(world.run(4, losses, quantized=each, **arguments)) for each in (False, True))
    assert coded != exact
    assert coded == pytest.approx(exact, rel=0.02)
