"""Runs that go on with other numbers of ranks: again and again, and beside one that was never stopped."""

import contextlib
import itertools
import json
import os
import random
import signal

import models
import pytest
import torch
import world
import zeroshard
from saved import contents

GLOBAL_BATCH = 12  # every number of ranks here divides it
WIDTH = 40  # blocks of 9840 elements, cut at multiples of 1024
SAMPLES = 60  # five steps an epoch
EVERY = 2  # steps from save to save
LIFE_S = 30  # from the start of ranks to the end of the last one, after a death too
MICRO_BATCH = {1: 3, 2: 3, 3: 2, 4: 3}
# Relative: the order of sums is another one with other ranks, and in bf16 each is rounded to 8 bits. Of weights and
# moments more: where a gradient nearly cancels, Adam makes much of its error.
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2}  # of losses
STATE_TOLERANCE = {"fp32": 1e-4, "bf16": 1}
pytestmark = pytest.mark.fault


def make_engine_for_ranks(stage, ranks, data=None, dtype="fp32"):
    config = models.configuration(
        stage,
        dtype,
        accumulation="auto",  # it follows from the two sizes
        threshold=40,
        train_batch_size=GLOBAL_BATCH,
        train_micro_batch_size_per_gpu=MICRO_BATCH[ranks],
        gradient_clipping=0.5,
        optimizer=models.adamw(3e-3, weight_decay=0.01),
        scheduler={"type": "WarmupCosineLR", "params": {"total_num_steps": 400, "warmup_num_steps": 5}},
    )
    engine, _, loader, _ = zeroshard.initialize(model=models.stack(width=WIDTH), config=config, training_data=data)
    return engine, loader


# -- cycles ------------------------------------------------------------------------------------------------------------


def samples():
    """(vector, what is to be learned of it, its number)."""
    generator = torch.Generator().manual_seed(5)
    inputs, teacher = torch.randn(SAMPLES, WIDTH, generator=generator), torch.randn(WIDTH, 5, generator=generator)
    return list(zip(inputs, inputs @ teacher, range(SAMPLES), strict=True))


def facts(engine):
    return [engine.global_steps, engine.parameter_digest(), engine.get_lr(), engine.global_samples]


def micro_step(engine, inputs, targets):
    """The loss, of which the gradients are there."""
    loss = torch.nn.functional.mse_loss(engine(inputs), targets)
    engine.backward(loss)
    return loss.item()


def life(folder, notes, number, stage, last, death):
    """Goes on from the newest checkpoint to step `last`. There, rank `death` dies, or all stop in good order."""
    engine, loader = make_engine_for_ranks(stage, world.size(), samples())
    engine.load_checkpoint(folder)
    found = facts(engine)
    if engine.global_steps > 0:
        engine.save_checkpoint(os.path.join(notes, f"loaded-{number}"))  # for comparison, byte by byte
        engine.wait_for_checkpoint()
    with open(os.path.join(notes, f"{number}-{world.rank()}"), "w", buffering=1) as record:
        record.write(json.dumps(found) + "\n")
        ids, losses = [], []
        while engine.global_steps < last:
            for inputs, targets, index in loader:
                losses.append(micro_step(engine, inputs, targets))
                ids += index.tolist()
                before, rate = engine.global_steps, engine.get_lr()
                if before + 1 == last and death == world.rank() and number % 2 == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                engine.step()
                if engine.global_steps == before:
                    continue
                epoch = loader.state_dict()["epoch"]
                record.write(json.dumps([engine.global_steps, epoch, rate, ids, losses]) + "\n")
                ids, losses = [], []
                if engine.global_steps % EVERY == 0 or (death is None and engine.global_steps == last):
                    engine.save_checkpoint(folder)
                    note(notes, engine)
                if engine.global_steps == last:
                    break
        if death == world.rank():
            os.kill(os.getpid(), signal.SIGKILL)  # a save may be under way
        while death is not None:  # until the one that is dead is missed
            micro_step(engine, inputs, targets)
            engine.step()
        engine.wait_for_checkpoint()


def note(notes, engine):
    """What is saved at this step, for the life that goes on from it."""
    saved = facts(engine)
    if world.rank() == 0:
        with open(os.path.join(notes, f"saved-{engine.global_steps}"), "w") as file:
            json.dump(saved, file)


def run_life(ranks, **arguments):
    """What each rank noted: first what it found, then a line for every step."""
    ended = world.run_ranks(ranks, life, timeout_s=90, **arguments)
    assert max(rank.seconds for rank in ended) < LIFE_S, [rank.seconds for rank in ended]
    victim = arguments["death"]
    for rank in ended:
        if victim is None:
            assert rank.exit_code == 0, (rank.error, rank.log[-2000:])
        elif rank.rank == victim:
            assert rank.exit_code == -signal.SIGKILL, (rank.error, rank.log[-2000:])
        else:
            assert rank.exit_code == 1 and f"rank {victim}" in (rank.error or ""), (rank.error, rank.log[-2000:])
    notes = []
    for rank in range(ranks):
        with open(os.path.join(arguments["notes"], f"{arguments['number']}-{rank}")) as file:
            notes.append([json.loads(line) for line in file])
    return notes


def plan_lives(cycles, generator):
    """Numbers of ranks: fewer, then more, then whatever; no two alike in a row."""
    ranks = [4, 3, 1, 2]
    while len(ranks) < cycles:
        ranks.append(generator.choice([each for each in (1, 2, 3, 4) if each != ranks[-1]]))
    return [*ranks[:cycles], 4 if ranks[cycles - 1] != 4 else 3]


def newest_step(folder):
    steps = [0]
    for name in os.listdir(folder) if os.path.exists(folder) else ():
        with contextlib.suppress(ValueError):
            steps.append(int(name.removeprefix("global_step")))
    return max(steps)


@pytest.mark.row("K8")
def test_cycles_of_fewer_and_more_ranks(tmp_path, release):
    seed = random.SystemRandom().randrange(10**6) if release else 1
    print(f"seed {seed}")
    generator = random.Random(seed)
    folder, notes = str(tmp_path / "run"), tmp_path / "notes"
    notes.mkdir()
    history = {}  # step -> a line of every rank, of the life that got it into a checkpoint
    lives = plan_lives(20 if release else 3, generator)
    for number, ranks in enumerate(lives):
        start, final = newest_step(folder), number == len(lives) - 1
        last = start + generator.randrange(2 * EVERY + 1, 4 * EVERY)
        if final:
            last += -last % (SAMPLES // GLOBAL_BATCH)  # to the end of an epoch
        death = None if final or ranks == 1 else generator.randrange(-1, ranks)
        death = None if death == -1 else death
        arguments = {"folder": folder, "notes": str(notes), "number": number, "stage": (seed + number) % 4}
        lines = run_life(ranks, last=last, death=death, **arguments)
        check_start(lines, start, number, folder, notes)
        reached = newest_step(folder)
        # A save waits for the one before it: no more than one of them can be lost, with the steps since.
        assert last - 2 * EVERY <= reached <= last and (reached == last or death is not None)
        for line in itertools.chain(*(of_rank[1:] for of_rank in lines)):
            history.setdefault(line[0], {}).setdefault(number, []).append(line[1:])
        for step in range(start + 1, reached + 1):
            assert len(history[step][number]) == ranks
            history[step] = {number: history[step][number]}
        for step in [step for step in history if step > reached]:
            del history[step]  # as if it had never been
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
    check_history({step: next(iter(of_life.values())) for step, of_life in history.items()}, last)


def check_start(lines, start, number, folder, notes):
    """Every rank went on with what was saved, to the bit."""
    assert all(of_rank[0] == lines[0][0] for of_rank in lines)
    found = lines[0][0]
    assert found[0] == start
    if start == 0:
        return
    assert found == json.loads((notes / f"saved-{start}").read_text())
    saved = contents(os.path.join(folder, f"global_step{start}"))
    assert {kind for _, kind, _ in saved} >= {"weight", "exp_avg", "exp_avg_sq"}
    assert saved == contents(str(notes / f"loaded-{number}" / f"global_step{start}"))


def check_history(history, last):
    """Samples, learning rates and losses are those of a run on one rank that was never stopped."""
    assert sorted(history) == list(range(1, last + 1))
    epochs = {}
    for lines in history.values():
        assert len({(epoch, *rate) for epoch, rate, _, _ in lines}) == 1
        epochs.setdefault(lines[0][0], []).extend(itertools.chain(*(ids for _, _, ids, _ in lines)))
    assert all(sorted(ids) == list(range(SAMPLES)) for ids in epochs.values())
    assert sorted(epochs) == list(range(last * GLOBAL_BATCH // SAMPLES))
    expected = world.run(1, undisturbed, steps=last, timeout_s=300)[0]
    losses = []
    for step, (rate, ids, loss) in enumerate(expected, 1):
        lines = history[step]
        assert lines[0][1] == rate, step
        assert sorted(itertools.chain(*(each for _, _, each, _ in lines))) == sorted(ids), step
        parts = list(itertools.chain(*(each for _, _, _, each in lines)))
        losses.append(sum(parts) / len(parts))
        assert losses[-1] == pytest.approx(loss, rel=10 * TOLERANCE["fp32"]), step
    epoch = SAMPLES // GLOBAL_BATCH
    assert sum(losses[-epoch:]) < 0.9 * sum(losses[:epoch])


def undisturbed(steps):
    engine, loader = make_engine_for_ranks(1, 1, samples())
    lines, ids, losses = [], [], []
    while engine.global_steps < steps:
        for inputs, targets, index in loader:
            losses.append(micro_step(engine, inputs, targets))
            ids += index.tolist()
            before, rate = engine.global_steps, engine.get_lr()
            engine.step()
            if engine.global_steps > before:
                lines.append([rate, ids, sum(losses) / len(losses)])
                ids, losses = [], []
            if engine.global_steps == steps:
                break
    return lines


# -- training after a change of the number of ranks --------------------------------------------------------------------


def train_on_global_batches(engine, steps):
    """Mean losses of the global batches, each dealt out to ranks and micro-batches in order."""
    size, micro = world.size(), engine.train_micro_batch_size_per_gpu()
    losses = []
    for _ in range(steps):
        step, total = engine.global_steps, 0.0
        inputs, targets = models.vectors(step, 0, GLOBAL_BATCH, WIDTH)
        for x, y in zip(
            models.share(inputs, world.rank(), size).split(micro),
            models.share(targets, world.rank(), size).split(micro),
            strict=True,
        ):
            dtype = next(engine.parameters()).dtype
            loss = torch.nn.functional.mse_loss(engine(x.to(dtype)).float(), y)
            engine.backward(loss)
            engine.step()
            total += loss.item() * len(x) / GLOBAL_BATCH
        assert engine.global_steps == step + 1
        losses.append(total)
    return losses


def train_on(stage, source, out, steps, dtype):
    """This rank's parts of the losses of `steps` steps after what `source` holds, whose end is saved to `out`."""
    engine, _ = make_engine_for_ranks(stage, world.size(), dtype=dtype)
    if source is not None:
        assert engine.load_checkpoint(source)[0] is not None
    losses = train_on_global_batches(engine, steps)
    engine.save_checkpoint(out)
    engine.wait_for_checkpoint()
    return [losses, engine.parameter_digest()]


def run_on(ranks, folder, stage, source, steps, dtype="fp32"):
    results = world.run(ranks, train_on, stage=stage, source=source, out=folder, steps=steps, dtype=dtype)
    assert len({digest for _, digest in results}) == 1
    return [sum(parts) for parts in zip(*(losses for losses, _ in results), strict=True)], results[0][1]


def distance(found, expected):
    """The largest difference of two tensors, relative to the larger of an element and the tensor's mean size."""
    found, expected = (torch.frombuffer(bytearray(each), dtype=torch.float32).double() for each in (found, expected))
    return ((found - expected).abs() / torch.maximum(expected.abs(), expected.abs().mean() + 1e-30)).max().item()


@pytest.mark.row("W2")
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_training_after_a_change_of_ranks_stays_with_the_undisturbed_run(tmp_path, release, dtype):
    before, after = (10, 50) if release else (4, 8)
    last = f"global_step{before + after}"
    seed = random.SystemRandom().randrange(10**6) if release else 1
    print(f"seed {seed}")
    pairs = list(itertools.permutations((1, 2, 3, 4), 2)) if release else [(1, 4), (4, 3), (3, 2), (2, 1)]
    saved, whole = {}, {}
    for ranks in (1, 2, 3, 4):
        saved[ranks], whole[ranks] = str(tmp_path / f"saved{ranks}"), str(tmp_path / f"whole{ranks}")
    early = {n: run_on(n, saved[n], (seed + n) % 4, None, before, dtype)[0] for n in saved}
    undisturbed_losses, _ = run_on(1, whole[1], 0, None, before + after, dtype)
    expected = contents(os.path.join(whole[1], last))
    worst = {}
    for index, (writers, readers) in enumerate(pairs):
        out = str(tmp_path / f"{writers}to{readers}")
        losses, _ = run_on(readers, out, (seed + index) % 4, saved[writers], after, dtype)
        losses = early[writers] + losses
        far = max(abs(a / b - 1) for a, b in zip(losses, undisturbed_losses, strict=True))
        worst["loss"] = max(worst.get("loss", 0), far)
        assert far < TOLERANCE[dtype], (writers, readers, far)
        found = contents(os.path.join(out, last))
        assert found.keys() == expected.keys()
        for key in expected:
            far = distance(found[key], expected[key])
            worst[key[1]] = max(worst.get(key[1], 0), far)
            assert far < STATE_TOLERANCE[dtype], (writers, readers, key, far)
    print(f"furthest: {worst}")


@pytest.mark.row("W2")
@pytest.mark.parametrize("ranks", [3, 4])
def test_a_detour_to_other_ranks_and_stages_without_a_step_changes_no_bit(tmp_path, ranks):
    """The order of sums depends on the number of ranks alone: not on stages, and not on who held the state between."""
    saved, detour = str(tmp_path / "saved"), str(tmp_path / "detour")
    run_on(ranks, saved, 3, None, 3)
    losses, digest = run_on(ranks, str(tmp_path / "straight"), 3, saved, 4)
    run_on(2, detour, 1, saved, 0)
    assert run_on(ranks, str(tmp_path / "back"), 2, detour, 4) == (losses, digest)


# -- going back --------------------------------------------------------------------------------------------------------


def go_back(folder):
    engine, _ = make_engine_for_ranks(3, world.size())
    for _ in range(4):
        train_on_global_batches(engine, 2)
        engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    engine.load_checkpoint(folder, tag="global_step4")
    train_on_global_batches(engine, 1)
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    return [engine.global_steps, engine.parameter_digest()]


def go_on(folder, tag=None):
    engine, _ = make_engine_for_ranks(2, world.size())
    path, _ = engine.load_checkpoint(folder, tag=tag)
    return [engine.global_steps, engine.parameter_digest(), os.path.basename(path)]


def test_a_run_that_went_back_goes_on_from_there(tmp_path):
    folder = str(tmp_path)
    steps, digest = world.run(2, go_back, folder=folder)[0]
    for ranks in (2, 3):
        assert world.run(ranks, go_on, folder=folder) == [[steps, digest, "global_step5"]] * ranks
    assert (tmp_path / "latest").read_text() == "global_step5"
    for rank in world.run_ranks(2, go_on, folder=folder, tag="global_step8"):  # what was left behind is still there
        assert rank.value[::2] == [8, "global_step8"]
        assert ("'global_step5'" in rank.log and "is newer" in rank.log) == (rank.rank == 0), rank.log
