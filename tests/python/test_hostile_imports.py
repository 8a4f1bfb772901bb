"""Files beside an import that would take memory or time without end."""

import os
import resource
import shutil
import threading

import pytest
from test_convert import DATA
from zeroshard.convert import convert
from zeroshard.importing.pickles import load_pickle

FEW_KIB = 300 * 1024


@pytest.mark.row("X4")
@pytest.mark.parametrize("number", [2**26, 2**32 - 1])
def test_a_pickle_cannot_ask_for_memory(number):
    """The unpickler makes room for as many values as the highest number under which it is to remember one."""
    data = b"\x80\x02]r" + number.to_bytes(4, "little") + b"."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=f"there cannot be read: .* {number}, and has {len(data)} bytes"):
        load_pickle(data, "there")
    with pytest.raises(ValueError, match="cannot be read"):
        load_pickle(b"]p%d\n." % number, "there")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < FEW_KIB


def files_below(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


@pytest.mark.row("X3")
@pytest.mark.parametrize("name", ["ds2_bf16", "ds3_fp32", "dcp"])
def test_a_fifo_beside_the_files_is_refused(tmp_path, name):
    for victim in files_below(DATA / name):
        source = tmp_path / "source"
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(DATA / name, source)
        (source / victim).unlink()
        os.mkfifo(source / victim)
        said = []

        def importing(source=source, said=said):
            try:
                convert(source, tmp_path / "out")
            except ValueError as error:
                said.append(str(error))

        thread = threading.Thread(target=importing, daemon=True)  # one that hangs does not keep the tests
        thread.start()
        thread.join(120)
        assert said and ("not a regular file" in said[0] or "can be imported" in said[0]), (victim, said)
