"""What is compared: each function makes a peer of a fresh fp32 model.

All compute in bf16 and keep fp32 master weights and moments; AdamW with the same settings.
"""

import os
import tempfile

import torch
from stepbench.workload import BETAS, EPS, WEIGHT_DECAY

LEARNING_RATE = 1e-3  # so large that a few steps move the loss
ADAMW = {"lr": LEARNING_RATE, "betas": BETAS, "eps": EPS, "weight_decay": WEIGHT_DECAY}


class Plain:
    """Eager PyTorch: bf16 weights, torch's fused AdamW over fp32 copies of them."""

    def __init__(self, model):
        self.masters = [param.detach().clone().requires_grad_() for param in model.parameters()]
        self.model = model.bfloat16()
        self.params = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.masters, fused=True, **ADAMW)

    def backward(self, batch):
        loss = self.model(batch).loss
        loss.backward()
        return loss.detach()

    @torch.no_grad()
    def update(self):
        grads = [torch.empty_like(master) for master in self.masters]
        torch._foreach_copy_(grads, [param.grad for param in self.params])
        for param, master, grad in zip(self.params, self.masters, grads, strict=True):
            param.grad, master.grad = None, grad
        self.optimizer.step()
        self.optimizer.zero_grad()
        torch._foreach_copy_(self.params, self.masters)

    def close(self):
        pass


class Fsdp2:
    """torch's fully_shard over one rank: a unit for each layer. `offload`: fp32 weights, gradients and moments are in
    host memory, where torch's fused AdamW for CPUs updates them."""

    def __init__(self, model, offload=False):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

        device = next(model.parameters()).device
        join_group_of_one(device)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        options = {"mesh": init_device_mesh(device.type, (1,)), "mp_policy": policy}
        if offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
        for layer in model.layers:
            fully_shard(layer, **options)
        self.model = fully_shard(model, **options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True, **ADAMW)

    def backward(self, batch):
        loss = self.model(batch).loss
        loss.backward()
        return loss.detach()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def close(self):
        pass


class Zeroshard:
    """Stage 3. `shards`: one rank gathers and reduces as several do. `offload`: more keys of zero_optimization.

    `delayed`: updates come a step late, so losses are others.
    """

    def __init__(self, model, shards=False, micro_batch=1, offload=None, delayed=False):
        import zeroshard

        betas = {**ADAMW, "betas": list(BETAS)}
        config = {
            "train_micro_batch_size_per_gpu": micro_batch,
            "gradient_clipping": 0,
            "zero_optimization": {"stage": 3, **(offload or {})},
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": betas},
            "steps_per_print": 1_000_000_000,
            "zeroshard": {"shard_one_rank": shards, "offload": {"delayed_update": delayed}},
        }
        self.engine = zeroshard.initialize(model=model, config=config)[0]

    def backward(self, batch):
        loss = self.engine(batch).loss
        self.engine.backward(loss)
        return loss.detach()

    def update(self):
        self.engine.step()

    def close(self):
        self.engine.destroy()


class ZeroshardFile(Zeroshard):
    """States in a file, in a directory of its own where TMPDIR says."""

    def __init__(self, model):
        self.folder = tempfile.TemporaryDirectory(prefix="zeroshard-swap-")
        super().__init__(model, offload={"offload_optimizer": {"device": "nvme", "nvme_path": self.folder.name}})

    def close(self):
        super().close()
        self.folder.cleanup()


def join_group_of_one(device):
    if torch.distributed.is_initialized():
        return
    os.environ.update({"MASTER_ADDR": "127.0.0.1"})
    torch.distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )


ON_HOST = {"device": "cpu", "pin_memory": True}

PEERS = {
    "plain": Plain,
    "fsdp2": Fsdp2,
    "zeroshard": Zeroshard,
    "zeroshard_sharded": lambda model: Zeroshard(model, shards=True),
    "fsdp2_offload": lambda model: Fsdp2(model, offload=True),
    "zeroshard_offload": lambda model: Zeroshard(
        model, offload={"offload_optimizer": ON_HOST, "offload_param": ON_HOST}
    ),
    "zeroshard_offload_states": lambda model: Zeroshard(model, offload={"offload_optimizer": ON_HOST}),
    "zeroshard_offload_delayed": lambda model: Zeroshard(model, offload={"offload_optimizer": ON_HOST}, delayed=True),
    "zeroshard_offload_file": ZeroshardFile,
}
