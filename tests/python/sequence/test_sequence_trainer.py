"""Unmodified scripts with sequence parallelism by DeepSpeed's and Accelerate's names: the numbers of one process."""

import json
import sys

import pytest
import sequences
import torch
import transformers
import warm
import world
from built import TESTS, ZEROSHARD, needs
from deepspeed_scripts import (
    called,
    run,
    script,  # noqa: F401 - a fixture
)

pytestmark = needs(ZEROSHARD)
SCRIPT = str(TESTS / "scripts" / "sequence_trainer.py")
CASES = ["plain", "padded", "accumulates", "checkpointed", "tuned", "resumed"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    sequences.llama().save_pretrained(folder / "llama")
    return str(folder / "llama")


@pytest.fixture(scope="module")
def alone(saved):
    """What one process without DeepSpeed tells of every case."""
    return dict(called(warm.python(), SCRIPT, saved, "0", "0", *CASES, "two_groups", path=False))


def check_near(steps, expected):
    assert len(steps) == len(expected)
    for (loss, norm), (expected_loss, expected_norm) in zip(steps, expected, strict=True):
        assert loss == pytest.approx(expected_loss, abs=2e-6)
        assert norm == pytest.approx(expected_norm, abs=1e-4)


@pytest.mark.parametrize("stage", [0, 3])
def test_trainer(saved, alone, stage):
    told = dict(run("--num_gpus", "2", SCRIPT, saved, str(stage), "2", *CASES))
    for case in CASES[1:]:
        check_near(told[case], alone[case])
    (steps, evaluated), (expected, expected_evaluated) = told["plain"], alone["plain"]
    check_near(steps, expected)
    assert evaluated == pytest.approx(expected_evaluated, abs=2e-6)


def test_trainer_with_two_groups_of_two(saved, alone):
    told = dict(run("--num_gpus", "4", SCRIPT, saved, "3", "2", "two_groups"))
    check_near(told["two_groups"], alone["two_groups"])


def test_a_file_of_accelerate_configures_the_same(saved, alone, tmp_path):
    """`accelerate launch --config_file`: its keys reach TRL as environment variables."""
    parallelism = {"dp_replicate_size": 1, "dp_shard_size": 1, "tp_size": 1, "cp_size": 1, "sp_size": 2}
    parallelism |= {"sp_backend": "deepspeed", "sp_seq_length_is_variable": True, "sp_attn_implementation": "sdpa"}
    configuration = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {
            "zero_stage": 3,
            "zero3_init_flag": True,
            "zero3_save_16bit_model": True,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 1.0,
            "deepspeed_multinode_launcher": "standard",
        },
        "mixed_precision": "no",
        "num_machines": 1,
        "num_processes": 2,
        "parallelism_config": {f"parallelism_config_{name}": value for name, value in parallelism.items()},
    }
    path = tmp_path / "alst.yaml"
    path.write_text(json.dumps(configuration))  # which is YAML, too
    port, claim = world.reserve_port()
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(path)]
    launch += ["--main_process_port", str(port)]
    told = dict(called(*launch, SCRIPT, saved, "3", "2", "tuned"))
    claim.close()
    check_near(told["tuned"], alone["tuned"])


TUTORIAL = """
import torch, deepspeed, deepspeed.comm as dist
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF, UlyssesSPDataLoaderAdapter
from deepspeed.runtime.utils import move_to_device
from deepspeed.utils import groups
from torch import tensor
from transformers import AutoModelForCausalLM

model_name_or_path = sys.argv[-1]
seq_length, sequence_parallel_size, micro_batch_size = 16, 2, 1
config_dict = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "sequence_parallel_size": sequence_parallel_size,
}
dtype = torch.float32
rank = int(os.environ["RANK"])

class TestDataset(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = [torch.arange(seq_length) * (i + 3) % 61 for i in range(6)]
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, idx):
        ids = self.rows[idx]
        return {"input_ids": ids, "labels": ids, "position_ids": torch.arange(seq_length)}

dist.init_distributed(dist_backend="gloo", dist_init_required=True)
mpu = UlyssesSPAttentionHF.register_with_transformers(
    model_name_or_path=model_name_or_path,
    core_attn_implementation="sdpa",
    sequence_parallel_size=sequence_parallel_size,
    micro_batch_size=micro_batch_size,
    seq_length=seq_length,
    seq_length_is_variable=True,
)
with deepspeed.zero.Init(config_dict_or_path=config_dict, mpu=mpu):
    model = AutoModelForCausalLM.from_pretrained(model_name_or_path, attn_implementation="sdpa")
model, _, _, _ = deepspeed.initialize(
    config=config_dict, model=model, model_parameters=model.parameters(), mpu=mpu
)
sampler = torch.utils.data.DistributedSampler(TestDataset(), shuffle=False)
dl = torch.utils.data.DataLoader(TestDataset(), batch_size=micro_batch_size, sampler=sampler)
sp_group = groups._get_sequence_parallel_group()
sp_world_size = groups._get_sequence_parallel_world_size()
sp_rank = groups._get_sequence_parallel_rank()
dl = UlyssesSPDataLoaderAdapter(
    dl, sp_rank=sp_rank, sp_group=sp_group, sp_world_size=sp_world_size, device=model.device
)
told = []
for iter, batch in enumerate(dl):
    batch = move_to_device(batch, model.device)
    outputs = model(**batch)
    shift_labels = batch["shift_labels"]
    loss = model.module.loss_function(
        logits=outputs.logits, labels=None, shift_labels=shift_labels, vocab_size=model.module.config.vocab_size
    )
    losses_per_rank = torch.distributed.nn.functional.all_gather(loss, group=sp_group)
    good_tokens = (shift_labels != -100).view(-1).sum()
    good_tokens_per_rank = torch.distributed.nn.functional.all_gather(good_tokens, group=sp_group)
    total_loss = sum(
        losses_per_rank[rank] * good_tokens_per_rank[rank]
        for rank in range(sp_world_size)
        if good_tokens_per_rank[rank] > 0
    )
    loss = total_loss / max(sum(good_tokens_per_rank), 1)
    model.backward(loss)
    model.step()
    told.append(loss.item())
tell(rank, told, len(dl), model.train_batch_size(), [model.dp_world_size, model.seq_dp_world_size])
"""


def plain_losses(folder):
    """The same without DeepSpeed, on a rank."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for i in range(6):
        ids = (torch.arange(16) * (i + 3) % 61)[None]
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_the_tutorial_of_deepspeed(script, saved):
    (expected,) = world.run(1, plain_losses, folder=saved)
    told = run("--num_gpus", "2", script(TUTORIAL), saved)
    assert [rank for rank, *_ in told] == [0, 1]
    for _, losses, length, batch, sizes in told:
        assert losses == pytest.approx(expected, abs=2e-6)
        assert (length, batch, sizes) == (6, 1, [1, 2])
