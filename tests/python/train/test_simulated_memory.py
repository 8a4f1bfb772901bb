"""What the Python front needs of a device while it builds an engine: the simulated one, by one rank."""

import json
import subprocess

import models
import pytest
import simulated
import torch
import world
import zeroshard
from built import ZEROSHARD, needs

pytestmark = [
    pytest.mark.skipif(simulated.library() is None, reason="this build has no simulated device"),
    needs(ZEROSHARD),
]
BLOCK = 512  # of the device's allocator


class Memory:
    """Bytes on a device."""

    def __init__(self, device):
        self._device = device

    def allocated(self):
        return simulated.allocated_bytes(self._device)

    def peak_of(self, call):
        """The result of ``call``, and the most that was allocated meanwhile."""
        simulated.reset_peak(self._device)
        result = call()
        return result, simulated.peak_bytes(self._device)


def bytes_of(tensors):
    return sum(-(-tensor.nbytes // BLOCK) * BLOCK for tensor in tensors)


def settings(stage):
    extra = {"zeroshard": {"shard_one_rank": True}, "optimizer": models.adamw(3e-3)}
    return models.configuration(stage, "bf16", **extra)


def build(stage):
    """On a rank: the peak of ``initialize`` and the bytes after it, without what others have on the device."""
    with simulated.device(simulated.Schedule.EAGER) as device:
        memory = Memory(device)
        model = models.tiny_llama().to(torch.bfloat16).to(device)
        others = memory.allocated() - bytes_of(model.parameters())
        (engine, *_), peak = memory.peak_of(lambda: zeroshard.initialize(model=model, config=settings(stage)))
        planned = engine.memory_report()["planned"]
        return peak - others, memory.allocated() - others, sum(planned.values()) - planned["temporaries"]


@pytest.mark.parametrize("stage", range(4))
def test_initialize_peaks_as_the_command_plans(stage, tmp_path):
    ((peak, after, planned),) = world.run(1, build, stage=stage, timeout_s=120)
    assert after == planned
    models.tiny_llama().config.save_pretrained(tmp_path)
    (tmp_path / "training.json").write_text(json.dumps(settings(stage)))
    command = [ZEROSHARD, "plan", "--model", tmp_path, "--world-size", "1", "--config", tmp_path / "training.json"]
    report = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True, timeout=60).stdout)
    assert peak == report["device"]["initialisation_peak_bytes"]
    assert after == report["total_bytes_per_rank"]
