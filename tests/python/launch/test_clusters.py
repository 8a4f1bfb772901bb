"""The files of examples/clusters: schedulers start ranks, or zeroshard's launchers, on hosts that are namespaces."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from built import REPOSITORY, ZEROSHARD, needs
from hosts import lan  # noqa: F401 - a fixture
from launched import (
    environment,
    script,  # noqa: F401 - a fixture
)
from sshd import needs_sshd, serve
from test_hosts import TRAIN, Job, digests

pytestmark = [needs(ZEROSHARD), pytest.mark.idle_ranks("what is compared is the ranks")]
EXAMPLES = REPOSITORY / "examples" / "clusters"
NODES = '#!/bin/sh\nprintf "host0\\nhost1\\n"\n'
# The words after srun's own options, on the node of --nodelist.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do
  if [[ $1 == --nodelist ]]; then node=$2; shift; fi
  shift
done
exec ssh {ssh} "$node" env SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 "$@"
"""


def programs(folder, **texts):
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    own = f"{ZEROSHARD.parent}:{os.path.dirname(sys.executable)}"
    return {"PATH": f"{folder}:{own}:{os.environ['PATH']}"}


def check(job, folder, ranks):
    assert set(job.codes()) == {0}, job.said()
    assert len(list(folder.glob("digest.*"))) == ranks and len(digests(folder, ranks)) == 1


def test_slurm_starts_the_ranks(lan, tmp_path):
    """The script's own words, with the variables that srun gives each task."""
    hosts, train = lan(2), tmp_path / "train.py"
    train.write_text("import os, signal, sys\nrank = int(os.environ['SLURM_PROCID'])\n" + TRAIN)
    srun = '#!/bin/bash\nshift\nSLURM_LOCALID=0 SLURM_PROCID=$SLURM_NODEID exec "$@"\n'
    path = programs(tmp_path / "bin", scontrol=NODES, srun=srun)

    def command(node):
        variables = {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0, "SLURM_NTASKS": 2, "SLURM_NODEID": node}
        variables |= {"SLURM_JOB_NODELIST": "host[0-1]"}
        words = ["bash", EXAMPLES / "slurm.sh", train, tmp_path, 5]
        return words, path | {name: str(value) for name, value in variables.items()}

    check(Job(hosts, tmp_path, command), tmp_path, 2)


@needs_sshd
def test_the_launcher_starts_the_ranks_of_an_allocation(lan, script, tmp_path):
    hosts, train = lan(2), script(TRAIN)
    path = programs(tmp_path / "bin", scontrol=NODES, srun=SRUN.format(ssh=serve(hosts, tmp_path)))
    text = (EXAMPLES / "slurm_launcher.sh").read_text()
    assert "slots=8" in text and "--min-ranks 8" in text
    batch = tmp_path / "batch.sh"
    batch.write_text(text.replace("slots=8", "slots=2").replace("--min-ranks 8", "--min-ranks 2"))
    variables = path | {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "host[0-1]"}
    words = ["env", "-C", tmp_path, "bash", batch, train, tmp_path, 5]
    check(Job(hosts[:1], tmp_path, lambda _: (words, variables)), tmp_path, 4)


def yaml_of(name):
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((EXAMPLES / name).read_text())


def test_kubeflow_starts_torchrun(lan, script, tmp_path):
    """With the variables of its runtime for torch."""
    trainer = yaml_of("kubeflow.yaml")["spec"]["trainer"]
    assert (trainer["command"], trainer["args"]) == (["torchrun"], ["train.py", "--config", "ds.json"])
    hosts, train = lan(2), script(TRAIN)
    torchrun = [sys.executable, "-m", "torch.distributed.run"]

    def command(node):
        variables = {"NNODES": 2, "NPROC_PER_NODE": 1, "NODE_RANK": node, "MASTER_ADDR": "host0", "MASTER_PORT": 29500}
        return [*torchrun, train, tmp_path, 5], {f"PET_{name}": str(value) for name, value in variables.items()}

    check(Job(hosts, tmp_path, command), tmp_path, 2)


def test_skypilot_starts_a_launcher_on_each_node(lan, script, tmp_path):
    lines = yaml_of("skypilot.yaml")["run"]
    assert "train.py --config ds.json" in lines
    hosts = lan(2)
    lines = lines.replace("train.py --config ds.json", f"{script(TRAIN)} {tmp_path} 5")
    path = programs(tmp_path / "bin")

    def command(node):
        variables = {"NUM_GPUS_PER_NODE": 2, "NUM_NODES": 2, "NODE_RANK": node, "NODE_IPS": "10.77.0.1\n10.77.0.2"}
        return ["bash", "-c", lines], path | {f"SKYPILOT_{name}": str(value) for name, value in variables.items()}

    check(Job(hosts, tmp_path, command), tmp_path, 4)


def test_files_fit_the_schemas():
    models = pytest.importorskip("kubeflow_trainer_api.models")
    job = yaml_of("kubeflow.yaml")
    read = models.TrainerV1alpha1TrainJob.from_dict(job)
    assert read.to_dict() == job
    jsonschema, schemas = pytest.importorskip("jsonschema"), pytest.importorskip("sky.utils.schemas")
    jsonschema.validate(yaml_of("skypilot.yaml"), schemas.get_task_schema())


@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="Ray is not installed: pip install 'ray[train]'")
def test_ray_train_starts_the_ranks(tmp_path):
    command = [sys.executable, EXAMPLES / "ray_train.py", "--workers", "2", "--steps", "3"]
    variables = environment(RAY_DEDUP_LOGS="0")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    said = dict(re.findall(r"rank (\d) of 2 has the parameters (\w+)", done.stdout + done.stderr))
    assert said.keys() == {"0", "1"} and said["0"] == said["1"]
