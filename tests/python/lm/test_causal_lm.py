"""The C++ models against transformers, with the same weights: logits, and the gradient of every parameter."""

import json
import os
import shutil
import subprocess

import numpy
import pytest
import safetensors.torch
import torch
import transformers
from built import BUILD, needs

PROGRAM = BUILD / "tests" / "run_model"
pytestmark = needs(PROGRAM)

LENGTH = 24
COMMON = {"vocab_size": 97, "max_position_embeddings": 64}
SMALL = COMMON | {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4}
GROUPED = SMALL | {"num_key_value_heads": 2}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES = {
    "llama": ("llama", GROUPED),
    "llama, tied, biases": ("llama", SMALL | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama, linear": (
        "llama",
        SMALL | {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
    ),
    "llama 3": ("llama", GROUPED | {"rope_parameters": LLAMA3, "head_dim": 16}),
    "mistral": ("mistral", GROUPED | {"sliding_window": 7}),
    "qwen2": ("qwen2", GROUPED | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("qwen3", GROUPED | {"head_dim": 20, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", GROUPED | {"head_dim": 14, "sliding_window": 6, "query_pre_attn_scalar": 30}),
    "gemma2, no caps": (
        "gemma2",
        GROUPED | {"head_dim": 12, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "mixtral": ("mixtral", GROUPED | {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "gpt2": ("gpt2", {"vocab_size": 97, "n_positions": 64, "n_embd": 48, "n_layer": 3, "n_head": 4}),
    "gpt2, scaled by layer": (
        "gpt2",
        {"vocab_size": 97, "n_embd": 48, "n_layer": 2, "n_head": 3, "scale_attn_by_inverse_layer_idx": True},
    ),
}
ROWS = {
    "whole": [[1] * LENGTH, [1] * LENGTH],
    "padded": [[1] * LENGTH, [1] * (LENGTH - 9) + [0] * 9],
    "padded in front": [[0] * 5 + [1] * (LENGTH - 5), [1] * LENGTH],
    "packed": [[1] * 10 + [2] * (LENGTH - 10), [1] * 3 + [2] * 16 + [3] * (LENGTH - 19)],
}


def make_model(kind, fields):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **fields)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # a bias of zero or a norm of one would hide that it is not used
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


def make_batch(documents):
    documents = torch.tensor(documents)
    ids = torch.randint(0, 97, documents.shape, generator=torch.Generator().manual_seed(2))
    labels = torch.full_like(ids, -100)
    same = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] > 0)
    labels[:, :-1][same] = ids[:, 1:][same]
    return ids, documents, labels


def expected(model, ids, documents, labels):
    """Each document alone: what packing and padding must not change."""
    logits = torch.zeros(*ids.shape, model.config.vocab_size)
    for row in range(ids.shape[0]):
        for document in documents[row].unique().tolist():
            at = (documents[row] == document).nonzero().flatten()
            if document > 0:
                logits[row, at] = model(ids[row, at][None]).logits[0]
    model.zero_grad()
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    return logits.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


def run_model(directory, ids, documents, labels, *adapter):
    source, target = directory / "input.bin", directory / "output.bin"
    parts = [torch.tensor(ids.shape), ids, documents, labels]
    source.write_bytes(b"".join(part.numpy().astype(numpy.int64).tobytes() for part in parts))
    command = [PROGRAM, directory, source, target, *adapter]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    if done.returncode != 0:
        return None, done.stderr
    values = torch.from_numpy(numpy.fromfile(target, dtype=numpy.float32))
    sizes = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    numels = [ids.numel() * 97, *(int(numel) for _, numel in sizes)]
    logits, *gradients = values.split(numels)
    return logits.view(*ids.shape, 97), dict(zip((name for name, _ in sizes), gradients, strict=True))


def difference(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).item()


@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients_are_those_of_transformers(case, tmp_path):
    model = make_model(*CASES[case])
    model.save_pretrained(tmp_path)
    for rows in ROWS.values():
        ids, documents, labels = make_batch(rows)
        logits, gradients = expected(model, ids, documents, labels)
        ours, our_gradients = run_model(tmp_path, ids, documents, labels)
        assert ours is not None, our_gradients
        real = documents > 0
        assert difference(ours[real], logits[real]) < 1e-4
        compare_gradients(model, gradients, our_gradients)


def compare_gradients(model, theirs, ours):
    names = set()
    for name, gradient in stored_gradients(model, theirs).items():
        names.add(name)
        assert difference(ours[name], gradient.flatten()) < 1e-3, name
    missing = set(ours) - names - {"lm_head.weight"}
    assert not missing, missing


def stored_gradients(model, gradients):
    """Under the names of the files: transformers keeps the experts of a layer in two tensors."""
    stored = {}
    for name, gradient in gradients.items():
        before, _, kind = name.partition(".mlp.experts.")
        if kind == "gate_up_proj":
            for expert, both in enumerate(gradient):
                for file_name, part in zip(("w1", "w3"), both.chunk(2), strict=True):
                    stored[f"{before}.block_sparse_moe.experts.{expert}.{file_name}.weight"] = part
        elif kind == "down_proj":
            for expert, part in enumerate(gradient):
                stored[f"{before}.block_sparse_moe.experts.{expert}.w2.weight"] = part
        else:
            stored[name.replace(".mlp.gate.weight", ".block_sparse_moe.gate.weight")] = gradient
    return stored


# -- files -------------------------------------------------------------------------------------------------------------


def logits_of(directory):
    ids, documents, labels = make_batch(ROWS["whole"])
    return run_model(directory, ids, documents, labels)


@pytest.fixture
def llama(tmp_path):
    make_model("llama", GROUPED).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_weights_in_several_files_behind_links(llama, tmp_path):
    """As in a download cache: names that link to files of other names in another directory."""
    whole, _ = logits_of(llama)
    sharded, links = tmp_path / "sharded", tmp_path / "links"
    make_model("llama", GROUPED).save_pretrained(sharded, max_shard_size="40KB")
    files = sorted(sharded.iterdir())
    assert sum(file.suffix == ".safetensors" for file in files) > 2
    links.mkdir()
    for number, file in enumerate(files):
        blob = tmp_path / f"blob{number}"
        file.rename(blob)
        (links / file.name).symlink_to(blob)
    assert torch.equal(logits_of(links)[0], whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_other_dtypes(dtype, tmp_path):
    model = make_model("llama", GROUPED)
    model.to(dtype).save_pretrained(tmp_path)
    logits, _ = logits_of(tmp_path)
    ids, documents, labels = make_batch(ROWS["whole"])
    assert difference(logits, expected(model.to(torch.float32), ids, documents, labels)[0]) < 1e-4


def test_the_trunk_alone_has_tensors_without_its_name(tmp_path):
    model = make_model(*CASES["gpt2"])
    model.save_pretrained(tmp_path)
    whole, _ = logits_of(tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 8, 8)
    safetensors.torch.save_file(bare, tmp_path / "model.safetensors")
    assert torch.equal(logits_of(tmp_path)[0], whole)


def change_config(file="config.json", /, **fields):
    def change(directory):
        path = directory / file
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def change_tensors(change, file="model.safetensors"):
    def apply(directory):
        path = directory / file
        tensors = safetensors.torch.load_file(path)
        change(tensors)
        safetensors.torch.save_file(tensors, path)

    return apply


def cut(directory, file="model.safetensors"):
    path = directory / file
    path.write_bytes(path.read_bytes()[:-100])


def index(**weight_map):
    def write(directory):
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return write


def beside(change):
    """The change, with the weights in two.safetensors."""

    def apply(directory):
        (directory / "model.safetensors").rename(directory / "two.safetensors")
        change(directory)

    return apply


def two_models(directory):
    path = directory / "model.safetensors"
    shutil.copyfile(path, directory / "two.safetensors")
    index(**dict.fromkeys(safetensors.torch.load_file(path), "two.safetensors"))(directory)


NORM = "model.norm.weight"
WRONG = {
    "architecture": (change_config(model_type="bert"), ["model_type", '"bert"', "llama, mistral"]),
    "rope type": (
        change_config(rope_parameters={"rope_type": "yarn"}),
        ["rope_parameters.rope_type", "yarn", "llama3"],
    ),
    "activation": (change_config(hidden_act="mish"), ["hidden_act", "mish", "silu"]),
    "field": (change_config(router_scale=2), ["router_scale", "2", "not a field"]),
    "type": (change_config(hidden_size="48"), ["hidden_size", '"48"', "integer"]),
    "heads": (change_config(num_key_value_heads=3), ["num_key_value_heads", "3", "divide"]),
    "no config": (lambda directory: (directory / "config.json").unlink(), ["config.json"]),
    "broken config": (lambda directory: (directory / "config.json").write_text("{"), ["config.json", "not JSON"]),
    "no weights": (lambda directory: (directory / "model.safetensors").unlink(), ["neither model.safetensors nor"]),
    "cut": (cut, ["model.safetensors"]),
    "shape": (change_config(intermediate_size=81), ["mlp.", "[80", "[81", "model.safetensors"]),
    "missing": (change_tensors(lambda tensors: tensors.pop(NORM)), [NORM, "in no file"]),
    "too many": (change_tensors(lambda tensors: tensors.update(extra=torch.ones(3))), ["'extra'", "no parameter"]),
    "dtype": (change_tensors(lambda tensors: tensors.update({NORM: torch.ones(48, dtype=torch.int32)})), [NORM, "I32"]),
    "missing shard": (beside(index(**{NORM: "other.safetensors"})), ["other.safetensors", "No such file"]),
    "two models": (two_models, ["both model.safetensors and model.safetensors.index.json", "other files", "Remove"]),
    "way out": (index(**{NORM: "../model.safetensors"}), [NORM, "same directory"]),
    "wrong index": (index(other="model.safetensors"), ["other", "model.safetensors", "where it is not"]),
    "short index": (index(**{NORM: "model.safetensors"}), ["is not in", "index.json"]),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_directories_are_refused(what, llama):
    change, expected_parts = WRONG[what]
    change(llama)
    logits, error = logits_of(llama)
    assert logits is None and all(part in error for part in expected_parts), error
    assert len(error.splitlines()) == 1, error


def test_an_index_may_name_the_only_file(llama):
    expected, _ = logits_of(llama)
    index(**dict.fromkeys(safetensors.torch.load_file(llama / "model.safetensors"), "model.safetensors"))(llama)
    logits, error = logits_of(llama)
    assert logits is not None and torch.equal(logits, expected), error


def test_ids_past_the_vocabulary_are_refused(llama):
    ids, documents, labels = make_batch(ROWS["whole"])
    ids[1, 5] = 97
    logits, error = run_model(llama, ids, documents, labels)
    assert logits is None and "token id 97" in error and "vocabulary of 97" in error
