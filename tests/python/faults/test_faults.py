"""Mistakes, ranks that diverge, NaN, ranks that die or stop: an error that says what is wrong, soon, on every rank."""

import itertools
import os
import random
import re
import signal
import tempfile
import time

import models
import pytest
import simulated
import torch
import world
import zeroshard
from leftovers import END_S, nothing_left  # noqa: F401 - a fixture that is always used
from saved import manifest_of
from torch import nn

pytestmark = pytest.mark.fault
TRANSPORTS = ["shm", "process_group"]


def configuration(stage=3, transport="shm", timeout_s=8, **blocks):
    own = {"transport": transport, "timeout_s": timeout_s, "stall_timeout_s": 3}
    return models.configuration(stage, optimizer=models.adamw(1e-3), zeroshard=own, **blocks)


def make_model():
    """On devices one that does not wait for them: transformers does, in each forward pass of a Llama."""
    return models.tiny_llama() if world.device().type == "cpu" else models.stack()


def loss_of_share(engine, step):
    """Of this rank's part of a batch."""
    if isinstance(engine.module, models.Stack):
        x, y = (models.share(each, world.rank(), world.size()) for each in models.vectors(step, 0, 2 * world.size()))
        return nn.functional.mse_loss(engine(x), y)
    return models.language_loss(
        engine, models.share(models.tokens(step, 0, 2 * world.size()), world.rank(), world.size())
    )


def train_on_batches(engine, steps, before_step=lambda step: None):
    for step in range(steps):
        before_step(step)
        engine.backward(loss_of_share(engine, step))
        engine.step()


# -- configuration -----------------------------------------------------------------------------------------------------

WRONG = [
    ({"zero_optimization": {"stagee": 3}}, ["zero_optimization.stagee", "stage"]),
    ({"gradient_cliping": 1.0, "gradient_clipping": -1}, ["gradient_clipping", "-1"]),
    ({"zero_optimization": {"stage": 4}}, ["zero_optimization.stage", "4"]),
    ({"zero_optimization": {"stage": "three"}}, ["zero_optimization.stage", "three"]),
    ({"optimizer": {"type": "AdamWW"}}, ["optimizer.type", "AdamW"]),
    ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, ["fp16", "bf16"]),
    ({"train_batch_size": 7, "gradient_accumulation_steps": 2}, ["7", "train_batch_size"]),
]


def initialize_wrongly(blocks):
    try:
        zeroshard.initialize(model=models.stack(), config={"train_micro_batch_size_per_gpu": 2, **blocks})
    except zeroshard.ConfigError as error:
        return str(error)
    return None


def all_wrong_configurations():
    return [initialize_wrongly(blocks) for blocks, _ in WRONG]


@pytest.mark.row("F3")
def test_wrong_configurations_are_refused_on_every_rank():
    for messages in world.run(2, all_wrong_configurations):
        for message, (blocks, expected) in zip(messages, WRONG, strict=True):
            assert message is not None, blocks
            assert all(part in message for part in expected), message


# -- ranks that differ -------------------------------------------------------------------------------------------------


def initialize_differently(what, transport):
    config = configuration(transport=transport)
    last = world.rank() == world.size() - 1
    model = models.stack()
    if last and what == "config":
        config["gradient_clipping"] = 0.25
    if last and what == "stage":
        config["zero_optimization"]["stage"] = 2
    if last and what == "shape":
        model.head = nn.Linear(10, 6)
    if last and what == "count":
        model.more = nn.Linear(2, 2)
    if last and what == "frozen":
        model.head.bias.requires_grad_(False)
    if last and what == "order":
        model._modules = dict(reversed(model._modules.items()))
    if last and what == "buffer":
        model.head.register_buffer("mask", torch.ones(5))
    if last and what == "torch":
        torch.__version__ = type(torch.__version__)("2.0.9")
    if last and what == "zeroshard":
        zeroshard._C.__version__ = "9.8.7"
    if what == "package":
        models.__version__ = f"1.{world.rank() // 2}"
    zeroshard.initialize(model=model, config=config)


@pytest.mark.row("M1")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "what,expected",
    [
        ("config", ["gradient_clipping", "0.25", "rank 2"]),
        ("stage", ["zero_optimization.stage", "rank 2"]),
        ("shape", ["head.weight", "[5, 10]", "[6, 10]", "rank 2"]),
        ("count", ["more.weight", "rank 2"]),
        ("frozen", ["head.bias", "frozen", "rank 2"]),
        ("order", ["blocks.0.norm.weight", "head.weight", "rank 2"]),
        ("buffer", ["buffers of the model", "head.mask", "[5]", "rank 2"]),
        ("torch", ["versions", f"'torch' is {torch.__version__}", "'torch' is 2.0.9", "rank 2"]),
        ("zeroshard", ["versions", f"'zeroshard' is {zeroshard.__version__}", "'zeroshard' is 9.8.7", "rank 2"]),
        ("package", ["versions", "'models' is 1.0", "'models' is 1.1", "rank 2"]),
    ],
)
def test_ranks_that_start_differently(what, expected, transport):
    ranks = world.run_ranks(3, initialize_differently, what=what, transport=transport, timeout_s=30)
    for rank in ranks:
        assert rank.exit_code == 1 and all(part in rank.error for part in expected), rank.error
    assert max(rank.seconds for rank in ranks) < END_S


class Random(models.Stack):
    """Its parameters, and what it does with them, depend on the seed."""

    def __init__(self):
        super().__init__()
        self.register_buffer("signs", torch.randint(2, (10,)) * 2.0 - 1)
        self.register_buffer("mixing", torch.randn(7, 10).t(), persistent=False)  # not contiguous
        self.register_buffer("kept", torch.rand(10) < 0.7)
        self.register_buffer("broadcast", torch.ones(1).expand(10))  # the same everywhere, and not to be written

    def forward(self, x):
        return super().forward((x * self.signs * self.kept) @ self.mixing @ self.mixing.t() * self.broadcast)


def values_of(model):
    """name -> bytes, as text, of parameters and buffers."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor.detach().contiguous().view(-1).view(torch.uint8).tolist() for name, tensor in tensors.items()}


def initialize_seeded(transport):
    results = []
    for stage in range(4):
        torch.manual_seed(100 * stage + world.rank())
        model = Random()
        own = values_of(model)
        engine, *_ = zeroshard.initialize(model=model, config=configuration(stage, transport))
        with zeroshard.gathered(list(model.parameters())):
            taken = values_of(model)
        draw = torch.rand(1).item()  # of this rank's own stream, as for dropout
        for step in range(2):
            x, y = models.vectors(step, world.rank(), 2)
            engine.backward(nn.functional.mse_loss(engine(x), y))
            engine.step()
        results.append([own, taken, draw, engine.parameter_digest()])
    return results


@pytest.mark.row("M1")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_with_other_seeds_take_rank_0s_values(transport):
    for ranks in zip(*world.run(3, initialize_seeded, transport=transport), strict=True):
        first = ranks[0][0]
        for rank, (own, taken, _, digest) in enumerate(ranks):
            assert taken == first and digest == ranks[0][3]
            differing = {name for name in own if own[name] != first[name]}
            assert rank == 0 or differing >= {"head.weight", "signs", "mixing", "kept"}, differing
        assert len({draw for _, _, draw, _ in ranks}) == 3


def other_transport():
    config = configuration(transport="shm" if world.rank() == 0 else "process_group")
    zeroshard.initialize(model=models.stack(), config=config)


@pytest.mark.row("M1")
def test_ranks_with_other_transports():
    ranks = world.run_ranks(2, other_transport, timeout_s=40)
    for rank in ranks:
        assert rank.exit_code == 1 and "transport" in rank.error, rank.error


def skip_backward(stage, transport):
    config = configuration(stage, transport, timeout_s=4)
    engine, *_ = zeroshard.initialize(model=make_model(), config=config)
    for step in range(10):
        loss = loss_of_share(engine, step)
        if step != 4 or world.rank() != 1:
            engine.backward(loss)
        engine.step()


class Small(models.Residual):
    """Takes as much memory of a rank as the head does: Gloo ends a process that is sent more than it waits for."""

    def __init__(self, width):
        super().__init__(width)
        self.up, self.down = nn.Linear(width, 30), nn.Linear(30, width)


def evaluate_once_more(stage, transport):
    config = configuration(stage, transport, timeout_s=4)
    model = make_model() if world.device().type == "cpu" else models.stack(block=Small)
    engine, *_ = zeroshard.initialize(model=model, config=config)
    with torch.no_grad():
        for _ in range(4 if world.rank() == 1 else 3):
            loss_of_share(engine, 0)
    train_on_batches(engine, 1)


def skip_a_batch(stage, transport):
    """Rank 1 waits for the others at the end of the step, and they for it in a gather: over two communicators."""
    engine, *_ = zeroshard.initialize(model=make_model(), config=configuration(stage, transport))
    for step in range(4):
        if step != 2 or world.rank() != 1:
            engine.backward(loss_of_share(engine, step))
        engine.step()


def save_alone(stage, transport):
    """As scripts do that save plain models on one rank."""
    engine, *_ = zeroshard.initialize(model=make_model(), config=configuration(stage, transport))
    train_on_batches(engine, 1)
    with tempfile.TemporaryDirectory() as folder:
        if world.rank() == 1:
            engine.save_checkpoint(folder)
        train_on_batches(engine, 1)


def call_another_unit(stage, transport):
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(48, 48), nn.Linear(48, 48)])
    engine, *_ = zeroshard.initialize(model=model, config=configuration(stage, transport))
    model[world.rank() % 2](torch.ones(2, 48, device=world.device())).sum().backward()
    engine.step()


@pytest.mark.row("U1")
@pytest.mark.parametrize(
    "case,stage",
    [
        (skip_backward, 0),
        (skip_backward, 2),
        (skip_backward, 3),
        (skip_a_batch, 3),
        (save_alone, 0),
        (save_alone, 3),
        (evaluate_once_more, 3),
        (call_another_unit, 3),
    ],
)
def test_ranks_that_call_differently(case, stage):
    """Every rank gets an error that says what each side was doing."""
    ranks = world.run_ranks(3, case, stage=stage, transport="shm", timeout_s=40)
    for rank in ranks:
        assert rank.exit_code == 1 and "ranks disagree: rank " in rank.error, rank
        assert "rank 1 called" in rank.error, rank.error
    assert max(rank.seconds for rank in ranks) < END_S


# Gloo matches messages by their order alone: what ranks were doing shows at the next small all_reduce, or not before
# the time-out, or as a size that Gloo answers with std::terminate.
@pytest.mark.row("U1")
@pytest.mark.parametrize("case", [skip_backward, skip_a_batch, evaluate_once_more])
def test_ranks_that_call_differently_over_a_process_group(case):
    ranks = world.run_ranks(3, case, stage=3, transport="process_group", timeout_s=40)
    assert all(rank.exit_code in (1, -signal.SIGABRT) for rank in ranks), ranks
    assert max(rank.seconds for rank in ranks) < END_S


@pytest.mark.row("U1")
@pytest.mark.parametrize("case", [skip_backward, skip_a_batch, save_alone])
def test_errors_over_a_process_group_name_both_sides(case):
    ranks = world.run_ranks(3, case, stage=3, transport="process_group", timeout_s=40)
    for rank in ranks:
        assert rank.exit_code == 1 and "rank 1 called" in rank.error, rank.error


# -- gradients that are not finite -------------------------------------------------------------------------------------


def nan_on_one_rank(dtype, stage, transport, bad_steps, max_skipped):
    """NaN reaches the gradient of one block's bias on the last rank alone."""
    config = configuration(stage, transport, dtype=dtype)
    config["zeroshard"]["max_skipped_steps"] = max_skipped
    engine, *_ = zeroshard.initialize(model=models.stack(), config=config)
    history = []
    for step in range(8):
        x, y = models.vectors(step, 0, 2)
        x = x.to({"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[dtype])
        loss = nn.functional.mse_loss(engine(x).float(), y)
        if step in bad_steps and world.rank() == world.size() - 1:
            loss = loss * float("nan")
        before = engine.parameter_digest()
        engine.backward(loss)
        engine.step()
        history.append([engine.was_step_applied(), engine.parameter_digest() != before])
    return [history, engine.skipped_steps, engine.parameter_digest()]


NOT_FINITE = {"nan": float("nan"), "inf": float("inf")}
# Where -> the first parameter whose gradient is then not finite. `blocks.2` is frozen: what comes through it goes on.
# The last element of the first parameter is in the shard of rank 0, of the second in that of rank 1, of the third 2.
PLACES = {
    "blocks.0.norm.weight": "blocks.0.norm.weight",
    "blocks.1.up.weight": "blocks.1.up.weight",
    "head.bias": "head.bias",
    "blocks.2": "blocks.0.norm.weight",
}
FROZEN = ("blocks.1.norm.bias", "blocks.2.")
SCALE_POWER = 10


def plant(model, place, value):
    """From now on, one element of the gradient of parameter or module `place` is `value`."""

    def spoil(grad):
        grad = grad.clone()
        grad.view(-1)[-1] = value
        return grad

    def after(module, args, output):
        output.register_hook(spoil)

    params = dict(model.named_parameters())
    if place in params:
        return params[place].register_hook(spoil)
    return model.get_submodule(place).register_forward_hook(after)


def plant_on_one_rank(cases, dtype):
    """Of four steps, the second and the third have a gradient that is not finite, of one rank each."""
    results = []
    for stage, transport, place, kind, folder in cases:
        rates = {"warmup_min_lr": 0.01, "warmup_max_lr": 0.02, "warmup_num_steps": 10}  # that also bf16 changes
        blocks = {"scheduler": {"type": "WarmupLR", "params": rates}}
        if dtype == "fp16":
            blocks["fp16"] = {"enabled": True, "initial_scale_power": SCALE_POWER, "hysteresis": 1}
        if dtype == "bf16":
            blocks["bf16"] = {"enabled": True}
        model = models.stack(width=40, layers=4)
        model.head = nn.Linear(40, 74)
        for name, param in model.named_parameters():
            param.requires_grad_(not name.startswith(FROZEN))
        engine, *_ = zeroshard.initialize(model=model, config=configuration(stage, transport, **blocks))
        history = [state_of(engine)]
        for step in range(4):
            x, _ = models.vectors(step, world.rank(), 2, width=40)
            x = x.to({"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[dtype])
            bad = step in (1, 2) and world.rank() == (stage + step) % world.size()
            hook = plant(model, place, NOT_FINITE[kind]) if bad else None
            engine.backward(engine(x).float().square().mean())
            if hook is not None:
                hook.remove()
            engine.step()
            history.append(state_of(engine))
            if step in (0, 2):
                engine.save_checkpoint(folder, tag=f"after{step}")
        engine.wait_for_checkpoint()
        results.append(history)
    return results


def state_of(engine):
    return {
        "parameters": engine.parameter_digest(),
        "rate": engine.get_lr(),
        "schedule": engine.lr_scheduler.state_dict(),
        "scale": engine.loss_scale,
        "applied": engine.was_step_applied(),
        "steps": [engine.global_steps, engine.skipped_steps],
    }


def check_skips(history, dtype):
    start, first, second, third, last = history
    assert [after["applied"] for after in history] == [False, True, False, False, True]
    assert [after["steps"] for after in history] == [[0, 0], [1, 0], [2, 1], [3, 2], [4, 2]]
    for key in ("parameters", "rate", "schedule"):
        assert first[key] == second[key] == third[key], key
        assert third[key] != last[key] and (start[key] != first[key] or key == "rate"), key
    scale = 2**SCALE_POWER if dtype == "fp16" else 1
    factors = [1, 1, 1 / 2, 1 / 4, 1 / 4] if dtype == "fp16" else [1] * 5
    assert [after["scale"] for after in history] == [scale * factor for factor in factors]


def expected_log(place, dtype):
    """What rank 0 says of the two steps."""
    where = f"step skipped on all ranks: the gradient is not finite in '{PLACES[place]}'"
    scales = [2 ** (SCALE_POWER - skips) for skips in range(3)]
    if dtype != "fp16":
        return [where, where]
    return [f"{where}, loss scale {before} -> {after}" for before, after in zip(scales, scales[1:], strict=False)]


def hashes_of(folder, tag):
    """Weights, moments, step counts: their hashes, as every rank saved them."""
    return manifest_of(folder, tag)["tensors"]


@pytest.mark.row("N1")
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_nan_on_one_rank_skips_the_step_everywhere(tmp_path, release, dtype):
    crossed = list(itertools.product(range(4), PLACES, NOT_FINITE))
    if not release:  # every stage; each place, and each kind, with every stage over the dtypes
        shift = ["fp32", "bf16", "fp16"].index(dtype)
        crossed = [(s, list(PLACES)[(s + shift) % 4], list(NOT_FINITE)[(s // 2 + shift) % 2]) for s in range(4)]
    cases = [
        (stage, TRANSPORTS[index % 2], place, kind, str(tmp_path / str(index)))
        for index, (stage, place, kind) in enumerate(crossed)
    ]
    ranks = world.run_ranks(3, plant_on_one_rank, cases=cases, dtype=dtype, timeout_s=300)
    assert all(rank.value is not None and rank.value == ranks[0].value for rank in ranks), [r.error for r in ranks]
    for case, history in zip(cases, ranks[0].value, strict=True):
        print(dtype, *case)
        check_skips(history, dtype)
        before, after = hashes_of(case[-1], "after0"), hashes_of(case[-1], "after2")
        assert {tensor["kind"] for tensor in before} == {"weight", "exp_avg", "exp_avg_sq"}
        last_owner = {tensor["name"]: tensor["slices"][-1][0] for tensor in before if tensor["kind"] == "exp_avg"}
        assert [last_owner[name] for name in list(PLACES)[:3]] == [0, 1, 2]
        assert before == after
    said = [line.partition("step skipped")[1:] for line in ranks[0].log.splitlines() if "skipped on all" in line]
    assert ["".join(parts) for parts in said] == [line for case in cases for line in expected_log(case[2], dtype)]


@pytest.mark.row("N2")
def test_nan_that_stays_ends_the_run():
    arguments = {"dtype": "bf16", "stage": 3, "transport": "shm"}
    ranks = world.run_ranks(2, nan_on_one_rank, bad_steps=list(range(8)), max_skipped=4, **arguments)
    for rank in ranks:
        assert rank.exit_code == 1 and "4 steps in a row" in rank.error and "max_skipped_steps" in rank.error
        assert "'blocks." in rank.error or "'head." in rank.error, rank.error


# -- memory that changes by itself -------------------------------------------------------------------------------------


def flip_a_bit(stage, frozen, victim):
    config = configuration(stage)
    config["zeroshard"]["check_replicas_every"] = 2
    model = models.stack()
    name, param = list(model.named_parameters())[3]
    param.requires_grad_(not frozen)
    engine, *_ = zeroshard.initialize(model=model, config=config)
    for step in range(6):
        x, y = models.vectors(step, world.rank(), 2)
        loss = nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        if step == 3 and world.rank() == victim:
            with torch.no_grad():
                param.view(-1)[:1].view(torch.int32).bitwise_xor_(1)
        try:
            engine.step()
        except zeroshard.StateError as error:
            return [step, name, str(error)]
    return None


@pytest.mark.row("N3")
@pytest.mark.parametrize(("stage", "frozen", "ranks"), [(0, False, 3), (1, False, 3), (2, False, 2), (2, True, 4)])
def test_a_flipped_bit_is_found_and_its_rank_named(stage, frozen, ranks):
    for rank in world.run_ranks(ranks, flip_a_bit, stage=stage, frozen=frozen, victim=1):
        assert rank.value is not None, rank.error
        step, name, message = rank.value
        assert step == 3 and f"'{name}'" in message, message
        assert "rank 1 and" in message or (ranks == 2 and "and rank 1" in message), message


# -- ranks that die or stop --------------------------------------------------------------------------------------------


def train_forever(stage, transport, default_timeouts):
    config = configuration(stage, transport)
    if default_timeouts:
        config["zeroshard"] = {"transport": transport}
    engine, *_ = zeroshard.initialize(model=make_model(), config=config)
    print("training", flush=True)
    train_on_batches(engine, 10**9)


def disturb(signal_number, stage, transport, seed, victim=None, default_timeouts=False, on=None, ranks=3):
    """Sends a signal to one rank at a random moment; every other rank ends with an error that names it."""
    generator = random.Random(seed)
    victim = generator.randrange(ranks) if victim is None else victim
    options = {"stage": stage, "transport": transport, "default_timeouts": default_timeouts}
    trained = world.World(ranks, train_forever, on=on, **options)
    try:
        trained.wait_for("training")
        time.sleep(generator.uniform(0, 0.3))
        os.kill(trained.pids[victim], signal_number)
        start = time.monotonic()
        others = [rank for rank in range(ranks) if rank != victim]
        trained.join(END_S, among=others)
        took = time.monotonic() - start
        trained.processes[victim].kill()  # one that was stopped
        ended = trained.results()
    finally:
        trained.kill()
    for rank in others:
        assert ended[rank].exit_code not in (0, None), ended[rank]
        assert f"rank {victim}" in (ended[rank].error or ""), (victim, seed, ended[rank].error, ended[rank].log[-2000:])
    assert not any(os.path.exists(f"/proc/{pid}") for pid in trained.pids)
    return took


@pytest.mark.row("K1", "K5")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_a_rank_that_dies_or_stops(name, transport, release):
    seed = random.SystemRandom().randrange(1000)
    for index in range(50 if release else 1):
        stage = (seed + index) % 4
        took = disturb(getattr(signal, name), stage, transport, seed + index)
        assert took < (END_S if name == "SIGSTOP" else 10), (took, seed + index, stage)


@pytest.mark.row("K1", "K5")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_a_rank_that_dies_or_stops_with_default_timeouts(name, transport):
    seed = random.SystemRandom().randrange(1000)
    took = disturb(getattr(signal, name), 3, transport, seed, default_timeouts=True)
    assert name == "SIGSTOP" or took < 8, "a death was taken for a stop"


@pytest.mark.row("K5")
def test_the_rank_that_hosts_the_store_stops():
    disturb(signal.SIGSTOP, 3, "process_group", random.SystemRandom().randrange(1000), victim=0)


@pytest.mark.row("K5", "K6")
@pytest.mark.matrix
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP", "SIGSEGV", "SIGTERM"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_ranks_that_end_at_every_stage(name, transport, stage):
    for seed in range(3):
        disturb(getattr(signal, name), stage, transport, seed)


def leave_early(transport):
    engine, *_ = zeroshard.initialize(model=make_model(), config=configuration(3, transport))
    train_on_batches(engine, 3)
    if world.rank() == 1:
        os._exit(0)
    train_on_batches(engine, 3)


@pytest.mark.row("K6")
@pytest.mark.parametrize("transport,on", [("shm", None), ("process_group", None), simulated.case("auto", "lazy")])
def test_a_rank_that_leaves_early(transport, on):
    ranks = world.run_ranks(3, leave_early, transport=transport, on=on, timeout_s=30)
    for rank in (ranks[0], ranks[2]):
        assert rank.exit_code == 1 and "rank 1" in rank.error, rank.error


def dies_while_starting():
    if world.rank() == 1:
        zeroshard.init_distributed()
        os.kill(os.getpid(), signal.SIGKILL)
    zeroshard.initialize(model=models.stack(), config=configuration(timeout_s=4))


@pytest.mark.row("K6")
def test_a_rank_that_dies_while_starting():
    ranks = world.run_ranks(2, dies_while_starting, timeout_s=40)
    assert ranks[0].exit_code == 1 and ranks[0].seconds < 2 * END_S, ranks[0]
    assert re.search(r"^CommError: rank 0: rank 1 \(pid \d+\) died ", ranks[0].error), ranks[0].error
