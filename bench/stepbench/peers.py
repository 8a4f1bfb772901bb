"""The peers: each function takes the freshly built model and returns `step(batch) -> loss` of one optimizer step.

All use AdamW with the same hyper-parameters. In bf16 all keep bf16 weights for the arithmetic and fp32 master weights.
"""

from dataclasses import dataclass

from .trainer import trainer
from .workload import BETAS, EPS, LEARNING_RATE, WEIGHT_DECAY, blocks_of


@dataclass(frozen=True)
class Context:
    """What a peer may depend on besides the model."""

    rank: int
    world: int
    dtype: str
    clip: float
    micro_batch: int
    shape: str
    seed: int


def adamw_arguments():
    return {"lr": LEARNING_RATE, "betas": BETAS, "eps": EPS, "weight_decay": WEIGHT_DECAY}


class _MasterAdamW:
    """torch.optim.AdamW over fp32 copies of bf16 parameters."""

    def __init__(self, params, fused):
        import torch

        self.params = [p for p in params if p.requires_grad]
        self.masters = [p.detach().float().clone().requires_grad_() for p in self.params]
        self.inner = torch.optim.AdamW(self.masters, fused=fused, **adamw_arguments())

    def step(self):
        import torch

        for param, master in zip(self.params, self.masters, strict=True):
            master.grad = param.grad.float()
        self.inner.step()
        self.inner.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_copy_(self.params, self.masters)

    def zero_grad(self):
        for param in self.params:
            param.grad = None


def _adamw(model, context, fused):
    import torch

    if context.dtype == "bf16":
        return _MasterAdamW(model.parameters(), fused)
    return torch.optim.AdamW(model.parameters(), fused=fused, **adamw_arguments())


def _torch_step(model, optimizer, clip):
    import torch

    def step(batch):
        loss = model(**batch).loss
        loss.backward()
        if clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def plain(model, context):
    return _torch_step(model, _adamw(model, context, fused=False), context.clip)


def plain_fused(model, context):
    return _torch_step(model, _adamw(model, context, fused=True), context.clip)


def no_update(model, context):
    """Forward and backward alone: below this no way to train several ranks can come."""

    def step(batch):
        loss = model(**batch).loss
        loss.backward()
        for param in model.parameters():
            param.grad = None
        return loss.detach()

    return step


def reference(model, context):
    """Not timed: one process that takes the mean over the micro-batches of all ranks. `batch` is their list."""
    import torch

    optimizer = _adamw(model, context, fused=True)

    def step(batches):
        losses = []
        for batch in batches:
            loss = model(**batch).loss
            (loss / len(batches)).backward()
            losses.append(loss.detach())
        if context.clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), context.clip)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean()

    return step


def ddp(model, context):
    from torch.nn.parallel import DistributedDataParallel

    return _torch_step(
        DistributedDataParallel(model, gradient_as_bucket_view=True),
        _adamw(model, context, fused=True),
        context.clip,
    )


def zero_redundancy(model, context):
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, fused=True, **adamw_arguments()
    )
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return _torch_step(wrapped, optimizer, context.clip)


def fsdp2(model, context):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (context.world,))
    options = {"mesh": mesh}
    if context.dtype == "bf16":
        model = model.float()  # the sharded parameters are the master weights; gathers cast to bf16
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in blocks_of(model):
        fully_shard(layer, **options)
    fully_shard(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **adamw_arguments())
    return _torch_step(model, optimizer, context.clip)


def engine_config(stage, context):
    """The JSON config that DeepSpeed and zeroshard both get; everything else stays at the library's defaults."""
    return {
        "train_micro_batch_size_per_gpu": context.micro_batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": context.clip,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": context.dtype == "bf16"},
        "steps_per_print": 1_000_000_000,
    }


def _engine_step(engine):
    def step(batch):
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
        return loss.detach()

    return step


def deepspeed(stage):
    def setup(model, context):
        import deepspeed as library
        import torch

        # The fused optimizer of torch, as for the other peers: DeepSpeed's own is not built ahead for CPU.
        config = engine_config(stage, context) | {"zero_allow_untested_optimizer": True}
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, **adamw_arguments())
        engine, *_ = library.initialize(model=model, config=config, optimizer=optimizer)
        return _engine_step(engine)

    return setup


def zeroshard(stage):
    def setup(model, context):
        import zeroshard as library

        params = adamw_arguments()
        params["betas"] = list(params["betas"])
        config = engine_config(stage, context) | {"optimizer": {"type": "AdamW", "params": params}}
        engine, *_ = library.initialize(model=model, config=config, model_parameters=model.parameters())
        return _engine_step(engine)

    return setup


BEFORE = "_before"  # ends the name of a peer that --before-python runs

PEERS = {
    "plain_fused": plain_fused,
    "plain": plain,
    "plain_x2": plain_fused,
    "no_update": no_update,
    "reference": reference,
    "ddp": ddp,
    "zero_redundancy": zero_redundancy,
    "fsdp2": fsdp2,
    **{f"deepspeed{stage}": deepspeed(stage) for stage in (1, 2, 3)},
    **{f"zeroshard{stage}{build}": zeroshard(stage) for stage in (0, 1, 2, 3) for build in ("", BEFORE)},
    "trainer": trainer(),
    **{
        f"trainer_{library}{stage}": trainer(stage, library)
        for library in ("deepspeed", "zeroshard")
        for stage in (2, 3)
    },
}

# Peers that keep no fp32 master weights have no bf16 mode that could be compared.
FP32_ONLY = ("zero_redundancy",)

# Peers whose processes do not talk to each other: no process group, and no mean over ranks.
UNCONNECTED = ("plain_fused", "plain", "plain_x2", "no_update", "reference", "trainer")

# Its losses are those of the first weights.
UNTRAINED = ("no_update",)


def is_trainer(peer):
    return peer.startswith("trainer")


def process_count(peer, world):
    """Number of processes of a peer; plain_x2 and no_update show what busy cores cost each other without exchange."""
    if peer == "plain_x2":
        return 2
    if peer == "no_update":
        return world
    return 1 if peer in UNCONNECTED else world


def import_library(peer):
    """Imports what the peer needs, so that the idle memory reading includes it."""
    import torch  # noqa: F401
    import torch.distributed  # noqa: F401

    if is_trainer(peer) and "zeroshard" in peer:
        import zeroshard

        zeroshard.as_deepspeed()
    import transformers.models.llama.modeling_llama  # noqa: F401

    if "deepspeed" in peer:
        import deepspeed  # noqa: F401
    elif "zeroshard" in peer:
        import zeroshard  # noqa: F401
    elif peer == "fsdp2":
        import torch.distributed.fsdp  # noqa: F401
