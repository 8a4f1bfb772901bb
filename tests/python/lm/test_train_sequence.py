"""`zeroshard train` with `sequence_parallel_size`: ranks share rows, and train as ranks with whole rows do."""

import contextlib
import json
import os
import signal
import subprocess
import time

import numpy
import pytest
import world
from built import ZEROSHARD, ZEROSHARD_TORCH, needs
from tokenizer_data import learnable_tokens
from train_program import BATCH, LENGTH, STEPS, command, make, metrics, process_of_rank, run, write
from waiting import wait_for

pytestmark = needs(ZEROSHARD_TORCH)

# Sums of a row are made in another order than by one rank, and so are those of gradients.
NEAR = 1e-6


@pytest.fixture(scope="module")
def tokens():
    return learnable_tokens(LENGTH * BATCH * STEPS + 500)


def documents(folder, tokens):
    """Files of one document each, of many lengths, so that most rows hold several documents."""
    cuts = numpy.cumsum([3 + 7 * i % 40 for i in range(200)])
    parts = [part for part in numpy.split(tokens, cuts) if len(part) > 1]
    paths = [folder / f"document{i}.npy" for i in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        numpy.save(path, part)
    return [str(path) for path in paths]


def losses_of(folder, train, ranks, size, **more):
    run_folder = folder / f"ranks{ranks}of{size}"
    run_folder.mkdir()
    train = train | {"output": str(run_folder / "trained")}
    result = run(write(run_folder, train, sequence_parallel_size=size, **more), ranks)
    assert result.returncode == 0, result.stderr
    steps = metrics(run_folder)
    return [steps[step]["loss"] for step in range(1, STEPS + 1)], steps[STEPS]["validation_loss"], result


@pytest.mark.parametrize(
    ("kind", "stage", "ranks", "size", "packed", "more"),
    [
        ("llama", 3, 2, 2, True, {"activation_checkpointing": "full"}),
        ("llama", 1, 4, 4, False, {}),  # more ranks than key-value heads
        ("gpt2", 2, 4, 2, True, {}),
        ("mixtral", 3, 2, 2, False, {}),
        ("mistral", 2, 2, 2, True, {}),
        ("qwen2", 0, 2, 2, False, {}),
        ("qwen3", 3, 4, 4, True, {}),
        ("gemma2", 1, 2, 2, True, {"activation_checkpointing": "full"}),
        ("gemma2", 3, 4, 2, False, {}),
    ],
)
def test_losses_are_those_of_whole_rows(tmp_path, tokens, kind, stage, ranks, size, packed, more):
    _, train = make(tmp_path, tokens, kind, **more)
    if packed:
        train["data"]["train"] = documents(tmp_path, tokens)
        train["data"]["packing"] = "whole"
    keys = {"zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": 3}
    whole, whole_validation, _ = losses_of(tmp_path, train, 1, 1, **keys)
    shared, shared_validation, _ = losses_of(tmp_path, train, ranks, size, **keys)
    assert shared == pytest.approx(whole, rel=NEAR)
    assert shared_validation == pytest.approx(whole_validation, rel=NEAR)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_replicas_change_nothing(tmp_path, tokens, stage):
    """Ranks 0 and 1 share rows, and so do 2 and 3; each two hold a replica of all states."""
    _, train = make(tmp_path, tokens)
    keys = {"zero_optimization": {"stage": stage}}
    expected, validation, _ = losses_of(tmp_path, train, 4, 2, **keys)
    (tmp_path / "replicas").mkdir()
    mesh = keys | {"zeroshard": {"mesh": {"shard": 2}}}
    found, found_validation, result = losses_of(tmp_path / "replicas", train, 4, 2, **mesh)
    assert "2 replicas of all states" in result.stderr
    assert (found, found_validation) == (expected, validation)


def test_a_run_goes_on_with_whole_rows(tmp_path, tokens):
    """A checkpoint of ranks that share rows is gone on with by one that does not, with the rows that come next."""
    _, train = make(tmp_path, tokens)
    undisturbed, _, _ = losses_of(tmp_path, train, 1, 1)
    folder = tmp_path / "interrupted"
    folder.mkdir()
    train["output"] = str(folder / "trained")
    first = run(write(folder, train | {"steps": 5}, stage=2, sequence_parallel_size=2), 2)
    assert first.returncode == 0, first.stderr
    second = run(write(folder, train, stage=3), 1)
    assert second.returncode == 0, second.stderr
    assert [metrics(folder)[step]["loss"] for step in range(1, STEPS + 1)] == pytest.approx(undisturbed, rel=NEAR)


@pytest.mark.parametrize(
    ("size", "length", "message"),
    [
        (2, LENGTH - 1, "train.data.length is 31, and the 2 ranks of sequence_parallel_size have equal pieces"),
        (3, 30, "sequence_parallel_size is 3, and so many ranks cannot share 4 heads and 2 key-value heads"),
    ],
)
def test_what_cannot_be_shared_is_refused(tmp_path, tokens, size, length, message):
    _, train = make(tmp_path, tokens)
    train["data"]["length"] = length
    config = write(tmp_path, train, sequence_parallel_size=size)
    for command_line in (command(config, size), [*command(config, size), "--dry-run"]):
        result = subprocess.run(command_line, capture_output=True, text=True, timeout=60)
        assert result.returncode != 0
        assert message in result.stderr


@pytest.mark.parametrize(("kind", "key"), [("gpt2", "attn_pdrop"), ("qwen3", "attention_dropout")])
def test_dropout_inside_of_attention_is_refused(tmp_path, tokens, kind, key):
    _, train = make(tmp_path, tokens, kind)
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: 0.1}))
    for size, message in ((1, ""), (2, "dropout of 0.1 inside of attention. With sequence_parallel_size 2")):
        config = write(tmp_path, train, sequence_parallel_size=size)
        result = subprocess.run([*command(config, 2), "--dry-run"], capture_output=True, text=True, timeout=60)
        assert (result.returncode == 0) == (size == 1) and message in result.stderr, result.stderr


@contextlib.contextmanager
def started(configs):
    """Ranks without a launcher, each with its configuration."""
    port, claim = world.reserve_port()
    variables = {"WORLD_SIZE": len(configs), "LOCAL_WORLD_SIZE": len(configs), "MASTER_ADDR": "127.0.0.1"}
    ranks = []
    try:
        for rank, config in enumerate(configs):
            own = variables | {"MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank}
            environment = os.environ | {name: str(value) for name, value in own.items()}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            ranks.append(subprocess.Popen([ZEROSHARD, "train", config], env=environment, **pipes))
        yield ranks
    finally:
        for process in ranks:
            process.kill()
        claim.close()


@pytest.mark.parametrize("transport", ["shm", "process_group"])
def test_a_dead_rank_has_its_number_in_the_world(tmp_path, tokens, transport):
    """Rank 2 mostly waits in its sequence group, where rank 3 is the second rank."""
    _, train = make(tmp_path, tokens, steps=100_000, checkpoints={"every": 0})
    config = write(tmp_path, train, sequence_parallel_size=2, zeroshard={"transport": transport})
    with started([config] * 4) as ranks:
        deadline = time.monotonic() + 60
        while not (tmp_path / "trained" / "metrics.jsonl").exists():
            assert time.monotonic() < deadline and ranks[2].poll() is None
            time.sleep(0.05)
        ranks[3].kill()
        text = ranks[2].communicate(timeout=60)[0]
    assert f"rank 3 (pid {ranks[3].pid}) died" in text
    assert "rank 1 (pid" not in text


def test_ranks_of_other_sizes_name_both(tmp_path, tokens):
    """As on hosts whose configuration files differ."""
    _, train = make(tmp_path, tokens)
    configs = []
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        configs.append(write(folder, train, sequence_parallel_size=rank + 1))
    begin = time.monotonic()
    with started(configs) as ranks:
        texts = [process.communicate(timeout=60)[0] for process in ranks]
    assert time.monotonic() - begin < 30  # and not the 600 seconds of timeout_s
    for text in texts:
        assert "sequence_parallel_size 1" in text
        assert "sequence_parallel_size 2" in text


def test_a_restart_finds_the_number_of_ranks_that_can_share_rows(tmp_path, tokens):
    """Rank 3 of 4 is killed twice. The 3 ranks left cannot be in groups of 2, so the last restart has 2."""
    _, train = make(tmp_path, tokens, steps=4)
    config = write(tmp_path, train, sequence_parallel_size=2)
    options = ["--max-restarts", "3", "--min-ranks", "2"]
    process, killed = subprocess.Popen([*command(config, 4), *options], stderr=subprocess.PIPE, text=True), []
    for _ in range(2):
        killed.append(wait_for(lambda: process_of_rank(3, config, but=killed), "rank 3", seconds=40))
        os.kill(killed[-1], signal.SIGKILL)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 0, err
    assert "sequence_parallel_size = 2" in err
    assert "at once with 3 ranks, so there is one rank fewer: restart 3 of 3 begins, with 2 ranks\n" in err
    assert sorted(metrics(tmp_path)) == [1, 2, 3, 4]
