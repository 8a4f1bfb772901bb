"""Inputs of checkpointed layers on the host and in files beside devices, in files that fail, and without Python."""

import hashlib
import json
import os
import resource
import subprocess
import time

import models
import numpy
import pytest
import sequences
import simulated
import strace
import torch
import transformers
import world
import zeroshard
from built import ZEROSHARD, ZEROSHARD_TORCH, needs
from test_offload_activations import (
    ROWS,
    WIDTH,
    Freed,
    Recomputed,
    configuration,
    counted,
    file_sizes,
    loss_of_micro_batch,
    make_recomputed_engine,
)

END_S = 5  # after a failure every rank has ended by then

# -- devices -----------------------------------------------------------------------------------------------------------


def on_a_device(where, folder, stage, **blocks):
    """A configuration, with the directory under each of the keys."""
    config = configuration(stage, **blocks)
    config["zeroshard"]["offload"] = {"activations": where}
    if where == "nvme":
        key = "offload_param" if stage % 2 else "offload_optimizer"
        config["zero_optimization"][key] = {"device": "none", "nvme_path": folder}
    return config


def train_on_a_device(folder, stage, where, reentrant):
    """The digest, the device's peak in a step, and the sizes of files."""
    torch.manual_seed(0)
    model = Recomputed(layers=12, reentrant=reentrant).to(world.device())
    engine, *_ = zeroshard.initialize(model=model, config=on_a_device(where, folder, stage, bf16={"enabled": True}))
    own_peak = 0
    with counted() as kept:
        for step in range(4):
            simulated.reset_peak(world.device())
            rows = ROWS * (4 - step)  # the blocks on the host are used again for shorter tensors
            x = torch.full((rows, WIDTH), 0.1 + world.rank(), dtype=torch.bfloat16, device=world.device())
            loss = engine(x.requires_grad_(True)).float().square().mean()
            del x
            if step == 1:  # a graph that is dropped, and one that is used twice
                ones = torch.ones(rows, WIDTH, dtype=torch.bfloat16, device=world.device())
                loss = engine(ones.requires_grad_(True)).float().square().mean()
                engine.backward(loss, retain_graph=True)
            engine.backward(loss)
            if step == 0:
                own_peak = simulated.peak_bytes(world.device())
            engine.step()
            del loss
        assert (kept() > 0) == (where != "none")
    digest, sizes = engine.parameter_digest(), file_sizes(folder)
    engine.destroy()
    return digest, own_peak, sizes


@pytest.mark.parametrize(
    "ranks,stage,reentrant,on",
    [
        simulated.case(1, 0, False, "late"),
        simulated.case(1, 2, True, "lazy"),
        simulated.case(2, 3, False, "lazy"),
        simulated.case(2, 3, True, "late"),
        simulated.case(2, 1, False, "eager"),
    ],
)
def test_inputs_lie_on_the_host_or_in_files_beside_a_device(ranks, stage, reentrant, on, tmp_path):
    """The simulated device finds streams that race, and calls that make the host wait."""
    options = {"folder": str(tmp_path), "stage": stage, "reentrant": reentrant, "on": on, "timeout_s": 120}
    plain, host, files = (
        world.run(ranks, train_on_a_device, where=where, **options) for where in ("none", "cpu", "nvme")
    )
    assert len({digest for digest, _, _ in plain + host + files}) == 1
    one = 4 * ROWS * WIDTH * 2
    for (_, most, _), (_, less, _), (_, least, sizes) in zip(plain, host, files, strict=True):
        assert most - less > 0.6 * 12 * one, (most, less)
        assert most - least > 0.6 * 12 * one, (most, least)
        # All but those in the three blocks on the host; a graph that is dropped is there beside the next one.
        assert (12 - 3) * one <= sum(sizes) <= 2 * 12 * one, sizes
    assert not os.listdir(tmp_path)


def train_in_pieces(folder, where, reentrant):
    """The losses of two ranks that share rows, and the digest; some inputs of layers must leave memory."""
    model = sequences.WRAPS["recomputed" if reentrant else "checkpointed"](sequences.llama()).to(world.device())
    config = on_a_device(where, folder, 3) | {"sequence_parallel_size": 2, "train_micro_batch_size_per_gpu": 4}
    engine, *_ = zeroshard.initialize(model=model, config=config)
    losses = []
    with counted() as kept:
        for batch in zeroshard.sequence_parallel(engine, [sequences.rows("packed", step, 4, 32) for step in range(2)]):
            loss = engine(**{key: value.to(world.device()) for key, value in batch.items()}).loss
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        assert (kept() > 0) == (where != "none")
    return losses, engine.parameter_digest()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("where,on", [("nvme", None), simulated.case("cpu", "late"), simulated.case("nvme", "lazy")])
def test_inputs_of_ranks_that_share_rows(where, on, reentrant, tmp_path):
    plain, kept = (
        world.run(2, train_in_pieces, folder=str(tmp_path), where=each, reentrant=reentrant, on=on)
        for each in ("none", where)
    )
    assert plain == kept


def several_at_once(folder):
    """Micro-batches whose forwards all come before their backwards; a tensor that is freed."""
    digests = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        for where in ("none", "nvme"):
            torch.manual_seed(0)
            model = Recomputed(layers=5).to(world.device())
            engine, *_ = zeroshard.initialize(model=model, config=on_a_device(where, folder, 2))
            for step in range(2):
                losses = [loss_on_device(engine, step, micro) for micro in range(3)]
                for each in order:
                    engine.backward(losses[each])
                engine.step()
            digests.append((order, engine.parameter_digest()))
            engine.destroy()
    found = []
    for where, frees in (("none", False), ("nvme", False), ("nvme", True)):
        torch.manual_seed(0)
        engine, *_ = zeroshard.initialize(model=Freed(frees).to(world.device()), config=on_a_device(where, folder, 0))
        for _ in range(3):
            engine.backward(engine(torch.ones(4096, 32, device=world.device())))
            engine.step()
        found.append(engine.parameter_digest())
        engine.destroy()
    return len(set(digests)), len(set(found))


def loss_on_device(engine, step, micro):
    x, y = models.vectors(step, micro, ROWS * world.size(), WIDTH)
    x, y = (models.share(each, world.rank(), world.size()).to(world.device()) for each in (x, y))
    return (engine(x.requires_grad_(True)) - y).square().mean()


@pytest.mark.parametrize("on", [simulated.case("lazy"), simulated.case("late")])
def test_several_micro_batches_may_be_under_way_on_a_device(tmp_path, on):
    assert world.run(2, several_at_once, folder=str(tmp_path), on=on, timeout_s=120) == [[3, 1]] * 2


def failure_of_steps(engine, steps, loss_of_step):
    """What ended one of so many steps, and after how many seconds."""
    begun, said = time.monotonic(), ""
    try:
        for _ in range(steps):
            engine.backward(loss_of_step())
            engine.step()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return said, time.monotonic() - begun


def fail_on_a_device(folder):
    """Rank 1's file is damaged in a backward: what both ranks say, and how long that took."""
    torch.manual_seed(0)
    model = Recomputed(layers=8).to(world.device())
    engine, *_ = zeroshard.initialize(model=model, config=on_a_device("nvme", folder, 3))
    engine.backward(loss_on_device(engine, 0, 0))
    engine.step()

    def loss_of_damaged():
        loss = loss_on_device(engine, 1, 0)
        if world.rank() == 1:
            damage_own_file(folder)
        return loss

    return failure_of_steps(engine, 3, loss_of_damaged)


@simulated.needed
def test_a_file_that_fails_beside_a_device_ends_every_rank(tmp_path):
    check_ends(world.run(2, fail_on_a_device, folder=str(tmp_path), on="late"), tmp_path)
    assert not os.listdir(tmp_path)


# -- what cannot work --------------------------------------------------------------------------------------------------


def refusals(folder):
    said = []
    for key in ("offload_optimizer", "offload_param", "none"):
        config = configuration(2, folder)
        del config["zero_optimization"]["offload_optimizer"]
        if key != "none":
            config["zero_optimization"][key] = {"nvme_path": "/proc/missing"}
        with pytest.raises(zeroshard.ConfigError) as error:
            zeroshard.initialize(model=Recomputed(), config=config)
        said.append(str(error.value))
    engine = make_recomputed_engine(folder)
    with pytest.raises(zeroshard.StateError) as error:
        engine.compile()
    said.append(str(error.value))
    engine.backward(loss_of_micro_batch(engine))  # afterwards all is well
    engine.step()
    return said


def test_what_cannot_work_is_refused_on_every_rank(tmp_path):
    for missing, of_parameters, none, compiled in world.run(2, refusals, folder=str(tmp_path)):
        assert "offload_optimizer.nvme_path: rank 0: cannot open the directory /proc/missing" in missing
        assert "offload_param.nvme_path: rank 0: cannot open the directory /proc/missing" in of_parameters
        assert 'zeroshard.offload.activations = "nvme": needs zero_optimization.offload_optimizer.nvme_path, or' in none
        assert "zeroshard.offload.activations" in compiled


# -- files that fail ---------------------------------------------------------------------------------------------------


def train_to_an_end(folder, stage, how):
    engine = make_recomputed_engine(folder, stage)
    for step in range(2):
        engine.backward(loss_of_micro_batch(engine, step))
        engine.step()
    print("ready.", flush=True)
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.005)

    def loss_of_failing():
        if world.rank() == 1 and how == "full":  # longer inputs need more space, and there is none
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        rows = ROWS * (4 if how == "full" else 1)
        loss = engine(torch.ones(rows, WIDTH, requires_grad=True)).square().mean()
        if world.rank() == 1 and how == "damaged":
            damage_own_file(folder)
        return loss

    return failure_of_steps(engine, 6, loss_of_failing)


def damage_own_file(folder):
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        if os.path.islink(path) and os.readlink(path).startswith(f"{folder}/") and os.path.getsize(path) > 0:
            with open(path, "r+b") as file:
                turned = bytes(byte ^ 255 for byte in file.read())
                file.seek(0)
                file.write(turned)
            return
    raise AssertionError(f"no open file in {folder}")


def check_ends(ends, folder):
    for said, seconds in ends:
        assert f"the swap file in {folder}" in said, ends
        assert seconds < END_S
    assert ends[1][0].startswith("IoError"), ends
    assert "rank 1" in ends[0][0], ends


@pytest.mark.parametrize("how", ["full", "damaged"])
@pytest.mark.parametrize("stage", [1, 3])
def test_a_file_that_fails_on_one_rank_ends_every_rank(tmp_path, stage, how):
    (tmp_path / "go").touch()
    check_ends(world.run(2, train_to_an_end, folder=str(tmp_path), stage=stage, how=how), tmp_path)
    assert os.listdir(tmp_path) == ["go"]


@pytest.mark.parametrize("stage", [1, 3])
def test_the_nth_failing_call_ends_every_rank(tmp_path, stage, release):
    strace.require()
    hit = 0
    for nth in range(12 if release else 3):
        folder = tmp_path / str(nth)
        folder.mkdir()
        trained = world.World(2, train_to_an_end, folder=str(folder), stage=stage, how="calls")
        first = 1 + nth * (1 if release else 3)
        ends = strace.ends_after_failing_ring(trained, folder / "go", "EIO", first)
        if ends is None:
            continue
        hit += 1
        check_ends([end.value for end in ends], folder)
    assert hit


# -- zeroshard train ---------------------------------------------------------------------------------------------------

SIZES = {"vocab_size": 89, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2}
GPT2 = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 89}


def run_train_command(folder, kind, ranks, where, zero, recompute="full", steps=4):
    """What the command printed, and what it made: a digest of the model, and the losses."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **(GPT2 if kind == "gpt2" else SIZES))
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    numpy.save(folder / "train.npy", (numpy.arange(12 * 32 * steps + 1) ** 2 % 89).astype(numpy.uint16))
    (folder / "swap").mkdir(exist_ok=True)
    output = folder / f"trained-{where}"
    run = {"model": str(folder / "model"), "output": str(output), "steps": steps, "activation_checkpointing": recompute}
    run |= {"data": {"train": [str(folder / "train.npy")], "length": 32, "shuffle": False}}
    config = {"train_batch_size": 12, "gradient_accumulation_steps": 2, "train": run}
    config |= {"optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}, "zeroshard": {"offload": {"activations": where}}}
    config["zero_optimization"] = zero | {"offload_optimizer": {"nvme_path": str(folder / "swap")}}
    (folder / "config.json").write_text(json.dumps(config))
    command = [str(ZEROSHARD), "train", str(folder / "config.json"), "--nproc", str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    records = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    losses = [record["loss"] for record in records if "loss" in record]
    model = hashlib.sha256((output / "model.safetensors").read_bytes()).hexdigest()
    assert len(losses) >= steps and not os.listdir(folder / "swap")
    return done.stdout + done.stderr, [model, losses]


@needs(ZEROSHARD_TORCH)
@pytest.mark.parametrize("kind,stage,ranks", [("llama", 0, 1), ("gpt2", 2, 2), ("mixtral", 3, 2), ("llama", 1, 3)])
def test_runs_without_python_give_the_same_bits(tmp_path, kind, stage, ranks):
    plain, kept = (run_train_command(tmp_path, kind, ranks, where, {"stage": stage}) for where in ("none", "nvme"))
    assert plain[1] == kept[1]
    told = ["inputs of checkpointed layers go to files" in each[0] for each in (plain, kept)]
    assert told == [False, True]


@needs(ZEROSHARD_TORCH)
def test_the_key_without_recomputation_is_told(tmp_path):
    told, _ = run_train_command(tmp_path, "llama", 1, "nvme", {"stage": 1}, recompute="none", steps=1)
    assert "zeroshard.offload.activations: is for checkpointed layers" in told
