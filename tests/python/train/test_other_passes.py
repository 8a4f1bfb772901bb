"""Backward passes that are not the step's, and gradients that come in other ways: the step is that of plain torch."""

import copy

import pytest
import torch
import world
import zeroshard

LR = 0.1
WIDTH = 64


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def forward(self, x):
        return self.layers(x)


def loss_of_pass(model, number):
    """Of one rank and pass; the same on every rank, so that means over ranks are its own."""
    torch.manual_seed(100 + number)
    device = next(model.parameters()).device
    return model(torch.randn(3, WIDTH).to(device)).square().mean()


def ask_for_an_inputs_gradient(model):
    device = next(model.parameters()).device
    x = torch.ones(2, WIDTH, device=device, requires_grad=True)
    return torch.autograd.grad(model(x).sum(), x)[0]


def make_sgd_engine(stage, model=None, unit="Linear", **optimizer):
    model = model or Model()
    model.to(world.device())
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zeroshard": {"unit_classes": [unit]},
    }
    sgd = torch.optim.SGD(model.parameters(), **{"lr": LR, "momentum": 0.5, **optimizer})
    return zeroshard.initialize(model=model, optimizer=sgd, config=config)[0]


# Each way of a step: `engine` is None for plain torch, where `model` is trained by itself.
def backward(engine, loss):
    engine.backward(loss) if engine else loss.backward()


def without_sync(engine, model, number):
    if not engine:
        return loss_of_pass(model, number).backward()
    with engine.no_sync():
        return engine.backward(loss_of_pass(engine, number))


def grad_after(engine, model, number):
    backward(engine, loss_of_pass(engine or model, number))
    ask_for_an_inputs_gradient(engine or model)


def grad_twice_before(engine, model, number):
    ask_for_an_inputs_gradient(engine or model)
    grad_before(engine, model, number)


def evaluation_after_grad(engine, model, number):
    grad_after(engine, model, number)
    with torch.no_grad():
        loss_of_pass(engine or model, number)


def unused_forward_after_grad(engine, model, number):
    grad_after(engine, model, number)
    loss_of_pass(engine or model, number)


def grad_before(engine, model, number):
    ask_for_an_inputs_gradient(engine or model)
    backward(engine, loss_of_pass(engine or model, number))


def grad_between(engine, model, number):
    grad_after(engine, model, number)
    grad_before(engine, model, number + 50)


def grad_before_no_sync(engine, model, number):
    ask_for_an_inputs_gradient(engine or model)
    without_sync(engine, model, number)


def grad_after_plain(engine, model, number):
    loss_of_pass(engine or model, number).backward()
    ask_for_an_inputs_gradient(engine or model)


def plain_before_no_sync(engine, model, number):
    loss_of_pass(engine or model, number).backward()
    without_sync(engine, model, number + 50)


def no_sync_before_plain(engine, model, number):
    without_sync(engine, model, number)
    loss_of_pass(engine or model, number + 50).backward()


def plain_after_no_sync_after_plain(engine, model, number):
    plain_before_no_sync(engine, model, number)
    loss_of_pass(engine or model, number + 70).backward()


WAYS = {
    way.__name__: way
    for way in (
        grad_after,
        grad_before,
        grad_twice_before,
        evaluation_after_grad,
        unused_forward_after_grad,
        grad_between,
        grad_before_no_sync,
        grad_after_plain,
        plain_before_no_sync,
        no_sync_before_plain,
        plain_after_no_sync_after_plain,
    )
}


def penalize(engine, model, number):
    """A loss with the norm of an input's gradient, as of a WGAN's critic."""
    x = torch.full((2, WIDTH), 0.1, device=next(model.parameters()).device, requires_grad=True)
    slope = torch.autograd.grad((engine or model)(x).square().sum(), x, create_graph=True)[0]
    backward(engine, loss_of_pass(engine or model, number) + (slope.norm(dim=1) - 1).square().mean())


EVERY_WAY = WAYS | {"penalize": penalize}


def values_of(model):
    return torch.cat([param.detach().flatten() for param in model.parameters()]).cpu()


def in_plain_torch(way, first):
    model = Model()
    sgd = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5)
    for number in range(first, 3):
        sgd.zero_grad()
        EVERY_WAY[way](None, model, number) if number >= 0 else loss_of_pass(model, 90).backward()
        sgd.step()
    return values_of(model)


def differences(stage, ways, first, unit="Linear"):
    """For each way, how far the values are from plain torch's."""
    result = {}
    for way in ways:
        engine = make_sgd_engine(stage, unit=unit)
        for number in range(first, 3):
            EVERY_WAY[way](engine, engine.module, number) if number >= 0 else engine.backward(loss_of_pass(engine, 90))
            engine.step()
        with zeroshard.gathered(list(engine.module.parameters())):
            values = values_of(engine.module)
        engine.destroy()
        result[way] = (values - in_plain_torch(way, first)).abs().max().item()
    return result


def expect_plain_torch(ranks, stage, ways, *, first=-2, **run):
    for found in world.run(ranks, differences, stage=stage, ways=ways, first=first, timeout_s=120, **run):
        assert all(difference < 1e-6 for difference in found.values()), found


@pytest.mark.parametrize("ranks,stage", [(1, 0), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3), (3, 1)])
def test_a_step_is_that_of_plain_torch(ranks, stage):
    expect_plain_torch(ranks, stage, list(WAYS))


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_model_may_be_one_unit(ranks):
    expect_plain_torch(ranks, 3, list(WAYS), unit="Model")


@pytest.mark.parametrize("ranks,stage", [(1, 1), (2, 1), (2, 2), (2, 3), (3, 3)])
def test_the_first_step_is_that_of_plain_torch(ranks, stage):
    expect_plain_torch(ranks, stage, list(WAYS), first=0)


@pytest.mark.parametrize("ranks,stage", [(2, 0), (2, 1), (2, 2), (2, 3), (3, 3)])
def test_a_gradient_penalty_is_that_of_plain_torch(ranks, stage):
    """Parameters are needed for the gradient of a gradient, so the model is one unit at stage 3."""
    expect_plain_torch(ranks, stage, ["penalize"], first=0, unit="Model" if stage == 3 else "Linear")


@pytest.mark.parametrize("ranks,stage,on", [(1, 2, "lazy"), (2, 1, "late"), (2, 2, "lazy"), (2, 3, "late")])
def test_on_devices_too(ranks, stage, on):
    expect_plain_torch(ranks, stage, list(WAYS), on=on)


def grad_on_one_rank(stage, way):
    """Saliency on rank 1 alone, where no unit is sharded; what it reads of gradients then; how far values are off."""
    engine = make_sgd_engine(stage)
    for number in range(3):
        if world.rank() == 1:
            ask_for_an_inputs_gradient(engine.module)
        WAYS[way](engine, engine.module, number)
        if world.rank() == 1 and way == "grad_after":
            ask_for_an_inputs_gradient(engine.module)
            assert zeroshard.get_gradient(engine.module.layers[0].bias, local=True) is not None
        engine.step()
    values = values_of(engine.module)
    engine.destroy()
    return (values - in_plain_torch(way, 0)).abs().max().item()


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("way", ["grad_after", "plain_before_no_sync", "no_sync_before_plain"])
def test_one_rank_alone_may_ask_for_gradients(stage, way):
    assert max(world.run(2, grad_on_one_rank, stage=stage, way=way)) < 1e-6


# --- Gradients that are assigned, and forwards that are too old.


def assign(stage):
    """Rank 0 assigns a gradient behind a backward. Then all drop every gradient, or that one, and the step is made."""
    engine = make_sgd_engine(stage)
    param = engine.module.layers[1].bias
    engine.backward(loss_of_pass(engine, 0))
    engine.step()
    told = []
    for drops_all in (True, False):
        engine.backward(loss_of_pass(engine, 1))
        if world.rank() == 0:
            param.grad = torch.full_like(param, 5.0)
            with pytest.raises(ValueError, match="value has 1 elements, 'param.grad' has"):
                zeroshard.set_gradient(param, torch.ones(1))
            zeroshard.set_gradient(param, torch.full([param.numel()], 5.0))
        try:
            engine.step()
        except zeroshard.StateError as error:
            told.append(str(error))
        if drops_all:
            engine.zero_grad()
            engine.backward(loss_of_pass(engine, 1))
        else:
            param.grad = None
        engine.step()
    values = values_of(engine.module)
    engine.destroy()
    model = Model()
    sgd = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5)
    for number, drops in ((0, False), (1, False), (1, True)):
        sgd.zero_grad()
        loss_of_pass(model, number).backward()
        if drops:
            model.layers[1].bias.grad = None
        sgd.step()
    return told, (values - values_of(model)).abs().max().item()


@pytest.mark.parametrize("stage", [0, 2])
def test_a_gradient_that_is_assigned_is_refused_on_every_rank(stage):
    for number, (told, difference) in enumerate(world.run(2, assign, stage=stage)):
        assert len(told) == 2
        assert all("set_gradient" in text for text in told)
        assert all(("layers.1.bias" if number == 0 else "another rank") in text for text in told)
        assert difference < 1e-6


def backward_of_an_old_forward(stage, then, folder):
    engine = make_sgd_engine(stage)
    engine.backward(loss_of_pass(engine, 0))
    engine.step()
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    old, new = loss_of_pass(engine, 1), loss_of_pass(engine, 2)
    if then == "step":
        engine.backward(new)
        engine.step()
    else:
        engine.load_checkpoint(folder)
    try:
        engine.backward(old)
    except (RuntimeError, zeroshard.StateError) as error:
        told = str(error)
    else:
        told = "nothing"
    engine.backward(loss_of_pass(engine, 3))  # training goes on
    engine.step()
    engine.destroy()
    return told


@pytest.mark.parametrize("ranks,stage", [(1, 1), (2, 0), (2, 2), (2, 3)])
@pytest.mark.parametrize("then", ["step", "load"])
def test_a_backward_needs_the_parameters_of_its_forward(tmp_path, ranks, stage, then):
    for told in world.run(ranks, backward_of_an_old_forward, stage=stage, then=then, folder=str(tmp_path)):
        assert "modified by an inplace operation" in told, told


class TwoHeads(Model):
    def forward(self, x):
        first, second, *heads = self.layers
        return [head(second(first(x)).detach()) for head in heads]


def two_heads(stage):
    """A step that has gradients of one head alone, between forward and backward of the other's; and one without any."""
    engine = make_sgd_engine(stage, TwoHeads(), unit="Linear", momentum=0)
    for _ in range(2):
        one, other = (out.square().mean() for out in engine(torch.ones(2, WIDTH)))
        engine.backward(one)
        engine.step()
        engine.step()
        engine.backward(other)
        engine.step()
    engine.destroy()
    return True


@pytest.mark.parametrize("ranks,stage", [(1, 1), (2, 0), (2, 2), (2, 3)])
def test_a_step_changes_what_had_gradients(ranks, stage):
    assert world.run(ranks, two_heads, stage=stage) == [True] * ranks


def frozen_behind(stage, folder):
    """Later layers are frozen; a load changes them between forward and backward."""

    def build():
        model = Model()
        model.layers[2:].requires_grad_(False)
        return model

    engine = make_sgd_engine(stage, build())
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    old = loss_of_pass(engine, 0)
    engine.load_checkpoint(folder)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        engine.backward(old)
    engine.backward(loss_of_pass(engine, 1))
    engine.step()
    engine.destroy()
    return True


@pytest.mark.parametrize("ranks,stage", [(1, 1), (2, 2), (2, 3)])
def test_a_load_changes_frozen_parameters_too(tmp_path, ranks, stage):
    assert world.run(ranks, frozen_behind, stage=stage, folder=str(tmp_path)) == [True] * ranks


# --- SGD whose param groups differ in momentum.


def groups_of(model, first, second):
    layers = list(model.layers)
    return [
        {"params": [param for layer in layers[:2] for param in layer.parameters()], "momentum": first},
        {"params": [param for layer in layers[2:] for param in layer.parameters()], "momentum": second},
    ]


def momentum(stage, moments, device=None):
    """Values after a step for each pair of momenta, here and in plain torch; a step with none at first."""
    model = Model()
    plain = copy.deepcopy(model)
    model.to(world.device())
    sgd = torch.optim.SGD(groups_of(model, *moments[0]), lr=LR)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
    if device:
        config["zero_optimization"]["offload_optimizer"] = {"device": device}
    engine, optimizer, _, _ = zeroshard.initialize(model=model, optimizer=sgd, config=config)
    own = torch.optim.SGD(groups_of(plain, *moments[0]), lr=LR)
    for number, pair in enumerate(moments):
        for group, own_group, value in zip(optimizer.param_groups, own.param_groups, pair, strict=True):
            group["momentum"] = own_group["momentum"] = value
        engine.backward(loss_of_pass(engine, number))
        engine.step()
        own.zero_grad()
        loss_of_pass(plain, number).backward()
        own.step()
    with zeroshard.gathered(list(engine.module.parameters())):
        values = values_of(engine.module)
    engine.destroy()
    return (values - values_of(plain)).abs().max().item()


@pytest.mark.parametrize(
    "ranks,stage,on,device",
    [
        (1, 0, None, None),
        (1, 2, None, None),
        (2, 1, None, None),
        (2, 3, None, None),
        (1, 1, "lazy", None),
        (2, 2, "late", "cpu"),
    ],
)
def test_momentum_may_differ_and_change(ranks, stage, on, device):
    moments = [(0.9, 0.0), (0.9, 0.0), (0.9, 0.5), (0.0, 0.5), (0.9, 0.0)]
    run = {"stage": stage, "moments": moments, "device": device}
    assert max(world.run(ranks, momentum, **run, on=on, timeout_s=120)) < 1e-6


def momentum_from_nowhere(stage):
    model = Model()
    sgd = torch.optim.SGD(groups_of(model, 0.0, 0.0), lr=LR)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
    engine, optimizer, _, _ = zeroshard.initialize(model=model, optimizer=sgd, config=config)
    before = engine.parameter_digest()
    optimizer.param_groups[1]["momentum"] = 0.9
    engine.backward(loss_of_pass(engine, 0))
    try:
        engine.step()
    except ValueError as error:
        told = str(error)
    else:
        told = "nothing"
    same = engine.parameter_digest() == before
    optimizer.param_groups[1]["momentum"] = 0.0
    engine.step()
    moved = engine.parameter_digest() != before
    engine.destroy()
    return told, same, moved


@pytest.mark.parametrize("ranks,stage", [(1, 0), (2, 1), (2, 3)])
def test_momentum_without_buffers_is_refused_before_the_update(ranks, stage):
    for told, same, moved in world.run(ranks, momentum_from_nowhere, stage=stage):
        assert "param group 1" in told
        assert "momentum buffers" in told
        assert same
        assert moved
