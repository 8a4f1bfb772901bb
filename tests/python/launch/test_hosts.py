"""Jobs of several hosts: they start without any variable, and every host that is left names what failed elsewhere."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time

import pytest
import warm
import world
from built import ZEROSHARD, ZEROSHARD_TORCH, needs
from hosts import lan  # noqa: F401 - a fixture
from launched import (
    environment,
    script,  # noqa: F401 - a fixture
)
from train_program import (
    make,
    metrics,
    tokens,  # noqa: F401 - a fixture
    write,
)
from waiting import wait_for

pytestmark = [needs(ZEROSHARD), pytest.mark.fault]
NAMED_WITHIN_S = 15
PORT = 29500
FOR_EVER = 10**7
TRAIN = """
import torch
import zeroshard
folder, steps, mesh = sys.argv[1], int(sys.argv[2]), dict(zip(("shard", "outer"), sys.argv[3:]))
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3},
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "zeroshard": {"mesh": mesh}}
engine, *_ = zeroshard.initialize(model=model, config=config)
engine.save_and_stop_on(f"{folder}/saved", [signal.SIGTERM])
data = torch.Generator().manual_seed(rank)
for step in range(steps):
    engine.backward(engine(torch.randn(4, 16, generator=data)).square().mean())
    engine.step()
    if step == 2:
        open(f"{folder}/trains.{rank}", "w").close()
with open(f"{folder}/digest.{rank}", "w") as file:
    file.write(engine.parameter_digest())
"""
WAIT = "print('here', flush=True)\ntime.sleep(1000)\n"


class Job:
    """A command for each host. Their output goes to files, so that nobody has to read it in time."""

    def __init__(self, hosts, folder, command):
        """`command(node)` is that of one host and its variables."""
        self.logs = [folder / f"{host.name}.log" for host in hosts]
        self.processes = []
        own = {"VIRTUAL_ENV": warm.environment()}
        for node, (host, log) in enumerate(zip(hosts, self.logs, strict=True)):
            words, variables = command(node)
            with log.open("w") as out:
                self.processes.append(host.start(*words, stdout=out, env=environment(**own, **variables)))

    def log(self, node):
        return self.logs[node].read_text()

    def wait_for(self, condition, what):
        def look():
            running = all(process.poll() is None for process in self.processes)
            return condition() or (running or pytest.fail(self.said(), pytrace=False)) and False

        wait_for(look, what, seconds=150)

    def said(self):
        return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in self.logs)

    def codes(self):
        return [process.wait(timeout=150) for process in self.processes]


def launchers(hosts, folder, *command, nproc=1, options=()):
    """`zeroshard run` on each host, told of nothing but where node 0 is."""
    of_all = ["run", "--nproc", nproc, "--nnodes", len(hosts), "--master_addr", "host0", *options]
    return Job(hosts, folder, lambda node: ([ZEROSHARD, *of_all, "--node_rank", node, *command], {}))


def train_on(hosts, folder, script, nproc=1):
    """A job in which every rank has trained some steps, and that trains until it is stopped."""
    job = launchers(hosts, folder, script(TRAIN), folder, FOR_EVER, nproc=nproc)
    ranks = len(hosts) * nproc
    job.wait_for(lambda: len(list(folder.glob("trains.*"))) == ranks, "training")
    return job


def digests(folder, ranks):
    return {(folder / f"digest.{rank}").read_text() for rank in range(ranks)}


def run_script(arguments):
    """On a rank."""
    sys.argv = list(arguments)
    runpy.run_path(arguments[0], run_name="__main__")


def on_one_host(folder, script, ranks):
    folder.mkdir()
    world.run(ranks, run_script, arguments=[script(TRAIN), str(folder), "5"])
    return digests(folder, ranks)


def rank_of(host):
    """The process of a rank on `host`, as seen from outside."""
    return next(pid for pid, line in host.processes().items() if re.match(r"\S*python\S* -u ", line))


def launcher_of(host):
    """Its supervisor has the same command line, and is younger."""
    return min(pid for pid, line in host.processes().items() if line.startswith(f"{ZEROSHARD} run "))


def check_named(job, living, what, began):
    """Every living host says `what` within the time that docs/reliability.md promises."""
    for node in living:
        wait_for(lambda node=node: re.search(what, job.log(node)), what, began + NAMED_WITHIN_S - time.monotonic())


def check_nothing_left(hosts):
    wait_for(lambda: not any(host.processes() for host in hosts), "the end of all processes")


@pytest.mark.idle_ranks("what is compared is the sums of hosts")
@pytest.mark.row("H1")
@pytest.mark.parametrize(
    ("count", "nproc", "mesh"),
    [
        (2, 2, []),
        (3, 1, []),
        (3, 2, []),
        (2, 3, []),
        (2, 2, ["host"]),
        (3, 2, ["host"]),
        (3, 1, ["host"]),
        (2, 2, ["host", "optimizer"]),
        (3, 2, ["host", "optimizer"]),
    ],
)
def test_hosts_train_with_the_bits_of_one(tmp_path, script, lan, count, nproc, mesh):
    made = lan(count)
    job = launchers(made, tmp_path, script(TRAIN), tmp_path, 5, *mesh, nproc=nproc)
    assert job.codes() == [0] * count, job.said()
    assert digests(tmp_path, count * nproc) == on_one_host(tmp_path / "one", script, count * nproc)
    check_nothing_left(made)


COUNTED = """
import json
import torch
import zeroshard
folder, stage = sys.argv[1], int(sys.argv[2])
mesh, more = (json.loads(text) for text in [*sys.argv[3:], "{}", "{}"][:2])

def sent():
    line = next(line for line in open("/proc/net/dev") if line.strip().startswith("eth0:"))
    return int(line.split(":")[1].split()[8])

torch.set_num_threads(1)
zeroshard.init_distributed()
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)))
config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"},
          "bf16": {"enabled": bool(more)},
          "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, **more},
          "zeroshard": {"mesh": mesh}}
engine, *_ = zeroshard.initialize(model=model, config=config)
rows = torch.ones(1, 1024, dtype=model[0].weight.dtype)
for step in range(6):
    if step == 2:
        torch.distributed.barrier()
        before = sent()
    engine.backward(engine(rows).float().square().mean())
    engine.step()
torch.distributed.barrier()
with open(f"{folder}/sent.{rank}", "w") as file:
    file.write(str(sent() - before))
"""


@pytest.mark.row("H1")
@pytest.mark.parametrize("stage", [1, 3])
def test_bytes_cross_the_link_once_for_each_host(tmp_path, script, lan, stage):
    """Of M bytes of parameters, each of H hosts sends M (H - 1) / H in a gather, and as much in a reduction."""
    job = launchers(lan(2), tmp_path, script(COUNTED), tmp_path, stage, nproc=2)
    assert job.codes() == [0, 0] and "4 rank(s) over shm+gloo" in job.said(), job.said()
    bytes_of_model, steps = 4 * 1024 * 1024 * 4, 4
    # Stage 3 gathers again in backward, except for the last of four layers.
    collectives = 2 if stage == 1 else 2.75
    for rank in range(4):
        sent = int((tmp_path / f"sent.{rank}").read_text())
        assert sent == pytest.approx(steps * collectives * bytes_of_model / 2, rel=0.03), rank


@pytest.mark.idle_ranks("what is compared is the sums of hosts")
@pytest.mark.row("H1")
@pytest.mark.parametrize("stage", [1, 3])
def test_only_sums_of_gradients_cross_the_link_between_replicas(tmp_path, script, lan, stage):
    """Of M bytes of gradients, each of R replicas sends 2 M (R - 1) / R, and no gather crosses."""
    job = launchers(lan(2), tmp_path, script(COUNTED), tmp_path, stage, json.dumps({"shard": "host"}), nproc=2)
    assert job.codes() == [0, 0], job.said()
    bytes_of_model, steps = 4 * 1024 * 1024 * 4, 4
    for rank in range(4):
        sent = int((tmp_path / f"sent.{rank}").read_text())
        assert sent == pytest.approx(steps * bytes_of_model, rel=0.03), rank


PLANNED = """
import json
import torch
import zeroshard
from torch import nn
folder = sys.argv[1]
sizes = json.load(open(f"{folder}/config.json"))
hidden, wide, words = sizes["hidden_size"], sizes["intermediate_size"], sizes["vocab_size"]

class Layer(nn.Module):
    # The parameters of Llama's layer.
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(hidden), nn.RMSNorm(hidden)])
        self.square = nn.Sequential(*(nn.Linear(hidden, hidden, bias=False) for _ in range(4)))
        self.up, self.gate = nn.Linear(hidden, wide, bias=False), nn.Linear(hidden, wide, bias=False)
        self.down = nn.Linear(wide, hidden, bias=False)

    def forward(self, x):
        x = x + self.square(self.norms[0](x))
        y = self.norms[1](x)
        return x + self.down(self.up(y) * self.gate(y).sigmoid())

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(words, hidden), nn.RMSNorm(hidden)
        self.layers = nn.ModuleList([Layer() for _ in range(sizes["num_hidden_layers"])])
        self.head = nn.Linear(hidden, words, bias=False)
        if sizes["tie_word_embeddings"]:
            self.head.weight = self.embedding.weight

    def forward(self, rows):
        x = self.embedding(rows)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).square().mean()

def sent():
    line = next(line for line in open("/proc/net/dev") if line.strip().startswith("eth0:"))
    return int(line.split(":")[1].split()[8])

torch.set_num_threads(1)
zeroshard.init_distributed()
torch.manual_seed(0)
engine, *_ = zeroshard.initialize(model=Model(), config=json.load(open(f"{folder}/zeroshard.json")))
rows = torch.ones(1, 4, dtype=torch.long)
for step in range(6):
    if step == 2:
        torch.distributed.barrier()
        before = sent()
    for _ in range(engine.gradient_accumulation_steps()):
        engine.backward(engine(rows))
        engine.step()
torch.distributed.barrier()
with open(f"{folder}/sent.{rank}", "w") as file:
    file.write(str(sent() - before))
"""


@pytest.mark.row("H1")
@pytest.mark.parametrize(
    ("stage", "tied", "own", "more"),
    [
        (0, False, {}, {}),
        (2, False, {}, {"gradient_accumulation_steps": 2}),
        (3, False, {}, {"gradient_accumulation_steps": 2}),
        (3, True, {}, {}),
        (3, False, {"transport": "process_group"}, {}),
        (3, False, {"mesh": {"shard": "host"}}, {}),
        (3, False, {"mesh": {"shard": 1}}, {"zero_optimization": {"stage": 3, "zero_quantized_gradients": True}}),
    ],
)
def test_the_plan_says_what_crosses_the_link(tmp_path, script, lan, stage, tied, own, more):
    """Persistent units, gathers, sums and refreshes of a model like Llama, beside what host 0 sends."""
    model = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 3}
    model |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 2048, "tie_word_embeddings": tied}
    (tmp_path / "config.json").write_text(json.dumps(model))
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
    config |= {"optimizer": {"type": "AdamW"}}
    (tmp_path / "zeroshard.json").write_text(json.dumps(config | more | {"zeroshard": own}))
    job = launchers(lan(2), tmp_path, script(PLANNED), tmp_path, nproc=2)
    assert job.codes() == [0, 0], job.said()
    words = ["--model", tmp_path, "--config", tmp_path / "zeroshard.json", "--cluster", "2x2", "--cpu", "--json"]
    said = subprocess.run([ZEROSHARD, "plan", *words], capture_output=True, text=True, check=True).stdout
    sent = int((tmp_path / "sent.0").read_text())
    assert sent == pytest.approx(4 * json.loads(said)["network"]["total_bytes"], rel=0.03)


OPTIMIZER = {"shard": "host", "outer": "optimizer"}


@pytest.mark.idle_ranks("what is compared is what hosts send")
@pytest.mark.row("H1")
@pytest.mark.parametrize(
    "mesh,more,bytes_of_element",
    [(OPTIMIZER, {"overlap_comm": True}, 4 + 2), ({}, {"zero_hpz_partition_size": 2}, 4 + 2)],
)
def test_sums_and_updated_parameters_cross_the_link_once_in_a_step(tmp_path, script, lan, mesh, more, bytes_of_element):
    """Each of R replicas that share states sends (R - 1) / R of the sums in fp32 and of the parameters in bf16."""
    job = launchers(lan(2), tmp_path, script(COUNTED), tmp_path, 3, json.dumps(mesh), json.dumps(more), nproc=2)
    assert job.codes() == [0, 0], job.said()
    elements, steps = 4 * 1024 * 1024, 4
    for rank in range(4):
        sent = int((tmp_path / f"sent.{rank}").read_text())
        assert sent == pytest.approx(steps * elements * bytes_of_element / 2, rel=0.03), rank


@pytest.mark.row("H1")
def test_ranks_of_other_launchers_train_with_the_bits_of_one_host(tmp_path, script, lan):
    """As from mpirun or srun: nothing but the variables of a rank."""

    def command(node):
        ranks = {"RANK": node, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        variables = ranks | {"MASTER_ADDR": "host0", "MASTER_PORT": PORT}
        return [sys.executable, script(TRAIN), tmp_path, 5], {name: str(value) for name, value in variables.items()}

    job = Job(lan(2), tmp_path, command)
    assert job.codes() == [0, 0], job.said()
    assert digests(tmp_path, 2) == on_one_host(tmp_path / "one", script, 2)


@pytest.mark.row("H1")
@needs(ZEROSHARD_TORCH)
@pytest.mark.parametrize("by", ["zeroshard run", "mpirun"])
def test_zeroshard_train_has_the_losses_of_one_host(tmp_path, lan, tokens, by):
    losses = {}
    for ranks_are_on in ("one host", "two hosts"):
        folder = tmp_path / ranks_are_on.replace(" ", "")
        folder.mkdir()
        config = write(folder, make(folder, tokens, steps=3, log_every=1)[1], stage=3)

        def command(node, config=config):
            train = [ZEROSHARD, "train", config]
            if by == "mpirun":
                rank = {"OMPI_COMM_WORLD_RANK": str(node), "OMPI_COMM_WORLD_SIZE": "2"}
                return train, rank | {"MASTER_ADDR": "host0", "MASTER_PORT": str(PORT)}
            options = ["--nproc", 1, "--nnodes", 2, "--node_rank", node, "--master_addr", "host0", "--no_python"]
            return [ZEROSHARD, "run", *options, *train], {}

        if ranks_are_on == "two hosts":
            job = Job(lan(2), tmp_path, command)
        else:
            job = Job(lan(1), tmp_path, lambda _, config=config: ([ZEROSHARD, "train", config, "--nproc", 2], {}))
        assert set(job.codes()) == {0}, job.said()
        losses[ranks_are_on] = [step["loss"] for step in metrics(folder).values() if "loss" in step]
    assert losses["two hosts"] == losses["one host"] and len(losses["one host"]) == 3


INTERFACES = """
import sys
from zeroshard import _C
for name in sys.stdin:
    try:
        print(_C.interface_towards(name.strip()), flush=True)
    except Exception as error:
        print(error, flush=True)
"""


@pytest.mark.row("H1")
def test_the_interface_is_the_one_that_leads_to_the_master(lan):
    first, second = lan(2)
    asked = {host: host.start(sys.executable, "-c", INTERFACES, stdin=subprocess.PIPE) for host in (first, second)}

    def told(host, name):
        asked[host].stdin.write(f"{name}\n")
        asked[host].stdin.flush()
        return asked[host].stdout.readline().strip()

    assert (told(second, "host0"), told(first, "host0")) == ("eth0", "eth0")
    first.ip("link add more type veth peer name end", "link set end up", "link set more up")
    first.ip("address add 10.99.0.1/24 dev more")
    error = told(first, "host0")
    assert "the host host0 has the address 127.0.1.1 here" in error and "'eth0', 'more'" in error, error
    assert error.endswith("set GLOO_SOCKET_IFNAME to the interface that leads to the other hosts")
    first.ip(f"route add default via {second.address}")
    assert told(first, "host0") == "eth0"
    assert "no interface leads to the host 10.98.0.1 (10.98.0.1: Network is unreachable)" in told(second, "10.98.0.1")
    for process in asked.values():
        process.communicate(timeout=150)


@pytest.mark.row("H2")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_is_named_on_every_host(tmp_path, script, lan, victim):
    made = lan(3 if victim else 2)
    job = train_on(made, tmp_path, script)
    began = time.monotonic()
    os.kill(rank_of(made[victim]), signal.SIGKILL)
    what = rf"job failed: rank {victim} \(pid \d+ on host host{victim}\) was killed by SIGKILL"
    check_named(job, range(len(made)), what, began)
    assert job.codes() == [128 + signal.SIGKILL] * len(made), job.said()
    assert "GLHF" not in job.said()
    check_nothing_left(made)


@pytest.mark.row("H2")
@pytest.mark.parametrize("how", ["all its processes are killed", "it is cut off"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_host_that_vanishes_is_named_on_every_other(tmp_path, script, lan, how, victim):
    made = lan(3)
    job = train_on(made, tmp_path, script)
    living = [node for node in range(3) if node != victim]
    began = time.monotonic()
    made[victim].kill() if "killed" in how else made[victim].cut_off()
    fate = "is gone" if "killed" in how else r"has not been heard for 10 s \(--stall-timeout\)"
    check_named(job, living, rf"host host{victim} \(node {victim}, rank {victim}\) {fate}", began)
    codes = job.codes()
    assert [codes[node] for node in living] == [1, 1], job.said()
    check_nothing_left([made[node] for node in (living if "killed" in how else range(3))])


@pytest.mark.row("H3")
@pytest.mark.parametrize("node", [0, 1])
def test_a_signal_on_any_host_ends_in_one_whole_checkpoint(tmp_path, script, lan, node):
    made = lan(2)
    job = train_on(made, tmp_path, script)
    os.kill(launcher_of(made[node]), signal.SIGTERM)
    assert job.codes() == [128 + signal.SIGTERM] * 2, job.said()
    assert "job failed" not in job.said() and f"SIGTERM on host host{node}: forwarded" in job.log(1 - node)
    assert len(list((tmp_path / "saved").glob("global_step*"))) == 1
    check_nothing_left(made)


@pytest.mark.row("H3")
def test_a_rank_that_was_asked_to_stop_is_no_failure(tmp_path, script, lan):
    made = lan(2)
    job = train_on(made, tmp_path, script)
    os.kill(rank_of(made[1]), signal.SIGTERM)
    assert job.codes() == [128 + signal.SIGTERM] * 2, job.said()
    assert "job failed" not in job.said() and all("job stopped: rank" in job.log(node) for node in range(2))


@pytest.mark.row("H1")
def test_a_taken_port_is_told_on_every_host(tmp_path, script, lan):
    made = lan(2)
    listen = f"import socket, time; s = socket.create_server(('', {PORT})); print('here', flush=True); time.sleep(1000)"
    other = made[0].start(sys.executable, "-c", listen)
    assert other.stdout.readline() == "here\n"
    began = time.monotonic()
    job = launchers(made, tmp_path, script(WAIT))
    assert job.codes() == [1, 1] and time.monotonic() - began < NAMED_WITHIN_S, job.said()
    assert f"port {PORT} (--master_port)" in job.log(0) and "Address already in use" in job.log(0)
    assert f"there is no launcher of zeroshard at host0:{PORT} (--master_addr, --master_port)" in job.log(1)
