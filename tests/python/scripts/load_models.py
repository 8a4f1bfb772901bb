"""Models of Transformers and PEFT that are loaded, built, resized and wrapped before an engine, at any stage.

Arguments: a folder with saved models, and cases, each a name and a stage. Tells the digest after two steps of each.
"""

import copy
import json
import sys

import deepspeed
import peft
import torch
import torch.distributed as dist
import transformers
from transformers.integrations import HfDeepSpeedConfig

FOLDER, CASES = sys.argv[1], [case.split(":") for case in sys.argv[2:]]
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
}
IDS = torch.arange(12).view(1, 12)


def check_sharded(model):
    whole = [name for name, p in model.named_parameters() if not hasattr(p, "ds_id") or p.ds_status.name == "AVAILABLE"]
    assert not whole or CONFIG["zero_optimization"]["stage"] < 3, f"not sharded: {whole}"


def digest_after_training(model, **inputs):
    trained = [param for param in model.parameters() if param.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, config=CONFIG, model_parameters=trained)
    for _ in range(2):
        output = engine(**inputs)
        loss = output.loss if getattr(output, "loss", None) is not None else output[0].float().square().mean()
        assert torch.isfinite(loss)
        engine.backward(loss)
        engine.step()
    digest = engine.parameter_digest()
    engine.destroy()
    return digest


def pretrained(kind, name, **arguments):
    return kind.from_pretrained(f"{FOLDER}/{name}", dtype=torch.float32, **arguments)


def from_config():
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(f"{FOLDER}/llama"))
    check_sharded(model)
    weight = model.model.layers[0].mlp.up_proj.weight
    with deepspeed.zero.GatheredParameters(weight):
        assert 0.08 < weight.std() < 0.12, "not initialized"  # initializer_range is 0.1
    digest_after_training(model, input_ids=IDS, labels=IDS)


def from_pretrained():
    model = pretrained(transformers.AutoModelForCausalLM, "llama")
    check_sharded(model)
    return digest_after_training(model, input_ids=IDS, labels=IDS)


def with_a_new_head():
    model = pretrained(transformers.AutoModelForSequenceClassification, "llama", num_labels=3, pad_token_id=0)
    check_sharded(model)
    digest_after_training(model, input_ids=IDS, labels=torch.tensor([1]))


def resized():
    torch.manual_seed(7)
    model = pretrained(transformers.AutoModelForCausalLM, "llama")
    model.resize_token_embeddings(70)
    assert model.get_input_embeddings().weight.shape[0] == 70 == model.get_output_embeddings().weight.shape[0]
    digest_after_training(model, input_ids=IDS + 55, labels=IDS + 55)


def tied():
    model = pretrained(transformers.AutoModelForCausalLM, "gpt2")
    assert model.lm_head.weight is model.transformer.wte.weight
    model.resize_token_embeddings(64, mean_resizing=False)
    assert model.lm_head.weight is model.transformer.wte.weight
    digest_after_training(model, input_ids=IDS, labels=IDS)


def rank_zero_alone_initializes():
    config = transformers.DistilBertConfig(
        vocab_size=61,
        dim=24,
        hidden_dim=50,
        n_layers=2,
        n_heads=2,
        max_position_embeddings=32,
        sinusoidal_pos_embds=True,
    )
    model = transformers.DistilBertForMaskedLM._from_config(config)
    weight = model.distilbert.embeddings.position_embeddings.weight
    with deepspeed.zero.GatheredParameters(weight):
        assert weight[0].tolist() == [0.0, 1.0] * 12, weight[0]
    digest_after_training(model, input_ids=IDS, labels=IDS)


def weight_norm_in_the_constructor():
    model = pretrained(transformers.HubertModel, "hubert")
    check_sharded(model)
    return digest_after_training(model, input_values=torch.linspace(-1, 1, 400).view(1, 400))


def lora_with_checkpointing():
    model = pretrained(transformers.AutoModelForCausalLM, "llama")
    model = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"])
    )
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    digest_after_training(model, input_ids=IDS, labels=IDS)


def copied():
    model = pretrained(transformers.AutoModelForCausalLM, "llama")
    other = copy.deepcopy(model).to(torch.bfloat16)
    check_sharded(other)
    with deepspeed.zero.GatheredParameters([model.lm_head.weight, other.lm_head.weight]):
        assert torch.equal(model.lm_head.weight.bfloat16(), other.lm_head.weight)


deepspeed.init_distributed()
torch.manual_seed(dist.get_rank())
for case, stage in CASES:
    CONFIG["zero_optimization"]["stage"] = int(stage)
    alive = HfDeepSpeedConfig(CONFIG)
    print("\nTOLD " + json.dumps([f"{case}:{stage}", globals()[case]()]), flush=True)
