"""What ranks that share rows send to each other for it, counted at the process group."""

import pytest
import sequences
import world
import zeroshard

ROWS, WORDS = 4, sequences.LENGTH
LAYERS, HIDDEN, HEADS = 2, 24, 4
FP32, INT64, FP64 = 4, 8, 8


def traffic(family, kind, size):
    """The collectives of a forward, and those of its backward without the reduction of gradients."""
    config = sequences.configuration(0, size, 1, zeroshard={"transport": "process_group"}, train_batch_size=ROWS)
    if size == 1:
        config["train_batch_size"] *= world.size()
    engine, *_ = zeroshard.initialize(model=sequences.FAMILIES[family](), config=config)
    batch = sequences.rows(kind, 0, ROWS)
    if size > 1:
        (batch, *_) = zeroshard.sequence_parallel(engine, [batch])
    found = []
    forward = sequences.collectives(lambda: found.append(engine(**batch).loss))
    with engine.no_sync():
        backward = sequences.collectives(lambda: engine.backward(found[0]))
    return forward, backward


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family,kv_heads", [("llama", 2), ("one key-value head", 1)])
@pytest.mark.parametrize("kind", ["plain", "padded"])
def test_a_layer_sends_what_the_formula_says_and_nothing_else_is_sent(size, family, kv_heads, kind):
    ((without, expected_backward), *_) = world.run(size, traffic, family=family, kind=kind, size=1)
    assert without == {}
    # A rank gives the piece that it keeps, too: S / (S - 1) of what it sends.
    width = HIDDEN + HIDDEN * max(kv_heads, size) // HEADS
    of_layer = 2 * width * WORDS // size * ROWS * FP32
    gathered = [ROWS * WORDS // size * INT64] * (2 if kind == "padded" else 1)  # positions and padding
    gathered += [2 * FP64, 8 * INT64]  # the loss and its words; shapes that are compared
    for forward, backward in world.run(size, traffic, family=family, kind=kind, size=size):
        assert forward.keys() == {"gloo:all_to_all", "gloo:all_gather"}
        assert forward["gloo:all_gather"] == sorted(gathered)
        heads = forward["gloo:all_to_all"]
        assert (len(heads), sum(heads)) == (2 * LAYERS, LAYERS * of_layer)
        assert backward.pop("gloo:all_to_all") == heads
        assert backward == expected_backward
