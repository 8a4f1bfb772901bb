"""`zeroshard run` from outside, with real scripts: environment, exit codes, signals, orphans, output, ports."""

import json
import os
import pty
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import world
from built import ZEROSHARD, needs
from launched import (
    DAEMON,
    NOTE,
    WAIT,
    WAIT_FOR_TWO,
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

pytestmark = needs(ZEROSHARD)


# --- environment and arguments ----------------------------------------------------------------------------------------


def test_environment(script):
    path = script("import json\nprint(json.dumps(dict(os.environ)))")
    code, out, err = run("--nproc", "2", path, env=environment(KEPT="x=y\n", TORCHELASTIC_USE_AGENT_STORE="True"))
    assert code == 0, err
    envs = [json.loads(line.split("] ", 1)[1]) for line in sorted(out.splitlines())]
    for rank, env in enumerate(envs):
        assert env["RANK"] == env["LOCAL_RANK"] == env["ROLE_RANK"] == str(rank)
        assert env["WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"] == env["ROLE_WORLD_SIZE"] == "2"
        assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"]) == ("0", "1")
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("127.0.0.1", envs[0]["MASTER_PORT"])
        assert (env["TORCHELASTIC_RESTART_COUNT"], env["TORCHELASTIC_MAX_RESTARTS"]) == ("0", "0")
        assert env["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
        assert env["ZEROSHARD_LAUNCHER"] == "1"
        assert env["KEPT"] == "x=y\n"
        assert "CUDA_VISIBLE_DEVICES" not in env
        assert "TORCHELASTIC_USE_AGENT_STORE" not in env
    assert f"OMP_NUM_THREADS={envs[0]['OMP_NUM_THREADS']} for each of 2 ranks" in err


def test_variables_of_the_user_stay(script):
    path = script("print(os.environ['OMP_NUM_THREADS'], os.environ['CUDA_VISIBLE_DEVICES'])")
    code, out, err = run("--nproc=2", path, env=environment(OMP_NUM_THREADS="7", CUDA_VISIBLE_DEVICES="3,1"))
    assert (code, sorted(out.splitlines()), err) == (0, ["[rank 0] 7 3,1", "[rank 1] 7 3,1"], "")


@pytest.mark.row("L2")
def test_arguments_arrive_byte_for_byte(script, tmp_path):
    path = script("open(sys.argv[1], 'wb').write(b'\\0'.join(map(os.fsencode, sys.argv[2:])))")
    rng = random.Random(1)
    odd = [b"", b"--", b"-h", b"--nproc", b"plan", b"$(touch canary)", b"`touch canary`", b";touch canary", b"a\nb"]
    odd += [
        b'"q"',
        b"'",
        b"[1,2]",
        b"{x}",
        b"%n",
        b"\\",
        b"\xff\xfe",
        b"--nproc=3",
        b"-oProxyCommand=touch canary",
        b" ",
    ]
    for _ in range(2000):
        odd.append(bytes(rng.randrange(1, 256) for _ in range(rng.randrange(12))))
    rng.shuffle(odd)
    result = tmp_path / "argv"
    code, _, err = run("--nproc", "1", path, str(result), *odd, cwd=tmp_path)
    assert code == 0, err
    assert result.read_bytes().split(b"\0") == odd
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_separator(script, separator):
    path = script("print(sys.argv[1:])")
    assert run("--nproc", "1", *separator, path, "--", "x") == (0, "['--', 'x']\n", "")


def test_module_and_program(script, tmp_path):
    path = script("print(__name__, sys.argv[1:])", "mod.py")
    assert run("--nproc", "1", "-m", "mod", "-m", cwd=tmp_path) == (0, "__main__ ['-m']\n", "")
    assert run("--nproc", "1", "--no_python", "echo", "a  b") == (0, "a  b\n", "")
    os.rename(path, tmp_path / "-c.py")
    assert run("--nproc", "1", "./-c.py", cwd=tmp_path) == (0, "__main__ []\n", "")


def test_default_is_one_rank_per_device(script):
    path = script("print(os.environ['WORLD_SIZE'])")
    devices = len([p for p in Path("/dev").iterdir() if re.fullmatch(r"nvidia\d+", p.name)])
    code, out, _ = run(path, env=environment(CUDA_VISIBLE_DEVICES=""))
    assert (code, out) == (0, "1\n")
    code, out, _ = run(path, env=environment(CUDA_VISIBLE_DEVICES="0,1"))
    assert (code, len(out.splitlines())) == (0, min(devices, 2) if devices else 2)


@pytest.mark.row("L2")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--nproc", "0", "x.py"], "--nproc is '0', expected a whole number >= 1"),
        (["--nproc", "-1", "x.py"], "--nproc is '-1', expected a whole number >= 1"),
        (["--nproc", "two", "x.py"], "--nproc is 'two', expected a whole number >= 1"),
        (["--nproc", "1e9", "x.py"], "--nproc is '1e9', expected a whole number >= 1"),
        (["--nproc", "1", "--num_gpus", "1", "x.py"], "give --nproc or --num_gpus, not both"),
        (["--nproc", "1", "no-such.py"], "no such file: 'no-such.py'"),
        (["--nproc", "1"], "which script?"),
        (["--nprocs", "1", "x.py"], "unknown option '--nprocs'"),
        (["--nproc", "1", "--stall-timeout", "nan", "true"], "--stall-timeout is 'nan', expected seconds >= 0"),
        (["--nproc", "1", "--master_port", "70000", "true"], "master_port is 70000, expected 1 to 65535"),
        (["--nproc", "1", "--nnodes", "2", "true"], "--nnodes is 2: give --master_addr"),
        (["--nproc", "1", "--nnodes", "2", "--node_rank", "2", "--master_addr", "a", "true"], "node_rank is 2"),
    ],
)
def test_wrong_input(args, message):
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert err.startswith("zeroshard: " + message), err
    assert err.count("\n") == 1


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.row("K6")
def test_exception_is_reported_once_with_its_traceback(script):
    path = script("if rank == 1: raise ValueError('boom')\ntime.sleep(60)")
    start = time.monotonic()
    code, _, err = run("--nproc", "3", path)
    assert code == 1
    assert time.monotonic() - start < 6
    report = err[err.index("[zeroshard] job failed: ") :]
    pattern = r"\[zeroshard\] job failed: rank 1 \(pid \d+ on host \S+\) ended with exit code 1 after \d+\.\d s\n"
    assert re.match(pattern, report)
    assert report.count("\n") < 12
    assert "\n[zeroshard]   the end of its stderr:\n[zeroshard]     Traceback (most recent call last):\n" in report
    assert report.endswith("\n[zeroshard]   ValueError: boom\n")
    assert report.count("ValueError: boom") == 1 and report.count("raise ValueError('boom')") == 1
    assert "later" not in report


@pytest.mark.row("K6")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_death_by_signal(script, number):
    path = script(f"if rank == 0: os.kill(os.getpid(), {int(number)})\ntime.sleep(60)")
    code, _, err = run("--nproc", "2", path)
    assert code == 128 + number
    assert re.search(rf"job failed: rank 0 \(.*\) was killed by {number.name} after", err)


@pytest.mark.row("K6")
def test_codes_pass_through(script):
    assert run("--nproc", "2", script("sys.exit(0 if rank == 0 else 93)"))[0] == 93
    assert run("--nproc", "2", script("sys.exit(0)"))[0] == 0


@pytest.mark.row("K6")
def test_deaf_ranks_are_killed_after_a_failure(script, tmp_path):
    path = script(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + NOTE + WAIT_FOR_TWO + "if rank == 1: sys.exit(3)\n" + WAIT
    )
    start = time.monotonic()
    code, _, _ = run("--nproc", "2", "--grace-period", "0.3", path)
    assert code == 3
    assert time.monotonic() - start < 5
    assert not any(alive(pid) for pid in pids_in(tmp_path, 2))


@pytest.mark.row("K1")
@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_first_to_die_is_the_cause(script, first):
    """Also when the supervisor sees all deaths at once: here because it is stopped while the ranks die."""
    process = launch("--nproc", "3", script("print(rank, os.getpid())\n" + WAIT))
    pids = dict(process.stdout.readline().split()[2:] for _ in range(3))
    pids = {int(rank): int(pid) for rank, pid in pids.items()}
    supervisor = supervisor_of(process)
    os.kill(supervisor, signal.SIGSTOP)
    for rank in (first, (first + 2) % 3, (first + 1) % 3):
        os.kill(pids[rank], signal.SIGKILL if rank == first else signal.SIGABRT)
        wait_for(lambda pid=pids[rank]: not alive(pid), "its end")
    os.kill(supervisor, signal.SIGCONT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 137
    report = err.decode().split("job failed: ")[1]
    assert report.startswith(f"rank {first} (pid {pids[first]} ")
    assert re.findall(r"later: rank (\d)", report) == [str((first + 2) % 3), str((first + 1) % 3)]


@pytest.mark.row("K5")
def test_stopped_rank_is_named(script, tmp_path):
    process = launch("--nproc", "2", "--stall-timeout", "0.5", script(NOTE + "time.sleep(60)"))
    pid = pids_in(tmp_path, 2)[0]
    os.kill(pid, signal.SIGSTOP)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert re.search(rf"job failed: rank \d \(pid {pid} on .*\) has been stopped by SIGSTOP for 0\.\d s", err.decode())


# --- signals ----------------------------------------------------------------------------------------------------------

HANDLER = """
def handle(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, handle)
"""


@pytest.mark.row("P1")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_signals_reach_the_ranks(script, tmp_path, number, code):
    process = launch("--nproc", "2", script(HANDLER + NOTE + WAIT))
    pids_in(tmp_path, 2)
    process.send_signal(signal.SIGUSR1)
    assert {process.stdout.readline(), process.stdout.readline()} == {b"[rank 0] SIGUSR1\n", b"[rank 1] SIGUSR1\n"}
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert sorted(out.splitlines()) == [f"[rank {rank}] {number.name}".encode() for rank in (0, 1)]
    assert b"job failed" not in err


@pytest.mark.row("P1")
def test_workers_of_a_python_rank_live_while_it_saves(script, tmp_path):
    """A rank may need its data loader's processes until it has written its checkpoint."""
    body = "worker = subprocess.Popen(['sleep', '60'])\n"
    # Longer than it takes to end the worker, had it been told, too.
    body += "def save(number, frame):\n    time.sleep(0.3)\n    print(worker.poll())\n    sys.exit(0)\n"
    process = launch("--nproc", "1", script(body + "signal.signal(signal.SIGTERM, save)\n" + NOTE + WAIT))
    pids_in(tmp_path, 1)
    process.terminate()
    assert process.communicate(timeout=20)[0] == b"None\n"
    assert process.returncode == 143


@pytest.mark.row("P1")
def test_wrappers_pass_signals_on(script, tmp_path):
    """A shell dies of a signal and does not forward it; what it runs is told too, once, and has the grace period."""
    # Longer than it takes to end the job, did that not await it.
    body = "def save(number, frame):\n    print('told')\n    time.sleep(1.5)\n    print('saved')\n    sys.exit(0)\n"
    path = script(body + "signal.signal(signal.SIGTERM, save)\n" + NOTE + WAIT)
    wrapper = tmp_path / "wrapper.sh"
    wrapper.write_text(f'#!/bin/sh\n"{sys.executable}" -u "{path}"\necho done\n')
    wrapper.chmod(0o755)
    process = launch("--nproc", "1", str(wrapper))
    pids_in(tmp_path, 1)
    process.terminate()
    assert process.communicate(timeout=20)[0] == b"told\nsaved\n"
    assert process.returncode == 143


@pytest.mark.row("P1")
def test_grace_period_then_kill(script, tmp_path):
    path = script("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + NOTE + WAIT)
    process = launch("--nproc", "2", "--grace-period", "0.5", path)
    pids = pids_in(tmp_path, 2)
    start = time.monotonic()
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 143
    assert 0.4 < time.monotonic() - start < 5
    assert not any(map(alive, pids))


@pytest.mark.row("P1")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_kills_at_once(script, tmp_path, number):
    path = script(f"signal.signal({int(number)}, signal.SIG_IGN)\n" + NOTE + WAIT)
    process = launch("--nproc", "2", "--grace-period", "1000", path)
    pids = pids_in(tmp_path, 2)
    process.send_signal(number)
    time.sleep(0.5)  # within a quarter of a second it would count as the same key press
    os.kill(supervisor_of(process), number)  # by somebody who signals all processes of the job: not a second one
    time.sleep(0.3)  # by then it would have ended them
    assert all(map(alive, pids))
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode == 128 + number
    assert not any(map(alive, pids))


@pytest.mark.row("P1")
def test_one_ctrl_c_may_arrive_twice(script, tmp_path):
    """`timeout -s INT`, for one, signals the launcher and then its group."""
    path = script(  # it saves for longer than the signals take to come
        "signal.signal(signal.SIGINT, lambda *_: (time.sleep(0.3), print('saved'), os._exit(0)))\n" + NOTE + WAIT
    )
    process = launch("--nproc", "1", path)
    pids_in(tmp_path, 1)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)  # or two would be one to the system
    assert process.communicate(timeout=10)[0] == b"saved\n"
    assert process.returncode == 130


def test_suspending_the_launcher_suspends_the_ranks(script, tmp_path):
    def state(pid):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    process = launch("--nproc", "2", "--stall-timeout", "0.3", script(NOTE + WAIT))
    pids = [*pids_in(tmp_path, 2), process.pid]
    process.send_signal(signal.SIGTSTP)
    wait_for(lambda: all(state(pid) == "T" for pid in pids), "all to stop")
    time.sleep(0.6)  # longer than the stall timeout
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: all(state(pid) in "SR" for pid in pids), "all to go on")
    time.sleep(0.4)  # longer than the stall timeout again
    assert process.poll() is None
    process.terminate()
    _, err = process.communicate(timeout=10)
    assert process.returncode == 143
    assert b"has been stopped" not in err


# --- nothing outlives the job -----------------------------------------------------------------------------------------


@pytest.mark.row("K7")
@pytest.mark.parametrize("victim", ["launcher", "supervisor"])
def test_kill_9_leaves_nobody(script, tmp_path, release, victim):
    path = script(DAEMON + NOTE + WAIT)
    for _ in range(50 if release else 3):
        process = launch("--nproc", "2", path)
        pids = pids_in(tmp_path, 4)
        supervisor = supervisor_of(process)
        os.kill(process.pid if victim == "launcher" else supervisor, signal.SIGKILL)
        wait_for(lambda left=(*pids, supervisor): not any(map(alive, left)), "all processes to be gone", seconds=5)
        process.communicate(timeout=5)
        assert process.returncode == (-9 if victim == "launcher" else 137)
        forget_pids(tmp_path)


@pytest.mark.row("K7")
def test_kill_9_of_both_processes_kills_the_ranks(script, tmp_path):
    process = launch("--nproc", "2", script(NOTE + WAIT))
    pids = pids_in(tmp_path, 2)
    supervisor = supervisor_of(process)
    for pid in (process.pid, supervisor):
        os.kill(pid, signal.SIGSTOP)
    for pid in (supervisor, process.pid):  # in this order neither wakes up when the other dies
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=5)
    wait_for(lambda: not any(map(alive, pids)), "the ranks to be gone", seconds=5)


@pytest.mark.row("K7")
def test_kill_9_while_ranks_start(script, tmp_path, release):
    """Every 5 ms of the start, or every 2."""
    path = script(NOTE + WAIT)
    for delay_ms in range(0, 100, 2 if release else 5):
        process = launch("--nproc", "2", path, start_new_session=True)
        time.sleep(delay_ms / 1000)
        process.kill()
        process.communicate(timeout=20)  # returns when nobody has the pipes open any more
    assert not any(alive(int(p.name[4:])) for p in tmp_path.glob("pid.*"))


@pytest.mark.row("K7")
@pytest.mark.parametrize("code", [0, 4])
def test_what_ranks_leave_behind_ends_with_the_job(script, tmp_path, code):
    process = launch("--nproc", "1", script(DAEMON + NOTE + WAIT_FOR_TWO + f"sys.exit({code})"))
    pids = pids_in(tmp_path, 2)
    process.communicate(timeout=20)
    assert process.returncode == code
    assert not any(map(alive, pids))


# --- output -----------------------------------------------------------------------------------------------------------


@pytest.mark.row("L3")
def test_a_flood_arrives_whole(script):
    """4 ranks, 12 MB each, while the console reads slowly at first."""
    path = script("sys.stdout.write(''.join(f'{rank} {i} ' + 'x' * 990 + '\\n' for i in range(12000)))")
    process = launch("--nproc", "4", path)
    time.sleep(0.5)  # pipes fill up
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    seen = [0] * 4
    for line in out.decode().splitlines():
        rank, index, text = re.fullmatch(r"\[rank \d\] (\d) (\d+) (x+)", line).groups()
        assert line.startswith(f"[rank {rank}] ")
        assert (int(index), len(text)) == (seen[int(rank)], 990)
        seen[int(rank)] += 1
    assert seen == [12000] * 4


@pytest.mark.row("L3")
def test_signals_work_while_nobody_reads(script):
    process = launch("--nproc", "2", script("while True: print('x' * 10000)"))
    time.sleep(1)  # pipes fill up
    process.terminate()
    assert process.wait(timeout=20) == 143
    process.communicate()


@pytest.mark.row("L3")
def test_a_closed_console_does_not_stop_the_job(script, tmp_path):
    path = script("for i in range(2000): print('x' * 1000)\nopen(f'{os.path.dirname(__file__)}/done.{rank}', 'w')")
    process = launch("--nproc", "2", path, stderr=subprocess.DEVNULL)
    process.stdout.close()
    assert process.wait(timeout=20) == 0
    assert len(list(tmp_path.glob("done.*"))) == 2


@pytest.mark.row("L3")
def test_full_disk_does_not_stop_the_job(script):
    with open("/dev/full", "w") as full:
        process = launch("--nproc", "2", script("print('x' * 100000)"), stdout=full)
        process.communicate(timeout=20)
    assert process.returncode == 0


def test_terminal_shows_progress_bars_of_rank_0(script):
    primary, secondary = pty.openpty()
    path = script("sys.stdout.write(f'\\r50%\\r100% {os.isatty(1)}\\n')")
    process = launch("--nproc", "2", path, stdout=secondary, stderr=subprocess.DEVNULL)
    os.close(secondary)
    shown = b""
    while True:
        try:
            piece = os.read(primary, 1000)
        except OSError:  # the other side is closed
            break
        shown += piece
    assert process.wait(timeout=20) == 0
    os.close(primary)
    assert b"\r50%\r100% True\r\n" in shown
    assert b"[rank 1] 100% False\r\n" in shown


def test_stdin_goes_to_rank_0(script):
    process = launch("--nproc", "2", script("print(repr(sys.stdin.read()))"), stdin=subprocess.PIPE)
    out, _ = process.communicate(b"hello", timeout=20)
    assert sorted(out.splitlines()) == [b"[rank 0] 'hello'", b"[rank 1] ''"]


# --- ports ------------------------------------------------------------------------------------------------------------

SERVE = """
import socket
listener = socket.create_server((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))  # sets SO_REUSEADDR
print(os.environ['MASTER_PORT'], flush=True)
sys.stdin.read()
"""


@pytest.mark.row("L1")
def test_jobs_at_once_have_ports_of_their_own(script):
    path = script(SERVE)
    jobs = [launch("--nproc", "1", path, stdin=subprocess.PIPE) for _ in range(30)]
    ports = [int(job.stdout.readline()) for job in jobs]
    outputs = [job.communicate(timeout=20) for job in jobs]
    assert all(job.returncode == 0 for job in jobs), outputs
    assert len(set(ports)) == 30


@pytest.mark.row("L1")
def test_a_taken_port_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        code, out, err = run("--nproc", "1", "--master_port", port, "true")
    assert (code, out) == (2, "")
    assert err.startswith(f"zeroshard: port {port} cannot be used: Address already in use; leave out --master_port")


@pytest.mark.row("L1")
def test_two_jobs_cannot_share_a_port(script):
    port, claim = world.reserve_port()
    with claim:
        first = launch("--nproc", "1", "--master_port", str(port), script(SERVE), stdin=subprocess.PIPE)
        assert first.stdout.readline().decode().strip() == str(port)
        assert run("--nproc", "1", "--master_port", str(port), "true")[0] == 2
        first.communicate(timeout=20)
    assert first.returncode == 0


@pytest.mark.row("X1")
def test_torch_ranks_meet_and_listen_on_loopback_alone(script, tmp_path):
    """The launcher itself listens nowhere; a store made as zeroshard makes it, and Gloo, on loopback."""
    pytest.importorskip("torch")
    body = """
import socket, datetime, torch, torch.distributed as dist
host, port, world = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), int(os.environ['WORLD_SIZE'])
server = {'master_listen_fd': socket.create_server((host, port)).detach()} if rank == 0 else {}
store = dist.TCPStore(host, port, world, rank == 0, datetime.timedelta(seconds=20), **server)
dist.init_process_group('gloo', store=store, rank=rank, world_size=world)
x = torch.ones(1)
dist.all_reduce(x)
print(x.item(), flush=True)
"""
    process = launch("--nproc", "2", script(body + NOTE + WAIT))
    pids = pids_in(tmp_path, 2, seconds=60)
    assert listening_addresses([process.pid, supervisor_of(process)]) == set()
    assert listening_addresses(pids) <= {"0100007F"}
    process.terminate()
    out, _ = process.communicate(timeout=20)
    assert sorted(out.splitlines()) == [b"[rank 0] 2.0", b"[rank 1] 2.0"]
