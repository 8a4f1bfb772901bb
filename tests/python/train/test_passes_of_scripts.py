"""Backward passes that scripts begin themselves, of one engine or of two, with gradients that they drop in between."""

import copy

import models
import pytest
import torch
import world
import zeroshard
from test_dropped_gradients import WIDTH, distance, loss_of, pair, sides


class Fault(Exception):
    pass


def fail(_):
    raise Fault


def fail_once(stage, ranks, then):
    """What is said where the second ``loss.backward()`` fails on ``ranks``, and the weights after one more."""
    engine, plain, optimizer = pair(stage)
    for step in (0, 2):
        optimizer.zero_grad()
        loss_of(plain, step).backward()
        optimizer.step()
    said = []
    for step in range(3):
        handle = None
        if step == 1 and world.rank() in ranks:
            handle = engine.module.blocks[0].up.weight.register_hook(fail)
        try:
            loss_of(engine, step).backward()
        except (Fault, RuntimeError) as error:
            said.append(f"{type(error).__name__}: {error}")
        if handle is not None:
            handle.remove()
        if step != 1:
            engine.step()
        elif then == "zero_grad":
            engine.module.zero_grad()
    return said, distance(engine, plain)


@pytest.mark.parametrize("then", ["nothing", "zero_grad"])
@pytest.mark.parametrize("ranks", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_pass_that_failed_is_discarded_by_all(stage, ranks, then):
    results = world.run(3, fail_once, stage=stage, ranks=ranks, then=then)
    for rank, (said, off) in enumerate(results):
        assert off < 1e-5 and len(said) == 1, said
        if rank in ranks:
            assert said[0].startswith("Fault")
        else:
            assert "discarded on all ranks" in said[0] and "rank 0: a loss.backward() that failed" in said[0]


def give_to_two(way, dtype):
    """Norms of a step of two micro-batches whose losses go through two engines, by each engine and by PyTorch."""
    engines = [pair(2, accumulation=2, dtype=dtype)[0] for _ in range(2)]
    plain = [copy.deepcopy(models.stack(width=WIDTH)) for _ in range(2)]
    for micro in range(2):
        loss = sum(loss_of(engine, number, micro) for number, engine in enumerate(engines))
        if way == "engine":
            engines[0].backward(loss)
        else:
            (engines[0].scale(loss) if way == "scale" else loss).backward()
        for engine in engines:
            engine.step()
        (sum(loss_of(model, number, micro) for number, model in enumerate(plain)) / 2).backward()
    own = [torch.nn.utils.get_total_norm([param.grad for param in model.parameters()]).item() for model in plain]
    return [engine.get_global_grad_norm() for engine in engines], own


@pytest.mark.parametrize(
    ("way", "dtype"), [("engine", "fp32"), ("scale", "fp32"), ("plain", "fp32"), ("engine", "fp16"), ("scale", "fp16")]
)
def test_one_backward_gives_gradients_to_two_engines(way, dtype):
    for norms, own in world.run(2, give_to_two, way=way, dtype=dtype):
        assert norms == pytest.approx(own, rel=1e-5 if dtype == "fp32" else 1e-2)


def scale_two(dtype):
    """Two losses are scaled before either has its backward; a third is scaled, and never used."""
    engine, plain, _ = pair(2, accumulation=2, dtype=dtype)
    first, second = (engine.scale(loss_of(engine, 0, micro)) for micro in range(2))
    first.backward()
    engine.step()
    second.backward()
    engine.step()
    norm = engine.get_global_grad_norm()
    for micro in range(2):
        (loss_of(plain, 0, micro) / 2).backward()
    own = torch.nn.utils.get_total_norm([param.grad for param in plain.parameters()]).item()
    engine.scale(loss_of(engine, 1))
    error = ""
    try:
        loss_of(engine, 1).backward()
    except RuntimeError as raised:
        error = str(raised)
    return norm, own, error


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_scale_is_of_its_loss_alone(dtype):
    for norm, own, error in world.run(2, scale_two, dtype=dtype):
        assert norm == pytest.approx(own, rel=1e-5 if dtype == "fp32" else 1e-2)
        assert ("without the loss scale" in error) == (dtype == "fp16")


def gradient_of_an_input(model):
    x = models.vectors(7, 0, 2, WIDTH)[0].requires_grad_()
    torch.autograd.grad(model(x).sum(), x)


def drop_behind(stage, what, how):
    """How far two steps are from PyTorch's, where a gradient is dropped behind something that launches reductions."""
    engine, plain, optimizer = pair(stage)
    for step in range(2):
        for model, module, own, update in sides(engine, plain, optimizer, how):
            own(loss_of(model, step))
            if what == "two forwards":
                second = loss_of(model, step, 1) - loss_of(model, step, 2)
            else:
                gradient_of_an_input(model)
                second = None if what == "grad before the step" else loss_of(model, step, 1)
            module.zero_grad()
            if second is not None:
                own(second)
            update()
        optimizer.zero_grad()
    return distance(engine, plain)


@pytest.mark.parametrize("how", ["engine", "plain"])
@pytest.mark.parametrize("what", ["two forwards", "grad before a pass", "grad before the step"])
@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_are_dropped_behind_other_passes(stage, what, how):
    assert max(world.run(3, drop_behind, stage=stage, what=what, how=how)) < 1e-5


def drop_at_other_times():
    engine, *_ = pair(2)
    for micro in range(2):
        loss_of(engine, 0, micro).backward()
        if (world.rank() == 0) == (micro == 0):
            engine.module.head.weight.grad = None
    engine.step()


def test_ranks_that_drop_at_different_times_are_told():
    for rank in world.run_ranks(3, drop_at_other_times):
        assert "'head.weight behind pass 1 of the step'" in rank.error
        assert "'head.weight behind pass 2 of the step'" in rank.error


def read_and_set_after(stage):
    engine, *_ = pair(stage)
    weight = engine.module.head.weight
    engine.backward(loss_of(engine, 0))
    engine.module.zero_grad()
    gone = zeroshard.get_gradient(weight) is None and zeroshard.get_gradient_norms(engine) == {}
    zeroshard.set_gradient(weight, torch.ones_like(weight, dtype=torch.float32))
    engine.step()
    return gone, engine.get_global_grad_norm(), weight.numel() ** 0.5


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_dropped_gradient_is_none_and_can_be_set(stage):
    for gone, norm, expected in world.run(3, read_and_set_after, stage=stage):
        assert gone and norm == pytest.approx(expected, rel=1e-6)


def use_a_block_on_rank_0():
    """All ranks drop all gradients; one of the blocks has got some on rank 0 alone."""
    engine, *_ = pair(2)
    x, y = models.vectors(0, 0, 2, WIDTH)
    blocks = engine.module.blocks
    out = blocks[1](x) if world.rank() == 0 else x
    torch.nn.functional.mse_loss(engine.module.head(blocks[0](out)), y).backward()
    engine.module.zero_grad()
    engine.backward(loss_of(engine, 1))
    engine.step()
    return engine.global_steps


def test_all_ranks_drop_what_some_had():
    assert world.run(3, use_a_block_on_rank_0) == [1, 1, 1]
