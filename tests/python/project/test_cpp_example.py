"""examples/cpp/train.cpp: the C++ front trains, and no stage changes a bit of it."""

import json
import re
import subprocess

import pytest
from built import BUILD, REPOSITORY, ZEROSHARD, needs

EXAMPLE = BUILD / "examples" / "cpp" / "example_train"

pytestmark = needs(EXAMPLE, ZEROSHARD)


def run_cpp_example(config: str, ranks: int = 2, steps: int = 12) -> tuple[list[str], dict[str, tuple[int, int]]]:
    """Its lines of steps, and (planned, peak) bytes by category."""
    command = [ZEROSHARD, "run", "--nproc", str(ranks), EXAMPLE]
    command += [REPOSITORY / "examples" / "configs" / config, REPOSITORY / "examples" / "cpp" / "train.cpp", str(steps)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = re.findall(r"step \d+ loss \S+ grad_norm \S+", result.stdout)
    assert len(lines) == steps, result.stdout
    found = re.findall(r"([a-z ]+), [a-z]+: planned (\d+) bytes, peak (\d+)", result.stdout.replace("[rank 0] ", ""))
    return lines, {name.strip(): (int(planned), int(peak)) for name, planned, peak in found}


def test_stages_agree_and_the_loss_falls():
    replicated, replicated_bytes = run_cpp_example("stage0.json")
    sharded, sharded_bytes = run_cpp_example("stage3.json")
    assert replicated == sharded
    losses = [float(line.split()[3]) for line in replicated]
    assert sum(losses[-3:]) < sum(losses[:3]) - 0.5
    for held in (replicated_bytes, sharded_bytes):
        assert held and all(planned == peak for planned, peak in held.values())
    for category in ("parameters", "gradients", "moments"):
        assert sharded_bytes[category][0] * 2 == replicated_bytes[category][0]


@pytest.mark.parametrize(("ranks", "size", "stage"), [(2, 2, 3), (4, 2, 0)])
def test_ranks_that_share_texts_train_as_ranks_with_whole_ones(tmp_path, ranks, size, stage):
    """The same texts in a step: as many a rank as ranks share them."""
    losses = []
    for shared in (1, size):
        path = tmp_path / f"{shared}.json"
        zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
        optimizer = {"type": "AdamW", "params": {"lr": 1e-3}}
        config = {"train_batch_size": 4, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0}
        config |= {"zero_optimization": zero, "optimizer": optimizer, "sequence_parallel_size": shared}
        path.write_text(json.dumps(config))
        lines, _ = run_cpp_example(path, ranks)
        losses.append([float(value) for line in lines for value in line.split()[3::2]])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[1] != losses[0]


def test_wrong_input_exits_1_and_says_why(tmp_path):
    config = REPOSITORY / "examples" / "configs" / "stage0.json"
    for arguments, message in (
        ([], "usage: example_train"),
        ([tmp_path / "none.json"], "none.json"),
        ([config, tmp_path / "none.txt"], "need a file of more than 128 bytes"),
    ):
        result = subprocess.run([EXAMPLE, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 1
        assert message in result.stderr
