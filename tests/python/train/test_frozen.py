"""Parameters that are frozen or unfrozen after ``initialize``: they do what they do in PyTorch, or it is an error."""

import copy

import models
import pytest
import torch
import world
import zeroshard
from errors import message_of

STEPS = 3  # of each of: all trained, some frozen, all trained
# Sums over ranks are rounded in another order. Adam divides by a gradient's own size, which EPS keeps from being noise.
EPS, TOLERANCE = 1e-3, 1e-5


def configuration(stage):
    return models.configuration(stage, optimizer=models.adamw(weight_decay=0.1, eps=EPS))


def squared_error(model, x, y):
    return torch.nn.functional.mse_loss(model(x), y)


# -- frozen later ------------------------------------------------------------------------------------------------------


def freeze(model, frozen):
    """A whole unit, a module, and a parameter of other units."""
    for part in (model.blocks[1], model.blocks[2].up, model.head.bias):
        part.requires_grad_(not frozen)


def values_of(model):
    with zeroshard.gathered(model.parameters()):
        return {name: param.detach().clone() for name, param in model.named_parameters()}


def freeze_and_thaw(stage):
    """The largest difference to PyTorch, whether frozen parameters keep their bits, which others do, the digest."""
    model = models.stack()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-2, weight_decay=0.1, eps=EPS)
    engine = zeroshard.initialize(model=model, config=configuration(stage))[0]
    before = after = None
    for step in range(3 * STEPS):
        if step % STEPS == 0:
            for one in (model, reference):
                freeze(one, frozen=step == STEPS)
            before, after = after, values_of(model)
        x, y = models.vectors(step, 0, 2 * world.size())
        squared_error(reference, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        engine.backward(squared_error(engine, *(models.share(each, world.rank(), world.size()) for each in (x, y))))
        engine.step()
    kept = {name for name, value in before.items() if torch.equal(value, after[name])}
    expected = dict(reference.named_parameters())
    error = max((value - expected[name]).abs().max().item() for name, value in values_of(model).items())
    return error, sorted(kept), engine.parameter_digest()


def test_a_parameter_that_is_frozen_later_keeps_its_value():
    names = [name for name, _ in models.stack().named_parameters()]
    frozen = sorted(n for n in names if n.startswith(("blocks.1.", "blocks.2.up.")) or n == "head.bias")
    results = [result for stage in range(4) for result in world.run(2, freeze_and_thaw, stage=stage)]
    for error, kept, digest in results:
        assert error < TOLERANCE
        assert kept == frozen
        assert digest == results[0][2]


# -- unfrozen later ----------------------------------------------------------------------------------------------------


def thaw(stage):
    """What is said before anything is unfrozen, then in a forward pass, after one, without gradients, in the end."""
    model = models.stack()
    parts = (model.blocks[1].up.weight, model.head.bias)
    for param in parts:
        param.requires_grad_(False)
    engine = zeroshard.initialize(model=model, config=configuration(stage))[0]
    batch = models.vectors(0, world.rank(), 2)

    def train(between=lambda: None):
        loss = squared_error(engine, *batch)
        between()
        engine.backward(loss)
        engine.step()

    said = [message_of(train)]
    parts[0].requires_grad_(True)
    said.append(message_of(train))
    with torch.no_grad():
        said.append(message_of(lambda: engine(batch[0])))
    parts[0].requires_grad_(False)
    said.append(message_of(lambda: train(lambda: [part.requires_grad_(True) for part in parts])))
    for part in parts:
        part.requires_grad_(False)
    engine.step()
    said.append(message_of(train))
    return said, engine.global_steps


def add(stage, when):
    """What is said when parameters have come into the model, before or after the first step."""
    engine = zeroshard.initialize(model=models.stack(), config=configuration(stage))[0]
    batch = models.vectors(0, world.rank(), 2)
    for step in range(70):
        if step == when:
            head = engine.module.head
            engine.module.head = torch.nn.Linear(head.in_features, head.out_features)
            engine.module.blocks[1].up.adapter = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        try:
            engine.backward(squared_error(engine, *batch))
            engine.step()
        except zeroshard.StateError as error:
            return [step, str(error)]
    return None


@pytest.mark.parametrize("stage", [0, 3])
def test_a_parameter_that_comes_after_initialize_cannot_train(stage):
    for when, noticed in ((0, 0), (5, 64)):
        for step, message in world.run(2, add, stage=stage, when=when):
            assert step == noticed
            assert "parameter 'head.weight' (and 1 more) came into the model after zeroshard.initialize" in message


@pytest.mark.parametrize("stage", range(4))
def test_a_parameter_that_was_frozen_at_initialize_cannot_train(stage):
    place = "StateError: parameter 'blocks.1.up.weight' of a Linear in unit 'blocks.1'"
    for said, steps in world.run(2, thaw, stage=stage):
        assert [said[i] for i in (0, 2, 4)] == [None] * 3
        assert said[1].startswith(f"{place} requires a gradient, but did not at zeroshard.initialize")
        assert "freeze it afterwards" in said[1]
        assert said[3].startswith(f"{place} (and 1 more) requires")
        assert steps == 3


# -- on one rank alone -------------------------------------------------------------------------------------------------


def freeze_alone(stage):
    engine, *_ = zeroshard.initialize(model=models.stack(), config=configuration(stage))
    errors = []
    for step in range(4):
        if step in (1, 3) and world.rank() == 1:
            engine.module.blocks[1].requires_grad_(step == 3)
        x, y = (models.share(each, world.rank(), world.size()) for each in models.vectors(step, 0, 2 * world.size()))
        engine.backward(squared_error(engine, x, y))
        errors.append(message_of(engine.step))
    return errors


@pytest.mark.parametrize("stage", range(4))
def test_a_parameter_that_one_rank_alone_freezes_is_named_on_all(stage):
    for errors in world.run(2, freeze_alone, stage=stage):
        first, *between, last = errors
        assert first is None and last is None
        assert all("on rank 0 'blocks.1.norm.weight' is to be trained, on rank 1" in text for text in between)
