#!/usr/bin/env python3
"""Draws docs/step.svg, the way of one unit's data through a step: python tools/step_picture.py

The test tests/python/project/test_step_picture.py holds the picture equal to this output.
"""

import sys
from dataclasses import dataclass

from memory_picture import KINDS, ROOT

PICTURE = ROOT / "docs" / "step.svg"
TITLE = "One unit in one step, as one rank sees it"
COLUMN, EDGE, BOX = 146, 12, 44  # pixels: the width of a column, the margin, the height of a box
FONT, CHARACTER = 13, 7.6  # pixels; the width is that of a wide font
PHASES = ("1 gather", "2 forward", "3 backward", "4 reduce", "5 update", "6 refresh")
BANDS = {  # what is drawn there: top and height
    "other ranks": (40, 78),
    "this rank, whole (stage 3: while in use)": (152, 168),
    "this rank, its shards: for the whole run": (354, 112),
}
COLOURS = {  # of boxes, on light and dark pages
    "parameters": KINDS["parameters"][1:],
    "gradients": KINDS["gradients"][1:],
    "states": KINDS["master_weights"][1:],
    "activations": ("#777777", "#aaaaaa"),
}
HEIGHT, WIDTH = 480, 2 * EDGE + len(PHASES) * COLUMN


@dataclass
class Box:
    lines: tuple[str, ...]
    kind: str
    column: int
    top: int
    columns: int = 1

    @property
    def left(self):
        return EDGE + self.column * COLUMN + 8

    @property
    def width(self):
        return self.columns * COLUMN - 16

    @property
    def bottom(self):
        return self.top + BOX

    @property
    def right(self):
        return self.left + self.width


BOXES = {
    "their shards": Box(("their shards of", "the parameters"), "parameters", 0, 66),
    "their gradients": Box(("their packed", "gradients"), "gradients", 3, 66),
    "agreement": Box(("the norm, and if", "all are finite"), "gradients", 4, 66),
    "their copies": Box(("their whole", "parameters"), "parameters", 5, 66),
    "full": Box(
        ("full parameters: gathered, freed after forward,", "gathered again for backward"), "parameters", 0, 180, 3
    ),
    "activations": Box(("activations,", "kept by autograd"), "activations", 1, 264),
    "packed": Box(("packed gradients of the unit:", "a bucket"), "gradients", 2, 264, 2),
    "whole": Box(("whole parameters", "(stages 1 and 2)"), "parameters", 5, 180),
    "shard": Box(("shard of the", "parameters"), "parameters", 0, 382),
    "reduced": Box(("shard of the", "reduced gradients"), "gradients", 3, 382),
    "states": Box(("master weights", "and moments"), "states", 4, 382),
    "new": Box(("new shard of the", "parameters"), "parameters", 5, 382),
}


@dataclass
class Arrow:
    """Up or down in the middle of a column, or to the right in the middle of a row."""

    start: str
    end: str
    column: int | None = None
    label: tuple[str, ...] = ()
    label_top: int = 0
    both: bool = False

    def points(self):
        start, end = BOXES[self.start], BOXES[self.end]
        if self.column is None:
            y = start.top + BOX // 2
            return (start.right, y), (end.left, y)
        x = EDGE + self.column * COLUMN + 24
        return ((x, start.top), (x, end.bottom)) if start.top > end.top else ((x, start.bottom), (x, end.top))


ARROWS = (
    Arrow("their shards", "full", 0, ("all-gather, at stage 3",), 138),
    Arrow("shard", "full", 0, ("own shard",), 338),
    Arrow("full", "activations", 1, ("compute",), 248),
    Arrow("full", "packed", 2, ("compute",), 248),
    Arrow("activations", "packed"),
    Arrow("packed", "their gradients", 3, ("exchange pieces",), 138, both=True),
    Arrow("packed", "reduced", 3, ("sum as one tree",), 338),
    Arrow("reduced", "states"),
    Arrow("states", "agreement", 4, ("one all-reduce",), 138, both=True),
    Arrow("states", "new"),
    Arrow("new", "whole", 5, ("stages 1 and 2",), 338),
    Arrow("whole", "their copies", 5, ("all-gather",), 138, both=True),
)
RETURN = "stage 3: the next gather reads the new shard"


def text(x, y, words, css=""):
    return f'<text{css} x="{x}" y="{y}">{words}</text>'


def bands():
    for name, (top, height) in BANDS.items():
        yield f'<rect class="band" x="{EDGE}" y="{top}" width="{WIDTH - 2 * EDGE}" height="{height}" rx="6"/>'
        yield text(EDGE + COLUMN + 8, top + 18, name, ' class="name"')  # beside the arrows of the first column


def boxes():
    for box in BOXES.values():
        place = f'x="{box.left}" y="{box.top}" width="{box.width}" height="{BOX}"'
        yield f'<rect class="{box.kind}" {place} rx="4"/>'
        for row, line in enumerate(box.lines):
            yield text(box.left + box.width // 2, box.top + 19 + 16 * row, line, ' class="middle"')


def arrows():
    for arrow in ARROWS:
        (x1, y1), (x2, y2) = arrow.points()
        tail = ' marker-start="url(#head)"' if arrow.both else ""
        yield f'<path class="arrow" d="M{x1} {y1} L{x2} {y2}"{tail} marker-end="url(#head)"/>'
        for row, line in enumerate(arrow.label):
            yield text(x1 + 8, arrow.label_top + 16 * row, line)
    left, right, bottom = BOXES["shard"].left + 60, BOXES["new"].left + 60, BOXES["new"].bottom
    way = f"M{right} {bottom} L{right} {bottom + 26} L{left} {bottom + 26} L{left} {bottom}"
    yield f'<path class="arrow" d="{way}" marker-end="url(#head)"/>'
    yield text(left + 60, bottom + 20, RETURN)


HEAD = """<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"
 orient="auto-start-reverse"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>"""


def style():
    light, dark = (
        " ".join(f".{kind} {{ fill: {pair[page]}; stroke: {pair[page]} }}" for kind, pair in COLOURS.items())
        for page in (0, 1)
    )
    return [
        f"<style>text {{ font: {FONT}px sans-serif; fill: #222 }} .middle {{ text-anchor: middle }}",
        ".phase { font-weight: bold } .name { font-style: italic }",
        "rect { fill-opacity: .18 } .band { fill: #888; fill-opacity: .1 }",
        f".arrow {{ fill: none; stroke: #444; stroke-width: 1.5 }} .head {{ fill: #444 }} {light}",
        "@media (prefers-color-scheme: dark) { text { fill: #ddd } .arrow { stroke: #bbb } .head { fill: #bbb }",
        f"{dark} }}</style>",
    ]


def svg():
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{TITLE}: {', '.join(PHASES)}</title>",
        *style(),
        HEAD,
        *(text(EDGE + column * COLUMN + 8, 26, name, ' class="phase"') for column, name in enumerate(PHASES)),
        *bands(),
        *boxes(),
        *arrows(),
        "</svg>",
        "",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PICTURE.write_text(svg())
    print(PICTURE, file=sys.stderr)
