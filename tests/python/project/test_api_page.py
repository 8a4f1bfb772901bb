"""docs/api.md is what tools/api_page.py makes of the docstrings, and has every public name with an example."""

import importlib.util

import zeroshard
from built import REPOSITORY


def load_tool():
    spec = importlib.util.spec_from_file_location("api_page", REPOSITORY / "tools" / "api_page.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_page_is_up_to_date():
    tool = load_tool()
    assert tool.PAGE.read_text() == tool.page(), "run `python tools/api_page.py`"


def test_every_public_name_is_there_with_an_example():
    tool = load_tool()
    page = tool.page()
    for name in zeroshard.__all__:
        if name == "__version__":
            continue
        assert f"`zeroshard.{name}" in page
        if name not in tool.ERRORS:
            heads = (f"`zeroshard.{name}(", f"`zeroshard.{name}`")
            (section,) = [part for part in page.split("\n## ") if part.startswith(heads)]
            assert "```python" in section, name
