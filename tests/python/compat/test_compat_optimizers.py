"""Optimizers by DeepSpeed's names, the caller's param groups, and the parts that ``state_dict()`` gives."""

import copy
import io

import models
import pytest
import torch
import world
from errors import message_of
from zeroshard.compat import fragments, ops
from zeroshard.compat import optimizer as optimizers
from zeroshard.compat.deepspeed import initialize

WIDTH = 40  # so that every rank has a part of every block
KINDS = {
    "DeepSpeedCPUAdam": [{}, {"adamw_mode": False, "weight_decay": 0.1}, {"bias_correction": False, "eps": 1e-3}],
    "FusedAdam": [{"weight_decay": 0.1, "betas": (0.8, 0.9)}, {"adam_w_mode": False}],
    "DeepSpeedCPUAdagrad": [{"weight_decay": 0.1}],
    "DeepSpeedCPULion": [{"weight_decay": 0.1}],
    "FusedLion": [{"betas": (0.8, 0.9)}],
}
CASES = [(name, settings) for name, cases in KINDS.items() for settings in cases]


def loss_of_part(model, step, rank=0, ranks=1):
    return models.part_loss(model, step, 0, rank, ranks, WIDTH)


def train_on_parts(engine, steps, first=0):
    for step in range(first, first + steps):
        engine.backward(loss_of_part(engine, step, world.rank(), world.size()))
        engine.step()


def weights(model, engine):
    state = engine._zero3_consolidated_16bit_state_dict()
    return torch.cat([value.reshape(-1) for value in state.values()]) if state is not None else None


def in_core_and_alone():
    """Of each case: whether the core ran it, and whether it gave what the same optimizer gives alone."""
    found = []
    for name, settings in CASES:
        model, reference = models.stack(width=WIDTH), models.stack(width=WIDTH)
        own = getattr(ops, name)(model.parameters(), lr=1e-2, **settings)
        group = own.param_groups[0]
        engine, optimizer, *_ = initialize(model=model, optimizer=own, config=models.configuration(2))
        theirs = getattr(ops, name)(reference.parameters(), lr=1e-2, **settings)
        for step in range(3):
            group["lr"] = theirs.param_groups[0]["lr"] = 1e-2 / (step + 1)  # read live, from the caller's own dict
            train_on_parts(engine, 1, step)
            for rank in range(world.size()):
                (loss_of_part(reference, step, rank, world.size()) / world.size()).backward()
            theirs.step()
            theirs.zero_grad()
        whole = torch.cat([p.detach().reshape(-1) for p in reference.parameters()])
        mine = weights(model, engine)
        same = mine is None or torch.allclose(mine, whole, rtol=1e-4, atol=1e-5)
        found.append([name, engine._run.external is None, optimizer.param_groups[0] is group, same])
        engine.destroy()
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_optimizers_run_in_the_core_and_alone_alike(ranks):
    for found in world.run(ranks, in_core_and_alone):
        assert found == [[name, True, True, True] for name, _ in CASES]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "settings"), [case for case in CASES if case[0].startswith("DeepSpeedCPU")])
def test_alone_states_of_16_bit_parameters_are_fp32(name, settings, dtype):
    """As in DeepSpeed 0.19.8: ``fp32_optimizer_states`` is true. The update is that of fp32, rounded once."""
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.randn(300).to(dtype))
    own = getattr(ops, name)([param], lr=1e-3, **settings)
    whole = torch.nn.Parameter(param.detach().float())
    theirs = getattr(ops, name)([whole], lr=1e-3, **settings)
    for _ in range(5):
        param.grad = torch.randn(300).to(dtype) * 1e-2
        whole.grad = param.grad.float()
        own.step()
        theirs.step()
        assert torch.equal(param, whole.to(dtype))
        whole.data = param.detach().float()  # 16 bits are what is left between steps
    states = [value for value in own.state[param].values() if isinstance(value, torch.Tensor)]
    assert states and all(value.dtype == torch.float32 for value in states)
    assert own.param_groups[0]["params"] == [param] and list(own.state) == [param]
    again = getattr(ops, name)([param], lr=1e-3, **settings)
    again.load_state_dict(own.state_dict())
    again.step(lambda: None)


def test_alone_states_are_16_bit_where_they_shall_be():
    param = torch.nn.Parameter(torch.zeros(8, dtype=torch.bfloat16))
    own = ops.DeepSpeedCPUAdam([param], fp32_optimizer_states=False)
    param.grad = torch.ones_like(param)
    own.step()
    assert own.state[param]["exp_avg"].dtype == torch.bfloat16


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_alone_is_torchs(decoupled):
    a, b = models.stack(width=WIDTH), models.stack(width=WIDTH)
    ours = ops.DeepSpeedCPUAdam(a.parameters(), lr=0.1, weight_decay=0.1, adamw_mode=decoupled)
    theirs = (torch.optim.AdamW if decoupled else torch.optim.Adam)(b.parameters(), lr=0.1, weight_decay=0.1)
    for step in range(3):
        for model, optimizer in ((a, ours), (b, theirs)):
            loss_of_part(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_groups_of_another_optimizer_stay_the_same_dicts():
    """Accelerate makes the CPU optimizer of a torch one, whose groups the scheduler changes."""
    own = torch.optim.AdamW(models.stack(width=WIDTH).parameters(), lr=0.1, betas=(0.8, 0.9))
    scheduler = torch.optim.lr_scheduler.StepLR(own, 1, 0.5)
    made = ops.DeepSpeedCPUAdam(own.param_groups, lr=0.1, weight_decay=0.01, adamw_mode=True)
    own.step()
    scheduler.step()
    assert made.param_groups[0] is own.param_groups[0]
    assert made.param_groups[0]["lr"] == 0.05 and made.param_groups[0]["betas"] == (0.8, 0.9)
    grouped = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": 1.0, "bias_correction": False}]
    assert ops.FusedAdam(grouped).param_groups[0] is grouped[0] and grouped[0]["bias_correction"] is False


def test_wrong_settings_are_refused():
    params = [torch.nn.Parameter(torch.ones(1))]
    assert "lr" in message_of(lambda: ops.FusedLion(params, lr=-1))
    assert "betas" in message_of(lambda: ops.DeepSpeedCPULion(params, betas=(1.0, 0.9)))
    assert "amsgrad" in message_of(lambda: ops.DeepSpeedCPUAdagrad(params, amsgrad=True))
    with pytest.raises(RuntimeError, match="AMSGrad"):
        ops.FusedAdam(params, amsgrad=True)


class Renamed(torch.optim.AdamW):
    """As users subclass: other defaults, the same update."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, lr=lr, weight_decay=0.2)


class Halved(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                param -= 0.5 * group["lr"] * param.grad


def subclasses():
    found = {}
    for kind in (Renamed, Halved, torch.optim.RMSprop):
        model, reference = models.stack(width=WIDTH), models.stack(width=WIDTH)
        config = models.configuration(1, zero_allow_untested_optimizer=True)
        engine, *_ = initialize(model=model, optimizer=kind(model.parameters(), lr=1e-2), config=config)
        train_on_parts(engine, 2)
        theirs = kind(reference.parameters(), lr=1e-2)
        for step in range(2):
            for rank in range(world.size()):
                (loss_of_part(reference, step, rank, world.size()) / world.size()).backward()
            theirs.step()
            theirs.zero_grad()
        whole, mine = torch.cat([p.detach().reshape(-1) for p in reference.parameters()]), weights(model, engine)
        same = mine is None or torch.allclose(mine, whole, rtol=1e-4, atol=1e-5)
        found[kind.__name__] = [engine._run.external is None, same]
    return found


def test_subclasses_run_in_the_core_unless_they_step_themselves():
    ranks = world.run_ranks(2, subclasses)
    assert [rank.error for rank in ranks] == [None, None], ranks[0].log
    for rank in ranks:
        assert rank.value == {"Renamed": [True, True], "Halved": [False, True], "RMSprop": [False, True]}
    warned = [rank.log.count("not known to be elementwise") for rank in ranks]
    assert warned == [1, 0] and "Halved is not known" in ranks[0].log


def by_callables():
    model = models.stack(width=WIDTH)
    groups = [{"params": list(model.blocks.parameters()), "lr": 0.5}, {"params": list(model.head.parameters())}]
    engine, optimizer, _, scheduler = initialize(
        model=model,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.25),
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        model_parameters=groups,
        config=models.configuration(3),
    )
    train_on_parts(engine, 2)
    return engine.get_lr(), scheduler.get_last_lr(), engine.lr_scheduler is scheduler, len(optimizer.param_groups)


def test_optimizer_and_scheduler_may_be_callables():
    assert world.run(2, by_callables) == [[[0.125, 0.0625], [0.125, 0.0625], True, 2]] * 2


def parts(name, stage):
    """Whether a run whose optimizer's part was saved and loaded ends as one that went on."""
    config = models.configuration(stage, "bf16" if name == "FusedAdam" else "fp32")

    def make():
        model = models.stack(width=WIDTH)
        kind = getattr(ops, name, None) or getattr(torch.optim, name)
        own = kind(model.parameters(), lr=1e-2)
        return model, initialize(model=model, optimizer=own, config=config)[0]

    def dtype_loss(engine, step):
        x, y = (
            models.share(each, world.rank(), world.size()) for each in models.vectors(step, 0, 2 * world.size(), WIDTH)
        )
        return torch.nn.functional.mse_loss(engine(x.to(next(engine.parameters()).dtype)).float(), y)

    model, engine = make()
    for step in range(2):
        engine.backward(dtype_loss(engine, step))
        engine.step()
    part = engine.optimizer.state_dict()
    file = io.BytesIO()
    torch.save(part, file)
    file.seek(0)
    plain = torch.load(file, weights_only=True)  # nothing but tensors, numbers and text
    moved = copy.deepcopy(plain)
    moments = [each for name, state in plain["state"].items() for each in state if each not in ("begin", "numel")]
    other_model, other = make()
    other.optimizer.param_groups[0]["lr"] = 5.0
    own_dict = other.optimizer.param_groups[0]
    other.optimizer.load_state_dict(moved)
    again = other.optimizer.state_dict()
    same = again["state"].keys() == plain["state"].keys() and all(
        torch.equal(torch.as_tensor(plain["state"][n][k]), torch.as_tensor(again["state"][n][k]))
        for n in plain["state"]
        for k in plain["state"][n]
    )
    same = same and again["updates"] == plain["updates"] and own_dict is other.optimizer.param_groups[0]
    engine.backward(dtype_loss(engine, 7))  # an own copy: the next step does not change it
    engine.step()
    kept = all(
        torch.equal(torch.as_tensor(part["state"][n][k]), torch.as_tensor(plain["state"][n][k]))
        for n in plain["state"]
        for k in plain["state"][n]
    )
    numel = sum(state["numel"] for state in plain["state"].values())
    return same, kept, sorted(set(moments)), own_dict["lr"], numel, plain["param_groups"][0]["params"][0]


@pytest.mark.parametrize(
    "name,kinds",
    [
        ("FusedAdam", ["exp_avg", "exp_avg_sq"]),
        ("DeepSpeedCPULion", ["exp_avg"]),
        ("NAdam", ["exp_avg", "exp_avg_sq", "mu_product", "step"]),
    ],
)
@pytest.mark.parametrize("ranks,stage", [(1, 0), (2, 3)])
def test_parts_of_states_are_saved_and_loaded(ranks, stage, name, kinds):
    answers = world.run(ranks, parts, name=name, stage=stage)
    for same, kept, found, lr, _, first in answers:
        assert same and kept and found == kinds and lr == 1e-2 and first == "blocks.0.norm.weight"
    assert sum(answer[4] for answer in answers) == sum(p.numel() for p in models.stack(width=WIDTH).parameters())


def wrong_parts():
    model = models.stack(width=WIDTH)
    engine = initialize(model=model, config=models.configuration(1, optimizer=models.adamw()))[0]
    optimizer = engine.optimizer
    part = optimizer.state_dict()
    others = {
        "torch": torch.optim.AdamW(models.stack(width=WIDTH).parameters()).state_dict(),
        "none": None,
        "rank": {**part, "rank": part["rank"] + 1},
        "ranks": {**part, "world_size": 9},
        "params": {**part, "state": {"x": {}}},
        "groups": {**part, "param_groups": part["param_groups"] * 2},
        "cut": {**part, "state": {n: {**s, "begin": s["begin"] + 1} for n, s in part["state"].items()}},
    }
    said = {name: message_of(lambda state=state: optimizer.load_state_dict(state)) for name, state in others.items()}
    engine.destroy()
    said["destroyed"] = message_of(optimizer.state_dict)
    return said


def test_parts_of_others_are_refused():
    for said in world.run(2, wrong_parts):
        ended = said.pop("destroyed")
        assert all("engine.load_checkpoint loads states" in each for each in said.values()), said
        assert "engine has ended" in ended


class Mine(torch.optim.AdamW):
    """A class of a script's own, with a method and an attribute."""

    def __init__(self, params):
        super().__init__(params, lr=1e-2)
        self.note = "mine"

    def noted(self):
        return self.note


def classes(stage, dtype):
    """By what brings the optimizer: the names of classes that ``initialize`` returns an object of."""
    config = models.configuration(stage, dtype)
    kinds = (
        ops.FusedAdam,
        torch.optim.Adam,
        torch.optim.SGD,
        ops.FusedLion,
        torch.optim.Adagrad,
        torch.optim.NAdam,
        Mine,
    )
    kinds += (
        optimizers.DeepSpeedOptimizer,
        optimizers.DeepSpeedZeroOptimizer,
        optimizers.DeepSpeedZeroOptimizer_Stage3,
    )
    found = {}
    for name in ("AdamW", "Adam", "SGD", "Lion", "Adagrad"):
        _, given, *_ = initialize(
            model=models.stack(width=WIDTH), config=config | {"optimizer": {"type": name, "params": {"lr": 1e-2}}}
        )
        found[name] = [kind.__name__ for kind in kinds if isinstance(given, kind)]
    for make in (torch.optim.NAdam, Mine):
        model = models.stack(width=WIDTH)
        own = make(model.parameters())
        engine, given, *_ = initialize(model=model, optimizer=own, config=config)
        found[make.__name__] = [kind.__name__ for kind in kinds if isinstance(given, kind)]
        assert given is engine.optimizer and given.optimizer is own
        if dtype == "fp32":
            before = fragments.safe_get_full_fp32_param(model.head.weight).clone()
            engine.backward(loss_of_part(engine, 0, world.rank(), world.size()))
            given.step()
            assert not torch.equal(fragments.safe_get_full_fp32_param(model.head.weight), before)
    if stage == 0 and dtype == "fp32":
        assert (given.note, given.noted(), type(given).__name__) == ("mine", "mine", "Mine")
        with pytest.raises(AttributeError, match="Mine of an engine has no attribute '_nothing'"):
            _ = given._nothing
    return found


BASE = "DeepSpeedOptimizer"
NAMED = {
    "AdamW": ["FusedAdam", "Adam"],
    "Adam": ["FusedAdam", "Adam"],
    "SGD": ["SGD"],
    "Lion": ["FusedLion"],
    "Adagrad": ["Adagrad"],
    "NAdam": ["NAdam"],
    "Mine": ["Adam", "Mine"],
}


@pytest.mark.parametrize(
    "ranks,stage,dtype", [(1, 0, "fp32"), (2, 0, "fp32"), (1, 0, "bf16"), (2, 1, "fp32"), (2, 3, "fp32")]
)
def test_the_class_of_the_optimizer_is_deepspeeds(ranks, stage, dtype):
    zero = {1: ["DeepSpeedZeroOptimizer"], 3: ["DeepSpeedZeroOptimizer_Stage3"]}.get(stage, [])
    is_named = stage == 0 and dtype == "fp32"
    expected = {name: [*(kinds if is_named else []), BASE, *zero] for name, kinds in NAMED.items()}
    assert world.run(ranks, classes, stage=stage, dtype=dtype) == [expected] * ranks
