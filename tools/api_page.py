#!/usr/bin/env python3
"""Writes docs/api.md from the docstrings of the package's public names: python tools/api_page.py

The test tests/python/project/test_api_page.py holds the page equal to this output.
"""

import inspect
import re
import sys
from pathlib import Path

import zeroshard
from zeroshard.getters import Getters

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
HEAD = """# The Python API

Every public name of `zeroshard`, from its docstring; `tools/api_page.py` writes this page.
[python.md](python.md) explains how they are used together.

    python -c "import zeroshard; help(zeroshard.initialize)"
"""
ERRORS = {
    "Error": "Every error of zeroshard; a `RuntimeError`.",
    "ConfigError": "A wrong configuration, with the JSON path; a `ValueError`.",
    "ValueError": "A wrong argument, or ranks that differ in one; a Python `ValueError`.",
    "StateError": "A call that is not possible now, such as reading a sharded parameter.",
    "CommError": "Ranks that are gone, stopped, or call something else. The engine can only be destroyed afterwards.",
    "IoError": "A file that cannot be read or written, or is damaged; an `OSError`.",
    "InternalError": "A mistake of zeroshard's own: please report it.",
}


def signature_of(member):
    """Without annotations of types: the text has them where they matter."""
    found = inspect.signature(member)
    params = [param.replace(annotation=inspect.Parameter.empty) for param in found.parameters.values()]
    return (
        str(found.replace(parameters=params, return_annotation=inspect.Signature.empty))
        .replace("(self, ", "(")
        .replace("(self)", "()")
    )


def text_of(doc):
    """A docstring as Markdown: ``code`` and examples."""
    doc = inspect.cleandoc(doc).replace("``", "`")
    parts, example = [], []
    for line in [*doc.splitlines(), ""]:
        if line.startswith((">>>", "...")):
            example.append(line[4:])
            continue
        if example:
            parts += ["```python", *example, "```"]
            example = []
        parts.append(re.sub(r"^    (\w+): ", r"- `\1`: ", line))
    return "\n".join(parts).replace("Args:\n", "Arguments:\n\n").strip()


def members_of(kind):
    """Its own public methods and properties that have a docstring, in the order of the source."""
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        function = getattr(member, "__wrapped__", member)
        if isinstance(member, property) and member.__doc__:
            yield f"`engine.{name}`", member.__doc__
        elif inspect.isfunction(function) and function.__doc__:
            yield f"`engine.{name}{signature_of(function)}`", function.__doc__


def page():
    functions = [name for name in zeroshard.__all__ if name not in ERRORS and name not in ("Engine", "__version__")]
    parts = [HEAD]
    for name in ("initialize", *(name for name in functions if name != "initialize")):
        thing = getattr(zeroshard, name)
        parts.append(f"## `zeroshard.{name}{signature_of(thing)}`\n{text_of(thing.__doc__)}\n")
    parts.append(f"## `zeroshard.Engine`\n{text_of(zeroshard.Engine.__doc__)}\n")
    for kind in (zeroshard.Engine, Getters):
        parts += [f"### {title}\n{text_of(doc)}\n" for title, doc in members_of(kind)]
    parts.append("## Errors\n| error | when |\n|---|---|")
    parts += [f"| `zeroshard.{name}` | {what} |" for name, what in ERRORS.items()]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE, file=sys.stderr)
