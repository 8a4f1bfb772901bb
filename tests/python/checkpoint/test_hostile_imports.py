"""Files beside an import that would take memory or time without end."""

import collections
import contextlib
import os
import pickle
import random
import resource
import shutil
import threading
import time
import zipfile

import pytest
import torch
from test_convert import BUFFERS, DATA, Calls, _Stored, write_archive
from zeroshard.convert import convert
from zeroshard.importing.pickles import load_file, load_pickle

FEW_KIB = 300 * 1024


@contextlib.contextmanager
def little_work():
    """Memory and time that no honest file of some KiB takes by far."""
    memory, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < FEW_KIB
    assert time.process_time() - start < 20  # of the processor: others on the machine do not count


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


def pickles_in(folder):
    """Those of the archives of torch."""
    paths = [folder / path for path in files_below(folder) if path.suffix == ".pt"]
    archives = [zipfile.ZipFile(path) for path in paths]
    return [archive.read(name) for archive in archives for name in archive.namelist() if name.endswith("data.pkl")]


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


def ten_of_the_one_before(make, levels):
    """Of tens of tens of tens; few bytes as a pickle."""
    value = make([0] * 10)
    for _ in range(levels):
        value = make([value] * 10)
    return value


@pytest.mark.row("X4")
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (lambda: ten_of_the_one_before(list, 200), "more than [0-9]+ values"),
        (lambda: ten_of_the_one_before(tuple, 200), "more than [0-9]+ values"),
        (lambda: ten_of_the_one_before(lambda items: dict(enumerate(items)), 200), "more than [0-9]+ values"),
        (lambda: ["x" * 100_000] * 10_000, "more than [0-9]+ characters"),
    ],
)
def test_values_that_are_referred_to_often(tmp_path, value, why):
    data = pickle.dumps({"client": value()})
    with little_work(), pytest.raises(ValueError, match=f"there cannot be read: .* {why}; the pickle has {len(data)}"):
        load_pickle(data, "there")
    # As part of a checkpoint, too.
    source = tmp_path / "source"
    shutil.copytree(DATA / "ds2_bf16", source)
    victim = source / "global_step3" / "mp_rank_00_model_states.pt"
    torch.save({**torch.load(victim, weights_only=True), "evil": value()}, victim)
    with little_work(), pytest.raises(ValueError, match=f"model_states.pt cannot be read: .*{why}"):
        convert(source, tmp_path / "out")


TUPLES = b"(K\x01" + b"t" + b"\x86".join([b"2"] * 60) + b"\x86"  # each twice the one before


@pytest.mark.row("X4")
@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02}" + TUPLES + b"K\x00s.",
        b"\x80\x02}(" + TUPLES + b"K\x00u.",
        b"\x80\x02(" + TUPLES + b"K\x00d.",
        b"\x80\x04(" + TUPLES + b"\x91.",
        b"\x80\x04\x8f(" + TUPLES + b"\x90.",
        b"\x80\x02ccollections\nOrderedDict\n(((" + TUPLES + b"K\x00tltR.",
    ],
)
def test_a_key_that_takes_for_ever_to_hash(data):
    with little_work(), pytest.raises(ValueError, match="a key of a dict or set has more than 1000 values"):
        load_pickle(data, "there")


@pytest.mark.row("X4")
@pytest.mark.parametrize("name", ["torch\nSize", "some\nclass", "collections\nOrderedDict"])
def test_a_long_argument_that_is_passed_often(name):
    pairs = pickle.dumps([(number, 0) for number in range(5000)], 2)[2:-1]
    data = b"\x80\x02]q\xfe(" + pairs + b"q\xff0" + (f"c{name}\n".encode() + b"h\xff\x85R") * 5000 + b"e."
    with little_work(), pytest.raises(ValueError, match="takes more than [0-9]+ steps to read"):
        load_pickle(data, "there")


def test_tensors_cannot_be_written_by_a_pickle(tmp_path):
    """Each would take as long as the tensor is large, or give it memory."""
    tensor = torch.zeros(4)
    torch.save(tensor, tmp_path / "good.pt")
    for state in ((None, 0, (1 << 20,), (1,)), {"data": 1}):
        call = Calls(torch._utils._rebuild_tensor_v2, _Stored(tensor), 0, (4,), (1,), False, {}, state=state)
        write_archive(tmp_path / "bad.pt", tmp_path / "good.pt", call)
        with pytest.raises(ValueError, match="it sets the state of a Tensor"):
            load_file(tmp_path / "bad.pt")


@pytest.mark.row("X4")
@pytest.mark.parametrize(
    ("size", "stride", "why"),
    [
        ((1 << 29,), (0,), "has 2147483648 bytes, repeated from 4 elements: at most 67108864 are read"),
        ((1 << 15, 4), (0, 1), None),  # as expand makes them
        ((3, 2), (1, 1), "has a storage of 4 elements"),
        ((3, 1 << 25), (1, 0), "has 402653184 bytes"),
        ((3, 2, 1 << 29), (1, 1, 0), "has a storage of 4 elements"),
    ],
)
def test_tensors_of_more_elements_than_are_stored(tmp_path, size, stride, why):
    tensor = torch.arange(4.0)
    torch.save(tensor, tmp_path / "good.pt")
    value = {"module": {"a": [Calls(torch._utils._rebuild_tensor_v2, _Stored(tensor), 0, size, stride, False, {})]}}
    write_archive(tmp_path / "bad.pt", tmp_path / "good.pt", value)
    if why is None:
        assert torch.equal(load_file(tmp_path / "bad.pt")["module"]["a"][0], tensor.as_strided(size, stride))
        return
    with little_work(), pytest.raises(ValueError, match=rf"bad.pt cannot be read: .*'module.a.0' of the shape.*{why}"):
        load_file(tmp_path / "bad.pt")


def test_a_tensor_that_is_named_often(tmp_path):
    torch.save([torch.zeros(1 << 20)] * 100, tmp_path / "often.pt")
    with little_work(), pytest.raises(ValueError, match="more than [0-9]+ bytes of tensors"):
        load_file(tmp_path / "often.pt")


def test_what_torch_saves_is_read(tmp_path):
    """Expanded, tied, cut, transposed and empty tensors, and many that share one storage."""
    base = torch.randn(64, 32)
    values = collections.OrderedDict(
        expanded=torch.arange(8.0).expand(100, 8),
        scalar=torch.tensor(2.5).expand(3, 1000),
        tied=base,
        again=base,
        cut=base[3:9, ::2],
        turned=base.t(),
        window=torch.arange(9).as_strided((3, 3), (2, 1)),
        empty=torch.empty(0, 5),
        parameter=torch.nn.Parameter(base[0]),
        parts=dict(enumerate(base.unbind())),
    )
    torch.save(values, tmp_path / "good.pt")
    read, expected = load_file(tmp_path / "good.pt"), torch.load(tmp_path / "good.pt", weights_only=True)
    assert read.keys() == expected.keys()
    parts = read.pop("parts")
    assert all(torch.equal(part, parts[number]) for number, part in expected.pop("parts").items())
    assert all(torch.equal(read[name], value) and read[name].shape == value.shape for name, value in expected.items())


@pytest.mark.row("X4")
def test_random_changes_are_refused_or_read(tmp_path, release):
    """Of pickles that DeepSpeed and DCP wrote, and of opcodes in any order."""
    seed = random.SystemRandom().randrange(10**6) if release else 1
    generator = random.Random(seed)
    opcodes = [getattr(pickle, name)[0] for name in dir(pickle) if isinstance(getattr(pickle, name), bytes)]
    originals = [(DATA / "dcp/.metadata").read_bytes(), *pickles_in(DATA / "ds3_fp32"), *pickles_in(DATA / "ds2_bf16")]
    with little_work() if not release else contextlib.nullcontext():
        for index in range(200_000 if release else 2_000):
            data = bytearray(generator.choice(originals))
            begin = generator.randrange(len(data))
            for _ in range(generator.randrange(1, 8)):
                at = min(len(data) - 1, begin + generator.randrange(40))
                kind = generator.randrange(4)
                if kind == 0:
                    data[at] = generator.choice(opcodes)
                elif kind == 1:
                    data[at] ^= 1 << generator.randrange(8)
                elif kind == 2:
                    data[at:at] = data[begin : begin + generator.randrange(60)]
                else:
                    del data[at : at + generator.randrange(1, 9)]
                if not data:
                    break
            try:
                load_pickle(bytes(data), "there")
            except ValueError as error:
                assert str(error).startswith("there"), (seed, index)


@pytest.mark.parametrize("change", ["same place", "too large", "too many bytes"])
def test_pieces_that_do_not_make_up_a_tensor(tmp_path, change):
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    source = tmp_path / "source"
    shutil.copytree(DATA / "dcp", source)
    metadata = pickle.loads((source / ".metadata").read_bytes())
    key, item = next(
        (key, item)
        for key, item in metadata.state_dict_metadata.items()
        if isinstance(item, TensorStorageMetadata) and item.size.numel() > 4
    )
    if change == "same place":
        item.chunks = [*item.chunks, item.chunks[-1]]
        expected = f"two pieces of '{key}' begin at"
    elif change == "too large":
        item.size = torch.Size([1 << 40])
        item.chunks[0].sizes, item.chunks[1:] = torch.Size([1 << 40]), []
        expected = f"the piece of '{key}' at .* is (kept in|no tensor of) "
    else:
        for place in metadata.storage_data.values():
            place.length = 1 << 30
        expected = "bytes of pieces, and their files have"
    (source / ".metadata").write_bytes(pickle.dumps(metadata))
    with little_work(), pytest.raises(ValueError, match=expected):
        convert(source, tmp_path / "out", buffers=BUFFERS)
