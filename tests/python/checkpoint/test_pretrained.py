"""engine.save_pretrained: a directory that from_pretrained reads, with the names that the model's own method writes."""

import json
import os

import models
import pytest
import torch
import world
import zeroshard
from errors import text_of
from torch import nn

FAMILIES = {"llama": models.tiny_llama, "gpt2": models.tiny_gpt2}  # GPT-2's head is tied to its embedding


def tiny_mixtral():
    """Its experts are one parameter in memory and many in files."""
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"vocab_size": models.VOCABULARY, "num_key_value_heads": 1, "num_local_experts": 3}
    return MixtralForCausalLM(MixtralConfig(**sizes, max_position_embeddings=32, use_cache=False))


def make_engine(model, stage, dtype="bf16"):
    config = models.configuration(stage, dtype, threshold=30, optimizer=models.adamw(3e-3))
    engine, *_ = zeroshard.initialize(model=model, config=config)
    return engine


def train_language_model(engine, steps=2):
    for step in range(steps):
        ids = models.share(models.tokens(step, 0, 2 * world.size()), world.rank(), world.size())
        engine.backward(models.language_loss(engine, ids))
        engine.step()


def weights_in(folder):
    from safetensors.torch import load_file

    files = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(os.path.join(folder, file)).items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def save_twice(family, stage, folder):
    """Into one directory, with training between: the names and values that the gathered model's own method writes."""
    make = {**FAMILIES, "mixtral": tiny_mixtral}[family]
    engine = make_engine(make(), stage)
    for _ in range(2):
        train_language_model(engine)
        engine.save_pretrained(folder, max_shard_size="20KB")
    with zeroshard.gathered(engine.module.parameters()):
        if world.rank() == 0:
            engine.module.save_pretrained(folder + "-own", max_shard_size="20KB")
    if world.rank() != 0:
        return None
    from transformers import AutoModelForCausalLM

    loaded, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype="auto")
    wrong = [name for keys in told.values() for name in keys]
    return [same(weights_in(folder), weights_in(folder + "-own")), wrong, str(loaded.dtype), len(os.listdir(folder))]


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_the_directory_is_what_the_model_itself_would_write(family, stage, tmp_path):
    result, *_ = world.run(3, save_twice, family=family, stage=stage, folder=str(tmp_path / "model"))
    equal, wrong, dtype, files = result
    assert equal
    assert wrong == []
    assert dtype == "torch.bfloat16"
    assert files > 4  # several files of weights, their index, config.json


def save_adapter(stage, folder):
    import peft

    lora = peft.LoraConfig(r=3, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(models.tiny_llama(), lora)
    model.add_adapter("other", lora)  # frozen, and saved too
    engine = make_engine(model, stage, "fp32")
    train_language_model(engine)
    engine.save_pretrained(folder, save_embedding_layers=False)
    with zeroshard.gathered(model.parameters()):
        whole = {name: param.detach().clone() for name, param in model.named_parameters()}
    if world.rank() != 0:
        return None
    again = peft.PeftModel.from_pretrained(models.tiny_llama(), folder)
    again.load_adapter(os.path.join(folder, "other"), adapter_name="other")
    found = dict(again.named_parameters())
    adapters = [name for name in whole if "lora_" in name or "modules_to_save" in name]
    return [len(adapters), all(torch.equal(whole[name], found[name].detach()) for name in adapters), os.listdir(folder)]


@pytest.mark.parametrize("stage", [2, 3])
def test_adapters_are_saved_in_pefts_format(stage, tmp_path):
    pytest.importorskip("peft")
    (count, equal, files), *_ = world.run(2, save_adapter, stage=stage, folder=str(tmp_path / "adapter"))
    assert count == 2 * (2 * 2 * 2 + 1)  # adapters * (layers * targets * A and B + head)
    assert equal
    assert {"adapter_model.safetensors", "adapter_config.json", "other"} <= set(files)
    assert "model.safetensors" not in files


class Tokenizer:
    def save_pretrained(self, folder):
        with open(os.path.join(folder, "tokenizer.json"), "w") as file:
            file.write("given")


def save_tokenizers(folder):
    source = os.path.join(folder, "source")
    if world.rank() == 0:
        models.tiny_llama().save_pretrained(source)
        for name in ("tokenizer.json", "chat_template.jinja"):
            with open(os.path.join(source, name), "w") as file:
                file.write("of the source")
    zeroshard.init_distributed()
    torch.distributed.barrier()
    from transformers import AutoModelForCausalLM

    engine = make_engine(AutoModelForCausalLM.from_pretrained(source), 3)
    engine.save_pretrained(os.path.join(folder, "found"))
    engine.save_pretrained(os.path.join(folder, "given"), tokenizer=Tokenizer())
    engine.save_16bit_model(os.path.join(folder, "single"))
    loaded = AutoModelForCausalLM.from_pretrained(os.path.join(folder, "single"))
    return type(loaded).__name__


def test_tokenizers_and_configurations_lie_beside_the_weights(tmp_path):
    assert world.run(2, save_tokenizers, folder=str(tmp_path)) == ["LlamaForCausalLM"] * 2
    assert (tmp_path / "found" / "tokenizer.json").read_text() == "of the source"
    assert (tmp_path / "found" / "chat_template.jinja").exists()
    assert (tmp_path / "given" / "tokenizer.json").read_text() == "given"
    config = json.loads((tmp_path / "single" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]


def save_badly(folder):
    told = []
    engine = make_engine(nn.Sequential(nn.Linear(40, 40)), 3, "fp32")
    told.append(text_of(lambda: engine.save_pretrained(folder)))
    engine = make_engine(models.tiny_llama(), 3)
    blocked = os.path.join(folder, f"file-of-rank-{world.rank()}")
    if world.rank() == 0:
        open(blocked, "w").close()
    told.append(text_of(lambda: engine.save_pretrained(blocked)))
    told.append(text_of(lambda: engine.save_pretrained(folder, state_dict={})))
    told.append(text_of(lambda: engine.save_pretrained(folder, max_shard_size="a lot")))
    train_language_model(engine)  # nothing stays gathered, and ranks still agree
    engine.save_pretrained(folder)
    return told


def test_errors_are_raised_on_every_rank_and_training_goes_on(tmp_path):
    first, second = world.run(2, save_badly, folder=str(tmp_path))
    for told in (first, second):
        assert "a Sequential has no such method" in told[0]
        assert "save_16bit_model" in told[0]
        assert "is a file: name a directory" in told[1]
        assert "state_dict cannot be given" in told[2]
        assert "a lot" in told[3]
    assert (tmp_path / "model.safetensors").exists()
