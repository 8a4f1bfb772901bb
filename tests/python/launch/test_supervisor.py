"""`zeroshard run` when ranks fail: restarts, fewer ranks, kills at any time, hostile input.

ZEROSHARD_FAULT_RUNS=200 for the counts of a release.
"""

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import world
from built import ZEROSHARD, needs
from launched import (
    DAEMON,
    NOTE,
    WAIT,
    alive,
    environment,
    forget_pids,
    launch,
    listening_addresses,
    pids_in,
    run,
    script,  # noqa: F401 - a fixture
    supervisor_of,
)
from waiting import wait_for

pytestmark = [
    needs(ZEROSHARD),
    pytest.mark.fault,
]
RUNS = int(os.environ.get("ZEROSHARD_FAULT_RUNS", "0"))
RESTART = "restart = int(os.environ['ZEROSHARD_RESTART_COUNT'])\n"
ENVIRONMENT = (
    "import json\nnames = ['RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'MASTER_PORT', 'ZEROSHARD_RESTART_COUNT',"
    " 'TORCHELASTIC_RESTART_COUNT', 'TORCHELASTIC_MAX_RESTARTS']\n"
    "os.write(1, (json.dumps({n: os.environ[n] for n in names}) + '\\n').encode())\n"
)
# Nobody fails, and so ends the other, before both are in the log.
BOTH_HAVE_PRINTED = (
    "open(f'{folder}/{restart}-{rank}', 'w').close()\n"
    "while not os.path.exists(f'{folder}/{restart}-{1 - rank}'): time.sleep(0.01)\n"
)


def environments(out):
    """What ENVIRONMENT printed, by (restart, rank)."""
    found = [json.loads(line[line.index("{") :]) for line in out.splitlines() if "{" in line]
    return {(int(env["ZEROSHARD_RESTART_COUNT"]), int(env["RANK"])): env for env in found}


def no_process_left(folder):
    """Nobody that runs a script in `folder`."""
    left = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (path / "cmdline").read_bytes() and alive(int(path.name)):
                left.append(path.name)
        except OSError:
            pass
    return left == []


# --- restarts ---------------------------------------------------------------------------------------------------------


@pytest.mark.row("K8")
def test_a_failed_job_starts_again(script, tmp_path):
    """All ranks anew, on another port, with torchrun's variables; the log has both starts."""
    met = tmp_path / "met"
    met.mkdir()
    body = RESTART + ENVIRONMENT + f"folder = '{met}'\n" + BOTH_HAVE_PRINTED
    body += "if restart < 2 and rank == restart: sys.exit(5)\nif restart < 2: time.sleep(60)\n"
    code, out, err = run("--nproc", "2", "--max-restarts", "3", "--log-dir", str(tmp_path / "logs"), script(body))
    assert code == 0, err
    envs = environments(out)
    assert sorted(envs) == [(restart, rank) for restart in range(3) for rank in range(2)]
    for (restart, _), env in envs.items():
        assert (env["TORCHELASTIC_RESTART_COUNT"], env["TORCHELASTIC_MAX_RESTARTS"]) == (str(restart), "3")
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == ("2", "2")
    assert len({env["MASTER_PORT"] for env in envs.values()}) == 3
    assert "[zeroshard] rank 0 ended with exit code 5: restart 1 of 3 begins, with 2 ranks\n" in err
    assert "[zeroshard] rank 1 ended with exit code 5: restart 2 of 3 begins, with 2 ranks\n" in err
    assert (tmp_path / "logs/rank-1.log").read_text().count('"RANK": "1"') >= 2


def test_a_port_of_the_user_stays(script):
    """Rank 0 can listen on it again at once."""
    port, claim = world.reserve_port()
    body = RESTART + ENVIRONMENT
    body += "import socket\ns = socket.create_server(('127.0.0.1', int(os.environ['MASTER_PORT'])))\n"
    body += "c = socket.create_connection(s.getsockname()); s.accept()[0].close()\nif restart == 0: sys.exit(1)\n"
    with claim:
        code, out, err = run("--nproc", "1", "--max-restarts", "1", "--master_port", str(port), script(body))
    assert code == 0, err
    assert {env["MASTER_PORT"] for env in environments(out).values()} == {str(port)}


def test_the_last_failure_gives_the_code(script):
    code, _, err = run("--nproc", "1", "--max-restarts", "2", script(RESTART + "sys.exit(10 + restart)"))
    assert code == 12
    assert "not started again: rank 0 ended with exit code 12 and --max-restarts 2 is used up" in err
    assert err.count("begins, with 1 rank\n") == 2


def test_a_crash_loop_ends(script):
    code, _, err = run("--nproc", "1", "--max-restarts", "1000", script("sys.exit(3)"))
    assert code == 3
    assert err.count("restart 1 of 1000 begins") == err.count("begins") == 1
    assert "not started again: rank 0 ended with exit code 3 before any step, twice in a row" in err


def test_without_max_restarts_nothing_starts_again(script):
    code, _, err = run("--nproc", "1", script("sys.exit(3)"))
    assert code == 3
    assert "begins" not in err and "again" not in err


@pytest.mark.row("K8")
def test_fewer_ranks(script):
    """Rank 2 always fails: after its second failure the job goes on without it."""
    body = ENVIRONMENT + "if rank == 2: sys.exit(4)\nif os.environ['WORLD_SIZE'] == '3': time.sleep(60)\n"
    code, out, err = run("--nproc", "3", "--max-restarts", "5", "--min-ranks", "2", script(body))
    assert code == 0, err
    last = [env for (restart, _), env in environments(out).items() if restart == 2]
    assert [env["WORLD_SIZE"] for env in last] == ["2", "2"]
    assert "rank 2 ended with exit code 4 twice in a row, so there is one rank fewer: restart 2 of 5 begins" in err


@pytest.mark.row("K8")
def test_a_rank_that_cannot_be_started_is_left_out(script):
    """For want of file descriptors: the launcher needs some for each rank."""
    body = ENVIRONMENT
    limit = ["sh", "-c", 'ulimit -n 45; exec "$@"', "-"]
    args = ["run", "--nproc", "16", "--max-restarts", "15", "--min-ranks", "1", script(body)]
    done = subprocess.run([*limit, ZEROSHARD, *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.search(r"rank \d+ could not be started, so there is one rank fewer: restart 1 of 15 begins", done.stderr)
    restart = max(restart for restart, _ in environments(done.stdout))
    assert restart >= 1
    assert environments(done.stdout)[restart, 0]["WORLD_SIZE"] == str(16 - restart)
    strict = subprocess.run([*limit, ZEROSHARD, *args[:3], *args[-1:]], capture_output=True, text=True, timeout=60)
    assert strict.returncode == 1
    assert "Too many open files" in strict.stderr


@pytest.mark.row("P1")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_users_signal_is_the_end(script, tmp_path, number):
    """Also when the ranks fail because of it, which shows in the exit code."""
    body = f"signal.signal({int(number)}, lambda *_: os._exit(9))\n" + NOTE + WAIT
    process = launch("--nproc", "2", "--max-restarts", "5", script(body))
    pids = pids_in(tmp_path, 2)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 9
    assert b"begins" not in err
    assert not any(map(alive, pids))


def test_a_signal_while_failed_ranks_end_is_the_end(script, tmp_path):
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + NOTE
    body += "while rank == 1 and not os.path.exists(os.path.dirname(__file__) + '/go'): time.sleep(0.01)\n"
    path = script(body + "if rank == 1: sys.exit(6)\n" + WAIT)
    process = launch("--nproc", "2", "--max-restarts", "5", "--grace-period", "1", path)
    pids_in(tmp_path, 2)
    (tmp_path / "go").touch()
    line = process.stderr.readline
    wait_for(lambda: b"ending the other ranks" in line(), "the failure")
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 6
    assert b"begins" not in err


@pytest.mark.row("K5")
def test_a_stopped_rank_starts_again(script, tmp_path):
    body = RESTART + NOTE + "if restart == 0: time.sleep(60)\n"
    process = launch("--nproc", "2", "--stall-timeout", "0.5", "--max-restarts", "1", script(body))
    os.kill(pids_in(tmp_path, 2)[0], signal.SIGSTOP)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert b"has been stopped by SIGSTOP for" in err
    assert re.search(rb"rank \d made no progress: restart 1 of 1 begins", err)


@pytest.mark.row("K7")
@pytest.mark.parametrize("victim", ["launcher", "supervisor"])
def test_kill_9_of_the_launcher_is_the_end(script, tmp_path, victim):
    """After a restart too; and nobody starts again."""
    path = script(RESTART + "if restart == 0: sys.exit(1)\n" + DAEMON + NOTE + WAIT)
    for _ in range(min(RUNS, 50) or 1):
        process = launch("--nproc", "2", "--max-restarts", "9", path)
        pids = pids_in(tmp_path, 4)
        os.kill(process.pid if victim == "launcher" else supervisor_of(process), signal.SIGKILL)
        wait_for(lambda pids=pids: not any(map(alive, pids)), "all processes to be gone", seconds=5)
        _, err = process.communicate(timeout=5)
        assert err.count(b"begins") == 1
        assert no_process_left(tmp_path)
        forget_pids(tmp_path)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--max-restarts", "-1"], "--max-restarts is '-1', expected a whole number >= 0"),
        (["--max-restarts", "many"], "--max-restarts is 'many', expected a whole number >= 0"),
        (["--max-restarts", "99999999999"], "--max-restarts is '99999999999', expected a whole number >= 0"),
        (["--max-restarts", "1", "--min-ranks", "5"], "--min-ranks is 5 but the job has 2 ranks (--nproc)"),
        (["--min-ranks", "5"], "--min-ranks is 5 but the job has 2 ranks (--nproc)"),
        (["--min-ranks", "0"], "--min-ranks is '0', expected a whole number >= 1"),
        (["--min-ranks", "1"], "--min-ranks is 1: give --max-restarts too"),
        (["--hang-timeout", "x"], "--hang-timeout is 'x', expected seconds >= 0"),
        (["--hang-timeout", "-1"], "--hang-timeout is '-1', expected seconds >= 0"),
        (["--hang-timeout", "inf"], "--hang-timeout is 'inf', expected seconds >= 0"),
        (["--max-restarts", "1", "--nnodes", "2", "--master_addr", "a"], "--max-restarts is 1 but this command starts"),
    ],
)
def test_wrong_options(args, message):
    code, out, err = run("--nproc", "2", *args, "true")
    assert (code, out) == (2, "")
    assert err.startswith("zeroshard: " + message), err
    assert err.count("\n") == 1


# --- hangs, of a real training; tests/launch/hang_watch_test.cpp has the rest -----------------------------------------

TRAIN = """
import torch, zeroshard
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
config = {'train_micro_batch_size_per_gpu': 2, 'optimizer': {'type': 'Adam'}, 'zero_optimization': {'stage': 3}}
engine, *_ = zeroshard.initialize(model=model, config=config)
def stuck(): time.sleep(100)
for step in range(5):
    if restart == 0 and rank == 1 and step == 3: stuck()
    engine.backward(engine(torch.ones(2, 8)).sum())
    engine.step()
print('done')
"""


@pytest.mark.row("K5")
def test_a_hung_rank_is_found_and_shown(script):
    """With where each rank waits, its Python and its native stack; then the job starts again."""
    pytest.importorskip("torch")
    pytest.importorskip("zeroshard._C")
    process = launch("--nproc", "2", "--hang-timeout", "5", "--max-restarts", "1", script(RESTART + TRAIN))
    out, err = (text.decode() for text in process.communicate(timeout=120))  # torch is loaded four times
    assert process.returncode == 0, err
    assert "no progress for 5 s (--hang-timeout); most likely because of rank 1\n" in err
    assert re.search(r"rank 0 \(pid \d+\): step 3, last progress \S+ s ago; waits in .*all_gather", err)
    assert re.search(r"rank 1 \(pid \d+\): step 3, last progress \S+ s ago; waits for no rank; S \(sleeping\)", err)
    assert re.search(r'\[rank 1\]   File ".*train.py", line \d+ in stuck\n', err)
    for rank in range(2):
        assert f"[rank {rank}] zeroshard: native stack of thread " in err
    assert "rank 1 made no progress: restart 1 of 1 begins, with 2 ranks\n" in err
    assert len(re.findall(r"^\[rank \d\] done$", out, re.M)) == 2


# --- a signal ends a real training in a checkpoint --------------------------------------------------------------------

TRAIN_AND_SAVE = """
import torch, zeroshard
model = torch.nn.Sequential(torch.nn.Linear(8, 300), torch.nn.Linear(300, 1))
config = {'train_micro_batch_size_per_gpu': 2, 'optimizer': {'type': 'Adam'}, 'zero_optimization': {'stage': 3}}
engine, *_ = zeroshard.initialize(model=model, config=config)
engine.save_and_stop_on(os.path.dirname(__file__) + '/run')
while True:
    engine.backward(engine(torch.ones(2, 8)).sum())
    engine.step()
    if engine.global_steps == 3: open(f'{os.path.dirname(__file__)}/pid.{os.getpid()}', 'w').close()
"""


@pytest.mark.row("P1")
@pytest.mark.parametrize("whom", ["launcher", "rank"])
def test_a_signal_ends_in_one_whole_checkpoint(script, tmp_path, whom):
    """Nothing starts again, whoever got the signal."""
    pytest.importorskip("torch")
    pytest.importorskip("zeroshard._C")
    process = launch("--nproc", "2", "--grace-period", "20", "--max-restarts", "3", script(TRAIN_AND_SAVE))
    pids = pids_in(tmp_path, 2, seconds=60)
    os.kill(process.pid if whom == "launcher" else pids[0], signal.SIGTERM)
    begin = time.monotonic()
    err = process.communicate(timeout=30)[1].decode()
    assert time.monotonic() - begin < 20, err
    assert process.returncode == 143, err
    assert "begins" not in err
    assert not any(map(alive, pids))
    step = int(re.search(r"asked to stop: saving step (\d+) in ", err)[1])
    assert step >= 3
    # A rank that is slow may get the launcher's signal behind its own, and end before it removes its lock, which then
    # locks nothing any more.
    assert set(os.listdir(tmp_path / "run")) - {".lock"} == {f"global_step{step}", "latest"}
    subprocess.run([ZEROSHARD, "checkpoint", "verify", tmp_path / "run" / f"global_step{step}"], check=True, timeout=20)


@pytest.mark.row("P1")
def test_a_rank_that_cannot_save_after_a_signal_shows(script, tmp_path):
    body = "def save(number, frame): sys.exit('no space left' if rank == 1 else 143)\n"
    process = launch("--nproc", "2", script(body + "signal.signal(signal.SIGTERM, save)\n" + NOTE + WAIT))
    pids_in(tmp_path, 2)
    process.terminate()
    err = process.communicate(timeout=20)[1].decode()
    assert process.returncode == 1, err
    assert re.search(r"job failed: rank 1 \(pid \d+ on .*\) ended with exit code 1 after", err), err
    assert "no space left" in err.partition("job failed")[2]


@pytest.mark.row("P1")
def test_a_run_under_nohup_outlives_its_terminal(script, tmp_path):
    """SIGHUP ends nothing, whoever gets it; training goes on, and SIGTERM still ends it in a checkpoint."""
    pytest.importorskip("torch")
    pytest.importorskip("zeroshard._C")
    body = (
        TRAIN_AND_SAVE + "    open(f'{os.path.dirname(__file__)}/step.{rank}', 'w').write(f'{engine.global_steps}.')\n"
    )
    command = ["nohup", ZEROSHARD, "run", "--nproc", "2", "--grace-period", "20", script(body)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    pids = pids_in(tmp_path, 2, seconds=60)

    def steps():
        found = [re.fullmatch(r"(\d+)\.", (tmp_path / f"step.{rank}").read_text()) for rank in range(2)]
        return min(int(step[1]) for step in found) if all(found) else 0

    for pid in (process.pid, supervisor_of(process), *pids):
        before = wait_for(steps, "a step")
        os.kill(pid, signal.SIGHUP)
        wait_for(lambda: steps() > before + 20, "training to go on")  # noqa: B023
    assert process.poll() is None and all(map(alive, pids))
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 143, err
    assert [name.partition("step")[0] for name in sorted(os.listdir(tmp_path / "run"))] == ["global_", "latest"]


# --- kills at any time ------------------------------------------------------------------------------------------------


@pytest.mark.row("K1")
def test_a_rank_killed_at_any_time(script, tmp_path):
    """SIGKILL of a random rank at a random time: one line names it, all others end, and the restart completes."""
    body = RESTART + "print('up', rank, os.getpid(), flush=True)\n"
    body += "if restart == 0:\n    subprocess.Popen([sys.executable, '-c', 'input()', __file__], stdin=-1)\n"
    path = script(body + "    time.sleep(60)\ntime.sleep(0.1)\nprint('done', rank)\n")
    took = []
    for seed in range(RUNS or 6):
        rng = random.Random(seed)
        process = launch("--nproc", "4", "--max-restarts", "1", path)
        up = [process.stdout.readline().split() for _ in range(4)]
        pids = {int(words[3]): int(words[4]) for words in up}
        time.sleep(rng.random() * 0.2)  # some of what ranks start is there by then
        victim = rng.randrange(4)
        start = time.monotonic()
        os.kill(pids[victim], signal.SIGKILL)
        out, err = process.communicate(timeout=20)
        took.append(time.monotonic() - start)
        err = err.decode()
        assert process.returncode == 0, (seed, err)
        failed = [line for line in err.splitlines() if "job failed: " in line]
        assert len(failed) == 1, (seed, err)
        assert f"job failed: rank {victim} (pid {pids[victim]} on " in failed[0], (seed, err)
        assert "was killed by SIGKILL" in failed[0], (seed, err)
        assert err.count(f"rank {victim} was killed by SIGKILL: restart 1 of 1 begins, with 4 ranks\n") == 1, seed
        assert sorted(line.split()[-2:] for line in out.decode().splitlines() if "done" in line) == [
            ["done", str(rank)] for rank in range(4)
        ], seed
        assert not any(map(alive, pids.values())), seed
        assert no_process_left(tmp_path), seed
    assert max(took) < 10, took


@pytest.mark.row("K1")
def test_a_rank_killed_while_the_job_starts(script, tmp_path):
    """Before the launcher has started all others, too: whatever happens, the code is not 0 and nobody is left."""
    path = script(NOTE + WAIT)
    for seed in range(RUNS or 6):
        rng = random.Random(seed)
        process = launch("--no-deepspeed", "--nproc", "4", path)  # else its first child is a Python that it asks
        supervisor = wait_for(lambda p=process: first_child(p.pid), "the supervisor")
        rank = wait_for(lambda s=supervisor: first_child(s), "a rank")
        time.sleep(rng.random() * 0.03)  # as long as the start of the others takes
        os.kill(rank, signal.SIGKILL)
        _, err = process.communicate(timeout=20)
        # A child that dies before it has become the program looks as if it could not be started.
        assert process.returncode in (1, 137), (seed, err)
        assert b"SIGKILL" in err or b"cannot run" in err, (seed, err)
        assert no_process_left(tmp_path), seed


def first_child(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


# --- many jobs, much output, hostile input ----------------------------------------------------------------------------


@pytest.mark.row("L1")
def test_jobs_that_restart_at_once_do_not_collide(script):
    """Each rank 0 listens on its port, in both starts, and long enough for the others to come."""
    body = RESTART + ENVIRONMENT
    body += "import socket\ns = socket.create_server(('127.0.0.1', int(os.environ['MASTER_PORT'])))\ntime.sleep(0.1)\n"
    path = script(body + "sys.exit(1 - restart)\n")
    jobs = [launch("--nproc", "1", "--max-restarts", "1", path) for _ in range(min(RUNS, 100) or 10)]
    outputs = [job.communicate(timeout=120) for job in jobs]
    failed = [(job.returncode, *output) for job, output in zip(jobs, outputs, strict=True) if job.returncode]
    assert not failed, failed
    envs = [environments(out.decode()) for out, _ in outputs]
    assert all(set(env) == {(0, 0), (1, 0)} for env in envs)


@pytest.mark.row("L2")
def test_hostile_arguments_arrive_in_every_start(script, tmp_path):
    body = RESTART + "open(f'{sys.argv[1]}.{restart}', 'wb').write(b'\\0'.join(map(os.fsencode, sys.argv[2:])))\n"
    path = script(body + "sys.exit(1 - restart)\n")
    rng = random.Random(2)
    pieces = [b";", b"$(touch canary)", b"`touch canary`", b"\n", b"'", b'"', b"\\", b"|", b"&", b"*", b"~", b"\xff"]
    pieces += [b"--nproc", b"=", b"--", b"-o", b"{}", b"$RANK", b"%s", b" ", b"\t", b"\x01", "é€".encode()]
    arguments = [b"".join(rng.choices(pieces, k=rng.randrange(6))) for _ in range(10_000 if RUNS else 1000)]
    result = tmp_path / "argv"
    code, _, err = run("--nproc", "1", "--max-restarts", "1", path, str(result), *arguments, cwd=tmp_path)
    assert code == 0, err
    for restart in range(2):
        assert Path(f"{result}.{restart}").read_bytes().split(b"\0") == arguments
    assert not list(tmp_path.glob("canary*"))


@pytest.mark.row("L2")
def test_hostile_variables_arrive(script):
    """What the launcher sets wins over what it inherits, an outer job's heartbeat included."""
    body = "print([os.environ[n] for n in ('ZEROSHARD_RESTART_COUNT', 'WORLD_SIZE', 'ODD')], flush=True)\n"
    body += "fd = int(os.environ['ZEROSHARD_HEARTBEAT_FD'])\nprint(os.readlink(f'/proc/self/fd/{fd}').split()[0])\n"
    odd = "$(touch x)\n;`y`'\""
    env = {**os.environ, "ZEROSHARD_RESTART_COUNT": "x; y", "WORLD_SIZE": "-1", "ODD": odd, "VIRTUAL_ENV": sys.prefix}
    env["ZEROSHARD_HEARTBEAT_FD"] = "0"
    code, out, err = run("--nproc", "1", script(body), env=env)
    assert code == 0, err
    assert out.splitlines() == [str(["0", "1", odd]), "/memfd:zeroshard-heartbeat"]


@pytest.mark.row("L3")
def test_a_rank_that_reads_and_writes_no_more_stops_no_other(script, tmp_path):
    """Four ranks, megabytes each: rank 0 never reads its input, rank 3 is stopped in the midst of its output, and the
    log of rank 2 cannot become longer."""
    megabytes = 100 if RUNS else 4
    logs = tmp_path / "logs"
    body = "line = 'x' * 999 + '\\n'\nif rank == 3:\n    sys.stdout.write(line * 100 + 'half')\n"
    body += "    sys.stdout.flush()\n"
    body += "    " + NOTE + "    os.kill(os.getpid(), signal.SIGSTOP)\n"
    body += f"for _ in range({megabytes}): sys.stdout.write(line * 1000)\n"
    body += "if rank == 2:\n    sys.stdout.write(line)\n    sys.stdout.flush()\n"
    body += "open(f'{os.path.dirname(__file__)}/done.{rank}', 'w').close()\n"
    process = launch(
        "--nproc",
        "4",
        "--stall-timeout",
        "0",
        "--log-dir",
        str(logs),
        script(body),
        stdin=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10**6 * megabytes, resource.RLIM_INFINITY)),
    )
    feeder = threading.Thread(target=feed, args=(process,), daemon=True)
    feeder.start()
    counts = dict.fromkeys(range(4), 0)
    reader = threading.Thread(target=count_lines, args=(process.stdout, counts))
    reader.start()
    err = []
    threading.Thread(target=lambda: err.append(process.stderr.read()), daemon=True).start()
    wait_for(lambda: len(list(tmp_path.glob("done.*"))) == 3, "three ranks to be done", seconds=120)
    assert not (tmp_path / "done.3").exists()
    os.kill(pids_in(tmp_path, 1)[0], signal.SIGCONT)
    assert process.wait(timeout=120) == 0
    reader.join(timeout=20)
    assert [counts[rank] for rank in range(3)] == [1000 * megabytes, 1000 * megabytes, 1000 * megabytes + 1]
    assert counts[3] == 1000 * megabytes + 100
    assert os.path.getsize(logs / "rank-1.log") == 10**6 * megabytes
    wait_for(lambda: err, "stderr")
    assert b"the log of rank 2 ends here: File too large" in err[0]


@pytest.mark.row("X3")
@pytest.mark.parametrize("kind", ["link", "dangling", "fifo"])
def test_a_log_is_a_regular_file(script, tmp_path, kind):
    """A link that somebody planted would have its target cut, and a FIFO would wait for a reader for ever."""
    logs = tmp_path / "logs"
    logs.mkdir()
    (tmp_path / "mine").write_text("mine")
    if kind == "fifo":
        os.mkfifo(logs / "rank-0.log")
    else:
        (logs / "rank-0.log").symlink_to(tmp_path / ("mine" if kind == "link" else "new"))
    code, _, err = run("--nproc", "1", "--log-dir", str(logs), script("print('a line')\n"))
    assert code == 1 and f"cannot write {logs / 'rank-0.log'}: it is a link or a device" in err, err
    assert (tmp_path / "mine").read_text() == "mine" and not (tmp_path / "new").exists()


def test_logs_are_private_and_begin_anew(script, tmp_path):
    for text in ("a long line", "short"):
        code, _, err = run("--nproc", "1", "--log-dir", str(tmp_path / "logs"), script(f"print('{text}')\n"))
        assert code == 0, err
    log = tmp_path / "logs" / "rank-0.log"
    assert log.read_text() == "short\n" and log.stat().st_mode & 0o777 == 0o600


def feed(process):
    try:
        while True:
            process.stdin.write(b"y" * 65536)
    except (BrokenPipeError, ValueError):
        pass


def count_lines(stream, counts):
    for line in stream:
        rank = int(re.match(rb"\[rank (\d)\] (?:half)?x{999}\n", line)[1])
        counts[rank] += 1


@pytest.mark.row("X1")
def test_nothing_listens_beyond_loopback(script, tmp_path):
    """Neither of the launcher's processes listens at all, in a second start with heartbeats neither; rank 0 does on
    loopback."""
    body = RESTART + "if restart == 0: sys.exit(1)\n"
    body += "import socket\nif rank == 0:\n    s = socket.create_server((os.environ['MASTER_ADDR'],"
    body += " int(os.environ['MASTER_PORT'])))\n"
    process = launch("--nproc", "2", "--max-restarts", "1", "--hang-timeout", "5", script(body + NOTE + WAIT))
    pids = pids_in(tmp_path, 2)
    assert listening_addresses([process.pid, supervisor_of(process)]) == set()
    assert listening_addresses(pids) == {"0100007F"}
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 143
