"""`zeroshard train` against a plain PyTorch loop over the same rows, and its result in transformers."""

import hashlib
import json
import math
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy
import pytest
import torch
import transformers
import world
from built import ZEROSHARD, ZEROSHARD_TORCH, needs
from test_causal_lm import CASES
from tokenizer_data import train_byte_level
from train_program import (
    BATCH,
    LENGTH,
    SMALL,
    STEPS,
    command,
    make,
    metrics,
    perplexity,
    plain_losses,
    process_of_rank,
    run,
    tokens,  # noqa: F401 - a fixture
    write,
)
from waiting import wait_for

pytestmark = needs(ZEROSHARD_TORCH)


@pytest.mark.parametrize(
    ("kind", "stage", "ranks", "more"),
    [
        ("llama", 0, 1, {}),
        ("llama", 3, 2, {"train_micro_batch_size_per_gpu": 2}),
        ("llama", 2, 3, {}),
        ("gpt2", 3, 2, {}),
        ("mixtral", 3, 2, {}),
    ],
)
def test_losses_are_those_of_plain_pytorch(tmp_path, tokens, kind, stage, ranks, more):
    model, train = make(tmp_path, tokens, kind)
    done = run(write(tmp_path, train, stage, **more), ranks)
    assert done.returncode == 0, done.stderr
    steps = metrics(tmp_path)
    expected = plain_losses(model, tokens)
    assert [steps[step + 1]["loss"] for step in range(STEPS)] == pytest.approx(expected, abs=2e-4)
    assert expected[-1] < expected[0] - 0.5, "nothing was learned"
    # The exported model, as transformers has it, predicts as well as ours said.
    trained = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
    held_out = tokens[LENGTH * BATCH * STEPS + 1 :]
    assert perplexity(trained, held_out) == pytest.approx(steps[STEPS]["perplexity"], rel=1e-5)


@pytest.mark.parametrize("ranks", [2, 4, *(pytest.param(ranks, marks=pytest.mark.matrix) for ranks in (1, 3, 7))])
def test_no_stage_changes_a_bit_of_the_result(tmp_path, tokens, ranks):
    _, train = make(tmp_path, tokens, steps=4)
    digests = {}
    for stage in range(4):
        folder = tmp_path / f"stage{stage}"
        folder.mkdir()
        train_batch_size = BATCH if ranks != 7 else 14
        config = write(folder, train | {"output": str(folder / "trained")}, stage, train_batch_size=train_batch_size)
        done = run(config, ranks)
        assert done.returncode == 0, done.stderr
        digests[stage] = hashlib.sha256((folder / "trained" / "model.safetensors").read_bytes()).hexdigest()
    assert len(set(digests.values())) == 1, digests
    start = hashlib.sha256((tmp_path / "model" / "model.safetensors").read_bytes()).hexdigest()
    assert start not in digests.values(), "nothing was trained"


def test_a_signal_ends_a_run_that_goes_on_later(tmp_path, tokens):
    _, train = make(tmp_path, tokens, steps=10**6, log_every=1)
    config = write(tmp_path, train, stage=3)
    process = subprocess.Popen(command(config, 2), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "step 3/" in line:
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "stopped by a signal" in out
    reached = max(metrics(tmp_path))
    assert reached >= 3 and not (tmp_path / "trained" / "config.json").exists()
    done = run(write(tmp_path, train | {"steps": reached + 2}, stage=1), 1)  # other ranks, another stage
    assert done.returncode == 0, done.stderr
    assert f"goes on from step {reached}" in done.stdout
    assert sorted(metrics(tmp_path)) == list(range(1, reached + 3))
    assert (tmp_path / "trained" / "config.json").exists()


def test_a_rank_that_keeps_failing_is_left_out(tmp_path, tokens):
    _, train = make(tmp_path, tokens, steps=4)
    config, killed = write(tmp_path, train, stage=3), []
    options = ["--max-restarts", "2", "--min-ranks", "2"]
    process = subprocess.Popen([*command(config, 3), *options], stderr=subprocess.PIPE, text=True)
    for _ in range(2):
        killed.append(wait_for(lambda: process_of_rank(2, config, but=killed), "rank 2", seconds=40))
        os.kill(killed[-1], signal.SIGKILL)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 0, err
    assert "rank 2 was killed by SIGKILL: restart 1 of 2 begins, with 3 ranks\n" in err
    assert "twice in a row, so there is one rank fewer: restart 2 of 2 begins, with 2 ranks\n" in err
    assert sorted(metrics(tmp_path)) == [1, 2, 3, 4]
    assert (tmp_path / "trained" / "config.json").exists()


@pytest.mark.row("P1")
@pytest.mark.parametrize(
    ("ranks", "victim", "options", "number"),
    [
        (1, 0, [], signal.SIGTERM),
        (1, 0, ["--max-restarts", "2"], signal.SIGTERM),
        (2, 0, [], signal.SIGINT),
        (2, 1, ["--max-restarts", "2"], signal.SIGTERM),
    ],
)
def test_a_signal_to_one_rank_ends_the_run(tmp_path, tokens, ranks, victim, options, number):
    """With a checkpoint and the code of that signal; a run that has left no model never ends with 0."""
    _, train = make(tmp_path, tokens, steps=10**6, log_every=1)
    config = write(tmp_path, train, stage=3)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command(config, ranks), *options], **pipes)
    assert any("step 3/" in line for line in process.stdout), process.stderr.read()
    os.kill(process_of_rank(victim, config), number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "stopped by a signal; a checkpoint is in" in out and "begins" not in err, (out, err)
    steps = max(metrics(tmp_path))
    assert os.path.exists(tmp_path / "trained" / "checkpoints" / f"global_step{steps}")


@pytest.mark.row("P1")
@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_a_last_checkpoint_that_cannot_be_saved_is_no_good_end(tmp_path, tokens, on_error):
    _, train = make(tmp_path, tokens, steps=10**6, log_every=1)
    config = write(tmp_path, train, stage=3, zeroshard={"checkpoint": {"on_error": on_error}})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command(config, 2), "--max-restarts", "2"], **pipes)
    assert any("step 3/" in line for line in process.stdout), process.stderr.read()
    checkpoints = tmp_path / "trained" / "checkpoints"
    shutil.rmtree(checkpoints, ignore_errors=True)
    checkpoints.write_text("")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "stopped by a signal" not in out, (out, err)
    report = err[err.index("job failed: rank ") :]
    assert "ended with exit code 1" in report and str(checkpoints) in report and "begins" not in err, err


@pytest.mark.row("L3")
def test_a_full_disk_below_the_log_does_not_fail_a_run(tmp_path, tokens):
    _, train = make(tmp_path, tokens, steps=2)
    with open("/dev/full", "w") as full:
        done = subprocess.run(command(write(tmp_path, train)), stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trained" / "config.json").exists()


@pytest.mark.row("P1")
def test_a_rank_of_another_launcher_tells_it_of_a_signal(tmp_path, tokens):
    """Each rank ends with 143, though one alone was signalled: `a && b`, and Slurm, see no success."""
    _, train = make(tmp_path, tokens, steps=10**6, log_every=1)
    config = write(tmp_path, train, stage=1)
    port, claim = world.reserve_port()
    with claim:
        ranks = []
        for rank in range(2):
            variables = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "MASTER_PORT": str(port)}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            ranks.append(subprocess.Popen([ZEROSHARD, "train", config], env=os.environ | variables, **pipes))
        lines = []
        assert any(lines.append(line) or "step 3/" in line for line in ranks[0].stdout), lines
        ranks[1].send_signal(signal.SIGTERM)
        told = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [143, 143], told
    assert "stopped by a signal; a checkpoint is in" in told[0]


@pytest.mark.parametrize(
    ("options", "stops", "code", "message"),
    [
        (["--grace-period", "0"], False, 128 + signal.SIGTERM, ""),
        (["--stall-timeout", "0.5"], True, 1, r"has been stopped by SIGSTOP for \d\.\d s"),
        (
            ["--stall-timeout", "0", "--hang-timeout", "4"],
            True,
            1,
            r"no progress for 4 s \(--hang-timeout\); most likely",
        ),
    ],
)
def test_ranks_are_watched_and_ended_as_told(tmp_path, tokens, options, stops, code, message):
    """By the options of `zeroshard run`; by their defaults these would end in a checkpoint, later, or never."""
    _, train = make(tmp_path, tokens, steps=10**6, log_every=1)
    # A step of 72 passes is not over when SIGTERM arrives.
    long_step = {"train_batch_size": BATCH * STEPS, "train_micro_batch_size_per_gpu": 1}
    config = write(tmp_path, train, stage=3, **({} if stops else long_step))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command(config, 2), *options], **pipes)
    assert any("step 2/" in line for line in process.stdout), process.stderr.read()
    if stops:
        os.kill(wait_for(lambda: process_of_rank(1, config), "rank 1"), signal.SIGSTOP)
    else:
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code and re.search(message, err), err
    assert "--hang-timeout" not in options or "zeroshard-torch(_ZN9zeroshard" in err, err  # names on the stack
    assert stops or "a checkpoint is in" not in out  # a stopped rank is woken, and may write one


def test_no_python_is_in_the_process(tmp_path, tokens):
    _, train = make(tmp_path, tokens, steps=10**6, log_every=1)
    config = write(tmp_path, train)
    process = subprocess.Popen(command(config), stdout=subprocess.PIPE, text=True)
    try:
        assert any("step 2/" in line for line in process.stdout)
        ranks = subprocess.run(["pgrep", "-f", f"zeroshard-torch train {config}"], capture_output=True, text=True)
        maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in [process.pid, *ranks.stdout.split()])
        assert "libtorch_cpu" in maps and "libpython" not in maps and "torch_python" not in maps
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


@pytest.mark.parametrize(
    ("precision", "export"),
    [
        ({"bf16": {"enabled": True}}, "BF16"),
        ({"fp16": {"enabled": True, "initial_scale_power": 30, "hysteresis": 1}}, "F16"),
    ],
)
def test_16_bits_learn_and_are_exported(tmp_path, tokens, precision, export):
    model, train = make(tmp_path, tokens, export_dtype=export, log_every=1)
    done = run(write(tmp_path, train, 3, **precision), 2)
    assert done.returncode == 0, done.stderr
    skipped = done.stdout.count("was skipped: a gradient was not finite")
    assert skipped > 0 if export == "F16" else skipped == 0, done.stdout
    losses = [metrics(tmp_path)[step + 1]["loss"] for step in range(STEPS)]
    expected = plain_losses(model, tokens)
    assert losses[0] == pytest.approx(expected[0], rel=1e-2)
    assert losses[-1] == pytest.approx(expected[-1 - skipped], abs=0.1)
    trained = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "trained", dtype="auto")
    assert trained.dtype == {"BF16": torch.bfloat16, "F16": torch.float16}[export]
    held_out = tokens[LENGTH * BATCH * STEPS + 1 :]
    assert perplexity(trained.float(), held_out) == pytest.approx(metrics(tmp_path)[STEPS]["perplexity"], rel=2e-2)


@pytest.mark.parametrize(("length", "steps"), [({"steps": STEPS}, STEPS), ({"epochs": 0.5}, STEPS // 2 + 1)])
def test_a_schedule_knows_the_length_of_the_run(tmp_path, tokens, length, steps):
    rates = {}
    for total in ("auto", steps):
        (folder := tmp_path / str(total)).mkdir()
        _, train = make(folder, tokens)
        del train["steps"]
        params = {"warmup_num_steps": 3, "warmup_max_lr": 1e-3, "total_num_steps": total}
        done = run(write(folder, train | length, scheduler={"type": "WarmupDecayLR", "params": params}))
        assert done.returncode == 0, done.stderr
        rates[total] = [values["lr"] for values in metrics(folder).values() if "lr" in values]
    assert len(rates["auto"]) == steps  # of half an epoch, one more than of its whole rows
    assert rates["auto"] == rates[steps] and rates["auto"][-1] < 0.6 * max(rates["auto"])


def test_what_lies_beside_the_weights_comes_along(tmp_path, tokens):
    _, train = make(tmp_path, tokens, from_scratch=True, steps=1)
    model, trained = tmp_path / "model", tmp_path / "trained"
    (model / "generation_config.json").unlink()
    (model / "spiece.model").write_bytes(b"pieces")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    config = json.loads((model / "config.json").read_text())
    # Of programs other than transformers.
    (model / "config.json").write_text(json.dumps(config | {"is_llama_config": True, "rope_interleaved": False}))
    done = run(write(tmp_path, train))
    assert done.returncode == 0, done.stderr
    assert (trained / "spiece.model").read_bytes() == b"pieces"
    assert (trained / "chat_template.jinja").read_text() == "{{ messages }}"
    assert transformers.GenerationConfig.from_pretrained(trained).eos_token_id == config["eos_token_id"]
    assert transformers.AutoModelForCausalLM.from_pretrained(trained).generation_config.bos_token_id == 1


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gemma2", "mixtral", "gpt2"])
def test_models_from_scratch_are_drawn_as_transformers_does(tmp_path, tokens, kind):
    """Of each parameter the same spread, mean and constants; a step at a rate of zero changes nothing."""
    torch.manual_seed(7)
    name, fields = CASES[kind]
    reference = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(name, **fields))
    reference.config.save_pretrained(tmp_path / "model")
    numpy.save(tmp_path / "train.npy", tokens[:1000])
    train = {
        "model": str(tmp_path / "model"),
        "output": str(tmp_path / "trained"),
        "from_scratch": True,
        "steps": 1,
        "data": {"train": [str(tmp_path / "train.npy")], "length": 16},
    }
    done = run(write(tmp_path, train, optimizer={"type": "SGD", "params": {"lr": 0.0}}))
    assert done.returncode == 0, done.stderr
    drawn = dict(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "trained").named_parameters())
    for parameter, value in reference.named_parameters():
        ours, spread = drawn[parameter].detach(), value.std().item()
        if spread == 0:
            assert torch.equal(ours, value), parameter
            continue
        sigmas = math.sqrt(value.numel())
        assert ours.std().item() == pytest.approx(spread, rel=6 / sigmas), parameter
        assert abs(ours.mean().item()) < 5 * spread / sigmas, parameter
        assert not torch.equal(ours, value), "the test compares a model with itself"


def test_no_other_model_is_overwritten(tmp_path, tokens):
    _, train = make(tmp_path, tokens, steps=2)
    weights = (tmp_path / "model" / "model.safetensors").read_bytes()
    for output, message in (
        (tmp_path / "link", "the directory of train.model"),
        (tmp_path / "other", "a file of a model"),
    ):
        if output.name == "link":
            output.symlink_to(tmp_path / "model")
        else:
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").save_pretrained(output)
        config = write(tmp_path, train | {"output": str(output)})
        for flag in ([], ["--dry-run"]):
            done = subprocess.run([*command(config, 2), *flag], capture_output=True, text=True, timeout=60)
            assert done.returncode == 2 and message in done.stderr, done.stderr
        assert (output / "model.safetensors").read_bytes() == weights
    # One's own may be gone on with.
    for steps in (2, 3):
        done = run(write(tmp_path, train | {"steps": steps}))
        assert done.returncode == 0, done.stderr


def test_an_export_that_does_not_fit_leaves_nothing_half_written(tmp_path, tokens):
    """No file may be as long as the model, as on a disk that is nearly full."""
    _, train = make(tmp_path, tokens, steps=2)
    config, trained = write(tmp_path, train), tmp_path / "trained"
    assert run(config).returncode == 0
    whole = {name: (trained / name).read_bytes() for name in ("model.safetensors", "config.json")}
    most = len(whole["model.safetensors"]) // 2

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    for kept in (whole, {}):  # over an older result, and without one
        for name in whole.keys() - kept.keys():
            (trained / name).unlink()
        before = set(os.listdir(trained))
        done = subprocess.run(command(config), capture_output=True, text=True, timeout=120, preexec_fn=limit)
        assert done.returncode == 1, done
        assert "model.safetensors" in done.stderr and "File too large" in done.stderr, done.stderr
        assert [name for name in set(os.listdir(trained)) - before if not name.startswith("events.")] == []
        assert all((trained / name).read_bytes() == contents for name, contents in kept.items())
    assert run(config).returncode == 0, "the checkpoint is there"
    assert {name: (trained / name).read_bytes() for name in whole} == whole


def test_a_dry_run_finds_missing_weights(tmp_path, tokens):
    _, train = make(tmp_path, tokens)
    (tmp_path / "model" / "model.safetensors").unlink()
    done = subprocess.run([*command(write(tmp_path, train)), "--dry-run"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "safetensors" in done.stderr, done


def test_a_dry_run_and_a_run_know_the_limits(tmp_path, tokens):
    _, train = make(tmp_path, tokens)
    config = pathlib.Path(write(tmp_path, train, stage=1))
    whole = json.loads(config.read_text())

    def with_limit(limit):
        config.write_text(json.dumps(whole | {"zeroshard": {"offload": {"host_memory": limit}}}))
        dry = subprocess.run([*command(config, 2), "--dry-run"], capture_output=True, text=True, timeout=60)
        assert dry.returncode == 0, dry.stderr
        return next(line for line in dry.stdout.splitlines() if line.startswith("limits"))

    assert "fits, host: 1000.0 MB (zeroshard.offload.host_memory)" in with_limit("1GB")
    told = with_limit(1000)
    assert "does not fit: each rank needs " in told and "has 1000 bytes" in told and "or number of ranks fits" in told
    done = run(config, 2)
    assert done.returncode != 0 and "ConfigError" not in done.stdout, done
    assert "the model does not fit: each rank needs " in done.stderr and "has 1000 bytes" in done.stderr, done.stderr
    # Without the key there is what the host has.
    config.write_text(json.dumps(whole))
    dry = subprocess.run([*command(config, 2), "--dry-run"], capture_output=True, text=True, timeout=60)
    assert "limits      fits, host: " in dry.stdout and "for 2 ranks)" in dry.stdout, dry.stdout


def test_wrong_numbers_of_ranks_are_named(tmp_path):
    for wrong in ("0", "-1", "two"):
        done = subprocess.run([ZEROSHARD, "train", "x.json", f"--nproc={wrong}"], capture_output=True, text=True)
        assert done.returncode == 2 and f"--nproc is '{wrong}', expected a whole number >= 1" in done.stderr


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"model": "/nowhere"}, 1, "/nowhere/config.json"),
        ({"stepz": 3}, 2, "train.stepz"),
        ({"data": {"train": ["/nowhere.npy"], "length": 8}}, 1, "/nowhere.npy"),
        ({"data": {"train": ["{folder}/high.npy"], "length": 8}}, 2, "high.npy"),
        ({"data": {"train": ["{folder}/empty.npy"], "length": 8}}, 2, "empty.npy"),
        ({"data": {"train": ["{folder}/train.npy"], "length": 999}}, 2, "64 positions"),
        ({"output": "/proc/nothing"}, 1, "/proc/nothing"),
    ],
)
def test_wrong_input_is_named(tmp_path, tokens, change, code, message):
    _, train = make(tmp_path, tokens)
    numpy.save(tmp_path / "high.npy", numpy.array([1, 2, 89, 4] * 40, dtype=numpy.uint16))
    numpy.save(tmp_path / "empty.npy", numpy.array([], dtype=numpy.uint16))
    change = json.loads(json.dumps(change).replace("{folder}", str(tmp_path)))
    started = time.monotonic()
    done = run(write(tmp_path, train | change, stage=3), 2)
    assert time.monotonic() - started < 30
    assert done.returncode == code, (done.returncode, done.stderr)
    assert message in done.stderr, done.stderr
    assert not (tmp_path / "trained" / "config.json").exists()


TEXTS = [
    "To be, or not to be, that is the question:",
    "Whether 'tis nobler in the mind \u2014 \U0001f642",
] * 30


def make_for_texts(directory):
    """A model directory without weights, and the tokenizer in it."""
    tokenizer = train_byte_level(TEXTS, ["<|end|>"])
    transformers.LlamaConfig(**SMALL | {"vocab_size": tokenizer.get_vocab_size()}).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return tokenizer


def test_text_is_made_into_tokens_and_sampled(tmp_path):
    tokenizer = make_for_texts(tmp_path / "model")
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    train = {
        "model": str(tmp_path / "model"),
        "output": str(tmp_path / "trained"),
        "from_scratch": True,
        "steps": 40,
        "data": {"train": [str(tmp_path / "texts.jsonl")], "length": 16, "validation_share": 0.1, "packing": "whole"},
        "samples": {"prompts": ["To be, or", "Whether 'tis"], "tokens": 9},
    }
    path = write(tmp_path, train, stage=3)
    dry = subprocess.run([*command(path, 2), "--dry-run"], capture_output=True, text=True, timeout=60)
    assert dry.returncode == 0, dry.stderr
    tokens = sum(len(tokenizer.encode(text).ids) + 1 for text in TEXTS)
    told = [int(line.split(" documents, ")[1].split()[0]) for line in dry.stdout.splitlines() if " documents, " in line]
    assert sum(told) == tokens, dry.stdout
    assert "stage 3, fp32, 2 ranks" in dry.stdout and "question" in dry.stdout + "Whether"
    assert not (tmp_path / "trained" / "checkpoints").exists()
    files = os.listdir(tmp_path / "trained" / "tokens")
    done = run(path, 2)
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path / "trained" / "tokens") == files, "the tokens were there already"
    assert "sample: To be, or not to be, that is the" in done.stdout, done.stdout
    assert "sample: Whether 'tis nobler in the" in done.stdout, done.stdout
    (tmp_path / "empty.txt").touch()
    for name, message in (("other.jsonl", "there is no such file"), ("empty.txt", "is empty: leave it out")):
        wrong = train | {"data": train["data"] | {"train": [str(tmp_path / name)]}}
        done = run(write(tmp_path, wrong), 2)
        assert done.returncode in (1, 2) and name in done.stderr and message in done.stderr, done.stderr


def test_a_signal_ends_the_tokenization(tmp_path):
    make_for_texts(tmp_path / "model")
    (tmp_path / "long.txt").write_text("\n".join(TEXTS) * 40_000)
    train = {
        "model": str(tmp_path / "model"),
        "output": str(tmp_path / "trained"),
        "from_scratch": True,
        "steps": 10**6,
        "data": {"train": [str(tmp_path / "long.txt")], "length": 16},
    }
    config = write(tmp_path, train)
    with subprocess.Popen(command(config, 2), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        tokens = tmp_path / "trained" / "tokens"
        wait_for(lambda: tokens.exists() and os.listdir(tokens), "tokens", seconds=60)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "stopped by a signal before the first step" in out, (out, err)
    assert not os.listdir(tokens)
