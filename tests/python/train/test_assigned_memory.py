"""A parameter that is given other memory in its dtype counts as one that is written in place, or is an error."""

import models
import pytest
import test_user_writes as writes
import torch
import world
import zeroshard
from errors import text_of
from safetensors.torch import load_file
from torch.nn.utils import parameters_to_vector, vector_to_parameters

INNER = models.inner_width(10)
WORLDS = [(1, 0, "fp32"), (1, 3, "bf16"), (2, 0, "bf16"), (2, 1, "fp32"), (2, 1, "bf16")]


@torch.no_grad()
def assign(module, how):
    """Halves all parameters of a module, but for casts and sharing, which leave the values."""
    params = list(module.parameters())
    if how == "data":
        for param in params:
            param.data = param.data * 0.5
    elif how == "vector":
        vector_to_parameters(parameters_to_vector(params) * 0.5, params)
    elif how == "set_":
        for param in params:
            param.set_(param.detach() * 0.5)
    elif how == "strided":
        for param in params:
            param.data = (param.data * 0.5).t().contiguous().t()
    elif how == "cast":
        dtype = params[0].dtype
        module.double().to(dtype)
    elif how == "share":
        module.share_memory()


WAYS = ("data", "vector", "set_", "strided", "cast", "share")


def train_after_assigning(stage, dtype, directory):
    """Of each way: whether a step keeps what was assigned, the next ones train it, and a checkpoint has it."""
    answers = []
    for how in WAYS:
        engine, model = writes.initialize(stage, dtype)
        writes.step(engine)
        before = writes.values(model)
        assign(model, how)
        assigned = writes.values(model)
        writes.step(engine)
        kept = writes.values(model)
        engine.save_checkpoint(f"{directory}/{how}")
        engine.wait_for_checkpoint()
        loaded, copy = writes.initialize(stage, dtype)
        loaded.load_checkpoint(f"{directory}/{how}")
        saved = writes.values(copy)
        engine.set_lr(0.5)
        writes.step(engine)
        writes.step(engine)
        now = writes.values(model)
        half = 1.0 if how in ("cast", "share") else 0.5
        answers.append(
            all(torch.equal(assigned[name], before[name] * half) for name in before)
            and all(torch.equal(assigned[name], kept[name]) for name in before)
            and all(torch.equal(assigned[name], saved[name]) for name in before)
            and all(not torch.equal(assigned[name], now[name]) for name in before if "norm" not in name)
            and engine.parameter_digest() != loaded.parameter_digest()
        )
    return answers


@pytest.mark.row("U3")
@pytest.mark.fault
@pytest.mark.parametrize("ranks,stage,dtype", WORLDS)
def test_what_is_assigned_counts(ranks, stage, dtype, tmp_path):
    answers = world.run(ranks, train_after_assigning, stage=stage, dtype=dtype, directory=str(tmp_path))
    assert answers == [[True] * len(WAYS)] * ranks


def assign_wrongly(stage, dtype):
    """What two steps say after rank 0 alone, each rank something else, or another shape was assigned."""
    said = []
    for how in ("alone", "differently", "shape"):
        engine, model = writes.initialize(stage, dtype)
        writes.step(engine)
        weight = model.blocks[1].up.weight
        like = {"dtype": weight.dtype}
        if how == "shape":
            weight.data = torch.zeros(10, INNER, **like)
            said.append([text_of(engine._run.core.prepare_step)] * 2)
            continue
        if how == "differently" or world.rank() == 0:
            weight.data = torch.full((INNER, 10), float(world.rank()), **like)
        said.append([text_of(lambda engine=engine: writes.step(engine)) for _ in range(2)])
    return said


@pytest.mark.row("U3")
@pytest.mark.fault
@pytest.mark.parametrize("stage,dtype", [(0, "fp32"), (1, "bf16"), (2, "fp32"), (3, "bf16"), (3, "fp32")])
def test_what_cannot_be_taken_is_named_on_every_rank(stage, dtype):
    why = ["not the same on every rank"] * 2 + [f"another shape than [{INNER}, 10]"]
    if stage == 3:
        why = ["was given other memory (param.data = ...) outside of zeroshard.gathered"] * 3
    for said in world.run(2, assign_wrongly, stage=stage, dtype=dtype):
        for expected, messages in zip(why, said, strict=True):
            assert all("'blocks.1.up.weight'" in each and expected in each for each in messages), messages


def assign_inside(stage, dtype):
    engine, model = writes.initialize(stage, dtype)
    writes.step(engine)
    weight = model.blocks[1].up.weight
    whole = list(model.parameters())
    for how in ("data", "vector", "set_"):
        before = writes.values(model)
        with zeroshard.gathered(whole, modify_rank=0):
            if world.rank() == 0:
                assign(model, how)
        assert all(torch.equal(before[name] * 0.5, value) for name, value in writes.values(model).items()), how
        kept = writes.values(model)
        writes.step(engine)
        assert all(torch.equal(kept[name], value) for name, value in writes.values(model).items()), how

    def shape():
        with zeroshard.gathered(whole, modify_rank=0):
            if world.rank() == 0:
                weight.data = torch.zeros(10, INNER, dtype=weight.dtype)

    def read():
        with zeroshard.gathered(whole):
            weight.data = torch.zeros_like(weight)

    def fail():
        with zeroshard.gathered(whole, modify_rank=0):
            weight.data = torch.zeros_like(weight)
            raise RuntimeError("my own")

    said = [text_of(shape), text_of(read), text_of(fail)]
    writes.step(engine)
    assert all(torch.equal(kept[name], value) for name, value in writes.values(model).items())
    return said


@pytest.mark.row("U3")
@pytest.mark.fault
@pytest.mark.parametrize("ranks,stage,dtype", [(1, 0, "bf16"), (2, 1, "bf16"), (2, 3, "fp32"), (2, 3, "bf16")])
def test_inside_gathered_the_rank_that_modifies_may_assign(ranks, stage, dtype):
    for shape, read, fail in world.run(ranks, assign_inside, stage=stage, dtype=dtype):
        assert "'blocks.1.up.weight'" in shape and f"another shape than [{INNER}, 10]" in shape
        assert "'blocks.1.up.weight' was written inside zeroshard.gathered" in read
        assert fail == "my own"


def exchange(stage, dtype):
    """Two parameters of one shape that get each other's memory, of other units; and values that are put back."""
    engine, model = writes.initialize(stage, dtype)
    writes.step(engine)
    one, two = model.blocks[0].up.weight, model.blocks[1].up.weight
    before = one.detach().clone(), two.detach().clone()
    one.data, two.data = two.data, one.data
    writes.step(engine)
    exchanged = torch.equal(one, before[1]) and torch.equal(two, before[0])
    memory = one.data
    one.data = torch.zeros_like(one)  # for an evaluation
    one.data = memory
    engine.set_lr(0.5)
    writes.step(engine)
    return [exchanged, not torch.equal(one, before[1]), memory.data_ptr() == one.data_ptr()]


@pytest.mark.parametrize("ranks,stage,dtype", [(1, 0, "fp32"), (2, 1, "bf16")])
def test_memory_may_be_exchanged_and_put_back(ranks, stage, dtype):
    assert world.run(ranks, exchange, stage=stage, dtype=dtype) == [[True] * 3] * ranks


def return_assigned(stage):
    engine, model = writes.initialize(stage, "fp32")
    writes.step(engine)
    if stage == 3:
        model.blocks[1].up.weight.data = torch.full((INNER, 10), 0.25)
    else:
        assign(model, "strided")
        assign(model, "share")
    assigned = writes.values(model)
    engine.destroy()
    config = models.configuration(0, optimizer=models.sgd(0.5))
    engine = zeroshard.initialize(model=model, config=config)[0]
    before = writes.values(model)
    writes.step(engine)
    now = writes.values(model)
    kept = all(torch.equal(assigned[name], before[name]) for name in before)
    return [kept] + [not torch.equal(before[name], now[name]) for name in ("blocks.1.up.weight", "head.weight")]


@pytest.mark.parametrize("ranks,stage", [(1, 0), (2, 1), (2, 3)])
def test_an_engine_that_ends_leaves_what_was_assigned(ranks, stage):
    assert world.run(ranks, return_assigned, stage=stage) == [[True] * 3] * ranks


def assign_to_small_ones(assign_while):
    """At stage 3 small parameters are whole from the forward on that needs them until the next update."""
    config = models.configuration(3, "bf16", threshold=10000, optimizer=models.sgd(0.0))
    model = models.stack()
    engine = zeroshard.initialize(model=model, config=config)[0]
    writes.step(engine)
    before = writes.values(model)
    params = dict(model.named_parameters())
    if assign_while == "whole":
        with torch.no_grad():
            engine(models.vectors(0, world.rank(), 2)[0].bfloat16())
        assign(model, "data")
    else:
        for name, param in params.items():
            param.data = (before[name] * 0.5).bfloat16()
    writes.step(engine)
    writes.step(engine)
    return all(torch.equal(before[name] * 0.5, value) for name, value in writes.values(model).items())


@pytest.mark.parametrize("assign_while", ["whole", "sharded"])
def test_what_is_assigned_to_small_parameters_counts(assign_while):
    assert world.run(2, assign_to_small_ones, assign_while=assign_while) == [True, True]


def train_the_module(stage):
    """A module that is cast to and fro, and then called without the engine."""
    engine, model = writes.initialize(stage, "fp32", rate=0.5)
    writes.step(engine)
    before = writes.values(model)
    assign(model, "cast")
    x, y = models.vectors(0, world.rank(), 2)
    torch.nn.functional.mse_loss(model(x), y).backward()
    engine.step()
    now = writes.values(model)
    return [not torch.equal(before[name], now[name]) for name in before if "norm" not in name]


def test_a_cast_to_and_fro_loses_no_gradient():
    for moved in world.run(2, train_the_module, stage=1):
        assert all(moved) and moved


def export_assigned(directory, stage):
    engine, model = writes.initialize(stage, "bf16")
    assign(model, "data")
    model.head.double()
    engine.save_16bit_model(directory)
    return {name: value.tolist() for name, value in writes.values(model).items()}


def test_an_export_has_what_was_assigned(tmp_path):
    first, _ = world.run(2, export_assigned, directory=str(tmp_path), stage=1)
    exported = load_file(tmp_path / "model.safetensors")
    assert first.keys() == exported.keys()
    assert all(exported[name].dtype == torch.bfloat16 for name in first)
    assert all(exported[name].float().tolist() == first[name] for name in first)


class Tied(torch.nn.Module):
    """Two parameters with one memory."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(37, 37, bias=False)
        self.two = torch.nn.Linear(37, 37, bias=False)
        self.two.weight = torch.nn.Parameter(self.one.weight.data)

    def forward(self, x):
        return self.two(self.one(x))


def assign_to_tied(stage):
    """What is assigned to both, to one and differently; and whether both are one afterwards."""
    config = models.configuration(stage, optimizer=models.sgd(0.5))
    model = Tied()
    engine = zeroshard.initialize(model=model, config=config)[0]

    def step():
        engine.backward(engine(torch.ones(2, 37)).square().mean())
        engine.step()

    step()
    found = []
    for both in (True, False):
        for weight in (model.two.weight, model.one.weight)[: 2 if both else 1]:
            weight.data = torch.full((37, 37), 0.25)
        engine.set_lr(0.0)
        step()
        found.append(model.one.weight.data_ptr() == model.two.weight.data_ptr())
        found.append(torch.equal(model.one.weight, torch.full((37, 37), 0.25)))
        engine.set_lr(0.5)
        step()
        found.append(not torch.equal(model.two.weight, torch.full((37, 37), 0.25)))
    model.one.weight.data = torch.zeros(37, 37)
    model.two.weight.data = torch.ones(37, 37)
    return found, text_of(step)


@pytest.mark.parametrize("ranks,stage", [(1, 0), (2, 1)])
def test_tied_tensors_are_one_again(ranks, stage):
    for found, said in world.run(ranks, assign_to_tied, stage=stage):
        assert found == [True] * 6
        assert "'one.weight'" in said and "differ between tensors that are tied" in said
