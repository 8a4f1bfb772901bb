"""One command for many hosts: `zeroshard run --hostfile`, over a real sshd in each of the namespaces of hosts.py."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
import warm
from built import REPOSITORY, ZEROSHARD, needs
from hosts import lan  # noqa: F401 - a fixture
from launched import (
    environment,
    run,
    script,  # noqa: F401 - a fixture
)
from sshd import needs_sshd, serve
from test_hosts import FOR_EVER, NAMED_WITHIN_S, TRAIN, WAIT, digests, on_one_host, rank_of
from waiting import wait_for

pytestmark = [needs(ZEROSHARD), pytest.mark.fault]
DEEPSPEED = REPOSITORY / "python/zeroshard/compat/bin/deepspeed"
COMMAND = rf"^{ZEROSHARD} run --hostfile"
LOOP = "print('here', flush=True)\nwhile True: time.sleep(0.1)\n"
HOSTILE = [
    "two words",
    "$(touch ran)",
    "`touch ran`",
    "'\"\\",
    "a\nb",
    "",
    "-x",
    "--",
    "; touch ran",
    "ü€",
    "*",
    "~",
    "\t%s",
]


class Cluster:
    """Hosts with sshd. Jobs start on the first one, which need not take part in them."""

    def __init__(self, made, folder):
        self.hosts = made
        self.folder = folder
        self.ssh = serve(made, folder)

    def start(self, lines, *command, options=(), variables=None, where=None, name="job", **other):
        """`program`: what starts the job. `reach`: the options by which it reaches the hosts."""
        hostfile = self.folder / f"{name}.hosts"
        hostfile.write_text("".join(f"{line}\n" for line in lines))
        program, reach = other.get("program", (ZEROSHARD, "run")), other.get("reach", ("--launcher_args", self.ssh))
        words = ["env", "-C", where or self.folder, *program, "--hostfile", hostfile, *reach]
        return Job(
            self,
            self.folder / f"{name}.log",
            [*words, *options, *command],
            environment(VIRTUAL_ENV=warm.environment(), **variables or {}),
        )

    def check_nothing_left(self, within_s=NAMED_WITHIN_S, hosts=None, but_sessions=False):
        """But for the servers that wait for connections, and for sessions of sshd whose client has vanished."""
        servers = ["[listener]", "sshd: root"] if but_sessions else ["[listener]"]

        def left():
            lines = [line for host in hosts or self.hosts for line in host.processes().values()]
            return [line for line in lines if not any(server in line for server in servers)]

        wait_for(lambda: not left(), "the end of all processes", within_s)


class Job:
    """Its output goes to a file."""

    def __init__(self, cluster, path, words, variables):
        self.path = path
        with path.open("w") as out:
            self.front = cluster.hosts[0].start(*words, stdout=out, env=variables)

    def log(self):
        return self.path.read_text()

    def wait_for(self, condition, what):
        def look():
            return condition() or (self.front.poll() is None or pytest.fail(self.log(), pytrace=False)) and False

        wait_for(look, what, seconds=150)

    def code(self):
        return self.front.wait(timeout=150)

    def reports(self):
        return re.findall(r"^\[zeroshard\] (job (?:failed|stopped): .*)$", self.log(), re.MULTILINE)


@pytest.fixture
def cluster(lan, tmp_path):
    yield lambda count: Cluster(lan(count), tmp_path)


def all_of(count, slots=1):
    return [f"host{number} slots={slots}" for number in range(count)]


def running(made, script, count, first=0):
    """A job of `count` hosts from `first` on, with a rank on each that runs for ever."""
    job = made.start([f"host{first + number} slots=1" for number in range(count)], script(WAIT))
    job.wait_for(lambda: job.log().count("] here") == count, "ranks")
    return job


def process(host, what):
    """The eldest process of `host` whose command line has `what`."""
    return min(pid for pid, line in host.processes().items() if re.search(what, line))


@needs_sshd
@pytest.mark.idle_ranks("what is compared is the sums of hosts")
@pytest.mark.row("H4")
@pytest.mark.parametrize(("count", "slots"), [(2, 2), (3, 1)])
def test_one_command_trains_with_the_bits_of_one_host(cluster, script, count, slots):
    made = cluster(count)
    job = made.start(all_of(count, slots), script(TRAIN), made.folder, 5)
    assert job.code() == 0, job.log()
    assert digests(made.folder, count * slots) == on_one_host(made.folder / "one", script, count * slots)
    made.check_nothing_left()


@needs_sshd
@pytest.mark.row("H4")
def test_hostile_values_arrive_and_run_nothing(cluster, script):
    """Started on a host that takes no part, under DeepSpeed's name for its options."""
    made = cluster(3)
    where = made.folder / "a $(touch ran) 'b\" \n ü"
    where.mkdir()
    (where / ".deepspeed_env").write_text("# ours\nFROM_FILE=$(touch ran) 'x\" ; y\n")
    variables = {"PYTHONHOSTILE": "$(touch ran)\n'\"`touch ran` ü", "NOT_HANDED_OVER": "1"}
    names = [*variables, "FROM_FILE", "NOT_HANDED_OVER", "RANK", "WORLD_SIZE"]
    path = script(
        "import json\n"
        f"said = [os.getcwd(), sys.argv[1:], {{name: os.environ.get(name) for name in {names}}}]\n"
        f"json.dump(said, open({str(made.folder)!r} + f'/said.{{rank}}', 'w'))\n"
    )
    lines = [f"host{number} slots=4" for number in range(3)]
    options = ["--include", "host1@host2", "--num_gpus=1"]
    job = made.start(lines, path, *HOSTILE, options=options, variables=variables, where=where)
    assert job.code() == 2 and "give them without --nproc, --num_gpus and --num_nodes" in job.log()
    job = made.start(lines[1:], path, *HOSTILE, options=["--num_gpus=1"], variables=variables, where=where)
    assert job.code() == 0, job.log()
    for rank in range(2):
        folder, arguments, found = json.loads((made.folder / f"said.{rank}").read_text())
        assert (folder, arguments) == (str(where), HOSTILE)
        assert found == {
            "PYTHONHOSTILE": variables["PYTHONHOSTILE"],
            "FROM_FILE": "$(touch ran) 'x\" ; y",
            "NOT_HANDED_OVER": None,
            "RANK": str(rank),
            "WORLD_SIZE": "2",
        }
    assert not list(made.folder.rglob("ran")) and not os.path.exists(os.path.expanduser("~/ran"))


@needs_sshd
@pytest.mark.row("H5")
def test_the_code_and_one_report_of_a_rank_that_fails(cluster, script):
    made = cluster(3)
    job = made.start(all_of(3), script("if rank == 1: raise ValueError('mine')\n" + WAIT))
    assert job.code() == 1
    assert len(job.reports()) == 1 and "job failed: rank 1 (pid " in job.reports()[0], job.log()
    assert job.log().count("ValueError: mine") == 2  # the rank's own line, and the report's
    made.check_nothing_left()


KILLED = {
    "the command": (0, COMMAND, None),
    "ssh": (0, r"ssh -F .*-- host1 ", r"host host1 is gone: its connection has ended"),
    "sshd's session": (1, r"^sshd: root@notty", r"host host1 is gone: its connection has ended"),
    "what the connection has started": (
        1,
        rf"^{ZEROSHARD} run --from-stdin",
        r"on host host1 was killed|host host1 is gone",
    ),
    "a launcher": (1, rf"^{ZEROSHARD} run --num_gpus", r"the launcher on host host1 was killed"),
    "a rank": (1, r"^\S*python\S* -u ", r"rank 1 \(pid \d+ on host host1\) was killed by SIGKILL"),
}


@needs_sshd
@pytest.mark.row("H5")
@pytest.mark.parametrize("victim", KILLED)
def test_what_is_killed_ends_the_job_on_all_hosts(cluster, script, victim):
    made = cluster(3)
    job = running(made, script, 3)
    host, what, why = KILLED[victim]
    began = time.monotonic()
    os.kill(process(made.hosts[host], what), signal.SIGKILL)
    code = job.code()
    made.check_nothing_left(began + NAMED_WITHIN_S - time.monotonic())
    if victim != "the command":
        assert code == (137 if victim == "a rank" else 1), job.log()
        assert len(job.reports()) == 1 and re.search(why, job.reports()[0]), job.log()


@needs_sshd
@pytest.mark.row("H5")
@pytest.mark.parametrize("how", ["all its processes are killed", "it is cut off"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_host_that_vanishes_ends_the_job(cluster, script, how, first):
    """Which of the hosts, and whether the command's own host takes part."""
    made = cluster(3)
    job = running(made, script, 3 - first, first)
    began = time.monotonic()
    made.hosts[1].kill() if "killed" in how else made.hosts[1].cut_off()
    assert job.code() == 1 and time.monotonic() - began < NAMED_WITHIN_S, job.log()
    assert len(job.reports()) == 1 and "host host1" in job.reports()[0], job.log()
    made.check_nothing_left(began + NAMED_WITHIN_S - time.monotonic(), but_sessions=True)


@needs_sshd
@pytest.mark.row("H5")
@pytest.mark.parametrize("how", ["all its processes are killed", "it is cut off"])
def test_a_job_ends_with_the_host_of_its_command(cluster, script, how):
    made = cluster(3)
    running(made, script, 2, first=1)
    began = time.monotonic()
    made.hosts[0].kill() if "killed" in how else made.hosts[0].cut_off()
    made.check_nothing_left(began + NAMED_WITHIN_S - time.monotonic(), made.hosts[1:], but_sessions=True)


@needs_sshd
@pytest.mark.row("H5")
def test_a_signal_saves_once_and_stops_all_hosts(cluster, script):
    made = cluster(2)
    job = made.start(all_of(2), script(TRAIN), made.folder, FOR_EVER)
    job.wait_for(lambda: len(list(made.folder.glob("trains.*"))) == 2, "training")
    os.kill(process(made.hosts[0], COMMAND), signal.SIGTERM)
    assert job.code() == 128 + signal.SIGTERM, job.log()
    assert not job.reports() and len(list((made.folder / "saved").glob("global_step*"))) == 1
    made.check_nothing_left()


@needs_sshd
@pytest.mark.row("H5")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_reaches_the_ranks_of_all_hosts(cluster, script, number):
    """The same one; a second one kills ranks that do not end."""
    made = cluster(2)
    job = made.start(
        all_of(2), script(f"signal.signal({int(number)}, lambda *_: print('got it', flush=True))\n" + LOOP)
    )
    job.wait_for(lambda: job.log().count("here") == 2, "ranks")
    for _ in range(2):
        os.kill(process(made.hosts[0], COMMAND), number)
        wait_for(lambda: job.log().count("got it") == 2, "the signal on all ranks", NAMED_WITHIN_S)
        time.sleep(0.5)  # longer than the moment within which two signals count as one
    assert job.code() == 128 + number, job.log()
    made.check_nothing_left()


@needs_sshd
@pytest.mark.row("H5")
def test_a_job_may_be_suspended(cluster, script):
    """For longer than a connection may be silent."""
    made = cluster(2)
    path = script(WAIT.replace("1000", "3"))
    job = made.start(all_of(2), path, options=["--stall-timeout", 2])
    job.wait_for(lambda: job.log().count("here") == 2, "ranks")
    front = process(made.hosts[0], COMMAND)
    os.kill(front, signal.SIGTSTP)
    time.sleep(7)  # longer than --stall-timeout and than what is left to the ranks
    assert any(rank_of(host) for host in made.hosts)
    os.kill(front, signal.SIGCONT)
    job.front.send_signal(signal.SIGCONT)  # nsenter has stopped with its child
    assert job.code() == 0, job.log()


@needs_sshd
@pytest.mark.row("H4")
def test_two_jobs_at_once(cluster, script):
    """At a port of its own the second one runs, too; at the first one's it ends, and harms nobody."""
    made = cluster(2)
    go = made.folder / "go"
    path = script(f"print('here', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n")
    first = made.start(all_of(2), path, name="first")
    first.wait_for(lambda: first.log().count("here") == 2, "the first job")
    second = made.start(all_of(2), path, name="second", options=["--master_port", 29600])
    second.wait_for(lambda: second.log().count("here") == 2, "the second job")
    third = made.start(all_of(2), path, name="third")
    assert third.code() != 0 and "port 29500 (--master_port)" in third.log(), third.log()
    go.touch()
    assert (first.code(), second.code()) == (0, 0), first.log() + second.log()
    made.check_nothing_left()


@needs_sshd
@pytest.mark.row("H4")
@pytest.mark.parametrize("fault", ["no such host", "no key", "no sshd", "no zeroshard", "no script", "no folder"])
def test_a_host_that_cannot_start_is_named(cluster, script, fault):
    made = cluster(3)
    lines, options, where = all_of(3), [], made.folder
    path = script(WAIT)
    what = r"job failed: host host1 could not start its ranks: .*"
    if fault == "no such host":
        lines[1] = "nowhere.invalid slots=1"
        what = r"job failed: host nowhere.invalid could not start its ranks: ssh: Could not resolve hostname"
    elif fault == "no key":
        lines[1] = "nobody@host1 slots=1"
        what = r"job failed: host nobody@host1 could not start its ranks: .*Permission denied"
    elif fault == "no sshd":
        os.kill(process(made.hosts[1], "listener"), signal.SIGKILL)
        what += "Connection refused"
    elif fault == "no zeroshard":
        assert made.hosts[1].start("mount", "--bind", "/dev/null", ZEROSHARD).wait(timeout=60) == 0
        what += "Permission denied"
    elif fault == "no script":
        for host in (made.hosts[0], made.hosts[2]):
            assert host.start("cp", path, "/dev/shm/here.py").wait(timeout=60) == 0
        path, what = "/dev/shm/here.py", r"\[host1\] zeroshard: no such file: '/dev/shm/here.py'"
    else:
        for host in (made.hosts[0], made.hosts[2]):
            assert host.start("mkdir", "/dev/shm/here").wait(timeout=60) == 0
        where, what = (
            "/dev/shm/here",
            what + "the job's folder /dev/shm/here cannot be entered on this host: No such file",
        )
    began = time.monotonic()
    job = made.start(lines, path, options=options, where=where)
    code = job.code()
    assert code == (2 if fault == "no script" else 1) and time.monotonic() - began < NAMED_WITHIN_S, job.log()
    assert re.search(what, job.log()) and len(job.reports()) == (0 if fault == "no script" else 1), job.log()
    made.check_nothing_left()


@needs_sshd
@pytest.mark.row("H4")
def test_a_host_by_itself_may_be_another_one(cluster, script):
    made = cluster(2)
    path = script("print(os.uname().nodename, os.environ['WORLD_SIZE'], flush=True)\nprint('left', end='')\n")
    job = made.start(all_of(2), path, options=["--include", "host1"])
    assert job.code() == 0 and "host1 1\nleft\n" in job.log(), job.log()
    job = made.start(all_of(2), path, options=["--num_nodes", 1])
    assert job.code() == 0 and "host0 1\nleft\n" in job.log(), job.log()


@needs_sshd
@pytest.mark.row("H4")
def test_deepspeed_starts_the_hosts(cluster, script):
    """By the program of that name, with DeepSpeed's first argument, and pdsh as what it asks for."""
    made = cluster(2)
    path = script("print('said', sys.argv[1:], os.environ['WORLD_SIZE'], flush=True)\n")
    variables = {"PATH": f"{ZEROSHARD.parent}:{os.environ['PATH']}"}
    options = ["--launcher", "pdsh", "--master_addr", "10.77.0.1", "--num_gpus", "2"]
    job = made.start(all_of(2, 4), path, "x", options=options, variables=variables, program=[DEEPSPEED])
    assert job.code() == 0, job.log()
    said = sorted(re.findall(r"\[rank (\d)\] said (.*)", job.log()))
    assert said == [(str(rank), f"['--local_rank={rank % 2}', 'x'] 4") for rank in range(4)]


SRUN = """#!/bin/sh
# As srun does: runs the words after its own options on the node of --nodelist.
echo "srun $*" >>{folder}/srun.said
while :; do
  case "$1" in
    --nodelist) node=$2; shift 2 ;;
    --*) shift ;;
    *) break ;;
  esac
done
exec ssh {ssh} "$node" env SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 "$@"
"""
PROGRAMS = {"slurm": "srun", "openmpi": "mpirun", "mpich": "mpiexec.hydra", "impi": "mpiexec.hydra"}


@needs_sshd
@pytest.mark.row("H4")
@pytest.mark.parametrize("launcher", PROGRAMS)
def test_other_launchers_start_the_hosts(cluster, script, launcher):
    """Open MPI's and MPICH's own programs, which start their daemons by ssh, and a script in place of srun."""
    made = cluster(3)
    folder = made.folder / "bin"
    folder.mkdir()
    programs = {"ssh": f'#!/bin/sh\nexec /usr/bin/ssh {made.ssh} "$@"\n'}
    if launcher == "slurm":
        programs["srun"] = SRUN.format(folder=folder, ssh=made.ssh)
    elif not shutil.which(PROGRAMS[launcher]):
        pytest.skip(f"{PROGRAMS[launcher]} is missing: apt-get install openmpi-bin mpich")
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    variables = {"PATH": path, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    variables |= {"HYDRA_LAUNCHER_EXEC": str(folder / "ssh"), "OMPI_MCA_plm_rsh_agent": str(folder / "ssh")}
    body = "print('said', sys.argv[1:], os.environ['WORLD_SIZE'], flush=True)\n"
    lines = [f"host{number} slots=2" for number in (1, 2)]
    reach = ["--launcher", launcher]
    said = script(body + "import zeroshard; zeroshard.init_distributed()\nif rank == 3: sys.exit(9)\n" + WAIT)
    job = made.start(lines, said, *HOSTILE[:5], reach=reach, variables=variables)
    assert job.code() == 9, job.log()
    assert sorted(re.findall(r"\[rank (\d)\] said (.*)", job.log())) == [
        (str(rank), f"{HOSTILE[:5]} 4") for rank in range(4)
    ]
    assert len(job.reports()) == 1 and "rank 3 (pid " in job.reports()[0], job.log()
    made.check_nothing_left()


def order_of(folder, *arguments):
    values = ["0.1.0", "4f", "5000", str(folder), str(len(arguments)), *map(str, arguments)]
    text = "".join(f"{len(value.encode())}:{value}," for value in values)
    return f"zeroshard-order 1 {len(text.encode())}\n{text}".encode()


@pytest.mark.row("H5")
def test_a_lost_host_ends_its_ranks_though_nobody_reads(tmp_path):
    """Standard error is full when the connection ends, so that whoever writes to it waits."""
    flood = "echo $$ > pid; while :; do echo flood >&2; done"
    front = subprocess.Popen(
        [ZEROSHARD, "run", "--from-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    front.stdin.write(order_of(tmp_path, "--nproc=1", "--no_python", "sh", "-c", flood))
    front.stdin.flush()
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the rank")
    time.sleep(1)  # the pipe is full
    front.stdin.close()
    front.wait(timeout=NAMED_WITHIN_S)
    assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}")


TWO = "one slots=4\ntwo slots=4\n"


@pytest.mark.row("H4")
@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", [], "names no host, expected lines NAME slots=N"),
        ("# none\n\n", [], "names no host, expected lines NAME slots=N"),
        ("one slots=4\none slots=4\n", [], "line 2 names 'one' again, after line 1"),
        ("one slots=4\n\ntwo slots=x\n", [], "line 3 is 'two slots=x', expected NAME slots=N with N from 1 to 4096"),
        ("one slots=0\n", [], "line 1 is 'one slots=0', expected"),
        ("one slots=5000\n", [], "line 1 is 'one slots=5000', expected"),
        ("one\n", [], "line 1 is 'one', expected"),
        ("-oProxyCommand=x slots=1\n", [], "line 1 has the name '-oProxyCommand=x', expected a host"),
        ("a;b slots=1\n", [], "line 1 has the name 'a;b', expected a host or USER@HOST of letters"),
        ("$(x) slots=1\n", [], "line 1 has the name '$(x)', expected"),
        ("user@-x slots=1\n", [], "line 1 has the name 'user@-x', expected"),
        (
            "localhost slots=2\n127.0.0.1 slots=2\n",
            [],
            "line 2 names 127.0.0.1, which is this machine, as localhost of line 1",
        ),
        (
            "one slots=4\ntwo slots=8\n",
            [],
            "line 2 gives two 8 slots to use, and one has 4: all hosts need the same number",
        ),
        (TWO, ["--include", "one:0,1@two:0"], "line 2 gives two 1 slots to use, and one has 2: all hosts need"),
        (TWO, ["--include", "three"], "--include is three: the hostfile has no host 'three', but 'one', 'two'"),
        (TWO, ["--include", "one:4"], "--include is one:4: '4' is no slot of host one, which has 0 to 3"),
        (TWO, ["--exclude", "one:-1"], "--exclude is one:-1: '-1' is no slot of host one"),
        (TWO, ["--include", "one:"], "--include is one:: '' is no slot of host one"),
        (TWO, ["--exclude", "one@@two"], "--exclude is one@@two: the hostfile has no host ''"),
        (TWO, ["--exclude", "one@two"], "--exclude is one@two, which leaves no slot of any host"),
        (TWO, ["--include", "one", "--exclude", "two"], "give --include or --exclude, not both"),
        (TWO, ["--num_nodes", "3"], "--num_nodes is 3 but hostfile '"),
        (TWO, ["--num_gpus", "5"], "--num_gpus is 5 but hostfile '"),
        (TWO, ["--num_gpus", "2", "--nproc", "2"], "give --nproc or --num_gpus, not both"),
        (TWO, ["--node_rank", "1"], "--node_rank is 1 but hostfile '"),
        (
            TWO,
            ["--launcher", "mvapich"],
            "--launcher is mvapich, expected ssh, pdsh (which means ssh here), slurm, ope",
        ),
        (TWO, ["--launcher", "mpich", "--ssh_port", "1"], "--ssh_port is 1, and --launcher mpich does not connect by"),
        (TWO, ["--launcher", "slurm", "--launcher_args", "'x"], "--launcher_args is 'x, whose quote ' does not end"),
        ("me@one slots=4\ntwo slots=4\n", ["--launcher", "openmpi"], "hostfile names me@one in line 1: leave the user"),
        (TWO, ["--launcher", "slurm"], "there is no srun in PATH, by which --launcher slurm starts the hosts"),
        (TWO, ["--ssh_port", "0"], "--ssh_port is '0', expected a whole number >= 1 and <= 65535"),
        (TWO, ["--launcher_args", "-v host9"], "--launcher_args has the word host9, expected options of ssh"),
        (TWO, ["--launcher_args", "-o 'a b' -- host9"], "--launcher_args has --, and ssh's -- would keep"),
        (TWO, ["--launcher_args", "-vN"], "--launcher_args has -vN, and ssh's -N would keep zeroshard from starting"),
        (TWO, ["--launcher_args", "-4 -p"], "--launcher_args ends with -p, whose value is missing"),
        (TWO, ["--launcher_args", "-F 'x"], "--launcher_args is -F 'x, whose quote ' does not end"),
        (TWO, ["--job", "a b"], "--job is a b, expected at most 64 letters, digits"),
        (TWO, ["--min-ranks", "1"], "--min-ranks is 1: give --max-restarts too"),
        (TWO, ["--max-restarts", "1", "--min-ranks", "9"], "--min-ranks is 9 but the job has 8 ranks (--nproc)"),
    ],
)
def test_wrong_input_starts_nothing(tmp_path, text, options, message):
    hostfile = tmp_path / "hosts"
    hostfile.write_text(text)
    code, out, err = run("--hostfile", str(hostfile), *options, "true")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert message in err


@pytest.mark.row("H4")
@pytest.mark.parametrize(
    "text",
    [b"", b"zeroshard-order 1 99999999999\n", b"zeroshard-order 1 3\n1:a", b"GET / HTTP/1.1\r\n\r\n", bytes(1000)],
)
def test_what_is_no_order_starts_nothing(text):
    command = [ZEROSHARD, "run", "--from-stdin"]
    done = subprocess.run(command, input=text, capture_output=True, timeout=30, check=False)
    assert done.returncode == 2 and b"standard input has no order of another host's zeroshard" in done.stderr


@pytest.mark.row("H4")
def test_a_wrong_line_of_variables_is_told(tmp_path):
    (tmp_path / "hosts").write_text(TWO)
    (tmp_path / "mine").write_text("GOOD=1\nSECRET\n")
    code, _, err = run("--hostfile", "hosts", "true", cwd=tmp_path, env=environment(DS_ENV_FILE="mine"))
    assert code == 2 and "mine, line 2 is not NAME=VALUE" in err and "SECRET" not in err
    code, _, err = run("--hostfile", "hosts", "true", cwd=tmp_path, env=environment(DS_ENV_FILE="none"))
    assert code == 2 and "DS_ENV_FILE is none, a file that is neither in the home nor in the current folder" in err
