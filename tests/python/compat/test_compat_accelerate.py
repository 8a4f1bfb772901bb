"""Without a GPU, Accelerate and Transformers count all ranks, whoever starts them and torch.distributed."""

import json
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

pytestmark = needs(ZEROSHARD)
TRAINER = """
from transformers import TrainingArguments
arguments = TrainingArguments(output_dir=sys.argv[1], deepspeed=json.loads(sys.argv[2]))
state = arguments.distributed_state
import torch.distributed as dist
started = dist.is_initialized() and (dist.get_world_size(), dist.get_backend())
tell(arguments.process_index, state.num_processes, arguments.world_size, state.local_process_index, started)
"""


def test_training_arguments_count_all_ranks(script, tmp_path):
    told = run("--num_gpus", "2", script(TRAINER), str(tmp_path), json.dumps(CONFIG))
    assert told == [[0, 2, 2, 0, [2, "gloo"]], [1, 2, 2, 1, [2, "gloo"]]]


ACCELERATE = """
import deepspeed
if "first" in sys.argv: deepspeed.init_distributed()
from accelerate import Accelerator, DeepSpeedPlugin
accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=3))
total = accelerator.reduce(__import__("torch").ones(1), "sum").item()
tell(accelerator.process_index, accelerator.num_processes, accelerator.distributed_type, total)
"""


@pytest.mark.parametrize("order", ["first", "later"])
def test_an_accelerator_counts_all_ranks(script, order):
    """Whoever starts torch.distributed."""
    told = run("--nproc", "2", script(ACCELERATE), order)
    assert told == [[0, 2, "DEEPSPEED", 2.0], [1, 2, "DEEPSPEED", 2.0]]


def test_accelerate_launch(script):
    command = [sys.executable, "-m", "accelerate.commands.launch", "--use_deepspeed", "--zero_stage", "2"]
    port, claim = world.reserve_port()
    command += ["--num_processes", "2", "--num_machines", "1", "--main_process_port", str(port)]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    told = called(*command, script(ACCELERATE), "later")
    claim.close()
    assert [row[:2] for row in told] == [[0, 2], [1, 2]]
