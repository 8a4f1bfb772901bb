"""Ray Train with zeroshard: TorchTrainer starts the workers and connects them, and zeroshard shards over them.

python ray_train.py --workers 2            # CPU workers
python ray_train.py --workers 8 --gpus     # a GPU for each worker
"""

import argparse

import ray
import ray.train
import torch
import zeroshard
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
}


def train(settings):
    """Runs on each worker."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
    engine, *_ = zeroshard.initialize(model=model, config=CONFIG)
    data = torch.Generator().manual_seed(ray.train.get_context().get_world_rank())
    for step in range(settings["steps"]):
        rows = torch.randn(4, 16, generator=data).to(engine.device)
        loss = (engine(rows).squeeze(1) - rows.sum(1)).square().mean()
        engine.backward(loss)
        engine.step()
        ray.train.report({"step": step, "loss": loss.item()})
    print(f"rank {engine.rank()} of {engine.world_size()} has the parameters {engine.parameter_digest()}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpus", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    trainer = TorchTrainer(
        train,
        train_loop_config={"steps": options.steps},
        scaling_config=ScalingConfig(num_workers=options.workers, use_gpu=options.gpus),
        torch_config=TorchConfig(backend="nccl" if options.gpus else "gloo"),
    )
    trainer.fit()
