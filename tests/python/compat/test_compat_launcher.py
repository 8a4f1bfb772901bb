"""DeepSpeed's options of `zeroshard run` on one host: GPUs, hostfiles, cores and logs."""

import os
import socket

import pytest
from built import ZEROSHARD, needs
from launched import (
    environment,
    run,
    script,  # noqa: F401 - a fixture
)

pytestmark = needs(ZEROSHARD)
SAY = "print('SAID', os.environ['WORLD_SIZE'], os.environ.get('CUDA_VISIBLE_DEVICES'), sorted(os.sched_getaffinity(0)))"
UUIDS = "GPU-1a,GPU-2b,GPU-3c"


def said(*arguments, **variables):
    """What each rank said, sorted, and what the launcher said."""
    code, out, err = run(*arguments, env=environment(**variables))
    assert code == 0, err
    return sorted(line.partition("SAID ")[2] for line in out.splitlines()), err


@pytest.mark.skipif(any(name[6:].isdigit() for name in os.listdir("/dev") if name[:6] == "nvidia"), reason="a GPU")
def test_gpus_on_a_host_without_any(script):
    """N ranks on its CPUs, and one line that says so."""
    for option in ("--num_gpus", "--num_accelerators"):
        ranks, err = said(option, "2", script(SAY))
        assert len(ranks) == 2 and all(line.startswith("2 None") for line in ranks)
        assert "[zeroshard] 2 GPUs are asked for, and this host has none: 2 ranks on its CPUs\n" in err


@pytest.mark.parametrize(
    ("visible", "filter_", "left"),
    [
        ("4,5,7", ["--include", "localhost:7,4"], "4,7"),
        ("4,5,7", ["-e", "localhost:5"], "4,7"),
        ("4,5,7", ["--include=localhost"], "4,5,7"),
        ("4,5,7", ["-i", f"{socket.gethostname()}:5@localhost:5"], "5"),
        (UUIDS, ["--include", "localhost:GPU-2b"], "GPU-2b"),
        (UUIDS, ["--exclude", "localhost:0"], "GPU-2b,GPU-3c"),
    ],
)
@pytest.mark.skipif(any(name[6:].isdigit() for name in os.listdir("/dev") if name[:6] == "nvidia"), reason="a GPU")
def test_a_rank_for_each_chosen_gpu(script, visible, filter_, left):
    ranks, _ = said(*filter_, script(SAY), CUDA_VISIBLE_DEVICES=visible)
    count = left.count(",") + 1
    assert [line.split(" [")[0] for line in ranks] == [f"{count} {left}"] * count


def test_a_hostfile_of_this_host(script, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# ours\n\nlocalhost slots=2\n")
    ranks, _ = said("--hostfile", str(hosts), script(SAY))
    assert len(ranks) == 2
    ranks, _ = said("-H", str(hosts), "--nproc", "1", script(SAY))
    assert len(ranks) == 1


def test_each_rank_has_its_cores(script):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core")
    half = len(cores) // 2
    expected = sorted([f"2 None {cores[:half]}", f"2 None {cores[half : 2 * half]}"])
    ranks, err = said("--nproc", "2", "--bind_cores_to_rank", script(SAY))
    assert ranks == expected
    assert f"OMP_NUM_THREADS={half} for each of 2 ranks" in err
    ranks, _ = said("--nproc=1", "--bind_core_list", f"{cores[1]}", script(SAY))
    assert ranks == [f"1 None [{cores[1]}]"]


def test_logs_of_ranks(script, tmp_path):
    said("--nproc", "2", "--enable_each_rank_log", str(tmp_path / "logs"), script(SAY))
    assert sorted(os.listdir(tmp_path / "logs")) == ["rank-0.log", "rank-1.log"]
    said("--nproc", "1", "--enable_each_rank_log=None", script(SAY))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--include", "localhost:9"], "--include names the GPU '9', and this host shows 4,5"),
        (["--include", "localhost:x"], "--include names the GPU 'x', and this host shows 4,5"),
        (["--exclude", "localhost"], "--exclude is 'localhost', which leaves no GPU of 4,5"),
        (["--include", "other:0"], "--include names the host 'other', which is not this one (localhost)"),
        (["--include", "localhost:4", "--exclude", "localhost:5"], "give --include or --exclude, not both"),
        (["--include", "localhost:4", "--num_gpus", "1"], "--include and --exclude choose GPUs, one rank for each"),
        (["--hostfile", "no-such"], "hostfile 'no-such' cannot be read"),
        (["--bind_core_list", "3-1"], "--bind_core_list is '3-1', expected CPUs in rising order"),
        (["--nproc", "1", "--bind_core_list", "4000"], "core 4000 cannot be bound"),
        (["--nproc", "5", "--bind_core_list", "0"], "there are 1 cores to bind and 5 ranks"),
    ],
)
def test_wrong_input(arguments, message):
    code, _, err = run(*arguments, "true", env=environment(CUDA_VISIBLE_DEVICES="4,5"))
    assert (code, err.count("\n")) == (2, 1), err
    assert err.startswith("zeroshard: " + message)


def test_a_hostfile_of_another_host_alone(tmp_path):
    """Several hosts are in test_hostfile.py."""
    hosts = tmp_path / "hosts"
    hosts.write_text("other slots=2\n")
    code, _, err = run("--hostfile", str(hosts), "true")
    assert (code, err.count("\n")) == (2, 1)
    assert "line 1 names 'other' alone, which is not this host: run it there" in err
