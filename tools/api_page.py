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

Each example runs after the following lines on two ranks (`zeroshard run --nproc 2`), except the one of `as_deepspeed`,
which comes first in a program. tests/python/project/test_api_page.py runs them.

```python
import torch
import zeroshard
from transformers import LlamaConfig, LlamaForCausalLM

zeroshard.init_distributed("cpu")
llama = LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
model = LlamaForCausalLM(llama)
config = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 3},
}
ids = torch.randint(100, (4, 16))
batch = {"input_ids": ids, "labels": ids}
rows = [{"input_ids": row, "labels": row} for row in ids]
engine, optimizer, loader, scheduler = zeroshard.initialize(model=model, config=config, training_data=rows)
```
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


def types_of(member):
    """One line with the types of the arguments and of the result, from the annotations; nothing without any."""
    found = inspect.signature(member)
    types = [f"`{name}`: `{param.annotation}`" for name, param in found.parameters.items() if is_told(param.annotation)]
    result = found.return_annotation
    if result == "Iterator[None]":  # of a function that contextmanager decorates
        types.append("result: a context manager")
    elif is_told(result):
        types.append(f"result: `{result}`")
    return ["Types: " + ", ".join(types)] if types else []


def is_told(annotation):
    return annotation not in (inspect.Signature.empty, "Any", "object", "None", None)


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


def section(heading, title, doc, types):
    summary, _, rest = text_of(doc).partition("\n\n")
    return f"{heading} `{title}`\n" + "\n\n".join([summary, *types, *([rest] if rest else [])]) + "\n"


def members_of(kind):
    """Sections of its own public methods and properties that have a docstring, in the order of the source."""
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        function = getattr(member, "__wrapped__", member)
        if isinstance(member, property) and member.__doc__:
            types = types_of(member.fget) if member.fget.__doc__ else []
            yield section("###", f"engine.{name}", member.__doc__, types)
        elif inspect.isfunction(function) and function.__doc__:
            yield section("###", f"engine.{name}{signature_of(function)}", function.__doc__, types_of(function))


def page():
    functions = [name for name in zeroshard.__all__ if name not in ERRORS and name not in ("Engine", "__version__")]
    parts = [HEAD]
    for name in ("initialize", *(name for name in functions if name != "initialize")):
        thing = getattr(zeroshard, name)
        parts.append(section("##", f"zeroshard.{name}{signature_of(thing)}", thing.__doc__, types_of(thing)))
    parts.append(section("##", "zeroshard.Engine", zeroshard.Engine.__doc__, []))
    parts += [*members_of(zeroshard.Engine), *members_of(Getters)]
    parts.append("## Errors\n| error | when |\n|---|---|")
    parts += [f"| `zeroshard.{name}` | {what} |" for name, what in ERRORS.items()]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE, file=sys.stderr)
