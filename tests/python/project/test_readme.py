"""The first script of README.md runs as it stands, and learns."""

import re
import subprocess

import warm
from built import REPOSITORY, ZEROSHARD, needs
from launched import environment


@needs(ZEROSHARD)
def test_the_first_script(tmp_path):
    script = re.search(r"^```python\n(.*?)^```$", (REPOSITORY / "README.md").read_text(), re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run(
        [ZEROSHARD, "run", "--nproc", "2", "train.py"],
        cwd=tmp_path, env=environment(VIRTUAL_ENV=warm.environment()),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(loss) for loss in re.findall(r"\bloss=([\d.]+)", done.stdout + done.stderr)]
    assert len(losses) > 3 and losses[-1] < losses[0] - 0.5, losses
    assert {"config.json", "model.safetensors"} <= {path.name for path in (tmp_path / "out").iterdir()}
