"""print(param) of a sharded parameter."""

import models
import pytest
import torch
import world
import zeroshard


def show_parameters(stage):
    model = models.tiny_llama()
    config = models.configuration(stage, "bf16", threshold=30, optimizer=models.adamw())
    engine, *_ = zeroshard.initialize(model=model, config=config)
    name = "model.layers.0.mlp.up_proj.weight"
    param = model.get_parameter(name)
    shown = [repr(param), f"{param}", repr({"weight": param})]
    with zeroshard.gathered([param]):
        shown.append(repr(param))
    shown.append(repr(torch.nn.Parameter(torch.ones(2))))
    error = ""
    if stage == 3:
        with pytest.raises(RuntimeError) as caught:
            param.sum()
        error = str(caught.value)
    engine.destroy()
    return shown, repr(param), error


def test_a_sharded_parameter_is_described_and_its_values_are_not_used():
    for shown, after, error in world.run(2, show_parameters, stage=3):
        text = (
            "Parameter 'model.layers.0.mlp.up_proj.weight' [50, 24] bfloat16 on cpu, sharded over 2 rank(s): inside "
            "zeroshard.gathered(param) it has its values"
        )
        assert shown[:3] == [text, text, "{'weight': " + text + "}"]
        assert shown[3].startswith("Parameter containing:\ntensor([[")
        assert shown[4] == "Parameter containing:\ntensor([1., 1.], requires_grad=True)"
        assert after.startswith("Parameter containing:\ntensor([[")
        assert "is sharded" in error


def test_whole_parameters_are_shown_as_torch_shows_them():
    for shown, after, _ in world.run(1, show_parameters, stage=2):
        assert {text.startswith("Parameter containing:") for text in (*shown[:2], *shown[3:], after)} == {True}
