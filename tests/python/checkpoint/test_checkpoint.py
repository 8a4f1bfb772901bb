"""Checkpoints: what was trained before goes on bit by bit, at any stage; test_reshard.py has other numbers of ranks."""

import itertools
import math
import os
import signal

import pytest
import simulated
import torch
import world
import zeroshard
from checkpointed import STAGES, WIDTH, Dropping, configuration, facts, make, seed, train
from torch import nn
from zeroshard import stopping


def stop_and_resume(folder, stage, resume_stage, dtype, optimizer, at, steps):
    engine = make(stage, dtype, optimizer)
    seed(engine)
    train(engine, at)
    path = os.path.join(folder, f"{dtype}-{optimizer}-{stage}-{resume_stage}-{at}")
    engine.save_checkpoint(path, client_state={"epoch": 3, "best": math.inf, "ids": torch.arange(4)})
    losses = train(engine, steps - at)
    expected = facts(engine)
    engine.wait_for_checkpoint()

    engine = make(resume_stage, dtype, optimizer)
    train(engine, 2)  # other values, other random numbers
    loaded, client = engine.load_checkpoint(path)
    assert loaded == os.path.join(path, f"global_step{at}"), loaded
    assert client["epoch"] == 3 and client["best"] == math.inf and client["ids"].tolist() == [0, 1, 2, 3]
    assert engine.global_steps == at
    again = train(engine, steps - at)
    assert again == losses, (stage, resume_stage, at, losses, again)
    assert facts(engine) == expected
    return expected


def stops_and_resumes(folder, cases):
    return [stop_and_resume(folder, *case) for case in cases]


@pytest.mark.row("R1", "W1", "W2")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_resumed_run_has_the_same_bits_at_every_stage(tmp_path, ranks):
    pairs = [(stage, (stage + shift) % 4) for stage in STAGES for shift in ((0, 1) if ranks == 2 else (3,))]
    cases = [(a, b, "fp32", "AdamW", 3, 6) for a, b in pairs]
    results = world.run(ranks, stops_and_resumes, folder=str(tmp_path), cases=cases)
    assert len({fact[0] for rank in results for fact in rank}) == 1  # at every stage, on every rank


@pytest.mark.row("R1", "W1")
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_resumed_run_in_16_bits(tmp_path, dtype):
    cases = [(stage, 3 - stage, dtype, "AdamW", 4, 8) for stage in STAGES]
    world.run(2, stops_and_resumes, folder=str(tmp_path), cases=cases)


@simulated.needed
@pytest.mark.row("R1", "W1", "W2")
@pytest.mark.parametrize(
    "ranks,stage,dtype,optimizer,on",
    [(1, 1, "fp16", "AdamW", "lazy"), (2, 3, "bf16", "Lion", "late"), (3, 2, "fp32", "none", "lazy")],
)
def test_a_resumed_run_has_the_same_bits_on_devices(tmp_path, ranks, stage, dtype, optimizer, on):
    cases = [(stage, (stage + 1) % 4, dtype, optimizer, 2, 4)]
    world.run(ranks, stops_and_resumes, folder=str(tmp_path), cases=cases, on=on)


def resume_with_skipped_steps(folder, stage):
    """A loss scale that is too large at first: it falls with every step, and none of them is applied."""
    config = configuration(stage, "fp16")
    config["fp16"] |= {"initial_scale_power": 30, "hysteresis": 2}
    engine, *_ = zeroshard.initialize(model=Dropping(), config=config)
    seed(engine)
    train(engine, 7)
    engine.save_checkpoint(folder)
    saved = facts(engine)
    train(engine, 14)
    expected = facts(engine)
    engine.wait_for_checkpoint()
    engine, *_ = zeroshard.initialize(model=Dropping(), config=config)
    engine.load_checkpoint(folder)
    restored = facts(engine)
    train(engine, 14)
    return [saved, restored, expected, facts(engine)]


@pytest.mark.row("R1")
@pytest.mark.parametrize("stage", [0, 3])
def test_a_resumed_run_keeps_count_of_skipped_steps_and_the_loss_scale(tmp_path, stage):
    for saved, restored, expected, found in world.run(2, resume_with_skipped_steps, folder=str(tmp_path), stage=stage):
        scale, skipped = saved[2], saved[4]
        assert skipped == 7 and scale < 2**30, saved
        assert restored == saved
        assert found == expected and skipped < found[4] < 7 + 14, found


def resume_with_changed_settings(folder, stage, outside):
    """Settings that the configuration does not have, and no schedule that would set them again."""

    def fresh():
        model, config = Dropping(), configuration(stage, optimizer="none" if outside else "AdamW")
        config.pop("scheduler", None)
        own = torch.optim.NAdam(model.parameters(), lr=1e-3) if outside else None  # it counts its steps
        engine, *_ = zeroshard.initialize(model=model, config=config, optimizer=own)
        return engine

    engine = fresh()
    seed(engine)
    train(engine, 3)
    for group in engine.optimizer.param_groups:
        group["lr"], group["weight_decay"] = 7e-3, 0.3
    engine.save_checkpoint(folder)
    losses = train(engine, 3)
    expected = facts(engine)
    engine.wait_for_checkpoint()
    engine = fresh()
    train(engine, 1)
    engine.load_checkpoint(folder)
    assert [group["weight_decay"] for group in engine.optimizer.param_groups][0] == 0.3
    return [losses, expected, train(engine, 3), facts(engine)]


@pytest.mark.row("R1")
@pytest.mark.parametrize(("stage", "outside"), [(1, False), (1, True), (3, True)])
def test_a_resumed_run_keeps_changed_settings_and_the_own_optimizers_counts(tmp_path, stage, outside):
    arguments = {"folder": str(tmp_path), "stage": stage, "outside": outside}
    for losses, expected, again, found in world.run(2, resume_with_changed_settings, **arguments):
        assert (again, found) == (losses, expected)


@pytest.mark.row("R1")
@pytest.mark.parametrize("optimizer", ["SGD", "Lion", "Adagrad", "none"])
def test_a_resumed_run_with_other_optimizers(tmp_path, optimizer):
    cases = [(stage, (stage + 1) % 4, "fp32", optimizer, 3, 6) for stage in STAGES]
    world.run(2, stops_and_resumes, folder=str(tmp_path), cases=cases)


# -- what is wrong -----------------------------------------------------------------------------------------------------


def write(folder, stage):
    engine = make(stage)
    seed(engine)
    train(engine, 3)
    engine.save_checkpoint(folder)


def load_into(folder, changes, kwargs):
    class Other(Dropping):
        def __init__(self):
            super().__init__()
            if changes == "shape":
                self.blocks[1][0] = nn.Linear(24, WIDTH, bias=True)
                self.blocks[1][2] = nn.Linear(WIDTH, 24)
                self.frozen = nn.Parameter(torch.randn(7, 12), requires_grad=False)
            if changes == "more":
                self.more = nn.Linear(24, 3)
            if changes == "fewer":
                del self.blocks[2]

    optimizer = "SGD" if changes == "optimizer" else "AdamW"
    engine, *_ = zeroshard.initialize(model=Other(), config=configuration(3, optimizer=optimizer))
    path, _ = engine.load_checkpoint(folder, **kwargs)
    return path


@pytest.mark.parametrize(
    ("changes", "message", "remedy"),
    [
        ("shape", "'frozen' has the shape [7, 12], in the checkpoint [7, 11]", None),
        (
            "more",
            "the checkpoint does not have: 'more.weight', 'more.bias'",
            {"load_module_strict": False},
        ),
        ("fewer", "parameters that only the checkpoint has: 'blocks.2.0.weight'", {"load_module_strict": False}),
        ("optimizer", "saved with the optimizer AdamW, this engine has SGD", {"load_optimizer_states": False}),
    ],
)
def test_a_checkpoint_of_another_model(tmp_path, changes, message, remedy):
    world.run(2, write, folder=str(tmp_path), stage=2)
    for rank in world.run_ranks(2, load_into, folder=str(tmp_path), changes=changes, kwargs={}):
        assert rank.error is not None and message in rank.error, rank.error
    if remedy:
        assert None not in world.run(2, load_into, folder=str(tmp_path), changes=changes, kwargs=remedy)


def save_something_odd(folder, what):
    engine = make(1)
    train(engine, 1)
    if what == "tags":
        engine.save_checkpoint(folder, tag=f"of-rank-{engine.rank()}")
        engine.wait_for_checkpoint()
    if what == "hook":
        loss = engine(torch.zeros(2, 3, dtype=torch.long)).sum()
        loss.register_hook(lambda grad: engine.save_checkpoint(folder))
        engine.backward(loss)
    client = {"a": {"b": [1, object()]}} if what == "object" else {}
    engine.save_checkpoint(folder, tag="../up" if what == "tag" else None, client_state=client)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("object", "client.client.a.b[1] is an object"),
        ("tag", "'../up' cannot be the tag of a checkpoint"),
        ("tags", "rank 1: saves '"),
        ("hook", "save_checkpoint within a backward pass"),
    ],
)
def test_what_cannot_be_saved(tmp_path, what, message):
    for rank in world.run_ranks(2, save_something_odd, folder=str(tmp_path), what=what):
        assert rank.error is not None and message in rank.error, rank.error


def fail_in_the_background(folder, on_error):
    engine = make(2, checkpoint={"on_error": on_error})
    seed(engine)
    train(engine, 1)
    if engine.rank() == 0:
        os.makedirs(folder)
    engine.save_checkpoint(os.path.join(folder, "good"))
    engine.wait_for_checkpoint()
    with open(os.path.join(folder, f"file-{engine.rank()}"), "w"):
        pass
    engine.save_checkpoint(os.path.join(folder, "file-0"))  # not a directory
    said = ""
    for _ in range(50):
        try:
            train(engine, 1)
        except zeroshard.IoError as error:
            said = str(error)
            break
    return [engine.global_steps, said]


@pytest.mark.row("D1", "D4")
@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_an_error_in_the_background_comes_out_at_a_step(tmp_path, on_error):
    results = world.run(2, fail_in_the_background, folder=str(tmp_path / "new"), on_error=on_error)
    assert results[0] == results[1]  # at the same step on all ranks
    steps, said = results[0]
    if on_error == "raise":
        assert "file-0" in said and steps < 51
    else:
        assert said == "" and steps == 51


# -- signals -----------------------------------------------------------------------------------------------------------


def stop_at_a_signal(folder):
    engine = make(3)
    seed(engine)
    if engine.rank() == 1:
        signal.signal(signal.SIGTERM, lambda *_: engine.request_stop())
    for step in range(100):
        if step == 4 and engine.rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        train(engine, 1)
        if engine.stop_requested:
            break
    engine.save_checkpoint(folder)
    return engine.global_steps


@pytest.mark.row("P1")
def test_a_stop_on_one_rank_stops_all_at_the_same_step(tmp_path):
    assert world.run(3, stop_at_a_signal, folder=str(tmp_path)) == [5, 5, 5]
    assert os.path.exists(tmp_path / "global_step5" / "manifest.json")  # a process that ends has waited


def save_at_a_signal(folder, signals, moment_s=stopping.MOMENT_S):
    stopping.MOMENT_S = moment_s
    engine = make(3)
    seed(engine)
    engine.save_and_stop_on(folder, client_state=lambda: {"at": engine.global_steps})
    for step in range(100):
        if step == 4 and engine.rank() == 1:
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGTERM)
        train(engine, 1)


@pytest.mark.row("P1")
@pytest.mark.parametrize("signals", [1, 3])
def test_a_signal_lets_all_ranks_save_and_end(tmp_path, signals):
    ranks = world.run_ranks(3, save_at_a_signal, folder=str(tmp_path), signals=signals)
    assert [rank.exit_code for rank in ranks] == [143] * 3, [rank.error for rank in ranks]
    assert world.run(2, client_state_of, folder=str(tmp_path)) == [{"at": 5}] * 2


@pytest.mark.row("P1")
def test_a_later_signal_ends_a_rank_at_once(tmp_path):
    ranks = world.run_ranks(3, save_at_a_signal, folder=str(tmp_path), signals=2, moment_s=0)
    assert ranks[1].exit_code == -signal.SIGTERM and not os.listdir(tmp_path)


def client_state_of(folder):
    return make(2).load_checkpoint(folder)[1]


# -- the data position -------------------------------------------------------------------------------------------------


def consume(folder, stop, epochs):
    data = [(torch.tensor([index % 50] * 3), index) for index in range(23)]
    config = configuration(2)
    engine, _, loader, _ = zeroshard.initialize(model=Dropping(), config=config, training_data=data)
    if os.path.exists(folder):
        engine.load_checkpoint(folder)
    seen = []
    for _ in range(epochs):
        for ids, index in loader:
            engine.backward(engine(ids.repeat(2, 1)).float().square().mean())
            engine.step()
            seen += index.tolist()
            if stop is not None and engine.global_steps == stop:
                engine.save_checkpoint(folder)
                return seen
    return seen


@pytest.mark.row("R1", "K8")
@pytest.mark.parametrize("second", [1, 2, 3])
def test_no_sample_is_lost_or_repeated_when_an_epoch_goes_on(tmp_path, second):
    folder = str(tmp_path / "checkpoint")
    first = world.run(2, consume, folder=folder, stop=3, epochs=1)
    rest = world.run(second, consume, folder=folder, stop=None, epochs=1)
    samples = list(itertools.chain(*first, *rest))
    assert len(samples) - 23 < max(2, second), samples  # padded so that every rank has as many
    assert set(samples) == set(range(23))


# -- the whole model ---------------------------------------------------------------------------------------------------


def export(folder, stage, dtype):
    engine = make(stage, dtype)
    train(engine, 2)
    engine.save_16bit_model(os.path.join(folder, "whole"), "pytorch_model.bin")
    engine.save_16bit_model(os.path.join(folder, "part"), exclude_frozen_parameters=True)
    for name in ("", ".safetensors", "sub/.safetensors"):
        with pytest.raises(ValueError, match="give the file a name"):
            engine.save_16bit_model(os.path.join(folder, "nameless"), name)
    assert not os.path.exists(os.path.join(folder, "nameless"))
    with zeroshard.gathered(engine.module.parameters()):
        expected = {name: param.detach().clone() for name, param in engine.module.named_parameters()}
    expected["seen"] = engine.module.seen.clone()
    if engine.rank() == 0:
        from safetensors.torch import load_file

        whole = load_file(os.path.join(folder, "whole", "pytorch_model.safetensors"))
        assert whole.keys() == expected.keys()
        assert all(
            whole[name].dtype == value.dtype and torch.equal(whole[name], value.cpu())
            for name, value in expected.items()
        )
        part = load_file(os.path.join(folder, "part", "model.safetensors"))
        assert part.keys() == expected.keys() - {"frozen"}
    train(engine, 1)  # goes on
    return engine.parameter_digest()


@pytest.mark.row("W3")
@pytest.mark.parametrize(
    "ranks,stage,on",
    [*((2, stage, None) for stage in STAGES), *(simulated.case(3, s, "lazy") for s in (1, 3))],
)
def test_the_whole_model_as_one_file(tmp_path, ranks, stage, on):
    for dtype in ("fp32", "bf16"):
        world.run(ranks, export, folder=str(tmp_path / dtype), stage=stage, dtype=dtype, on=on)


def load_from_a_path_that_is_no_text(folder):
    try:
        make(1).load_checkpoint(os.fsencode(folder) + b"/caf\xe9", tag="none")
    except zeroshard.Error as error:
        return str(error)


def test_an_error_about_a_path_that_is_no_text(tmp_path):
    assert "caf\\xe9" in world.run(1, load_from_a_path_that_is_no_text, folder=str(tmp_path))[0]
