"""How scripts for DeepSpeed start: by zeroshard's launcher, DeepSpeed's command or none; and deepspeed.comm."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
import world
from built import ZEROSHARD, needs
from deepspeed_scripts import (
    CONFIG,
    called,
    run,
    script,  # noqa: F401 - a fixture
)
from errors import message_of
from launched import environment
from zeroshard.compat import alias

pytestmark = needs(ZEROSHARD)


ALONE = """
from transformers import TrainingArguments
arguments = TrainingArguments(output_dir=sys.argv[1], deepspeed=json.loads(sys.argv[2]))
import deepspeed, torch, torch.distributed as dist
before = (dist.is_initialized(), arguments.local_rank, arguments.world_size)
model = torch.nn.Linear(2, 2)
config = {**json.loads(sys.argv[2]), "optimizer": {"type": "Adam"}}
engine, *_ = deepspeed.initialize(model=model, config=config)
loss = engine(torch.ones(1, 2)).sum()
engine.backward(loss)
engine.step()
once = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
deepspeed.init_distributed()
tell(before, dist.get_world_size(), deepspeed.comm.get_rank(), deepspeed.comm.get_local_rank(), once)
"""


def test_one_rank_needs_no_launcher(script, tmp_path):
    """Nothing is started before initialize, and a real group afterwards."""
    (told,) = called(sys.executable, script(ALONE), str(tmp_path), json.dumps(CONFIG))
    before, *rest = told
    assert (before[0], before[2]) == (False, 1)
    assert rest == [1, 0, 0, ["0", "1", "0"]]


COMMAND = """
import argparse, deepspeed
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--lr", type=float)
arguments = deepspeed.add_config_arguments(parser).parse_args()
deepspeed.init_distributed("nccl")
tell(arguments.local_rank, arguments.lr, arguments.deepspeed, arguments.deepspeed_config, deepspeed.comm.get_rank())
"""


def test_the_command_deepspeed(script):
    """With the argument --local_rank, and without it on request; asked for nccl, CPU ranks use gloo."""
    rest = ["--lr", "0.5", "--deepspeed", "--deepspeed_config", "c.json"]
    path = script(COMMAND)
    told = called("deepspeed", "--num_gpus=2", path, *rest, path=False)
    assert told == [[rank, 0.5, True, "c.json", rank] for rank in range(2)]
    told = called("deepspeed", "--no_local_rank", "--num_accelerators", "1", path, "--lr=1", path=False)
    assert told == [[-1, 1.0, False, None, 0]]
    told = called(sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "1", path, "--lr=1")
    assert told == [[0, 1.0, False, None, 0]]


RUNNER = """
import sys
from deepspeed.launcher.runner import main
for code in sys.argv[2:]:
    try:
        main(["--num_gpus", "1", sys.argv[1], code])
        print("RETURNED", flush=True)
    except SystemExit as exit:
        print("EXITED", exit.code, flush=True)
"""


def test_the_launcher_as_a_function_returns(script, tmp_path):
    path = script("tell(sys.argv[-1])\nsys.exit(int(sys.argv[-1]))\n")
    runner = tmp_path / "runner.py"
    runner.write_text(RUNNER)
    env = environment(PYTHONPATH=f"{alias.PATH}:{os.environ.get('PYTHONPATH', '')}")
    command = [sys.executable, str(runner), path, "0", "3", "0"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"RETURNED|EXITED \d+", done.stdout)
    assert said == ["RETURNED", "EXITED 3", "RETURNED"], done.stdout + done.stderr


def test_the_launcher_as_a_function_passes_signals(script):
    path = script(
        "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))\nprint('READY', flush=True)\n"
        "signal.pause()\n"
    )
    env = environment(PYTHONPATH=f"{alias.PATH}:{os.environ.get('PYTHONPATH', '')}")
    code = f"from deepspeed.launcher.runner import main; main(['--num_gpus', '1', {path!r}])"
    runner = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert any("READY" in line for line in runner.stdout)
        runner.send_signal(signal.SIGUSR1)
        assert runner.wait(timeout=60) == 7
    finally:
        runner.kill()
        runner.stdout.close()


def test_ds_report():
    env = environment(PATH=f"{alias.BIN}:{ZEROSHARD.parent}:{os.environ['PATH']}")
    done = subprocess.run(["ds_report"], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "as release 0.19.8" in done.stdout and "transports" in done.stdout and "device" in done.stdout


# --- environment ------------------------------------------------------------------------------------------------------


def exports(times=1, **variables):
    """PYTHONPATH and PATH after `eval "$(zeroshard env)"` in a shell."""
    env = {name: value for name, value in environment().items() if name not in ("PYTHONPATH",)}
    code = f'eval "$({ZEROSHARD} env)"\n' * times + 'printf "%s\\n%s\\n" "$PYTHONPATH" "$PATH"'
    done = subprocess.run(
        ["/bin/sh", "-c", code], env=env | variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_zeroshard_env_does_not_grow():
    known = os.environ.get("PYTHONPATH") or str(alias.PATH).removesuffix("/zeroshard/compat/path")
    for other in (known, f"{known}:/a dir/it's $x `y`", f"{known}:{alias.PATH}:/b"):
        rest = other.replace(f"{alias.PATH}:", "")
        for times in (1, 2):
            places = exports(times, PYTHONPATH=other, PATH="/usr/bin:/bin")
            assert places == [f"{alias.PATH}:{rest}", f"{alias.BIN}:/usr/bin:/bin"]


def test_zeroshard_env_without_the_package(tmp_path):
    """One error, and nothing for the shell."""
    env = environment(PYTHONPATH="", PYTHONNOUSERSITE="1", VIRTUAL_ENV=str(tmp_path))
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "python"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    fake.chmod(0o755)
    done = subprocess.run([ZEROSHARD, "env"], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "has no zeroshard" in done.stderr and "VIRTUAL_ENV" in done.stderr
    # Ranks that do not use zeroshard still run.
    done = subprocess.run([ZEROSHARD, "run", "--nproc", "1", "--no_python", "true"], env=env, timeout=60, check=False)
    assert done.returncode == 0


def test_no_deepspeed_leaves_another_one_in_place(script, tmp_path):
    """Also in a shell that has evaluated `zeroshard env`."""
    (tmp_path / "site" / "deepspeed").mkdir(parents=True)
    (tmp_path / "site" / "deepspeed" / "__init__.py").write_text("")
    body = "import deepspeed\ntell(hasattr(deepspeed, '__zeroshard__'), os.environ['PATH'].split(':')[0])"
    paths = f"{tmp_path}/site:{os.environ.get('PYTHONPATH', '')}"
    arguments = ["run", "--nproc", "1", script(body)]
    for first in ("", f"{alias.PATH}:"):
        env = {"PYTHONPATH": first + paths}
        (told,) = called(ZEROSHARD, *arguments, path=False, **env)
        assert told == [True, alias.BIN]
        (told,) = called(ZEROSHARD, "run", "--no-deepspeed", *arguments[1:], path=False, **env)
        assert told[0] is False and told[1] != alias.BIN


def without_a_group():
    import torch
    from zeroshard.compat.deepspeed import initialize

    model, config = torch.nn.Linear(2, 2), CONFIG | {"optimizer": {"type": "Adam"}}
    said = message_of(lambda: initialize(model=model, config=config, dist_init_required=False))
    torch.distributed.init_process_group("gloo")
    engine = initialize(model=model, config=config, dist_init_required=False)[0]
    return said, engine.device.type


@pytest.mark.idle_ranks("one rank alone")
def test_a_group_that_the_script_has_to_start():
    for said, device in world.run(1, without_a_group):
        assert "dist_init_required is False, and torch.distributed is not started" in said
        assert device == "cpu"


# --- deepspeed.comm ---------------------------------------------------------------------------------------------------


def collectives():
    sys.path.insert(0, alias.PATH)
    import deepspeed
    import torch
    from deepspeed import comm

    wrong = []
    for options in ({"dist_backend": "mpi"}, {"timeout": 10}, {"dist_init_required": False}):
        try:
            deepspeed.init_distributed(**options)
        except Exception as error:  # noqa: BLE001 (told)
            wrong.append(f"{type(error).__name__}: {error}")
    assert comm.is_available() and not comm.is_initialized()
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    deepspeed.init_distributed()
    rank, size = comm.get_rank(), comm.get_world_size()
    tensor = torch.ones(2) * (rank + 1)
    comm.all_reduce(tensor, op=comm.ReduceOp.MAX, prof=True, log_name="x")
    gathered = torch.zeros(2 * size)
    comm.all_gather_into_tensor(gathered, tensor=torch.full((2,), float(rank)), debug="x")
    part = torch.zeros(1)
    comm.reduce_scatter_tensor(output_tensor=part, tensor=torch.arange(float(size)))
    comm.broadcast(tensor=tensor, src=1)
    comm.barrier()
    group = comm.new_group([1])
    found = [comm.get_global_rank(None, 1), comm.get_all_ranks_from_group(), comm.get_local_rank()]
    if rank == 1:
        found.append(comm.get_global_rank(group, 0))
    comm.destroy_process_group()
    assert not comm.is_initialized()
    return wrong, tensor.tolist(), gathered.tolist(), part.item(), found


def test_collectives():
    for rank, (wrong, tensor, gathered, part, found) in enumerate(world.run(2, collectives)):
        assert wrong[0] == "ValueError: init_distributed: dist_backend is 'mpi', expected 'nccl', 'gloo' or None"
        assert wrong[1].startswith("ValueError: init_distributed: timeout is 10, expected a datetime.timedelta")
        assert wrong[2].startswith("StateError: init_distributed: dist_init_required is False")
        assert (tensor, gathered, part) == ([2.0, 2.0], [0.0, 0.0, 1.0, 1.0], 2.0 * rank)
        assert found == [1, [0, 1], rank, *([1] if rank == 1 else [])]


LEFT_UNDER_WAY = """
import time
import deepspeed, torch, torch.distributed as dist

class Slow:
    sleep = staticmethod(time.sleep)
    def __del__(self):
        self.sleep(float(sys.argv[2]))

deepspeed.init_distributed()
if dist.get_rank() == 1:
    time.sleep(float(sys.argv[1]))
dist.all_reduce(torch.ones(1), async_op=True)
sys.ps1 = Slow()  # the first object that goes with the interpreter
tell(dist.get_rank())
"""


@pytest.mark.parametrize(("later", "slow"), [(0.5, 1.5), (4, 4)], ids=["soon", "long"])
def test_a_script_may_end_without_ending_its_groups(script, later, slow):
    """Symptom: "terminate called without an active exception" from Gloo's threads. Rank 1 comes later on purpose."""
    assert run("--nproc", "2", script(LEFT_UNDER_WAY), str(later), str(slow)) == [[0], [1]]


LEFT_WAITING = """
import threading, time
from datetime import timedelta
import deepspeed, torch.distributed as dist

class Slow:
    sleep = staticmethod(time.sleep)
    def __del__(self):
        self.sleep(1.5)

store, arguments = dist.HashStore(), (["never"], timedelta(seconds=1))
threading.Thread(target=store.wait, args=arguments, daemon=True).start()
sys.ps1 = Slow()  # the first object that goes with the interpreter
tell(0)
"""


def test_a_script_may_end_while_a_thread_of_it_waits_in_torch(script):
    """The same symptom, from any thread that wants Python's lock after the end of the interpreter."""
    assert run("--nproc", "1", script(LEFT_WAITING)) == [[0]]
