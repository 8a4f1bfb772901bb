"""Adapters of `zeroshard train` against LoRA by hand on transformers' models, and PEFT where it is installed."""

import functools
import json
import math

import pytest
import safetensors.torch
import test_causal_lm
import torch
import transformers
from built import BUILD, ZEROSHARD_TORCH, needs
from test_causal_lm import CASES, ROWS, difference, make_batch, make_model, run_model
from train_program import (
    BATCH,
    LENGTH,
    OPTIMIZER,
    STEPS,
    make,
    metrics,
    perplexity,
    run,
    tokens,  # noqa: F401 - a fixture
    write,
)

pytestmark = needs(ZEROSHARD_TORCH, BUILD / "tests" / "run_model")
assert tokens  # a fixture

PREFIX = "base_model.model."
ADAMW = OPTIMIZER | {"lr": 1e-2}


class Adapters:
    """LoRA on a model, written down once more: y + scale * x A^T B^T."""

    def __init__(self, model, targets, r, scale):
        self.model, self.parameters = model, {}
        self.generator = torch.Generator().manual_seed(5)
        model.requires_grad_(False)
        for path, module in list(model.named_modules()):
            if any(f".{path}".endswith(f".{target}") for target in targets):
                self.add(path, module, r, scale)

    def add(self, path, module, r, scale):
        conv = isinstance(module, transformers.pytorch_utils.Conv1D)
        inputs, outputs = module.weight.shape if conv else reversed(module.weight.shape)
        a, b = (torch.nn.Parameter(self.random(shape)) for shape in ((r, inputs), (outputs, r)))
        self.parameters[f"{path}.lora_A.weight"], self.parameters[f"{path}.lora_B.weight"] = a, b
        module.register_forward_hook(lambda _module, args, y: y + scale * (args[0] @ a.T @ b.T))

    def random(self, shape):
        return torch.randn(shape, generator=self.generator) * 0.1

    def load(self, folder):
        stored = safetensors.torch.load_file(folder / "adapter_model.safetensors")
        assert set(stored) == {PREFIX + name for name in self.parameters}
        for name, parameter in self.parameters.items():
            parameter.data.copy_(stored[PREFIX + name])
        return self

    def save(self, folder, **config):
        folder.mkdir()
        tensors = {PREFIX + name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        safetensors.torch.save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"} | config))


# Values of PEFT's LoraConfig.
ADAPTED = {
    "llama": {"target_modules": ["q_proj", "v_proj"], "r": 8, "lora_alpha": 16},
    "llama, tied, biases": {"target_modules": ["q_proj", "up_proj", "1.mlp.down_proj"], "r": 3, "lora_alpha": 5},
    "gemma2": {"target_modules": ["o_proj", "k_proj"], "r": 4, "lora_alpha": 3, "use_rslora": True},
    "mixtral": {"target_modules": ["q_proj", "o_proj"], "r": 2, "lora_alpha": 2},
    "gpt2": {"target_modules": ["c_attn", "mlp.c_proj"], "r": 4, "lora_alpha": 6, "lora_dropout": 0.1},
}


def scale_of(config):
    r = config["r"]
    return config["lora_alpha"] / (math.sqrt(r) if config.get("use_rslora") else r)


def adapted_by_hand(model, config, folder):
    adapters = Adapters(model, config["target_modules"], config["r"], scale_of(config))
    adapters.save(folder, **config)
    return model, adapters.parameters


def adapted_by_peft(model, config, folder):
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **config)).eval()
    parameters = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn(parameter.shape) * 0.05)  # B is zero
            parameters[name.removeprefix(PREFIX).replace(".default.", ".")] = parameter
    model.save_pretrained(folder)
    return model, parameters


@pytest.mark.parametrize("adapted", [adapted_by_hand, adapted_by_peft])
@pytest.mark.parametrize("case", ADAPTED)
def test_logits_and_gradients_of_stored_adapters(case, adapted, tmp_path):
    model = make_model(*CASES[case])
    model.save_pretrained(tmp_path / "model")
    model, parameters = adapted(model, ADAPTED[case], tmp_path / "adapter")
    ids, documents, labels = make_batch(ROWS["whole"])
    logits = model(ids).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    ours, gradients = run_model(tmp_path / "model", ids, documents, labels, tmp_path / "adapter")
    assert ours is not None, gradients
    without, _ = run_model(tmp_path / "model", ids, documents, labels)
    assert difference(ours, logits.detach()) < 1e-4
    assert difference(ours, without) > 1e-2, "the adapter does nothing"
    assert set(gradients) == set(parameters)
    for name, parameter in parameters.items():
        assert difference(gradients[name], parameter.grad.flatten()) < 1e-4, name


def plain_losses(adapters, tokens):
    """What PyTorch's own loop over the adapters gives."""
    parameters = list(adapters.parameters.values())
    optimizer = torch.optim.AdamW(parameters, **ADAMW)
    losses = []
    adapters.model.train()
    for step in range(STEPS):
        begin = step * BATCH * LENGTH
        window = torch.tensor(tokens[begin : begin + BATCH * LENGTH + 1].astype("int64"))
        logits = adapters.model(window[:-1].view(BATCH, LENGTH)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), window[1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Runs:
    """Runs that adapt one model, each in a folder of its own."""

    def __init__(self, folder, tokens, kind, stage, ranks):
        self.folder, self.tokens, self.kind, self.stage, self.ranks = folder, tokens, kind, stage, ranks

    def __call__(self, name, lora, lr=ADAMW["lr"], **more):
        own = self.folder / name
        own.mkdir()
        model, train = make(own, self.tokens, self.kind, lora=lora, **more)  # the same model each time
        with torch.no_grad():  # adapters of a model as it is drawn can change little
            for parameter in model.parameters():
                parameter.mul_(3 if parameter.dim() > 1 else 1)
        model.save_pretrained(own / "model")
        optimizer = {"type": "AdamW", "params": ADAMW | {"lr": lr}}
        done = run(write(own, train, self.stage, optimizer=optimizer), self.ranks)
        assert done.returncode == 0, done.stderr
        return own, own / "trained"

    def base(self):
        model = next(self.folder.iterdir()) / "model"
        return transformers.AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")

    def losses(self, own):
        steps = metrics(own)
        return [steps[step + 1]["loss"] for step in range(STEPS)]

    def perplexity_told(self, own):
        return metrics(own)[max(metrics(own))]["perplexity"]

    def perplexity(self, model):
        return perplexity(model, self.tokens[LENGTH * BATCH * STEPS + 1 :])


@pytest.mark.parametrize(
    ("kind", "stage", "ranks", "lora"),
    [
        ("llama", 0, 1, {"r": 4, "alpha": 16, "target_modules": "all-linear", "use_rslora": True}),
        ("llama", 3, 2, {"r": 4, "alpha": 32, "target_modules": ["q_proj", "v_proj", "up_proj", "lm_head"]}),
        ("gpt2", 3, 2, {"r": 8, "alpha": 64, "target_modules": ["c_attn", "c_proj", "c_fc"]}),
        ("mixtral", 0, 2, {"r": 4, "alpha": 32, "target_modules": ["q_proj", "o_proj"]}),
    ],
)
def test_runs_follow_a_plain_loop(tmp_path, tokens, kind, stage, ranks, lora):
    runs = Runs(tmp_path, tokens, kind, stage, ranks)
    _, initial = runs("initial", lora, lr=0, steps=1)
    config = json.loads((initial / "adapter_config.json").read_text())
    targets, scale = config["target_modules"], scale_of(config)
    adapters = Adapters(runs.base(), targets, lora["r"], scale).load(initial)
    assert all(parameter.eq(0).all() for name, parameter in adapters.parameters.items() if ".lora_B." in name)
    expected = plain_losses(adapters, tokens)
    assert expected[-1] < expected[0] - 0.1, "nothing was learned"

    own, trained = runs("own", lora)
    assert runs.losses(own) == pytest.approx(expected, abs=2e-4)
    assert {path.name for path in trained.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    assert not (trained / "config.json").exists() and not (trained / "model.safetensors").exists()
    assert config["base_model_name_or_path"].endswith("/model")
    adapters.load(trained)
    told = runs.perplexity_told(own)
    assert runs.perplexity(adapters.model) == pytest.approx(told, rel=1e-5)

    # It goes on from there; with an optimizer that begins anew.
    again, _ = runs("again", {"adapter": str(trained)})
    assert runs.losses(again) == pytest.approx(plain_losses(adapters, tokens), abs=2e-4)

    _, merged = runs("merged", {"adapter": str(trained), "merge": True}, lr=0, steps=1)
    assert not list(merged.glob("adapter*"))
    whole = transformers.AutoModelForCausalLM.from_pretrained(merged, attn_implementation="eager")
    assert not any("lora" in name for name in safetensors.torch.load_file(merged / "model.safetensors"))
    assert runs.perplexity(whole) == pytest.approx(told, rel=1e-4)
    assert abs(runs.perplexity(runs.base()) - told) > 0.01 * told


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_peft_loads_the_result(tmp_path, tokens, kind, dtype):
    peft = pytest.importorskip("peft")
    runs = Runs(tmp_path, tokens, kind, stage=3, ranks=2)
    own, trained = runs(
        "own", {"r": 4, "alpha": 16, "dropout": 0.05, "target_modules": "all-linear"}, export_dtype=dtype
    )
    stored = safetensors.torch.load_file(trained / "adapter_model.safetensors")
    assert {str(tensor.dtype) for tensor in stored.values()} == {
        {"F32": "torch.float32", "BF16": "torch.bfloat16"}[dtype]
    }
    model = peft.PeftModel.from_pretrained(runs.base(), trained)
    loaded = {name.removeprefix(PREFIX): name for name, _ in model.named_parameters() if ".lora_" in name}
    assert len(loaded) == len(stored)
    assert model.peft_config["default"].lora_dropout == 0.05
    tolerance = 1e-5 if dtype == "F32" else 1e-2
    assert runs.perplexity(model) == pytest.approx(runs.perplexity_told(own), rel=tolerance)


# -- files that are wrong ----------------------------------------------------------------------------------------------

A, B = (f"{PREFIX}model.layers.1.self_attn.q_proj.lora_{name}.weight" for name in "AB")


FILE = "adapter_model.safetensors"
change_tensors = functools.partial(test_causal_lm.change_tensors, file=FILE)
change_config = functools.partial(test_causal_lm.change_config, "adapter_config.json")
cut = functools.partial(test_causal_lm.cut, file=FILE)
WRONG = {
    "missing": (change_tensors(lambda stored: stored.pop(B)), [B, "in no file"]),
    "too many": (
        change_tensors(lambda stored: stored.update(extra=torch.ones(3))),
        ["'extra'", "adapter_model", "no adapter"],
    ),
    "rank of one": (change_tensors(lambda stored: stored.update({A: torch.ones(4, 48)})), [A, "[4, 48]", "[8, 48]"]),
    "whole numbers": (
        change_tensors(lambda stored: stored.update({A: torch.ones(8, 48, dtype=torch.int32)})),
        [A, "I32"],
    ),
    "rank": (change_config(r=4), ["adapter_model.safetensors", "has shape", "[4, 48]", "r in adapter_config.json"]),
    "more modules": (change_config(target_modules=["q_proj", "v_proj", "o_proj"]), ["o_proj.lora_A", "in no file"]),
    "fewer modules": (change_config(target_modules=["q_proj"]), ["v_proj.lora_A", "belongs to no adapter"]),
    "other modules": (change_config(target_modules=["c_attn"]), ["target_modules", "'c_attn'", "q_proj"]),
    "dora": (change_config(use_dora=True), ["adapter_config.json", "use_dora", "true"]),
    "bias": (change_config(bias="lora_only"), ["adapter_config.json", "bias", "lora_only"]),
    "whole modules": (change_config(modules_to_save=["lm_head"]), ["modules_to_save", "lm_head"]),
    "cut": (cut, ["adapter_model.safetensors"]),
    "no weights": (
        lambda folder: (folder / "adapter_model.safetensors").unlink(),
        ["neither adapter_model.safetensors"],
    ),
    "no config": (lambda folder: (folder / "adapter_config.json").unlink(), ["adapter_config.json"]),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_adapters_are_refused(what, tmp_path):
    change, expected_parts = WRONG[what]
    model = make_model(*CASES["llama"])
    model.save_pretrained(tmp_path / "model")
    adapted_by_hand(model, ADAPTED["llama"], tmp_path / "adapter")
    change(tmp_path / "adapter")
    logits, error = run_model(tmp_path / "model", *make_batch(ROWS["whole"]), tmp_path / "adapter")
    assert logits is None and all(part in error for part in expected_parts), error
    assert len(error.splitlines()) == 1, error
