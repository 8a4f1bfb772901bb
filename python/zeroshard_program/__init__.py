"""Provides the command ``zeroshard-torch``, which ``zeroshard train`` and ``zeroshard generate`` start.

The command replaces its process by the compiled program ``zeroshard-torch`` that was built for this Python's torch. The
command has a package of its own, because ``import zeroshard`` would import torch, which takes seconds.
"""

import importlib.util
import pathlib
import runpy
import sys


def main() -> None:
    found = importlib.util.find_spec("zeroshard")
    folders = found.submodule_search_locations or [] if found else []
    places = [pathlib.Path(folder) / "core.py" for folder in folders]
    place = next(filter(pathlib.Path.exists, places), None)
    if place is None:
        sys.exit(f"zeroshard-torch: {sys.executable} has no zeroshard: install it again")
    runpy.run_path(str(place))["become_program"]()
