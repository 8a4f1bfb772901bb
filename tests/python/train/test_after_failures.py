"""What goes on after something has failed, or was interrupted: nothing counts twice, nothing is lost without a word."""

import gc
import os
import pathlib
import resource
import signal
import subprocess
import sys
import textwrap

import models
import pytest
import torch
import world
import zeroshard
from built import TESTS
from waiting import wait_for

STAGES = pytest.mark.parametrize("stage", [0, 3])


def initialize(stage, micro_batches=1, model=None, optimizer=None, **blocks):
    config = models.configuration(stage, accumulation=micro_batches, **{"zeroshard": {"max_skipped_steps": 2}} | blocks)
    if optimizer is None:
        config["optimizer"] = models.adamw(0.1)
    return zeroshard.initialize(model=model or models.stack(), optimizer=optimizer, config=config)[0]


def backward(engine, step, scale=1.0):
    x, y = models.vectors(step, engine.rank(), 2)
    engine.backward(scale * torch.nn.functional.mse_loss(engine(x), y))


def take(engine, step):
    backward(engine, step)
    engine.step()
    return engine.get_global_grad_norm()


# -- Ctrl-C that is caught ---------------------------------------------------------------------------------------------


def interrupt_and_go_on(stage, where):
    engine, undisturbed = initialize(stage), initialize(stage)

    def interrupt(*arguments):
        raise KeyboardInterrupt

    def interrupted():
        if where == "within":
            handle = engine.module.blocks[0].up.weight.register_hook(interrupt)
            try:
                backward(engine, 0)
            finally:
                handle.remove()
            return
        # Python runs handlers of signals between two of its instructions: before the call of the core, or behind it.
        core = engine._run.core
        engine._run.core = Interrupting(core, where)
        try:
            backward(engine, 0)
        finally:
            engine._run.core = core

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    norms = [[take(each, step) for step in range(2)] for each in (engine, undisturbed)]
    return norms, [engine.parameter_digest(), undisturbed.parameter_digest()]


class Interrupting:
    def __init__(self, core, where):
        self.__dict__ |= {"core": core, "where": where}

    def __getattr__(self, name):
        return getattr(self.core, name)

    def end_backward(self):
        if self.where == "behind":
            self.core.end_backward()
        raise KeyboardInterrupt


@STAGES
@pytest.mark.parametrize("ranks, where", [(1, "within"), (2, "within"), (1, "before"), (1, "behind")])
def test_an_interrupted_backward_that_is_repeated_counts_once(ranks, stage, where):
    for norms, digests in world.run(ranks, interrupt_and_go_on, stage=stage, where=where):
        assert norms[0] == norms[1] and digests[0] == digests[1]


# -- errors of step() --------------------------------------------------------------------------------------------------


def skip_too_often(stage):
    engine = initialize(stage)
    backward(engine, 0, scale=float("nan"))
    engine.step()
    assert engine.get_global_grad_norm() is None  # of the steps that were applied
    backward(engine, 0, scale=float("nan"))
    with pytest.raises(zeroshard.StateError, match="2 steps in a row were skipped"):
        engine.step()
    return take(engine, 1), engine.was_step_applied()


@STAGES
def test_a_good_step_after_too_many_skipped_ones_is_applied(stage):
    for norm, applied in world.run(2, skip_too_often, stage=stage):
        assert norm > 0 and applied


class Raising:
    """A scheduler of learning rates."""

    times = 0

    def step(self):
        self.times += 1
        if self.times == 1:
            raise ValueError("planted")


def test_a_scheduler_that_raises_leaves_the_counts_right():
    engine = initialize(0, micro_batches=2)
    engine.lr_scheduler = Raising()
    for _ in range(2):
        backward(engine, 0)
        if engine.is_gradient_accumulation_boundary():
            with pytest.raises(ValueError, match="planted"):
                engine.step()
        else:
            engine.step()
    assert (engine.global_steps, engine.micro_steps, engine.global_samples) == (1, 2, 4)
    assert not engine.is_gradient_accumulation_boundary()


# -- what was there before the engine ----------------------------------------------------------------------------------


def test_gradients_from_before_the_engine_are_dropped(capfd):
    norms = []
    for has_gradients in (False, True):
        model = models.stack()
        if has_gradients:
            model(models.vectors(3, 0, 2)[0]).sum().backward()
        norms.append(take(initialize(1, model=model), 0))
    assert norms[0] == norms[1]
    assert capfd.readouterr().err.count("drops the gradient of 'blocks.0.norm.weight'") == 1


def warm(rank, freeze=False):
    """A model and an AdamW with states of training on a rank's own data and number of steps."""
    model = models.stack()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(2 + rank):
        optimizer.zero_grad()
        x, y = models.vectors(step, rank, 2)
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    if freeze:
        model.blocks[0].requires_grad_(False)
    return model, optimizer


def train_with_states(stage, rank):
    model, optimizer = warm(world.rank() if rank is None else rank)
    engine = initialize(stage, model=model, optimizer=optimizer)
    for step in range(3):
        take(engine, step)
    return engine.parameter_digest()


@STAGES
def test_states_of_optimizers_that_differ_among_ranks_are_rank_0s(stage):
    digests = {tuple(world.run(3, train_with_states, stage=stage, rank=rank)) for rank in (None, 0)}
    assert len(digests) == 1 and len(set(*digests)) == 1


def test_a_parameter_with_states_may_be_frozen_before_the_engine():
    model, optimizer = warm(0, freeze=True)
    before = model.blocks[0].up.weight.detach().clone()
    engine = initialize(1, model=model, optimizer=optimizer)
    assert take(engine, 0) > 0
    assert torch.equal(model.blocks[0].up.weight, before)


# -- what an engine that ends still owes -------------------------------------------------------------------------------


def fail_to_save(folder):
    engine = initialize(0)
    take(engine, 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
    engine.save_checkpoint(folder)
    return engine


def test_destroy_raises_the_error_of_a_save_in_the_background(tmp_path):
    code = """
        import sys
        import test_after_failures
        engine = test_after_failures.fail_to_save(sys.argv[1])
        if sys.argv[2] == "destroy":
            try:
                engine.destroy()
            except test_after_failures.zeroshard.IoError as error:
                print("told", flush=True)
        else:
            test_after_failures.initialize(0, model=engine.module)
    """
    for how, exit_code, told in (("destroy", 0, True), ("takeover", 1, False)):
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / how), how],
            env=os.environ | {"PYTHONPATH": f"{os.path.dirname(__file__)}:{TESTS}"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == exit_code and ("told" in result.stdout) == told, result
        assert told or "a checkpoint of the engine before was not saved" in result.stderr


def test_a_signal_after_the_engine_has_ended_does_what_it_did_before(tmp_path):
    caught = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    try:
        engine = initialize(0)
        engine.save_and_stop_on(str(tmp_path))
        second = initialize(0, model=engine.module)
        signal.raise_signal(signal.SIGTERM)
        take(second, 0)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert caught == [signal.SIGTERM]


# -- A collective that failed, over a process group, while peers go on -----------------------------------------------


def free_before_others_come(stage, folder):
    """Rank 0's step is too late for its peers: it ends its engine and uses the memory. Then they come."""
    block = {"transport": "process_group", "timeout_s": 2}
    model = models.stack(width=64)
    engine = initialize(stage, model=model, zeroshard=block)
    x, y = models.vectors(0, engine.rank(), 2, width=64)
    engine.backward(torch.nn.functional.mse_loss(engine(x), y))
    engine.step()

    def step(engine):
        engine.backward(torch.nn.functional.mse_loss(engine(x), y))
        engine.step()

    freed, came = pathlib.Path(folder) / "freed", [pathlib.Path(folder) / f"came{rank}" for rank in (1, 2)]
    if engine.rank() > 0:
        wait_for(freed.exists, freed, seconds=60)
        with pytest.raises((zeroshard.CommError, RuntimeError)):
            step(engine)
        came[engine.rank() - 1].touch()
        return True
    with pytest.raises((zeroshard.CommError, RuntimeError), match="not done after"):
        step(engine)
    engine.destroy()
    del engine, model
    gc.collect()
    tensors = [torch.full((size,), 7.0) for size in [*range(8, 70_000, 97)] * 2]
    freed.touch()
    wait_for(lambda: all(path.exists() for path in came), came, seconds=60)
    return all(bool((tensor == 7).all()) for tensor in tensors)


@pytest.mark.fault
@pytest.mark.row("K5")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_collective_that_failed_writes_to_nothing_that_is_in_use(tmp_path, stage):
    assert world.run(3, free_before_others_come, stage=stage, folder=str(tmp_path)) == [True] * 3


# -- Gradients of inputs alone -----------------------------------------------------------------------------------------


def ask_for_gradients_of_inputs(stage):
    engine, undisturbed = initialize(stage), initialize(stage)
    x, _ = models.vectors(0, engine.rank(), 2)
    x.requires_grad_()
    assert torch.autograd.grad(engine(x).sum(), x)[0].abs().sum() > 0
    for step in range(2):
        assert take(engine, step) == take(undisturbed, step)
    assert engine.parameter_digest() == undisturbed.parameter_digest()


@STAGES
@pytest.mark.parametrize("ranks", [1, 2])
def test_gradients_of_inputs_may_come_before_the_first_step(stage, ranks):
    world.run(ranks, ask_for_gradients_of_inputs, stage=stage)
