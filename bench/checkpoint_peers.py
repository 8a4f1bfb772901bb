"""The peers of bench/checkpoint.py: how each saves, makes durable and loads the state of one rank.

A peer is made once per process with the freshly built model. `save(mode, directory)` returns when training could go on,
`wait()` when everything is on the device, `load(mode, directory)` when training could go on from the checkpoint.
"""

import os
from pathlib import Path

from stepbench.peers import adamw_arguments, engine_config
from stepbench.workload import SHAPES, Shape

CHECKPOINT_SHAPES = SHAPES | {
    "m110": Shape(hidden=768, layers=12, mlp=2048, heads=12, vocab=16384, batch=1, sequence=32),
}


def fsync_path(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Zeroshard:
    """ZeRO stage 3, saving in the background as it does by default."""

    MODES = ("zeroshard",)
    CHECKPOINT = {}  # its block of the configuration

    def __init__(self, model, context):
        import zeroshard as library

        params = adamw_arguments()
        params["betas"] = list(params["betas"])
        config = engine_config(3, context) | {"optimizer": {"type": "AdamW", "params": params}}
        config["zeroshard"] = {"checkpoint": self.CHECKPOINT}
        self.engine, *_ = library.initialize(model=model, config=config, model_parameters=model.parameters())

    def step(self, batch):
        loss = self.engine(**batch).loss
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()

    def save(self, mode, directory):
        self.engine.save_checkpoint(directory, tag="bench")

    def wait(self):
        self.engine.wait_for_checkpoint()

    def load(self, mode, directory):
        path, _ = self.engine.load_checkpoint(directory, tag="bench", strict=True)
        assert path is not None

    def staging(self):
        """The ledger's line of the copy that is written in the background: (planned, measured peak), bytes."""
        memory = self.engine.memory_report()
        return tuple(memory[kind].get("checkpoint staging", 0) for kind in ("planned", "measured_peak"))

    def digest(self):
        return self.engine.parameter_digest()


class ZeroshardForeground(Zeroshard):
    """The same, writing from the state itself: no copy, and training waits."""

    MODES = ("zeroshard_foreground",)
    CHECKPOINT = {"async": False}


class Fsdp2:
    """FSDP2 with torch's fused AdamW, saved as each rank's own shards by torch.save, and by DCP, sync and async."""

    MODES = ("torch_save", "dcp", "dcp_async")

    def __init__(self, model, context):
        import torch
        from torch.distributed.fsdp import fully_shard

        for layer in model.model.layers:
            fully_shard(layer)
        self.model = fully_shard(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=True, **adamw_arguments())
        self.rank, self.future = context.rank, None

    def step(self, batch):
        loss = self.model(**batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def _state(self):
        from torch.distributed.checkpoint.state_dict import get_state_dict

        weights, moments = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optimizer": moments}

    def _local(self):
        """This rank's own stretches of weights and moments; they share the memory that training uses."""
        tensors = {}
        for name, param in self.model.named_parameters():
            tensors[name] = param.to_local().detach()
            for kind, value in self.optimizer.state[param].items():
                tensors[f"{name}.{kind}"] = value.to_local() if hasattr(value, "to_local") else value
        return tensors

    def _file(self, directory):
        return Path(directory) / f"rank{self.rank}.pt"

    def save(self, mode, directory):
        import torch
        import torch.distributed.checkpoint as dcp

        if mode == "torch_save":
            Path(directory).mkdir(exist_ok=True)
            with open(self._file(directory), "wb") as file:
                torch.save(self._local(), file)
                file.flush()
                os.fsync(file.fileno())
        elif mode == "dcp":
            dcp.save(self._state(), checkpoint_id=directory)
        else:
            self.future = dcp.async_save(self._state(), checkpoint_id=directory)

    def wait(self):
        if self.future is not None:
            future, self.future = self.future, None
            getattr(future, "upload_completion", future).result()

    def load(self, mode, directory):
        import torch
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict

        if mode == "torch_save":
            saved = torch.load(self._file(directory), weights_only=True)
            for name, tensor in self._local().items():
                tensor.copy_(saved[name])
            return
        state = self._state()
        dcp.load(state, checkpoint_id=directory)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


class DeepSpeed:
    """DeepSpeed stage 3. It does not make its files durable: `wait` does."""

    MODES = ("deepspeed",)

    def __init__(self, model, context):
        import deepspeed as library
        import torch

        config = engine_config(3, context) | {"zero_allow_untested_optimizer": True}
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, **adamw_arguments())
        self.engine, *_ = library.initialize(model=model, config=config, optimizer=optimizer)
        self.rank, self.world, self.directory = context.rank, context.world, None

    step = Zeroshard.step

    def save(self, mode, directory):
        self.engine.save_checkpoint(directory, tag="bench")
        self.directory = Path(directory)

    def wait(self):
        files = sorted(path for path in self.directory.rglob("*") if path.is_file())
        for path in files[self.rank :: self.world]:
            fsync_path(path)

    def load(self, mode, directory):
        path, _ = self.engine.load_checkpoint(directory, tag="bench")
        assert path is not None


PEERS = {"zeroshard": Zeroshard, "zeroshard_foreground": ZeroshardForeground, "fsdp2": Fsdp2, "deepspeed": DeepSpeed}
