"""Sizes of requests to swap files that the configuration does not give: the disk is measured, once for all engines."""

import os

import models
import torch
import world
import zeroshard


def make_large(folder, **aio):
    """An engine with states that are large enough for a measurement."""
    os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
    config = models.configuration(1, "fp32", optimizer=models.adamw(), aio=aio)
    config["zero_optimization"]["offload_optimizer"] = {"device": "nvme", "nvme_path": folder}
    zeroshard.initialize(model=torch.nn.Linear(4096, 8192, bias=False), config=config)


def test_sizes_of_requests_are_measured_once_and_kept(tmp_path):
    known = tmp_path / "cache/zeroshard/disks"

    def told(**aio):
        (rank,) = world.run_ranks(1, make_large, folder=str(tmp_path), **aio)
        assert rank.exit_code == 0, rank.log
        return rank.log

    assert " in requests of 65536 bytes, up to 7 at once" in told(block_size=65536, queue_depth=7)
    assert not known.exists()
    first = told()
    boot, device, block, depth = known.read_text().splitlines()[-1].split()
    assert f" in requests of {block} bytes, up to {depth} at once" in first
    known.write_text(f"{boot} {device} 131072 9\n")
    assert " in requests of 131072 bytes, up to 9 at once" in told()
    known.unlink()
    known.mkdir()
    told_of_error = told()
    assert f"usual sizes: cannot open {known}" in told_of_error, told_of_error
    assert " in requests of 1048576 bytes, up to 32 at once" in told_of_error
