"""Ranks that share rows train as one rank with whole rows does, at every stage and over every transport."""

import functools

import models
import pytest
import sequences
import world

STEPS = 8  # by then every border and every length of padding has come
# Padding behind a row changes nothing under a causal mask, so most families have theirs in front.
MODELS_AND_ROWS = [
    *(("llama", kind) for kind in sequences.KINDS),
    *(
        (family, kind)
        for family in ("qwen2", "qwen3", "gemma2", "gpt2", "mixtral", "phi", "gpt-neox")
        for kind in ("packed", "padded in front")
    ),
    ("one key-value head", "packed"),
    ("gemma2", "plain"),
    ("gemma3", "packed"),
    ("mistral", "plain"),
    ("gpt2", "padded"),
    ("phi", "plain"),
    ("phi3 with longrope", "plain"),
    ("phi3 with longrope", "packed"),
    ("mixtral", "padded"),
]


def mean_by_step(per_rank):
    return [sum(losses) / len(losses) for losses in zip(*per_rank, strict=True)]


def trained(cases):
    return [sequences.train(**case) for case in cases]


@functools.cache
def losses_alone(groups):
    """Losses of one rank with a number of parts of a batch, by family and kind of rows."""
    cases = [{"family": family, "kind": kind, "steps": STEPS, "groups": groups} for family, kind in MODELS_AND_ROWS]
    (results,) = world.run(1, trained, cases=cases, timeout_s=200)
    means = {}
    for case, (losses, _) in zip(cases, results, strict=True):
        steps = [losses[i : i + groups] for i in range(0, len(losses), groups)]
        means[case["family"], case["kind"]] = [sum(step) / groups for step in steps]
    return means


@pytest.mark.parametrize("ranks,size", [(2, 2), (4, 4), (4, 2)])
def test_losses_are_those_of_whole_rows(ranks, size):
    groups = ranks // size
    cases = [
        {"family": family, "kind": kind, "steps": STEPS, "size": size, "groups": groups}
        for family, kind in MODELS_AND_ROWS
    ]
    per_rank = world.run(ranks, trained, cases=cases, timeout_s=200)
    for case, results in zip(cases, zip(*per_rank, strict=True), strict=True):
        losses = mean_by_step([losses for losses, _ in results])
        expected = losses_alone(groups)[case["family"], case["kind"]]
        assert losses == pytest.approx(expected, rel=1e-6, abs=0), case
        assert len({digest for _, digest in results}) == 1


@pytest.mark.parametrize("ranks,size", [(2, 2), (4, 4), (4, 2)])
def test_one_digest_at_every_stage_over_every_transport_and_in_replicas(ranks, size):
    case = {"family": "llama", "kind": "packed", "steps": 4, "size": size, "groups": ranks // size}
    changes = [{"stage": stage, "shard": shard} for stage in range(4) for shard in (None, ranks // 2)]
    changes += [{"stage": stage, "transport": "process_group"} for stage in (1, 3)]
    changes += [{"stage": 3, "transport": "process_group", "shard": ranks // 2}]
    for results in world.run(ranks, trained, cases=[case | each for each in changes], timeout_s=120):
        assert len({digest for _, digest in results}) == 1


@pytest.mark.idle_ranks("a replica has 3 ranks, and what it is compared with 6")
def test_groups_that_share_rows_of_two_replicas():
    """3 ranks hold a replica, so the second of three groups has ranks of both."""
    case = {"family": "llama", "kind": "packed", "steps": 4, "size": 2, "groups": 3, "rows_a_step": 6}
    case |= {"train_batch_size": 6}
    changes = [{}, *({"stage": stage, "shard": 3} for stage in range(4))]
    for (whole, _), *others in world.run(6, trained, cases=[case | each for each in changes], timeout_s=120):
        assert len({digest for _, digest in others}) == 1
        for losses, _ in others:
            assert losses == pytest.approx(whole, rel=1e-6, abs=0)


def test_accumulation_a_schedule_and_clipping():
    """The norm that is clipped is that of the mean over whole rows."""
    case = {"family": "qwen2", "kind": "padded", "steps": 8, "accumulation": 2, "train_batch_size": 8}
    case |= {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 3}}}
    case |= {"gradient_clipping": 0.3, "optimizer": models.sgd(0.1)}
    (((expected, _),),) = world.run(1, trained, cases=[case])
    (((without, _),),) = world.run(1, trained, cases=[case | {"gradient_clipping": 0}])
    assert without != expected
    for stage in (0, 3):
        for ((losses, _),) in world.run(2, trained, cases=[case | {"size": 2, "stage": stage}]):
            assert losses == pytest.approx(expected, rel=1e-6, abs=0)


@pytest.mark.parametrize("length", [17, 18, 19])
def test_rows_that_the_size_does_not_divide(length):
    case = {"family": "gemma2", "kind": "packed", "steps": 3, "length": length}
    (((expected, _),),) = world.run(1, trained, cases=[case])
    for ((losses, _),) in world.run(4, trained, cases=[case | {"size": 4}]):
        assert losses == pytest.approx(expected, rel=1e-6, abs=0)


@pytest.mark.idle_ranks("adapters are small")
@pytest.mark.parametrize("wrap", ["checkpointed", "recomputed", "lora", "compiled", "compiled whole"])
def test_models_that_are_wrapped(wrap):
    case = {"family": "one key-value head", "kind": "packed", "steps": 4, "stage": 3, "wrap": wrap}
    (((expected, _),),) = world.run(1, trained, cases=[case])
    for ((losses, _),) in world.run(2, trained, cases=[case | {"size": 2}]):
        assert losses == pytest.approx(expected, rel=1e-6, abs=0)


def test_a_checkpoint_is_continued_with_another_size(tmp_path):
    """By 1, 2 and 4 ranks a row, and each time another number of ranks and another stage."""
    case = {"family": "llama", "kind": "packed", "steps": 2, "groups": 1}
    (((expected, _),),) = world.run(1, trained, cases=[case | {"steps": 8}])
    first, second, third = (str(tmp_path / name) for name in "abc")
    losses = []
    for ranks, changes in [
        (2, {"size": 2, "stage": 3, "save": first}),
        (4, {"size": 4, "stage": 2, "load": first, "save": second}),
        (1, {"size": 1, "stage": 0, "load": second, "save": third}),
        (4, {"size": 2, "stage": 3, "groups": 2, "load": third, "shard": 2}),
    ]:
        per_rank = world.run(ranks, trained, cases=[case | changes])
        losses += mean_by_step([losses for ((losses, _),) in per_rank])
    assert losses == pytest.approx(expected, rel=1e-6, abs=0)


@pytest.mark.parametrize("ranks,size", [(2, 2), (4, 2)])
def test_bf16(ranks, size):
    case = {"family": "one key-value head", "kind": "padded", "steps": 5, "groups": ranks // size}
    case["bf16"] = {"enabled": True}
    ((((expected, _)),),) = world.run(1, trained, cases=[case])
    groups = ranks // size
    expected = [sum(expected[i : i + groups]) / groups for i in range(0, len(expected), groups)]
    cases = [case | {"size": size, "stage": stage} for stage in (0, 3)]
    per_rank = world.run(ranks, trained, cases=cases)
    for results in zip(*per_rank, strict=True):
        assert mean_by_step([losses for losses, _ in results]) == pytest.approx(expected, abs=0.03)
    assert per_rank[0][0][1] == per_rank[0][1][1]
