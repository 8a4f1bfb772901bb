"""Writes metrics of a run for TensorBoard, to CSV files and to Weights & Biases, as the configuration says."""

from __future__ import annotations

import os
import socket
import urllib.parse
import urllib.request
from multiprocessing.util import Finalize
from typing import Any

from . import _C
from .messages import log

_CONNECT_TIMEOUT_S = 3.0


def folders_of(config: _C.Config) -> dict[str, list[str]]:
    """Returns each folder for metrics, with the names of the configuration blocks whose files go there."""
    folders: dict[str, list[str]] = {}
    for block in ("tensorboard", "csv_monitor"):
        files = getattr(config, block)
        if files.enabled:
            folder = os.path.abspath(os.path.join(files.output_path, files.job_name))
            folders.setdefault(folder, []).append(block)
    return folders


def check_folders(config: _C.Config) -> None:
    """Makes the folders for metrics. Raises ``IoError`` for a folder that this process cannot make or write to."""
    for folder, blocks in folders_of(config).items():
        try:
            os.makedirs(folder, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError("no permission to write there")
        except OSError as error:
            raise _C.IoError(
                f"{blocks[0]}: no metrics can be written to '{folder}' (output_path/job_name): "
                f"{error.strerror or error}. Name another folder, or set {blocks[0]}.enabled to false"
            ) from error


class Metrics:
    """Writes the metrics of one engine. Only rank 0 makes this object. An error of a write never stops training.

    The first step opens the files, because only at that time the engine knows whether a checkpoint was loaded. A new
    run renames files that an earlier run has left. A run that continues from a checkpoint, or goes back to one, cuts
    off the records of later steps.
    """

    def __init__(self, config: _C.Config) -> None:
        self._folders = folders_of(config)
        self._files: list[_C.RunMetrics] = []
        self._last: int | None = None  # last recorded step
        self._wandb = _wandb_run(config.wandb) if config.wandb.enabled else None
        # Python also calls finish() at the end of a process whose engine is still in use.
        self.finish = Finalize(self, _finish, (self._files, self._wandb), exitpriority=1)

    def record(self, step: int, values: dict[str, float]) -> None:
        if self._last is None or step <= self._last:
            self._open(step)
        self._last = step
        for files in self._files:
            files.record(step, list(values.items()))
        if self._wandb is not None:
            try:
                self._wandb.log({"step": step, **values})
            except Exception as error:  # noqa: BLE001 (the package can raise anything)
                log(f"warning: no more metrics go to Weights & Biases: {error}")
                self._wandb = None

    def _open(self, step: int) -> None:
        for files in self._files:
            files.finish()
        self._files.clear()
        resume_step = None if self._last is None and step == 1 else step - 1
        for folder, blocks in self._folders.items():
            csv, tensorboard = "csv_monitor" in blocks, "tensorboard" in blocks
            try:
                self._files.append(_C.RunMetrics(folder, csv=csv, tensorboard=tensorboard, resume_step=resume_step))
            except _C.Error as error:
                log(f"warning: {', '.join(blocks)}: metrics are not written, training goes on: {error}")


def _finish(files: list[_C.RunMetrics], wandb_run: Any) -> None:
    for each in files:
        each.finish()
    if wandb_run is not None:
        try:
            wandb_run.finish()
        except Exception as error:  # noqa: BLE001 (the package can raise anything)
            log(f"warning: the run of Weights & Biases did not end well: {error}")


# -- Weights & Biases ------------------------------------------------------------------------------------------------


def _wandb_run(settings: _C.WandbConfig) -> Any:
    """Returns a run of the package wandb. The run is offline if the server cannot be reached or refuses it.

    If wandb cannot make a run, logs one line that says why, and returns None.
    """
    try:
        import wandb

        offline = "" if "WANDB_MODE" in os.environ else _why_unreachable(wandb.setup().settings.base_url)
    except Exception as error:  # noqa: BLE001 (a broken installation can raise anything)
        log(
            f"warning: wandb.enabled is true, but the package wandb cannot be used ({_first_line(error)}): nothing "
            "goes to Weights & Biases. `pip install wandb`, or set csv_monitor.enabled to keep the metrics in a file"
        )
        return None
    options = {"project": settings.project, "entity": settings.team, "group": settings.group}
    if not offline:
        try:
            return _with_steps(wandb.init(**options))
        except Exception as error:  # noqa: BLE001 (for example because there is no API key)
            offline = _first_line(error)
    try:
        run = _with_steps(wandb.init(mode="offline", **options))
    except Exception as error:  # noqa: BLE001
        log(f"warning: nothing goes to Weights & Biases, training goes on: {_first_line(error)}")
        return None
    folder = os.path.dirname(run.dir)
    log(f"Weights & Biases is offline ({offline}): the run is in {folder}; `wandb sync {folder}` uploads it")
    return run


def _with_steps(run: Any) -> Any:
    run.define_metric("*", step_metric="step")
    return run


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _why_unreachable(url: str) -> str:
    """Returns why a server cannot be reached, or "" if it can be reached or might be reached through a proxy."""
    address = urllib.parse.urlsplit(url)
    if address.scheme in urllib.request.getproxies():
        return ""
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return f"no connection to {address.hostname}:{port}: {error}"
    return ""
