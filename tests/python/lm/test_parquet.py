"""Parquet as input of `zeroshard tokenize` and `zeroshard train`: the tokens of the same records as JSON lines."""

import functools
import json
import os
import random
import shutil
import subprocess
import sys

import pytest
from built import BUILD, ZEROSHARD, ZEROSHARD_TORCH, needs
from tokenizer_data import train_byte_level

PLUGIN = BUILD / "cli" / "libzeroshard_parquet.so"
pa = pytest.importorskip(
    "pyarrow", reason="pyarrow is missing: pip install --no-deps -r tools/requirements-parquet.txt"
)
pq = pytest.importorskip("pyarrow.parquet")
tokenizers = pytest.importorskip("tokenizers")
pytestmark = needs(ZEROSHARD, PLUGIN)

WORDS = [
    "the",
    " rank",
    "\n",
    "é",
    "重み",
    "😀",
    '"',
    "\\",
    "\x00",
    "\x1f",
    "\x7f",
    "\u2028",
    "x=1;",
    "\r\n",
    "/",
    "  ",
]
ROWS = 700


@functools.cache
def texts(seed=1, count=ROWS):
    rng = random.Random(seed)
    return ["".join(rng.choices(WORDS, k=rng.choice([0, 1, 5, 40]))) for _ in range(count)]


@functools.cache
def conversations():
    rng = random.Random(2)
    turns = [[*rng.sample(texts(), 2 * rng.randrange(1, 4))] for _ in range(200)]
    return [
        [{"role": ("user", "assistant")[i % 2], "content": text or "-"} for i, text in enumerate(turn)]
        for turn in turns
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    trained = train_byte_level(texts(), ["<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    trained.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    return folder


def run(model, output, *arguments, command=ZEROSHARD, before=(), **options):
    command = [*before, command, "tokenize", "--tokenizer", model, "--output", output, *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, **options)


def tokens(model, path, *arguments):
    """The file of tokens of an input, as bytes."""
    output = path.with_suffix(path.suffix + ".tokens")
    result = run(model, output, *arguments, path)
    assert result.returncode == 0, result.stderr.decode()
    return output.read_bytes()


def refusal(model, path, *arguments, code=2, **options):
    """The message of an input that cannot be used. It leaves nothing."""
    output = path.parent / "refused.tokens"
    before = sorted(path.parent.iterdir())
    result = run(model, output, *arguments, path, **options)
    assert result.returncode == code, (result.returncode, result.stderr)
    assert sorted(path.parent.iterdir()) == before
    return result.stderr.decode()


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


TEXT_COLUMNS = {
    "strings": (pa.string(), {"compression": "snappy"}),
    "small-groups": (pa.string(), {"compression": "zstd", "row_group_size": 3}),
    "large-strings": (pa.large_string(), {"compression": "gzip"}),
    "views": (pa.string_view(), {"compression": "none"}),
    "bytes": (pa.binary(), {"compression": "lz4"}),
    "large-bytes": (pa.large_binary(), {"use_dictionary": False}),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), {"compression": "brotli"}),
    "small-dictionary": (pa.string(), {"dictionary_pagesize_limit": 64, "data_page_size": 256}),
    "plain": (pa.string(), {"use_dictionary": False, "compression": "none", "data_page_version": "2.0"}),
    "delta": (pa.string(), {"use_dictionary": False, "column_encoding": {"body": "DELTA_BYTE_ARRAY"}}),
    "delta-lengths": (pa.string(), {"use_dictionary": False, "column_encoding": {"body": "DELTA_LENGTH_BYTE_ARRAY"}}),
    "checksums": (pa.string(), {"write_page_checksum": True, "store_schema": False}),
}


@pytest.mark.parametrize("name", TEXT_COLUMNS)
def test_a_column_of_text(model, tmp_path, name):
    column_type, how = TEXT_COLUMNS[name]
    table = pa.table({"id": range(ROWS), "body": pa.array(texts()).cast(column_type), "x": [[{"y": 1.5}]] * ROWS})
    pq.write_table(table, tmp_path / "in.parquet", **{"row_group_size": 150} | how)
    lines = write_lines(tmp_path / "in.jsonl", [{"body": text} for text in texts()])
    for ending in ([], ["--no-append-eos"]):
        wanted = tokens(model, lines, "--field", "body", *ending)
        for kind in ("auto", "jsonl", "text"):
            arguments = ["--field", "body", "--format", kind, "--threads", "3", *ending]
            assert tokens(model, tmp_path / "in.parquet", *arguments) == wanted


MESSAGE = pa.struct([("content", pa.string()), ("role", pa.string()), ("weight", pa.float64())])
NAMED = pa.struct([("role", pa.dictionary(pa.int8(), pa.string())), ("content", pa.large_string())])


@pytest.mark.parametrize("column_type", [pa.list_(MESSAGE), pa.large_list(MESSAGE), pa.list_(NAMED)], ids=str)
@pytest.mark.parametrize("flavor", ["new", "old"])
def test_conversations(model, tmp_path, column_type, flavor):
    column = pa.array(conversations(), column_type)
    how = {"use_compliant_nested_type": flavor == "new", "compression": "zstd"}
    table = pa.table({"n": range(len(column)), "turns": column})
    pq.write_table(table.slice(3), tmp_path / "in.parquet", row_group_size=60, **how)
    lines = write_lines(tmp_path / "in.jsonl", [{"turns": messages} for messages in conversations()[3:]])
    arguments = ["--format", "chat", "--field", "turns"]
    assert tokens(model, tmp_path / "in.parquet", *arguments) == tokens(model, lines, *arguments)


def test_instructions(model, tmp_path):
    pairs = list(zip(texts(3), texts(4), strict=True))
    inputs = [[None, "", "context"][i % 3] for i in range(ROWS)]
    kinds = {
        "completions": [{"prompt": prompt, "completion": answer} for prompt, answer in pairs],
        "outputs": [{"instruction": prompt, "output": answer} for prompt, answer in pairs],
        "inputs": [
            {"input": given, "instruction": prompt, "output": answer}
            for given, (prompt, answer) in zip(inputs, pairs, strict=True)
        ],
        "no-inputs": [{"instruction": prompt, "input": None, "output": answer} for prompt, answer in pairs],
    }
    for name, records in kinds.items():
        pq.write_table(pa.Table.from_pylist(records), tmp_path / f"{name}.parquet", row_group_size=99)
        lines = write_lines(tmp_path / f"{name}.jsonl", records)
        arguments = ["--format", "instruct"]
        assert tokens(model, tmp_path / f"{name}.parquet", *arguments) == tokens(model, lines, *arguments), name


def test_files_are_read_in_their_order(model, tmp_path):
    inputs = []
    for i in range(3):
        pq.write_table(pa.table({"text": texts(i)}), tmp_path / f"{i}.parquet", row_group_size=100)
        inputs.append(tmp_path / f"{i}.parquet")
    inputs.insert(1, write_lines(tmp_path / "between.jsonl", [{"text": "between"}]))
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "none.parquet")
    inputs.append(tmp_path / "none.parquet")
    for threads in ("1", "4"):
        result = run(model, tmp_path / f"{threads}.tokens", "--threads", threads, *inputs)
        assert result.returncode == 0, result.stderr
    everything = [*texts(0), "between", *texts(1), *texts(2)]
    lines = write_lines(tmp_path / "all.jsonl", [{"text": text} for text in everything])
    assert (tmp_path / "4.tokens").read_bytes() == (tmp_path / "1.tokens").read_bytes() == tokens(model, lines)
    size = sum(path.stat().st_size for path in inputs)
    assert f" of {size} bytes in " in result.stdout.decode()


BAD_RECORDS = {
    "null": ([], pa.string(), [{"text": "a"}, {"text": None}], "in.jsonl:2: field 'text' must be a string, it is null"),
    "nulls": ([], pa.null(), [{"text": None}], "in.jsonl:1: field 'text' must be a string, it is null"),
    "no-list": (["chat"], pa.list_(MESSAGE), [{"messages": None}], "'messages' must be a list of messages, it is null"),
    "all-null": (["chat"], pa.null(), [{"messages": None}], "'messages' must be a list of messages, it is null"),
    "empty": (["chat"], pa.list_(MESSAGE), [{"messages": []}], "'messages' must be a list of messages, it is []"),
    "no-struct": (["chat"], pa.list_(MESSAGE), [{"messages": [None]}], "field 'messages[0]' must be an object"),
    "no-content": (
        ["chat"],
        pa.list_(NAMED),
        [{"messages": [{"role": "user", "content": None}]}],
        "in.jsonl:1: field 'messages[0].content' must be a string, it is null",
    ),
    "role": (
        ["chat"],
        pa.list_(NAMED),
        [{"messages": [{"role": "bot", "content": "x"}]}],
        "in.jsonl:1: field 'messages[0].role' is 'bot'",
    ),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_what_is_wrong_in_a_row_is_told_as_of_lines(model, tmp_path, name):
    kind, column_type, records, message = BAD_RECORDS[name]
    arguments = [*("--format" for _ in kind), *kind]
    [field] = records[0]
    column = pa.array([record[field] for record in records], column_type)
    pq.write_table(pa.table({field: column}), tmp_path / "in.parquet")
    of_lines = refusal(model, write_lines(tmp_path / "in.jsonl", records), *arguments)
    assert message in of_lines
    assert refusal(model, tmp_path / "in.parquet", *arguments) == of_lines.replace("in.jsonl", "in.parquet")


def test_a_wrong_column_is_told_before_anything_is_read(model, tmp_path):
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"body": ["a"], "n": [1], "l": [["x"]], "m": [[{"role": "user"}]]}), path)
    for arguments, message in (
        ([], "in.parquet: there is no column 'text'; the file has 'body', 'n', 'l', 'm'"),
        (["--field", "n"], "in.parquet: column 'n' must hold strings, it is of type int64"),
        (["--field", "m"], "in.parquet: column 'm' must hold strings, it is of type list"),
        (["--format", "chat"], "in.parquet: there is no column 'messages'; the file has 'body'"),
        (["--format", "chat", "--field", "body"], "column 'body' must hold lists of structs, it is of type string"),
        (["--format", "chat", "--field", "l"], "column 'l' must hold lists of structs, it is of type list"),
        (["--format", "chat", "--field", "m"], "column 'm' has no field 'content'"),
        (["--format", "instruct"], "in.parquet: there is no column 'prompt'"),
        (["--field", "body", "--max-document-bytes", "10"], "in.parquet:1: the row has more than 10 bytes as JSON"),
    ):
        assert message in refusal(model, path, *arguments), arguments


def test_inputs_that_are_no_files_of_that_name(model, tmp_path):
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": texts()}), path)
    shutil.copy(path, tmp_path / "in.txt")
    assert "in.txt is Parquet, which is read from files alone whose names end in .parquet" in refusal(
        model, tmp_path / "in.txt"
    )
    with path.open("rb") as standard_input:
        result = run(model, tmp_path / "out", "-", stdin=standard_input)
    assert result.returncode == 2 and b"standard input is Parquet, which is read from files alone" in result.stderr
    os.mkfifo(tmp_path / "pipe.parquet")
    assert "this is a pipe or device" in refusal(model, tmp_path / "pipe.parquet")
    (tmp_path / "folder.parquet").mkdir()
    assert "it is a directory" in refusal(model, tmp_path / "folder.parquet", code=1)
    assert "cannot open" in refusal(model, tmp_path / "missing.parquet", code=1)


def test_without_the_plug_in_files_are_named_before_any_is_read(model, tmp_path):
    alone = tmp_path / "bin" / "zeroshard"
    alone.parent.mkdir()
    shutil.copy(ZEROSHARD, alone)
    pq.write_table(pa.table({"text": texts()}), tmp_path / "in.parquet")
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    lines = write_lines(tmp_path / "in.jsonl", [{"text": 5}])
    message = refusal(model, tmp_path / "in.parquet", lines, command=alone, env=environment)
    assert "cannot read" in message and "in.parquet, because " in message
    assert "Install the Python package pyarrow and build zeroshard again, or convert the file to JSON lines" in message
    assert run(model, tmp_path / "out", tmp_path / "in.parquet", env=environment).returncode == 0


def test_a_string_that_is_not_utf8(model, tmp_path):
    column = pa.array([b"a", b"\xe9", b"b"])
    pq.write_table(pa.table({"text": column}), tmp_path / "in.parquet")
    message = refusal(model, tmp_path / "in.parquet", code=1)
    assert "in.parquet as Parquet, after row 1: a string is not UTF-8" in message


DAMAGED = {
    "checksums": ([], {"text": texts()[:60]}, {"write_page_checksum": True, "compression": "zstd"}),
    "plain": ([], {"text": texts()[:60]}, {"use_dictionary": False, "compression": "none"}),
    "dictionary": ([], {"text": pa.array(texts()[:60]).dictionary_encode()}, {"compression": "none"}),
    "chat": (["--format", "chat"], {"messages": conversations()[:30]}, {"compression": "snappy"}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_an_error(model, tmp_path, name):
    """Or gives what it gave, where the damaged byte is of no use; without checksums also other text."""
    arguments, columns, how = DAMAGED[name]
    path, output = tmp_path / "in.parquet", tmp_path / "in.parquet.tokens"
    pq.write_table(pa.table(columns), path, row_group_size=20, **how)
    whole = path.read_bytes()
    right = tokens(model, path, *arguments)
    rng = random.Random(name)
    damaged = [whole[: len(whole) * i // 12] for i in range(12)] + [whole[:-1], whole + b"x"]
    for _ in range(80):
        changed = bytearray(whole)
        changed[rng.randrange(len(whole))] ^= rng.randrange(1, 256)
        damaged.append(changed)
    errors = 0
    for data in damaged:
        path.write_bytes(data)
        output.unlink(missing_ok=True)
        result = run(model, output, *arguments, "--threads", "1", path)
        if result.returncode == 0:
            assert name != "checksums" or output.read_bytes() == right
            continue
        assert result.returncode in (1, 2), result
        assert b"in.parquet" in result.stderr, result.stderr
        assert [entry.name for entry in tmp_path.iterdir()] == ["in.parquet"]
        errors += 1
    assert errors >= 14 + 10


LIES = {
    "index": (pa.array(["a", "b", "c", "a", "b"]).dictionary_encode(), 1, "a string is not in the column's dictionary"),
    "count": (pa.array(["a", "b", "c", "a", "b"]), 2, "row group 0 lacks 1 of its rows"),
}


@pytest.mark.parametrize("name", LIES)
def test_what_a_page_says_is_compared(model, tmp_path, name):
    """Arrow itself takes these, and would give less, or what lies behind the dictionary."""
    column, bit, wanted = LIES[name]
    path = tmp_path / "in.parquet"
    schema = pa.schema([pa.field("text", column.type, nullable=False)])
    how = {"compression": "none", "write_statistics": False, "use_dictionary": name == "index"}
    pq.write_table(pa.table([column], schema=schema), path, **how)
    whole = path.read_bytes()
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    end = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
    messages = set()
    for at in range(chunk.data_page_offset, end):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        result = run(model, tmp_path / "out", "--threads", "1", path)
        assert result.returncode in (0, 1), result
        messages.add(result.stderr.decode().split(": ")[-1].strip())
    assert wanted in messages, messages


def test_memory_does_not_grow_with_the_row_group(model, tmp_path):
    def peak(rows):
        text = "many words " * 400
        table = pa.table({"text": [text] * rows})
        pq.write_table(table, tmp_path / "in.parquet", use_dictionary=False, compression="none", row_group_size=rows)
        assert pq.ParquetFile(tmp_path / "in.parquet").num_row_groups == 1
        assert table.nbytes > rows * 4000
        # A process begins with the peak of the one that started it, which here would be pytest with pyarrow.
        script = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=2); "
        script += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        result = run(
            model, tmp_path / "out", "--threads", "1", tmp_path / "in.parquet", before=[sys.executable, "-c", script]
        )
        assert result.returncode == 0, result.stderr
        return int(result.stdout) << 10

    assert peak(12_000) < peak(4_000) + (20 << 20)  # text: 58 MB and 19 MB


@needs(ZEROSHARD_TORCH)
def test_training_takes_it(model, tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"max_position_embeddings": 32, "rms_norm_eps": 1e-6}
    (model / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 300} | sizes))
    pq.write_table(pa.table({"text": texts()}), tmp_path / "in.parquet")
    write_lines(tmp_path / "in.jsonl", [{"text": text} for text in texts()])
    made = []
    for name in ("in.parquet", "in.jsonl"):
        train = {"model": str(model), "output": str(tmp_path / f"of-{name}"), "from_scratch": True, "steps": 1}
        data = {"train": [str(tmp_path / name)], "length": 16}
        (tmp_path / "config.json").write_text(
            json.dumps({"train_batch_size": 1, "optimizer": {"type": "AdamW"}, "train": train | {"data": data}})
        )
        command = [ZEROSHARD, "train", tmp_path / "config.json", "--nproc", "1", "--dry-run"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        [file] = (tmp_path / f"of-{name}" / "tokens").iterdir()
        made.append(file.read_bytes())
    assert made[0] == made[1] == tokens(model, tmp_path / "in.jsonl")
