"""No class has more data members than the limit, but those that are listed here with the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from class_members import Class, cpp_classes, python_classes

MAX_MEMBERS = 12
# Plain data by such a name may have any number: each member is a setting of its own.
SETTINGS = ("Options", "Config")
# file and class -> what its members have in common
OVER_THE_LIMIT = {
    "config.h:Config": "settings, with two questions that need several of them",
    "meeting_state.h:Meeting::State": "what is known of one meeting: Meeting's own functions alone see it",
    "reducer.h:Reducer": "the lists by bucket that one backward pass fills, and the order that ranks agreed on",
    "run.py:Run": "the parts of one engine and its counters, for the modules that share them",
    "trainer.cpp:Run": "one training: its model, data and engine, and how far it is",
    "unit.h:Unit": "one unit's memory in three placements",
}


def check_classes(root: Path, files: list[Path]) -> Iterator[str]:
    """A line for each class over the limit that is not listed, and for each that is listed and below it."""
    for path in files:
        text = path.read_text(encoding="utf-8")
        for found in python_classes(ast.parse(text)) if path.suffix == ".py" else cpp_classes(text):
            if problem := _problem(f"{path.name}:{found.name}", found):
                yield f"{path.relative_to(root)}:{found.line}: {found.name} has {found.members} data members, {problem}"


def _problem(key: str, found: Class) -> str | None:
    if found.members <= MAX_MEMBERS:
        return "so tools/class_limits.py need not list it" if key in OVER_THE_LIMIT else None
    if key in OVER_THE_LIMIT or (found.is_plain_data and found.name.endswith(SETTINGS)):
        return None
    return f"the limit is {MAX_MEMBERS}: split its state, or give the reason in tools/class_limits.py"
