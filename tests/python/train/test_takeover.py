"""An engine that ends: another takes its module over, or it is destroyed. Its module stays the user's."""

import gc
import weakref

import models
import pytest
import torch
import world
import zeroshard
from errors import message_of
from waiting import wait_for


def configuration(stage, dtype, trains=True, **blocks):
    if trains:
        blocks["optimizer"] = models.adamw()
    return models.configuration(stage, dtype, threshold=40, fp16={"initial_scale_power": 4}, **blocks)


def initialize(model, stage, dtype="fp32", trains=True, **options):
    return zeroshard.initialize(model=model, config=configuration(stage, dtype, trains), **options)[0]


def hooks_in(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def train_evaluate_train(stages, dtype, optimizer):
    """The digests at each change of engine, whether each engine changed the weights, and what the first one says."""
    model = models.stack()
    optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-2) if optimizer else None
    first = initialize(model, stages[0], dtype, optimizer is None, optimizer=optimizer)
    hooks = hooks_in(model)
    models.train(first, range(2), models.own_loss)
    digests = [first.parameter_digest()]
    middle = initialize(model, stages[1], dtype, trains=False)
    digests.append(middle.parameter_digest())
    with torch.no_grad():
        models.own_loss(middle.eval(), 9)
    last = initialize(model, stages[2], dtype, optimizer is None, optimizer=optimizer)
    digests.append(last.parameter_digest())
    models.train(last.train(), range(2, 4), models.own_loss)
    said = [message_of(lambda: first(torch.ones(1))), message_of(first.step), message_of(first.parameter_digest)]
    said += [message_of(lambda: first.save_checkpoint("/nowhere")), message_of(lambda: middle(torch.ones(1)))]
    norms = [first.get_global_grad_norm(), last.get_global_grad_norm()]
    return [digests, last.parameter_digest(), norms, said, hooks_in(model) <= hooks]


@pytest.mark.parametrize("optimizer", [None, "Adagrad", "RMSprop"])
@pytest.mark.parametrize(
    "ranks,stages,dtype",
    [
        (1, (0, 3, 2), "fp32"),
        (2, (3, 3, 3), "bf16"),
        (2, (1, 3, 2), "fp32"),
        (3, (3, 0, 3), "fp16"),
        (2, (2, 2, 1), "bf16"),
    ],
)
def test_a_second_engine_takes_the_module_over(ranks, stages, dtype, optimizer):
    answers = world.run(ranks, train_evaluate_train, stages=stages, dtype=dtype, optimizer=optimizer)
    for digests, end, norms, said, no_hooks_left in answers:
        assert len(set(digests)) == 1 and end != digests[0]
        assert norms[0] > 0 and norms[1] > 0
        assert all(one and "this engine's module belongs to another engine now" in one for one in said), said
        assert no_hooks_left
        assert end == answers[0][1]


def goes_on_as_before(stage):
    """Of a run that changes its engine in the middle, and of one that loads the same weights there: the last digest."""
    digests = []
    for takes_over in (True, False):
        model = models.stack()
        engine = initialize(model, stage)
        models.train(engine, range(2), models.own_loss)
        if not takes_over:
            with zeroshard.gathered(model.parameters()):
                values = {name: value.clone() for name, value in model.state_dict().items()}
            model = models.stack(seed=5)
            model.load_state_dict(values)
        engine = initialize(model, stage)
        models.train(engine, range(2, 5), models.own_loss)
        digests.append(engine.parameter_digest())
    return digests


@pytest.mark.parametrize("stage", [0, 3])
def test_the_new_engine_trains_as_one_of_its_own_model(stage):
    for first, second in world.run(2, goes_on_as_before, stage=stage):
        assert first == second


def take_over_a_part():
    """The head of a model that an engine trains goes into another model."""
    model = models.stack()
    engine = initialize(model, 3)
    models.train(engine, range(1), models.own_loss)
    with zeroshard.gathered(model.parameters()):
        before = {name: value.clone() for name, value in model.state_dict().items()}
    other = initialize(torch.nn.Sequential(torch.nn.Linear(200, 10), model.head), 3)
    with zeroshard.gathered(other.parameters()):
        same = [torch.equal(before["head.weight"], model.head.weight)]
    same += [torch.equal(before[name], value) for name, value in model.state_dict().items() if "head" not in name]
    return [all(same), len(same), message_of(engine.step) is not None]


def test_parameters_of_a_part_go_to_the_new_engine_and_the_rest_is_whole():
    assert world.run(2, take_over_a_part) == [[True, 19, True]] * 2


def destroy(stage, dtype):
    model = models.stack()
    engine = initialize(model, stage, dtype)
    models.train(engine, range(2), models.own_loss)
    old_graph = engine(models.vectors(0, 0, 2)[0].to(next(model.parameters()).dtype)).sum()
    with zeroshard.gathered(model.parameters()):
        values = [param.detach().clone() for param in model.parameters()]
    core = weakref.ref(engine._run.core)
    engine.destroy()
    engine.destroy()
    gc.collect()
    same = all(torch.equal(a, b) for a, b in zip(values, model.parameters(), strict=True))
    gone = core() is None
    said = [message_of(lambda: engine(torch.ones(1))), message_of(engine.step), message_of(old_graph.backward)]
    # Ordinary: they train in plain PyTorch, and may be cast and replaced.
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    model.float()(models.vectors(0, 0, 2)[0]).sum().backward()
    grads = sum(param.grad is not None for param in model.parameters())
    plain.step()
    return [same, gone, hooks_in(model), said, grads, "_zeroshard_unit" in vars(model.head.weight)]


@pytest.mark.parametrize(
    "ranks,stage,dtype", [(1, 1, "fp32"), (2, 0, "bf16"), (2, 2, "fp32"), (3, 3, "fp16"), (2, 3, "fp32")]
)
def test_destroy_leaves_an_ordinary_model(ranks, stage, dtype):
    for same, gone, hooks, said, grads, marked in world.run(ranks, destroy, stage=stage, dtype=dtype):
        assert same and gone and hooks == 0 and grads == 20 and not marked
        assert all("this engine was destroyed" in one for one in said[:2]), said
        assert said[2] is None  # the backward of a forward before finds the values that it needs


def destroy_after_an_exception():
    """Rank 1 alone fails and destroys its engine, which must not wait for the others."""
    model = models.stack()
    engine = initialize(model, 3)
    try:
        if world.rank() == 1:
            raise RuntimeError("a batch is broken")
    except RuntimeError:
        engine.destroy()
    if world.rank() == 1:
        return [message_of(lambda: model.blocks[0].up.weight.sum())]
    return [None]


def test_destroy_while_an_exception_is_handled_waits_for_nobody():
    said = world.run(2, destroy_after_an_exception)[1][0]
    assert "parameter 'blocks.0.up.weight' has no values any more: the engine that had it is gone" in said


def tensors_outlive_the_engine():
    """Neither model nor engine is there any more: what is left of them is an error to read, and not freed memory."""
    said = []
    for stage in (0, 3):
        model = models.stack()
        engine = initialize(model, stage)
        models.train(engine, range(1), models.own_loss)
        weight, view = model.head.weight, model.head.weight.detach()
        del model, engine
        gc.collect()
        said += [message_of(lambda weight=weight: weight.sum()), message_of(lambda view=view: view.sum())]
    return said


def test_tensors_that_outlive_the_engine_are_an_error_to_read():
    for said in world.run(2, tensors_outlive_the_engine):
        assert all(one is not None for one in said), said
        assert "'head.weight' has no values any more" in said[0] and "'head.weight' has no values any more" in said[2]


def refuse_a_take_over(stage, optimizer, why):
    """The digests of a run in whose middle ranks refuse another engine, and of one without that."""
    said, digests = [], []
    for refuses in (True, False):
        model = models.stack()
        model.norm = torch.nn.BatchNorm1d(10)  # it has buffers that another dtype would change
        own = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-2) if optimizer else None
        engine = initialize(model, stage, "fp32", own is None, optimizer=own)
        models.train(engine, range(2), models.own_loss)
        if refuses:
            clipping = 1.0 + (world.rank() if why == "ranks" else 0)
            options = {"config": configuration(stage, "bf16", own is None, gradient_clipping=clipping)}
            if why == "scheduler":
                options["lr_scheduler"] = fail_to_schedule
            elif why == "data":
                options["training_data"] = object()
            said.append(failure_of(zeroshard.initialize, model=model, optimizer=own, **options))
            assert model.norm.running_mean.dtype == torch.float32
        models.train(engine, range(2, 4), models.own_loss)
        digests.append(engine.parameter_digest())
        last = initialize(model, stage, "fp32", own is None, optimizer=own)
        digests[-1] += last.parameter_digest()
        models.train(last, range(4, 6), models.own_loss)
        digests[-1] += last.parameter_digest()
    return [said, digests[0] == digests[1]]


def fail_to_schedule(optimizer):
    optimizer.param_groups[0]["lr"] = 0.0
    raise KeyError("gamma")


def failure_of(call, **options):
    try:
        call(**options)
    except Exception as error:  # noqa: BLE001 (compared)
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("why", ["ranks", "scheduler", "data"])
@pytest.mark.parametrize("stage,optimizer", [(1, "RMSprop"), (3, None), (3, "AdamW"), (3, "RMSprop")])
def test_an_engine_goes_on_when_ranks_refuse_another_for_its_module(stage, optimizer, why):
    expected = {"ranks": "ranks disagree on the configuration", "scheduler": "KeyError: 'gamma'", "data": "TypeError"}
    for (said,), same in world.run(2, refuse_a_take_over, stage=stage, optimizer=optimizer, why=why):
        assert expected[why] in said
        assert same


def keep_states(name):
    """What a scheduler that raises leaves of an optimizer that has states: they, its settings and its parameters."""
    model = models.stack()
    own = getattr(torch.optim, name)(model.parameters(), lr=1e-2)
    x, y = models.vectors(0, 0, 2)
    torch.nn.functional.mse_loss(model(x), y).backward()
    own.step()
    states = {param: dict(state) for param, state in own.state.items()}
    groups = [dict(group) for group in own.param_groups]
    options = {"optimizer": own, "config": configuration(1, "fp32", False)}
    said = failure_of(zeroshard.initialize, model=model, lr_scheduler=fail_to_schedule, **options)
    same = own.state.keys() == states.keys() and own.param_groups == groups
    same = same and all(own.state[param][kind] is value for param in states for kind, value in states[param].items())
    return [said, same, hooks_in(model)]


@pytest.mark.parametrize("name", ["AdamW", "RMSprop"])
def test_a_scheduler_that_raises_leaves_the_optimizer_as_it_was(name):
    assert world.run(1, keep_states, name=name) == [["KeyError: 'gamma'", True, 0]]


def train_by_one_optimizer(stage, name):
    """An optimizer that is passed again for the engine that takes the module over: the digests of two ways."""
    digests = []
    for how in ("again", "another"):
        model = models.stack()
        own = getattr(torch.optim, name)(model.parameters(), lr=1e-2)
        models.train(initialize(model, stage, trains=False, optimizer=own), range(2), models.own_loss)
        if how == "another":
            own = getattr(torch.optim, name)(model.parameters(), lr=1e-2)
        engine = initialize(model, stage, trains=False, optimizer=own)
        models.train(engine, range(2, 4), models.own_loss)
        digests.append(engine.parameter_digest())
    return digests


@pytest.mark.parametrize("name", ["AdamW", "RMSprop"])
@pytest.mark.parametrize("ranks,stage", [(1, 0), (2, 1), (3, 3)])
def test_an_optimizer_may_be_passed_again(ranks, stage, name):
    answers = world.run(ranks, train_by_one_optimizer, stage=stage, name=name)
    assert all(first == second == answers[0][0] for first, second in answers)


def fail_in_a_collective(engine, sign):
    """After a step rank 1 comes too late to the next one: what each rank says."""
    models.train(engine, range(1), models.own_loss)
    if world.rank() == 1:
        wait_for(sign.exists, sign, seconds=60)
    failed = message_of(lambda: models.train(engine, range(1, 2), models.own_loss))
    sign.touch()
    return failed


def destroy_after_a_failed_collective(stage, rules, sign):
    """Rank 1 comes too late: what the other ranks say, whether engines end, and whether another model is trained."""
    blocks = {"zeroshard": {"timeout_s": 1, "placement": rules}}
    model = models.stack()
    engine = zeroshard.initialize(model=model, config=configuration(stage, "fp32", **blocks))[0]
    failed = fail_in_a_collective(engine, sign)
    said = message_of(engine.destroy)
    without_values = [name for name, param in model.named_parameters() if not has_values(param)]
    other = initialize(models.stack(), stage)
    models.train(other, range(2), models.own_loss)
    return failed, said, engine._run.has_ended, hooks_in(engine.module), without_values, other.parameter_digest()


def has_values(param):
    try:
        return bool(param.detach().sum().isfinite())
    except RuntimeError:
        return False


def whole(units):
    return [{"units": units, "parameters": "replicated"}]


CASES = [(stage, []) for stage in range(4)] + [(3, whole("*")), (3, whole("blocks.0"))]


@pytest.mark.parametrize(("stage", "rules"), CASES, ids=str)
def test_an_engine_whose_collective_failed_is_destroyed(tmp_path, stage, rules):
    answers = world.run(2, destroy_after_a_failed_collective, stage=stage, rules=rules, sign=tmp_path / "sign")
    for failed, said, ended, hooks, without_values, _ in answers:
        assert failed and said is None and ended and hooks == 0, (failed, said, ended, hooks)
        assert bool(without_values) == (stage == 3 and rules != whole("*")), without_values
        if rules == whole("blocks.0"):
            assert not any(name.startswith("blocks.0.") for name in without_values), without_values
    assert len({digest for *_, digest in answers}) == 1


def destroy_without_memory(stage):
    """For one unit: what destroy() raises, whether the engine has ended, and which parameters are ordinary again."""
    engine = initialize(models.stack(), stage)
    model, ownership = engine.module, engine._ownership
    return_unit = type(ownership).return_unit

    def fail_at_one(self, index):
        if index == 1:
            raise MemoryError("planted")
        return_unit(self, index)

    type(ownership).return_unit = fail_at_one
    said = failure_of(engine.destroy)
    marked = [name for name, param in model.named_parameters() if "_zeroshard_unit" in vars(param)]
    return said, ownership.core is None, marked, has_values(model.head.weight)


@pytest.mark.parametrize("stage", [0, 3])
def test_an_engine_ends_where_memory_is_short(stage):
    for said, freed, marked, has_head in world.run(2, destroy_without_memory, stage=stage):
        assert said is None and freed and not marked and (has_head or stage == 3), said


def take_over_after_a_failed_collective(stage, rules, transport, sign):
    """Rank 1 comes too late. Then all initialize the module again, twice, and at last another one."""
    config = configuration(stage, "fp32", zeroshard={"transport": transport, "timeout_s": 2, "placement": rules})
    model = models.stack()
    engine = zeroshard.initialize(model=model, config=config)[0]
    failed = fail_in_a_collective(engine, sign)
    said = [message_of(lambda: zeroshard.initialize(model=model, config=config)) for _ in range(2)]
    other = zeroshard.initialize(model=models.stack(), config=config)[0]
    models.train(other, range(2), models.own_loss)
    return failed, said, engine._run.has_ended, other.parameter_digest()


@pytest.mark.parametrize("transport", ["shm", "process_group"])
@pytest.mark.parametrize(("stage", "rules"), [(1, []), (3, []), (3, whole("*"))], ids=str)
def test_a_module_is_taken_over_after_a_failed_collective_where_it_is_whole(tmp_path, stage, rules, transport):
    options = {"stage": stage, "rules": rules, "transport": transport}
    answers = world.run(2, take_over_after_a_failed_collective, **options, sign=tmp_path / "sign")
    for failed, said, ended, digest in answers:
        assert failed and digest == answers[0][3]
        if stage == 1 or rules:
            assert said == [None, None] and ended
        else:
            assert all("nobody can gather them. Make the model anew" in message for message in said), said
            assert all("What happened: rank " in message for message in said) and not ended, said
