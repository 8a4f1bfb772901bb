"""Backward passes that raise, on all ranks or on some, and are tried again: all ranks know, and the bits stay."""

import itertools
import random

import models
import pytest
import torch
import world
import zeroshard

STEPS = 3
DTYPES = ("fp32", "bf16", "fp16")
PLACES = ("first block", "last block", "head", "gradient", "after")


class Fault(Exception):
    pass


class Raises(torch.autograd.Function):
    """Hands its input on, and raises in backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        raise Fault("planted")


def configuration(stage, dtype="fp32", micro_batches=1):
    return models.configuration(
        stage,
        dtype,
        accumulation=micro_batches,
        optimizer=models.sgd(0.1),  # without states, so that one engine can train the same steps again
        data_types={"grad_accum_dtype": "fp32"},
        fp16={"initial_scale_power": 4},
    )


def plant(model, place):
    """Lets the next backward raise once. Returns what takes it away."""
    if place == "gradient":  # a hook of the user's, when this gradient has been computed
        param = model.blocks[1].up.weight
        handle = param.register_post_accumulate_grad_hook(lambda param: Raises.backward(None, None))
        return handle.remove
    if place == "after":  # all gradients have been computed
        handle = model.blocks[0].norm.weight.register_hook(lambda grad: Raises.backward(None, None))
        return handle.remove
    module = {"first block": model.blocks[0], "last block": model.blocks[-1], "head": model.head}[place]
    handle = module.register_forward_pre_hook(lambda module, args: (Raises.apply(args[0].requires_grad_()),))
    return handle.remove


def train_with_faults(engine, dtype, faults=(), no_sync=False, try_again=True):
    """Losses, norms and digest of STEPS steps, and the errors of the steps that are tried again.

    ``faults``: (step, micro-batch, place, ranks) each.
    """
    faults = list(faults)
    micro_batches = engine.gradient_accumulation_steps()
    losses, norms, errors = [], [], []
    step = 0
    while step < STEPS:
        counts = (engine.global_steps, engine.micro_steps, engine.global_samples)
        losses.append([])
        try:
            for micro in range(micro_batches):
                take_away = []
                if faults and faults[0][:2] == (step, micro):
                    *_, place, ranks = faults.pop(0)
                    if world.rank() in ranks:
                        take_away.append(plant(engine.module, place))
                x, y = (models.share(each, world.rank(), world.size()) for each in models.vectors(step, micro, 8))
                try:
                    out = engine(x.to(next(engine.module.parameters()).dtype))
                    losses[-1].append(loss := torch.nn.functional.mse_loss(out.float(), y))
                    if no_sync and micro + 1 < micro_batches:
                        with engine.no_sync():
                            engine.backward(loss)
                    else:
                        engine.backward(loss)
                finally:
                    for each in take_away:
                        each()
                engine.step()
        except (Fault, zeroshard.StateError) as error:
            errors.append(f"{type(error).__name__}: {error}")
            losses.pop()
            assert (engine.global_steps, engine.micro_steps, engine.global_samples) == counts
            if not try_again:
                break
            continue
        norms.append(engine.get_global_grad_norm())
        losses[-1] = [loss.item() for loss in losses[-1]]
        step += 1
    return losses, norms, engine.parameter_digest(), errors


def randomly(seed, micro_batches):
    """A few faults, at different micro-batches, each on some ranks."""
    rng = random.Random(seed)
    places = rng.sample(list(itertools.product(range(STEPS), range(micro_batches))), k=2)
    everybody = range(world.size())
    return [
        (
            *at,
            rng.choice(PLACES),
            rng.choice([list(everybody), [rng.choice(everybody)], rng.sample(everybody, k=(world.size() + 1) // 2)]),
        )
        for at in sorted(places)
    ]


def start_again(engine, start):
    if world.size() > 1:
        torch.distributed.barrier()  # peers may still read what this rank has updated
    engine.module.load_state_dict(start)


def fail_and_try_again(stage, dtype, seeds):
    micro_batches = 1 + seeds[0] % 2
    model = models.stack()
    engine, *_ = zeroshard.initialize(model=model, config=configuration(stage, dtype, micro_batches))
    with zeroshard.gathered(model.parameters()):
        start = {name: value.clone() for name, value in model.state_dict().items()}
    start_again(engine, start)  # master weights, too, are rounded
    expected = None
    for seed in seeds:  # the first pass of all fails, where the order of the units is not known
        no_sync = seed % 3 == 0
        faults = randomly(seed, micro_batches)
        if seed == seeds[0]:
            faults.insert(0, (0, 0, PLACES[seed % len(PLACES)], [seed % world.size()]))
        *got, errors = train_with_faults(engine, dtype, faults, no_sync)
        for (_, _, _, ranks), error in zip(faults, errors, strict=True):
            first = f"from rank {min(ranks)}: Fault: planted"
            assert error == "Fault: planted" if world.rank() in ranks else first in error, (error, seed)
        start_again(engine, start)
        *expected, errors = train_with_faults(engine, dtype, (), no_sync)
        assert not errors and got == expected, (seed, faults, got, expected)
        start_again(engine, start)
    return expected[-1]


@pytest.mark.fault
@pytest.mark.row("T1")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_step_that_failed_and_is_tried_again_has_the_bits_of_one_that_did_not(release, size, dtype):
    first = 7 * size + DTYPES.index(dtype)
    for stage in range(4):
        seeds = [first + 5 * stage + each for each in range(20 if release else 2)]
        assert len(set(world.run(size, fail_and_try_again, stage=stage, dtype=dtype, seeds=seeds))) == 1


class UsedAgain(torch.nn.Module):
    """Checkpointed blocks, the first of which is used twice: backward is one pass for each of them."""

    def __init__(self, frozen):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(48, 48) for _ in range(3)])
        self.head = torch.nn.Linear(48, 4)
        self.blocks[1].requires_grad_(not frozen)

    def forward(self, x):
        x.requires_grad_()
        for block in (*self.blocks, self.blocks[0]):
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True)
        return self.head(x)


def fail_first(failing, frozen):
    config = models.configuration(3, optimizer=models.sgd(0.1), zeroshard={"timeout_s": 30})
    config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    engine, *_ = zeroshard.initialize(model=UsedAgain(frozen), config=config)
    for step in range(2):
        x = torch.randn(2, 48, generator=torch.Generator().manual_seed(10 * step + world.rank()))
        if step == 0 and failing:
            loss = engine(x).square().mean()
            with pytest.raises((Fault, zeroshard.StateError), match="planted"):
                engine.backward(Raises.apply(loss) if world.rank() in failing else loss)
        engine.backward(engine(x).square().mean())
        engine.step()
    return engine.parameter_digest()


@pytest.mark.fault
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_the_first_backward_fails_on_some_ranks_where_a_checkpointed_unit_is_used_twice(size, frozen):
    expected = world.run(size, fail_first, failing=(), frozen=frozen)[0]
    for failing in ([0], [size - 1], list(range(1, size))):
        assert set(world.run(size, fail_first, failing=failing, frozen=frozen)) == {expected}
