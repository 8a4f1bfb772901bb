"""Paths that are no UTF-8, a umask that takes all permissions, and a limit of file sizes: clear errors, no crash."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys

import pytest
import torch
import zeroshard
from built import LM, ZEROSHARD, needs
from tokenizer_data import train_byte_level

BYTES = "\udcff"  # as Python shows the byte 0xff of a path

CONFIG = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}


def make_linear_engine(**more):
    return zeroshard.initialize(model=torch.nn.Linear(4, 4), config=CONFIG | more)[0]


def zeroshard_command(*arguments, **options):
    return subprocess.run([ZEROSHARD, *map(str, arguments)], capture_output=True, timeout=60, **options)


# --- paths that are no UTF-8 ------------------------------------------------------------------------------------------


def test_engines_write_to_paths_of_any_bytes(tmp_path):
    folder = str(tmp_path / f"a{BYTES}b")
    engine = make_linear_engine()
    engine.save_checkpoint(folder)
    assert engine.load_checkpoint(folder)[0] == f"{folder}/global_step0"
    engine.save_16bit_model(folder)
    assert os.path.exists(f"{folder}/model.safetensors")
    (tmp_path / f"c{BYTES}.json").write_text(json.dumps(CONFIG))
    zeroshard.initialize(model=torch.nn.Linear(4, 4), config=str(tmp_path / f"c{BYTES}.json"))


@pytest.mark.parametrize("text", [f"/tmp/{BYTES}", "\ud800"])
def test_text_of_a_configuration_is_utf_8(text):
    zero = {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": text}}
    place = re.escape("config['zero_optimization']['offload_optimizer']['nvme_path'] is " + repr(text))
    with pytest.raises(ValueError, match=place + ".*UTF-8"):
        make_linear_engine(zero_optimization=zero)


def test_a_tag_that_is_no_utf_8_is_told_in_a_line(tmp_path):
    engine = make_linear_engine()
    for call in (engine.save_checkpoint, engine.load_checkpoint):
        with pytest.raises(ValueError, match="^(?!.*incompatible).*tag") as told:
            call(str(tmp_path), tag=f"t{BYTES}")
        assert len(str(told.value)) < 500


def test_commands_show_paths_of_any_bytes(tmp_path):
    folder = str(tmp_path / f"a{BYTES}b")
    engine = make_linear_engine()
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    for arguments in (["list", folder], ["inspect", folder]):
        for more in ([], ["--json"]):
            done = zeroshard_command("checkpoint", *arguments, *more)
            assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"].endswith("a�b/global_step0")


@needs(LM)
def test_tokens_at_paths_of_any_bytes(tmp_path):
    train_byte_level(["a text"], ["</s>"]).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "in.txt").write_text("a text")
    output = tmp_path / f"o{BYTES}.tokens"
    options = ["--tokenizer", tmp_path, "--no-append-eos", "--output", output]
    assert zeroshard_command("tokenize", tmp_path / "in.txt", *options).returncode == 0
    done = zeroshard_command("tokenize", "--inspect", output, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["documents"] == 1, done.stderr


# --- a umask that takes all permissions -------------------------------------------------------------------------------


def without_privileges(*argv):
    """As a user whom permissions bind, with umask 0777."""
    drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    if drop and shutil.which("setpriv") is None:
        pytest.skip("root needs setpriv to be bound by permissions")
    command = [*drop, "sh", "-c", 'umask 0777; exec "$@"', "sh", *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_umask_is_named_where_it_is_in_the_way(tmp_path):
    (tmp_path / "script.py").write_text("print('a line')")
    logs = without_privileges(ZEROSHARD, "run", "--nproc", "2", "--log-dir", tmp_path / "logs", tmp_path / "script.py")
    assert logs.returncode == 2 and f"cannot write logs to '{tmp_path / 'logs'}'" in logs.stderr, logs.stderr
    (tmp_path / "save.py").write_text(
        "import sys, torch, zeroshard\n"
        f"config = {CONFIG!r}\n"
        "engine, *_ = zeroshard.initialize(model=torch.nn.Linear(4, 4), config=config)\n"
        "engine.save_16bit_model(sys.argv[1])\n"
    )
    saved = without_privileges(sys.executable, tmp_path / "save.py", tmp_path / "weights")
    assert saved.returncode == 1 and f"cannot open the directory {tmp_path / 'weights'}: " in saved.stderr, saved.stderr
    for done in (logs, saved):
        assert "The umask is 0777, which takes this user's own permissions from what is created: set it" in done.stderr


# --- a limit of file sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [["config", "keys"], ["--help"], ["plan", "--params", "7e9", "--world-size", "8"]]
)
def test_a_limit_of_file_sizes_is_an_error_of_the_output(tmp_path, arguments):
    with open(tmp_path / "output", "w") as output:
        command = [ZEROSHARD, *arguments]
        limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))}
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, **limit)
    assert done.returncode == 1 and done.stderr.startswith("zeroshard: standard output cannot be written"), done


def test_a_rank_decides_itself_about_limits_of_file_sizes(tmp_path):
    """It is started with the signal as it was; Python ignores it when it starts."""
    program = ["sh", "-c", "kill -XFSZ $$; echo goes on"]
    assert zeroshard_command("run", "--no_python", "--nproc", "1", *program).returncode == 128 + 25
