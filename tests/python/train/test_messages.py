"""What an engine tells a person on stderr and in errors: keys without effect, saves and loads, a mistyped path."""

import os
import re
import stat
import subprocess

import models
import pytest
import torch
import world
import zeroshard
from built import ZEROSHARD, needs
from zeroshard.encoding import encode
from zeroshard.messages import a_type


def initialize(**blocks):
    config = models.configuration(1, optimizer=blocks.pop("optimizer", models.adamw()), **blocks)
    return zeroshard.initialize(model=models.stack(), config=config)[0]


def test_articles():
    assert [a_type(each) for each in (object(), 1, torch.ones(1), "x", OSError())] == [
        *("an object", "an int", "a Tensor", "a str", "an OSError")
    ]
    with pytest.raises(ValueError, match="state is an object, and a checkpoint holds"):
        encode(object(), "state", None)


# -- keys ------------------------------------------------------------------------------------------------------------


def keys_without_effect():
    optimizer = models.adamw()
    optimizer["params"]["lr"] = "auto"
    initialize(wall_clock_breakdown=False, dump_state=True, flops_profiler={"enabled": True}, optimizer=optimizer)


def test_keys_without_effect_are_told_one_by_one():
    first, second = world.run_ranks(2, keys_without_effect)
    assert "no effect" not in second.log and "auto" not in second.log
    told = re.findall(r"^\[zeroshard\] no effect: (.*)$", first.log, re.MULTILINE)
    assert len(told) == 2, first.log
    assert told[0].startswith("dump_state = true: ") and "`zeroshard config explain FILE`" in told[0]
    assert told[1].startswith("flops_profiler = ") and "torch.profiler" in told[1]
    assert 'warning: optimizer.params.lr = "auto" becomes 0.001, the default' in first.log


# -- checkpoints -----------------------------------------------------------------------------------------------------


def save_and_load(folder):
    engine = initialize()
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    engine.load_checkpoint(folder)


def test_saves_and_loads_are_one_line_each(tmp_path):
    first, second = world.run_ranks(2, save_and_load, folder=str(tmp_path / "run"))
    told = rf" {tmp_path}/run/global_step0 \(step 0\): \d+\.\d MB in \d+\.\d\d s, \d+\.\d MB/s$"
    for what in ("saved", "loaded"):
        assert len(re.findall(rf"^\[zeroshard[^\]]*\] {what}{told}", first.log, re.MULTILINE)) == 1, first.log
        assert f"] {what} " not in second.log


def load_only(folder):
    return initialize().load_checkpoint(folder)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (
            "chekpoints",
            r"\] nothing is loaded, training starts from the beginning: there is no directory {0}/chekpoints$",
        ),
        ("runB", r"\] nothing is loaded, training starts from the beginning: there is no directory {0}/runB$"),
        ("nowhere/run", "warning: nothing is loaded, .*there is no directory {0}/nowhere/run, nor {0}/nowhere: is the"),
        ("other", r"\] nothing is loaded, training starts from the beginning: there is no directory {0}/other$"),
        ("run-2", r"\] nothing is loaded, training starts from the beginning: there is no directory {0}/run-2$"),
    ],
)
def test_a_directory_that_is_not_there_yet(tmp_path, path, told):
    """A first start finds none, beside those of other runs."""
    for name in ("checkpoints", "run-1", "runA"):
        (tmp_path / name).mkdir()
    (rank,) = world.run_ranks(1, load_only, folder=str(tmp_path) + "/" + path)
    assert rank.value == [None, None], rank
    assert re.search(told.format(tmp_path), rank.log, re.MULTILINE), rank.log


def load_what_must_be_there(folder, **how):
    try:
        initialize().load_checkpoint(folder, **how)
    except (zeroshard.IoError, ValueError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("how", [{"strict": True}, {"tag": "global_step3"}])
def test_a_mistyped_path_that_must_be_there(tmp_path, how):
    (tmp_path / "checkpoints").mkdir()
    for path in ("chekpoints", "ckeckpoints/"):
        (said,) = world.run(1, load_what_must_be_there, folder=f"{tmp_path}/{path}", **how)
        assert f"there is no directory {tmp_path}/{path}".rstrip("/") in said, said
        assert "; did you mean 'checkpoints'?" in said, said
    (said,) = world.run(1, load_what_must_be_there, folder=f"{tmp_path}/other", **how)
    assert "did you mean" not in said


def one_rank_exports(folder):
    engine = initialize(zeroshard={"timeout_s": 20})
    if world.rank() == 0:
        engine.save_16bit_model(folder)
    else:
        engine(models.vectors(0, 0, 2)[0])
        engine.save_checkpoint(folder)


def test_a_call_on_one_rank_alone_has_its_own_name(tmp_path):
    for rank in world.run_ranks(2, one_rank_exports, folder=str(tmp_path)):
        assert rank.exit_code == 1 and "barrier('save_16bit_model')" in rank.error, rank.error
        assert "save_checkpoint or load_checkpoint" not in rank.error


# -- files -----------------------------------------------------------------------------------------------------------


def export_and_save(folder, mask):
    os.umask(mask)
    engine = initialize()
    engine.save_16bit_model(os.path.join(folder, "exported"))
    engine.save_checkpoint(os.path.join(folder, "run"))
    engine.wait_for_checkpoint()


def modes(folder):
    """Those of a folder and of everything in it."""
    return {
        path.relative_to(folder).as_posix(): (stat.S_IMODE(path.stat().st_mode), path.is_dir())
        for path in (folder, *folder.rglob("*"))
    }


@needs(ZEROSHARD)
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_exports_follow_the_umask_and_checkpoints_are_private(tmp_path, mask):
    world.run(1, export_and_save, folder=str(tmp_path), mask=mask)
    command = [ZEROSHARD, "checkpoint", "export", tmp_path / "run", tmp_path / "again"]
    subprocess.run(["sh", "-c", f'umask {mask:03o}; "$@"', "sh", *command], check=True, timeout=60)
    for exported in (modes(tmp_path / "exported"), modes(tmp_path / "again")):
        assert "model.safetensors" in exported
        for name, (mode, is_folder) in exported.items():
            assert oct(mode) == oct((0o777 if is_folder else 0o666) & ~mask), name
    for name, (mode, is_folder) in modes(tmp_path / "run").items():
        assert oct(mode) == oct(0o700 if is_folder else 0o600), name
