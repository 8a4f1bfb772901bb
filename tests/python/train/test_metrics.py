"""Files of metrics, read by what users read them with: json, csv, an XML parser and TensorBoard."""

import csv
import json
import math
import struct
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from built import BUILD, needs

TOOL = BUILD / "tests" / "write_metrics"

pytestmark = needs(TOOL)


def write(directory, records, total=100, resume=None, die=False):
    """Records (step, {name: value}) in a process of its own."""
    lines = [f"{step} " + " ".join(f"{name} {value!r}" for name, value in values.items()) for step, values in records]
    command = [TOOL, directory, str(total), *([] if resume is None else [str(resume)])]
    text = "\n".join([*lines, "die" if die else ""])
    result = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def falling_losses(steps):
    return [(step, {"loss": 8 / step, "lr": 1e-3}) for step in steps]


def interrupted_run(directory):
    """Killed at step 8, goes on from a checkpoint of step 5, in which the loss was another one."""
    write(directory, falling_losses(range(1, 9)), die=True)
    again = [(step, {"loss": 100.0 + step, "validation_loss": 7.5}) for step in range(6, 11)]
    write(directory, again, resume=5)
    return {**{step: 8 / step for step in range(1, 6)}, **{step: 100.0 + step for step in range(6, 11)}}


def test_json_and_csv_tell_the_same(tmp_path):
    expected = interrupted_run(tmp_path)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {record["step"]: record["loss"] for record in records} == expected
    assert [record["step"] for record in records] == sorted(expected)
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(records)
    for record, row in zip(records, rows, strict=True):
        assert {name: float(text) for name, text in row.items() if text} == record


def test_numbers_keep_every_bit_and_nan_is_legible(tmp_path):
    values = {"a": 0.1 + 0.2, "b": math.nan, "c": -math.inf, "d": 5e-324, "e": 1.7976931348623157e308, "f": -0.0}
    write(tmp_path, [(1, values)])

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    record = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    with open(tmp_path / "metrics.csv", newline="") as file:
        row = next(csv.DictReader(file))
    for read in (record, row):
        for name, value in values.items():
            assert struct.pack("<d", abs(float(read[name]))) == struct.pack("<d", abs(value)), name
            assert math.copysign(1, float(read[name])) == math.copysign(1, value) or math.isnan(value), name


def test_the_plot_is_well_formed(tmp_path):
    write(
        tmp_path, [(step, {**values, "tokens_per_second": 1e4 + step}) for step, values in falling_losses(range(1, 51))]
    )
    root = ElementTree.parse(tmp_path / "metrics.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    lines = {
        line.get("class"): line.get("points").split() for line in root.iter("{http://www.w3.org/2000/svg}polyline")
    }
    assert {name: len(points) for name, points in lines.items()} == {"loss": 50, "rate": 50}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_event_files_are_records_with_right_checksums(tmp_path):
    """A decoder of its own, for where TensorBoard is not installed."""
    write(tmp_path, falling_losses(range(1, 4)))
    (path,) = tmp_path.glob("events.out.tfevents.*")
    data, records = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        record = data[12 : 12 + length]
        assert struct.unpack("<I", data[8:12])[0] == masked(data[:8])
        assert struct.unpack("<I", data[12 + length : 16 + length])[0] == masked(record)
        records.append(record)
        data = data[16 + length :]
    assert len(records) == 4
    assert records[0].endswith(b"brain.Event:2")
    assert b"\x15" + struct.pack("<f", 8 / 3) in records[3]


def scalars_of(directory):
    """What two readers of TensorBoard agree on: the one for scripts, and that of its server."""
    tools = "tensorboard.backend.event_processing"
    events = pytest.importorskip(f"{tools}.event_accumulator").EventAccumulator(str(directory)).Reload()
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    server = pytest.importorskip(f"{tools}.plugin_event_accumulator").EventAccumulator(str(directory)).Reload()
    for tag, expected in found.items():
        seen = [(event.step, event.tensor_proto.float_val[0]) for event in server.Tensors(tag)]
        assert repr(seen) == repr(expected), tag
    assert server.Tags()["tensors"] == list(found)
    return found


def test_tensorboard_reads_every_value(tmp_path):
    pytest.importorskip("tensorboard")
    write(tmp_path, [(1, {"loss": 2.5, "train/x": math.inf}), (2, {"loss": math.nan}), (2**40, {"loss": 1e300})])
    scalars = scalars_of(tmp_path)
    assert scalars["train/x"] == [(1, math.inf)]
    assert [step for step, _ in scalars["loss"]] == [1, 2, 2**40]
    assert scalars["loss"][0][1] == 2.5 and math.isnan(scalars["loss"][1][1]) and scalars["loss"][2][1] == math.inf


def test_tensorboard_drops_what_a_resumed_run_lost(tmp_path):
    pytest.importorskip("tensorboard")
    expected = interrupted_run(tmp_path)
    scalars = scalars_of(tmp_path)
    assert scalars["loss"] == [(step, pytest.approx(value)) for step, value in expected.items()]
    assert scalars["validation_loss"] == [(step, 7.5) for step in range(6, 11)]
    # Values of the lost part that the resumed run has no others for are dropped too.
    assert [step for step, _ in scalars["lr"]] == [1, 2, 3, 4, 5]


def test_tensorboard_forgets_an_earlier_run_in_the_same_directory(tmp_path):
    pytest.importorskip("tensorboard")
    write(tmp_path, falling_losses(range(1, 9)))
    write(tmp_path, falling_losses(range(1, 3)))
    assert [step for step, _ in scalars_of(tmp_path)["loss"]] == [1, 2]
