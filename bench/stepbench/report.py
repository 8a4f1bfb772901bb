"""Turns the answers of the rounds into figures, a parity verdict and a Markdown table."""

import statistics


def quartiles(values):
    """Returns (first quartile, median, third quartile)."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, middle, third


def round_seconds(answers):
    """Step time of one round: the slowest process of each step, then the median over the steps."""
    return statistics.median(max(step) for step in zip(*(a["seconds"] for a in answers), strict=True))


def mean_losses(rounds):
    """Loss of every step, the mean over the processes, rounds in order."""
    losses = []
    for answers in rounds:
        losses += [statistics.fmean(step) for step in zip(*(a["losses"] for a in answers), strict=True)]
    return losses


def worst_relative_difference(losses, reference):
    """Largest |a - b| / |b|; infinite when lengths differ or a value is not finite."""
    if len(losses) != len(reference) or not losses:
        return float("inf")
    worst = 0.0
    for loss, expected in zip(losses, reference, strict=True):
        difference = abs(loss - expected) / abs(expected)
        if not difference < float("inf"):
            return float("inf")
        worst = max(worst, difference)
    return worst


def summarize(peer, setup, rounds, baselines):
    """Figures of one peer. `baselines` maps a baseline's name to its step time per round."""
    seconds = [round_seconds(answers) for answers in rounds]
    first, middle, third = quartiles(seconds)
    figures = {
        "peer": peer,
        "processes": len(setup),
        "step_ms": {"median": middle * 1e3, "q1": first * 1e3, "q3": third * 1e3, "min": min(seconds) * 1e3},
        "rounds_ms": [value * 1e3 for value in seconds],
        "cpu_ms_per_step_and_rank": statistics.median(
            statistics.fmean(a["cpu_seconds"] for a in answers) for answers in rounds
        )
        * 1e3,
        "peak_mb": max(a["peak_bytes"] for answers in rounds for a in answers) / 1e6,
        "setup_peak_mb": max(a["setup_peak_bytes"] for a in setup) / 1e6,
        "idle_mb": max(a["idle_bytes"] for a in setup) / 1e6,
        "params": setup[0]["params"],
    }
    for name, base in baselines.items():
        low, mid, high = quartiles([value / other for value, other in zip(seconds, base, strict=True)])
        figures[f"ratio_to_{name}"] = {"median": mid, "q1": low, "q3": high}
    return figures


def _ratio(figures, name):
    ratio = figures.get(f"ratio_to_{name}")
    return "-" if ratio is None else f"{ratio['median']:.3f} ({ratio['q1']:.3f}-{ratio['q3']:.3f})"


def _parity(figures):
    parity = figures.get("loss_difference")
    return "-" if parity is None else f"{parity:.1e}"


def markdown(result):
    """The table for people; everything in it is also in the JSON."""
    options, machine, units = result["options"], result["machine"], result["units"]
    baselines = [name.removeprefix("ratio_to_") for name in result["peers"][0] if name.startswith("ratio_to_")]
    size = f"{result['params'] / 1e6:.2f} M parameters{f' in {units} units' if units else ''}"
    lines = [
        f"### Training step, shape `{options['shape']}`, {options['dtype']}, world {options['world']}",
        "",
        f"{size}, {options['rounds']} interleaved rounds of {options['steps']} "
        f"steps, 1 thread a rank, {'pinned' if options['pin'] else 'not pinned'}; seed {options['seed']}; "
        f"clipping {options['clip'] or 'off'}.",
        f"Machine: {machine['cpu']}, {machine['cores']} cores; memcpy of one thread, GB/s copied: "
        f"{result['memcpy_gb_s']['before']:.1f} before, {result['memcpy_gb_s']['after']:.1f} after; load average "
        f"{machine['load_before']:.1f} before, {machine['load_after']:.1f} after (1 busy rank counts 1).",
        "",
        f"| peer | step ms (quartiles) |{' us a unit |' if units else ''} "
        f"{''.join(f'/ {name} | ' for name in baselines)}CPU ms per rank "
        "| peak MB above idle | set-up peak MB | worst loss difference |",
        "|---|---|---|---|---|---|" + "---|" * (len(baselines) + bool(units)),
    ]
    for figures in result["peers"]:
        step = figures["step_ms"]
        unit = f"| {step['median'] * 1e3 / units:.0f} " if units else ""
        lines.append(
            f"| {figures['peer']} | {step['median']:.1f} ({step['q1']:.1f}-{step['q3']:.1f}) "
            f"{unit}{''.join(f'| {_ratio(figures, name)} ' for name in baselines)}"
            f"| {figures['cpu_ms_per_step_and_rank']:.1f} | {figures['peak_mb']:.0f} | {figures['setup_peak_mb']:.0f} "
            f"| {_parity(figures)} |"
        )
    lines += ["", f"Parity: {result['parity']['text']}"]
    lines += [f"Failed: {name}: {reason.splitlines()[0]}" for name, reason in result["failed"].items()]
    return "\n".join(lines) + "\n"
