"""What scripts do to ``param.grad`` between backward and step works as in PyTorch, or an error says how to do it."""

import copy
import functools
import re

import models
import pytest
import torch
import world
import zeroshard

WIDTH = 64  # every one of three ranks owns a part of each unit
ADVICE = (
    r"RuntimeError: the gradient of parameter 'blocks\.0\.norm\.weight' waits for the step.*"
    r"zeroshard\.get_gradient\(param\).*gradient_clipping.*param\.grad = None"
)


def pair(stage, **more):
    """An engine, and the same model and optimizer in PyTorch."""
    plain = copy.deepcopy(model := models.stack(width=WIDTH))
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    engine, *_ = zeroshard.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), **settings),
        config=models.configuration(stage, gradient_clipping=0, **more),
    )
    return engine, plain, torch.optim.SGD(plain.parameters(), **settings)


loss_of = functools.partial(models.batch_loss, width=WIDTH)


def zero_grad(module):
    module.zero_grad()


def some_are_none(module):
    module.blocks[1].up.weight.grad = module.head.bias.grad = None


def distance(engine, plain):
    with zeroshard.gathered(list(engine.module.parameters())):
        pairs = zip(engine.module.parameters(), plain.parameters(), strict=True)
        return max(float((mine - other).detach().abs().max()) for mine, other in pairs)


def sides(engine, plain, optimizer, how):
    """Here and in PyTorch: what is called, its module, its backward and its update. ``how``: the engine's backward."""
    yield engine, engine.module, engine.backward if how == "engine" else torch.Tensor.backward, engine.step
    yield plain, plain, torch.Tensor.backward, optimizer.step


def drop(stage, what, when, how):
    """How far three steps are from PyTorch's, where gradients are dropped in the second one."""
    engine, plain, optimizer = pair(stage)
    for step in range(3):
        for model, module, own, update in sides(engine, plain, optimizer, how):
            own(loss_of(model, step))
            if step == 1 and when == "before the step":
                what(module)
            else:
                second = loss_of(model, step, micro=1)  # a forward between the two
                if step == 1:
                    what(module)
                own(second)
            update()
        optimizer.zero_grad()
        assert all(param.grad is None for param in engine.module.parameters())
    return distance(engine, plain)


@pytest.mark.parametrize("how", ["engine", "plain"])
@pytest.mark.parametrize("when", ["before the step", "between two passes"])
@pytest.mark.parametrize("what", [zero_grad, some_are_none])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_that_are_set_to_none_are_dropped(stage, what, when, how):
    assert max(world.run(3, drop, stage=stage, what=what, when=when, how=how)) < 1e-5


def drop_within_accumulation(dtype):
    """Of four micro-batches the first two are dropped, under no_sync, too."""
    engine, plain, optimizer = pair(2, accumulation=4, dtype=dtype)
    for micro in range(4):
        if micro == 2:
            zero_grad(engine.module), zero_grad(plain)
        if micro < 3:
            with engine.no_sync():
                engine.backward(loss_of(engine, 0, micro))
        else:
            engine.backward(loss_of(engine, 0, micro))
        engine.step()
        (loss_of(plain, 0, micro) / 4).backward()
    optimizer.step()
    return distance(engine, plain), engine.global_steps


def test_gradients_of_no_sync_are_dropped():
    for off, steps in world.run(3, drop_within_accumulation, dtype="fp32"):
        assert (off < 1e-5, steps) == (True, 1)


def drop_on_rank_0():
    engine, *_ = pair(3)
    engine.backward(loss_of(engine, 0))
    if world.rank() == 0:
        some_are_none(engine.module)
    engine.step()


def test_a_gradient_that_one_rank_alone_drops_is_an_error():
    for rank in world.run_ranks(3, drop_on_rank_0):
        assert "ranks disagree on the gradients that were dropped" in rank.error
        assert "'blocks.1.up.weight behind pass 1 of the step' is dropped" in rank.error


CALLS = {
    "clip_grad_norm_": lambda params: torch.nn.utils.clip_grad_norm_(params, 1.0),
    "clip_grad_value_": lambda params: torch.nn.utils.clip_grad_value_(params, 0.1),
    "get_total_norm": lambda params: torch.nn.utils.get_total_norm([param.grad for param in params]),
    "mul_": lambda params: params[0].grad.mul_(2),
    "zero_": lambda params: params[0].grad.zero_(),
    "norm": lambda params: params[0].grad.norm(),
}


def use(stage, call):
    engine, plain, optimizer = pair(stage)
    engine.backward(loss_of(engine, 0))
    error = None
    try:
        CALLS[call](list(engine.module.parameters()))
    except RuntimeError as raised:
        error = f"{type(raised).__name__}: {raised}"
    norm = float(zeroshard.get_gradient(engine.module.head.weight).norm())
    engine.step()  # nothing was lost
    loss_of(plain, 0).backward()
    own = float(plain.head.weight.grad.norm())
    optimizer.step()
    return error, distance(engine, plain), norm / own


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("stage", [0, 3])
def test_a_gradient_that_is_used_raises_and_says_how(stage, call):
    for error, off, ratio in world.run(3, use, stage=stage, call=call):
        assert re.match(ADVICE, error), error
        assert off < 1e-5 and ratio == pytest.approx(1, rel=1e-4)


def plain_backward(stage, dtype):
    """The norm of a step of four micro-batches by ``loss.backward()``, and by ``engine.backward``."""
    norms, read = [], []
    for own in (False, True):
        engine, *_ = pair(stage, accumulation=4, dtype=dtype)
        for micro in range(4):
            loss = loss_of(engine, 0, micro)
            engine.backward(loss) if own else engine.scale(loss).backward()
            read.append(float(zeroshard.get_gradient(engine.module.head.weight).norm()))
            engine.step()
        norms.append(engine.get_global_grad_norm())
        engine.destroy()
    return norms, read[:4], read[4:]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_a_plain_backward_averages_and_can_be_read(stage, dtype):
    for (plain, own), plain_reads, own_reads in world.run(3, plain_backward, stage=stage, dtype=dtype):
        assert plain == pytest.approx(own, rel=2e-2 if dtype != "fp32" else 1e-5)
        assert plain_reads == pytest.approx(own_reads, rel=2e-2 if dtype != "fp32" else 1e-5)


def unscaled():
    engine, *_ = pair(2, dtype="fp16")
    engine.scale(loss_of(engine, 0)).backward()
    loss_of(engine, 1).backward()


def test_an_unscaled_loss_is_refused_in_its_backward():
    for rank in world.run_ranks(2, unscaled):
        assert "without the loss scale, 65536: call engine.backward(loss), or engine.scale(loss)" in rank.error


def put_back(stage, between):
    """What is said of a gradient that was kept and put back when there is another one."""
    engine, *_ = pair(stage)
    param = engine.module.head.weight
    said = []
    engine.backward(loss_of(engine, 0))
    kept, part = param.grad, param.grad[0]
    if between == "step":
        engine.step()
    else:
        engine.module.zero_grad() if between == "module" else engine.zero_grad()
    engine.backward(loss_of(engine, 1))
    said.append(param.grad is kept)
    param.grad = kept
    for use in (lambda: zeroshard.get_gradient(param).norm(), part.norm, engine.step):
        with pytest.raises((RuntimeError, zeroshard.Error)) as error:
            use()
        said.append(str(error.value))
    engine.zero_grad()
    engine.backward(loss_of(engine, 2))
    engine.step()
    return said


@pytest.mark.parametrize("between", ["step", "module", "engine"])
@pytest.mark.parametrize("stage", [0, 3])
def test_a_gradient_that_is_put_back_is_not_the_present_one(stage, between):
    gone = "the gradient of parameter 'head.weight' from before is gone: a step has used it, or it was dropped"
    for same, read, view, step in world.run(2, put_back, stage=stage, between=between):
        assert not same and read.startswith(gone) and view.startswith(gone)
        assert "parameter 'head.weight' was given a gradient (param.grad = ...)" in step


def keep_within_a_step():
    """A gradient to which a second pass adds is the same one: to put it back changes nothing."""
    engine, plain, optimizer = pair(2)
    for model, module, own, update in sides(engine, plain, optimizer, "engine"):
        own(loss_of(model, 0))
        kept = module.head.weight.grad
        own(loss_of(model, 0, micro=1))
        module.head.weight.grad = kept
        update()
    return distance(engine, plain)


def test_a_gradient_is_the_same_over_passes_of_a_step():
    assert max(world.run(2, keep_within_a_step)) < 1e-5


def drop_behind_a_failed_step(stage):
    """Rank 0 alone drops a gradient, which fails the step; then all drop theirs, and train on."""
    engine, plain, optimizer = pair(stage)
    engine.backward(loss_of(engine, 0))
    kept = engine.module.head.weight.grad
    if world.rank() == 0:
        some_are_none(engine.module)
    with pytest.raises(zeroshard.Error, match="ranks disagree on the gradients that were dropped"):
        engine.step()
    assert engine.module.head.weight.grad is kept
    for model, module, own, update in sides(engine, plain, optimizer, "engine"):
        zero_grad(module)
        own(loss_of(model, 1))
        update()
    return distance(engine, plain)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_can_be_dropped_behind_a_step_that_raised(stage):
    assert max(world.run(2, drop_behind_a_failed_step, stage=stage)) < 1e-5
