"""What a caller can set while an engine trains: samples per step, learning rates."""

import math

import models
import pytest
import torch
import world
import zeroshard
from errors import message_of

RAMP = (1, 3, 2, 1)  # micro-batches of each step


def configuration(accumulation=1, stage=1, **blocks):
    return models.configuration(stage, accumulation=accumulation, **{"optimizer": models.adamw(eps=1e-3)} | blocks)


def initialize(accumulation=1, **blocks):
    return zeroshard.initialize(model=models.stack(), config=configuration(accumulation, **blocks))[0]


def micro_step(engine, step, micro):
    x, y = (models.share(each, world.rank(), world.size()) for each in models.vectors(step, micro, 2 * world.size()))
    dtype = next(engine.parameters()).dtype
    engine.backward(torch.nn.functional.mse_loss(engine(x.to(dtype)).float(), y))
    engine.step()


# -- train_batch_size --------------------------------------------------------------------------------------------------


def ramp(stage, accumulation, **blocks):
    """The digest after steps of several sizes, set or by the caller's own scaling of losses and boundaries."""
    set_size = initialize(accumulation, stage=stage, **blocks)
    sizes = []
    for step, micro_batches in enumerate(RAMP):
        set_size.set_train_batch_size(2 * world.size() * micro_batches)
        for micro in range(micro_batches):
            micro_step(set_size, step, micro)
            assert set_size.was_step_applied() == (micro == micro_batches - 1)
        sizes.append([set_size.train_batch_size(), set_size.gradient_accumulation_steps(), set_size.global_steps])
    by_hand = initialize(max(RAMP), stage=stage, **blocks)
    for step, micro_batches in enumerate(RAMP):
        for micro in range(micro_batches):
            x, y = models.vectors(step, micro, 2 * world.size())
            x, y = (models.share(each, world.rank(), world.size()) for each in (x, y))
            dtype = next(by_hand.parameters()).dtype
            loss = torch.nn.functional.mse_loss(by_hand(x.to(dtype)).float(), y)
            by_hand.set_gradient_accumulation_boundary(micro == micro_batches - 1)
            by_hand.backward(loss / micro_batches, scale_wrt_gas=False)
            by_hand.step()
    return set_size.parameter_digest(), by_hand.parameter_digest(), sizes, set_size.global_samples


BF16, SUMS_IN_FP32 = {"bf16": {"enabled": True}}, {"data_types": {"grad_accum_dtype": "fp32"}}


@pytest.mark.parametrize(
    ("stage", "accumulation", "blocks"),
    [(0, 1, {}), (1, 1, {}), (2, 1, {}), (3, 2, BF16), (1, 1, BF16 | SUMS_IN_FP32), (2, 3, BF16)],
)
def test_train_batch_size_changes_the_number_of_micro_batches(stage, accumulation, blocks):
    for own, expected, sizes, samples in world.run(2, ramp, stage=stage, accumulation=accumulation, **blocks):
        assert own == expected
        assert sizes == [[4 * micro_batches, micro_batches, step + 1] for step, micro_batches in enumerate(RAMP)]
        assert samples == 4 * sum(RAMP)


def wrong_sizes():
    engine = initialize(2)
    said = [message_of(lambda size=size: engine.set_train_batch_size(size)) for size in (0, -4, 5, 2)]
    micro_step(engine, 0, 0)
    said.append(message_of(lambda: engine.set_train_batch_size(8)))
    micro_step(engine, 0, 1)
    said.append(message_of(lambda: engine.set_train_batch_size(8)))
    said.append(message_of(lambda: engine.set_train_micro_batch_size(0)))
    single = initialize(1, **BF16)
    said += [message_of(lambda: single.set_train_batch_size(8)), message_of(lambda: single.set_train_batch_size(4))]
    return said, engine.train_batch_size(), single.train_batch_size()


def test_sizes_that_cannot_be():
    for said, size, single in world.run(2, wrong_sizes):
        for message, given in zip(said[:4], (0, -4, 5, 2), strict=True):
            assert message.startswith(f"ValueError: train_batch_size is {given}, expected a multiple of")
            assert message.endswith("2 * 2 = 4")
        assert said[4].startswith("StateError: set_train_batch_size within a step")
        assert said[5] is None and size == 8
        assert said[6] == "ValueError: train_micro_batch_size_per_gpu is 0, expected at least 1"
        assert "would be summed in bf16" in said[7] and '"grad_accum_dtype": "fp32"' in said[7]
        assert said[8] is None and single == 4


def micro_sizes():
    engine = initialize(3)
    engine.set_train_micro_batch_size(5)
    for micro in range(3):
        micro_step(engine, 0, micro)
    own = zeroshard.initialize(model=models.stack(), training_data=list(range(8)), config=configuration())[0]
    refused = message_of(lambda: own.set_train_micro_batch_size(4))
    return engine.train_micro_batch_size_per_gpu(), engine.train_batch_size(), engine.global_samples, refused


def test_micro_batches_of_another_size_are_counted():
    for micro, train, samples, refused in world.run(2, micro_sizes):
        assert [micro, train, samples] == [5, 30, 30]
        assert refused.startswith("ValueError: the loader that zeroshard.initialize made gives micro-batches of 2")


def resume(folder):
    """A size that was set is the caller's to set again; steps stay whole after a load either way."""
    engine = initialize(1)
    engine.set_train_batch_size(12)
    for micro in range(3):
        micro_step(engine, 0, micro)
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    engine.set_train_batch_size(8)
    engine.load_checkpoint(folder)
    applied = []
    for micro in range(4):
        micro_step(engine, 1, micro)
        applied.append(engine.was_step_applied())
    return applied


def test_steps_are_whole_after_a_load(tmp_path):
    assert world.run(2, resume, folder=str(tmp_path)) == [[False, True, False, True]] * 2


# -- learning rates ----------------------------------------------------------------------------------------------------


def rates():
    model = models.stack()
    groups = [{"params": list(model.blocks.parameters())}, {"params": list(model.head.parameters()), "lr": 1e-4}]
    engine = zeroshard.initialize(model=model, model_parameters=groups, config=configuration())[0]
    before = [engine.get_lr(), engine.get_type()]
    engine.set_lr(0)
    digest = engine.parameter_digest()
    micro_step(engine, 0, 0)
    still = engine.parameter_digest() == digest
    engine.set_lr(3e-3)
    micro_step(engine, 1, 0)
    moves = engine.parameter_digest() != digest
    said = [message_of(lambda lr=lr: engine.set_lr(lr)) for lr in (-1e-3, math.nan, math.inf)]
    return before, still, moves, engine.get_lr(), said


def test_set_lr():
    before, still, moves, lrs, said = world.run(1, rates)[0]
    assert before == [[1e-2, 1e-4], ["AdamW", "AdamW"]]
    assert still and moves
    assert lrs == [3e-3, 3e-3]
    assert [message.split(",")[0] for message in said] == [
        f"ValueError: set_lr: lr is {lr}" for lr in (-0.001, "nan", "inf")
    ]


def momenta():
    model, config = models.stack(), configuration()
    by_type = {}
    for kind, params in (("SGD", {"lr": 1e-3, "momentum": 0.9}), ("AdamW", {"lr": 1e-3, "betas": [0.8, 0.9]})):
        config["optimizer"] = {"type": kind, "params": params}
        by_type[kind] = zeroshard.initialize(model=models.stack(), config=config)[0].get_mom()
    inner = torch.optim.RMSprop(model.parameters(), momentum=0.5)
    by_type["RMSprop"] = zeroshard.initialize(model=model, optimizer=inner, config=configuration())[0].get_mom()
    return by_type


def test_get_mom():
    assert world.run(1, momenta)[0] == {"SGD": [0.9], "AdamW": [[0.8, 0.9]], "RMSprop": [0.5]}


# -- buffers -----------------------------------------------------------------------------------------------------------


class Normalised(models.Stack):
    """Statistics, which kernels want in the dtype of weights, and another buffer, which stays."""

    def __init__(self):
        super().__init__()
        self.normal = torch.nn.BatchNorm1d(5)
        self.register_buffer("shift", torch.full((5,), 1 / 3))

    def forward(self, x):
        return self.normal(super().forward(x)) + self.shift.to(x.dtype)


def normalise(dtype, stage):
    torch.manual_seed(0)
    config = configuration(stage=stage, dtype=dtype, fp16={"initial_scale_power": 4})
    engine = zeroshard.initialize(model=Normalised(), config=config)[0]
    before = engine.module.normal.running_mean.clone()
    micro_step(engine, 0, 0)
    mean = engine.module.normal.running_mean
    return [str(mean.dtype), str(engine.module.shift.dtype), not torch.equal(mean, before), engine.parameter_digest()]


@pytest.mark.parametrize(("dtype", "name"), [("bf16", "torch.bfloat16"), ("fp16", "torch.float16")])
def test_batch_norm_trains_in_16_bits(dtype, name):
    results = [result for stage in (0, 3) for result in world.run(2, normalise, dtype=dtype, stage=stage)]
    assert all(result[:3] == [name, "torch.float32", True] for result in results), results
    assert len({result[3] for result in results}) == 1


def test_a_boundary_that_a_script_puts_in_place_counts():
    engine = initialize(accumulation=2)
    engine.is_gradient_accumulation_boundary = lambda: True
    engine.backward(engine(models.vectors(0, 0, 2)[0]).square().mean())
    engine.step()
    assert (engine.micro_steps, engine.global_steps) == (1, 1)


def test_attributes_of_the_engine_can_be_patched():
    engine = initialize()
    engine.lr_scheduler = scheduler = object()
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(engine, "lr_scheduler")
        assert engine.lr_scheduler is None
    assert engine.lr_scheduler is scheduler


def test_a_scheduler_that_is_a_module_is_kept():
    engine = initialize()
    names = list(engine.state_dict())
    scheduler = torch.nn.Linear(2, 2)
    scheduler.step = lambda: steps.append(engine.global_steps)
    steps = []
    engine.lr_scheduler = scheduler
    assert engine.lr_scheduler is scheduler and list(engine.state_dict()) == names
    engine.backward(engine(models.vectors(0, 0, 2)[0]).square().mean())
    engine.step()
    assert steps == [1]
    engine.lr_scheduler = None
    assert engine.lr_scheduler is None
