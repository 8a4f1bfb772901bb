"""The engine on a GPU: the same bits at every stage, bytes as planned, a checkpoint that loads."""

import models
import pytest
import torch
import world
import zeroshard

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
STAGES = [0, 1, 2, 3]


def configuration(stage, dtype):
    return models.configuration(stage, dtype, gradient_clipping=0.5, optimizer=models.adamw(3e-3))


def train(engine, steps, first=0):
    for step in range(first, first + steps):
        ids = models.share(models.tokens(step, 0, 2 * engine.world_size()), engine.rank(), engine.world_size())
        engine.backward(models.language_loss(engine, ids.cuda()))
        engine.step()


def train_every_stage(dtype, shared=False):
    """On a rank. `shared`: all ranks use the first GPU, and meet over Gloo."""
    if shared:
        torch.cuda.set_device(0)
        torch.distributed.init_process_group("gloo")
    results = []
    for stage in STAGES:
        model = models.tiny_llama()
        if shared:
            model = model.to("cuda:0")
        engine, *_ = zeroshard.initialize(model=model, config=configuration(stage, dtype))
        train(engine, 4)
        memory = engine.memory_report()
        results.append([engine.parameter_digest(), memory["planned"], memory["measured_peak"]])
    return results


def check(by_rank):
    digests = {digest for results in by_rank for digest, *_ in results}
    assert len(digests) == 1
    for results in by_rank:
        for stage, (_, planned, measured) in zip(STAGES, results, strict=True):
            assert planned == measured, stage


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_one_digest_on_one_gpu(dtype):
    check(world.run(1, train_every_stage, dtype=dtype, timeout_s=120))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_one_digest_over_nccl():
    check(world.run(2, train_every_stage, dtype="bf16", timeout_s=120))


def test_one_digest_of_ranks_that_share_a_gpu():
    check(world.run(3, train_every_stage, dtype="bf16", shared=True, timeout_s=120))


def save_and_load(directory):
    engine, *_ = zeroshard.initialize(model=models.tiny_llama(), config=configuration(3, "bf16"))
    train(engine, 2)
    engine.save_checkpoint(directory)
    train(engine, 2, first=2)
    whole = engine.parameter_digest()
    other, *_ = zeroshard.initialize(model=models.tiny_llama(seed=1), config=configuration(1, "bf16"))
    other.load_checkpoint(directory)
    train(other, 2, first=2)
    return whole, other.parameter_digest()


def test_a_run_goes_on_from_a_checkpoint(tmp_path):
    ((whole, resumed),) = world.run(1, save_and_load, directory=str(tmp_path), timeout_s=120)
    assert whole == resumed
