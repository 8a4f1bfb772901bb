"""Counts the data members of classes: in C++ as clang-format leaves it, and in Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Comments, strings, characters and the preprocessor's lines.
LITERAL = re.compile(
    r'R"(?P<tag>\w*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/'
    r"|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*",
    re.DOTALL | re.MULTILINE,
)
TYPE = re.compile(r"(?:^|\s)(class|struct|union|enum(?: class)?)(?:\s+([\w:]+))?(?:\s+final)?\s*(?::[^();=]*)?$")
SCOPE = re.compile(r"\b(namespace|extern)\b[^()=]*$")
LABEL = re.compile(r"\s*(public|protected|private)\s*:(?!:)")
NO_MEMBER = re.compile(
    r"(using|typedef|friend|static|template|enum)\b|(class|struct|union)\s+\w+$|.*\boperator\b", re.S
)
FUNCTION_POINTER = re.compile(r"\(\*\s*\w+\)\(")


@dataclass
class Class:
    name: str
    line: int
    members: int = 0
    is_plain_data: bool = True  # public members, and no functions but constructors and operators


def cpp_classes(text: str) -> Iterator[Class]:
    """The classes, structs and unions that a C++ file defines; one inside another as Outer::Inner."""
    text = LITERAL.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    yield from _classes(text, 0, len(text), owner=None, is_public=True)


def _classes(text: str, begin: int, end: int, owner: Class | None, is_public: bool) -> Iterator[Class]:
    for statement, block in _statements(text, begin, end):
        while label := LABEL.match(statement):
            is_public, statement = label[1] == "public", statement[label.end() :]
        kind = TYPE.search(_without_arguments(statement)) if block else None
        if kind and not kind[1].startswith("enum"):
            name = kind[2] or "(unnamed)"
            inner = Class(f"{owner.name}::{name}" if owner else name, text.count("\n", 0, block[0]) + 1)
            yield from _classes(text, *block, inner, kind[1] != "class")
            yield inner
        elif block and SCOPE.search(statement):
            yield from _classes(text, *block, owner, is_public)
        elif owner:
            count = 0 if block else _declared(statement)
            owner.members += count
            owner.is_plain_data &= (is_public or count == 0) and not _is_method(statement, owner)


def _statements(text: str, begin: int, end: int) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """What a `;` ends, and what ends with the block of a type, a namespace or a function: then where its inside is.

    Other blocks, of initial values, are left out.
    """
    statement, depth, position = "", 0, begin
    mark = re.compile(r"[{};()]")
    while match := mark.search(text, position, end):
        statement, position = statement + text[position : match.start()], match.end()
        if match[0] == "{":
            position = _block_end(text, match.start())
            if depth == 0 and _is_body(statement, text[position:end].lstrip()[:1]):
                yield statement, (match.end(), position - 1)
                statement = ""
        elif match[0] == ";" and depth == 0:
            yield statement, None
            statement = ""
        else:
            depth += (match[0] == "(") - (match[0] == ")")
            statement += match[0]


def _is_body(head: str, following: str) -> bool:
    """Whether a block is not an initial value, one of a constructor's list among them."""
    head = _without_arguments(head)
    is_function = "(" in head.split("=")[0] or "operator" in head
    return bool(TYPE.search(head) or SCOPE.search(head)) or (is_function and following not in (",", "{", ";"))


def _block_end(text: str, begin: int) -> int:
    """Behind the block whose brace is at `begin`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, begin):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return len(text)


def _without_arguments(statement: str) -> str:
    """Template arguments are left out."""
    statement, count = statement.replace("->", "  "), 1
    while count:
        statement, count = re.subn(r"<[^<>]*>", "", statement)
    return statement


def _declared(statement: str) -> int:
    """How many data members a statement of a class declares."""
    plain = re.sub(r"\[\[.*?\]\]|\balignas\(\w+\)|\bmutable\b", "", _without_arguments(statement)).strip()
    if not plain or NO_MEMBER.match(plain) or ("(" in plain.split("=")[0] and not FUNCTION_POINTER.search(plain)):
        return 0
    depth = commas = 0
    for char in plain:
        depth += (char in "([") - (char in ")]")
        commas += char == "," and depth == 0
    return commas + 1


def _is_method(statement: str, owner: Class) -> bool:
    plain = _without_arguments(statement).split("=")[0]
    name = re.search(r"(~?\w+)\s*\(", plain)
    is_other = re.search(r"\b(operator|friend|using|alignas)\b", plain) or FUNCTION_POINTER.search(plain)
    return bool(name) and not is_other and name[1] != owner.name.rsplit("::", 1)[-1]


def python_classes(tree: ast.Module) -> Iterator[Class]:
    """Members are the fields of dataclasses, and what `__init__` assigns to `self`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
        names = {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
        for each in (child for f in functions if f.name == "__init__" for child in ast.walk(f)):
            if (
                isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and ast.unparse(each.value) == "self"
            ):
                names.add(each.attr)
        yield Class(node.name, node.lineno, len(names), is_plain_data=not functions)
