"""What a caller does wrongly is told where it is done: nothing trains in silence with wrong gradients or not at all."""

import copy

import models
import pytest
import torch
import world
import zeroshard
from errors import message_of
from zeroshard.initialize import parse_config


def initialize(model, groups=None, stage=1, **blocks):
    config = models.configuration(stage, **{"optimizer": models.adamw(1e-3)} | blocks)
    return zeroshard.initialize(model=model, model_parameters=groups, config=config)[0]


def test_a_bad_loss_scale_leaves_the_model_as_it_was():
    model = models.stack()
    before = [param.detach().clone() for param in model.parameters()]
    with pytest.raises(ValueError, match="the loss scale must be above 0"):
        initialize(model, fp16={"enabled": True, "loss_scale": 1e39})
    assert all(param.equal(value) for param, value in zip(model.parameters(), before, strict=True))
    initialize(model).destroy()


# -- parameters --------------------------------------------------------------------------------------------------------


def wrong_parameters():
    model = models.stack()
    head = list(model.head.parameters())
    twice = [{"params": list(model.parameters())}, {"params": head, "lr": 1e-4}]
    doubled = models.stack()
    doubled.head.double()
    said = [
        message_of(lambda: initialize(model, copy.deepcopy(model).parameters())),
        message_of(lambda: initialize(model, twice)),
        message_of(lambda: initialize(doubled)),
    ]
    engine = initialize(model, [*model.parameters(), *head])  # twice in one group is no mistake
    said += [
        message_of(lambda: engine.optimizer.add_param_group({"params": head})),
        message_of(engine.optimizer.state_dict),
        message_of(lambda: engine.optimizer.load_state_dict({})),
    ]
    return said


def test_parameters_that_cannot_be_trained():
    expected = [
        "ValueError: model_parameters has 20 parameters that are not the model's",
        "ValueError: model_parameters has 'head.weight' in two param groups",
        "ValueError: parameter 'head.weight' is fp64 and requires a gradient",
        "ValueError: param groups cannot be added",
        "engine.save_checkpoint saves them",
        "engine.load_checkpoint loads them",
    ]
    for message, part in zip(world.run(1, wrong_parameters)[0], expected, strict=True):
        assert message and part in message, (message, part)


def names_and_ranks():
    engine = initialize(models.stack())
    no_rank = message_of(lambda: zeroshard.gathered(engine.parameters(), modify_rank=-3).__enter__())
    try:
        engine.no_such_thing  # noqa: B018
    except AttributeError as error:
        return [no_rank, str(error), engine.local_rank, hasattr(engine, "blocks")]


def test_names_and_ranks_that_are_not_there():
    for rank, (modify, attribute, local, falls_through) in enumerate(world.run(2, names_and_ranks)):
        assert modify == "ValueError: gathered: modify_rank is -3, expected a rank >= 0"
        assert attribute == "neither the engine nor its module (Stack) has the attribute 'no_such_thing'"
        assert local == rank and falls_through


def load_state_dicts(stage, dtype):
    """The mean weight of a model whose load_state_dict rank 0 gave 0.5, and rank 1 0.25, after a step of the rate 0."""
    model = models.stack(width=40)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    engine = initialize(model, stage=stage, dtype=dtype, optimizer=models.sgd(0))
    given = {name: torch.full(shape, 0.5 / (1 + world.rank())) for name, shape in shapes.items()}
    model.load_state_dict(given)
    x = torch.randn(2, 40, dtype=next(model.parameters()).dtype)
    engine.backward(engine(x).float().square().mean())
    engine.step()
    with zeroshard.gathered(model.parameters()):
        means = [param.float().mean().item() for param in model.parameters()]
    return [min(means), max(means), message_of(lambda: model.load_state_dict(given, assign=True))]


@pytest.mark.parametrize("stage,dtype", [(0, "bf16"), (1, "fp32"), (2, "bf16"), (3, "bf16"), (3, "fp32")])
def test_load_state_dict_after_initialize(stage, dtype):
    for lowest, highest, assigned in world.run(2, load_state_dicts, stage=stage, dtype=dtype):
        assert lowest == highest == 0.5
        assert "load_state_dict(assign=True) would replace parameters" in assigned


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(4))


def make_loaders(dataset):
    data = Endless() if dataset == "iterable" else list(range(4))
    zeroshard.initialize(
        model=models.stack(), training_data=data, config=models.configuration(1, optimizer=models.adamw())
    )


@pytest.mark.parametrize("dataset,ranks,told", [("iterable", 2, 1), ("iterable", 1, 0), ("list", 2, 0)])
def test_an_iterable_dataset_shards_itself(dataset, ranks, told):
    logs = [rank.log for rank in world.run_ranks(ranks, make_loaders, dataset=dataset)]
    assert sum(log.count("every rank iterates over all of it") for log in logs) == told, logs


def cast(stage, how, **blocks):
    model = models.stack()
    engine = initialize(model, stage=stage, **blocks)
    {"model": model, "engine": engine, "head": model.head}[how].to(torch.float16)
    return [message_of(lambda: models.same_loss(engine)), message_of(engine.step)]


@pytest.mark.parametrize("how,first", [("model", "blocks.0.norm.weight"), ("engine", "blocks.0."), ("head", "head.")])
def test_a_cast_after_initialize_is_told(how, first):
    for stage, before, blocks in ((0, "float32", {}), (2, "bfloat16", {"bf16": {"enabled": True}})):
        for said in world.run(2, cast, stage=stage, how=how, **blocks):
            for message in said:
                assert message.startswith(f"StateError: parameter '{first}") and "model before" in message
                assert f"is torch.float16 now, and was torch.{before} after" in message


# -- loss.backward() ---------------------------------------------------------------------------------------------------


def plain_backward():
    engine = initialize(models.stack(), fp16={"enabled": True, "initial_scale_power": 4})
    said = []
    for step in range(2):
        with pytest.raises(RuntimeError) as error:
            models.same_loss(engine, step).backward()
        said.append(str(error.value))
    return said


def own_backward_after_plain_steps():
    """A micro-batch without gradients is no loss.backward()."""
    engine = initialize(models.stack(), accumulation=2, fp16={"enabled": True, "initial_scale_power": 4})
    engine.backward(models.same_loss(engine))
    return [message_of(engine.step), message_of(engine.step), engine.was_step_applied()]


def test_a_loss_without_the_loss_scale_is_refused():
    said = world.run(1, plain_backward)[0]
    assert all("loss.backward() was called on a loss without the loss scale, 16" in one for one in said)
    assert world.run(1, own_backward_after_plain_steps)[0] == [None, None, True]


# -- configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/no/such/file.json", "nofile.json", "#nofile"])
def test_a_configuration_that_is_not_there(path):
    message = message_of(lambda: parse_config(path, world_size=1))
    assert message == f"ConfigError: cannot read '{path}' (No such file or directory)"
