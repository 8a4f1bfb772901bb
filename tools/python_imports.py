"""What the modules of a Python package import of one another, and whether that goes in circles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def imports_of(package: Path, path: Path, tree: ast.Module) -> set[Path]:
    """The files of the package that one of them imports, for types and within functions too.

    Relative or by the package's name. What `__init__` only hands on counts as its own; compiled modules are left out.
    """
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first, *rest = alias.name.split(".")
                if first == package.name:
                    found.add(_file_of(package.joinpath(*rest)))
        elif isinstance(node, ast.ImportFrom):
            found |= set(_from(package, path, node))
    return {file for file in found if file is not None and file != path}


def _from(package: Path, path: Path, node: ast.ImportFrom) -> Iterator[Path | None]:
    names = (node.module or "").split(".") if node.module else []
    if node.level > 0:
        place = path.parents[node.level - 1].joinpath(*names)
    elif names[0] == package.name:
        place = package.joinpath(*names[1:])
    else:
        return
    for alias in node.names:
        module = _file_of(place / alias.name) if place.is_dir() else None
        yield module or (_file_of(place) if not place.is_dir() or alias.name in _bound(place) else None)


def _file_of(module: Path) -> Path | None:
    return next((file for file in (module.with_suffix(".py"), module / "__init__.py") if file.is_file()), None)


def _bound(folder: Path) -> set[str]:
    """The names that a package's `__init__` has, those of compiled modules in its folder left out."""
    file = folder / "__init__.py"
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    names = {alias.asname or alias.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for alias in n.names}
    names |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names | {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def find_cycle(imports: dict[str, set[str]]) -> list[str]:
    """A chain of imports that ends where it begins, or nothing."""
    done: set[str] = set()

    def visit(module: str, chain: list[str]) -> list[str]:
        if module in chain:
            return [*chain[chain.index(module) :], module]
        if module in done:
            return []
        for other in sorted(imports.get(module, ())):
            if cycle := visit(other, [*chain, module]):
                return cycle
        done.add(module)
        return []

    return next((cycle for module in imports if (cycle := visit(module, []))), [])
