"""Results of several benchmarks in one pair of files: a machine may hand back only a few."""

import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import torch
from machine import cpu_name

ROOT = Path(__file__).resolve().parents[2]


def machine(device):
    """What figures were measured on."""
    known = {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        known["gpu"] = torch.cuda.get_device_name(device)
        known["cuda"] = torch.version.cuda
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        known["driver"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0]
    return known


def _replace(path, text):
    """A reader, or a run that is cut off, sees the old file or the new one."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)


def write(arguments, name, figures, table):
    """Adds to bench.json and bench.md in the folder that was asked for; figures of the same name are replaced."""
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bench.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    command = shlex.join(["python3", os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]])
    known[name] = {"command": command, "machine": machine(arguments.place), "figures": figures, "table": table}
    _replace(path, json.dumps(known, indent=1) + "\n")
    _replace(folder / "bench.md", "\n".join(_section(title, each) for title, each in known.items()))
    print(_section(name, known[name]))


def _section(name, entry):
    told = ", ".join(f"{key} {value}" for key, value in entry["machine"].items())
    return f"## {name}\n\n    {entry['command']}\n\n{told}\n\n{entry['table']}\n"


def table(header, rows):
    """Of Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def verdict(arguments, value, goal, at_most=True):
    """The value, beside its goal where that means something."""
    if arguments.small or arguments.device == "cpu":
        return f"{value:.3g}"
    met = value <= goal if at_most else value >= goal
    return f"{value:.3g} (goal {'at most' if at_most else 'at least'} {goal:g}: {'met' if met else 'NOT met'})"
