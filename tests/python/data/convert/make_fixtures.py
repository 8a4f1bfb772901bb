"""Makes the checkpoints that test_convert.py reads, and what DeepSpeed and PyTorch say is in them. Run once, by hand:

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 make_fixtures.py deepspeed STAGE PRECISION    (DeepSpeed 0.19.8)
    OMP_NUM_THREADS=1 torchrun --nproc-per-node 3 make_fixtures.py deepspeed STAGE bf16 groups
    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 make_fixtures.py dcp                          (torch 2.13)

universal2_groups and universal3_fp32 are ds2_groups and ds3_fp32 after DeepSpeed's ds_to_universal.py
(--inject_missing_state for the first).

Writes NAME/ (the checkpoint) and NAME.safetensors (parameters, moments as KIND/PARAMETER) beside this file, and
NAME.json with the losses of the steps that follow.
"""

import json
import os
import shutil
import sys

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 3


class Net(nn.Module):
    """Sizes that 2 does not divide, a tied, a frozen, a single-element parameter, persistent buffers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Embedding(11, 7)
        self.frozen = nn.Parameter(torch.randn(3, 5), requires_grad=False)
        self.up = nn.Linear(7, 5)
        self.down = nn.Linear(5, 7, bias=False)
        self.gain = nn.Parameter(torch.tensor([1.25]))
        self.register_buffer("mean", torch.linspace(0, 1, 7))
        self.register_buffer("count", torch.tensor(42))
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids).mean(1)
        hidden = self.up(x) * self.gain + self.frozen.mean()
        return self.head(x + self.down(torch.tanh(hidden)) + self.mean.to(x.dtype))


def groups_of(model):
    trained = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    decay = [param for name, param in trained if "bias" not in name and name != "gain"]
    rest = [param for name, param in trained if "bias" in name or name == "gain"]
    return [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, 11, (2, 4), generator=generator)


def loss_of(model, ids):
    return nn.functional.cross_entropy(model(ids).float(), ids[:, 0])


def with_deepspeed(stage, precision, groups=""):
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 10}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 10},
        "zero_allow_untested_optimizer": True,
    }
    if precision != "fp32":
        config[precision] = {"enabled": True}
    if precision == "fp16":
        config["fp16"] |= {"initial_scale_power": 8, "loss_scale_window": 2}
    model = Net()
    parameters = None
    if groups:
        config["zero_optimization"]["sub_group_size"] = 30  # stage 3: several vectors
        parameters = groups_of(model)
    name = f"ds{stage}_{groups or precision}"
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config=config)
    losses = []
    for step in range(2 * STEPS):
        if step == STEPS:
            save_deepspeed(engine, name, safe_get_full_fp32_param, safe_get_full_optimizer_state)
        loss = loss_of(engine, batch(step, dist.get_rank()))
        engine.backward(loss)
        engine.step()
        dist.all_reduce(loss := loss.detach().clone())
        losses.append(loss.item() / dist.get_world_size())
    finish(name, losses[STEPS:])


def save_deepspeed(engine, name, full_param, full_state):
    if dist.get_rank() == 0:
        shutil.rmtree(os.path.join(HERE, name), ignore_errors=True)
    dist.barrier()
    engine.save_checkpoint(os.path.join(HERE, name), client_state={"epoch": 4, "note": "hi", "best": (1.5, None)})
    reported = {}
    for param_name, param in engine.module.named_parameters():
        if param.requires_grad:
            reported[f"weight/{param_name}"] = full_param(param)
            # At stage 2 DeepSpeed's function does not find those of a second param group.
            for kind in ("exp_avg", "exp_avg_sq") if name != "ds2_groups" else ():
                reported[f"{kind}/{param_name}"] = full_state(param, kind)
    if dist.get_rank() == 0:
        save_file(
            {key: value.detach().float().reshape(value.shape).clone() for key, value in reported.items()},
            os.path.join(HERE, name + ".safetensors"),
        )


def with_dcp():
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    model = Net()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.01)
    losses = []
    for step in range(2 * STEPS):
        if step == STEPS:
            weights, moments = get_state_dict(model, optimizer)
            out = os.path.join(HERE, "dcp")
            if dist.get_rank() == 0:
                shutil.rmtree(out, ignore_errors=True)
            dist.barrier()
            dcp.save({"model": weights, "optim": moments, "step": STEPS, "note": "hi"}, checkpoint_id=out)
            whole = {f"weight/{key}": value for key, value in weights.items() if key != "head.weight"}
            for key, states in moments["state"].items():
                whole |= {f"{kind}/{key}": states[kind] for kind in ("exp_avg", "exp_avg_sq")}
            whole = {key: getattr(value, "full_tensor", lambda value=value: value)() for key, value in whole.items()}
            if dist.get_rank() == 0:
                save_file({key: value.detach().clone() for key, value in whole.items()}, out + ".safetensors")
        loss = loss_of(model, batch(step, dist.get_rank()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss := loss.detach().clone())
        losses.append(loss.item() / 2)
    finish("dcp", losses[STEPS:])


def finish(name, losses):
    if dist.get_rank() == 0:
        with open(os.path.join(HERE, name + ".json"), "w") as file:
            json.dump({"losses": losses}, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "dcp":
        with_dcp()
    else:
        with_deepspeed(int(sys.argv[2]), *sys.argv[3:])
