"""How ranks find one another and their devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import world
from zeroshard import distributed

SCRIPT = """
import sys
import torch
import zeroshard
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
          "zero_optimization": {"stage": 3}}
engine, *_ = zeroshard.initialize(model=model, config=config)
for step in range(3):
    x = torch.full((2, 8), float(step + engine.rank()))
    engine.backward(engine(x).square().mean())
    engine.step()
with open(f"{sys.argv[1]}/{engine.rank()}", "w") as file:
    file.write(f"{engine.world_size()} {engine.parameter_digest()}")
"""


def digests(command, script, out):
    out.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    done = subprocess.run([*command, script, out], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [(out / str(rank)).read_text() for rank in range(3)]


def test_torchrun_starts_the_same_job(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    own = [Path(sys.executable).with_name("zeroshard"), "run", "--nproc", "3"]
    theirs, ours = digests(torchrun, script, tmp_path / "theirs"), digests(own, script, tmp_path / "ours")
    assert set(theirs) == set(ours) and len(set(ours)) == 1
    assert ours[0].startswith("3 ")


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    assert [distributed.default_device(rank) for rank in range(2)] == [torch.device("cuda", 0), torch.device("cuda", 1)]
    with pytest.raises(ValueError, match=r"local rank 2 has no GPU .* shows 2 .*at most 2 rank"):
        distributed.default_device(2)


def ends_only_its_own_group():
    """Whether a default group of the script's own outlives end_default_group(), whatever its address."""

    def end_group():
        torch.distributed.barrier()  # a rank that ends its side would disturb one that still connects
        torch.distributed.destroy_process_group()

    distributed.init_distributed()
    unused = distributed._unused_group
    end_group()
    for port in range(5):
        store = torch.distributed.PrefixStore(str(port), unused[-1])
        torch.distributed.init_process_group("gloo", store=store, rank=world.rank(), world_size=world.size())
        distributed._unused_group = unused
        distributed.end_default_group()
        if not torch.distributed.is_initialized():
            return False
        end_group()
    return True


def test_a_group_of_the_scripts_own_is_not_ended():
    assert world.run(2, ends_only_its_own_group) == [True, True]


@pytest.mark.row("X1")
@pytest.mark.parametrize("backend", ["GLOO", "NCCL"])
@pytest.mark.parametrize(
    ("host", "local", "chosen", "expected"),
    [
        ("node-7", 2, None, "lo"),  # torchrun on one host gives its name
        ("127.0.0.1", 2, None, "lo"),
        ("node-7", 2, "eth1", "eth1"),
        ("node-7", 1, None, None),
    ],
)
def test_ranks_of_one_host_listen_on_loopback_alone(monkeypatch, backend, host, local, chosen, expected):
    class Met(Exception):
        pass

    def meet(*args):
        raise Met

    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": str(local)}
    for name, value in {**ranks, "MASTER_ADDR": host, "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, chosen or "")  # so that it is put back
        if chosen is None:
            monkeypatch.delenv(name)
    monkeypatch.setattr(distributed, "_make_store", meet)
    with pytest.raises(Met):
        distributed.init_distributed("cpu")
    assert os.environ.get(f"{backend}_SOCKET_IFNAME") == expected


@pytest.mark.parametrize("port", ["abc", "0", "65536", "-1", ""])
def test_a_wrong_port_is_named(monkeypatch, port):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(ValueError, match=f"MASTER_PORT is '{port}', expected 1 to 65535"):
        distributed.init_distributed()
