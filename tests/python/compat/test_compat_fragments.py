"""safe_get_* and safe_set_*: weights, gradients and states of single parameters, against plain torch in one process."""

import models
import pytest
import torch
import world
from errors import message_of
from zeroshard.compat import fragments
from zeroshard.compat.deepspeed import initialize

LR, EPS = 1e-2, 1e-3  # with a small eps, rounding errors of small gradients decide about updates


def make_tied_engine(stage, dtype="fp32", accumulation=1, optimizer="AdamW", **blocks):
    blocks = {"optimizer": {"type": optimizer, "params": {"lr": LR, "eps": EPS}}, **blocks}
    model = models.tied()
    config = models.configuration(stage, dtype, accumulation=accumulation, **blocks)
    return model, initialize(model=model, config=config)[0]


def backward(engine, step, micro=0):
    engine.backward(models.part_loss(engine, step, micro))


def close(a, b, tolerance=1e-5):
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance)


def all_of(stage, dtype):
    """After each phase: the names of parameters whose values differ from plain torch's."""
    model, engine = make_tied_engine(stage, dtype)
    reference = models.tied() if dtype == "fp32" else models.tied().to(torch.bfloat16)
    masters = {n: p.detach().float().clone() for n, p in reference.named_parameters()}
    plain = torch.optim.AdamW(list(masters.values()), lr=LR, eps=EPS, weight_decay=0)
    wrong, tolerance = [], 1e-5 if dtype == "fp32" else 2e-2
    for step in range(2):
        backward(engine, step)
        for rank in range(world.size()):  # the mean over ranks of the means over their samples
            (models.part_loss(reference, step, 0, rank, world.size()) / world.size()).backward()
        grads = {n: p.grad for n, p in reference.named_parameters()}
        for moment in ("before the step", "after the step"):
            for name, param in model.named_parameters():
                grad = fragments.safe_get_full_grad(param)
                expected = grads[name]
                if (grad is None) != (expected is None) or (
                    grad is not None and not (grad.dtype == torch.float32 and close(grad, expected.float(), tolerance))
                ):
                    wrong.append(f"grad of {name} {moment} {step}")
            if moment == "before the step":
                engine.step()
        for name, master in masters.items():
            master.grad = None if grads[name] is None else grads[name].float()
        plain.step()
        with torch.no_grad():
            for name, param in reference.named_parameters():
                param.copy_(masters[name])
                param.grad = None
        for name, param in model.named_parameters():
            own = fragments.safe_get_full_fp32_param(param)
            if not param.requires_grad:
                if own is not None or fragments.safe_get_full_optimizer_state(param, "exp_avg") is not None:
                    wrong.append(f"frozen {name}")
                continue
            if not close(own, masters[name], 10 * tolerance):
                wrong.append(f"weights of {name} after {step}")
            for key in ("exp_avg", "exp_avg_sq"):
                state = fragments.safe_get_full_optimizer_state(param, key)
                expected = plain.state[masters[name]].get(key, torch.zeros_like(masters[name]))
                if state.shape != param.shape or not close(state, expected, tolerance):
                    wrong.append(f"{key} of {name} after {step}")
    evaluated = engine.eval()(torch.zeros(1, 10, dtype=next(model.parameters()).dtype)).shape
    kept = fragments.safe_get_full_grad(model.first.weight) is not None
    engine.train()
    models.part_loss(engine, 3, rank=0)
    gone = fragments.safe_get_full_grad(model.first.weight) is None
    return [wrong, list(evaluated), kept, gone]


@pytest.mark.parametrize("ranks,stage,dtype", [(1, 0, "fp32"), (1, 3, "bf16"), (2, 1, "bf16"), (2, 3, "fp32")])
def test_full_values_are_those_of_one_process(ranks, stage, dtype):
    for wrong, evaluated, kept, gone in world.run(ranks, all_of, stage=stage, dtype=dtype):
        assert wrong == []
        assert evaluated == [1, 5]
        assert kept and gone  # evaluation leaves gradients; the next forward for training does not


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_full_values_over_three_ranks(stage):
    for wrong, *_ in world.run(3, all_of, stage=stage, dtype="fp32"):
        assert wrong == []


def unscaled(accumulation):
    """Gradients in fp16 and over micro-batches: without the loss scale, averaged, before clipping."""
    blocks = {"fp16": {"enabled": True, "loss_scale": 512}, "gradient_clipping": 1e-3}
    model, engine = make_tied_engine(2, "fp32", accumulation, **blocks)
    reference = models.tied()
    for micro in range(accumulation):
        backward(engine, 0, micro)
        engine.step() if micro + 1 < accumulation else None
        for rank in range(world.size()):
            (models.part_loss(reference, 0, micro, rank, world.size()) / world.size() / accumulation).backward()
    expected = reference.first.weight.grad
    before = fragments.safe_get_full_grad(model.first.weight)
    engine.step()
    after = fragments.safe_get_full_grad(model.first.weight)
    return close(before, expected, 2e-2), torch.equal(before, after), engine.loss_scale()


@pytest.mark.parametrize("accumulation", [1, 3])
def test_gradients_have_no_loss_scale_and_are_not_clipped(accumulation):
    assert world.run(2, unscaled, accumulation=accumulation) == [[True, True, 512.0]] * 2


def one_sided():
    """A layer that only rank 1 uses, while rank 0 keeps its gradient."""
    model, engine = make_tied_engine(2)
    loss = models.part_loss(engine, 0)
    if world.rank() == 1:
        loss = loss + model.unused(torch.ones(1, 3)).sum()
    engine.backward(loss)
    before = fragments.safe_get_full_grad(model.unused.weight).tolist()
    engine.step()
    return before, fragments.safe_get_full_grad(model.unused.weight).tolist()


def test_gradients_that_one_rank_alone_has():
    expected = torch.full((3, 3), 0.5).tolist()
    assert world.run(2, one_sided) == [[expected, expected]] * 2


def set_and_get(stage, dtype):
    model, engine = make_tied_engine(stage, dtype)
    same = []
    backward(engine, 0)
    norm = None
    for scale in (1.0, 3.0):  # the step uses what was set, and so does its norm
        grads = {n: fragments.safe_get_full_grad(p) for n, p in model.named_parameters()}
        for name, param in model.named_parameters():
            if grads[name] is not None:
                fragments.safe_set_full_grad(param, grads[name] * scale)
        norm = torch.sqrt(sum((g * scale).double().square().sum() for g in grads.values() if g is not None)).item()
    engine.step()
    same.append(abs(engine.get_global_grad_norm() - norm) < 1e-2 * norm)
    for param in (param for param in model.parameters() if param.requires_grad):
        value = torch.randn(param.shape, generator=torch.Generator().manual_seed(1))
        fragments.safe_set_full_fp32_param(param, value)
        same.append(torch.equal(fragments.safe_get_full_fp32_param(param), value))
        for key in ("exp_avg", "exp_avg_sq"):
            fragments.safe_set_full_optimizer_state(param, value.abs(), key)
            same.append(torch.equal(fragments.safe_get_full_optimizer_state(param, key), value.abs()))
    state = engine._zero3_consolidated_16bit_state_dict()
    if state is not None:
        value = torch.randn(30, 10, generator=torch.Generator().manual_seed(1))
        same.append(torch.equal(state["first.weight"], value.to(state["first.weight"].dtype)))
        same.append(state["first.weight"] is state["again.weight"])
    x = torch.ones(2, 10, dtype=next(model.parameters()).dtype)
    before = engine(x).detach().float()
    reference = models.tied()
    with torch.no_grad():
        for param in (param for param in reference.parameters() if param.requires_grad):
            param.copy_(torch.randn(param.shape, generator=torch.Generator().manual_seed(1)))
    same.append(close(before, reference.to(x.dtype)(x).float(), 1e-5 if dtype == "fp32" else 0.3))
    backward(engine, 1)
    engine.step()
    same.append(engine.parameter_digest())
    return same


@pytest.mark.parametrize("ranks,stage,dtype", [(1, 3, "fp32"), (2, 0, "fp32"), (2, 1, "bf16"), (2, 3, "bf16")])
def test_what_is_set_is_got_and_trained_from(ranks, stage, dtype):
    answers = world.run(ranks, set_and_get, stage=stage, dtype=dtype)
    digests = {answer.pop() for answer in answers}
    assert len(digests) == 1
    assert all(all(answer) for answer in answers), answers


def local_parts(stage):
    import torch.distributed as dist

    model, engine = make_tied_engine(stage)
    backward(engine, 0)
    right = []
    for param in (p for p in model.parameters() if p.requires_grad):
        full = fragments.safe_get_full_grad(param)
        right.append(is_cut(fragments.safe_get_local_grad(param), torch.zeros_like(param) if full is None else full))
        fragments.safe_set_local_grad(param, 2 * fragments.safe_get_local_grad(param))
        doubled = fragments.safe_get_full_grad(param)
        right.append(full is None or torch.equal(doubled, 2 * full))
    engine.step()
    sizes = torch.zeros(1)
    for param in (p for p in model.parameters() if p.requires_grad):
        local = fragments.safe_get_local_fp32_param(param)
        sizes += local.numel()
        right.append(is_cut(local, fragments.safe_get_full_fp32_param(param)))
        fragments.safe_set_local_fp32_param(param, local + 1)
        right.append(is_cut(local + 1, fragments.safe_get_full_fp32_param(param)))
        local = fragments.safe_get_local_optimizer_state(param, "exp_avg")
        right.append(is_cut(local, fragments.safe_get_full_optimizer_state(param, "exp_avg")))
        fragments.safe_set_local_optimizer_state(param, local + 1, "exp_avg")
        right.append(is_cut(local + 1, fragments.safe_get_full_optimizer_state(param, "exp_avg")))
    dist.all_reduce(sizes)
    return all(right), sizes.item() == sum(p.numel() for p in model.parameters() if p.requires_grad)


def is_cut(part, whole):
    """Whether all ranks' parts, in order, are the whole tensor."""
    import torch.distributed as dist

    parts = [None] * world.size()
    dist.all_gather_object(parts, part)
    return torch.equal(torch.cat(parts), whole.reshape(-1))


@pytest.mark.parametrize("ranks,stage", [(2, 1), (3, 3)])
def test_local_values_are_cuts_of_the_full_ones(ranks, stage):
    assert world.run(ranks, local_parts, stage=stage) == [[True, True]] * ranks


def outside():
    """An optimizer that the core does not know: its own states."""
    model = models.tied()
    own = torch.optim.RMSprop(model.parameters(), lr=LR, momentum=0.5)
    engine = initialize(model=model, optimizer=own, config=models.configuration(3))[0]
    reference, weight = models.tied(), model.first.weight
    theirs = torch.optim.RMSprop(reference.parameters(), lr=LR, momentum=0.5)
    none = fragments.safe_get_full_optimizer_state(weight, "square_avg") is None
    early = message_of(lambda: fragments.safe_set_full_optimizer_state(model.first.bias, torch.ones(30), "square_avg"))
    backward(engine, 0)
    engine.step()
    for rank in range(world.size()):
        (models.part_loss(reference, 0, 0, rank, world.size()) / world.size()).backward()
    theirs.step()
    states = [
        close(fragments.safe_get_full_optimizer_state(weight, key), theirs.state[reference.first.weight][key])
        for key in ("square_avg", "momentum_buffer")
    ]
    fragments.safe_set_full_optimizer_state(weight, torch.ones(30, 10), "square_avg")
    states.append(torch.equal(fragments.safe_get_full_optimizer_state(weight, "square_avg"), torch.ones(30, 10)))
    states.append(close(fragments.safe_get_full_fp32_param(weight), reference.first.weight.detach()))
    unknown = message_of(lambda: fragments.safe_get_full_optimizer_state(weight, "exp_avg"))
    number = message_of(lambda: fragments.safe_get_full_optimizer_state(weight, "step"))
    return none, early, states, unknown, number


@pytest.mark.parametrize("ranks", [1, 2])
def test_states_of_an_optimizer_outside(ranks):
    for none, _, states, unknown, number in world.run(ranks, outside):
        assert none and all(states), states
        assert "'exp_avg' of 'first.weight' is missing: RMSprop has ['square_avg', 'momentum_buffer']" in unknown
        assert "'step' of 'first.weight' has one value" in number


def mischief(stage):
    model, engine = make_tied_engine(stage)
    weight, bias = model.first.weight, model.first.bias
    foreign = torch.nn.Parameter(torch.ones(3))
    said = {
        "before": [fragments.safe_get_full_grad(weight) is None, fragments.safe_get_full_grad(foreign) is None],
        "zeros": fragments.safe_get_full_optimizer_state(weight, "exp_avg").abs().sum().item(),
        "early": message_of(lambda: fragments.safe_set_full_grad(weight, torch.ones(30, 10))),
        "key": message_of(lambda: fragments.safe_get_full_optimizer_state(weight, "momentum_buffer")),
        "set key": message_of(lambda: fragments.safe_set_full_optimizer_state(bias, torch.ones(30), "exp")),
        "size": message_of(lambda: fragments.safe_set_full_fp32_param(weight, torch.ones(3))),
        "type": message_of(lambda: fragments.safe_set_full_fp32_param(weight, 1.0)),
        "no param": message_of(lambda: fragments.safe_get_full_grad("first.weight")),
        "same": torch.equal(
            fragments.safe_get_full_optimizer_state(weight, None), fragments.safe_get_full_fp32_param(weight)
        ),
    }
    if stage == 0:
        said["local"] = message_of(lambda: fragments.safe_get_local_fp32_param(weight))
    fragments.safe_set_full_grad(foreign, torch.ones(3))
    fragments.safe_set_full_fp32_param(model.frozen.weight, torch.ones(30, 30))
    backward(engine, 0)
    engine.zero_grad()
    said["dropped"] = fragments.safe_get_full_grad(weight) is None
    backward(engine, 0)
    with engine.no_sync():
        backward(engine, 0)
    engine.step()
    models.part_loss(engine, 0).backward()
    said["plain"] = float(fragments.safe_get_full_grad(weight).abs().sum()) > 0
    engine.step()
    late = message_of(lambda: fragments.safe_set_full_grad(weight, torch.ones(30, 10)))
    said["late"] = late
    engine.destroy()
    said["after"] = [
        fragments.safe_get_full_grad(weight) is None,
        fragments.safe_get_full_fp32_param(weight) is None,
        fragments.safe_set_full_fp32_param(weight, torch.ones(30, 10)) is None,
    ]
    return said


@pytest.mark.parametrize("ranks,stage", [(1, 0), (2, 2), (2, 3)])
def test_mischief(ranks, stage):
    for said in world.run(ranks, mischief, stage=stage):
        assert said["before"] == [True, True] and said["zeros"] == 0 and said["same"] and said["dropped"]
        for when in ("early", "late"):
            assert "the gradient of 'first.weight' cannot be set now" in said[when]
        assert "no optimizer state 'momentum_buffer': AdamW has ['exp_avg', 'exp_avg_sq']" in said["key"].replace(
            "ADAMW", "AdamW"
        )
        assert "no optimizer state 'exp'" in said["set key"]
        assert said["plain"]
        assert "value has 3 elements, 'first.weight' has 300" in said["size"]
        assert "value is a float" in said["type"] and "param is a str" in said["no param"]
        assert stage != 0 or "safe_get_full_fp32_param has them" in said["local"]
        assert said["after"] == [True, True, True]


def alone(stage):
    model, engine = make_tied_engine(stage)
    if world.rank() == 0:
        fragments.safe_get_full_fp32_param(model.first.weight)
    backward(engine, 0)
    engine.step()


@pytest.mark.parametrize("stage", [1, 3])
def test_a_full_getter_on_one_rank_alone_ends_in_an_error_on_all(stage):
    ranks = world.run_ranks(2, alone, stage=stage)
    assert all(rank.error and "CommError" in rank.error for rank in ranks), [rank.error for rank in ranks]
    assert all(rank.seconds < 25 for rank in ranks)
    assert "full fp32 weights of 'first.weight'" in ranks[1].error
