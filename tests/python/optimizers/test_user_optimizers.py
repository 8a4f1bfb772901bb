"""What scripts do with an optimizer from outside works as in plain PyTorch, or is an error that names the way out."""

import collections
import copy
import gc
import io
import pickle
import warnings

import models
import pytest
import torch
import world
import zeroshard
from errors import text_of
from torch.optim import optimizer as torch_optimizer
from world import run

WORLDS = [(1, 0), (3, 0), (3, 1), (3, 2), (3, 3)]  # ranks, stage
KINDS = [torch.optim.AdamW, torch.optim.RMSprop]  # in the core, and outside


def make_engine_with_optimizer(stage, kind=torch.optim.AdamW, optimizer=None, **configuration):
    """An engine over units that every rank has a part of, and the user's own optimizer; without one for kind None."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Linear(96, 48))
    if kind is not None and optimizer is None:
        optimizer = kind(model.parameters(), lr=0.01)
    config = models.configuration(stage, "fp32", **configuration)
    if optimizer is None:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 0.01}}
    engine, *_ = zeroshard.initialize(model=model, optimizer=optimizer, config=config)
    return engine, optimizer


def backward(engine, batch=0):
    torch.manual_seed(10 * batch + world.rank())
    engine.backward(engine(torch.randn(4, 64)).pow(2).mean())


def digest_of(stage, kind, how):
    engine, own = make_engine_with_optimizer(stage, kind)
    for batch in range(3):
        backward(engine, batch)
        {"engine": engine, "front": engine.optimizer, "own": own}[how].step()
    return engine.parameter_digest(), engine.global_steps


def case_step(stage, kind):
    kind = getattr(torch.optim, kind, None)
    return [digest_of(stage, kind, how) for how in ("engine", "front", "own") if how != "own" or kind is not None]


@pytest.mark.parametrize(("ranks", "stage"), WORLDS)
@pytest.mark.parametrize("kind", ["AdamW", "RMSprop", "of the configuration"])
def test_step_of_the_optimizer_is_an_update(ranks, stage, kind):
    for first, *others in run(ranks, case_step, stage=stage, kind=kind):
        assert first[1] == 3
        assert all(other == first for other in others)


def case_step_without_gradients():
    engine, own = make_engine_with_optimizer(2)
    before = engine.parameter_digest()
    own.step()
    engine.optimizer.step()
    untouched = engine.parameter_digest() == before and engine.global_steps == 0
    backward(engine)
    engine.step()
    after = engine.parameter_digest()
    own.step()
    engine.optimizer.step()  # as scripts do that call both
    return untouched, engine.parameter_digest() == after != before, engine.global_steps


def test_step_of_the_optimizer_without_gradients_does_nothing():
    assert run(3, case_step_without_gradients) == [[True, True, 1]] * 3


def case_accumulation(stage):
    def train(step, each):
        engine, _ = make_engine_with_optimizer(stage, accumulation=2)
        for batch in range(4):
            backward(engine, batch)
            if each or batch % 2 == 1:
                step(engine)()
        return engine.parameter_digest(), engine.global_steps

    return train(lambda engine: engine.step, each=True), train(lambda engine: engine.optimizer.step, each=False)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_step_of_the_optimizer_takes_all_gradients_since_the_last(stage):
    for usual, own in run(3, case_accumulation, stage=stage):
        assert usual == own and usual[1] == 2


def case_scheduler():
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    own = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedulers = [torch.optim.lr_scheduler.LambdaLR(own, lambda step: 0.5**step)]  # wraps step() of its optimizer
    engine, front, _, scheduler = zeroshard.initialize(
        model=model, optimizer=own, lr_scheduler=schedulers[0], config=models.configuration(2, "fp32")
    )
    in_core = front.name
    schedulers += [torch.optim.lr_scheduler.ConstantLR(each, factor=1.0) for each in (own, front)]
    for step in (own.step, front.step):
        backward(engine)
        step()
    rates = [front.rates()]
    backward(engine)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.step()
        for each in schedulers:
            each.step()
    return in_core, engine.global_steps, [*rates, front.rates()]


def test_schedulers_before_and_after_initialize():
    """A scheduler wraps step() of its optimizer; that of the engine steps with engine.step() alone."""
    assert run(2, case_scheduler) == [["ADAMW", 3, [[0.01], [0.0025]]]] * 2


def case_refused():
    engine, own = make_engine_with_optimizer(2)
    texts = []
    with engine.no_sync():
        backward(engine)
        for step in (engine.optimizer.step, own.step):
            with pytest.raises(zeroshard.StateError) as error:
                step()
            texts.append(str(error.value))
    for step in (engine.optimizer.step, own.step):
        with pytest.raises(ValueError) as error:
            step(lambda: None)
        texts.append(str(error.value))
    return texts


def test_what_step_of_the_optimizer_refuses():
    for texts in run(2, case_refused):
        assert all("inside no_sync()" in text for text in texts[:2])
        assert all("takes no closure: call engine.step()" in text for text in texts[2:])


def case_hooks(stage, kind):
    kind = getattr(torch.optim, kind, None)
    calls = []

    def note(name):
        return lambda who, args, kwargs: calls.append([name, type(who).__name__])

    engine, own = make_engine_with_optimizer(stage, kind)
    globally = [
        torch_optimizer.register_optimizer_step_pre_hook(note("first")),
        torch_optimizer.register_optimizer_step_post_hook(note("last")),
    ]
    if own is not None:
        own.register_step_pre_hook(note("pre"))
    removed = engine.optimizer.register_step_post_hook(note("post"))
    for batch in range(2):
        backward(engine, batch)
        engine.step()
        removed.remove()
    for hook in globally:
        hook.remove()
    return calls


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("kind", ["AdamW", "RMSprop", "of the configuration"])
def test_step_hooks_are_called(stage, kind):
    who = "Optimizer" if kind == "of the configuration" else kind
    pre = [] if kind == "of the configuration" else ["pre"]
    expected = [[name, who] for name in ["first", *pre, "post", "last", "first", *pre, "last"]]
    assert run(2, case_hooks, stage=stage, kind=kind) == [expected] * 2


def case_skipped():
    """The loss overflows in fp16: the update is skipped."""
    model = torch.nn.Linear(64, 64)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []
    own.register_step_post_hook(lambda *_: calls.append("post"))
    config = models.configuration(2, "fp16", fp16={"initial_scale_power": 4})
    engine, *_ = zeroshard.initialize(model=model, optimizer=own, config=config)
    for scale in (1.0, float("inf")):
        engine.backward((engine(torch.ones(2, 64).half()).float() * scale).sum())
        engine.step()
    return calls, engine.skipped_steps


def test_hooks_after_an_update_are_not_called_for_a_skipped_one():
    assert run(2, case_skipped) == [[["post"], 1]] * 2


def case_replaced(allowed):
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    own = torch.optim.SGD(model.parameters(), lr=0.5)
    calls, step = [], own.step

    def half(closure=None):
        calls.append(len(own.param_groups[0]["params"]))
        for group in own.param_groups:
            group["lr"] /= 2
        return step(closure)

    own.step = half
    config = models.configuration(2, "fp32") | {"zero_allow_untested_optimizer": allowed}
    try:
        engine, front, *_ = zeroshard.initialize(model=model, optimizer=own, config=config)
    except ValueError as error:
        return str(error)
    backward(engine)
    engine.step()
    engine.destroy()
    return calls != [] and front.rates() == [0.25] and own.step is half


def test_a_step_that_was_replaced_is_called():
    assert run(2, case_replaced, allowed=True) == [True] * 2
    for text in run(2, case_replaced, allowed=False):
        assert "SGD, of which step() was replaced, is not known to be elementwise" in text


CHANGES = {
    "cleared": lambda state, params: state.clear(),
    "set": lambda state, params: [state.__setitem__(param, {}) for param in params],
    "read": lambda state, params: [state[param]["exp_avg"].zero_() for param in params],
    "removed": lambda state, params: [state.pop(param) for param in params],
    "asked for": lambda state, params: [state.__delitem__(param) for param in params if param in state],
    "updated": lambda state, params: state.update({param: {} for param in params}),
    "got": lambda state, params: [state.get(param) for param in params],
    "all of them": lambda state, params: [states.clear() for states in state.values()],
    "asked for any": lambda state, params: bool(state),
    "counted": lambda state, params: len(state),
    "gone through": lambda state, params: list(state),
}


def case_states(stage):
    engine, own = make_engine_with_optimizer(stage)
    params = list(engine.module.parameters())
    texts = [text_of(change, who.state, params) for change in CHANGES.values() for who in (own, engine.optimizer)]
    backward(engine)
    engine.step()
    own.state = collections.defaultdict(dict)  # only the next step can see it
    backward(engine)
    texts.append(text_of(engine.step))
    engine.step()
    steps = engine.global_steps
    texts.append(text_of(lambda: setattr(engine.optimizer, "state", {})))
    engine.destroy()
    own.state.clear()
    engine.module(torch.ones(1, 64)).sum().backward()
    own.step()
    return texts, steps, sorted(own.state[params[0]])


@pytest.mark.parametrize("stage", [0, 3])
def test_changes_of_states_in_the_core_are_refused(stage):
    for texts, steps, after in run(2, case_states, stage=stage):
        assert [
            text for text in texts if "zeroshard.set_optimizer_state(param, name, values)" not in (text or "")
        ] == []
        assert steps == 2
        assert after == ["exp_avg", "exp_avg_sq", "step"]  # the optimizer is torch's again


def case_states_outside():
    """Of an optimizer outside: emptied as a whole they are reset, and whole parameters are refused."""

    def train(reset):
        engine, own = make_engine_with_optimizer(2, torch.optim.RMSprop)
        for batch in range(4):
            if batch == 2:
                reset(own)
            backward(engine, batch)
            engine.step()
        return engine.parameter_digest()

    digests = [
        train(lambda own: own.state.clear()),
        train(lambda own: setattr(own, "state", collections.defaultdict(dict))),
        train(lambda own: None),
    ]
    engine, own = make_engine_with_optimizer(2, torch.optim.RMSprop)
    backward(engine)
    engine.step()
    params = list(engine.module.parameters())
    texts = [text_of(CHANGES[name], own.state, params) for name in ("set", "read", "asked for")]
    return digests[0] == digests[1] != digests[2], texts


def test_states_outside_the_core_are_reset_as_a_whole():
    for reset, texts in run(2, case_states_outside):
        assert reset
        assert all("zeroshard.set_optimizer_state(param, name, values)" in text for text in texts)


def case_again():
    """The same optimizer for a second engine is in the core again."""
    engine, own = make_engine_with_optimizer(2)
    model = engine.module
    second, front, *_ = zeroshard.initialize(model=model, optimizer=own, config=models.configuration(3, "fp32"))
    backward(second)
    own.step()
    return front.name, second.global_steps


def test_an_optimizer_that_is_passed_again_is_in_the_core_again():
    assert run(2, case_again) == [["ADAMW", 1]] * 2


def case_unmanaged(stage, dtype, calls):
    """Managed and not, with the same gradients: one digest. Samples are counted by backward passes."""

    def train(accumulation, divides, **block):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Linear(96, 48))
        scale = {"fp16": {"initial_scale_power": 4}} if dtype == "fp16" else {}
        config = models.configuration(stage, dtype, accumulation=accumulation, **scale)
        config |= {"optimizer": models.adamw()} | block
        engine, *_ = zeroshard.initialize(model=model, config=config)
        for batch, count in enumerate(calls):
            for micro in range(count):
                torch.manual_seed(100 * batch + 10 * micro + world.rank())
                loss = engine(torch.randn(4, 64).to(next(model.parameters()).dtype)).float().pow(2).mean()
                engine.set_gradient_accumulation_boundary(micro + 1 == count) if not block else None
                engine.backward(loss / (1 if divides else count), scale_wrt_gas=divides)
                if micro + 1 == count or not block:
                    engine.step()
        return engine.parameter_digest(), engine.global_steps, engine.global_samples

    unmanaged = {"managed_gradient_accumulation": False}
    found = [train(4, False), train(4, False, **unmanaged), train(1, False, **unmanaged)]
    if set(calls) == {4}:
        found.append(train(4, True, **unmanaged))
    return [each == found[0] for each in found], found[0][1:]


# The first two engines of each case sum in fp32 because they accumulate, the third because it may.
@pytest.mark.parametrize(("ranks", "stage", "dtype"), [(1, 0, "bf16"), (3, 1, "fp32"), (3, 2, "bf16"), (3, 3, "fp16")])
@pytest.mark.parametrize("calls", [[4, 4, 4], [2, 4, 1]])
def test_without_managed_accumulation_every_step_updates(ranks, stage, dtype, calls):
    same, counts = run(ranks, case_unmanaged, stage=stage, dtype=dtype, calls=calls)[0]
    assert same == [True] * len(same)
    assert counts == [3, 2 * sum(calls) * ranks]


def case_boundary_refused():
    engine, _ = make_engine_with_optimizer(2, managed_gradient_accumulation=False)
    return text_of(engine.set_gradient_accumulation_boundary, True)


def test_a_boundary_is_refused_where_every_step_is_one():
    """As DeepSpeed 0.19.8 asserts in set_gradient_accumulation_boundary()."""
    (said,) = run(1, case_boundary_refused)
    assert "with managed_gradient_accumulation false, every step() ends a step" in said


def case_counts(calls):
    """Micro-batches with two to a step: `b` is a backward pass, `e` engine.step(), `o` optimizer.step()."""
    engine, _ = make_engine_with_optimizer(2, accumulation=2)
    steps = []
    for batch, call in enumerate(calls):
        {"b": lambda: backward(engine, batch), "e": engine.step, "o": engine.optimizer.step}[call]()  # noqa: B023
        steps.append(engine.global_steps)
    return steps[-1], engine.micro_steps


@pytest.mark.parametrize(
    ("calls", "counts"),
    [
        ("beobeo", (1, 2)),  # both after each micro-batch: optimizer.step() leaves them to engine.step()
        ("bobebe", (2, 4)),  # a part of a step, and then whole ones
        ("bebebobe", (2, 5)),
        ("boo", (1, 2)),
    ],
)
def test_engine_step_counts_anew_after_step_of_the_optimizer(calls, counts):
    assert run(2, case_counts, calls=calls) == [list(counts)] * 2


def case_dcp():
    """torch's utility takes a step with a rate of 0, and gradients of 0, if it finds no states."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    def digest(asked):
        engine, own = make_engine_with_optimizer(2)
        for batch in range(2):
            backward(engine, batch)
            if asked:
                with pytest.raises((ValueError, zeroshard.StateError)):
                    get_optimizer_state_dict(engine.module, own)
            engine.step()
        return engine.parameter_digest(), engine.global_steps, own.param_groups[0]["lr"]

    return digest(True), digest(False)


def test_utilities_that_take_a_step_of_their_own_change_nothing():
    for asked, undisturbed in run(2, case_dcp):
        assert asked == undisturbed


def case_kept():
    engine, own = make_engine_with_optimizer(2)
    front = engine.optimizer
    del engine
    gc.collect()
    return [text_of(front.step), text_of(own.step)]


def test_an_optimizer_without_its_engine_says_so():
    for texts in run(2, case_kept):
        assert all("its engine is gone: keep what zeroshard.initialize returns" in text for text in texts)


def case_copied():
    engine, own = make_engine_with_optimizer(2)
    calls = []
    own.register_step_pre_hook(lambda *_: calls.append("pre"))
    copy.deepcopy(engine.optimizer)
    backward(engine)
    engine.optimizer.step()
    engine.destroy()
    model, optimizer = copy.deepcopy((engine.module, own))
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    return calls, len(optimizer.state)


def test_copies_call_no_hook_twice_and_are_torchs():
    assert run(2, case_copied) == [[["pre"], 4]] * 2


def case_replaced_while_it_lives():
    engine, own = make_engine_with_optimizer(2)
    calls = []
    own.step = lambda closure=None: calls.append("mine")
    engine.destroy()
    own.step()
    return calls


def test_what_a_script_sets_while_an_engine_lives_stays():
    assert run(1, case_replaced_while_it_lives) == [["mine"]]


def case_plateau():
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    own = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(own, factor=0.5, patience=0)
    engine, front, *_ = zeroshard.initialize(
        model=model, optimizer=own, lr_scheduler=scheduler, config=models.configuration(2, "fp32")
    )
    before = engine.parameter_digest()
    backward(engine)
    with pytest.raises(ValueError) as error:
        engine.step()
    untouched = engine.parameter_digest() == before and engine.global_steps == 0
    engine.step(lr_kwargs={"metrics": 1.0})  # the gradients are still there
    backward(engine)
    engine.step(lr_kwargs={"metrics": 2.0})
    return str(error.value), untouched, engine.parameter_digest() != before, front.rates(), engine.global_steps


def test_a_scheduler_that_lacks_an_argument_is_told_before_the_update():
    for said, untouched, trained, rates, steps in run(2, case_plateau):
        assert "step() of the lr_scheduler ReduceLROnPlateau: missing a required argument: 'metrics'" in said
        assert 'engine.step(lr_kwargs={"metrics": ...})' in said
        assert untouched and trained and (rates, steps) == ([0.005], 2)


def case_pickled(stage):
    engine, _ = make_engine_with_optimizer(stage)
    module = engine.module

    def told():
        return [
            text_of(copy.deepcopy, engine),
            text_of(pickle.dumps, engine),
            text_of(torch.save, module, io.BytesIO()),
            text_of(pickle.dumps, module[0]),
            text_of(pickle.dumps, module[0].weight),
        ]

    texts = told()
    with zeroshard.gathered(module.parameters()):
        texts += told()
        saved = io.BytesIO()
        torch.save(module.state_dict(), saved)  # the way out
        copied = copy.deepcopy(module)
        same = torch.equal(copied[0].weight, module[0].weight)
    engine.destroy()
    again = pickle.loads(pickle.dumps(module))
    return texts, same, torch.equal(again[0].weight, module[0].weight)


@pytest.mark.parametrize("stage", [0, 3])
def test_pickles_of_an_engine_name_the_way_out(stage):
    for texts, same, again in run(2, case_pickled, stage=stage):
        assert [text for text in texts if "zeroshard.gathered(" not in (text or "")] == []
        assert same and again


def case_rates(stage, kind, name):
    """One rank gets another value, as from a ReduceLROnPlateau with a loss of its own; then all are alike again."""
    engine, own = make_engine_with_optimizer(stage, getattr(torch.optim, kind, None))
    backward(engine)
    engine.step()
    group = engine.optimizer.param_groups[0]
    before, digest = group[name], engine.parameter_digest()
    if world.rank() == 1:
        group[name] = (0.9, 0.998) if name == "betas" else group[name] + 1e-9
    backward(engine)
    said = text_of(engine.step)
    untouched = engine.parameter_digest() == digest
    group[name] = before
    engine.step()
    return said, untouched, engine.global_steps


@pytest.mark.parametrize(("ranks", "stage"), [(2, 0), (3, 1), (3, 2), (3, 3)])
@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        ("AdamW", "lr", ("'lr of group 0' is 0.01,", "'lr of group 0' is 0.010000001")),
        ("AdamW", "betas", ("'beta2 of group 0' is 0.999,", "'beta2 of group 0' is 0.998")),
        ("AdamW", "weight_decay", ("'weight_decay of group 0' is 0.01,", "'weight_decay of group 0' is 0.010000001")),
        ("of the configuration", "eps", ("'eps of group 0' is 1e-08,", "'eps of group 0' is 1.1")),
        ("SGD", "momentum", ("'momentum of group 0' is 0,", "'momentum of group 0' is 1e-09")),
        ("RMSprop", "lr", ("'lr of group 0' is 0.01,", "'lr of group 0' is 0.010000001")),
    ],
)
def test_settings_that_differ_between_ranks_are_told_before_the_update(ranks, stage, kind, name, values):
    for said, untouched, steps in run(ranks, case_rates, stage=stage, kind=kind, name=name):
        assert "the ranks disagree on the param groups of the optimizer: on rank 0 " + values[0] in said
        assert f"on rank 1 {values[1]}" in said
        assert untouched and steps == 2
