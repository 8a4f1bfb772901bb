"""States, gradients and parameters on the host or in files, beside a GPU: the bits of a run without offload.

The bodies are those of tests on the simulated device; test_placement_matrix.py has the digests. Several ranks share the
GPU, over Gloo.
"""

import devices
import models
import pytest
import test_offload
import torch
import world
from test_swap_files import WIDTH
from zeroshard.compat.deepspeed import initialize

ON_GPU = pytest.mark.parametrize("on", [pytest.param("cuda", marks=devices.NEEDS_GPU)])
PARAMETERS = ("parameters", "files", "all share")


def every(body, whats, **arguments):
    """One body for each kind of offload, in one process: a GPU's context takes seconds."""
    return [[what, body(what=what, **arguments)] for what in whats]


def use(folder, stage, dtype):
    """Single parameters, users' writes, optimizers outside and checkpoints between tiers."""
    whats = (True, "share") + (PARAMETERS if stage == 3 else ())
    for what, equal in every(test_offload.see_and_set, whats, stage=stage, dtype=dtype):
        assert all(equal), (what, equal)
    for what in whats:
        ends = test_offload.save_and_load(f"{folder}/{what}", stage, dtype, what)
        assert len(set(ends)) == 1, what
    for what, pairs in every(test_offload.outside, (True,), stage=stage, dtype=dtype):
        assert all(without == with_offload for without, with_offload in pairs), what
    if dtype == "fp32":
        for what, (without, with_offload) in every(test_offload.write_and_read, whats, stage=stage, dtype=dtype):
            assert with_offload == without and without[0] == [0.5], what
    return True


@ON_GPU
@pytest.mark.parametrize("ranks,dtype,stage", [(1, "bf16", 3), (2, "fp32", 2), (2, "bf16", 3)])
def test_single_parameters_and_checkpoints(tmp_path, on, ranks, dtype, stage):
    assert all(world.run(ranks, use, folder=str(tmp_path), stage=stage, dtype=dtype, on=on, timeout_s=240))


def narrow():
    """Moments in bf16: the same bits on the host and in files."""
    ends = []
    for device in ({"device": "cpu"}, test_offload.FILE):
        model = models.stack(width=WIDTH).to(world.device())
        zero = {"offload_optimizer": device}
        blocks = {"zero_optimization": zero, "zeroshard": {"offload": {"moment_dtype": "bf16"}}}
        config = models.configuration(2, "bf16", optimizer=models.adamw(1e-3), **blocks)
        engine = initialize(model=model, config=config)[0]
        for step in range(4):
            inputs = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step)).bfloat16()
            engine.backward(engine(inputs.to(world.device())).float().square().mean())
            engine.step()
        ends.append(engine.parameter_digest())
        engine.destroy()
    return ends


@ON_GPU
@pytest.mark.parametrize("ranks", [1, 2])
def test_narrow_moments_have_the_same_bits_on_host_and_in_files(on, ranks):
    assert len({digest for ends in world.run(ranks, narrow, on=on, timeout_s=120) for digest in ends}) == 1


@ON_GPU
@pytest.mark.parametrize("what", [None, True, "parameters"])
def test_a_load_waits_for_gathers_of_a_pass_without_a_backward(tmp_path, on, what):
    folder = {"folder": str(tmp_path), "offload": what}
    assert world.run(2, test_offload.load_after_a_forward, **folder, on=on, timeout_s=120) == [True, True]


def refusals():
    """What a GPU cannot hold is refused before anything is allocated, with the way out."""
    torch.cuda.reset_peak_memory_stats()
    text = test_offload.refused(own={"offload": {"device_memory": "1KiB"}})
    assert torch.cuda.max_memory_allocated() < 64 << 10  # the model alone
    return text


@ON_GPU
def test_too_small_a_device_is_refused(on):
    (text,) = world.run(1, refusals, on=on, timeout_s=60)
    assert "device_memory" in text
