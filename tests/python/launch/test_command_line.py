"""A wrong command line: the word, its place and the way out in one line, and exit code 2."""

import re
import subprocess

import pytest
from built import LM, ZEROSHARD, ZEROSHARD_TORCH, needs

pytestmark = needs(ZEROSHARD, LM)

COMMANDS = "run, env, config, plan, doctor, checkpoint, tokenize, train, generate"


def error_of(*args, program=ZEROSHARD):
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith("zeroshard: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("zeroshard: ").rstrip("\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["pln"], f"'pln' is no command of zeroshard; did you mean 'plan'? It has {COMMANDS}"),
        (["pln", "--params", "7e9"], "'pln' is no command of zeroshard; did you mean 'plan'?"),
        (["qwertyuiop"], f"'qwertyuiop' is no command of zeroshard; it has {COMMANDS}"),
        ([], f"zeroshard needs a subcommand: {COMMANDS}"),
        (["checkpoint", "lst"], "'lst' is no command of zeroshard checkpoint; did you mean 'list'? It has list, "),
        (["config", "explan", "x"], "'explan' is no command of zeroshard config; did you mean 'explain'? It has "),
        (["config"], "zeroshard config needs a subcommand: explain, keys"),
    ],
)
def test_unknown_commands(args, message):
    assert error_of(*args).startswith(message)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["plan", "--parms", "7e9"],
            "unknown option '--parms'; did you mean '--params'? `zeroshard plan --help` lists",
        ),
        (["plan", "--parms=7e9"], "unknown option '--parms=7e9'; did you mean '--params'?"),
        (
            ["plan", "--qwertyuiop"],
            "unknown option '--qwertyuiop' of zeroshard plan; `zeroshard plan --help` lists all",
        ),
        (["plan", "-x"], "unknown option '-x' of zeroshard plan; `zeroshard plan --help` lists all"),
        (["plan", "params", "7e9"], "'params' is one argument too many for zeroshard plan; did you mean '--params'?"),
        (
            ["checkpoint", "diff", "a", "b", "c"],
            "'c' is one argument too many for zeroshard checkpoint diff; `zeroshard",
        ),
        (
            ["checkpoint", "list", ".", "--jsn"],
            "unknown option '--jsn'; did you mean '--json'? `zeroshard checkpoint list",
        ),
        (["train", "x", "--max-restart", "3"], "unknown option '--max-restart'; did you mean '--max-restarts'?"),
        (["--nproc", "2", "train", "x"], "option '--nproc' belongs to zeroshard train: write it after 'train'"),
        (
            ["run", "--nprocs", "2", "x.py"],
            "unknown option '--nprocs'; did you mean '--nproc'? (for a script of that na",
        ),
    ],
)
def test_unknown_options(args, message):
    assert error_of(*args).startswith(message)


NPROC = "expected a whole number >= 1 and <= 4096"
WORLD_SIZE = "expected a whole number >= 1 and <= 1048576"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["plan", "--params", "7e9", "--world-size", "x"], f"--world-size is 'x', {WORLD_SIZE}"),
        (["plan", "--params", "7e9", "--world-size", "0"], f"--world-size is '0', {WORLD_SIZE}"),
        (["plan", "--params", "7e9", "--world-size", "9" * 20], f"--world-size is '{'9' * 20}', {WORLD_SIZE}"),
        (["plan", "--params", "7e9", "--world-size"], f"--world-size has no value, {WORLD_SIZE}: Number of ranks"),
        (["plan", "--world-size", "8", "--world-size", "9"], "--world-size is given 2 times, as '8', '9': once is en"),
        (["plan", "--model"], "--model has no value, expected a text: Hugging Face model directory or config.json"),
        (["plan", "--json=x"], "--json takes no value, got 'x'"),
        (["config", "explain", "x", "--world-size", "0"], "--world-size is '0', expected a whole number >= 1"),
        (["config", "explain", "x", "--hidden-size", "4k"], "--hidden-size is '4k', expected a whole number >= 1"),
        (["config", "explain"], "file is missing: Training config, JSON as DeepSpeed's"),
        (["train"], "CONFIG is missing: A JSON file"),
        (["train", "x", "--nproc"], f"--nproc has no value, {NPROC}: Ranks on this host (default: 1)"),
        (["train", "x", "--nproc="], f"--nproc has no value, {NPROC}"),
        (["train", "x", "--nproc", "9" * 20], f"--nproc is '{'9' * 20}', {NPROC}"),
        (["train", "x", "--nproc", "4097"], f"--nproc is '4097', {NPROC}"),
        (["run", "--nproc"], f"--nproc has no value, {NPROC}: Ranks on this host (default: one per GPU)"),
        (["run", "--nproc", "9" * 20, "x.py"], f"--nproc is '{'9' * 20}', {NPROC}"),
        (["run", "--max-restarts", "9" * 20, "x.py"], "and <= 2147483647"),
        (["generate", "x", "--nproc"], f"--nproc has no value, {NPROC}"),
        (["generate", "--nproc"], f"--nproc has no value, {NPROC}: Ranks that share the model's blocks"),
        (["tokenize", "--threads", "x"], "--threads is 'x', expected a whole number: 0: one per core"),
        (
            ["tokenize", "--format", "chatt"],
            "--format must be one of auto, chat, instruct, jsonl, text, got 'chatt'; did",
        ),
        (["checkpoint", "export", "a", "b", "--dtype", "bf17"], "got 'bf17'; did you mean 'bf16'?"),
        (["plan", "--params", "1", "--world-size", "1", "--optimizer", "adamm"], "got 'adamm'; did you mean 'adam'?"),
    ],
)
def test_wrong_values(args, message):
    assert message in error_of(*args)


@needs(ZEROSHARD_TORCH)
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--max-token", 3], "unknown option '--max-token'; did you mean '--max-tokens'?"),
        (["--top-k", "x"], "--top-k is 'x', expected a whole number"),
        (["--seed"], "--seed has no value, expected "),
    ],
)
def test_options_of_generate(args, message):
    assert error_of("generate", "x", "--prompt", "x", *args).startswith(message)


@needs(ZEROSHARD_TORCH)
def test_generate_lists_its_options():
    options = options_in_help("generate")
    assert "What the text begins with; -: standard input" in options["--prompt"]
    for name in ("--max-tokens,--max-new-tokens", "--temperature", "--top-k", "--top-p", "--seed", "--dtype"):
        assert name in options
    assert "Ranks that share the model's blocks" in options["--nproc"]


@needs(ZEROSHARD_TORCH)
@pytest.mark.parametrize("nproc", [1, 2])
def test_generate_says_what_it_expects(tmp_path, nproc):
    (tmp_path / "model.safetensors").touch()
    for name, why in {"model.safetensors": "which is no directory", "absent": "which is not there"}.items():
        said = error_of("generate", tmp_path / name, "--prompt", "x", "--nproc", nproc)
        assert said.startswith(f"DIR is '{tmp_path / name}', {why}: expected the directory of a model, with config")


@pytest.mark.parametrize("command", [*COMMANDS.split(", "), "config keys", "checkpoint export"])
def test_help_names_no_page_that_is_not_installed(command):
    text = subprocess.run([ZEROSHARD, *command.split(), "--help"], capture_output=True, text=True, check=True).stdout
    assert "docs/" not in text and ".md" not in text, text


@pytest.mark.parametrize(("text", "meant"), [("24", "24GB"), ("1.5", "1.5GB")])
@pytest.mark.parametrize("option", ["--device-memory", "--device-overhead"])
def test_a_device_of_a_few_bytes_is_asked_about(option, text, meant):
    said = error_of("plan", "--params", "1e9", "--world-size", 8, option, text)
    assert said == f"{option} is '{text}', and a number without a unit is in bytes: give a unit, such as {meant}"


def options_in_help(command):
    """{the option's names: what it takes, and its help}"""
    text = subprocess.run([ZEROSHARD, command, "--help"], capture_output=True, text=True, check=True).stdout
    lines = re.sub(r"\n {20,}", " ", text).splitlines()
    return {line.split()[0]: " ".join(line.split()) for line in lines if line.startswith("  -")}


def test_the_commands_that_start_ranks_have_the_same_options_for_watching_them():
    run, train = options_in_help("run"), options_in_help("train")
    for name in ("grace-period", "stall-timeout", "hang-timeout", "max-restarts", "min-ranks", "log-dir"):
        names = f"--{name},--{name.replace('-', '_')}"
        assert train[names] == run[names]


@pytest.mark.parametrize("command", ["run", "train"])
@pytest.mark.parametrize(
    "name", ["--grace-period", "--stall-timeout", "--hang-timeout", "--min-ranks", "--max-restarts"]
)
def test_wrong_numbers_for_the_supervisor_are_named(command, name):
    least = {"--min-ranks": "a whole number >= 1", "--max-restarts": "a whole number >= 0"}.get(name, "seconds >= 0")
    assert error_of(command, name, "soon", "x.json") == f"{name} is 'soon', expected {least}"
    assert error_of(command, name, "-1", "x.json") == f"{name} is '-1', expected {least}"
    assert error_of(command, name).startswith(f"{name} has no value, expected {least}: ")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["generate", "x", "--prompt", "x", "--temperature"], "a number: 0: always the likeliest"),
        (["generate", "x", "--prompt", "x", "--top-p"], "a number: Only the likeliest with"),
        (["generate", "x", "--prompt", "x", "--max-tokens"], "a whole number: How many follow"),
        (["generate", "x", "--prompt", "x", "--seed"], "a whole number >= 0: Of the choice"),
        (["checkpoint", "export", "a", "b", "--dtype"], "a text: fp32 (the master weights), bf16 or fp16"),
        (["checkpoint", "export", "a", "b", "--max-file-size"], "a text: 5GB"),
        (["tokenize", "x", "--threads"], "a whole number: 0: one per core"),
        (["tokenize", "x", "--format"], "FORMAT: text; jsonl"),
        (["train", "x", "--nproc"], NPROC.removeprefix("expected ")),
        (["train", "x", "--grace-period"], "seconds >= 0"),
        (["plan", "--params"], "a text: Number of parameters"),
    ],
)
def test_an_empty_value_is_none(args, message):
    if args[0] in ("train", "generate") and not ZEROSHARD_TORCH.exists():
        pytest.skip("zeroshard-torch is not built")
    assert error_of(*args, "").startswith(f"{args[-1]} has no value, expected {message}")


@needs(ZEROSHARD_TORCH)
@pytest.mark.parametrize("command", ["run", "train"])
def test_fewer_ranks_need_restarts(command):
    message = error_of(command, "--nproc", "2", "--min-ranks", "1", ZEROSHARD)
    assert message == "--min-ranks is 1: give --max-restarts too, without which nothing is started again"
    message = error_of(command, "--nproc", "2", "--min-ranks", "3", "--max-restarts", "1", ZEROSHARD)
    assert message == "--min-ranks is 3 but the job has 2 ranks (--nproc)"


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["--version"],
        ["plan", "--help"],
        ["plan", "--params", "7e9", "--world-size", "8"],
        ["plan", "--params", "7e9", "--world-size", "8", "--json"],
        ["config", "explain", "config.json"],
        ["config", "keys", "--markdown"],
        ["checkpoint", "list", "."],
    ],
)
def test_output_that_cannot_be_written_is_an_error(tmp_path, args):
    (tmp_path / "config.json").write_text('{"train_batch_size": 2}')
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [ZEROSHARD, *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, cwd=tmp_path
        )
    assert done.returncode == 1
    assert re.fullmatch(r"zeroshard: standard output cannot be written(: No space left on device)?\n", done.stderr)
