"""The engine on a GPU: the CPU's bits at every stage, the user's streams, bytes as planned, a checkpoint that loads.

Where it makes sense the same bodies run on the simulated device or on the CPU, so that they are known to work.
"""

import os
import re
import signal

import devices
import models
import pytest
import torch
import world
import zeroshard

STAGES = [0, 1, 2, 3]
ON_DEVICES = pytest.mark.parametrize("device", [devices.CUDA, devices.SIMULATED])
ON_ALL = pytest.mark.parametrize("device", [devices.CUDA, devices.SIMULATED, "cpu"])


def configuration(stage, dtype, **own):
    """One rank gathers and reduces as several do. `own`: more of zeroshard's keys."""
    adamw = models.adamw(1e-2, weight_decay=0.1)
    own = {"shard_one_rank": True, "transport": "process_group", **own}
    return models.configuration(stage, dtype, gradient_clipping=0.5, optimizer=adamw, zeroshard=own)


def train_on_device(engine, device, dtype, steps, first=0, new_streams=False):
    for step in range(first, first + steps):
        with devices.stream(device, new_streams):
            loss = devices.elementwise_loss(engine, device, step, engine.rank(), dtype)
        with devices.stream(device, new_streams):
            engine.backward(loss)
        with devices.stream(device, new_streams):
            engine.step()


def make_device_engine(device, stage, dtype, seed=0, **own):
    model = devices.elementwise(seed).to(device)
    return zeroshard.initialize(model=model, config=configuration(stage, dtype, **own))[0]


def train_every_stage(device, dtype, shared=False):
    """On a rank: digest, planned and measured bytes by stage."""
    results = []
    with devices.use(device, shared) as place:
        for stage in STAGES:
            engine = make_device_engine(place, stage, dtype)
            assert {param.device for param in engine.module.parameters()} == {place}
            train_on_device(engine, place, dtype, 4)
            memory = engine.memory_report()
            results.append([engine.parameter_digest(), memory["planned"], memory["measured_peak"]])
            engine.destroy()
    return results


def digest_of(by_rank):
    """The one that all ranks have at all stages; bytes are as planned."""
    for results in by_rank:
        for stage, (_, planned, measured) in zip(STAGES, results, strict=True):
            assert models.held_as_planned(planned, measured), (stage, planned, measured)
    digests = {digest for results in by_rank for digest, *_ in results}
    assert len(digests) == 1
    return digests.pop()


@ON_DEVICES
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_digest_is_the_cpus(device, dtype):
    on_device = world.run(1, train_every_stage, device=device, dtype=dtype, timeout_s=120)
    on_cpu = world.run(1, train_every_stage, device="cpu", dtype=dtype, timeout_s=120)
    assert digest_of(on_device) == digest_of(on_cpu)


@pytest.mark.parametrize("device", [devices.CUDA, "cpu"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_three_ranks_that_share_a_device_have_one_digest(device, dtype):
    """Over Gloo: NCCL takes one rank for each GPU."""
    shared = world.run(3, train_every_stage, device=device, dtype=dtype, shared=True, timeout_s=120)
    expected = world.run(3, train_every_stage, device="cpu", dtype=dtype, timeout_s=120)
    assert digest_of(shared) == digest_of(expected)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=devices.NEEDS_GPU)])
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_one_digest_over_nccl(device):
    digest_of(world.run(2, train_every_stage, device=device, dtype="bf16", timeout_s=120))


def train_on_streams(device):
    digests = []
    with devices.use(device) as place:
        for stage in STAGES:
            for new_streams in (False, True):
                engine = make_device_engine(place, stage, "bf16")
                train_on_device(engine, place, "bf16", 3, new_streams=new_streams)
                digests.append(engine.parameter_digest())
                engine.destroy()
    return digests


@ON_DEVICES
def test_streams_of_the_users_give_the_same_bits(device):
    (digests,) = world.run(1, train_on_streams, device=device, timeout_s=120)
    assert len(set(digests)) == 1


def train_by_scripts(device, shared=False):
    """On a rank: digests by stage. Backward is the loss's own, gradients are dropped, read and set."""
    digests = []
    with devices.use(device, shared) as place:
        for stage in STAGES:
            engine = make_device_engine(place, stage, "bf16")
            params = list(engine.module.parameters())
            for step in range(4):
                devices.elementwise_loss(engine, place, step + 10, engine.rank(), "bf16").backward()
                with pytest.raises(RuntimeError, match="waits for the step"):
                    params[0].grad.mul_(2)
                if step % 2 == 0:
                    engine.module.zero_grad()
                    assert zeroshard.get_gradient(params[0]) is None
                else:
                    params[1].grad = None
                devices.elementwise_loss(engine, place, step, engine.rank(), "bf16").backward()
                gradient = zeroshard.get_gradient(params[2])
                assert gradient.device.type == "cpu" or gradient.device == place
                zeroshard.set_gradient(params[2], gradient * 0.5)
                engine.step()
            with pytest.raises(RuntimeError, match="in the user's hook"):
                loss = devices.elementwise_loss(engine, place, 4, engine.rank(), "bf16")
                loss.register_hook(fail)
                loss.backward()
            train_on_device(engine, place, "bf16", 1, first=5)
            digests.append(engine.parameter_digest())
            engine.destroy()
    return digests


def fail(_):
    raise RuntimeError("in the user's hook")


@ON_DEVICES
@pytest.mark.parametrize("ranks", [1, 3])
def test_passes_that_scripts_begin_have_the_cpus_bits(device, ranks):
    on_device = world.run(ranks, train_by_scripts, device=device, shared=ranks > 1, timeout_s=120)
    on_cpu = world.run(ranks, train_by_scripts, device="cpu", shared=ranks > 1, timeout_s=120)
    assert len({digest for digests in [*on_device, *on_cpu] for digest in digests}) == 1


def save_and_load(device, directory):
    with devices.use(device) as place:
        engine = make_device_engine(place, 3, "bf16")
        train_on_device(engine, place, "bf16", 2)
        engine.save_checkpoint(directory)
        train_on_device(engine, place, "bf16", 2, first=2)
        whole = engine.parameter_digest()
        engine.wait_for_checkpoint()
        other = make_device_engine(place, 1, "bf16", seed=1)
        other.load_checkpoint(directory)
        train_on_device(other, place, "bf16", 2, first=2)
        return whole, other.parameter_digest()


@ON_ALL
def test_a_run_goes_on_from_a_checkpoint(device, tmp_path):
    ((whole, resumed),) = world.run(1, save_and_load, device=device, directory=str(tmp_path), timeout_s=120)
    assert whole == resumed


def load(device, directory):
    with devices.use(device) as place:
        engine = make_device_engine(place, 2, "fp32", seed=1)
        engine.load_checkpoint(directory)
        train_on_device(engine, place, "fp32", 2, first=2)
        return engine.parameter_digest()


def save(device, directory):
    with devices.use(device) as place:
        engine = make_device_engine(place, 3, "fp32")
        train_on_device(engine, place, "fp32", 2)
        engine.save_checkpoint(directory)
        train_on_device(engine, place, "fp32", 2, first=2)
        return engine.parameter_digest()


@ON_DEVICES
def test_a_checkpoint_goes_from_a_device_to_the_cpu_and_back(device, tmp_path):
    for index, (writer, reader) in enumerate([(device, "cpu"), ("cpu", device)]):
        directory = str(tmp_path / str(index))
        written = world.run(1, save, device=writer, directory=directory, timeout_s=120)
        assert world.run(1, load, device=reader, directory=directory, timeout_s=120) == written


class Allocated:
    """Bytes of a GPU that torch's allocator has given out since this was made: now, and at most."""

    def __init__(self):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated()

    def peak(self):
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - self.before


def allocate_beside_planned(stage, rows=64, layers=24):
    """By torch's own count, while the model is built and trained."""
    with devices.use("cuda") as place:
        first = zeroshard.initialize(model=devices.elementwise().to(place), config=configuration(stage, "bf16"))[0]
        train_on_device(first, place, "bf16", 1)  # what any engine needs
        first.destroy()
        model = devices.elementwise(rows=rows, width=4096, layers=layers)
        allocated = Allocated()
        engine = zeroshard.initialize(model=model.to(place), config=configuration(stage, "bf16"))[0]
        built = allocated.peak()
        torch.cuda.reset_peak_memory_stats()
        train_on_device(engine, place, "bf16", 3)
        report = engine.memory_report()
        numel = sum(param.numel() for param in engine.module.parameters())
        return [built, allocated.peak(), report["planned_total"], numel, rows * 4096]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=devices.NEEDS_GPU)])
def test_torch_has_allocated_what_was_planned(device, stage):
    ((built, trained, planned, numel, rows),) = world.run(1, allocate_beside_planned, stage=stage, timeout_s=120)
    print(f"stage {stage}: built {built / 1e6:.1f} MB, trained {trained / 1e6:.1f}, planned {planned / 1e6:.1f}")
    # Each layer keeps four tensors of the batch's size for backward, in bf16; a unit's gradients are on their way.
    activations = 24 * 4 * rows * 2
    assert 0.9 * planned < trained < planned + activations + 0.05 * planned + (64 << 20)
    # The user's fp32 model is there as well until its units are taken over.
    assert built < planned + 4 * numel + (64 << 20)


def tell_step_by_step(device):
    with devices.use(device, shared=True) as place:
        engine = make_device_engine(place, 3, "fp32", timeout_s=10, stall_timeout_s=3)
        for step in range(10**9):
            train_on_device(engine, place, "fp32", 1, first=step)
            if step == 2:
                print("training", flush=True)


END_S = 40  # Gloo's own time-out, 10 s, and what a busy machine needs


@pytest.mark.fault
@pytest.mark.parametrize("device", [devices.CUDA, "cpu"])
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_a_rank_that_dies_or_stops(device, name):
    """The others end with an error of communication, soon, though the device waits for the one that is missing."""
    trained = world.World(3, tell_step_by_step, device=device)
    try:
        trained.wait_for("training", seconds=90)
        os.kill(trained.pids[2], getattr(signal, name))
        trained.join(END_S, among=[0, 1])
        trained.processes[2].kill()
        ranks = trained.results()
    finally:
        trained.kill()
    for rank in ranks[:2]:
        told = r"CommError: .*rank \d: (the device waits in )?collective #"
        assert re.match(told, rank.error or ""), rank.log[-3000:]
