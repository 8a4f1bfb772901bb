"""Learning-rate schedules and the dynamic loss scale have DeepSpeed's values over 5,000 steps, overflows included.

The formulas here are written from DeepSpeed's documentation ("Learning Rate Schedulers" and "FP16 training options" of
its configuration, and the docstrings of the classes), as functions of the step alone. RECORDED are values of DeepSpeed
0.19.8 itself: its modules runtime/lr_schedules.py and runtime/fp16/loss_scaler.py were loaded by themselves from the
source package (with stand-ins for the logger and get_rank), over torch's AdamW with a rate of 3e-3; the overflows were
those of `overflows`. Steps count from 0.
"""

import math

import pytest
import torch
import world
from zeroshard.compat import deepspeed, lr_schedules

STEPS = 5000
RATE = 3e-3
AT = (0, 1, 449, 899, 2500, 4999)


def warmup(step, steps, kind):
    if step >= steps:
        return 1.0
    return step / steps if kind == "linear" else math.log(step + 1) / math.log(steps)


def warmup_lr(step, p):
    low, high = p.get("warmup_min_lr", 0.0), p["warmup_max_lr"]
    part = warmup(step, p["warmup_num_steps"], p.get("warmup_type", "log"))
    return low + (high - low) * part, None


def warmup_decay_lr(step, p):
    total, steps = p["total_num_steps"], p["warmup_num_steps"]
    part = max(0.0, (total - step) / (total - steps)) if step >= steps else warmup(step, steps, "log")
    return p["warmup_max_lr"] * part, None


def warmup_cosine_lr(step, p):
    total, steps = p["total_num_steps"], p["warmup_num_steps"]
    if step < steps:
        low = p["warmup_min_ratio"]
        return RATE * (low + (1 - low) * warmup(step, steps, p["warmup_type"])), None
    low, done = p["cos_min_ratio"], min(1.0, (step - steps + 1) / (total - steps))
    return RATE * (low + (1 - low) * (1 + math.cos(math.pi * done)) / 2), None


def lr_range_test(step, p):
    interval = (step + 1) / p["lr_range_test_step_size"]
    if p.get("lr_range_test_staircase"):
        interval = math.floor(interval)
    return p["lr_range_test_min_lr"] * (1 + p["lr_range_test_step_rate"] * interval), None


def one_cycle(step, p):
    first, second = p["cycle_first_step_size"], p["cycle_second_step_size"]
    low, high = p["cycle_min_lr"], p["cycle_max_lr"]
    calm, wild = p.get("cycle_max_mom", 0.9), p.get("cycle_min_mom", 0.8)
    at = step + 1
    if step >= first + second:
        past = (at - first - second) / p["decay_step_size"] if p.get("decay_step_size") else 0
        return low / (1 + p.get("decay_lr_rate", 0) * past), calm * (1 + p.get("decay_mom_rate", 0) * past)
    at %= first + second
    up = at <= first
    height = at / first if up else (first + second - at) / second
    if stairs := p.get("cycle_first_stair_count" if up else "cycle_second_stair_count"):
        exact = at * stairs // first if up else (first + second - at) * stairs // second
        height = exact / stairs
    return low + (high - low) * height, calm - (calm - wild) * height


def params(**values):
    return values


# The class, its parameters, the formula, and DeepSpeed's rates before the first step and at AT; pairs with beta1.
CASES = {
    "WarmupLR": (
        params(warmup_min_lr=1e-5, warmup_max_lr=2e-3, warmup_num_steps=700),
        warmup_lr,
        [1e-05, 1e-05, 0.00022055502585363306, 0.001865785926584968, 0.002, 0.002, 0.002],
    ),
    "WarmupLR, linear": (
        params(warmup_max_lr=2e-3, warmup_num_steps=700, warmup_type="linear"),
        warmup_lr,
        [0.0, 0.0, 2.8571428571428573e-06, 0.0012828571428571429, 0.002, 0.002, 0.002],
    ),
    "WarmupDecayLR": (
        params(total_num_steps=4000, warmup_max_lr=2e-3, warmup_num_steps=700),
        warmup_decay_lr,
        [0.0, 0.0, 0.00021161309131018398, 0.001865111484004993, 0.0018793939393939394, 0.0009090909090909091, 0.0],
    ),
    "WarmupCosineLR": (
        params(
            total_num_steps=4000, warmup_min_ratio=0.1, warmup_num_steps=700, cos_min_ratio=0.05, warmup_type="linear"
        ),
        warmup_cosine_lr,
        [
            0.0, 0.00030000000000000003, 0.0003038571428571429, 0.002031857142857143, 0.002974248393599357,
            0.0013708586589335396, 0.00015000000000000001,
        ],
    ),
    "LRRangeTest": (
        params(lr_range_test_min_lr=1e-4, lr_range_test_step_size=300, lr_range_test_step_rate=2.0),
        lr_range_test,
        [
            0.0001, 0.00010066666666666667, 0.00010133333333333335, 0.0004, 0.0007, 0.0017673333333333332,
            0.003433333333333334,
        ],
    ),
    "LRRangeTest, staircase": (
        params(
            lr_range_test_min_lr=1e-4, lr_range_test_step_size=300, lr_range_test_step_rate=2.0,
            lr_range_test_staircase=True,
        ),
        lr_range_test,
        [0.0001, 0.0001, 0.0001, 0.00030000000000000003, 0.0007, 0.0017000000000000001, 0.0033],
    ),
    "OneCycle": (
        params(
            cycle_min_lr=1e-4, cycle_max_lr=2e-3, decay_lr_rate=0.5, cycle_first_step_size=900,
            cycle_second_step_size=1300, decay_step_size=400, cycle_min_mom=0.8, cycle_max_mom=0.95,
            decay_mom_rate=0.01,
        ),
        one_cycle,
        [
            (0.0001, 0.8), (0.00010211111111111126, 0.9498333333333333), (0.00010422222222222251, 0.9496666666666665),
            (0.0010500000000000002, 0.875), (0.002, 0.8), (7.266121707538601e-05, 0.95714875),
            (2.2222222222222223e-05, 1.0165),
        ],
    ),
    "OneCycle, stairs": (
        params(
            cycle_min_lr=1e-4, cycle_max_lr=2e-3, cycle_first_step_size=900, cycle_second_step_size=1300,
            cycle_first_stair_count=9, cycle_second_stair_count=4,
        ),
        one_cycle,
        [
            (0.0001, 0.8), (0.0001, 0.9), (0.0001, 0.9), (0.0009444444444444445, 0.8555555555555556), (0.002, 0.8),
            (0.0001, 0.9), (0.0001, 0.9),
        ],
    ),
}  # fmt: skip


def optimizer():
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=RATE)


def rate_and_beta(group, with_beta):
    return (group["lr"], group["betas"][0]) if with_beta else group["lr"]


@pytest.mark.parametrize("case", CASES)
def test_schedules_are_deepspeeds_over_5000_steps(case):
    values, formula, recorded = CASES[case]
    schedule = getattr(lr_schedules, case.partition(",")[0])(chosen := optimizer(), **values)
    (group,) = chosen.param_groups
    with_beta = formula is one_cycle
    found = [rate_and_beta(group, with_beta)]
    assert schedule.get_last_lr() == [group["lr"]]  # before the first step, too, as DeepSpeed has it
    for step in range(STEPS):
        schedule.step()
        rate, beta = formula(step, values)
        assert group["lr"] == pytest.approx(rate, rel=1e-12, abs=1e-18), step
        if with_beta:
            assert group["betas"] == (pytest.approx(beta, rel=1e-12), 0.99), step
        if step in AT:
            found.append(rate_and_beta(group, with_beta))
    for value, expected in zip(found, recorded, strict=True):
        assert value == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_each_param_group_may_have_its_own_values():
    params = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    cycle = {"cycle_first_step_size": 4, "cycle_second_step_size": 0, "cycle_min_mom": 0.5, "cycle_max_mom": [0.7, 0.9]}
    both = torch.optim.AdamW([{"params": [param]} for param in params], lr=RATE)
    schedule = lr_schedules.OneCycle(both, [0.1, 0.2], cycle_max_lr=(0.5, 1.0), **cycle)
    found = [(schedule.get_last_lr(), [group["betas"][0] for group in both.param_groups])]
    for _ in range(5):
        schedule.step()
        found.append((schedule.get_last_lr(), [group["betas"][0] for group in both.param_groups]))
        assert schedule.get_mom() == [group["betas"] for group in both.param_groups]
    # DeepSpeed's, whose second half has no step: the top is never reached.
    expected = [
        ([0.1, 0.2], [0.5, 0.5]),
        *(([0.1 + 0.1 * k, 0.2 + 0.2 * k], [0.7 - 0.05 * k, 0.9 - 0.1 * k]) for k in (1, 2, 3)),
    ]
    expected += [([0.1, 0.2], [0.7, 0.9])] * 2
    for (rates, betas), (wanted_rates, wanted_betas) in zip(found, expected, strict=True):
        assert rates == pytest.approx(wanted_rates) and betas == pytest.approx(wanted_betas)
    for kind, values in (
        (lr_schedules.WarmupLR, {"warmup_min_lr": [0.0, 0.1], "warmup_max_lr": [1.0, 2.0]}),
        (lr_schedules.WarmupDecayLR, {"total_num_steps": 9, "warmup_min_lr": [0.0, 0.1], "warmup_max_lr": [1.0, 2.0]}),
        (lr_schedules.LRRangeTest, {"lr_range_test_min_lr": [0.0, 0.1]}),
    ):
        assert kind(both, **values).get_last_lr() == [0.0, 0.1]
        with pytest.raises(ValueError, match="is a list of 2, and the optimizer has 1 param groups"):
            kind(optimizer(), **values)
    with pytest.raises(ValueError, match="a list with one for each param group"):
        lr_schedules.OneCycle(both, [], [0.1, -1.0])


def test_a_rate_that_is_a_tensor_stays_one():
    rate = torch.tensor(RATE)
    chosen = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=rate, capturable=False, foreach=False)
    (group,) = chosen.param_groups
    schedule = lr_schedules.WarmupLR(chosen, 0.0, 1.0, 4, "linear")
    for _ in range(3):
        schedule.step()
    assert group["lr"] is rate and rate.item() == 0.5 and schedule.get_last_lr() == [0.5]


def configured(name):
    values = CASES[name][0]
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": RATE}}}
    config["scheduler"] = {"type": name.lower(), "params": values}
    model = Weight()
    given = torch.optim.AdamW(model.parameters(), lr=torch.tensor(RATE), foreach=False)
    engine, _, _, schedule = deepspeed.initialize(model=model, optimizer=given, config=config)
    rate = given.param_groups[0]["lr"]
    for _ in range(3):
        engine.backward(engine(torch.tensor(1.0)))
        engine.step()
    same = rate is given.param_groups[0]["lr"] and isinstance(rate, torch.Tensor)
    return (
        type(schedule) is getattr(lr_schedules, name),
        same,
        rate.item() == pytest.approx(schedule.get_lr()[0]),
        hasattr(schedule, "get_mom"),
    )


@pytest.mark.parametrize("name", [name for name in CASES if "," not in name])
@pytest.mark.idle_ranks("one rank alone")
def test_a_configured_schedule_is_of_the_class_of_its_name(name):
    assert world.run(1, configured, name=name) == [[True, True, True, name == "OneCycle"]]


# -- the loss scale ----------------------------------------------------------------------------------------------------

LIMIT = 2.0**16  # the gradient of the model below is the scale itself, and fp16 ends at 65,504
SCALES_AT = (0, 1, 5, 6, 7, 99, 999, 1402, 1403, 2500, 4999)
# hysteresis, consecutive_hysteresis: overflows in 5,000 steps, and the scale after the steps of SCALES_AT
RECORDED = {
    (2, False): (69, [2**20, 2**19, 2**15, 2**14, 2**14, 2**14, 2**13, 2**14, 2**13, 2**14, 2**11]),
    (2, True): (93, [2**20, 2**19, 2**15, 2**14, 2**14, 2**14, 2**15, 2**15, 2**14, 2**15, 2**13]),
    (1, False): (51, [2**19, 2**18, 2**14, 2**13, 2**13, 2**13, 2**13, 2**14, 2**13, 2**14, 2**11]),
}


def overflows(step, scale):
    """By themselves while the scale is too large, and twice two of them every 701 steps."""
    return scale >= LIMIT or step % 701 in (0, 1, 5, 6)


def scales(hysteresis, consecutive, window):
    """Each step's verdict and the scale after it: halved once the hysteresis is used up, doubled after a window."""
    scale, left, since = 2.0**20, hysteresis, 0  # since: good steps since the last overflow; the first one is no. 0
    for step in range(STEPS):
        overflow = overflows(step, scale)
        if overflow:
            scale, left = (scale / 2, left) if left == 1 else (scale, left - 1)
            since = -1
        else:
            if consecutive:
                left = hysteresis
            if since > 0 and since % window == 0:
                scale, left = scale * 2, hysteresis
        since += 1
        yield overflow, scale


class Weight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, factor):
        return (self.weight * factor).sum()


SCHEDULE = {"type": "WarmupDecayLR", "params": CASES["WarmupDecayLR"][0]}


def five_thousand_steps(hysteresis, consecutive):
    """Returns the overflows, the scales at SCALES_AT and the first step that differs from the formulas."""
    fp16 = {"enabled": True, "initial_scale_power": 20, "loss_scale_window": 100, "hysteresis": hysteresis}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "fp16": fp16 | {"consecutive_hysteresis": consecutive},
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": RATE}},
        "scheduler": SCHEDULE,
    }
    model = Weight()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    alone = world.rank() == world.size() - 1  # the injected overflows are of one rank, and count on all
    skipped, found, good = 0, [], 0
    for step, (overflow, scale) in enumerate(scales(hysteresis, consecutive, 100)):
        injected = overflow and engine.loss_scale() < LIMIT
        engine.backward(engine(torch.tensor(float("inf") if injected and alone else 1.0, dtype=torch.float16)))
        engine.step()
        skipped += overflow
        good += not overflow
        rate = warmup_decay_lr(good - 1, SCHEDULE["params"])[0] if good else 0.0
        told = [not engine.was_step_applied(), engine.loss_scale(), engine.skipped_steps]
        assert told == [overflow, scale, skipped], (step, told, overflow, scale, skipped)
        assert math.isclose(engine.get_lr()[0], rate, rel_tol=1e-12, abs_tol=1e-18), (step, good, engine.get_lr(), rate)
        if step in SCALES_AT:
            found.append(engine.loss_scale())
    return skipped, found


@pytest.mark.parametrize(("hysteresis", "consecutive"), RECORDED)
@pytest.mark.idle_ranks("the scale depends on verdicts alone")
def test_the_loss_scale_is_deepspeeds_over_5000_steps(hysteresis, consecutive):
    """Skipped steps move neither the schedule nor the weights, whichever rank had the overflow."""
    ranks = 2 if (hysteresis, consecutive) == (2, False) else 1
    told = world.run(ranks, five_thousand_steps, hysteresis=hysteresis, consecutive=consecutive)
    assert told == [list(RECORDED[hysteresis, consecutive])] * ranks


def test_the_formula_of_the_loss_scale_is_deepspeeds():
    for (hysteresis, consecutive), (count, recorded) in RECORDED.items():
        verdicts, after = zip(*scales(hysteresis, consecutive, 100), strict=True)
        assert (sum(verdicts), [after[step] for step in SCALES_AT]) == (count, recorded)
