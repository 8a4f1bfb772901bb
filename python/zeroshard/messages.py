"""What a run tells on stderr."""

from __future__ import annotations

import atexit
import sys
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import Engine


def log(message: str) -> None:
    print(f"[zeroshard] {message}", file=sys.stderr, flush=True)


def announce(engine: Engine) -> None:
    """On rank 0, how the engine trains and what memory that takes; at the end of the run, what it took."""
    if engine.rank() != 0:
        return
    planned = engine.memory_report()["planned"]
    parts = ", ".join(f"{name} {bytes_ / 1e6:.1f} MB" for name, bytes_ in planned.items())
    config = engine._config
    log(
        f"stage {config.stage}, {engine.world_size()} rank(s) over {engine._core.transport}, "
        f"{config.compute_dtype}, {config.reduction} reduction, {len(engine._units)} units, "
        f"batch {engine.train_batch_size()} = {engine.train_micro_batch_size_per_gpu()} x "
        f"{engine.gradient_accumulation_steps()} x {engine.world_size()}"
    )
    log(f"planned per rank: {sum(planned.values()) / 1e6:.1f} MB ({parts}), activations not included")
    atexit.register(_report_memory, weakref.ref(engine))
    if engine._parsed.without_effect:
        log("keys that have no effect here: " + "; ".join(engine._parsed.without_effect))


def _report_memory(engine: weakref.ref[Engine]) -> None:
    if (alive := engine()) is not None and hasattr(alive, "_ownership") and alive._ownership.core is not None:
        report = alive.memory_report()
        log(
            f"memory per rank: planned {report['planned_total'] / 1e6:.1f} MB, "
            f"measured peak {report['measured_total'] / 1e6:.1f} MB"
        )
