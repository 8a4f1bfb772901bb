"""What is in a checkpoint, by readers that are not ours."""

import json
import math
import os

import torch
from safetensors import safe_open


def manifest_of(folder, tag=""):
    with open(os.path.join(folder, tag, "manifest.json")) as file:
        return json.load(file)


def checkpoints_in(folder):
    """All names in the directory of a run but that of its lock, which is there while an engine is that has saved."""
    return sorted(set(os.listdir(folder)) - {".lock"})


def contents(folder):
    """name and kind -> bytes, read by an independent reader of safetensors and put together by the manifest."""
    manifest = manifest_of(folder)
    found = {}
    for tensor in manifest["tensors"]:
        if tensor["kind"].startswith("buffer@"):  # of ranks that need not be there again
            continue
        parts = []
        for index, begin, end, _, _ in tensor["slices"]:
            name = manifest["files"][index]["name"]
            with safe_open(os.path.join(folder, name), "pt") as file:
                parts.append(file.get_tensor(f"{tensor['kind']}/{tensor['name']}[{begin}:{end}]"))
        value = torch.cat(parts) if parts else torch.empty(0)
        assert value.numel() == math.prod(tensor["shape"])
        key = (tensor["name"], tensor["kind"], tensor["updates"])
        found[key] = value.view(torch.uint8).numpy().tobytes() if parts else b""
    return found
