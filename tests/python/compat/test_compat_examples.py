"""The examples for DeepSpeed and Hugging Face run by the line in their first comment, and learn."""

import ast
import json
import re
import shlex
import subprocess

import pytest
from built import REPOSITORY, ZEROSHARD, needs
from launched import environment

pytestmark = needs(ZEROSHARD)
EXAMPLES = REPOSITORY / "examples" / "python"
NAMES = ("pretrain", "instruct", "lora", "plain_loop")


def command_of(name):
    """The line that starts it, as its first comment and the guide have it."""
    told = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text()))
    (line,) = (line for line in told.splitlines() if line.startswith("zeroshard run"))
    return line


def run(name, *options):
    """The losses that rank 0 reports."""
    _, *arguments = shlex.split(command_of(name))
    done = subprocess.run(
        [ZEROSHARD, *arguments, *options],
        cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [float(loss) for loss in re.findall(r"\bloss'?:? '?(\d+\.\d+)", done.stdout)]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    losses = run("pretrain", "--output_dir", str(folder), "--max_steps", "12", "--logging_steps", "3")
    return folder, losses


def test_trainer_from_scratch(pretrained):
    folder, losses = pretrained
    assert len(losses) == 4 and losses[-1] < losses[0] - 0.5, losses
    assert (folder / "model.safetensors").exists() and (folder / "tokenizer.json").exists()


def test_lora_on_the_trained_model(pretrained, tmp_path):
    folder, before = pretrained
    options = ("--output_dir", str(tmp_path), "--max_steps", "8", "--logging_steps", "2")
    losses = run("lora", *options, "--model", str(folder))
    assert len(losses) == 4 and losses[-1] < losses[0] < before[0] - 0.5, (before, losses)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in tmp_path.iterdir()}


def test_instruction_tuning(tmp_path):
    data = tmp_path / "pairs.jsonl"
    pairs = [{"prompt": f"{one} and {two} are", "completion": f" {one + two}"} for one in range(6) for two in range(6)]
    data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    options = ("--output_dir", str(tmp_path / "out"), "--max_steps", "8", "--logging_steps", "2", "--data", str(data))
    losses = run("instruct", *options)
    assert len(losses) == 4 and losses[-1] < losses[0] - 0.5, losses


def test_a_plain_loop(tmp_path):
    losses = run("plain_loop", "--output_dir", str(tmp_path), "--max_steps", "20")
    assert len(losses) == 3 and losses[-1] < losses[0] - 0.5, losses
    assert (tmp_path / "latest").read_text().strip() == "global_step20"


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_ordinary_scripts(name):
    """Nothing of zeroshard is in them but the line that starts them, which the guide has, too."""
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text())
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(module.startswith("zeroshard") for module in imports)
    assert command_of(name) in (REPOSITORY / "docs" / "from-deepspeed.md").read_text()


def test_fine_tuning_in_a_loop_of_ones_own(pretrained, tmp_path):
    """docs/fine-tune.md, to the text that the result gives."""
    folder, before = pretrained
    losses = run("finetune", "--model", str(folder), "--out", str(tmp_path), "--epochs", "2")
    assert len(losses) == 2 and losses[-1] < before[0] - 0.5, (before, losses)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in tmp_path.iterdir()}
    command = [ZEROSHARD, "generate", str(tmp_path), "--prompt", "zeroshard is", "--max-tokens", "8"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, check=False)
    assert done.returncode == 0 and done.stdout.startswith("zeroshard is"), done.stdout + done.stderr
