"""`zeroshard doctor` from outside: what it measures, what it leaves, bad input."""

import json
import os
import resource
import subprocess

from built import ZEROSHARD, needs

pytestmark = needs(ZEROSHARD)


def run(*args, **more):
    command = [ZEROSHARD, "doctor", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **more)


def diagnose(*args, **more):
    result = run(*args, "--seconds", 0.1, "--json", **more)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_memory_is_what_the_system_says():
    found = diagnose("--nproc", 4)
    with open("/proc/meminfo") as file:
        total = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemTotal:"))
    assert found["memory_total_bytes"] == total and 0 < found["memory_available_bytes"] <= total
    assert found["rank_bytes"] <= total // 4
    assert found["copy_bytes_per_second"] > 1e7 and found["copy_threads"] >= 1
    assert "disk" not in found


def test_a_limit_of_the_process_limits_each_rank():
    limit = 1 << 33
    # A rank of many has less than that of the machine: one has the limit.
    found = diagnose(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert found["address_limit_bytes"] == limit and found["rank_bytes"] <= limit


def test_a_directory_is_measured_and_left_empty(tmp_path):
    disk = diagnose("--path", tmp_path)["disk"]
    assert disk["path"] == str(tmp_path) and disk["file_system"] and disk["queue"] in ("io_uring", "threads")
    assert 0 < disk["file_bytes"] <= min(512 << 20, max(64 << 20, disk["free_bytes"]))
    assert {(rate["block_size"], rate["queue_depth"]) for rate in disk["rates"]} == {
        (block << 10, depth) for block in (256, 1024, 4096) for depth in (8, 32)
    }
    assert disk["best"] == max(disk["rates"], key=lambda rate: rate["bytes_per_second"])
    assert disk["best"]["bytes_per_second"] > 1e6
    assert not os.listdir(tmp_path)
    text = run("--path", tmp_path, "--seconds", 0.1).stdout
    lines = text.splitlines()
    names = ["memory", "control group", "ulimit -v", "ulimit -l", "each rank", "copies", "directory", "access"]
    assert [line[:14].strip() for line in lines if line[0] != " "] == [*names, "read + write", "best"]
    assert '"aio": {"block_size": ' in text
    assert "copies" in run("--seconds", 0.1).stdout and "--path DIR" in run("--seconds", 0.1).stdout


def test_a_tmpfs_is_warned_of():
    disk = diagnose("--path", "/dev/shm")["disk"]
    assert disk["file_system"] == "tmpfs" and disk["in_memory"]
    assert "WARNING: a tmpfs" in run("--path", "/dev/shm", "--seconds", 0.1).stdout


def test_bad_input_is_told(tmp_path):
    (tmp_path / "file").touch()
    for args, message in [
        (["--path", tmp_path / "missing"], f"--path: cannot open the directory {tmp_path}/missing"),
        (["--path", tmp_path / "file"], "Not a directory"),
        (["--nproc", 0], "--nproc is '0'"),
        (["--seconds", 0], "--seconds must be above 0"),
        (["--seconds", "soon"], "--seconds"),
    ]:
        result = run(*args)
        assert result.returncode == 2 and message in result.stderr and not result.stdout, result.stderr
    # No file may be that large, as on a full disk.
    limit = (1 << 20, resource.RLIM_INFINITY)
    result = run("--path", tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert result.returncode == 2 and "cannot reserve space for the swap file" in result.stderr, result
    assert os.listdir(tmp_path) == ["file"]
