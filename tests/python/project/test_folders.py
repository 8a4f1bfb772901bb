"""Each file of Python tests lies in the folder of a feature, and runs by itself."""

import ast

import pytest
from built import REPOSITORY, TESTS

FILES = sorted(TESTS.rglob("test_*.py"))
FOLDERS = sorted({path.parent for path in FILES})


def imported(path):
    """The names of the modules that a file imports, within functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_files_import_no_tests_of_other_folders(folder):
    """Another folder is on the path only where its tests run, too. Helpers lie beside conftest.py."""
    own = {path.stem for path in folder.glob("test_*.py")}
    for path in folder.glob("test_*.py"):
        others = {name for name in imported(path) if name.startswith("test_")} - own
        assert not others, f"{path.name} imports {others}: move what it needs into a file beside conftest.py"


def test_helpers_import_no_tests():
    for path in [*TESTS.glob("*.py"), *(TESTS / "scripts").glob("*.py")]:
        assert not [name for name in imported(path) if name.startswith("test_")], path.name


def test_every_folder_is_in_the_table():
    """The names of files are keys of seconds.json and of docs/reliability.md, so that no name may occur twice."""
    assert all(folder.parent == TESTS for folder in FOLDERS)
    assert len({path.name for path in FILES}) == len(FILES)
    table = (REPOSITORY / "tests" / "README.md").read_text()
    assert [folder.name for folder in FOLDERS if f"`{folder.name}/`" not in table] == []
