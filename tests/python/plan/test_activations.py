"""The bytes of activations that `zeroshard plan` tells are those that autograd keeps for transformers' models."""

import copy
import itertools
import json
import subprocess

import pytest
import torch
import zeroshard
from built import ZEROSHARD, needs

transformers = pytest.importorskip("transformers")
pytestmark = needs(ZEROSHARD)

_SIZES = {
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
_MODELS = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "gemma2": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 3},
    "gpt2": {"n_embd": 64, "n_inner": 176, "n_layer": 3, "n_head": 4, "attn_pdrop": 0.0},
}


def _plan(model, *options, ranks=1):
    command = [ZEROSHARD, "plan", "--model", model, "--world-size", ranks, *options]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)


def _kept(config, dtype, batch, length, checkpointing, tiles=None):
    """Bytes of all storages that autograd saves in one forward pass, without parameters and buffers."""
    attention = "eager" if config.model_type == "gemma2" else "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention).train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if tiles:
        zeroshard.tile(model, loss=None, mlp=tiles)
    return forward_and_kept(model, zeros(batch, length))[1]


def zeros(rows, length):
    ids = torch.zeros(rows, length, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def forward_and_kept(model, batch):
    """The output, and the bytes of all storages that autograd saved for it, without parameters and buffers."""
    own = {t.untyped_storage().data_ptr() for t in itertools.chain(model.parameters(), model.buffers())}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(**batch, use_cache=False)
    return output, sum(storage.nbytes() for storage in saved.values())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", _MODELS)
def test_planned_activations_are_what_autograd_keeps(kind, checkpointing, dtype, tmp_path):
    sizes = {"vocab_size": 500, **_MODELS[kind]} if kind == "gpt2" else {**_SIZES, **_MODELS[kind]}
    config = transformers.AutoConfig.for_model(kind, **sizes)
    config.save_pretrained(tmp_path)
    batch, length = 2, 48
    result = _plan(
        tmp_path,
        "--dtype",
        dtype,
        "--batch",
        batch,
        "--sequence-length",
        length,
        *["--checkpoint-activations"] * checkpointing,
        "--json",
    )
    planned = json.loads(result.stdout)["activations"]
    # The loss keeps the fp32 logarithms of probabilities; its gradients are not there yet.
    logits = 4 * 500 + (500 * (2 if dtype == "bf16" else 4) if kind == "gemma2" else 0)
    kept = planned["layers_bytes"] + planned["ends_bytes"] + logits * batch * length
    found = _kept(config, {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype], batch, length, checkpointing)
    # Where layers keep their inputs alone, a few small tensors of the ends are counted that are not there.
    assert kept == pytest.approx(found, rel=0.05 if checkpointing else 0.01)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2", "gpt2"])
def test_planned_activations_of_tiles_are_what_autograd_keeps(kind, dtype, tmp_path):
    sizes = {"vocab_size": 500, **_MODELS[kind]} if kind == "gpt2" else {**_SIZES, **_MODELS[kind]}
    config = transformers.AutoConfig.for_model(kind, **sizes)
    config.save_pretrained(tmp_path)
    batch, length = 2, 130  # three tiles of an MLP at a hidden size of 64
    result = _plan(tmp_path, "--dtype", dtype, "--batch", batch, "--sequence-length", length, "--tile", "--json")
    planned = json.loads(result.stdout)["activations"]
    assert planned["tiled"]
    logits = 4 * 500 + (500 * (2 if dtype == "bf16" else 4) if kind == "gemma2" else 0)
    kept = planned["layers_bytes"] + planned["ends_bytes"] + logits * batch * length
    found = _kept(config, {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype], batch, length, False, tiles=3)
    assert kept == pytest.approx(found, rel=0.01)


def peak_of(model, trace, batch):
    """The most bytes that a step allocates and has not yet freed; gradients of parameters are freed at once."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))

    def step():
        model(**batch, use_cache=False).loss.backward()

    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    profile.export_chrome_trace(str(trace))
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    sizes = [event["args"]["Bytes"] for event in sorted(events, key=lambda event: event["ts"])]
    return max(itertools.accumulate(sizes))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_planned_total_is_the_peak_of_a_step(checkpointing, tmp_path):
    config = transformers.AutoConfig.for_model(
        "llama", **{**_SIZES, "vocab_size": 2000, "hidden_size": 256, "intermediate_size": 688, "head_dim": 64}
    )
    config.save_pretrained(tmp_path)
    batch, length = 2, 128
    options = ["--dtype", "fp32", "--batch", batch, "--sequence-length", length, "--json"]
    result = _plan(tmp_path, *options, *["--checkpoint-activations"] * checkpointing)
    planned = json.loads(result.stdout)["activations"]["total_bytes"]
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    peak = peak_of(model, tmp_path / "trace.json", zeros(batch, length))
    assert planned == pytest.approx(peak, rel=0.05)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_planned_total_of_tiles_is_the_peak_of_a_step(checkpointing, tmp_path):
    sizes = {"vocab_size": 20000, "hidden_size": 64, "intermediate_size": 3000, "head_dim": 16}
    config = transformers.AutoConfig.for_model("llama", **{**_SIZES, **sizes})
    config.save_pretrained(tmp_path)
    length = 2048  # 2 tiles of the loss, 32 of an MLP
    options = ["--dtype", "fp32", "--sequence-length", length, "--tile", "--json"]
    result = _plan(tmp_path, *options, *["--checkpoint-activations"] * checkpointing)
    planned = json.loads(result.stdout)["activations"]["total_bytes"]
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    zeroshard.tile(model)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    peak = peak_of(model, tmp_path / "trace.json", zeros(1, length))
    assert planned == pytest.approx(peak, rel=0.1)


def test_a_loss_in_8_tiles_takes_a_fifth_of_the_memory(tmp_path):
    """4 k tokens over 32 k words; a narrow model, so that its loss is nearly all of its step."""
    sizes = {"vocab_size": 32768, "hidden_size": 16, "head_dim": 4, "intermediate_size": 16, "num_hidden_layers": 1}
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**{**_SIZES, **sizes})).train()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 32768, (1, 4096), generator=generator)
    batch, gradients, peaks = {"input_ids": ids, "labels": ids}, [], []
    for tiles in (None, 8):
        zeroshard.tile(model, loss=tiles, mlp=None)
        model(**batch, use_cache=False).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        model.zero_grad()
        peaks.append(peak_of(copy.deepcopy(model), tmp_path / "trace.json", batch))
    for whole, tiled in zip(*gradients, strict=True):
        torch.testing.assert_close(tiled, whole, rtol=0, atol=1e-6)
    assert peaks[1] <= 0.2 * peaks[0], peaks


@pytest.fixture
def model(tmp_path):
    transformers.AutoConfig.for_model("llama", **_SIZES).save_pretrained(tmp_path)
    return tmp_path


def test_the_answer_whether_it_fits_counts_activations(model):
    def fits(*options):
        return json.loads(_plan(model, "--stage", 3, "--device-memory", "20MB", *options, "--json").stdout)["fit"][
            "fits"
        ]

    assert fits() and fits("--sequence-length", 64) and not fits("--sequence-length", 4096)
    assert not fits("--sequence-length", 64, "--batch", 64)
    assert "with activations" in _plan(model, "--sequence-length", 64).stdout


def test_the_longest_sequence_that_fits_is_told(model):
    def longest(*options):
        result = _plan(model, "--stage", 3, "--device-memory", "20MB", "--sequence-length", 64, *options, "--json")
        return json.loads(result.stdout)["limits"]["longest_sequence"]

    whole, tiled = longest(), longest("--tile")
    assert 64 < whole < tiled
    for length, fits in ((whole, True), (whole + 1, False)):
        result = _plan(model, "--stage", 3, "--device-memory", "20MB", "--sequence-length", length)
        assert ("does not fit" not in result.stdout) == fits
        assert f"the longest sequence that fits has {whole} tokens" in result.stdout


def test_no_sequence_fits_that_ranks_share(model):
    options = "--stage", 3, "--sequence-length", 64, "--sequence-parallel", 2, "--device-memory", "1KB", "--json"
    result = _plan(model, *options, ranks=2)
    assert json.loads(result.stdout)["limits"]["longest_sequence"] == 0, result.stderr


def test_the_micro_batch_of_the_config_counts(model):
    config = model / "zeroshard.json"
    config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 6, "bf16": {"enabled": True}}))

    def batch(*options):
        result = _plan(model, "--config", config, "--sequence-length", 32, *options, "--json")
        return json.loads(result.stdout)["activations"]["batch"]

    assert batch() == 6
    assert batch("--batch", 2) == 2


@pytest.mark.parametrize(
    "options, text",
    [
        (["--batch", 2], "give --sequence-length, too"),
        (["--tile"], "give --sequence-length, too"),
        (["--checkpoint-activations"], "give --sequence-length, too"),
        (["--sequence-length", 0], "--sequence-length"),
        (["--sequence-length", 8, "--batch", -1], "--batch"),
    ],
)
def test_options_that_make_no_sense_are_refused(model, options, text):
    result = _plan(model, *options)
    assert result.returncode != 0
    assert text in result.stderr


def test_a_count_of_parameters_has_no_activations():
    command = [ZEROSHARD, "plan", "--params", "7B", "--world-size", "8", "--sequence-length", "8"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode != 0
    assert "needs --model" in result.stderr
