"""An unmodified script for Accelerate and its DeepSpeed plugin: the losses, norms and rates of plain PyTorch."""

import pytest
import torch
from built import TESTS, ZEROSHARD, needs
from deepspeed_scripts import run

pytestmark = needs(ZEROSHARD)
SCRIPT = TESTS / "scripts" / "accelerated.py"


def plain(seed, epochs=2):
    """Per epoch the losses of micro-batches, and norm and rate of steps, as the script tells them."""
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(seed)
    sizes = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 50, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.1, use_cache=False))
    data = torch.randint(0, 61, (32, 9), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    told = []
    for _ in range(epochs):
        losses, steps = [], []
        for index, ids in enumerate(data.split(4)):
            loss = model(input_ids=ids, labels=ids).loss
            losses.append(loss.item())
            (loss / 2).backward()
            if index % 2 == 1:
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                steps.append([norm, scheduler.get_last_lr()[0]])
        told.append([losses, steps])
    return told


def check_near(told, expected):
    for (losses, steps), (expected_losses, expected_steps) in zip(told, expected, strict=True):
        assert losses == pytest.approx(expected_losses, abs=1e-4)
        for (norm, rate), (expected_norm, expected_rate) in zip(steps, expected_steps, strict=True):
            assert norm == pytest.approx(expected_norm, abs=1e-3) and rate == pytest.approx(expected_rate)


# Ranks and stage.
WORLDS = [
    (2, 3),
    *(pytest.param(*other, marks=pytest.mark.matrix) for other in [(2, 0), (2, 1), (2, 2), (4, 2), (4, 3)]),
]


@pytest.mark.parametrize("ranks,stage", WORLDS)
def test_accumulates_clips_saves_and_loads_with_one_model_and_two(ranks, stage, tmp_path):
    """After load_state the same bits as going on, also in objects made anew."""
    cases = dict(run("--num_gpus", str(ranks), str(SCRIPT), str(stage), str(tmp_path), "continues", "two_models"))
    first, going_on, loaded, anew = cases["continues"]
    expected = plain(0)
    check_near([first, going_on], expected)
    assert loaded == going_on and anew == going_on
    assert first != going_on
    other = plain(1)
    check_near(cases["two_models"], [expected[0], other[0], expected[1], other[1]])
