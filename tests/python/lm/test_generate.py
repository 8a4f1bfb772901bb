"""`zeroshard generate` against transformers: the likeliest tokens, with its cache, on one and several ranks."""

import json
import os
import subprocess

import pytest
import torch
import transformers
from built import ZEROSHARD, ZEROSHARD_TORCH, needs
from safetensors.torch import load_file, save_file
from tokenizer_data import train_byte_level

pytestmark = needs(ZEROSHARD_TORCH)

SMALL = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4}
GROUPED = SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 64}
CAPPED = {"head_dim": 12, "sliding_window": 6, "attn_implementation": "eager"}
KINDS = {
    "llama": (transformers.LlamaConfig, GROUPED | {"tie_word_embeddings": True}),
    "mistral, window": (transformers.MistralConfig, GROUPED | {"sliding_window": 7}),
    "qwen2": (transformers.Qwen2Config, GROUPED),
    "qwen3": (transformers.Qwen3Config, GROUPED | {"head_dim": 20, "tie_word_embeddings": True}),
    "gemma2": (
        transformers.Gemma2Config,
        GROUPED | CAPPED,
    ),
    "gpt2": (transformers.GPT2Config, {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64}),
    "mixtral": (transformers.MixtralConfig, GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
}
PROMPT = "To be, or not to be"
TOKENS = 24


@pytest.fixture(scope="module")
def tokenizer():
    return train_byte_level([PROMPT, "that is the question: whether 'tis nobler é 你 🙂"], ["<|end|>"])


def make_model_directory(folder, kind, tokenizer, padding=0):
    torch.manual_seed(1)
    config_class, fields = KINDS[kind]
    config = config_class(vocab_size=tokenizer.get_vocab_size() + padding, **fields)
    config.initializer_range = 0.2  # so that the likeliest tokens are not nearly as likely as others
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return model


def run(*arguments, ranks=1, **options):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [ZEROSHARD, "generate", *map(str, arguments)]
    command[2 + ranks % 2 : 2 + ranks % 2] = ["--nproc", str(ranks)]  # before the directory, or after
    return subprocess.run(command, capture_output=True, timeout=60, env=environment, **options)


@torch.no_grad()
def likeliest(model, tokenizer):
    """The text that transformers continues the prompt with, token by token without a cache."""
    ids = tokenizer.encode(PROMPT).ids
    end = tokenizer.token_to_id("<|end|>")
    for _ in range(TOKENS):
        token = int(model(torch.tensor([ids])).logits[0, -1, : tokenizer.get_vocab_size()].argmax())
        if token == end:
            break
        ids.append(token)
    return tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_the_likeliest_text_is_that_of_transformers(tmp_path, kind, tokenizer):
    model = make_model_directory(tmp_path, kind, tokenizer)
    expected = likeliest(model, tokenizer)
    assert len(expected) > len(PROMPT)
    for ranks in (1, 2, 3) if kind in ("llama", "gpt2") else (1, 3):
        arguments = [tmp_path, "--prompt", PROMPT, "--max-tokens", TOKENS, "--temperature", 0]
        done = run(*arguments, ranks=ranks)
        assert done.returncode == 0, done.stderr
        assert done.stdout.decode(errors="replace") == expected + "\n", f"{ranks} ranks"


def test_ids_that_the_tokenizer_does_not_have_are_never_chosen(tmp_path, tokenizer):
    model = make_model_directory(tmp_path, "llama", tokenizer, padding=200)
    ids = torch.tensor([tokenizer.encode(PROMPT).ids])
    with torch.no_grad():
        likely = model(ids).logits[0, -1].topk(5).indices
    assert (likely >= tokenizer.get_vocab_size()).any()
    common = [tmp_path, "--prompt", PROMPT, "--max-tokens", TOKENS]
    for ranks in (1, 2):
        done = run(*common, "--temperature", 0, ranks=ranks)
        assert done.returncode == 0, done.stderr
        assert done.stdout.decode(errors="replace") == likeliest(model, tokenizer) + "\n", f"{ranks} ranks"
    hot = [*common, "--temperature", 5]  # nearly alike, so that all would be chosen
    done = run(*hot)
    assert done.returncode == 0, done.stderr
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    far = {"id": tokenizer.get_vocab_size() + 150, "content": "<far>"}  # no id between has a token
    state["added_tokens"].append(state["added_tokens"][0] | far)
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    done = run(*hot)
    assert done.returncode == 0, done.stderr


def test_samples_depend_on_the_seed_alone(tmp_path, tokenizer):
    make_model_directory(tmp_path, "llama", tokenizer)
    plain = [tmp_path, "--prompt", PROMPT, "--max-tokens", TOKENS]
    common = [*plain, "--temperature", 1.5]
    first = run(*common, "--seed", 1)
    assert first.returncode == 0, first.stderr
    assert run(*common, "--seed", 1, ranks=2).stdout == first.stdout
    assert run(*common, "--seed", 2).stdout != first.stdout
    greedy = run(*plain, "--temperature", 0).stdout
    assert run(*common, "--seed", 1, "--top-k", 1).stdout == greedy
    assert run(*common, "--seed", 1, "--top-p", 1e-6).stdout == greedy
    for option, value in (("--temperature", 1e-40), ("--temperature", 1e-300), ("--top-p", 1e-300)):
        done = run(*plain, option, value)
        assert done.stdout == greedy, (option, value, done.stderr)
    assert first.stdout != greedy
    assert run(tmp_path, "--prompt", PROMPT, "--max-tokens", 5, "--dtype", "BF16").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-tokens", 99], "the model has 64 positions"),
        (["--max-tokens", 2**63 - 1], "the model has 64 positions"),
        (["--temperature", -1], "temperature"),
        (["--top-p", 0], "top_p"),
        (["--dtype", "F8"], "F8"),
        (["--tokens", 3], "--tokens"),
    ],
)
def test_wrong_options_are_named(tmp_path, tokenizer, arguments, message):
    make_model_directory(tmp_path, "llama", tokenizer)
    done = run(tmp_path, "--prompt", PROMPT, *arguments)
    assert done.returncode == 2 and message in done.stderr.decode(), done
    done = run(tmp_path, "--prompt", PROMPT, ranks=0)
    assert done.returncode == 2 and b"--nproc is '0', expected a whole number >= 1" in done.stderr, done


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_without_values_are_named(tmp_path, tokenizer, value, ranks):
    make_model_directory(tmp_path, "qwen2", tokenizer)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"][3] = value
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for temperature in (0, 1):
        done = run(tmp_path, "--prompt", PROMPT, "--max-tokens", 4, "--temperature", temperature, ranks=ranks)
        error = done.stderr.decode()
        assert done.returncode == 1 and done.stdout == b"", done
        assert (
            f"the model in '{tmp_path}' gives no finite logits for token {len(tokenizer.encode(PROMPT).ids)}" in error
        )
        assert "parameter 'model.norm.weight' has inf or NaN" in error and "Exception raised" not in error, error


def test_an_empty_prompt_and_a_missing_directory(tmp_path, tokenizer):
    make_model_directory(tmp_path, "llama", tokenizer)
    done = run(tmp_path, "--prompt", "")
    assert done.returncode == 2 and b"prompt has no tokens" in done.stderr
    done = run(tmp_path / "nowhere", "--prompt", "x")
    assert done.returncode in (1, 2) and b"nowhere" in done.stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_text_that_cannot_be_written_is_an_error(tmp_path, tokenizer, ranks):
    make_model_directory(tmp_path, "llama", tokenizer)
    command = [ZEROSHARD, "generate", tmp_path, "--prompt", PROMPT, "--max-tokens", "2", "--nproc", str(ranks)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "standard output cannot be written" in done.stderr, done.stderr


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_prompt_from_standard_input_reaches_every_rank(tmp_path, tokenizer, ranks):
    make_model_directory(tmp_path, "llama", tokenizer)
    arguments = [tmp_path, "--max-tokens", 5, "--temperature", 0, "--prompt"]
    expected = run(*arguments, PROMPT)
    done = run(*arguments, "-", ranks=ranks, input=PROMPT.encode())
    assert (done.returncode, done.stdout) == (0, expected.stdout), done.stderr
    done = run(*arguments, "-", ranks=ranks, input=b"")
    assert done.returncode != 0 and b"prompt has no tokens" in done.stderr, done
