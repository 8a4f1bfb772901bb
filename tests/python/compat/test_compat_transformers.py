"""Unmodified scripts for Transformers, PEFT and their DeepSpeed integration, under `zeroshard run`."""

import hashlib
import importlib.util
import json

import models
import pytest
import transformers
from built import TESTS, ZEROSHARD, needs
from deepspeed_scripts import called, run
from zeroshard.compat.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

pytestmark = needs(ZEROSHARD)
SCRIPTS = TESTS / "scripts"
SEEN_THE_SAME = ["from_pretrained", "weight_norm_in_the_constructor"]  # at every stage: no random numbers
RANDOM = [
    "from_config",
    "with_a_new_head",
    "resized",
    "tied",
    "rank_zero_alone_initializes",
    "lora_with_checkpointing",
    "copied",
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    models.tiny_llama().save_pretrained(folder / "llama")
    models.tiny_gpt2().save_pretrained(folder / "gpt2")
    hubert = transformers.HubertConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, conv_dim=(16, 16),
        conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
        hidden_dropout=0.0, attention_dropout=0.0, feat_proj_dropout=0.0, activation_dropout=0.0, layerdrop=0.0,
        mask_time_prob=0.0, feat_extract_norm="layer",
    )  # fmt: skip
    transformers.HubertModel(hubert).save_pretrained(folder / "hubert")
    return folder


def test_models_are_loaded_and_built_in_shards(saved):
    """from_pretrained, from_config, resize_token_embeddings, weight_norm, initializers of rank 0, LoRA, copies."""
    cases = [f"{name}:3" for name in SEEN_THE_SAME + RANDOM] + [f"{name}:0" for name in SEEN_THE_SAME]
    told = run("--num_gpus", "2", str(SCRIPTS / "load_models.py"), str(saved), *cases)
    assert [case for case, _ in told] == sorted(2 * cases)
    for name in SEEN_THE_SAME:
        assert len({digest for case, digest in told if case.startswith(f"{name}:")}) == 1, told


KEEPS_THE_LAST = "--save_steps 3 --save_total_limit 1"


def run_trainer(saved, folder, ranks, stage, steps=6, *, optim="", model="llama", saves=KEEPS_THE_LAST, **variables):
    """What the script told, and the digest of the weights that it saved."""
    config = folder / f"stage{stage}.json"
    zero = {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True, "reduce_bucket_size": "auto"}
    auto = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto")
    config.write_text(json.dumps({**auto, "zero_optimization": zero, "zero_allow_untested_optimizer": True}))
    options = (
        f"--output_dir {folder} --per_device_train_batch_size {4 // ranks} --learning_rate 1e-3 --max_steps {steps} "
        f"--logging_steps 1 --report_to none --seed 1 --disable_tqdm true --lr_scheduler_type constant "
        f"{saves} --deepspeed {config} {optim and f'--optim {optim}'}"
    )
    script = [str(SCRIPTS / "trainer.py"), *options.split()]
    (told,) = called(
        ZEROSHARD, "run", "--num_gpus", str(ranks), *script, path=False, MODEL=f"{saved}/{model}", **variables
    )
    (weights,) = folder.glob("*model.safetensors")  # the model's, or the adapters'
    return told, hashlib.sha256(weights.read_bytes()).hexdigest()


def test_trainer_trains_saves_and_continues(saved, tmp_path, release):
    """The same losses as one process, the same bits at all stages, and after a checkpoint of another stage."""
    reference, _ = run_trainer(saved, tmp_path, 1, 0)
    digests = {}
    for stage in (0, 1, 2, 3) if release else (2,):
        folder = tmp_path / f"two{stage}"
        folder.mkdir()
        told, digests[stage] = run_trainer(saved, folder, 2, stage, saves="--save_steps 3")
        check_near(told, reference)
    assert len(set(digests.values())) == 1, digests

    checkpoint = tmp_path / "two2" / "checkpoint-3"
    weights = get_fp32_state_dict_from_zero_checkpoint(str(checkpoint))
    saved_model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    assert all(weights[name].equal(value) for name, value in saved_model.state_dict().items())
    folder = tmp_path / "again"
    folder.mkdir()
    saves = "--save_steps 1 --save_total_limit 1"
    told, continued = run_trainer(saved, folder, 2, 3, saves=saves, RESUME=str(checkpoint))
    check_near(told, reference)
    assert continued == digests[2]
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-6"], "save_total_limit is 1"


@pytest.mark.skipif(not importlib.util.find_spec("bitsandbytes"), reason="bitsandbytes is not installed")
@pytest.mark.parametrize("optim", ["adamw_8bit", "paged_adamw_8bit"])
def test_trainer_goes_on_at_other_ranks_with_an_8_bit_optimizer(saved, tmp_path, optim):
    """In the core: the same weights at two stages; two ranks save, and four ranks and one go on."""
    if not (saved / "large").exists():
        models.tiny_llama(hidden=64).save_pretrained(saved / "large")
    digests = set()
    for stage in (1, 3):
        folder = tmp_path / f"two{stage}"
        folder.mkdir()
        reference, digest = run_trainer(saved, folder, 2, stage, optim=optim, model="large")
        digests.add(digest)
    assert len(digests) == 1
    folder = tmp_path / "again"
    folder.mkdir()
    run_trainer(saved, folder, 2, 3, steps=3, optim=optim, model="large")
    for ranks in (2, 4, 1):
        after = tmp_path / f"after{ranks}"
        after.mkdir()
        told, digest = run_trainer(
            saved, after, ranks, 2, optim=optim, model="large", RESUME=str(folder / "checkpoint-3")
        )
        check_near(told[-4:], reference[-4:])
        assert ranks != 2 or digest in digests


@pytest.mark.skipif(not importlib.util.find_spec("bitsandbytes"), reason="bitsandbytes is not installed")
@pytest.mark.parametrize("adapters", ["qlora", "lora"])
def test_adapters_go_on_after_a_rank_was_killed(saved, tmp_path, release, adapters):
    """Over weights of 4 bits, too, with a paged 8-bit optimizer; the next run has another stage and other ranks."""
    if not release and adapters == "lora":
        pytest.skip("qlora has all that lora has")
    if not (saved / "large").exists():
        models.tiny_llama(hidden=64).save_pretrained(saved / "large")
    saves = f"{KEEPS_THE_LAST} --eval_strategy steps --eval_steps 2"
    settings = {"model": "large", "optim": "paged_adamw_8bit", "saves": saves, "ADAPTERS": adapters}
    for name in ("whole", "killed", "after2", "after4", "after1"):
        (tmp_path / name).mkdir()
    reference, expected = run_trainer(saved, tmp_path / "whole", 2, 3, **settings)
    with pytest.raises(AssertionError, match="killed by SIGKILL"):
        run_trainer(saved, tmp_path / "killed", 2, 2, KILLED="4", **settings)
    for ranks, stage in ((2, 3), (4, 3), (1, 2)) if release else ((2, 3), (4, 2)):
        resume = str(tmp_path / "killed" / "checkpoint-3")
        told, digest = run_trainer(saved, tmp_path / f"after{ranks}", ranks, stage, RESUME=resume, **settings)
        check_near(told[-4:], reference[-4:])
        assert ranks != 2 or digest == expected


def check_near(told, reference):
    """The losses and gradient norms of the steps, and the last loss."""
    for (loss, norm), (expected, expected_norm) in zip(told, reference, strict=True):
        assert loss == pytest.approx(expected, abs=1e-4) and norm == pytest.approx(expected_norm, abs=1e-3)
