"""Turns the rounds of bench/checkpoint.py into figures, the goals' verdicts and Markdown."""

from statistics import median

from stepbench.report import quartiles

MODES = {
    "zeroshard": "zeroshard, in the background",
    "zeroshard_foreground": "zeroshard, in the foreground",
    "torch_save": "torch.save + fsync, a file a rank",
    "dcp": "torch DCP save",
    "dcp_async": "torch DCP async_save",
    "deepspeed": "DeepSpeed save_checkpoint",
}
TOLERANCE = 1e-6  # of the losses after a load


def _quartiles(values):
    low, middle, high = quartiles(values)
    return {"median": middle, "q1": low, "q3": high}


def _probe(entry, kind):
    """Seconds of a probe: the mean of those before and after the peers of a round."""
    return (entry["probe"][kind] + entry["probe_after"][kind]) / 2


def figures(result):
    rounds = result["rounds"]
    rows = {}
    for mode in [mode for mode in MODES if mode in rounds[0]]:
        # Speeds count the state, not what a format adds to it.
        probe_bytes = rounds[0]["probe"]["bytes"]
        state = result["state_bytes"]

        def share(kind, probe, mode=mode, state=state, probe_bytes=probe_bytes):
            return [(state / e[mode][kind]) / (probe_bytes / _probe(e, probe)) for e in rounds]

        rows[mode] = {
            "stall_s": _quartiles([e[mode]["stall"] for e in rounds]),
            "stall_to_memcpy": _quartiles([e[mode]["stall"] / _probe(e, "memcpy") for e in rounds]),
            "durable_s": _quartiles([e[mode]["durable"] for e in rounds]),
            "save_gb_s": _quartiles([state / e[mode]["durable"] / 1e9 for e in rounds]),
            "save_to_probe": _quartiles(share("durable", "write")),
            "load_s": _quartiles([e[mode]["load"] for e in rounds]),
            "load_gb_s": _quartiles([state / e[mode]["load"] / 1e9 for e in rounds]),
            "load_to_probe": _quartiles(share("load", "read")),
            "first_stall_s": result["warmup"][mode]["first_stall"],
            "first_peak_mb": result["warmup"][mode]["peak_bytes"] / 1e6,
            "peak_mb": max(e[mode]["peak_bytes"] for e in rounds) / 1e6,
            "bytes": rounds[0][mode]["bytes"],
        }
    probes = [e[name] for e in rounds for name in ("probe", "probe_after")]
    machine = {
        "memcpy_gb_s_per_rank": _quartiles([e["bytes"] / 2 / e["memcpy"] / 1e9 for e in probes]),
        "write_gb_s": _quartiles([e["bytes"] / e["write"] / 1e9 for e in probes]),
        "read_gb_s": _quartiles([e["bytes"] / e["read"] / 1e9 for e in probes]),
    }
    pairs, steps = result["overhead"]["pairs"], result["overhead"]["steps"]
    # Pairs follow each other within seconds: the pace of the machine changes more slowly than that, mostly.
    interval = result["overhead"]["interval"] * median(pair["without"] for pair in pairs) / steps
    overhead = {
        "cost": _quartiles([(pair["with"] - pair["without"]) / interval for pair in pairs]),
        "stall": _quartiles([pair["stall"] / interval for pair in pairs]),
    }
    return {"modes": rows, "probes": machine, "overhead": overhead}


def goals(result):
    """Each goal with its figure and whether it is met."""
    figs, reshard = result["figures"], result["reshard"]
    own, first = figs["modes"].get("zeroshard"), result["warmup"].get("zeroshard")
    verdicts = []

    def goal(text, value, met):
        verdicts.append({"goal": text, "value": value, "met": bool(met)})

    if own:
        ratio = own["stall_to_memcpy"]["median"]
        goal("stall of a save in the background <= 1.2 x one memcpy of the state", f"{ratio:.2f} x", ratio <= 1.2)
        for mode in [mode for mode in ("zeroshard_foreground", "zeroshard") if mode in figs["modes"]]:
            share = figs["modes"][mode]["save_to_probe"]["median"]
            where = MODES[mode].removeprefix("zeroshard, ")
            goal(f"save {where}, until durable, >= 85 % of the O_DIRECT write probe", f"{share:.0%}", share >= 0.85)
        share = own["load_to_probe"]["median"]
        goal("load, cold, >= 85 % of the O_DIRECT read probe", f"{share:.0%}", share >= 0.85)
        planned, measured = max(first["staging_planned"]), max(first["staging_measured"])
        text = f"planned {planned / 1e6:.1f} MB, measured {measured / 1e6:.1f} MB"
        goal("checkpoint staging in the ledger as planned", text, planned == measured)
        extra = first["peak_bytes"] - planned
        text = f"{extra / 1e6:+.0f} MB beyond it"
        goal("growth of a rank at its first save: staging and at most 64 MB", text, extra <= 64e6)
    added, interval = figs["overhead"]["cost"], result["overhead"]["interval"]
    pairs = len(result["overhead"]["pairs"])
    text = f"a save every {interval} steps costs <= 3.5 % of their time, median of {pairs} pairs"
    goal(text, f"{_text(added, 100, 1)} %", added["median"] <= 0.035)
    text = f"{reshard['disk_before']} bytes before, {reshard['disk_after']} after"
    goal("4 ranks -> 2 without a second copy on disk", text, reshard["disk_before"] == reshard["disk_after"])
    return verdicts


def correct(result):
    """Whether every load gave back what was saved; speed is for the reader to judge."""
    reshard = result["reshard"]
    same = reshard["same"] and reshard["disk_before"] == reshard["disk_after"]
    return same and all(difference <= TOLERANCE for difference in result["checks"].values())


def _text(entry, scale=1.0, digits=2):
    return f"{entry['median'] * scale:.{digits}f} ({entry['q1'] * scale:.{digits}f}-{entry['q3'] * scale:.{digits}f})"


def _load_note(machine):
    if machine["load_before"] < machine["cores"] / 2:
        return ""
    return "The machine did other work before and perhaps during the run: the figures are those of a shared machine."


def markdown(result):
    """The tables for people; everything in them is also in the JSON."""
    options, machine, figs = result["options"], result["machine"], result["figures"]
    probes, overhead, reshard = figs["probes"], figs["overhead"], result["reshard"]
    lines = [
        f"### Checkpoints, shape `{options['shape']}`, {result['params'] / 1e6:.1f} M parameters, 2 ranks, "
        "stage 3, AdamW",
        "",
        f"`{result['command']}`",
        "",
        f"State: {result['state_bytes'] / 1e9:.2f} GB (fp32 weights and two moments); {options['rounds']} interleaved "
        "rounds after one that is not counted; median (quartiles). Seconds are the slowest rank's, in each round the "
        "median of three saves, loads and probes; 1 thread a rank, pinned.",
        f"Machine: {machine['cpu']}, {machine['cores']} cores; load average {machine['load_before']:.1f} before, "
        f"{machine['load_after']:.1f} after. Probes of the same bytes by 2 processes at once, before and after the "
        f"peers of every round, GB/s: memcpy {_text(probes['memcpy_gb_s_per_rank'])} a rank, O_DIRECT write "
        f"{_text(probes['write_gb_s'])}, O_DIRECT read {_text(probes['read_gb_s'])}.",
        _load_note(machine),
        "",
        "| peer | stall s | stall / memcpy | durable s | save GB/s | / write probe | cold load s | load GB/s "
        "| / read probe | GB on disk | peak MB of a save (first) | losses after load |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for mode, row in figs["modes"].items():
        lines.append(
            f"| {MODES[mode]} | {_text(row['stall_s'], digits=3)} | {_text(row['stall_to_memcpy'])} "
            f"| {_text(row['durable_s'])} | {_text(row['save_gb_s'])} | {_text(row['save_to_probe'])} "
            f"| {_text(row['load_s'])} | {_text(row['load_gb_s'])} | {_text(row['load_to_probe'])} "
            f"| {row['bytes'] / 1e9:.2f} | {row['peak_mb']:.0f} ({row['first_peak_mb']:.0f}) "
            f"| {result['checks'][mode]:.0e} off |"
        )
    lines += [
        "",
        f"Overhead, {result['overhead']['params'] / 1e6:.1f} M parameters: a save and {result['overhead']['steps']} "
        "steps, until it is durable, against the steps alone, as shares of the time of "
        f"{result['overhead']['interval']} steps: {_text(overhead['cost'], 100)} %, of which the stall is "
        f"{_text(overhead['stall'], 100)} %; {len(result['overhead']['pairs'])} pairs in turns.",
        f"Reshard, {reshard['params'] / 1e6:.1f} M parameters: saved by 4 ranks in {reshard['save_seconds']:.2f} s, "
        f"loaded by 2 in {reshard['load_seconds']:.2f} s, parameters {'the same' if reshard['same'] else 'DIFFERENT'}.",
        f"First save of zeroshard (its staging memory is new): stall "
        f"{figs['modes']['zeroshard']['first_stall_s']:.2f} s."
        if "zeroshard" in figs["modes"]
        else "",
        "",
        "| goal | measured | met |",
        "|---|---|---|",
    ]
    lines += [f"| {g['goal']} | {g['value']} | {'yes' if g['met'] else 'NO'} |" for g in result["goals"]]
    return "\n".join(lines) + "\n"
