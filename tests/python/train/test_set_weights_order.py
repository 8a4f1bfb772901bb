"""What a rank sets after its forward must not reach the forward of a rank that is slower."""

import pathlib
import time

import pytest
import torch
import world
import zeroshard


def slow_forward(directory, local):
    """Rank 1 stands in its second layer, with the gather of the third under way, until rank 0 sets the third's."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(40, 40) for _ in range(3)))
    expected = torch.nn.Sequential(*(torch.nn.Linear(40, 40) for _ in range(3)))
    expected.load_state_dict(model.state_dict())
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "SGD", "params": {"lr": 0.0}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    engine = zeroshard.initialize(model=model, config=config)[0]
    rows = torch.ones(1, 40)
    for _ in range(2):  # the order of the units is known then, and they are gathered ahead
        engine.backward(engine(rows).sum())
        engine.step()
    begun = pathlib.Path(directory) / "begun"
    if world.rank() == 1:

        def wait(*_):
            end = time.monotonic() + 30
            while not begun.exists():
                assert time.monotonic() < end, "rank 0 has not ended its forward"
                time.sleep(0.001)
            time.sleep(0.2)  # for a rank that does not wait; one that does is let go by the forward

        model[1].register_forward_hook(wait)
    output = engine(rows)
    if world.rank() == 0:
        begun.touch()
    value = torch.full((40, 40), 7.0)
    if local:
        mine = zeroshard.get_master_weight(model[2].weight, local=True)
        zeroshard.set_master_weight(model[2].weight, torch.full_like(mine, 7.0), local=True)
    else:
        zeroshard.set_master_weight(model[2].weight, value)
    torch.testing.assert_close(output, expected(rows))
    engine.backward(output.sum())
    engine.step()
    assert torch.equal(zeroshard.get_master_weight(model[2].weight), value)


@pytest.mark.parametrize("local", [False, True])
def test_a_forward_under_way_has_the_weights_that_it_began_with(tmp_path, local):
    world.run(2, slow_forward, directory=str(tmp_path), local=local)
