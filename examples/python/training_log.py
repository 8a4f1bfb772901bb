"""Output of a training run: a progress bar or plain lines, a JSONL log and a plot of the loss."""

import json
import shutil
import sys
from pathlib import Path

BAR_WIDTH = 24


def _clock(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}:{seconds:02d}"


def _summary(record):
    return (
        f"loss {record['loss']:.3f}  norm {record['grad_norm']:.2f}  lr {record['lr']:.2e}  "
        f"{record['tokens_per_s']:.0f} tok/s  {record['measured_mb']:.0f} of {record['planned_mb']:.0f} MB  "
        f"eta {_clock(record['eta_s'])}"
    )


class TrainingLog:
    """Writes one JSON object a step and shows the run: a bar on a terminal, a line every `every` steps elsewhere."""

    def __init__(self, folder, total_steps, every=10, stream=None):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.total_steps = total_steps
        self.every = every
        self.records = []
        self._stream = stream or sys.stdout
        self._bar = self._stream.isatty()
        self._file = open(self.folder / "log.jsonl", "w", buffering=1)  # noqa: SIM115 (closed by close())

    def add(self, record):
        self.records.append(record)
        self._file.write(json.dumps(record) + "\n")
        step = record["step"]
        if self._bar:
            filled = BAR_WIDTH * step // self.total_steps
            line = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {step}/{self.total_steps}  {_summary(record)}"
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r" + line[:width].ljust(width))
        elif step == 1 or step % self.every == 0 or step == self.total_steps:
            self._stream.write(f"step {step}/{self.total_steps}  {_summary(record)}\n")
        self._stream.flush()

    def note(self, text):
        """Prints a line, on a terminal below the bar."""
        self._stream.write(("\n" if self._bar else "") + text + "\n")
        self._stream.flush()

    def close(self):
        self._file.close()


def smooth(values, weight=0.9):
    """Exponential moving mean, corrected for its start."""
    mean, total, result = 0.0, 0.0, []
    for value in values:
        mean = weight * mean + (1 - weight) * value
        total = weight * total + (1 - weight)
        result.append(mean / total)
    return result


def plot_losses(records, held_out_loss, title, path):
    """Writes the loss and the gradient norm over the steps as PNG and SVG; returns the PNG's path."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = [record["step"] for record in records]
    losses = [record["loss"] for record in records]
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, height_ratios=[3, 1], layout="constrained")
    top.plot(steps, losses, color="tab:blue", alpha=0.35, linewidth=1, label="training loss")
    top.plot(steps, smooth(losses), color="tab:blue", linewidth=2, label="smoothed")
    if held_out_loss is not None:
        top.plot(steps[-1], held_out_loss, "o", color="tab:red", label=f"held-out loss {held_out_loss:.3f}")
    top.set(title=title, ylabel="cross entropy, nats a token")
    top.legend()
    bottom.plot(steps, [record["grad_norm"] for record in records], color="tab:gray", linewidth=1)
    bottom.set(xlabel="optimizer step", ylabel="gradient norm", yscale="log")
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
    path = Path(path)
    figure.savefig(path.with_suffix(".png"), dpi=120)
    figure.savefig(path.with_suffix(".svg"))
    plt.close(figure)
    return path.with_suffix(".png")
