"""Checkpoints that other numbers of ranks load, at other stages: what is saved again is what was saved."""

import hashlib
import json
import math
import os
import random

import numpy
import pytest
import simulated
import torch
import world
import zeroshard
from checkpointed import STAGES, WIDTH, Dropping, configuration
from saved import contents, manifest_of
from torch import nn

DTYPES = ["fp32", "bf16", "fp16"]
SAMPLES = 23  # no number of ranks divides them
STEPS = 7
TAG = f"global_step{STEPS}"
THRESHOLDS = [1200, 2, 0]  # at stage 3, units of up to so many elements stay whole


class Cut(nn.Module):
    """One unit that eight ranks cut: shards are whole blocks of 1024 elements."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(37, 83))  # with `one` three blocks
        self.one = nn.Parameter(torch.ones(1))
        self.still = nn.Parameter(torch.randn(5, 1000), requires_grad=False)
        self.none = nn.Parameter(torch.empty(0, 2))
        self.last = nn.Parameter(torch.randn(50, 99))
        self.three = nn.Parameter(torch.ones(3))

    def forward(self, x):
        columns = [(x[:, :37] @ self.first).tanh(), (x @ self.last).tanh()]
        return x * self.one + (torch.cat(columns, 1).mean(1, keepdim=True) + self.three.mean()) * self.still.mean()


class Cuttable(Dropping):
    """With units of more and of fewer elements than there are ranks."""

    def __init__(self):
        super().__init__()
        self.cut = Cut()
        self.slope = nn.PReLU()
        self.mix = nn.Linear(3, 1, bias=False)
        self.still = nn.PReLU().requires_grad_(False)

    def forward(self, ids):
        x = self.still(self.slope(self.cut(super().forward(ids))))
        return x + self.mix(x[:, :3])


def make_cuttable_engine(stage, dtype):
    has_replicas = stage % 2 and world.size() % 2 == 0
    mesh = {"shard": world.size() // 2, "outer": "replicate" if dtype == "bf16" else "optimizer"}
    config = configuration(stage, dtype, mesh=mesh if has_replicas else {})
    config["zero_optimization"]["stage3_param_persistence_threshold"] = THRESHOLDS[world.size() % len(THRESHOLDS)]
    if dtype == "fp16":
        config["fp16"]["initial_scale_power"] = 4  # with any number of ranks only those steps overflow that are to
    data = [(torch.tensor([index] * 3), index) for index in range(SAMPLES)]
    engine, _, loader, _ = zeroshard.initialize(model=Cuttable(), config=config, training_data=data)
    return engine, loader


def batches(loader, had):
    """Endless; `had` are the numbers of the samples that this rank got in this epoch."""
    while True:
        had.clear()
        for ids, index in loader:
            had += index.tolist()
            yield ids, index


def train_from_feed(engine, feed, steps, bad=()):
    """Per step loss, rates and loss scale. The last rank's gradients of `bad` steps are not finite."""
    history = []
    for step in range(steps):
        ids, _ = next(feed)
        ids = (ids + random.randrange(5)).to(world.device())
        loss = engine(ids.repeat(2, 1)).float().square().mean()
        engine.backward(loss * math.inf if step in bad and engine.rank() == engine.world_size() - 1 else loss)
        engine.step()
        history.append([loss.item(), engine.get_lr(), engine.loss_scale])
    return history


def rest_of_the_epoch(loader, feed):
    """The numbers of the samples that this rank still gets in it."""
    epoch, found = loader.state_dict()["epoch"], []
    for _, index in feed:
        if loader.state_dict()["epoch"] != epoch:
            break
        found += index.tolist()
    return found


def facts(engine):
    counts = [engine.global_steps, engine.skipped_steps, engine.global_samples, engine.micro_steps]
    schedule = [engine.get_lr(), engine.get_mom(), engine.lr_scheduler.state_dict()]
    return [engine.parameter_digest(), engine.loss_scale, schedule, counts]


def go_on(engine, loader, feed):
    """What has the same bits wherever the run goes on; a rank's own; the samples to come; and the same ranks' steps."""
    state = facts(engine)
    own = [random.random(), torch.rand(1).item(), numpy.random.rand(), engine.module.seen.tolist()]
    rest = rest_of_the_epoch(loader, feed)
    steps = train_from_feed(engine, feed, 3)
    common = [state, [[lr, scale] for _, lr, scale in steps]]
    return {"common": common, "own": own, "rest": rest, "steps": [steps, facts(engine)]}


def write(folder, stage, dtype):
    """A run whose loss scale has risen, and whose schedule has fewer steps than the run."""
    engine, loader = make_cuttable_engine(stage, dtype)
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(100 + engine.rank())
    feed = batches(loader, had := [])
    # fp16: the scale rises at the fourth step; then a part of the hysteresis and of a window is used up.
    train_from_feed(engine, feed, STEPS, bad=[4] if dtype == "fp16" else [4, 6])
    engine.save_checkpoint(folder, client_state={"note": torch.arange(3)})
    engine.wait_for_checkpoint()
    return {"had": had.copy(), **go_on(engine, loader, feed)}


def read(folder, stage, dtype, out, steps=True):
    engine, loader = make_cuttable_engine(stage, dtype)
    path, client = engine.load_checkpoint(folder)
    assert path == os.path.join(folder, TAG), path
    engine.save_checkpoint(out, client_state=client)
    engine.wait_for_checkpoint()
    return go_on(engine, loader, batches(loader, [])) if steps else facts(engine)


def read_all(loads, dtype):
    return [read(folder, stage, dtype, out) for folder, stage, out in loads]


def payload(folder):
    """All that a checkpoint holds, but for what is of single ranks, and which rank wrote what."""
    manifest = manifest_of(folder, TAG)
    tensors = [
        {key: value for key, value in tensor.items() if key != "slices"}
        for tensor in manifest["tensors"]
        if not tensor["kind"].startswith("buffer@")
    ]
    tensors.sort(key=lambda tensor: (tensor["kind"], tensor["name"]))
    values = contents(os.path.join(folder, TAG))
    hashes = {f"{kind}/{name}": hashlib.sha256(value).hexdigest() for (name, kind, _), value in values.items()}
    return {"state": manifest["state"], "tensors": tensors, "hashes": hashes}


def check_what_was_written(folder, writers, dtype):
    """Something of all that a checkpoint can hold, and of every rank."""
    saved = payload(folder)
    moments = [tensor for tensor in manifest_of(folder, TAG)["tensors"] if tensor["kind"] == "exp_avg"]
    assert {index for tensor in moments for index, *_ in tensor["slices"]} == set(range(writers))
    core, front = saved["state"]["core"], saved["state"]["front"]
    scaler = [core[f"loss_scale{key}"] for key in ("", "_iteration", "_last_overflow", "_hysteresis_left")]
    assert scaler == ([32, 7, 4, 1] if dtype == "fp16" else [1, 0, -1, 2]), core
    assert core["skipped_in_a_row"] == (dtype != "fp16")
    assert front["lr_scheduler"]["last_batch_iteration"] == STEPS - front["skipped_steps"] - 1, front
    assert front["data"]["consumed"] not in (0, SAMPLES), front
    updates = {tensor["updates"] for tensor in saved["tensors"] if tensor["trainable"]}
    assert STEPS - front["skipped_steps"] in updates
    for kind in ("weight", "exp_avg", "exp_avg_sq"):
        numels = {math.prod(tensor["shape"]) for tensor in saved["tensors"] if tensor["kind"] == kind}
        assert numels >= {0, 1, 3, WIDTH, 1200, 3071, 4950}, (kind, numels)
    frozen = {tensor["name"] for tensor in saved["tensors"] if tensor["kind"] == "weight" and not tensor["trainable"]}
    tied = [tensor for tensor in saved["tensors"] if tensor["name"] == "embed.weight"]
    assert frozen == {"frozen", "cut.still", "still.weight"}
    assert [tensor["aliases"] for tensor in tied] == [["head.weight"]] * 3


def compare_runs(before, after):
    """What ranks that load went on with, and what those that saved did."""
    for rank, found in enumerate(after):
        assert found["common"] == before[0]["common"]
        if rank < len(before):  # goes on with its own random numbers and buffers
            assert found["own"] == before[rank]["own"]
        else:
            assert found["own"][3] == before[0]["own"][3]
        if len(before) == len(after):
            assert before[rank] == {"had": before[rank]["had"], **found}
    for kind in range(3):
        drawn = [found["own"][kind] for found in before + after[len(before) :]]
        assert len(set(drawn)) == len(drawn), drawn
    samples = [index for rank in before for index in rank["had"]] + [index for rank in after for index in rank["rest"]]
    assert set(samples) == set(range(SAMPLES)), samples
    assert len(samples) - SAMPLES < len(after), samples  # some come again, so that every rank has as many


def compare_random_states(before, after):
    """Of ranks in manifests: those that were there have theirs, the others their own."""
    states = [[rank["random"] for rank in manifest["ranks"]] for manifest in (before, after)]
    kept = min(map(len, states))
    assert states[1][:kept] == states[0][:kept]
    for kind in ("python", "torch", "numpy"):
        assert len({json.dumps(state[kind]) for state in states[0] + states[1][kept:]}) == max(map(len, states))


@pytest.mark.row("W1")
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_ranks_at_any_stage_loads(tmp_path, release, dtype):
    worlds, first = [1, 2, 3, 4, 8] if release else [1, 2, 3], DTYPES.index(dtype)
    sources = {}
    for writers, stage in [(each, s) for each in worlds for s in (STAGES if release else [(each + first) % 4])]:
        folder = str(tmp_path / f"from{writers}at{stage}")
        runs = world.run(writers, write, folder=folder, stage=stage, dtype=dtype)
        sources[writers, stage] = (folder, runs, payload(folder))
        check_what_was_written(folder, writers, dtype)
    for readers, turn in [(each, turn) for each in worlds for turn in range(4 if release else 1)]:
        # Over the sample's three dtypes, every stage reads what every stage wrote.
        stages = [(stage + first + readers + turn) % 4 for _, stage in sources]
        loads = [
            (folder, stage, str(tmp_path / f"by{readers}at{stage}of{index}"))
            for index, ((folder, _, _), stage) in enumerate(zip(sources.values(), stages, strict=True))
        ]
        by_rank = world.run(readers, read_all, timeout_s=300, loads=loads, dtype=dtype)
        for (writer, source), load, *runs in zip(sources.items(), loads, *by_rank, strict=True):
            folder, before, saved = source
            print(f"{dtype}: written by {writer[0]} ranks at stage {writer[1]}, read by {readers} at {load[1]}")
            compare_runs(before, runs)
            assert payload(load[2]) == saved
            compare_random_states(manifest_of(folder, TAG), manifest_of(load[2], TAG))


@simulated.needed
@pytest.mark.row("W1")
@pytest.mark.parametrize("writers,readers,on", [(3, 2, "lazy"), (2, 3, "late")])
def test_another_number_of_devices_loads_at_another_stage(tmp_path, writers, readers, on):
    folder, out = str(tmp_path / "from"), str(tmp_path / "by")
    before = world.run(writers, write, folder=folder, stage=3, dtype="bf16", on=on)
    check_what_was_written(folder, writers, "bf16")
    compare_runs(before, world.run(readers, read, folder=folder, stage=1, dtype="bf16", out=out, on=on))
    assert payload(out) == payload(folder)
    # Ranks on the CPU go on from what devices saved.
    (found,) = world.run(1, read, folder=folder, stage=2, dtype="bf16", out=str(tmp_path / "cpu"))
    assert found["common"] == before[0]["common"]


# -- other dtypes ------------------------------------------------------------------------------------------------------

STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def values(folder):
    """By name and kind, and whether it is trained."""
    path = os.path.join(folder, TAG)
    about = {(tensor["name"], tensor["kind"]): tensor for tensor in manifest_of(folder, TAG)["tensors"]}
    found = {}
    for (name, kind, _), value in contents(path).items():
        tensor = about[name, kind]
        if value and tensor["dtype"] in STORED:
            flat = torch.frombuffer(bytearray(value), dtype=STORED[tensor["dtype"]])
            found[name, kind] = (flat, tensor["trainable"])
    return found


def read_in(folder, stage, dtype, out):
    """Saved again; and the names of live parameters that are not the saved ones in the dtype of this run."""
    engine, _ = make_cuttable_engine(stage, dtype)
    _, client = engine.load_checkpoint(folder)
    engine.save_checkpoint(out, client_state=client)
    engine.wait_for_checkpoint()
    saved = values(folder)
    with zeroshard.gathered(engine.module.parameters()):
        wrong = [
            name
            for name, param in engine.module.named_parameters()
            if param.numel() and not torch.equal(param.detach().view(-1), saved[name, "weight"][0].to(param.dtype))
        ]
    return [wrong, engine.loss_scale, facts(engine)[2:]]


def read_all_in(loads, dtype):
    return [read_in(folder, stage, dtype, out) for folder, stage, out in loads]


@pytest.mark.row("W1")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_run_in_another_dtype_loads(tmp_path, release, dtype):
    """What training keeps in fp32 has the same bits; what it does not, frozen parameters, is rounded. The loss scale is
    the dtype's own."""
    worlds = [1, 2, 3, 4, 8] if release else [2, 3]
    sources = []
    for index, writers in enumerate(worlds):
        folder, stage = str(tmp_path / f"from{writers}"), (index + DTYPES.index(dtype)) % 4
        runs = world.run(writers, write, folder=folder, stage=stage, dtype=dtype)
        sources.append([folder, runs[0]["common"][0], manifest_of(folder, TAG)["state"], values(folder)])
    for other in [each for each in DTYPES if each != dtype]:
        for readers in worlds if release else [1 + DTYPES.index(other)]:
            loads = [
                (source[0], (readers + index) % 4, str(tmp_path / f"by{readers}in{other}of{index}"))
                for index, source in enumerate(sources)
            ]
            by_rank = world.run(readers, read_all_in, timeout_s=300, loads=loads, dtype=other)
            for (_, before, state, saved), (_, stage, out), *results in zip(sources, loads, *by_rank, strict=True):
                print(f"{dtype}, read in {other} by {readers} at {stage}")
                expected = [[], 16 if other == "fp16" else 1, before[2:]]
                assert results == [expected] * readers, (results, expected)
                assert manifest_of(out, TAG)["state"]["front"] == state["front"]
                again = values(out)
                assert again.keys() == saved.keys()
                for key, (value, trained) in saved.items():
                    if not trained:
                        value = value.to(again[key][0].dtype)
                    assert torch.equal(again[key][0], value), key


# -- from one to the next ----------------------------------------------------------------------------------------------


def stretches(folder):
    """Which rank wrote what of each state of a parameter, where, and its hashes."""
    tensors = manifest_of(folder, TAG)["tensors"]
    return [[tensor["name"], tensor["kind"], tensor["slices"]] for tensor in tensors if "buffer" not in tensor["kind"]]


@pytest.mark.row("W1")
def test_a_chain_of_other_numbers_of_ranks_ends_with_the_first_payload(tmp_path, release):
    chain = [(4, 2), (3, 3), (8, 1), (1, 0), (2, 3), (4, 2)]
    for dtype in DTYPES if release else ["fp16"]:
        folders = [str(tmp_path / f"{dtype}-{link}") for link in range(len(chain))]
        writers, stage = chain[0]
        runs = world.run(writers, write, folder=folders[0], stage=stage, dtype=dtype)
        check_what_was_written(folders[0], writers, dtype)
        for source, out, (readers, stage) in zip(folders, folders[1:], chain[1:], strict=False):
            arguments = {"folder": source, "stage": stage, "dtype": dtype, "out": out}
            states = world.run(readers, read, steps=False, **arguments)
            assert states == [runs[0]["common"][0]] * readers, (dtype, out)
            assert manifest_of(out, TAG)["ranks"][0] == manifest_of(folders[0], TAG)["ranks"][0], (dtype, out)
        payloads = [json.dumps(payload(folder), sort_keys=True).encode() for folder in folders]
        assert len({hashlib.sha256(each).hexdigest() for each in payloads}) == 1, dtype
        assert stretches(folders[-1]) == stretches(folders[0]), dtype
