"""docs/api.md is what tools/api_page.py makes of the docstrings. Every public function has an example, which runs."""

import gc
import importlib.util
import os
import re
import subprocess
import sys

import pytest
import world
import zeroshard
from built import REPOSITORY


def load_tool():
    spec = importlib.util.spec_from_file_location("api_page", REPOSITORY / "tools" / "api_page.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def sections_of(page):
    """The text before the first heading, and the sections by their names: {"zeroshard.tile": ...}."""
    head, *sections = re.split(r"^##+ `", page, flags=re.MULTILINE)
    return head, {re.match(r"[\w.]+", section)[0]: section for section in sections}


def code_in(section):
    return re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def test_the_page_is_up_to_date():
    tool = load_tool()
    assert tool.PAGE.read_text() == tool.page(), "run `python tools/api_page.py`"


def test_every_public_function_is_there_with_an_example():
    tool = load_tool()
    page = tool.page()
    _, sections = sections_of(page)
    for name in zeroshard.__all__:
        assert f"`zeroshard.{name}" in page or name == "__version__"
    for name, section in sections.items():
        is_property = "(" not in section.splitlines()[0] and name != "zeroshard.Engine"
        assert is_property or len(code_in(section)) == 1, name


def run_examples(folder, beginning, examples):
    os.chdir(folder)
    for name, example in examples.items():
        names = {}
        exec(compile(beginning, "docs/api.md", "exec"), names)
        try:
            exec(compile(example, f"the example of {name} in docs/api.md", "exec"), names)
        except Exception as error:
            raise AssertionError(f"the example of {name} in docs/api.md fails") from error
        names.clear()
        gc.collect()


def test_the_examples_run(tmp_path):
    pytest.importorskip("transformers")
    head, sections = sections_of((REPOSITORY / "docs" / "api.md").read_text())
    examples = {name: code for name, section in sections.items() for code in code_in(section)}
    limit = 5 * world.TIMEOUT_S  # for about fifty engines, and the start of torch's compiler
    first = examples.pop("zeroshard.as_deepspeed")  # before transformers is imported, so in a new process
    subprocess.run([sys.executable, "-c", "import zeroshard\n" + first], check=True, timeout=limit)
    (beginning,) = code_in(head)
    world.run(2, run_examples, timeout_s=limit, folder=str(tmp_path), beginning=beginning, examples=examples)
