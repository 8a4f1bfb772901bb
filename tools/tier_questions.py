"""Counts by folder the places that ask on which tier something lies. Code that borrows the elements of an array need
not ask, so no folder may ask more often than is listed here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# Constants of tiers and of places in the configuration, predicates of placements, and owners that may be null.
QUESTION = re.compile(
    r"\b(?:Tier::k[A-Z]\w*|OffloadDevice::|Device::k(?:Cpu|Nvme|None|Auto)\b|(?:Gradients|Activations)::k[A-Z]\w*"
    r"|(?:is_on_host|in_file|host_updates_device_parameters|fetches_gradients|gradients_leave|in_memory|has_pending_update)\(\)"
    r"|numel_of_host\(|fetched\(|is_split_beside_device\(|device_updates_offloaded_parameters\b|has_rest\b"
    r"|(?:parameter_swap|gradient_swap|gradient_fetch)\b)"
)
MOST = {
    "cli": 22,
    "include": 18,
    "lm": 1,
    "src/checkpoint": 3,
    "src/checkpoint_torch": 3,
    "src/config": 23,
    "src/device": 3,
    "src/engine": 19,
    "src/group": 19,
    "src/memory": 3,
    "src/optim": 3,
    "src/placement": 58,
    "src/plan": 120,
    "src/reduce": 5,
    "src/store": 6,
}


def check_questions(root: Path, files: list[Path]) -> Iterator[str]:
    """A line for each folder that asks more often than MOST allows."""
    counts: Counter[str] = Counter()
    for path in files:
        parts = path.relative_to(root).parts
        lines = path.read_text(encoding="utf-8").splitlines()
        code = (line.partition("//")[0] for line in lines if not line.startswith("#"))
        counts["/".join(parts[:2]) if parts[0] == "src" else parts[0]] += sum(len(QUESTION.findall(c)) for c in code)
    for folder, count in sorted(counts.items()):
        if count > (most := MOST.get(folder, 0)):
            yield (
                f"{folder} asks {count} times where something lies, and the limit is {most} (tools/tier_questions.py): "
                "let an Array, a placement or a rule answer"
            )
