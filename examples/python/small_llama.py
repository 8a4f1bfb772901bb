"""A small Llama and a tokenizer of single bytes, made here: what the examples train when they are given no model."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
END = "<|end|>"


def byte_tokenizer():
    """256 tokens, one for each byte, and one that ends a text: needs no file."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


def load(folder=None):
    """A model and its tokenizer: those of a local folder, or small ones with random weights."""
    if folder:
        return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config), tokenizer


def blocks(path, tokenizer, length):
    """A text file as samples of `length` tokens."""
    ids = tokenizer(Path(path).read_text(encoding="utf-8"))["input_ids"]
    starts = range(0, len(ids) - length + 1, length)
    if not starts:
        raise ValueError(f"{path} has {len(ids)} tokens, and one sample takes {length}: give a longer text")
    return [{"input_ids": ids[start : start + length], "labels": ids[start : start + length]} for start in starts]
