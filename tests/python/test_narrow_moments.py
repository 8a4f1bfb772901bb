"""Moments in bf16: the same bits wherever they lie, half the memory, and checkpoints that have fp32."""

import models
import pytest
import simulated
import torch
import world
import zeroshard
from test_swap_files import WIDTH, make, states, train

STEPS = 3
NARROW = {"zeroshard": {"offload": {"moment_dtype": "bf16"}}}


def moments(engine):
    """Of every parameter, each whole."""
    keys = ("exp_avg", "exp_avg_sq")
    return [zeroshard.get_optimizer_state(param, key) for param in engine.module.parameters() for key in keys]


def moment_bytes(engine):
    """On all tiers: as planned."""
    lines = [line for line in engine._run.core.memory() if line[0] == "moments"]
    assert all(planned == peak for _, _, planned, peak in lines), lines
    return sum(planned for _, _, planned, _ in lines)


def compare(folder, stage, dtype):
    scale = {"fp16": {"initial_scale_power": 8}}  # no step is skipped
    plain, swapped = make(stage, dtype, **NARROW, **scale), make(stage, dtype, [folder], **NARROW, **scale)
    wide = make(stage, dtype, **scale)
    for engine in (plain, swapped, wide):
        train(engine, 0, STEPS)
    assert plain.parameter_digest() == swapped.parameter_digest() != wide.parameter_digest()
    assert moment_bytes(wide) == 2 * moment_bytes(plain) == 2 * moment_bytes(swapped)
    assert states(plain) == states(swapped)
    for moment in moments(plain):
        assert moment.dtype == torch.float32 and torch.equal(moment, moment.bfloat16().float())
    # Checkpoints have fp32, and go both ways between fp32 and bf16.
    for engine, name in ((plain, "plain"), (wide, "wide")):
        engine.save_checkpoint(f"{folder}/{name}")
        engine.wait_for_checkpoint()  # another engine loads it
    before, rounded = moments(plain), [moment.bfloat16().float() for moment in moments(wide)]
    wide.load_checkpoint(f"{folder}/plain")
    assert all(map(torch.equal, moments(wide), before))
    plain.load_checkpoint(f"{folder}/wide")
    assert all(map(torch.equal, moments(plain), rounded))
    # A run that goes on from where it was has the bits of one that was not interrupted.
    train(swapped, STEPS, STEPS + 2)
    plain.load_checkpoint(f"{folder}/plain")
    train(plain, STEPS, STEPS + 2)
    assert plain.parameter_digest() == swapped.parameter_digest()
    # What is set is rounded to nearest.
    param = next(plain.module.parameters())
    zeroshard.set_optimizer_state(param, "exp_avg", torch.full(param.shape, 1.003))
    assert zeroshard.get_optimizer_state(param, "exp_avg").unique().tolist() == [1.0]
    return plain.parameter_digest()


@pytest.mark.parametrize("ranks,stage,dtype", [(1, 1, "bf16"), (2, 2, "fp32"), (2, 3, "bf16"), (3, 2, "fp16")])
def test_results_states_and_checkpoints(tmp_path, ranks, stage, dtype):
    assert len(set(world.run(ranks, compare, folder=str(tmp_path), stage=stage, dtype=dtype))) == 1


@pytest.mark.parametrize("value", ["fp16", "bfloat16", 16, True])
def test_other_dtypes_are_refused(value):
    config = models.configuration(2, zeroshard={"offload": {"moment_dtype": value}})
    with pytest.raises(zeroshard.ConfigError, match=r"zeroshard\.offload\.moment_dtype = .*must be one of fp32, bf16"):
        zeroshard.initialize(model=models.stack(width=WIDTH), config=config)


def ranks_that_differ():
    blocks = NARROW if world.rank() == 1 else {}
    with pytest.raises(ValueError, match="the ranks disagree on the configuration"):
        make(2, **blocks)
    return True


def test_ranks_must_agree():
    assert world.run(2, ranks_that_differ) == [True, True]


def own_optimizers():
    model = models.stack(width=WIDTH)
    config = models.configuration(2, **NARROW, zero_allow_untested_optimizer=True)
    optimizer = torch.optim.RMSprop(model.parameters())
    with pytest.raises(zeroshard.ConfigError, match='RMSprop is an optimizer of your own.*set "fp32"'):
        zeroshard.initialize(model=model, optimizer=optimizer, config=config)
    return True


def test_optimizers_of_the_users_are_refused():
    assert world.run(2, own_optimizers) == [True, True]


def states_that_stay():
    for zero, told in (
        ({}, 'device is "none"'),
        ({"offload_optimizer": {"device": "cpu", "ratio": 0.5}}, "ratio is 0.5"),
    ):
        config = models.configuration(2, optimizer=models.adamw(), zero_optimization=zero, **NARROW)
        with pytest.raises(zeroshard.ConfigError, match=f'moment_dtype = "bf16": .*{told}'):
            zeroshard.initialize(model=models.stack(width=WIDTH).to(world.device()), config=config)
    config = models.configuration(
        2, optimizer=models.adamw(), zero_optimization={"offload_optimizer": {"device": "auto"}}, **NARROW
    )
    engine = zeroshard.initialize(model=models.stack(width=WIDTH).to(world.device()), config=config)[0]
    return [tier for category, tier, planned, _ in engine._run.core.memory() if category == "moments" and planned]


@simulated.needed
def test_beside_a_device_they_must_leave_it():
    assert world.run(2, states_that_stay, on="lazy") == [["host"], ["host"]]
