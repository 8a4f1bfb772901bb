"""`zeroshard tokenize` as a program: ids and forms of conversations against Hugging Face's, files by NumPy."""

import dataclasses
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess

import numpy
import pytest
from built import LM, REPOSITORY, ZEROSHARD, needs
from waiting import wait_for

pytestmark = needs(ZEROSHARD, LM)
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

CHAT_TOKENS = ["<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
CHAT_TOKENS += ["<|eot_id|>", "<start_of_turn>", "<end_of_turn>"]
# As the models' own tokenizer_config.json have them, but for the marks of what is learned.
TEMPLATES = {
    "chatml": """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}
{%- if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}""",
    "llama3": """{{ '<|begin_of_text|>' }}{% for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{ message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}
{%- else %}{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}""",
    "llama2": """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}
{%- set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}
{%- set system_message = false %}{% endif %}{% for message in loop_messages %}
{%- if loop.index0 == 0 and system_message != false %}
{%- set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}
{%- else %}{% set content = message['content'] %}{% endif %}
{%- if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}
{%- generation %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}""",
    "mistral": """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}
{{- '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}
{%- generation %}{{ message['content'] + eos_token }}{% endgeneration %}{% endif %}{% endfor %}""",
    "gemma": """{{ bos_token }}{% for message in messages %}
{%- if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{- '<start_of_turn>' + role + '\n' }}{% if role == 'model' %}
{%- generation %}{{ message['content'] | trim + '<end_of_turn>' }}{% endgeneration %}
{%- else %}{{ message['content'] | trim + '<end_of_turn>' }}{% endif %}{{ '\n' }}{% endfor %}""",
}


def train_tokenizer(folder, metaspace):
    """A small tokenizer of either kind: of bytes, as Llama 3 and Qwen, or with spaces as '▁', as Llama 2 and Gemma."""
    if metaspace:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        alphabet, fallback = [], [f"<0x{byte:02X}>" for byte in range(256)]
    else:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        alphabet, fallback = tokenizers.pre_tokenizers.ByteLevel.alphabet(), []
    special = ["<unk>", "<s>", "</s>", *CHAT_TOKENS]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=[*special, *fallback],
        initial_alphabet=alphabet,
        max_token_length=12,
        show_progress=False,
    )
    texts = [path.read_text() for path in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))[:4])]
    tokenizer.train_from_iterator([line for text in texts for line in text.splitlines()], trainer)
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in special]
    (folder / "tokenizer.json").write_text(json.dumps(state))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    return folder


@dataclasses.dataclass
class Trained:
    path: object
    tokenizer: object  # of Hugging Face

    def __init__(self, folder, metaspace=False):
        self.path = train_tokenizer(folder, metaspace)
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module", params=[False, True], ids=["bytes", "metaspace"])
def trained(request, tmp_path_factory):
    return Trained(tmp_path_factory.mktemp("trained"), request.param)


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp("of_bytes"))


def run(*arguments, **options):
    return subprocess.run([ZEROSHARD, "tokenize", *arguments], capture_output=True, text=True, timeout=60, **options)


def tokenized(trained, output, *arguments):
    result = run("--tokenizer", trained.path, "--output", output, *arguments)
    assert result.returncode == 0, result.stderr
    return result


def read(path):
    """Documents as (ids, learned), read as docs/token-files.md says."""
    data = path.read_bytes()
    assert data[:8] == data[-8:] == b"zstokens"
    assert struct.unpack_from("<I", data, 8) == (1,)
    foot = data[-128:]
    tokens, documents, vocab_size, max_id, max_position, learned = struct.unpack_from("<6q", foot)
    id_bytes, flags = struct.unpack_from("<2I", foot, 48)
    up = lambda offset: -(-offset // 64) * 64  # noqa: E731
    ids = numpy.frombuffer(data, f"<u{id_bytes}", tokens, 64).tolist()
    at = up(64 + tokens * id_bytes)
    marks = [1] * tokens
    if flags & 1:
        bits = numpy.frombuffer(data, numpy.uint8, -(-tokens // 8), at)
        marks = numpy.unpackbits(bits, count=tokens, bitorder="little").tolist()
        at = up(at + len(bits))
    ends = numpy.frombuffer(data, "<u8", documents, at).tolist()
    assert ends[-1] == tokens and max(ids) == max_id == ids[max_position] < vocab_size and sum(marks) == learned
    return [(ids[begin:end], marks[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def random_text(rng):
    words = [
        "the",
        "ranks ",
        " shard",
        "\n",
        "\n\n",
        "é",
        "重み",
        "😀",
        "  ",
        "x=1;",
        "Hello",
        "\t",
        "don't",
        " 42",
        ".",
    ]
    return "".join(rng.choice(words) for _ in range(rng.randrange(1, 12)))


def test_texts_have_the_ids_of_tokenizers(trained, tmp_path):
    rng = random.Random(1)
    texts = [random_text(rng) for _ in range(300)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    result = tokenized(trained, tmp_path / "out.tokens", "--field", "body", tmp_path / "in.jsonl", "--threads", "3")
    wanted = [trained.tokenizer.encode(text).ids + [trained.tokenizer.token_to_id("</s>")] for text in texts]
    assert [ids for ids, _ in read(tmp_path / "out.tokens")] == wanted
    assert f"300 documents, {sum(map(len, wanted))} tokens" in result.stdout


def conversation(rng, system):
    messages = [{"role": "system", "content": random_text(rng)}] * system
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": random_text(rng)})
        messages.append({"role": "assistant", "content": random_text(rng)})
    return messages


@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_have_the_ids_and_marks_of_transformers(trained, name, tmp_path):
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(trained.path / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    theirs.chat_template = TEMPLATES[name].replace("\n{", "{")
    rng = random.Random(2)
    conversations = [conversation(rng, name in ("chatml", "llama3", "llama2") and i % 2) for i in range(60)]
    (tmp_path / "in").write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in conversations))
    tokenized(trained, tmp_path / "out", "--format", "chat", "--template", name, tmp_path / "in")
    documents = read(tmp_path / "out")
    assert len(documents) == len(conversations)
    for messages, (ids, marks) in zip(conversations, documents, strict=True):
        wanted = theirs.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        assert ids == wanted["input_ids"], (messages, theirs.decode(ids))
        differing = [
            i for i, pair in enumerate(zip(marks, wanted["assistant_masks"], strict=True)) if pair[0] != pair[1]
        ]
        assert not differing, (messages, differing, theirs.convert_ids_to_tokens(ids))


ALPACA = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1, 2\n\n"
    "### Response:\n"
)


@pytest.mark.parametrize(
    "record, prompt", [({"instruction": "Add.", "input": "1, 2"}, ALPACA), ({"prompt": "So:"}, "So:")]
)
def test_the_prompt_is_that_of_inference_and_the_answer_is_learned(of_bytes, record, prompt, tmp_path):
    key = "completion" if "prompt" in record else "output"
    (tmp_path / "in").write_text(json.dumps({**record, key: "three"}))
    form = "plain" if "prompt" in record else "alpaca"
    tokenized(of_bytes, tmp_path / "out", "--format", "instruct", "--template", form, tmp_path / "in")
    [(ids, marks)] = read(tmp_path / "out")
    text = of_bytes.tokenizer.decode([i for i, mark in zip(ids, marks, strict=True) if mark], skip_special_tokens=False)
    assert text == "three</s>"
    assert ids[: marks.index(1)] == of_bytes.tokenizer.encode(prompt).ids


def test_other_programs_files_are_inspected(tmp_path):
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    head = numpy.zeros(256, "<i4")
    for name, magic, version, dtype in (("a.bin", 20240520, 1, "<u2"), ("b.bin", 20240801, 7, "<u4")):
        head[:3] = magic, version, len(ids)
        (tmp_path / name).write_bytes(head.tobytes() + numpy.array(ids, dtype).tobytes())
    for dtype in ("u2", "u4", "i4", "i8"):
        numpy.save(tmp_path / f"{dtype}.npy", numpy.array(ids, dtype))
    numpy.array(ids, "<u2").tofile(tmp_path / "d.u16")
    formats = {"a.bin": "llm.c", "b.bin": "llm.c", "d.u16": "u16"}
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 7
    for path in paths:
        result = run("--inspect", path, "--json")
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout)
        assert (found["first_tokens"], found["tokens"], found["format"]) == (ids, 8, formats.get(path.name, "npy"))
    numpy.save(tmp_path / "float.npy", numpy.zeros(4))
    result = run("--inspect", tmp_path / "float.npy")
    assert result.returncode == 2 and "dtype is '<f8'" in result.stderr


def test_a_damaged_file_is_found_by_inspect(of_bytes, tmp_path):
    # Several checksums, so that the first is not that of the index at the end, however well the tokenizer does.
    (tmp_path / "in.txt").write_text("some words\n" * 500_000)
    path = tmp_path / "out.tokens"
    tokenized(of_bytes, path, "--separator", "none such", tmp_path / "in.txt")
    result = run("--inspect", path, "--tokenizer", of_bytes.path, "--first", "4")
    assert result.returncode == 0 and "some w" in result.stdout and "whole" in result.stdout
    data = bytearray(path.read_bytes())
    data[100] ^= 4
    path.write_bytes(data)
    result = run("--inspect", path)
    assert result.returncode == 1 and "the checksum of bytes 0 to" in result.stderr
    path.write_bytes(data[:-1])
    result = run("--inspect", path)
    assert result.returncode == 2 and "is cut off" in result.stderr


def test_mistakes_are_told_and_leave_nothing(of_bytes, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": 5}\n')
    common = ["--tokenizer", of_bytes.path, "--output", tmp_path / "out.tokens"]
    cases = [
        ([*common, tmp_path / "in.jsonl"], 2, "in.jsonl:2: field 'text' must be a string, it is 5"),
        ([*common, tmp_path / "none.txt"], 1, "cannot open"),
        ([*common, "--format", "chatt", tmp_path / "in.jsonl"], 2, "--format"),
        ([*common, "--format", "chat", "--template", "qwen", tmp_path / "in.jsonl"], 2, "'qwen' is not known"),
        ([*common], 2, "INPUT is missing"),
        (["--output", tmp_path / "out.tokens", tmp_path / "in.jsonl"], 2, "--tokenizer is missing"),
        (["--tokenizer", of_bytes.path, tmp_path / "in.jsonl"], 2, "--output is missing"),
        (["--tokenizer", tmp_path / "no", "--output", tmp_path / "o", tmp_path / "in.jsonl"], 1, str(tmp_path / "no")),
    ]
    for arguments, code, message in cases:
        result = run(*arguments)
        assert result.returncode == code and message in result.stderr, (arguments, result)
        assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("name", ["in.txt", "./in.txt", "hard", "soft", "standard input"])
def test_the_text_is_not_replaced_by_its_tokens(of_bytes, tmp_path, name):
    text, other = tmp_path / "in.txt", tmp_path / "other.txt"
    text.write_text("some words")
    other.write_text("others")
    (tmp_path / "hard").hardlink_to(text)
    (tmp_path / "soft").symlink_to(text)
    before = sorted(path.name for path in tmp_path.iterdir())
    output, source = ("in.txt", "-") if name == "standard input" else (name, "in.txt")
    with text.open() as stdin:
        result = run(
            *("--tokenizer", of_bytes.path, "--output", output, "other.txt", source), stdin=stdin, cwd=tmp_path
        )
    shown = "standard input" if source == "-" else "'in.txt'"
    assert result.returncode == 2 and f"the output '{output}' is the same file as the input {shown}" in result.stderr
    assert text.read_text() == (tmp_path / "hard").read_text() == "some words" and (tmp_path / "soft").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("by_file", [False, True])
def test_the_tokenizer_is_not_replaced_by_tokens(of_bytes, tmp_path, name, by_file):
    for each in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / each).write_text((of_bytes.path / each).read_text())
    (tmp_path / "in.txt").write_text("some words")
    tokenizer = tmp_path / "tokenizer.json" if by_file else tmp_path
    result = run("--tokenizer", tokenizer, "--output", tmp_path / name, tmp_path / "in.txt")
    assert result.returncode == 2 and f"is the tokenizer's file '{tmp_path / name}'" in result.stderr, result
    assert (tmp_path / name).read_text() == (of_bytes.path / name).read_text()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(of_bytes, stop, tmp_path):
    command = [ZEROSHARD, "tokenize", "--tokenizer", of_bytes.path, "--output", tmp_path / "out.tokens", "-"]
    # The tests may run in the background, where SIGINT is ignored; the command then leaves it so.
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **heed) as process:
        process.stdin.write("some text\n" * 100)
        process.stdin.flush()
        wait_for(lambda: list(tmp_path.iterdir()), "it to be at work", seconds=20)
        process.send_signal(stop)
        assert process.wait(20) == 128 + stop
        assert "interrupted" in process.stderr.read()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no compiler")
def test_a_signal_just_before_it_waits_for_input_ends_it(of_bytes, tmp_path):
    """The handler has returned when read() begins, and so does not interrupt it."""
    (tmp_path / "late.c").write_text("""
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <signal.h>
        #include <sys/types.h>
        ssize_t read(int file, void* to, size_t bytes) {
          static int raised = 0;
          if (file == 0 && raised++ == 0) raise(SIGTERM);
          return ((ssize_t (*)(int, void*, size_t))dlsym(RTLD_NEXT, "read"))(file, to, bytes);
        }""")
    late = tmp_path / "late.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", late, tmp_path / "late.c", "-ldl"], check=True)
    (tmp_path / "out").mkdir()
    command = [ZEROSHARD, "tokenize", "--tokenizer", of_bytes.path, "--output", tmp_path / "out" / "out.tokens", "-"]
    env = {**os.environ, "LD_PRELOAD": str(late)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.wait(20) == 128 + signal.SIGTERM
        assert "interrupted" in process.stderr.read()
    assert not list((tmp_path / "out").iterdir())


def test_what_a_killed_one_left_goes_with_the_next(of_bytes, tmp_path):
    command = [ZEROSHARD, "tokenize", "--tokenizer", of_bytes.path, "--output", tmp_path / "out.tokens", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        wait_for(lambda: list(tmp_path.iterdir()), "it to be at work", seconds=20)
        process.kill()
    assert list(tmp_path.iterdir())
    assert not (tmp_path / "out.tokens").exists()
    result = run(*command[2:], input="text")
    assert result.returncode == 0, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.tokens"]


def test_a_file_that_grows_too_large_leaves_nothing(of_bytes, tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    text = "".join(map(chr, range(33, 127))) * 20_000
    result = run("--tokenizer", of_bytes.path, "--output", tmp_path / "out.tokens", "-", input=text, preexec_fn=limit)
    assert result.returncode == 1 and "out.tokens" in result.stderr
    assert not list(tmp_path.iterdir())


def test_documents_of_several_inputs_and_threads_come_in_order(of_bytes, tmp_path):
    rng = random.Random(5)
    texts = [f"{i} " + "word " * rng.randrange(400) for i in range(3000)]
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text("\n<|endoftext|>\n".join(texts[i * 1000 : (i + 1) * 1000]))
    inputs = [tmp_path / f"{i}.txt" for i in range(3)]
    for threads in ("1", "4"):
        arguments = ["--threads", threads, "--separator", "<|endoftext|>", "--no-append-eos", *inputs]
        tokenized(of_bytes, tmp_path / f"out{threads}", *arguments)
    assert (tmp_path / "out1").read_bytes() == (tmp_path / "out4").read_bytes()
    documents = read(tmp_path / "out4")
    assert [of_bytes.tokenizer.decode(ids) for ids, _ in documents[::100]] == texts[::100]
