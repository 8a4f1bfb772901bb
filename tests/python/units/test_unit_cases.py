"""Units are found as in C++: the cases of tests/cases/units.json."""

import json

import pytest
import torch
import zeroshard
from built import REPOSITORY
from torch import nn

CASES = json.loads((REPOSITORY / "tests" / "cases/units.json").read_text())["cases"]


class Maker:
    """Makes the modules of one case."""

    def __init__(self):
        self.memory, self.whole = {}, {}

    def make(self, kind, params, children=()):
        made = {name: self.make(*child) for name, child in dict(children).items()}
        if kind == "ModuleList":
            return nn.ModuleList(made.values())
        if kind == "Sequential":
            return nn.Sequential(*made.values())
        module = type(kind, (nn.Module,), {"forward": lambda self, x: x})()
        for name, spec in params.items():
            module.register_parameter(name, self.parameter(spec))
        for name, child in made.items():
            module.add_module(name, child)
        return module

    def parameter(self, spec):
        if isinstance(spec, str):
            if spec not in self.whole:
                self.whole[spec] = nn.Parameter(self.elements(spec).view(2, 3))
            return self.whole[spec]
        name, first, sizes, strides = spec
        return nn.Parameter(self.elements(name).as_strided(sizes, strides, first))

    def elements(self, name):
        return self.memory.setdefault(name, torch.zeros(6))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_units_are_those_of_the_table(case):
    model = Maker().make(*case["model"])
    if "error" in case:
        with pytest.raises(ValueError, match=case["error"]):
            zeroshard.find_units(model, case.get("unit_classes", ()))
        return
    units = zeroshard.find_units(model, case.get("unit_classes", ()))
    expected = case["units"]["python"] if isinstance(case["units"], dict) else case["units"]
    found = [
        [unit.name, units[unit.parent].name if unit.parent >= 0 else None, ["=".join(p.names) for p in unit.params]]
        for unit in units
    ]
    assert found == expected
