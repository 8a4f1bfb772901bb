"""Training agrees with plain PyTorch on one rank, and with DistributedDataParallel on two."""

import copy
import math

import models
import pytest
import simulated
import torch
import torch.distributed as dist
import world
import zeroshard
from reference import TOLERANCE, difference
from torch.nn.parallel import DistributedDataParallel

# Adam divides by a gradient's own size, however small: an element whose gradient is rounding noise would take steps of
# the size of the learning rate in either direction. Where gradients of ranks are summed, this bounds such steps.
EPS = 1e-3


def tolerance(on):
    """On a simulated device, some of a Llama's operators add in another order than they do on the CPU."""
    return 10 * TOLERANCE if on else TOLERANCE


class Lion(torch.optim.Optimizer):
    """Lion as published: the sign of an interpolation, decoupled weight decay."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for param in group["params"]:
                average = self.state[param].setdefault("average", torch.zeros_like(param))
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.add_(torch.sign(beta1 * average + (1 - beta1) * param.grad), alpha=-group["lr"])
                average.mul_(beta2).add_(param.grad, alpha=1 - beta2)


# name -> the configuration's type, its params, the reference
OPTIMIZERS = {
    "adamw": ("AdamW", {"lr": 1e-3, "weight_decay": 0.1, "betas": [0.8, 0.99]}, torch.optim.AdamW),
    "adam": ("Adam", {"lr": 1e-3, "weight_decay": 0.1, "adam_w_mode": False}, torch.optim.Adam),
    "adam_decoupled": ("Adam", {"lr": 1e-3, "weight_decay": 0.1}, torch.optim.AdamW),
    "sgd": ("SGD", {"lr": 0.05}, torch.optim.SGD),
    "momentum": ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}, torch.optim.SGD),
    "nesterov": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}, torch.optim.SGD),
    "adagrad": ("Adagrad", {"lr": 0.01, "lr_decay": 0.1, "weight_decay": 0.01}, torch.optim.Adagrad),
    "lion": ("Lion", {"lr": 1e-4, "weight_decay": 0.1, "betas": [0.9, 0.98]}, Lion),
}


def decay_groups(model, decay):
    """Weight decay for matrices alone, and another rate for the rest, as training scripts have it."""
    params = [param for param in model.parameters() if param.requires_grad]
    return [
        {"params": [p for p in params if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in params if p.dim() <= 1], "weight_decay": 0.0, "lr": 3e-3},
    ]


def replicate(model):
    """What the engine is compared with, on the CPU: DDP when there are several ranks."""
    reference = copy.deepcopy(model)
    if world.size() == 1:
        return reference, reference
    device = world.device().type
    zeroshard.init_distributed(backend=f"cpu:gloo,{device}:{device}" if device != "cpu" else None)
    return reference, DistributedDataParallel(reference, bucket_cap_mb=0.01)


def micro_batches(step, accumulation):
    for micro in range(accumulation):
        yield models.share(models.tokens(step, micro, 2 * world.size()), world.rank(), world.size())


def train_both(engine, reference, optimizer, steps=10, accumulation=1, clip=0.0, each_step=lambda: None):
    """Trains both; returns the largest difference of losses and of gradient norms, both relative."""
    loss_error = norm_error = 0.0
    for step in range(steps):
        for ids in micro_batches(step, accumulation):
            loss = models.language_loss(engine, ids)
            engine.backward(loss)
            engine.step()
            expected = models.language_loss(reference, ids)
            (expected / accumulation).backward()
            loss_error = max(loss_error, abs(loss.item() / expected.item() - 1))
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), clip or math.inf).item()
        norm_error = max(norm_error, abs(engine.get_global_grad_norm() / norm - 1))
        optimizer.step()
        optimizer.zero_grad()
        each_step()
    assert engine.global_steps == steps
    return loss_error, norm_error


def compare_configured(cases):
    """On a rank: `cases` are keyword arguments of compare_one."""
    return [compare_one(**case) for case in cases]


def compare_one(name, stage, accumulation=1, clip=0.0, groups=False, steps=10, transport="auto"):
    kind, params, reference_class = OPTIMIZERS[name]
    model = models.tiny_llama()
    reference, replica = replicate(model)
    if kind.startswith("Adam") and world.size() > 1:
        params = {**params, "eps": EPS}
    own = {key: value for key, value in params.items() if key != "adam_w_mode"}
    config = models.configuration(
        stage,
        accumulation=accumulation,
        gradient_clipping=clip,
        optimizer={"type": kind, "params": params},
        zeroshard={"transport": transport},
    )
    decay = own.get("weight_decay", 0.0)
    optimizer = reference_class(decay_groups(reference, decay) if groups else reference.parameters(), **own)
    model_parameters = decay_groups(model, decay) if groups else None
    engine, *_ = zeroshard.initialize(model=model, model_parameters=model_parameters, config=config)
    errors = train_both(engine, replica, optimizer, steps, accumulation, clip)
    return [*errors, difference(model, reference)]


@pytest.mark.parametrize("world_size,on", [(1, None), (2, None), simulated.case(2, "lazy")])
def test_optimizers_of_the_configuration(world_size, on, release):
    cases = [{"name": name, "stage": index % 4} for index, name in enumerate(OPTIMIZERS)]
    cases += [
        {"name": "adamw", "stage": 3, "clip": 0.3},
        {"name": "adamw", "stage": 2, "accumulation": 3, "clip": 0.3, "groups": True, "transport": "process_group"},
        {"name": "momentum", "stage": 1, "accumulation": 2, "groups": True},
    ]
    if release:
        cases = [{**case, "stage": stage, "steps": 50} for case in cases for stage in range(4)]
    elif on:
        cases = [{**case, "stage": (case["stage"] + 3) % 4, "steps": 3} for case in cases[::4]]
    for errors in world.run(world_size, compare_configured, cases=cases, on=on, timeout_s=600 if release else 120):
        for case, (loss, norm, params) in zip(cases, errors, strict=True):
            assert max(loss, norm, params) < tolerance(on), (case, loss, norm, params)


# -- learning-rate schedules of the configuration ----------------------------------------------------------------------


def warmup(iteration, count):
    return math.log(iteration + 1) / math.log(count) if iteration < count else 1.0


# type, params, factor of the rate 2e-3 at iteration i (the i-th step of the scheduler, from 0)
SCHEDULES = [
    ("WarmupLR", {"warmup_num_steps": 4, "warmup_max_lr": 2e-3}, lambda i: warmup(i, 4)),
    (
        "WarmupDecayLR",
        {"warmup_num_steps": 3, "total_num_steps": 8, "warmup_max_lr": 2e-3, "warmup_type": "linear"},
        lambda i: i / 3 if i < 3 else max(0.0, (8 - i) / 5),
    ),
    (
        "WarmupCosineLR",
        {"warmup_num_steps": 2, "total_num_steps": 8, "cos_min_ratio": 0.1, "warmup_type": "linear"},
        lambda i: i / 2 if i < 2 else 0.1 + 0.9 * (1 + math.cos(math.pi * min(1, (i - 1) / 6))) / 2,
    ),
    ("LRRangeTest", {"lr_range_test_min_lr": 2e-3, "lr_range_test_step_size": 3}, lambda i: 1 + (i + 1) / 3),
]


def compare_schedules():
    results = []
    for kind, params, factor in SCHEDULES:
        model = models.tiny_llama()
        reference, replica = replicate(model)
        config = models.configuration(
            optimizer=models.adamw(2e-3, weight_decay=0.0, eps=EPS), scheduler={"type": kind, "params": params}
        )
        engine, _, _, scheduler = zeroshard.initialize(model=model, config=config)
        optimizer = torch.optim.AdamW(reference.parameters(), lr=engine.get_lr()[0], weight_decay=0.0, eps=EPS)
        rates, applied = [], iter(range(100))

        def follow(optimizer=optimizer, rates=rates, applied=applied, factor=factor, engine=engine):
            optimizer.param_groups[0]["lr"] = 2e-3 * factor(next(applied))
            rates.append([engine.get_lr()[0], optimizer.param_groups[0]["lr"]])

        errors = train_both(engine, replica, optimizer, steps=9, each_step=follow)
        assert scheduler is engine.lr_scheduler and scheduler.get_last_lr() == engine.get_lr()
        results.append([rates, *errors, difference(model, reference)])
    return results


def test_schedules_of_the_configuration():
    for results in world.run(2, compare_schedules):
        for (kind, *_), (rates, *errors) in zip(SCHEDULES, results, strict=True):
            assert [ours for ours, _ in rates] == pytest.approx([theirs for _, theirs in rates], rel=1e-12), kind
            assert max(errors) < TOLERANCE, (kind, errors)


# -- the caller's optimizers and schedulers ----------------------------------------------------------------------------

TORCH_OPTIMIZERS = {
    "AdamW": {"lr": 1e-3, "weight_decay": 0.1, "eps": EPS},  # these two run in zeroshard's own kernels
    "SGD": {"lr": 0.05, "momentum": 0.9},
    "RMSprop": {"lr": 1e-3, "momentum": 0.5, "eps": EPS},  # these run themselves, over flat slices
    "NAdam": {"lr": 1e-3, "eps": EPS},
    "Adadelta": {"lr": 0.5},
}


def compare_user_optimizers(stage, as_callable, names=tuple(TORCH_OPTIMIZERS), steps=8):
    results = []
    for name in names:
        params = TORCH_OPTIMIZERS[name]
        optimizer_class = getattr(torch.optim, name)
        model = models.tiny_llama()
        reference, replica = replicate(model)
        ours = optimizer_class(decay_groups(model, 0.1), **params)
        theirs = optimizer_class(decay_groups(reference, 0.1), **params)
        group_dicts = list(ours.param_groups)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(ours, 0.8)
        expected = torch.optim.lr_scheduler.ExponentialLR(theirs, 0.8)
        given = (lambda _, ours=ours: ours) if as_callable else ours
        config = models.configuration(stage, accumulation=2, gradient_clipping=0.5)
        engine, optimizer, _, returned = zeroshard.initialize(
            model=model, optimizer=given, lr_scheduler=scheduler, config=config
        )
        assert returned is scheduler
        assert all(a is b for a, b in zip(optimizer.param_groups, group_dicts, strict=True)), (
            "schedulers hold the dicts"
        )
        errors = train_both(engine, replica, theirs, steps, accumulation=2, clip=0.5, each_step=expected.step)
        assert engine.get_lr() == expected.get_last_lr(), (engine.get_lr(), expected.get_last_lr())
        # A rate that is written between two steps counts in the next one.
        for group in [*optimizer.param_groups, *theirs.param_groups]:
            group["lr"] = 5e-3
        errors += train_both_again(engine, replica, theirs)
        results.append([*errors, difference(model, reference)])
    return results


def train_both_again(engine, replica, theirs):
    engine.global_steps = 0
    return train_both(engine, replica, theirs, steps=1, accumulation=2, clip=0.5)


def compare_user_optimizers_on_devices():
    return compare_user_optimizers(3, False, names=["SGD", "NAdam"], steps=3)


@simulated.needed
def test_optimizers_of_the_caller_on_devices():
    """One that runs in zeroshard's kernels, and one that runs itself over flat slices."""
    for results in world.run(3, compare_user_optimizers_on_devices, on="lazy"):
        assert max(error for errors in results for error in errors) < tolerance("lazy"), results


@pytest.mark.parametrize("world_size,stage,as_callable", [(1, 0, False), (2, 3, False), (2, 1, True)])
def test_optimizers_of_the_caller(world_size, stage, as_callable):
    for results in world.run(world_size, compare_user_optimizers, stage=stage, as_callable=as_callable):
        for name, errors in zip(TORCH_OPTIMIZERS, results, strict=True):
            assert max(errors) < TOLERANCE, (name, errors)


def refuse_unknown_optimizer():
    model = models.stack()
    optimizer = Lion(model.parameters(), lr=1e-3)
    try:
        zeroshard.initialize(model=model, optimizer=optimizer, config={"train_batch_size": 1})
    except ValueError as error:
        return str(error)
    return None


def test_an_optimizer_that_may_not_be_elementwise_is_refused():
    assert "zero_allow_untested_optimizer" in world.run(1, refuse_unknown_optimizer)[0]


class BothEnds(models.Stack):
    """Runs its blocks from the last to the first, and gives the first output besides the last."""

    def forward(self, x):
        first = self.blocks[2](x)
        return first, self.head(self.blocks[0](self.blocks[1](first)))


def two_backwards(stage):
    """The first losses of a run: one by PyTorch's own backward, which reaches one block alone, then one by ours."""
    torch.manual_seed(0)
    model = BothEnds()
    reference = copy.deepcopy(model)
    engine, *_ = zeroshard.initialize(
        model=model, config=models.configuration(stage, optimizer=models.sgd(0.05, momentum=0.9))
    )
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    for step in range(3):
        batches = [
            models.share(batch, world.rank(), world.size()) for batch in models.vectors(step, 0, 2 * world.size())
        ]
        first, last = engine(batches[0])
        first.square().mean().backward(retain_graph=True)
        engine.backward(torch.nn.functional.mse_loss(last, batches[1]))
        engine.step()
        optimizer.zero_grad()
        for rank in range(world.size()):
            x, y = (models.share(batch, rank, world.size()) for batch in models.vectors(step, 0, 2 * world.size()))
            first, last = reference(x)
            ((first.square().mean() + torch.nn.functional.mse_loss(last, y)) / world.size()).backward()
        optimizer.step()
    return difference(model, reference)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_backward_of_pytorch_before_ours(stage):
    for error in world.run(3, two_backwards, stage=stage):
        assert error < TOLERANCE


# -- 16 bits -----------------------------------------------------------------------------------------------------------


class Masters:
    """AdamW on fp32 masters of a 16-bit replica; gradients of ranks are summed in fp32 and rounded once.

    Without a `dtype` each parameter keeps its own. One weight that is rounded the other way, for masters that differ
    in their last bit, would change most gradients from then on: see `follow`.
    """

    def __init__(self, model, dtype=None):
        self.model = copy.deepcopy(model).to(world.device())
        for param in self.model.parameters():  # buffers stay as they are: a rotary embedding's need fp32
            param.data = param.data.to(dtype or param.dtype)
        self.masters = [param.detach().clone().float() for param in model.parameters()]
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-3, weight_decay=0.1)

    def step(self, batches, scale=1.0, clip=0.0):
        """One update from the micro-batches of all ranks; returns the norm before clipping."""
        ranks = len(batches)
        totals = [torch.zeros_like(master) for master in self.masters]
        for ids in batches:  # in fp32; up to three ranks, the canonical order is that of their numbers
            self.model.zero_grad()
            (models.language_loss(self.model, ids) * scale).backward()
            for total, param in zip(totals, self.model.parameters(), strict=True):
                total += param.grad.float().cpu()
        for param, master, total in zip(self.model.parameters(), self.masters, totals, strict=True):
            master.grad = (total / ranks).to(param.dtype).float() / scale
        norm = torch.nn.utils.clip_grad_norm_(self.masters, clip or math.inf).item()
        self.optimizer.step()
        with torch.no_grad():
            for param, master in zip(self.model.parameters(), self.masters, strict=True):
                param.copy_(master)
        return norm

    @torch.no_grad()
    def follow(self, model):
        """Takes the weights of `model` for its own replica, while the masters go their own way.

        Returns the part of the 16-bit elements that differed, by one rounding each, and the largest difference of the
        fp32 ones relative to the largest value of their tensor (0 without any).
        """
        different = total = error = 0
        with zeroshard.gathered(model.parameters()):
            for ours, theirs in zip(model.parameters(), self.model.parameters(), strict=True):
                ours, theirs = ours.cpu(), theirs.data
                if ours.dtype == torch.float32:
                    error = max(error, ((ours - theirs.cpu()).abs().max() / theirs.cpu().abs().max()).item())
                else:
                    roundings = (ours.view(torch.int16).int() - theirs.cpu().view(torch.int16).int()).abs()
                    assert roundings.max() <= 1, roundings.max()
                    different += roundings.sum().item()
                    total += roundings.numel()
                theirs.copy_(ours)
        return different / total, error


def train_beside(reference, engine, steps):
    """Both on the same tokens; returns the largest of any step: the relative difference of gradient norms, `follow`."""
    worst = (0.0, 0.0, 0.0)
    for step in range(steps):
        ids = models.tokens(step, 0, 2 * world.size())
        engine.backward(models.language_loss(engine, models.share(ids, world.rank(), world.size())))
        engine.step()
        norm = reference.step(ids.split(2), clip=0.5)
        errors = (abs(engine.get_global_grad_norm() / norm - 1), *reference.follow(engine.module))
        worst = tuple(map(max, worst, errors))
    return worst


def compare_bf16(stage, steps=10):
    model = models.tiny_llama()
    reference = Masters(model, torch.bfloat16)
    config = models.configuration(stage, "bf16", gradient_clipping=0.5, optimizer=models.adamw(1e-3, weight_decay=0.1))
    engine, *_ = zeroshard.initialize(model=model, config=config)
    assert all(param.dtype == torch.bfloat16 for param in model.parameters())
    return train_beside(reference, engine, steps)


def cast_input(linear, inputs):
    return tuple(value.to(linear.weight.dtype) for value in inputs)


def cast_output(_linear, _inputs, output):
    return output.float()


def mixed_llama(linear_dtype):
    """Linear layers in 16 bits; embeddings, norms and all that lies between layers in fp32."""
    model = models.tiny_llama()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.to(linear_dtype).register_forward_pre_hook(cast_input)
            module.register_forward_hook(cast_output)
    return model


def compare_mixed(stage, dtype, steps=10):
    dtype = getattr(torch, dtype)
    model = mixed_llama(dtype)
    reference = Masters(model)
    dtypes = [param.dtype for param in model.parameters()]
    config = models.configuration(stage, gradient_clipping=0.5, optimizer=models.adamw(1e-3, weight_decay=0.1))
    engine, *_ = zeroshard.initialize(model=model, config=config)
    assert [param.dtype for param in model.parameters()] == dtypes and len(set(dtypes)) == 2
    worst = train_beside(reference, engine, steps)
    memory = engine.memory_report()
    assert memory["measured_peak"] == memory["planned"]
    return worst


@pytest.mark.parametrize("world_size,dtype", [(1, "bfloat16"), (2, "float16"), (3, "bfloat16")])
def test_a_model_of_two_dtypes_keeps_both(world_size, dtype):
    for stage in (1, 3):
        for norm, different, error in world.run(world_size, compare_mixed, stage=stage, dtype=dtype):
            assert norm < 1e-6 and different < 1e-3 and error < TOLERANCE, (stage, norm, different, error)


@pytest.mark.parametrize(
    "world_size,stage,on", [(1, 3, None), (2, 1, None), (3, 3, None), simulated.case(3, 3, "lazy")]
)
def test_bf16_with_fp32_masters(world_size, stage, on):
    for norm, different, _ in world.run(world_size, compare_bf16, stage=stage, steps=4 if on else 10, on=on):
        # Masters agree to fp32's precision, so that hardly any weight is rounded the other way.
        assert norm < 1e-6 and different < 1e-3, (norm, different)


def compare_fp16(stage):
    """Trains with a scale that overflows at first, then with a loss that overflows on one rank alone."""
    model = models.tiny_llama()
    reference = Masters(model, torch.float16)
    fp16 = {"enabled": True, "initial_scale_power": 26, "hysteresis": 1, "loss_scale_window": 1000}
    config = models.configuration(
        stage, fp16=fp16, gradient_clipping=0.5, optimizer=models.adamw(1e-3, weight_decay=0.1)
    )
    config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_num_steps": 1, "warmup_max_lr": 1e-3}}
    engine, optimizer, _, scheduler = zeroshard.initialize(model=model, config=config)
    reference.optimizer.param_groups[0]["lr"] = engine.get_lr()[0]
    history = []  # of [scale that was used, whether the step was applied]
    different = 0.0
    for step in range(20):
        # At step 16, the last rank's loss alone becomes infinite in fp16.
        before, iteration, scale = engine.parameter_digest(), scheduler.last_batch_iteration, engine.loss_scale
        fp16_step(engine, step, factor=1e30 if step == 16 and world.rank() == world.size() - 1 else 1.0)
        history.append([scale, engine.was_step_applied()])
        assert optimizer.overflow != engine.was_step_applied()
        if engine.was_step_applied():
            reference.step(models.tokens(step, 0, 2 * world.size()).split(2), scale=scale, clip=0.5)
            reference.optimizer.param_groups[0]["lr"] = engine.get_lr()[0]
            different = max(different, reference.follow(model)[0])
            assert engine.loss_scale == scale and scheduler.last_batch_iteration == iteration + 1
        else:
            assert engine.loss_scale == scale / 2 and scheduler.last_batch_iteration == iteration
            assert engine.parameter_digest() == before
    assert engine.skipped_steps == sum(not applied for _, applied in history) and engine.global_steps == 20
    return [history, different]


def fp16_step(engine, step, factor=1.0):
    ids = models.share(models.tokens(step, 0, 2 * world.size()), world.rank(), world.size())
    engine.backward(models.language_loss(engine, ids) * factor)
    engine.step()


@pytest.mark.parametrize(
    "world_size,stage,on", [(1, 3, None), (2, 3, None), (3, 0, None), simulated.case(2, 3, "late")]
)
def test_fp16_with_overflows(world_size, stage, on):
    results = world.run(world_size, compare_fp16, stage=stage, on=on)
    assert all(result == results[0] for result in results), "ranks differ"
    history, different = results[0]
    assert [applied for _, applied in history[:2]] == [False, False] and not history[16][1]
    assert sum(applied for _, applied in history) >= 8
    assert different < 1e-3, different


def test_ddp_is_what_ranks_compare_with():
    assert world.run(2, uses_ddp) == [True, True]


def uses_ddp():
    reference, replica = replicate(models.stack())
    return isinstance(replica, DistributedDataParallel) and dist.get_world_size() == 2
