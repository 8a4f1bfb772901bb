"""What Python adds to a checkpoint: values of any kind, the loader's position, the optimizer's kind, errors for all."""

import os
import random
import signal
import time

import models
import pytest
import torch
import torch.distributed as dist
import world
import zeroshard
from checkpointed import Dropping, configuration, facts, make, seed, train
from saved import checkpoints_in
from zeroshard import encoding

BIG = [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**5000, -(10**40)]


def refused(call, kind=ValueError):
    """What `call` raises."""
    try:
        call()
    except kind as error:
        return str(error)
    return "nothing was raised"


# -- values ------------------------------------------------------------------------------------------------------------


def save_and_load(folder, value):
    engine = make(0)
    engine.save_checkpoint(folder, client_state={"value": value})
    engine.wait_for_checkpoint()
    return engine.load_checkpoint(folder)[1]["value"]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return type(b) is dict and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def odd_values(folder):
    values = {
        "integers": [*BIG, True, None, torch.tensor(2**62), torch.tensor(2**64 - 1, dtype=torch.uint64)],
        "text": ["\0", "\ud800 half of a pair", "é", {"\udcff": 1, "__tensor__": 2}],
        "two of one name": {"a.b": torch.zeros(2), "a": {"b": torch.ones(3), "b#2": torch.ones(1)}},
        "keys": {1: (2,), (3, 4): [], "": {}},
        "kinds": [torch.arange(3).to(dtype) for dtype in encoding.DTYPES.values() if dtype != torch.bool],
    }
    for name, value in values.items():
        found = save_and_load(os.path.join(folder, name), value)
        assert same(value, found), (name, found)


def test_client_state_comes_back_as_it_was(tmp_path):
    world.run(1, odd_values, folder=str(tmp_path))


def nested(levels, value):
    for _ in range(levels):
        value = [value]
    return value


def deep_values(folder):
    """Every nesting is loaded again, or refused when it is saved."""
    engine = make(0)
    said = {}
    for levels in (3, *range(50, 58)):
        for leaf in (1, torch.ones(1), torch.tensor(1.0), 2**70, {1: 2}, (1,)):
            path = os.path.join(folder, f"{levels}-{type(leaf).__name__}")
            value = nested(levels, leaf)
            try:
                engine.save_checkpoint(path, client_state={"value": value})
            except ValueError as error:
                said.setdefault(type(leaf).__name__, (levels, str(error)))
                continue
            engine.wait_for_checkpoint()
            assert same(engine.load_checkpoint(path)[1]["value"], value), levels
    circle = []
    circle.append(circle)
    return [said, refused(lambda: engine.save_checkpoint(folder, client_state={"circle": circle}))]


def test_a_nesting_too_deep_to_be_loaded_is_refused_by_save(tmp_path):
    said, circle = world.run(1, deep_values, folder=str(tmp_path))[0]
    assert len(said) == 4 and all(levels > 50 for levels, _ in said.values()), said
    assert "client.client.value[0][0]" in said["int"][1] and "in itself" in circle


def unsaveable(folder):
    engine = make(1)
    said = [
        refused(lambda: engine.save_checkpoint(folder, client_state={"z": [torch.ones(2, dtype=torch.complex128)]})),
        refused(lambda: engine.save_checkpoint(folder, client_state={"s": torch.ones(2, 2).to_sparse()})),
    ]
    model = Dropping()
    model.blocks[1].register_buffer("scale", torch.ones(3, dtype=torch.complex128))
    engine, *_ = zeroshard.initialize(model=model, config=configuration(1))
    return [*said, refused(lambda: engine.save_checkpoint(folder))]


def test_what_has_no_form_in_a_checkpoint_is_named(tmp_path):
    for said in world.run(2, unsaveable, folder=str(tmp_path)):
        complex_, sparse, buffer = said
        assert "rank 0: client.client.z[0] is complex128" in complex_
        assert "rank 0: client.client.s is float32 and sparse_coo" in sparse
        assert "buffer 'blocks.1.scale' is complex128" in buffer and "persistent=False" in buffer
    assert os.listdir(tmp_path) == []


# -- the loader and counts ---------------------------------------------------------------------------------------------


def feed(engine, loader, until, save_at=None, folder=None):
    losses = []
    while True:
        for ids, _ in loader:
            loss = engine(ids.repeat(2, 1)).float().square().mean()  # dropout draws from torch's generator
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
            if engine.global_steps == save_at:
                engine.save_checkpoint(folder)
            if engine.global_steps == until:
                return losses


def resume_within_an_epoch(folder, at):
    def fresh():
        data = [(torch.tensor([index % 50] * 3), index) for index in range(23)]
        engine, _, loader, _ = zeroshard.initialize(model=Dropping(), config=configuration(2), training_data=data)
        return engine, loader

    engine, loader = fresh()
    seed(engine)
    losses = feed(engine, loader, until=11, save_at=at, folder=folder)
    expected = facts(engine)
    engine.wait_for_checkpoint()
    engine, loader = fresh()
    feed(engine, loader, until=2)  # other values, other random numbers
    engine.load_checkpoint(folder)
    return [losses[at:], expected, feed(engine, loader, until=11), facts(engine)]


@pytest.mark.row("R1")
@pytest.mark.parametrize("at", [3, 6, 8])  # an epoch has six steps
def test_a_run_that_goes_on_within_an_epoch_has_the_same_bits(tmp_path, at):
    for losses, expected, again, found in world.run(2, resume_within_an_epoch, folder=str(tmp_path), at=at):
        assert again == losses and found == expected


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([(torch.tensor([index] * 3), index) for index in range(20)])


def load_into_a_stream(folder):
    def fresh():
        engine, _, loader, _ = zeroshard.initialize(model=Dropping(), config=configuration(2), training_data=Stream())
        return engine, loader

    engine, loader = fresh()
    feed(engine, loader, until=2, save_at=2, folder=folder)
    engine.wait_for_checkpoint()
    engine, _ = fresh()
    with pytest.warns(UserWarning, match="IterableDataset"):
        engine.load_checkpoint(folder)


def test_a_stream_that_starts_anew_is_warned_of(tmp_path):
    world.run(1, load_into_a_stream, folder=str(tmp_path))


def accumulate(folder, saves, loads):
    def fresh(steps):
        config = configuration(1) | {"gradient_accumulation_steps": steps}
        return zeroshard.initialize(model=Dropping(), config=config)[0]

    engine = fresh(saves)
    train(engine, 3 * saves)
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    engine = fresh(loads)
    engine.load_checkpoint(folder)
    found = [engine.global_steps]
    for _ in range(2 * loads):
        train(engine, 1)
        found.append(engine.global_steps)
    return found


@pytest.mark.row("R1")
@pytest.mark.parametrize(("saves", "loads"), [(2, 4), (4, 3), (1, 2)])
def test_another_number_of_accumulation_steps_goes_on_at_a_boundary(tmp_path, saves, loads):
    found = world.run(1, accumulate, folder=str(tmp_path), saves=saves, loads=loads)[0]
    assert found == [3] * loads + [4] * loads + [5]


def numbers(folder, load):
    import numpy

    engine = make(1)
    if load:
        engine.load_checkpoint(folder)
    else:
        seed(engine)
        numpy.random.seed(5)
        engine.save_checkpoint(folder)
    return [random.random(), torch.rand(1).item(), numpy.random.rand()]


def test_ranks_that_were_not_there_before_draw_numbers_of_their_own(tmp_path):
    before = world.run(2, numbers, folder=str(tmp_path), load=False)
    after = world.run(5, numbers, folder=str(tmp_path), load=True)
    assert after[:2] == before
    assert before[0][2] == before[1][2]  # seeded alike
    assert [len(set(drawn)) for drawn in zip(*after, strict=True)] == [5, 5, 4]


# -- the optimizer -----------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "Adam": (lambda model: None, "Adam"),
    "AdamW": (lambda model: None, "AdamW"),
    "SGD": (lambda model: None, "SGD"),
    "RMSprop": (lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3), "none"),
    "Adamax": (lambda model: torch.optim.Adamax(model.parameters(), lr=1e-3), "none"),
    "amsgrad": (lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True), "none"),
}


def with_optimizer(name):
    model = Dropping()
    outside, own = OPTIMIZERS[name]
    config = configuration(2, optimizer=own)
    if name == "Adam":
        config["optimizer"]["params"]["adam_w_mode"] = False
    return zeroshard.initialize(model=model, config=config, optimizer=outside(model))[0]


def change_the_optimizer(folder, saves, loads):
    engine = with_optimizer(saves)
    train(engine, 2)
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    saved = engine.parameter_digest()
    engine = with_optimizer(saves)
    engine.load_checkpoint(folder)  # the same kind is taken
    engine = with_optimizer(loads)
    before = engine.parameter_digest()
    said = refused(lambda: engine.load_checkpoint(folder))
    assert engine.parameter_digest() == before  # nothing was loaded
    engine.load_checkpoint(folder, load_optimizer_states=False)
    assert engine.parameter_digest() == saved
    train(engine, 1)
    return said


@pytest.mark.parametrize(
    ("saves", "loads", "names"),
    [
        ("Adam", "AdamW", ["optimizer Adam,", "has AdamW."]),
        ("AdamW", "SGD", ["optimizer AdamW,", "has SGD."]),
        ("AdamW", "RMSprop", ["optimizer AdamW,", "has RMSprop (torch's own"]),
        ("RMSprop", "Adamax", ["optimizer RMSprop (torch's own", "has Adamax (torch's own"]),
        ("amsgrad", "AdamW", ["optimizer AdamW (torch's own", "has AdamW."]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path, saves, loads, names):
    for said in world.run(2, change_the_optimizer, folder=str(tmp_path), saves=saves, loads=loads):
        assert all(name in said for name in names) and "load_optimizer_states=False" in said, said


class Odd(torch.optim.Optimizer):
    """Keeps what cannot be cut among ranks."""

    def __init__(self, params, state):
        super().__init__(params, {"lr": 0.1})
        self._odd = {
            "row": torch.zeros(2, 3),
            "list": [torch.zeros(2)],
            "fine": {"count": 3, "scalar": torch.tensor(2.0)},
        }
        self._odd = {state: self._odd[state]}

    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param].update(self._odd)


def save_odd_states(folder, state):
    model = Dropping()
    config = configuration(2, optimizer="none") | {"zero_allow_untested_optimizer": True}
    engine, *_ = zeroshard.initialize(model=model, config=config, optimizer=Odd(model.parameters(), state))
    train(engine, 1)
    before = [dict(engine._run.external.state[param]) for _, param in engine._run.external_params()]
    said = refused(lambda: engine.save_checkpoint(folder))
    if state == "list":
        return said
    engine.wait_for_checkpoint()
    engine._run.external.state.clear()
    engine.load_checkpoint(folder)
    found = [dict(engine._run.external.state[param]) for _, param in engine._run.external_params()]
    return [
        len(found) > 0,
        [one for one, other in zip(found, before, strict=True) if not same(one, other)],
    ]


def test_an_optimizers_state_with_tensors_in_a_list_is_refused(tmp_path):
    for said in world.run(2, save_odd_states, folder=str(tmp_path), state="list"):
        assert "optimizer.embed.weight.list[0]" in said, said


@pytest.mark.parametrize("state", ["fine", "row"])
def test_an_optimizers_state_that_cannot_be_cut_is_loaded_again(tmp_path, state):
    """One that is no tensor, and one of another shape than the parameter."""
    assert world.run(2, save_odd_states, folder=str(tmp_path), state=state) == [[True, []]] * 2


# -- errors ------------------------------------------------------------------------------------------------------------


def fail_on_rank_0(folder):
    """All ranks hear of it at once, and can go on."""
    engine = make(3)
    train(engine, 1)
    client = {"bad": object()} if engine.rank() == 0 else {}
    began = time.monotonic()
    said = refused(lambda: engine.save_checkpoint(folder, client_state=client))
    took = time.monotonic() - began
    dist.barrier()
    train(engine, 1)
    engine.save_checkpoint(folder, client_state={})
    engine.wait_for_checkpoint()
    return [said, took, checkpoints_in(folder)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_only_rank_0_cannot_save_is_said_on_every_rank(tmp_path, ranks):
    results = world.run(ranks, fail_on_rank_0, folder=str(tmp_path))
    for said, took, found in results:
        assert said.startswith("rank 0: client.client.bad is an object"), said
        assert took < 5 and "global_step2" in found and "global_step1" not in found


def miss_a_buffer(folder):
    def fresh(more):
        model = Dropping()
        if more:
            model.register_buffer("more", torch.ones(3))
        engine, *_ = zeroshard.initialize(model=model, config=configuration(1))
        train(engine, 1 if more else 2)
        return engine

    for more in (True, False):  # the older one has it
        engine = fresh(more)
        engine.save_checkpoint(folder)
        engine.wait_for_checkpoint()
    engine = fresh(True)
    said = refused(lambda: engine.load_checkpoint(folder))
    path, _ = engine.load_checkpoint(folder, load_module_strict=False)
    return [said, os.path.basename(path)]


def test_a_missing_buffer_is_no_damage(tmp_path):
    for said, path in world.run(2, miss_a_buffer, folder=str(tmp_path)):
        assert "buffers that the checkpoint does not have: more" in said, said
        assert path == "global_step2"


def load_what_is_not_known(folder):
    engine = make(1)
    engine.save_checkpoint(folder, client_state={"ids": torch.arange(3)})
    engine.wait_for_checkpoint()
    del encoding.DTYPES["I64"]  # as if a later version had written it
    return refused(lambda: engine.load_checkpoint(folder))


def test_a_dtype_of_a_later_version_is_no_damage(tmp_path):
    for said in world.run(2, load_what_is_not_known, folder=str(tmp_path)):
        assert "rank 0: 'client.client.ids' (client) has the dtype I64" in said, said


def call_with_gradients(folder, how):
    engine = make(2)
    train(engine, 1)
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    loss = engine(torch.zeros(2, 3, dtype=torch.long)).sum()
    loss.backward() if how == "torch's backward" else engine.backward(loss)
    engine.save_checkpoint(folder, tag="before")
    said = refused(lambda: engine.load_checkpoint(folder), zeroshard.StateError)
    engine.step()
    engine.save_checkpoint(folder, tag="next")
    engine.load_checkpoint(folder)
    return said


@pytest.mark.row("R1")
@pytest.mark.parametrize("how", ["the engine's backward", "torch's backward"])
def test_gradients_that_no_step_has_used_yet_are_not_lost(tmp_path, how):
    for loading in world.run(2, call_with_gradients, folder=str(tmp_path), how=how):
        assert "rank 0: load_checkpoint between a backward pass and its step" in loading, loading


def change_the_directory(folder):
    os.chdir(folder)
    os.mkdir(f"elsewhere{world.rank()}")
    config = configuration(1)
    engine, *_ = zeroshard.initialize(model=models.stack(), config=config)
    time.sleep(0.3 * engine.rank())  # the save of rank 0 waits in the background
    engine.save_checkpoint("run")
    os.chdir(f"elsewhere{world.rank()}")
    engine.wait_for_checkpoint()
    return engine.load_checkpoint("../run")[0]


def test_a_save_in_the_background_stays_in_its_directory(tmp_path):
    assert world.run(2, change_the_directory, folder=str(tmp_path)) == ["../run/global_step0"] * 2
    assert sorted(os.listdir(tmp_path)) == ["elsewhere0", "elsewhere1", "run"]


def count_in_spite_of_a_failure(folder, outside):
    """The step that raises the error of a save was applied: counts, schedule and the next checkpoint have it."""
    engine = make(2, optimizer="none" if outside else "AdamW")
    seed(engine)
    if engine.rank() == 0:
        open(os.path.join(folder, "file"), "w").close()
    dist.barrier()
    engine.save_checkpoint(os.path.join(folder, "file"))
    steps, said = 0, None
    while said is None and steps < 200:
        steps += 1
        try:
            train(engine, 1)
        except zeroshard.IoError as error:
            said = str(error)
    counts = [engine.global_steps, engine.micro_steps, engine.global_samples // 4]
    train(engine, 2)
    other = make(2, optimizer="none" if outside else "AdamW")
    seed(other)
    train(other, steps + 2)
    assert facts(engine) == facts(other)
    return [said, counts == [steps] * 3, steps]


@pytest.mark.row("D4")
@pytest.mark.parametrize("outside", [False, True])
def test_the_step_that_tells_of_a_failed_save_is_counted(tmp_path, outside):
    results = world.run(2, count_in_spite_of_a_failure, folder=str(tmp_path), outside=outside)
    assert results[0] == results[1]
    said, counted, _ = results[0]
    assert "file" in said and counted, results


def leave_an_engine_alive(folder):
    import builtins

    model = torch.nn.Sequential(*[torch.nn.Linear(1500, 1500) for _ in range(4)])
    builtins.kept, *_ = zeroshard.initialize(model=model, config=configuration(1))
    builtins.kept.save_checkpoint(folder)


@pytest.mark.row("D4")
def test_a_process_that_ends_waits_for_its_save_whatever_holds_the_engine(tmp_path):
    world.run(1, leave_an_engine_alive, folder=str(tmp_path))
    assert checkpoints_in(tmp_path) == ["global_step0", "latest"]


def stop_after_a_failed_save(folder):
    engine = make(3)
    seed(engine)
    engine.save_and_stop_on(folder)
    train(engine, 1)
    if engine.rank() == 0:
        open(os.path.join(folder, "file"), "w").close()
    dist.barrier()
    engine.save_checkpoint(os.path.join(folder, "file"))  # not a directory
    if engine.rank() == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    train(engine, 50)


@pytest.mark.row("P1", "D4")
def test_a_failed_save_does_not_stand_in_the_way_of_the_last(tmp_path):
    ranks = world.run_ranks(3, stop_after_a_failed_save, folder=str(tmp_path))
    assert [rank.exit_code for rank in ranks] == [143] * 3, [rank.error for rank in ranks]
    assert "a checkpoint was not saved" in ranks[0].log
    assert checkpoints_in(tmp_path) == ["file", "global_step2", "latest"]


def stop_where_nothing_can_be_saved(folder, on_error):
    engine = make(2, checkpoint={"on_error": on_error})
    seed(engine)
    engine.save_and_stop_on(os.path.join(folder, "file"))
    if engine.rank() == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    train(engine, 50)


@pytest.mark.row("P1", "D4")
@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_a_run_that_a_signal_ends_without_a_checkpoint_does_not_end_well(tmp_path, on_error):
    (tmp_path / "file").write_text("")
    ranks = world.run_ranks(2, stop_where_nothing_can_be_saved, folder=str(tmp_path), on_error=on_error)
    assert [rank.exit_code for rank in ranks] == [1, 1], [rank.error for rank in ranks]
    assert all("file" in rank.error for rank in ranks), [rank.error for rank in ranks]


def end_with_a_failing_save(folder):
    import builtins

    builtins.kept = engine = make(2)
    seed(engine)
    train(engine, 1)
    engine.save_checkpoint(os.path.join(folder, "file"))


@pytest.mark.row("D4")
def test_a_process_whose_last_save_fails_does_not_end_well(tmp_path):
    (tmp_path / "file").write_text("")
    ranks = world.run_ranks(2, end_with_a_failing_save, folder=str(tmp_path))
    assert [rank.exit_code for rank in ranks] == [1, 1]
    assert all("the last checkpoint was not saved" in rank.log for rank in ranks)
