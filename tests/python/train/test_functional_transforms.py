"""torch.func through an engine: gathers compute with plain tensors, whatever transforms the function around them."""

import contextlib

import models
import pytest
import torch
import world
import zeroshard
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap


def jvp_of_input(model, call, x):
    value, tangent = jvp(call, (x,), (x.cos(),))
    return value.pow(2).mean() + tangent.pow(2).mean()


def hessian_of_input(model, call, x):
    return hessian(lambda one: call(one[None]).sum())(x[0])


def jacobian_of_input(model, call, x):
    return jacrev(call)(x)


def forward_jacobian_of_input(model, call, x):
    return jacfwd(call)(x)


def gradients_of_samples(model, call, x):
    values = {name: param.detach() for name, param in model.named_parameters()}

    def loss(values, one):
        return functional_call(model, values, (one[None],)).pow(2).mean()

    return torch.cat([each.flatten(1) for each in vmap(grad(loss), (None, 0))(values, x).values()], 1)


def samples_one_by_one(model, call, x):
    return vmap(lambda one: call(one[None])[0])(x)


def jacobian_of_parameters(model, call, x):
    params = dict(model.named_parameters())
    found = jacrev(lambda values: functional_call(model, values, (x,)).mean(0))(params)
    return torch.cat([each.flatten(1) for each in found.values()], 1)


CASES = {
    case.__name__: case
    for case in (
        jvp_of_input,
        hessian_of_input,
        jacobian_of_input,
        forward_jacobian_of_input,
        gradients_of_samples,
        samples_one_by_one,
        jacobian_of_parameters,
    )
}


def through_engines(what, dtype):
    """At stage 3 as at stage 0, and a step afterwards that has the same gradients."""
    digests, results = [], []
    for stage in (0, 3):
        torch.manual_seed(0)
        model = models.Stack()
        engine = zeroshard.initialize(model=model, config=models.configuration(stage, dtype, optimizer=models.adamw()))[
            0
        ]
        x = torch.randn(2, 10, generator=torch.Generator().manual_seed(world.rank())).to(next(model.parameters()).dtype)
        results.append(CASES[what](model, engine, x).detach().clone())
        engine.zero_grad()
        engine.backward(engine(x).float().pow(2).mean())
        engine.step()
        digests.append(engine.parameter_digest())
    assert torch.equal(*results)
    assert digests[0] == digests[1]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("ranks", "dtype"), [(1, "fp32"), (3, "fp32"), (3, "bf16")])
def test_transforms_give_the_same_at_stage_3(ranks, dtype, case):
    world.run(ranks, through_engines, what=case, dtype=dtype)


def train_tangents(gathers):
    digests = []
    for stage in (0, 3):
        torch.manual_seed(0)
        model = models.Stack()
        engine = zeroshard.initialize(model=model, config=models.configuration(stage, optimizer=models.adamw()))[0]
        x = torch.randn(2, 10, generator=torch.Generator().manual_seed(world.rank()))
        with zeroshard.gathered(model.parameters()) if gathers else contextlib.nullcontext():
            try:
                engine.backward(jvp_of_input(model, engine, x))
            except zeroshard.StateError as error:
                return str(error)
        engine.step()
        digests.append(engine.parameter_digest())
    assert digests[0] == digests[1]
    return None


def test_a_backward_of_a_tangent_names_the_parameter_and_the_way_out():
    for said in world.run(3, train_tangents, gathers=False):
        assert "'head.weight'" in said and "zeroshard.gathered" in said


def test_a_backward_of_a_tangent_inside_a_gather():
    world.run(3, train_tangents, gathers=True)
