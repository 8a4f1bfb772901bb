"""docs/step.svg is what tools/step_picture.py draws, and can be read."""

import itertools
import re
import sys

from built import REPOSITORY

sys.path.append(str(REPOSITORY / "tools"))
import step_picture


def test_the_picture_is_that_of_the_script():
    assert step_picture.PICTURE.read_text() == step_picture.svg()


def texts(picture):
    """Words and what they cover: left, top, right, bottom."""
    for css, x, y, words in re.findall(r'<text(?: class="(\w+)")? x="(\d+)" y="(\d+)">(.*?)</text>', picture):
        width = len(words) * step_picture.CHARACTER
        left = int(x) - width / 2 if css == "middle" else int(x)
        yield words, (left, int(y) - step_picture.FONT + 2, left + width, int(y) + 3)


def lines(picture):
    """Stretches of arrows, each as what it covers."""
    for path in re.findall(r'class="arrow" d="M([\d L]+)"', picture):
        points = [tuple(map(int, point.split())) for point in path.split("L")]
        for (x1, y1), (x2, y2) in itertools.pairwise(points):
            yield min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def test_no_text_lies_on_another_or_on_an_arrow():
    picture = step_picture.svg()
    found = list(texts(picture))
    assert len(found) > 40 and len(list(lines(picture))) > 13
    for (words, place), (other, its) in itertools.combinations(found, 2):
        assert not overlap(place, its), f"{words} / {other}"
    for (words, place), line in itertools.product(found, lines(picture)):
        wide = (line[0] - 1, line[1] - 1, line[2] + 1, line[3] + 1)
        assert not overlap(place, wide), words
    for words, (left, _, right, bottom) in found:
        assert left >= 0 and right <= step_picture.WIDTH and bottom <= step_picture.HEIGHT, words


def test_words_of_a_box_lie_in_it():
    for box in step_picture.BOXES.values():
        assert max(map(len, box.lines)) * step_picture.CHARACTER <= box.width, box.lines
