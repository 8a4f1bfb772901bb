"""What `zeroshard train` tells a person: how it begins, its saves and loads, and whom its files are for."""

import os
import re
import stat
import subprocess

import pytest
from built import ZEROSHARD_TORCH, needs
from train_program import (
    STEPS,
    command,
    make,
    run,
    tokens,  # noqa: F401 - a fixture
    write,
)

pytestmark = needs(ZEROSHARD_TORCH)
assert tokens  # a fixture

_SIZE_AND_SPEED = r"\d+\.\d MB in \d+\.\d\d s, \d+\.\d MB/s"


def lines_of(text):
    return [line.removeprefix("[rank 0] ") for line in text.splitlines()]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_opens_with_what_it_will_do(tmp_path, tokens, ranks):
    model, train = make(tmp_path, tokens, checkpoints={"every": 5})
    config = write(tmp_path, train, stage=3, bf16={"enabled": True})
    done = run(config, ranks)
    assert done.returncode == 0, done.stderr
    lines = lines_of(done.stdout)
    count = sum(parameter.numel() for parameter in model.parameters())
    told = {line[:12].strip(): line[12:] for line in lines[:8]}
    assert list(told) == [
        *("model", "training", "validation", "steps", "engine", "memory", "results", "checkpoints")
    ], done.stdout
    assert told["model"] == f"{tmp_path / 'model'}: {count} parameters, {count} trained"
    assert told["steps"].startswith(f"{STEPS} of 12 rows of 32 tokens")
    assert told["engine"] == f"stage 3, bf16, {ranks} rank{'s' * (ranks > 1)}"
    assert re.match(r"\d+\.\d MB for each rank, activations aside \(parameters ", told["memory"])
    assert told["results"].startswith(f"{tmp_path / 'trained'}: ") and "metrics.jsonl" in told["results"]
    assert told["checkpoints"] == f"{tmp_path / 'trained' / 'checkpoints'}: every 5 steps, and at the end"
    assert "starts from the beginning" in done.stdout
    unexpected = [line for line in done.stderr.splitlines() if "ms for the checkpoint before to be written" not in line]
    assert not re.search("nothing is loaded|warning", "\n".join(unexpected)), done.stderr
    dry = subprocess.run([*command(config, ranks), "--dry-run"], capture_output=True, text=True, timeout=60)
    assert lines_of(dry.stdout)[:8] == lines[:8], dry


def test_links_that_lead_out_of_a_model_are_told(tmp_path, tokens):
    """What they name is copied into the output, which people publish. Those of a Hugging Face cache are usual."""
    _, train = make(tmp_path, tokens, steps=1)
    (tmp_path / "secret").write_text("a key")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0123").write_text("{}")
    snapshot = tmp_path / "snapshots" / "main"
    snapshot.parent.mkdir()
    (tmp_path / "model").rename(snapshot)
    train = train | {"model": str(snapshot)}
    (snapshot / "tokenizer_config.json").symlink_to("../../blobs/0123")
    (snapshot / "vocab.json").symlink_to("tokenizer_config.json")
    config = write(tmp_path, train)
    for link in (None, "merges.txt", "spiece.model"):
        if link is not None:
            (snapshot / link).symlink_to("../../secret")
        done = subprocess.run([*command(config), "--dry-run"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        told = [line for line in done.stdout.splitlines() if line.startswith("warning ")]
        assert (link is not None) == bool(told), done.stdout
        assert link is None or f"{link} ({tmp_path / 'secret'})" in told[0], told
    assert f"warning     links lead out of {snapshot}" in run(config).stdout


def test_saves_and_loads_tell_size_and_speed(tmp_path, tokens):
    _, train = make(tmp_path, tokens, steps=4, checkpoints={"every": 2})
    done = run(write(tmp_path, train), 2)
    root = tmp_path / "trained" / "checkpoints"
    for step in (2, 4):
        saved = re.findall(rf"saved {root}/global_step{step} \(step {step}\): {_SIZE_AND_SPEED}", done.stderr)
        assert len(saved) == 1, done.stderr
    done = run(write(tmp_path, train | {"steps": 6}), 2)
    loaded = re.findall(rf"loaded {root}/global_step4 \(step 4\): {_SIZE_AND_SPEED}", done.stderr)
    assert len(loaded) == 1 and "goes on from step 4" in done.stdout, done


def test_steps_that_lie_behind_the_checkpoint_are_told(tmp_path, tokens):
    _, train = make(tmp_path, tokens, steps=4)
    assert run(write(tmp_path, train)).returncode == 0
    done = run(write(tmp_path, train))
    assert done.returncode == 0 and "step 4 of 4 is done already: nothing is left to train" in done.stdout, done
    done = run(write(tmp_path, train | {"steps": 3}))
    assert done.returncode == 0 and "is of step 4, which is beyond the 3 steps of this run" in done.stdout, done
    assert "Give more train.steps" in done.stdout


def test_another_seed_is_named(tmp_path, tokens):
    _, train = make(tmp_path, tokens, steps=2)
    train["data"]["shuffle"] = True
    assert run(write(tmp_path, train)).returncode == 0
    done = run(write(tmp_path, train | {"seed": 1, "steps": 4}))
    assert done.returncode == 2, done
    assert "was made with train.seed 0, this run has 1" in done.stderr and "Give that seed" in done.stderr
    train["data"]["length"] = 16
    done = run(write(tmp_path, train | {"steps": 4}))
    assert "was made with other data, or another length, packing, order: rows" in done.stderr, done


def modes(folder):
    """{name: permissions} of all files and folders, without those of checkpoints and of tokens."""
    found = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in ("checkpoints", "tokens")]
        for name in (".", *files):
            path = os.path.join(place, name)
            found[os.path.relpath(path, folder)] = stat.S_IMODE(os.stat(path).st_mode)
    return found


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o007])
def test_results_follow_the_umask_and_checkpoints_are_private(tmp_path, tokens, mask):
    _, train = make(tmp_path, tokens, steps=2)
    config = write(tmp_path, train)
    done = subprocess.run(["sh", "-c", f'umask {mask:03o} && exec "$@"', "sh", *command(config)], timeout=120)
    assert done.returncode == 0
    found = modes(tmp_path / "trained")
    assert {"model.safetensors", "config.json", "metrics.jsonl", "metrics.csv", "metrics.svg"} <= found.keys()
    for name, mode in found.items():
        is_folder = (tmp_path / "trained" / name).is_dir()
        if name != ".lock":
            assert oct(mode) == oct((0o777 if is_folder else 0o666) & ~mask), name
    checkpoints = tmp_path / "trained" / "checkpoints"
    assert set(modes(checkpoints).values()) == {0o700, 0o600}
