"""Writes the log messages of rank 0 at the beginning and at the end of a run."""

from __future__ import annotations

import atexit
import weakref
from typing import Any

from . import _C
from .messages import log
from .run import Run


def announce(run: Run) -> None:
    """Logs on rank 0 how the engine trains and the planned memory, and at the end of the run the used memory."""
    if run.rank != 0:
        return
    report = memory_report(run.core)
    planned = report["planned"]
    parts = ", ".join(f"{name} {bytes_ / 1e6:.1f} MB" for name, bytes_ in planned.items())
    config, batch = run.config, run.batch
    log(
        f"stage {config.stage}, {run.world_size} rank(s) over {run.core.transport}, "
        f"{config.compute_dtype}, {config.reduction} reduction, {len(run.units)} units, "
        f"batch {batch.train} = {batch.micro} x {batch.accumulation} x {batch.world_size}, {_clipping(run)}"
    )
    tiers = report["tiers"]
    where = "".join(f", {tier['planned'] / 1e6:.1f} MB on the {name}" for name, tier in tiers.items())
    log(
        f"planned per rank: {sum(planned.values()) / 1e6:.1f} MB ({parts})"
        f"{where if len(tiers) > 1 else ''}, activations not included"
    )
    if not run.optimizer.is_elementwise:
        log(
            f"warning: {run.optimizer.name} is not known to be elementwise, and each rank updates flat pieces of "
            "parameters with it: an optimizer that looks at whole matrices, rows or norms computes something else than "
            "in one process (zero_allow_untested_optimizer is true, which Trainer and Accelerate set by themselves)"
        )
    atexit.register(_report_memory, weakref.ref(run))
    for line in run.parsed.assumed:
        log("warning: " + line)
    if run.parsed.unknown:
        log("warning: " + run.parsed.warning())
    for line in run.parsed.without_effect:
        log("no effect: " + line)


def _clipping(run: Run) -> str:
    if (norm := run.config.gradient_clipping) == 0:
        return "gradients not clipped"
    is_default = ("gradient_clipping", "default") in {(path, origin) for path, _, origin in run.parsed.values}
    return f"gradients clipped to the norm {norm:g}{' (default)' if is_default else ''}"


def memory_report(core: _C.Engine) -> dict[str, Any]:
    """Returns the result of ``Engine.memory_report``."""
    planned: dict[str, int] = {}
    measured: dict[str, int] = {}
    tiers: dict[str, dict[str, int]] = {}
    for category, tier, plan, peak in core.memory():
        planned[category] = planned.get(category, 0) + plan
        measured[category] = measured.get(category, 0) + peak
        total = tiers.setdefault(tier, {"planned": 0, "measured_peak": 0})
        total["planned"] += plan
        total["measured_peak"] += peak
    return {
        "planned": planned,
        "measured_peak": measured,
        "planned_total": sum(planned.values()),
        "measured_total": sum(measured.values()),
        "tiers": tiers,
        "kept": core.kept_memory(),
    }


def _report_memory(run: weakref.ref[Run]) -> None:
    if (alive := run()) is not None and not alive.has_ended:
        report = memory_report(alive.core)
        log(
            f"memory per rank: planned {report['planned_total'] / 1e6:.1f} MB, "
            f"measured peak {report['measured_total'] / 1e6:.1f} MB"
        )
