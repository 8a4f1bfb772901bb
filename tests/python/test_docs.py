"""Pages of the documentation: links lead somewhere, configurations are read, commands have the options named there."""

import json
import re
import subprocess

import pytest
import zeroshard
from built import REPOSITORY, ZEROSHARD, needs
from zeroshard.configuration import parse_config

PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), REPOSITORY / "bench" / "README.md"])
NAMES = [str(page.relative_to(REPOSITORY)) for page in PAGES]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_SETTINGS = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "optimizer")


def text_of(name):
    return (REPOSITORY / name).read_text()


def blocks_of(name, *languages):
    return [body for language, body in _FENCE.findall(text_of(name)) if language in languages]


def anchors_of(path):
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ +(.*)$", _FENCE.sub("", path.read_text()), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    page = REPOSITORY / name
    for link in _LINK.findall(_FENCE.sub("", text_of(name))):
        target, _, anchor = link.partition("#")
        if re.match(r"\w+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        if anchor and path.suffix == ".md":
            assert anchor in anchors_of(path), link


def configurations():
    for name in NAMES:
        for body in blocks_of(name, "json"):
            found = re.sub(r"^\s*//.*$", "", body, flags=re.MULTILINE)
            if any(key in found for key in _SETTINGS) and found.lstrip().startswith("{"):
                yield pytest.param(found, id=name)


@pytest.mark.parametrize("text", list(configurations()))
def test_configurations_are_read(text):
    settings = json.loads(text)
    settings.pop("train", None)  # the block of `zeroshard train`: test_train_command.py
    settings.setdefault("train_micro_batch_size_per_gpu", 1)
    try:
        parse_config(json.dumps(settings), world_size=2, model=None)
    except zeroshard.ConfigError as error:
        pytest.fail(str(error))


def commands():
    """Lines of `zeroshard SUBCOMMAND ...` in code, each with its page."""
    for name in NAMES:
        bodies = blocks_of(name, "", "sh", "bash")
        bodies += ["\n".join(re.findall(r"^    (\S.*)$", _FENCE.sub("", text_of(name)), re.MULTILINE))]
        for line in "\n".join(bodies).replace("\\\n", " ").splitlines():
            found = re.match(
                r"(?:\.venv/bin/)?(zeroshard (?:plan|run|config|checkpoint|train|generate|tokenize)\b.*)", line.strip()
            )
            if found:
                yield name, found[1].partition("#")[0]


def help_of(words):
    done = subprocess.run([ZEROSHARD, *words, "--help"], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


@needs(ZEROSHARD)
def test_commands_have_the_options_that_pages_name():
    known, seen = {}, 0
    for page, line in commands():
        words = re.sub(r"[<>|;&].*", "", line).split()[1:]
        subcommand = tuple(words[: 2 if words[0] in ("config", "checkpoint") and len(words) > 1 else 1])
        if words[0] == "run":  # what follows the script is the script's
            script = next(
                (i for i, word in enumerate(words) if word.endswith(".py") or word.startswith("./") or word == "-m"),
                len(words),
            )
            words = words[:script]
        text = known.setdefault(subcommand, help_of(subcommand))
        for option in (word.partition("=")[0] for word in words if word.startswith("--") and word != "--"):
            seen += 1
            assert option in text, f"{page}: {line}"
    assert seen > 20
