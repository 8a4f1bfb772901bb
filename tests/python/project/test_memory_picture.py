"""The picture of README.md shows what `zeroshard plan` computes."""

import re
import sys

from built import REPOSITORY, ZEROSHARD, needs

sys.path.append(str(REPOSITORY / "tools"))
import memory_picture


@needs(ZEROSHARD)
def test_the_picture_is_of_the_plan():
    stages = memory_picture.planned(ZEROSHARD)
    assert memory_picture.PICTURE.read_text() == memory_picture.svg(stages)


def test_a_bar_is_as_long_as_its_bytes():
    picture = memory_picture.PICTURE.read_text()
    for stage, gigabytes in ((0, 120), (1, 41.25), (2, 28.125), (3, 15)):
        y = memory_picture.TOP + stage * (memory_picture.BAR + memory_picture.GAP)
        widths = [float(width) for width in re.findall(rf'y="{y}" width="([\d.]+)"', picture)]
        assert len(widths) == 4
        assert abs(sum(widths) - memory_picture.WIDTH * gigabytes / 120) < 0.5
    assert memory_picture.COMMAND in (REPOSITORY / "README.md").read_text()
