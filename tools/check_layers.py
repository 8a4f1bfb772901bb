#!/usr/bin/env python3
"""Checks every #include against the module table and what CMake links, that Python modules import one another in one
direction, and that no source file, class or front has outgrown its limit. No folder may ask more often than now on
which tier something lies.

Usage: check_layers.py [REPOSITORY]. Prints one line per violation, with file and line; exits 1 if there are any.
"""

import ast
import re
import sys
from pathlib import Path

from class_limits import check_classes
from python_imports import find_cycle, imports_of
from tier_questions import check_questions

MAX_LINES = 600
MAX_ENGINE_METHODS = 15  # public ones of Python's Engine: what training needs
PACKAGE = "python/zeroshard"
# Packages in it that users may leave out, because training needs neither, and who else may import them.
LEFT_OUT = {"compat": (), "importing": (f"{PACKAGE}/convert.py", f"{PACKAGE}/compat/")}
LEVELS = [
    ["base"],
    ["layout", "config", "file", "schedule", "kernels", "memory", "comm", "comm_c10d", "device", "tokenizer"],
    ["precision", "offload", "checkpoint", "placement", "store", "group", "plan", "monitor", "data", "parquet_plugin"],
    ["unit", "reduce", "optim"],
    ["hooks", "ops", "sequence", "world", "activations", "checkpoint_torch"],
    ["engine", "launch"],
    ["nn"],
    ["train", "cli", "python"],
    ["cli_torch"],
]
LEVEL = {module: level for level, modules in enumerate(LEVELS) for module in modules}
TREES = ("src", "lm")  # the library, and the component that its users need not build
LM = {"tokenizer", "data", "parquet_plugin", "ops", "train"}  # modules in lm/
WITHOUT_LM = {"src", "include", "python"}  # folders that include nothing of lm/
APART = {3, 5, 7}  # modules of these levels never include each other
WITH_TORCH = {
    "comm_c10d",
    "device",
    "store",
    "group",
    *LEVELS[3],
    *LEVELS[4],
    "engine",
    "nn",
    "train",
    "cli_torch",
    "python",
    "offload",
    "checkpoint",
}
TORCH_FREE = LEVEL.keys() - WITH_TORCH
WITH_ARROW = {"parquet_plugin"}
ARROW_HEADER = re.compile(r"(arrow|parquet)/")
AUTOGRAD_HEADER = re.compile(r"torch/csrc/autograd/")
WITH_AUTOGRAD = {"hooks", "ops", "sequence"}
TORCH_HEADER = re.compile(r"(ATen|c10|c10d|torch|caffe2)/")
KNOW_STAGES = {"config", "placement", "plan"}  # the others read the table of placements
STAGE_COMPARED = re.compile(r"\bstage\s*([=!]=|[<>](?![<>]))|(?<![<>])[<>]=?\s*(\w+\.)*stage\b")
# Whose functions the public headers declare: who includes one links that module. The others have types alone.
DECLARES = {
    "checkpoint": {"checkpoint_files"},
    "config": {"config"},
    "data": {"data", "token_file", "tokenize"},
    "engine": {"engine"},
    "launch": {"launch", "rank_environment"},
    "monitor": {"metrics"},
    "nn": {"nn"},
    "optim": {"optimizer"},
    "plan": {"plan"},
    "sequence": {"sequence"},
    "tokenizer": {"tokenizer"},
    "train": {"causal_lm", "generate", "lora", "train"},
    "world": {"meeting", "world"},
}
DECLARED_BY = {f"zeroshard/{header}.h": module for module, headers in DECLARES.items() for header in headers}
ZS_MODULE = re.compile(r"^\s*zs_module\((\w+)(?:\s+TORCH)?(?:\s+DEPS((?:\s+[a-z_0-9]+)+))?", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
SOURCES = {".h", ".cpp", ".cu", ".py"}


def names_of(node: ast.AST) -> set[str]:
    """Of the variables and attributes in an expression."""
    found = [child for child in ast.walk(node) if isinstance(child, ast.Name | ast.Attribute)]
    return {child.id if isinstance(child, ast.Name) else child.attr for child in found}


class Checker:
    def __init__(self, root: Path):
        self.root = root
        self.torch_of: dict[Path, str | None] = {}
        self.problems: list[str] = []

    def module(self, path: Path) -> str | None:
        """The module a file belongs to; None for the public headers."""
        parts = path.relative_to(self.root).parts
        return None if "include" in parts[:2] else parts[1] if parts[0] in TREES else parts[0]

    def in_table(self, path: Path, module: str | None) -> bool:
        """Whether the table has the module, and in the tree where the file lies."""
        return module is None or (module in LEVEL and (module in LM) == (path.relative_to(self.root).parts[0] == "lm"))

    def includes(self, path: Path):
        """(line number, name, file of this repository or None) for each #include."""
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := INCLUDE.match(line):
                folders = (path.parent, *(self.root / name for name in ("src", "include", "lm", "lm/include")))
                places = (folder / match[1] for folder in folders)
                yield number, match[1], next((place.resolve() for place in places if place.is_file()), None)

    def torch_through(self, path: Path) -> str | None:
        """The chain of includes by which a file reaches LibTorch, or None."""
        if path not in self.torch_of:
            self.torch_of[path] = None  # ends a cycle
            for _, name, target in self.includes(path):
                chain = name if target is None and TORCH_HEADER.match(name) else target and self.torch_through(target)
                if chain:
                    self.torch_of[path] = chain if chain == name else f"{name} -> {chain}"
                    break
        return self.torch_of[path]

    def check_file(self, path: Path) -> None:
        module, where = self.module(path), path.relative_to(self.root)
        if not self.in_table(path, module):
            self.problems.append(f"{where}: module '{module}' is not in the table of tools/check_layers.py")
            return
        for number, name, target in self.includes(path):
            other = self.module(target) if target else None
            at = f"{where}:{number}: "
            if target is None and module not in WITH_ARROW and ARROW_HEADER.match(name):
                self.problems.append(f"{at}includes {name}: Arrow belongs into lm/parquet_plugin alone")
            if module not in WITH_AUTOGRAD and path.name != "torch_pch.h" and AUTOGRAD_HEADER.match(name):
                self.problems.append(f"{at}includes {name}: autograd belongs into src/hooks and lm/ops alone")
            if target and where.parts[0] in WITHOUT_LM and target.relative_to(self.root).parts[0] == "lm":
                self.problems.append(f"{at}includes {name} of lm: the library is built without it")
                continue
            if other is None or other == module:
                continue
            if module is None:
                self.problems.append(f"{at}a public header includes {name}, which is private")
            elif LEVEL[other] > LEVEL[module] or (LEVEL[other] == LEVEL[module] and LEVEL[module] in APART):
                levels = f"level {LEVEL[module]}) includes {name} (level {LEVEL[other]}"
                self.problems.append(f"{at}{module} ({levels}): include lower levels only")
        if where.parts[0] in TREES and module not in KNOW_STAGES:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if STAGE_COMPARED.search(line.partition("//")[0]):
                    self.problems.append(f"{where}:{number}: a stage is compared: read the table of placements")
        if module in TORCH_FREE and path.name != "torch_pch.h" and (chain := self.torch_through(path)):
            self.problems.append(f"{where}: '{module}' is torch-free, but includes {chain}")

    def check_links(self, tree: str) -> None:
        """DEPS of each zs_module() are the modules of which it includes something, no more and no fewer."""
        lists = self.root / tree / "CMakeLists.txt"
        for match in ZS_MODULE.finditer(lists.read_text(encoding="utf-8") if lists.is_file() else ""):
            module, linked, used = match[1], set((match[2] or "").split()), {}
            for path in sorted(p for p in (self.root / tree / module).rglob("*") if p.suffix in SOURCES):
                for _, name, target in self.includes(path):
                    other = DECLARED_BY.get(name) or (target and self.module(target.resolve()))
                    if other and other != module:
                        used.setdefault(other, name)
            at = f"{tree}/CMakeLists.txt: {module}"
            self.problems += [
                f"{at} links {other} and includes nothing of it" for other in sorted(linked - used.keys())
            ]
            for other in sorted(used.keys() - linked):
                self.problems.append(f"{at} includes {used[other]} and does not link {other}: add it to DEPS")

    def check_python(self) -> None:
        """The package: imports go in one direction, those for types too, and only LEFT_OUT compares stages."""
        imports: dict[str, set[str]] = {}
        for path in sorted((self.root / PACKAGE).rglob("*.py")):
            where, tree = path.relative_to(self.root), ast.parse(path.read_text(encoding="utf-8"))
            foreign = LEFT_OUT.keys() & set(where.parts)  # of other libraries: they speak of stages
            others = imports_of(self.root / PACKAGE, path, tree)
            imports[str(where)] = {str(other.relative_to(self.root)) for other in others}
            for part, fronts in LEFT_OUT.items():
                inside = f"{PACKAGE}/{part}/"
                used = sorted(other for other in imports[str(where)] if other.startswith(inside))
                if used and not str(where).startswith((inside, *fronts)):
                    self.problems.append(f"{where} imports {used[0]}: zeroshard must run without {part}/")
            for node in ast.walk(tree):
                if not foreign and isinstance(node, ast.Compare) and "stage" in names_of(node):
                    self.problems.append(f"{where}:{node.lineno}: a stage is compared: ask the core for placements")
                if isinstance(node, ast.ClassDef) and (where.name, node.name) == ("engine.py", "Engine"):
                    methods = [f.name for f in node.body if isinstance(f, ast.FunctionDef) and not f.decorator_list]
                    if (count := sum(name[0] != "_" for name in methods)) > MAX_ENGINE_METHODS:
                        self.problems.append(
                            f"{where}: Engine has {count} public methods, the limit is {MAX_ENGINE_METHODS}: what only "
                            "scripts for other libraries call belongs into compat"
                        )
        if cycle := find_cycle(imports):
            self.problems.append(f"{cycle[0]} imports itself: {' -> '.join(cycle)}")

    def run(self) -> list[str]:
        def files(*folders):
            found = (p for folder in folders for p in (self.root / folder).rglob("*") if p.suffix in SOURCES)
            return sorted(p.resolve() for p in found if p.is_file())

        product = files(*TREES, "include", "cli", "cli_torch", "python")
        for path in product:
            if path.suffix != ".py":
                self.check_file(path)
        for tree in TREES:
            self.check_links(tree)
        self.check_python()
        self.problems += check_classes(self.root, product)
        self.problems += check_questions(self.root, [path for path in product if path.suffix != ".py"])
        for path in files(
            *TREES, "include", "cli", "cli_torch", "python", "tests", "bench", "examples", "fuzz", "tools"
        ):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > MAX_LINES:
                where = path.relative_to(self.root)
                self.problems.append(f"{where}: {lines} lines, the limit is {MAX_LINES}: split it")
        return self.problems


if __name__ == "__main__":
    found = Checker(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()).run()
    print("\n".join(found) or "layers: clean", file=sys.stderr if found else sys.stdout)
    sys.exit(bool(found))
