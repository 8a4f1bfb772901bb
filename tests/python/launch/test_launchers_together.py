"""The launchers of a job's hosts keep in touch: how they meet, and how a job ends on all hosts alike.

All of them run on this host, with loopback between them. tests/python/launch/test_hosts.py has hosts of their own.
"""

import contextlib
import re
import signal
import socket
import subprocess
import time

import pytest
import world
from built import ZEROSHARD, needs
from launched import (
    environment,
    script,  # noqa: F401 - a fixture
)
from waiting import wait_for

pytestmark = [needs(ZEROSHARD), pytest.mark.fault]
HERE = "print('here', flush=True)\n"
WAIT = HERE + "time.sleep(60)\n"


@pytest.fixture
def start():
    """start(node, nnodes, *arguments) starts the launcher of a host; all that are left are killed at the end."""
    port, claim = world.reserve_port()
    with claim, contextlib.ExitStack() as stack:

        def one(node, nnodes, *arguments, nproc=1, variables=None):
            where = ["--master_addr", "127.0.0.1", "--master_port", port]
            words = [ZEROSHARD, "run", "--nproc", nproc, "--nnodes", nnodes, "--node_rank", node, *where, *arguments]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            process = subprocess.Popen([str(word) for word in words], env=environment(**variables or {}), **pipes)
            stack.callback(process.stdout.close)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        one.port = port
        yield one


def ends(*launchers):
    """The exit codes and the outputs."""
    said = [launcher.communicate(timeout=30)[0] for launcher in launchers]
    return [launcher.returncode for launcher in launchers], said


def await_ranks(*launchers):
    for launcher in launchers:
        assert any("here" in line for line in launcher.stdout)


@pytest.mark.row("H1")
def test_ranks_are_told_where_they_meet(start, script):
    names = "'RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'GLOO_SOCKET_IFNAME', 'NCCL_SOCKET_IFNAME', 'MASTER_PORT'"
    path = script(f"print('given', *[os.environ.get(name) for name in [{names}]], flush=True)\n")
    own = {"GLOO_SOCKET_IFNAME": "mine"}
    codes, said = ends(*(start(node, 2, path, variables=own if node else None) for node in range(2)))
    given = [next(line for line in text.splitlines() if "given" in line).split("given ")[1].split() for text in said]
    assert codes == [0, 0] and given[0][:5] == ["0", "2", "127.0.0.1", "lo", "None"]
    assert given[1][:5] == ["1", "2", "127.0.0.1", "mine", "None"]
    assert given[0][5] == given[1][5] != str(start.port)


@pytest.mark.row("H1")
@pytest.mark.parametrize(
    ("nnodes", "nproc", "message"),
    [
        (2, 2, r"has 2 ranks \(--nproc\), node 0 .* has 1: all hosts need the same number"),
        (3, 1, r"has --nnodes 3, node 0 .* has 2"),
    ],
)
def test_hosts_that_were_started_differently_are_refused(start, script, nnodes, nproc, message):
    codes, said = ends(start(0, 2, script(WAIT)), start(1, nnodes, script(WAIT), nproc=nproc))
    assert 0 not in codes
    assert all(re.search(message, text) for text in said), said


@pytest.mark.row("H1")
def test_a_second_launcher_of_a_node_is_sent_away(start, script):
    first, second = start(1, 3, script(WAIT)), start(1, 3, script(WAIT))
    node_0 = start(0, 3, script(WAIT))
    ended = wait_for(lambda: [one for one in (first, second) if one.poll() is not None], "one to be sent away")
    assert "node 1 has come already" in ended[0].communicate()[0]
    left = second if ended[0] is first else first
    node_2 = start(2, 3, script(WAIT))
    await_ranks(node_0, left, node_2)
    node_2.terminate()
    assert ends(node_0, left, node_2)[0] == [143] * 3


@pytest.mark.row("H1")
def test_a_launcher_may_come_late_and_a_second_one_is_told_that_the_job_runs(start, script):
    path = script(WAIT)
    launchers = [start(node, 3, "--stall-timeout", 1, path) for node in range(2)]
    time.sleep(2.5)  # longer than --stall-timeout
    launchers.append(start(2, 3, "--stall-timeout", 1, path))
    await_ranks(*launchers)
    codes, said = ends(start(1, 3, path))
    assert codes == [2] and "the job runs already" in said[0], said
    launchers[2].terminate()
    assert ends(*launchers)[0] == [143] * 3


@pytest.mark.row("H1")
def test_two_launchers_of_a_node_that_come_at_once_are_one_too_many(start, script):
    node_0 = start(0, 3, script(WAIT))
    wait_for(lambda: connected(start.port), "node 0 to listen").close()
    node_0.send_signal(signal.SIGSTOP)
    others = [start(1, 3, script(WAIT)) for _ in range(2)]
    time.sleep(0.5)  # both have sent what they are
    node_0.send_signal(signal.SIGCONT)
    ended = wait_for(lambda: [one for one in others if one.poll() is not None], "one to be sent away")
    assert len(ended) == 1 and "node 1 has come already" in ended[0].communicate()[0]


def connected(port):
    with contextlib.suppress(OSError):
        return socket.create_connection(("127.0.0.1", port))


@pytest.mark.row("H1")
def test_what_is_no_launcher_is_told_or_left_alone(start, script):
    """Node 0 waits on when another program looks in; another program in its place is an error on node 1."""
    node_0 = start(0, 2, script("sys.exit(0)\n"))
    with wait_for(lambda: connected(start.port), "node 0 to listen") as foreign:
        foreign.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert foreign.recv(100) == b""
    with wait_for(lambda: connected(start.port), "node 0 to listen") as foreign:
        foreign.sendall(b"x" * 100_000)
        assert ends(node_0, start(1, 2, script("sys.exit(0)\n")))[0] == [0, 0]
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", start.port))
        listener.listen()
        lonely = start(1, 2, script(WAIT))
        connection, _ = listener.accept()
        connection.sendall(b"220 mail.example ESMTP\r\n")
        codes, said = ends(lonely)
        connection.close()
    assert codes == [1] and "there is no launcher of zeroshard at 127.0.0.1" in said[0], said


@pytest.mark.row("H1")
@pytest.mark.parametrize("name", [[], ["--job", "other"]])
def test_a_launcher_of_another_job_is_sent_away(start, script, name):
    """One that differs in its options would end the job without --job."""
    path = script("sys.exit(0)\n")
    node_0 = start(0, 2, "--job", "mine", path)
    codes, said = ends(start(1, 3, *name, path, nproc=2))
    assert codes == [2] and f"another job runs at port {start.port}" in said[0], said
    with wait_for(lambda: connected(start.port), "node 0 to listen") as older:
        older.sendall(b"zeroshard-launcher 1 3 1 2 older\n")
        assert b"refused another job runs at port" in older.recv(1000)
    assert ends(node_0, start(1, 2, "--job", "mine", path))[0] == [0, 0]


@pytest.mark.row("H2")
@pytest.mark.parametrize("node", [0, 1, 2])
def test_the_exit_code_of_a_rank_is_that_of_every_host(start, script, node):
    path = script(HERE + f"sys.exit(7) if rank == {node} else time.sleep(1000)\n")
    codes, said = ends(*(start(each, 3, path) for each in range(3)))
    assert codes == [7] * 3
    assert all(f"job failed: rank {node} (pid " in text for text in said), said


@pytest.mark.row("H2")
def test_a_rank_that_cannot_be_started_ends_the_job(start, tmp_path, script):
    program = tmp_path / "program"
    program.write_text("no program")
    program.chmod(0o755)
    codes, said = ends(start(0, 2, script(WAIT)), start(1, 2, "--no_python", program))
    assert codes == [1, 1] and "rank 1 (on host " in said[0] and "could not start" in said[0], said


@pytest.mark.row("H2")
def test_a_killed_launcher_is_named(start, script):
    launchers = [start(node, 2, script(WAIT)) for node in range(2)]
    await_ranks(*launchers)
    launchers[1].kill()
    code, said = ends(launchers[0])
    assert code == [1] and "job failed: the launcher on host" in said[0] and "was killed" in said[0], said


@pytest.mark.row("H3")
def test_node_0_stays_until_all_ranks_have_ended(start, script, tmp_path):
    """It passes on what the others tell: node 2 learns of the failure of node 1."""
    path = script(
        f"if rank == 1:\n    while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n    sys.exit(5)\n"
        + "if rank == 2: print('here', flush=True); time.sleep(1000)\n"
    )
    launchers = [start(node, 3, path) for node in range(3)]
    await_ranks(launchers[2])
    assert launchers[0].poll() is None
    (tmp_path / "go").touch()
    assert ends(*launchers)[0] == [5] * 3


@pytest.mark.row("H3")
def test_a_job_that_a_signal_ends_after_the_ranks_of_node_0(start, script):
    launchers = [
        start(node, 2, script("if rank == 1: print('here', flush=True); time.sleep(1000)\n")) for node in (0, 1)
    ]
    await_ranks(launchers[1])
    launchers[0].terminate()
    assert ends(*launchers)[0] == [143, 143]


@pytest.mark.row("H3")
def test_a_signal_to_all_hosts_counts_once(start, script, tmp_path):
    """As from Slurm: the second one of each launcher, which comes later than a moment, would kill its ranks."""
    path = script(
        "def save(*_):\n    time.sleep(2)\n    print('saved', flush=True)\n    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n" + WAIT
    )
    launchers = [start(node, 2, path) for node in range(2)]
    await_ranks(*launchers)
    launchers[0].terminate()
    assert any("forwarded to the ranks" in line for line in launchers[1].stdout)
    time.sleep(0.5)  # longer than the moment within which two signals count as one
    launchers[1].terminate()
    codes, said = ends(*launchers)
    assert codes == [143, 143] and all("saved" in text for text in said), said


@pytest.mark.row("H3")
def test_a_second_signal_kills_on_every_host(start, script):
    path = script("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT)
    launchers = [start(node, 2, path) for node in range(2)]
    await_ranks(*launchers)
    launchers[0].send_signal(signal.SIGTERM)
    assert any("forwarded to the ranks" in line for line in launchers[1].stdout)
    time.sleep(0.5)  # longer than the moment within which two signals count as one
    launchers[0].send_signal(signal.SIGTERM)
    codes, said = ends(*launchers)
    assert codes == [143, 143] and "SIGTERM again, on host" in said[1], said
