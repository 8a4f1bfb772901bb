"""zeroshard's safetensors reader and writer against the format's own package: on real files, and on damaged ones."""

import json
import os
import random
import struct
import subprocess

import pytest
import safetensors
import safetensors.torch
import torch
from built import BUILD, needs

TOOL = BUILD / "tests" / "rewrite_safetensors"
SEED = int(os.environ.get("ZEROSHARD_TEST_SEED", "1"))

pytestmark = needs(TOOL)

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip
# Where we are stricter on purpose. The package takes lists for objects, and {"F32": null} for "F32".
STRICTER = [
    "is there twice",
    "is nested more than 16 deep",
    "is too large",
    "does not begin with '{'",
    "its entry must be an object",
    "its dtype must be a string",
]


def rewrite(source, target):
    """What our reader says of each file of `source`; those it accepts are written to `target`."""
    command = [TOOL, source, target]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    return {line["file"]: line for line in map(json.loads, result.stdout.splitlines())}


def random_tensors(generator):
    tensors = {}
    for index in range(generator.randrange(6)):
        shape = [generator.choice([0, 1, 2, 3, 5]) for _ in range(generator.randrange(4))]
        count = torch.Size(shape).numel()
        data = torch.tensor([generator.randrange(2) for _ in range(count)], dtype=torch.uint8).reshape(shape)
        name = generator.choice(["weight", "bias", 'quoted"\\', "ß.重.😀", "", "line\n"]) + str(index)
        tensors[name] = data.to(generator.choice(DTYPES))
    return tensors


def directories(tmp_path):
    for name in ("from", "to"):
        (tmp_path / name).mkdir()
    return tmp_path / "from", tmp_path / "to"


@pytest.mark.row("F2")
def test_files_of_the_package_survive_a_rewrite(tmp_path):
    source, target = directories(tmp_path)
    generator = random.Random(SEED)
    written = {}
    for index in range(100):
        metadata = generator.choice([None, {"format": "pt"}, {"": "ü", 'k"': "\n"}])
        written[f"{index:03}"] = (random_tensors(generator), metadata)
        safetensors.torch.save_file(written[f"{index:03}"][0], source / f"{index:03}", metadata=metadata)
    lines = rewrite(source, target)
    for name, (tensors, metadata) in written.items():
        assert lines[name].get("metadata") == (metadata or {}), (SEED, name, lines[name])
        assert len((target / name).read_bytes()) >= 4096
        with safetensors.safe_open(target / name, framework="pt") as file:
            assert set(file.keys()) == set(tensors)
            assert (file.metadata() or {}) == (metadata or {})
            for key, tensor in tensors.items():
                loaded = file.get_tensor(key)
                assert loaded.dtype == tensor.dtype and loaded.shape == tensor.shape
                assert loaded.contiguous().view(-1).view(torch.uint8).equal(tensor.view(-1).view(torch.uint8))


def mutant(generator):
    """A small safetensors file with damage: in bytes, in the text's pieces, or in a value."""
    content = safetensors.torch.save(random_tensors(generator), generator.choice([None, {"a": "b", "c": "d"}]))
    length = struct.unpack("<Q", content[:8])[0]
    header, data = bytearray(content[8 : 8 + length].rstrip()), content[8 + length :]
    pieces = [b'"', b",", b"{", b"}", b"[", b"]", b":", b"null", b"0", b"-0", b"1", b"1.0", b"1e0", b'"U8"', b"[0,0]",
              b"18446744073709551615", b"9223372036854775807", b"18446744073709551616", b'"__metadata__"', b"{}", b"\0",
              b'"shape":[0]', b'"x":1,', b"\\u0000", b"\\ud800", b"\xff", b"\xc3\xa4", b" ", b"\n", b"[[]]",
              b"[" * 20 + b"]" * 20, b'"x":' + b"[" * 14 + b"]" * 14 + b",", b'{"F32":null}']  # fmt: skip
    for _ in range(generator.randrange(4)):
        at = generator.randrange(len(header) + 1)
        kind = generator.randrange(6)
        if kind == 0 and at < len(header):
            header[at] = generator.randrange(256)
        elif kind == 1:
            del header[at : at + generator.randrange(1, 12)]
        elif kind == 2:
            header[at:at] = generator.choice(pieces)
        elif kind == 3:
            start = generator.randrange(len(header) + 1)
            header[at:at] = header[start : start + generator.randrange(60)]
        elif kind == 4:  # at a place where a value or a key begins
            at = max(header.find(generator.choice([b"[", b",", b":", b"{"]), at), 0) + 1
            header[at:at] = generator.choice(pieces)
        else:  # one number becomes another
            digits = [i for i, byte in enumerate(header) if chr(byte).isdigit()]
            if digits:
                header[generator.choice(digits)] = ord(generator.choice("0123456789"))
    length = len(header) + generator.choice([0] * 12 + [-1, 1, 8, 2**40, 2**63])
    if generator.randrange(10) == 0:
        data = data[: generator.randrange(len(data) + 1)] + bytes(generator.randrange(3))
    return struct.pack("<Q", length % 2**64) + bytes(header) + data


@pytest.mark.row("F2")
def test_damaged_files_are_judged_as_by_the_package(tmp_path, release):
    batch = 2000
    agreed = {"accepted": 0, "refused": 0, "stricter": 0}
    for index in range(50 if release else 2):
        (tmp_path / str(index)).mkdir()
        source, target = directories(tmp_path / str(index))
        generator = random.Random(SEED * 1000 + index)
        for number in range(batch):
            (source / f"{number:05}").write_bytes(mutant(generator))
        for name, line in rewrite(source, target).items():
            content = (source / name).read_bytes()
            where = f"seed {SEED}, batch {index}, file {name}: {content!r}: {line}"
            try:
                theirs = dict(safetensors.deserialize(content))
            except safetensors.SafetensorError:
                assert "refused" in line, where
                agreed["refused"] += 1
                continue
            if "refused" in line:
                assert any(reason in line["refused"] for reason in STRICTER), where
                agreed["stricter"] += 1
                continue
            length = struct.unpack("<Q", content[:8])[0]
            data = content[8 + length :]
            ours = {
                key: {"dtype": dtype, "shape": shape, "data": data[begin:end]}
                for key, (dtype, shape, begin, end) in line["entries"].items()
            }
            assert ours == {key: {**value, "data": bytes(value["data"])} for key, value in theirs.items()}, where
            metadata = json.loads(content[8 : 8 + length]).get("__metadata__")
            assert line["metadata"] == (metadata or {}), where
            assert dict(safetensors.deserialize((target / name).read_bytes())) == theirs, where
            agreed["accepted"] += 1
    assert agreed["accepted"] > 200 and agreed["refused"] > 1000 and agreed["stricter"] > 0, agreed
