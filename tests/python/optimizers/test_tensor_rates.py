"""Learning rates that are tensors: shared by param groups, saved, loaded, and compared among ranks."""

import functools

import models
import pytest
import torch
import world
from errors import message_of
from zeroshard.compat.deepspeed import initialize

SCHEDULE = {"type": "WarmupLR", "params": {"warmup_min_lr": [0.0, 0.0], "warmup_max_lr": [1.0, 0.25]}}
SCHEDULE["params"] |= {"warmup_num_steps": 2, "warmup_type": "linear"}


def make_engine_with_tensor_rates(kind, scheduler=None):
    model = models.stack(width=64)
    groups = [{"params": list(model.blocks.parameters())}, {"params": list(model.head.parameters())}]
    own = kind(groups, lr=torch.tensor(0.125), foreach=False)
    config = models.configuration(1, zero_allow_untested_optimizer=True)
    config |= {"scheduler": scheduler} if scheduler else {}
    engine, front, *_ = initialize(model=model, optimizer=own, config=config)
    return engine, front, own


def train_stack(engine, steps=1):
    models.train(engine, range(steps), functools.partial(models.part_loss, width=64))


def rates_of(own):
    return [group["lr"].item() for group in own.param_groups]


def scheduled_and_loaded(kind, folder):
    kind = getattr(torch.optim, kind)
    engine, front, own = make_engine_with_tensor_rates(kind, SCHEDULE)
    train_stack(engine, 2)
    answers = [rates_of(own)]
    held = [group["lr"] for group in own.param_groups]
    state = front.state_dict()
    engine.save_checkpoint(folder)
    train_stack(engine, 2)
    answers += [rates_of(own), [group["lr"].item() for group in state["param_groups"]]]
    front.load_state_dict(state)
    answers.append(rates_of(own))
    engine.set_lr(0.5)
    engine.load_checkpoint(folder)
    answers.append(rates_of(own))
    kept = [group["lr"] is tensor for group, tensor in zip(own.param_groups, held, strict=True)]
    other, _, shares = make_engine_with_tensor_rates(kind)  # its groups share a tensor
    other.load_checkpoint(folder)
    answers.append(rates_of(shares))
    return answers, kept


@pytest.mark.parametrize("kind", ["AdamW", "RMSprop"])
def test_groups_have_rates_of_their_own(kind, tmp_path):
    for answers, kept in world.run(2, scheduled_and_loaded, kind=kind, folder=str(tmp_path)):
        assert answers == [[0.5, 0.125], [1.0, 0.25], *[[0.5, 0.125]] * 4], answers
        assert kept == [True, True]


def differ(kind):
    engine, _, own = make_engine_with_tensor_rates(getattr(torch.optim, kind))
    if world.rank() == 1:
        own.param_groups[0]["lr"].fill_(0.25)
    return message_of(lambda: train_stack(engine))


@pytest.mark.parametrize("kind", ["AdamW", "RMSprop"])
def test_rates_that_differ_between_ranks_are_told(kind):
    for said in world.run(2, differ, kind=kind):
        assert "'lr of group 0' is 0.125, on rank 1 'lr of group 0' is 0.25" in said
