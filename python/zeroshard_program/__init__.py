"""The command ``zeroshard-torch``, which becomes the program of this name compiled for the torch of this Python.

``zeroshard train`` and ``zeroshard generate`` start the command. It is a package of its own, because ``import
zeroshard`` imports torch, which takes seconds.
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
