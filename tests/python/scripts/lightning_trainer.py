"""A script for Lightning's Trainer: an epoch, a checkpoint, and a second Trainer that goes on. Tells losses."""

import json
import os
import sys

import lightning
import torch
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy


class OnCpu(DeepSpeedStrategy):
    """Lightning asks for GPUs in these two methods, and nowhere else."""

    def setup_environment(self):
        super(DeepSpeedStrategy, self).setup_environment()

    def setup_distributed(self):
        reset_seed()
        self.set_world_ranks()
        self._init_deepspeed_distributed()


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 40))

    def loss(self, batch):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch, index):
        loss = self.loss(batch)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        self.log("validation", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


folder, stage = sys.argv[1:]
torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.randn(32, 16), torch.randn(32, 40))
told = []
for epochs in (1, 2):
    # Lightning calls set_epoch() of the sampler that it puts in, so orders are the same whoever trains.
    loaders = [torch.utils.data.DataLoader(data, batch_size=4) for _ in range(2)]
    strategy = DDPStrategy() if stage == "none" else OnCpu(stage=int(stage))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy=strategy, max_epochs=epochs, logger=False,
        enable_progress_bar=False, gradient_clip_val=1.0, default_root_dir=folder,
    )  # fmt: skip
    path = os.path.join(folder, "one.ckpt")
    trainer.fit(Regression(), *loaders, ckpt_path=path if epochs == 2 else None)
    told.append({name: float(value) for name, value in trainer.callback_metrics.items()})
    trainer.save_checkpoint(path)
if trainer.is_global_zero:
    print("\nTOLD " + json.dumps(told))
