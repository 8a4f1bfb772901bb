"""`zeroshard train` and `generate` with input that cannot work: an error that names it, and never exit 0."""

import json
import os
import signal
import socket
import subprocess

import pytest
import torch
from built import ZEROSHARD, ZEROSHARD_TORCH, needs
from train_program import (
    command,
    make,
    metrics,
    process_of_rank,
    run,
    tokens,  # noqa: F401 - a fixture
    write,
)
from waiting import wait_for

pytestmark = needs(ZEROSHARD_TORCH)
assert tokens  # a fixture


def dry_run(config):
    return subprocess.run([*command(config), "--dry-run"], capture_output=True, text=True, timeout=60)


def change_model(folder, **fields):
    path = folder / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_all_typos_are_told_at_once_and_once(tmp_path, tokens):
    _, train = make(tmp_path, tokens)
    train["data"]["lenght"] = train["data"].pop("length")
    wrong = train | {"stepz": 3, "learning_rate": 1e-4, "checkpoints": {"evry": 5}, "freze": [], "lora": {"rank": 8}}
    del wrong["steps"]
    for ranks in (1, 3):
        done = run(write(tmp_path, wrong), ranks)
        assert done.returncode == 2 and done.stdout == "", done
        lines = done.stderr.splitlines()
        assert lines[0] == f"zeroshard: {tmp_path / 'config.json'}: 6 unknown keys;"
        told = {line.split()[0]: line for line in lines[1:]}
        for key, nearest in {
            "train.data.lenght": "train.data.length",
            "train.stepz": "train.steps",
            "train.learning_rate": "optimizer.params.lr",
            "train.checkpoints.evry": "train.checkpoints.every",
            "train.freze": "train.freeze",
        }.items():
            assert f"did you mean '{nearest}'? allowed here: " in told[key]
        assert "allowed here: every, folder" in told["train.checkpoints.evry"]
        assert len(lines) == 7, "before any rank starts, and once"


def test_one_typo_is_one_line(tmp_path, tokens):
    _, train = make(tmp_path, tokens, evaluation={"evry": 3})
    done = run(write(tmp_path, train))
    assert done.returncode == 2, done
    assert done.stderr == (
        f"zeroshard: {tmp_path / 'config.json'}: train.evaluation.evry = 3: unknown key; "
        "did you mean 'train.evaluation.every'? allowed here: every, rows, patience\n"
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"optimizer": None}, 'the key optimizer is missing: add "optimizer": {"type": "AdamW"'),
        ({"train": None}, 'there is no object "train", which says what to train on what. The smallest: "train": {'),
        ({"train_batch_size": 7}, "train_batch_size"),
    ],
)
def test_a_wrong_configuration_is_told_once(tmp_path, tokens, change, told):
    _, train = make(tmp_path, tokens, steps=1)
    path = tmp_path / write(tmp_path, train)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    done = run(str(path), 2)
    assert done.returncode == 2 and done.stdout == "", done
    assert told in done.stderr and done.stderr.count("config.json: ") == 1 and "job failed" not in done.stderr, done
    absent = subprocess.run(command(tmp_path / "nope.json", 2), capture_output=True, text=True, timeout=60)
    assert absent.stderr == f"zeroshard: cannot read '{tmp_path / 'nope.json'}' (No such file or directory)\n"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"torch_autocast": {"enabled": True, "dtype": "bf16"}}, "torch_autocast.enabled = true: it is for engines in"),
        ({"data_types": {"buffer_dtype": "bf16"}}, 'data_types.buffer_dtype = "bf16": it is for engines in Python'),
    ],
)
def test_keys_of_python_that_change_numbers_are_refused(tmp_path, tokens, change, told):
    _, train = make(tmp_path, tokens, steps=1)
    done = run(write(tmp_path, train, **change))
    assert done.returncode != 0 and told in done.stderr, done


def test_keys_of_python_are_told_with_what_there_is_instead(tmp_path, tokens):
    _, train = make(tmp_path, tokens, steps=1)
    more = {"steps_per_print": 5, "wall_clock_breakdown": True, "activation_checkpointing": {"cpu_checkpointing": 1}}
    optimizer = {"type": "AdamW", "params": {"lr": "auto"}}
    zero = {"stage": 3, "stage3_prefetch_bucket_size": "auto"}
    done = run(write(tmp_path, train, optimizer=optimizer, zero_optimization=zero, **more), 2)
    assert done.returncode == 0, done.stderr
    told = [line.partition("no effect: ")[2] for line in done.stderr.splitlines() if "no effect: " in line]
    assert told == [
        'activation_checkpointing = {"cpu_checkpointing":1}: train.activation_checkpointing recomputes activations',
        "steps_per_print = 5: train.log_every says how often a line is printed",
        "wall_clock_breakdown = true: the lines of train.log_every tell the pace",
    ]
    assert 'optimizer.params.lr = "auto" becomes 0.001, the default' in done.stderr


def test_a_run_of_nothing_but_nan_ends_with_an_error(tmp_path, tokens):
    _, train = make(tmp_path, tokens, from_scratch=True, steps=3)
    change_model(tmp_path, initializer_range=1e30)
    done = run(write(tmp_path, train, stage=3), 2)
    assert done.returncode == 1 and "none of the run's 3 steps was applied" in done.stderr, done
    assert not (tmp_path / "trained" / "config.json").exists()


@pytest.mark.row("X3")
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "spiece.model"])
def test_files_of_a_model_are_regular_and_small(tmp_path, tokens, name):
    _, train = make(tmp_path, tokens, steps=1)
    config, path = write(tmp_path, train), tmp_path / "model" / name
    for kind in ("endless", "fifo", "large"):
        path.unlink(missing_ok=True)
        if kind == "endless":
            path.symlink_to("/dev/zero")
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.touch()
            os.truncate(path, 2**40)
        done = dry_run(config)
        reason = "bytes; at most" if kind == "large" else "it is not a regular file"
        assert done.returncode == 1 and f"cannot read '{path}'" in done.stderr and reason in done.stderr, done.stderr


def test_the_tokenizer_of_a_model_is_a_regular_file(tmp_path):
    (tmp_path / "tokenizer.json").symlink_to("/dev/zero")
    generate = [ZEROSHARD, "generate", tmp_path, "--prompt", "a"]
    done = subprocess.run(generate, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "tokenizer.json' (it is not a regular file)" in done.stderr, done.stderr


def test_a_model_that_does_not_fit_is_named(tmp_path, tokens):
    _, train = make(tmp_path, tokens, from_scratch=True, steps=1)
    change_model(tmp_path, vocab_size=2**60)
    done = run(write(tmp_path, train), 2)
    assert done.returncode == 2 and "vocab_size = 1152921504606846976: must be at most" in done.stderr, done.stderr
    assert "frame #" not in done.stderr and "Exception raised" not in done.stderr
    change_model(tmp_path, vocab_size=2**28, hidden_size=2**18)  # 2^48 bytes: no address space has them
    for stage in (0, 3):
        done = run(write(tmp_path, train, stage), 2)
        assert done.returncode == 2 and "the model does not fit: each rank needs" in done.stderr, done.stderr
        assert "No stage, offload or number of ranks fits" in done.stderr
        assert "frame #" not in done.stderr and "Exception raised" not in done.stderr
    assert dry_run(write(tmp_path, train)).returncode == 0, "it tells how much there would be"


def test_an_output_has_one_job(tmp_path, tokens):
    """However the first ends: its ranks have the output together, and nobody has it afterwards."""
    _, train = make(tmp_path, tokens, steps=10**6, log_every=1)
    config = write(tmp_path, train, stage=3)
    first = subprocess.Popen(command(config, 2), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert any("step 2/" in line for line in first.stdout)
        (tmp_path / "second").mkdir()
        second = write(tmp_path / "second", train | {"steps": 2}, stage=3)
        done = run(second, 2)
        holder = f"is in use by process {process_of_rank(0, config)} on host '{socket.gethostname()}'"
        assert done.returncode == 1 and holder in done.stderr, done.stderr
        assert "Name another folder in train.output" in done.stderr
        assert dry_run(second).returncode == 0
        other = {
            "output": str(tmp_path / "other"),
            "checkpoints": {"folder": str(tmp_path / "trained" / "checkpoints")},
        }
        done = run(write(tmp_path / "second", train | other, stage=3), 2)
        assert done.returncode == 1 and holder in done.stderr and "train.checkpoints.folder" in done.stderr, done.stderr
        second = write(tmp_path / "second", train | {"steps": 2}, stage=3)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    first.stdout.close()
    wait_for(lambda: process_of_rank(0, config) is None, "the end of rank 0")
    done = run(second, 2)
    assert done.returncode == 0, done.stderr
    assert sorted(metrics(tmp_path)) == [1, 2] and not (tmp_path / "trained" / ".lock").exists()


def test_a_model_is_not_overwritten_for_the_sake_of_a_folder_without_a_checkpoint(tmp_path, tokens):
    _, train = make(tmp_path, tokens, from_scratch=True, steps=1)
    (tmp_path / "trained" / "checkpoints").mkdir(parents=True)
    (tmp_path / "trained" / "checkpoints" / "notes.txt").write_text("mine")
    (tmp_path / "trained" / "config.json").write_text("{}")
    done = run(write(tmp_path, train), 1)
    assert done.returncode != 0 and "it would be overwritten" in done.stderr, done.stderr
    assert (tmp_path / "trained" / "config.json").read_text() == "{}"


@pytest.mark.parametrize("name", ["model.safetensors", "model-00002-of-00003.safetensors", "tokenizer.model"])
def test_files_of_another_model_are_not_overwritten(tmp_path, tokens, name):
    _, train = make(tmp_path, tokens, from_scratch=True, steps=1)
    (tmp_path / "model" / "tokenizer.model").write_bytes(b"a tokenizer")
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / name).write_text("mine")
    done = run(write(tmp_path, train), 2)
    assert done.returncode == 2 and f"which holds '{name}', " in done.stderr, done.stderr
    assert (tmp_path / "trained" / name).read_text() == "mine"


@pytest.mark.skipif(torch.version.cuda is not None, reason="this LibTorch has CUDA")
def test_a_device_that_is_not_there_is_told(tmp_path, tokens):
    _, train = make(tmp_path, tokens, steps=1)
    config = write(tmp_path, train | {"device": "cuda"})
    for done in (run(config), dry_run(config)):
        assert done.returncode != 0 and f'{config}: train.device is "cuda": this build has no CUDA' in done.stderr, done
    done = subprocess.run([*command(config), "--device", "gpu"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and '--device is "gpu": it must be auto, cpu, cuda, or cuda:N' in done.stderr, done
    done = subprocess.run(
        [*command(config, 2), "--device", "cpu", "--dry-run"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "device      cpu" in done.stdout, done


@pytest.mark.skipif(torch.version.cuda is not None, reason="this LibTorch has CUDA")
def test_text_on_a_device_that_is_not_there_is_told(tmp_path, tokens):
    make(tmp_path, tokens, steps=1)
    for name, message in {"cuda:1": "this build has no CUDA", "cuda:x": "it must be auto, cpu, cuda"}.items():
        generate = [ZEROSHARD, "generate", tmp_path / "model", "--prompt", "a", "--device", name]
        done = subprocess.run(generate, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and f'--device is "{name}": {message}' in done.stderr, done
