"""Metrics that an engine in Python writes, as the configuration's blocks say: read by csv and TensorBoard."""

import contextlib
import csv
import gc
import math
import os
import socket
import sys
import threading
from pathlib import Path

import models
import pytest
import world
import zeroshard
from errors import message_of


def make_engine_with_metrics(folder, blocks, dtype="fp32", accumulation=1, model=None):
    config = models.configuration(2, dtype, accumulation=accumulation, optimizer=models.adamw(1e-3))
    config["train_micro_batch_size_per_gpu"] = 2
    for block in blocks:
        config[block] = {"enabled": True, "output_path": folder, "job_name": "job"}
    engine, *_ = zeroshard.initialize(model=model or models.tiny_llama(), config=config)
    return engine


def train_with_metrics(folder, blocks, steps, accumulation=1, dtype="fp32"):
    engine = make_engine_with_metrics(folder, blocks, dtype, accumulation=accumulation)
    seen = []
    for step in range(steps):
        loss = models.take_step(engine, step, accumulation)
        seen.append([loss, engine.get_global_grad_norm(), engine.get_lr()[0]])
    engine.destroy()
    return seen


def rows_of(folder):
    with open(Path(folder) / "job" / "metrics.csv") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_each_step_is_a_row_of_rank_0s(tmp_path, accumulation):
    seen = world.run(
        2, train_with_metrics, folder=str(tmp_path), blocks=["csv_monitor"], steps=3, accumulation=accumulation
    )[0]
    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    for row, (loss, norm, rate) in zip(rows, seen, strict=True):
        assert float(row["loss"]) == pytest.approx(loss, rel=1e-6)
        assert float(row["grad_norm"]) == pytest.approx(norm)
        assert float(row["lr"]) == rate
        samples, tokens = float(row["samples_per_second"]), float(row["tokens_per_second"])
        assert tokens == pytest.approx(9 * samples, rel=1e-3)  # tokens a sample
        assert samples * float(row["step_seconds"]) == pytest.approx(2 * 2 * accumulation, rel=1e-3)
        assert float(row["memory_bytes"]) > 1e7
        assert "loss_scale" not in row  # there is none in fp32
    assert sorted(os.listdir(tmp_path / "job")) == ["metrics.csv", "metrics.svg"]


def test_fp16_has_its_loss_scale(tmp_path):
    world.run(1, train_with_metrics, folder=str(tmp_path), blocks=["csv_monitor"], steps=2, dtype="fp16")
    assert all(math.log2(float(row["loss_scale"])).is_integer() for row in rows_of(tmp_path))


def test_tensorboard_reads_them(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    seen = world.run(2, train_with_metrics, folder=str(tmp_path), blocks=["tensorboard", "csv_monitor"], steps=3)[0]
    accumulator = accumulators.EventAccumulator(str(tmp_path / "job"))
    accumulator.Reload()
    points = accumulator.Scalars("loss")
    assert [point.step for point in points] == [1, 2, 3]
    assert [point.value for point in points] == pytest.approx([loss for loss, *_ in seen], rel=1e-6)
    assert len(rows_of(tmp_path)) == 3  # both blocks in one folder


def go_back(folder, saved):
    """Steps 1 to 4, a checkpoint of step 2, then back to it twice: in this process, and in an engine of its own."""
    engine = make_engine_with_metrics(folder, ["csv_monitor"])
    for step in range(4):
        models.take_step(engine, step)
        if step == 1:
            engine.save_checkpoint(saved)
    engine.load_checkpoint(saved)
    models.take_step(engine, 7)
    before = rows_of(folder) if world.rank() == 0 else None
    engine.wait_for_checkpoint()
    again = make_engine_with_metrics(folder, ["csv_monitor"], model=engine.module)  # takes it over
    again.load_checkpoint(saved)
    models.take_step(again, 8)
    again.destroy()
    plot = Path(folder, "job", "metrics.svg").read_bytes() if world.rank() == 0 else None
    del engine
    gc.collect()
    assert plot is None or Path(folder, "job", "metrics.svg").read_bytes() == plot  # the first engine's end is past
    return before


def test_after_a_load_no_step_is_there_twice(tmp_path):
    before = world.run(2, go_back, folder=str(tmp_path), saved=str(tmp_path / "saved"))[0]
    for rows in (before, rows_of(tmp_path)):
        assert [row["step"] for row in rows] == ["1", "2", "3"]
        for row in rows:  # the time of a load is in no step
            assert float(row["samples_per_second"]) * float(row["step_seconds"]) == pytest.approx(4, rel=1e-3)


def test_a_new_run_sets_the_files_of_another_aside(tmp_path):
    for _ in range(2):
        world.run(1, train_with_metrics, folder=str(tmp_path), blocks=["csv_monitor"], steps=2)
    assert len(rows_of(tmp_path)) == 2
    assert (tmp_path / "job" / "metrics.1.csv").exists()


def start(folder):
    return message_of(lambda: make_engine_with_metrics(folder, ["tensorboard"])) if world.rank() == 0 else None


def test_a_folder_that_cannot_be_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    (rank,) = world.run_ranks(1, start, folder=str(tmp_path / "file"))
    assert all(part in rank.value for part in ("tensorboard", str(tmp_path / "file"), "output_path", "enabled"))


def lose_the_folder(folder):
    engine = make_engine_with_metrics(folder, ["csv_monitor"])
    os.rmdir(Path(folder) / "job")
    Path(folder, "job").write_text("in the way")
    return [models.take_step(engine, step) for step in range(2)]


def test_training_goes_on_without_the_folder(tmp_path):
    (rank,) = world.run_ranks(1, lose_the_folder, folder=str(tmp_path))
    assert len(rank.value) == 2
    assert rank.log.count("metrics are not written, training goes on") == 1


# -- Weights & Biases ------------------------------------------------------------------------------------------------


def give_to_wandb(folder, installed=True, **environment):
    os.environ.update({"WANDB_DIR": folder, "WANDB_SILENT": "true", **environment})
    if not installed:
        sys.modules["wandb"] = None  # an import of it fails
    config = models.configuration(2, "fp32", optimizer=models.adamw(1e-3))
    config |= {"wandb": {"enabled": True, "project": "p", "group": "g"}, "train_micro_batch_size_per_gpu": 2}
    engine, *_ = zeroshard.initialize(model=models.tiny_llama(), config=config)
    losses = [models.take_step(engine, step) for step in range(2)]
    engine.destroy()
    return losses


def test_without_the_package_one_line_says_so(tmp_path):
    ranks = world.run_ranks(2, give_to_wandb, folder=str(tmp_path), installed=False)
    lines = [line for rank in ranks for line in rank.log.splitlines() if "wandb" in line]
    assert len(lines) == 1
    assert "pip install wandb" in lines[0]
    assert "csv_monitor" in lines[0]
    assert all(len(rank.value) == 2 for rank in ranks)


def listen():
    """A local address where somebody listens, and closes connections at once."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer():
        with contextlib.suppress(OSError):
            while True:
                server.accept()[0].close()

    threading.Thread(target=answer, daemon=True).start()
    return server


@pytest.mark.parametrize("reachable", [False, True])
def test_without_a_network_or_a_key_wandb_keeps_the_run_in_a_folder(tmp_path, reachable):
    pytest.importorskip("wandb")
    with listen() as server:
        port = server.getsockname()[1] if reachable else 9
        environment = {
            "WANDB_BASE_URL": f"http://127.0.0.1:{port}",
            "WANDB_API_KEY": "",
            "http_proxy": "",
            "HTTP_PROXY": "",
        }
        environment |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
        ranks = world.run_ranks(2, give_to_wandb, folder=str(tmp_path), **environment)
    (line,) = [line for rank in ranks for line in rank.log.splitlines() if "is offline" in line]
    assert ("key" in line) if reachable else ("no connection to 127.0.0.1:9" in line)
    assert "wandb sync" in line
    (run,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"loss" in run.read_bytes()
