"""Jobs of several hosts that start again: `zeroshard run --hostfile` with --max-restarts and --min-ranks."""

import os
import signal

import pytest
from built import ZEROSHARD, needs
from hosts import lan  # noqa: F401 - a fixture
from launched import script  # noqa: F401 - a fixture
from sshd import needs_sshd
from test_hostfile import (
    COMMAND,
    all_of,
    cluster,  # noqa: F401 - a fixture
    process,
    running,
)
from test_hosts import TRAIN, WAIT, digests

pytestmark = [needs(ZEROSHARD), pytest.mark.fault]
RESTARTED = (
    TRAIN.replace(
        "data = torch.Generator().manual_seed(rank)\n",
        """
saved, restart = f"{folder}/saved", int(os.environ["ZEROSHARD_RESTART_COUNT"])
begin = 0
if os.path.isdir(saved):
    begin = engine.load_checkpoint(saved)[1]["step"]
assert (begin > 0) == (restart > 0)
""",
    )
    .replace(
        "for step in range(steps):", "for step in range(begin, steps):\n    data = torch.Generator().manual_seed(step)"
    )
    .replace(
        "    if step == 2:\n",
        """    if step == 1:
        engine.save_checkpoint(saved, client_state={"step": 2})
    if step == 2 and restart == 0:
        engine.wait_for_checkpoint()
        print("waits", flush=True)
        while not os.path.exists(f"{folder}/fail"): time.sleep(0.05)
        if rank == 1: sys.exit(7)
        time.sleep(1000)
    if step == 2:
""",
    )
)


def trains_on(job, folder, ranks):
    assert job.code() == 0, job.log()
    assert len(digests(folder, ranks)) == 1 and len(list(folder.glob("digest.*"))) == ranks
    return digests(folder, ranks)


@needs_sshd
@pytest.mark.idle_ranks("what is compared is a job with another")
@pytest.mark.row("H5")
def test_a_job_that_fails_goes_on_from_its_checkpoint_on_all_hosts(cluster, script):
    made = cluster(2)
    (made.folder / "fail").touch()
    job = made.start(all_of(2), script(RESTARTED), made.folder, 5, options=["--max-restarts", 2])
    after_a_failure = trains_on(job, made.folder, 2)
    told = "the job ended with exit code 7: restart 1 of 2 begins, on 2 hosts with 2 ranks"
    assert job.log().count(told) == 1 and len(job.reports()) == 1, job.log()
    undisturbed = made.folder / "one"
    undisturbed.mkdir()
    job = made.start(all_of(2), script(RESTARTED.replace("restart == 0:", "False:")), undisturbed, 5)
    assert trains_on(job, undisturbed, 2) == after_a_failure
    made.check_nothing_left()


@needs_sshd
@pytest.mark.idle_ranks("two ranks are left of three")
@pytest.mark.row("H5")
@pytest.mark.parametrize("gone", [0, 2])
@pytest.mark.parametrize("how", ["all its processes are killed", "it is cut off"])
def test_a_job_goes_on_with_the_hosts_that_are_left(cluster, script, gone, how):
    """Also without its first host, at which the others met. The command runs on a host that takes no part."""
    made = cluster(4)
    names = [f"host{number} slots=1" for number in (1, 2, 3)]
    options = ["--max-restarts", 1, "--min-ranks", 2, "--grace-period", 3]
    job = made.start(names, script(RESTARTED), made.folder, 5, options=options)
    job.wait_for(lambda: job.log().count("] waits") == 3, "a checkpoint")
    host = made.hosts[1 + gone]
    host.kill() if "killed" in how else host.cut_off()
    trains_on(job, made.folder, 2)
    assert f"host {host.name} is gone: restart 1 of 1 begins, on 2 hosts with 2 ranks" in job.log(), job.log()
    made.check_nothing_left(hosts=[other for other in made.hosts if other is not host], but_sessions=True)


@needs_sshd
@pytest.mark.row("H5")
def test_a_job_does_not_start_again_without_a_host_that_it_needs(cluster, script):
    made = cluster(3)
    job = running(made, script, 2, first=1)
    made.hosts[1].kill()
    assert job.code() == 1 and "restart" not in job.log(), job.log()
    job = made.start(all_of(3), script(WAIT), options=["--max-restarts", 5])
    assert job.code() == 1, job.log()
    assert "not started again: host host1 could not be started; --min-ranks allows" in job.log(), job.log()
    made.check_nothing_left(hosts=[made.hosts[0], made.hosts[2]], but_sessions=True)


@needs_sshd
@pytest.mark.row("H5")
def test_a_signal_is_the_end_of_a_job_with_restarts(cluster, script):
    made = cluster(2)
    job = made.start(all_of(2), script(WAIT), options=["--max-restarts", 5])
    job.wait_for(lambda: job.log().count("] here") == 2, "ranks")
    os.kill(process(made.hosts[0], COMMAND), signal.SIGTERM)
    assert job.code() == 128 + signal.SIGTERM and "restart" not in job.log(), job.log()
    made.check_nothing_left()


SAVES = """
def save(*_):
    if rank == 1: sys.exit(143)
    time.sleep(4)  # longer than the moment after which a failed host ends the others
    open(f"{sys.argv[1]}/saved.{rank}", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
"""


@needs_sshd
@pytest.mark.row("H5")
@pytest.mark.parametrize("to", ["the command", "the command and what it has started", "each host"])
def test_a_signal_leaves_every_rank_the_time_to_save(cluster, script, to):
    """One host ends long before the other."""
    made = cluster(2)
    job = made.start(all_of(2), script(SAVES + WAIT), made.folder)
    job.wait_for(lambda: job.log().count("] here") == 2, "ranks")
    if to == "each host":
        pids = [process(host, rf"^{ZEROSHARD} run --from-stdin") for host in made.hosts]
    else:
        pids = [process(made.hosts[0], COMMAND)]
    if to.endswith("started"):
        pids.append(process(made.hosts[0], r"ssh -F .*-- host1 "))
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    assert job.code() == 128 + signal.SIGTERM, job.log()
    assert (made.folder / "saved.0").exists() and not job.reports()[1:], job.log()
    made.check_nothing_left()
