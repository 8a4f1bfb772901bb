"""The same bits at every stage, whatever the transport, overlap, units (buckets), prefetch, persistence, replicas."""

import itertools
import os
import random
import subprocess
import sys

import models
import pytest
import simulated
import world
import zeroshard
from built import REPOSITORY

AXES = {
    "stage": [0, 1, 2, 3],
    "transport": ["shm", "process_group"],
    "overlap_comm": [True, False],
    "unit_classes": [[], ["Linear", "Embedding"], ["LlamaMLP", "LlamaAttention"], ["LlamaModel"]],
    "persistence_threshold": [0, 1200, 10_000_000],  # all units sharded, some, none
    "prefetch_numel": [0, 50_000_000],
    "mesh_shard": [None, 1, 2],  # ranks that shard a replica; 2 means 1 if it does not divide the ranks
    "mesh_outer": ["replicate", "optimizer"],
}
VARIANTS_PER_WORLD = 24


# The simulated device has no groups that the core could make for replicas.
ON_DEVICES = AXES | {"transport": ["auto", "process_group"], "mesh_shard": [None]}


def sampled_variants(count, seed, axes=AXES):
    """`count` variants, every value of every axis among them."""
    generator = random.Random(seed)
    columns = []
    for values in axes.values():
        column = (values * count)[: max(count, len(values))]
        generator.shuffle(column)
        columns.append(column)
    return [dict(zip(axes, values, strict=True)) for values in zip(*columns, strict=True)]


def all_variants(seed):
    """Every stage, transport, overlap and kind of unit with each other; values of the other axes, drawn."""
    crossed = list(itertools.product(*list(AXES.values())[:4]))
    drawn = sampled_variants(len(crossed), seed)
    return [variant | dict(zip(AXES, values, strict=False)) for variant, values in zip(drawn, crossed, strict=True)]


def configuration(dtype, accumulation, clip, variant):
    own = {"transport": variant["transport"], "unit_classes": variant["unit_classes"]}
    if shard := variant["mesh_shard"]:
        own["mesh"] = {"shard": shard if int(os.environ["WORLD_SIZE"]) % shard == 0 else 1}
        own["mesh"]["outer"] = variant["mesh_outer"]
    return models.configuration(
        variant["stage"],
        dtype,
        accumulation=accumulation,
        threshold=variant["persistence_threshold"],
        gradient_clipping=clip,
        optimizer=models.adamw(3e-3, weight_decay=0.01),
        zero_optimization={
            "overlap_comm": variant["overlap_comm"],
            "stage3_prefetch_bucket_size": variant["prefetch_numel"],
        },
        zeroshard=own,
        fp16={"initial_scale_power": 8},  # no step is skipped
    )


def digests_of(variants, dtype, accumulation, clip, steps):
    """On a rank: trains a Llama once per variant; returns digests, and the last step's gradient norm."""
    results = []
    for variant in variants:
        model = models.tiny_llama()
        engine, *_ = zeroshard.initialize(model=model, config=configuration(dtype, accumulation, clip, variant))
        norms = []
        for step in range(steps):
            for micro in range(accumulation):
                ids = models.tokens(step, micro, 2 * engine.world_size())
                ids = models.share(ids, engine.rank(), engine.world_size())
                engine.backward(models.language_loss(engine, ids))
                engine.step()
            norms.append(engine.get_global_grad_norm())
        assert engine.global_steps == steps and engine.skipped_steps == 0
        check_memory(engine.memory_report(), variant)
        results.append([engine.parameter_digest(), norms])
    return results


def check_memory(memory, variant):
    assert models.held_as_planned(memory["planned"], memory["measured_peak"]), (variant, memory)


def initial_digest():
    engine, *_ = zeroshard.initialize(model=models.tiny_llama(), config={"train_micro_batch_size_per_gpu": 1})
    return engine.parameter_digest()


def check(world_size, accumulation, dtype, variants, steps, clip=0.5, on=None):
    digests, norms = {}, {}
    for start in range(0, len(variants), VARIANTS_PER_WORLD):
        part = variants[start : start + VARIANTS_PER_WORLD]
        arguments = {"dtype": dtype, "accumulation": accumulation, "clip": clip, "steps": steps}
        by_rank = world.run(world_size, digests_of, timeout_s=300 + 30 * steps, variants=part, on=on, **arguments)
        for variant, *results in zip(part, *by_rank, strict=True):
            for rank, (digest, norms_of_steps) in enumerate(results):
                digests.setdefault(digest, []).append((rank, variant))
                norms.setdefault(tuple(norms_of_steps), []).append((rank, variant))
    if on:  # there squares are added in fp64 within blocks of a unit, which differ with the units
        norms = {tuple(float(f"{norm:.13g}") for norm in each): places for each, places in norms.items()}
    for results in (digests, norms):
        where = "\n".join(f"{key}: {places[:6]}" for key, places in results.items())
        assert len(results) == 1, f"{len(results)} results:\n{where}"
    return next(iter(digests)), *next(iter(norms))


SAMPLE = [(1, 2, "fp32"), (2, 1, "bf16"), (2, 4, "fp32"), (3, 1, "fp32"), (3, 2, "bf16"), (4, 4, "bf16")]


@pytest.mark.idle_ranks("some of the units that it compares are parts of layers")
@pytest.mark.parametrize("world_size,accumulation,dtype", SAMPLE)
def test_one_digest(world_size, accumulation, dtype, release):
    steps = 50 if release else 10 if world_size < 3 else 5
    seed = 10 * world_size + accumulation
    digest, *norms = check(world_size, accumulation, dtype, sampled_variants(6, seed), steps)
    assert all(norm > 0.5 for norm in norms), "clipping was to have an effect"
    assert digest != world.run(1, initial_digest)[0]


DEVICES = [(1, 2, "fp16", "lazy"), (2, 2, "fp32", "lazy"), (2, 1, "bf16", "late"), (3, 2, "bf16", "lazy")]


@pytest.mark.idle_ranks("some of the units that it compares are parts of layers")
@simulated.needed
@pytest.mark.parametrize("world_size,accumulation,dtype,on", DEVICES)
def test_one_digest_on_devices(world_size, accumulation, dtype, on, release):
    steps, seed = (10 if release else 2), 20 * world_size + accumulation
    variants = sampled_variants(24 if release else 4, seed, ON_DEVICES)
    _, *norms = check(world_size, accumulation, dtype, variants, steps, on=on)
    assert all(norm > 0.5 for norm in norms), "clipping was to have an effect"


@pytest.mark.idle_ranks("some of the units that it compares are parts of layers")
@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_one_digest_for_all_variants(world_size, accumulation, dtype, release):
    seed = 10 * world_size + accumulation
    variants = all_variants(seed) if release else sampled_variants(24, seed)
    check(world_size, accumulation, dtype, variants, steps=50 if release else 10)


DEVICE_WORLDS = [(2, "late"), (3, "lazy")]  # their operators have the CPU's bits in this model


def digests_of_summed_losses(dtype):
    """On a rank, by stage: the first gradients to be reduced are those of two forwards, after some of `no_sync`."""
    digests = []
    for stage in AXES["stage"]:
        variant = {key: values[0] for key, values in AXES.items()} | {"stage": stage, "transport": "auto"}
        config = configuration(dtype, accumulation=1, clip=0.5, variant=variant)
        engine, *_ = zeroshard.initialize(model=models.stack(), config=config)
        for step in range(3):
            with engine.no_sync():
                engine.backward(models.own_loss(engine, step, 0))
            engine.backward(models.own_loss(engine, step, 1) + models.own_loss(engine, step, 2))
            engine.step()
            with engine.no_sync():
                engine.backward(models.own_loss(engine, step, 3))
            engine.backward(models.own_loss(engine, step, 4))
            engine.step()
        digests.append(engine.parameter_digest())
    return digests


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "world_size,on",
    [(1, None), (3, None), (4, None), *(simulated.case(*case) for case in DEVICE_WORLDS)],
)
def test_one_digest_where_one_backward_is_of_two_forwards(world_size, dtype, on):
    digests = world.run(world_size, digests_of_summed_losses, dtype=dtype, on=on)
    if on:
        digests += world.run(world_size, digests_of_summed_losses, dtype=dtype)
    assert len({digest for of_rank in digests for digest in of_rank}) == 1, digests


def test_digest_sees_a_changed_bit():
    """Clipping that differs by two parts in 10^7 shows in the digest."""
    arguments = {"variants": [sampled_variants(4, 0)[0]], "dtype": "fp32", "accumulation": 1, "steps": 2}
    one = world.run(2, digests_of, clip=0.5, **arguments)
    other = world.run(2, digests_of, clip=0.5000001, **arguments)
    assert one[0][0][0] == one[1][0][0] != other[0][0][0]


def test_digests_for_comparing_builds(tmp_path):
    """tests/matrix/digest_matrix.py: a line per run, and a checkpoint loads as the build that wrote it loads it."""

    def lines(*options):
        script = REPOSITORY / "tests" / "matrix" / "digest_matrix.py"
        command = [sys.executable, script, "--stages", "0", "3", "--dtypes", "bf16", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    runs = lines("--ranks", "2", "--models", "tied", "groups")
    assert len(runs) == 16 and len({line.split()[-1] for line in runs}) == 8  # those of both stages are the same
    saved = lines("--ranks", "1", "--save", str(tmp_path))
    assert len(saved) == 2 and lines("--ranks", "1", "--load", str(tmp_path)) == saved
