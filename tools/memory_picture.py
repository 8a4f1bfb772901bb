#!/usr/bin/env python3
"""Draws docs/memory.svg, bytes per rank by stage, from `zeroshard plan`: python tools/memory_picture.py

The test tests/python/project/test_memory_picture.py holds the picture equal to this output.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "memory.svg"
COMMAND = "zeroshard plan --params 7.5e9 --world-size 8"
TITLE = "Memory per rank: 7.5 billion parameters, 8 ranks, bf16 with AdamW"
KINDS = {  # names of the planner's JSON, with the colours for light and dark pages
    "parameters": ("parameters", "#2f6db3", "#6ea8e6"),
    "gradients": ("gradients", "#3a9c7a", "#6cc9a8"),
    "master_weights": ("fp32 master weights", "#d9963a", "#e8b36a"),
    "moments": ("moments of AdamW", "#b5533c", "#d98a75"),
}
LEFT, WIDTH, TOP, BAR, GAP = 80, 620, 64, 26, 14  # pixels


def planned(zeroshard):
    """By stage: bytes of each kind."""
    _, *arguments = COMMAND.split()
    plan = json.loads(subprocess.check_output([zeroshard, *arguments, "--json"], text=True))
    return {stage["stage"]: {kind: stage["breakdown"][kind] for kind in KINDS} for stage in plan["stages"]}


def bar(stage, y, kinds, scale):
    x, parts = float(LEFT), [f'<text class="label" x="{LEFT - 10}" y="{y + 18}">stage {stage}</text>']
    for kind, size in kinds.items():
        parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{size * scale:.1f}" height="{BAR}"/>')
        x += size * scale
    parts.append(f'<text x="{x + 8:.1f}" y="{y + 18}">{sum(kinds.values()) / 1e9:.4g} GB</text>')
    return parts


def legend(y):
    x, parts = LEFT, []
    for kind, (name, *_) in KINDS.items():
        parts.append(f'<rect class="{kind}" x="{x}" y="{y - 10}" width="12" height="12"/>')
        parts.append(f'<text x="{x + 18}" y="{y}">{name}</text>')
        x += 50 + 7 * len(name)
    return parts


def svg(stages):
    scale = WIDTH / max(sum(kinds.values()) for kinds in stages.values())
    height = TOP + len(stages) * (BAR + GAP)
    words = "; ".join(f"stage {stage} {sum(kinds.values()) / 1e9:.4g} GB" for stage, kinds in stages.items())
    light = " ".join(f".{kind} {{ fill: {colours[1]} }}" for kind, colours in KINDS.items())
    dark = " ".join(f".{kind} {{ fill: {colours[2]} }}" for kind, colours in KINDS.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 80} {height}" role="img">',
        f"<title>{TITLE}: {words}</title>",
        f"<style>text {{ font: 14px sans-serif; fill: #222 }} .label {{ text-anchor: end }} {light}",
        f"@media (prefers-color-scheme: dark) {{ text {{ fill: #ddd }} {dark} }}</style>",
        f'<text x="{LEFT}" y="18">{TITLE}</text>',
        *legend(44),
    ]
    for row, (stage, kinds) in enumerate(stages.items()):
        parts += bar(stage, TOP + row * (BAR + GAP), kinds, scale)
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(svg(planned(Path(sys.executable).with_name("zeroshard"))))
    print(PICTURE, file=sys.stderr)
