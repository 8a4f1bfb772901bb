"""Configurations as people publish and pass them: accepted, or refused by the feature that they ask for."""

import base64
import json

import models
import pytest
import world
import zeroshard
from zeroshard.configuration import parse_config

AUTO_BATCH = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto"
)
HALVES = {
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2}
    | {"min_loss_scale": 1},
    "bf16": {"enabled": "auto"},
}
COMMON = AUTO_BATCH | HALVES
CPU = {"device": "cpu", "pin_memory": True}
NONE = {"device": "none", "pin_memory": True}
BUCKETS = {"allgather_partitions": True, "allgather_bucket_size": 2e8, "overlap_comm": False, "reduce_scatter": True}
BUCKETS |= {"reduce_bucket_size": 2e8, "contiguous_gradients": True}
STAGE3 = {"stage": 3, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": "auto"}
STAGE3 |= {"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
LIMITS = {"sub_group_size": 1e9, "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9}
LIMITS |= {"stage3_gather_16bit_weights_on_model_save": True}
SHORT_LIMITS = {"sub_group_size": 0, "max_live_parameters": 0, "max_reuse_distance": 0}
SHORT_LIMITS |= {"gather_16bit_weights_on_model_save": True}
COMPILE = {"compile": {"disable": False, "backend": "inductor"}}
UNTESTED = {"zero_allow_untested_optimizer": True}


def with_zero(common, **zero):
    return common | {"zero_optimization": zero}


# The settings of the files in the packages of Axolotl 0.19, LLaMA-Factory 0.9.5, ms-swift 4.6 and Accelerate 1.15.
PUBLISHED = {
    "axolotl zero1": with_zero(COMMON | {"wall_clock_breakdown": False}, stage=1, overlap_comm=True),
    "axolotl zero1_torch_compile": with_zero(COMMON | COMPILE, stage=1, overlap_comm=True),
    "axolotl zero2": with_zero(COMMON, stage=2, offload_optimizer={"device": "cpu"}, contiguous_gradients=True),
    "axolotl zero2_torch_compile": with_zero(COMMON | COMPILE, stage=2, offload_optimizer={"device": "cpu"}),
    "axolotl zero3": with_zero(COMMON, **STAGE3 | SHORT_LIMITS),
    "axolotl zero3_bf16": with_zero(AUTO_BATCH | {"bf16": {"enabled": True}}, **STAGE3 | SHORT_LIMITS),
    "axolotl zero3_bf16_cpuoffload_all": with_zero(
        AUTO_BATCH | UNTESTED | {"bf16": {"enabled": True}, "zero_force_ds_cpu_optimizer": False},
        offload_optimizer=CPU, offload_param=CPU, **STAGE3 | SHORT_LIMITS,
    ),
    "axolotl zero3_bf16_cpuoffload_params": with_zero(
        AUTO_BATCH | UNTESTED | {"bf16": {"enabled": True}, "zero_force_ds_cpu_optimizer": False},
        offload_param=CPU, **STAGE3 | SHORT_LIMITS,
    ),
    "llama-factory z0": with_zero(COMMON | UNTESTED, stage=0, round_robin_gradients=True, **BUCKETS),
    "llama-factory z2": with_zero(COMMON | UNTESTED, stage=2, round_robin_gradients=True, **BUCKETS),
    "llama-factory z2_offload": with_zero(COMMON | UNTESTED, stage=2, offload_optimizer=CPU, **BUCKETS),
    "llama-factory z3": with_zero(COMMON | UNTESTED, **STAGE3 | LIMITS),
    "llama-factory z3_offload": with_zero(
        COMMON | UNTESTED, offload_optimizer=CPU, offload_param=CPU, **STAGE3 | LIMITS
    ),
    "llama-factory z3_fp8": with_zero(
        COMMON | UNTESTED
        | {"comms_config": {"verbose": False}, "steps_per_print": 10000000, "zero_force_ds_cpu_optimizer": True}
        | {"monitor_config": {"enabled": True, "tag": "DeepSpeedMonitor", "csv_monitor": {"enabled": False}}},
        offload_optimizer=CPU | {"pin_memory": False}, **STAGE3 | LIMITS | {"reduce_bucket_size": 12845056},
    ),
    "llama-factory z2_autotp": with_zero(
        COMMON | UNTESTED | {"_comment": "supported models", "tensor_parallel": {"autotp_size": 2}}, stage=2, **BUCKETS
    ),
    "ms-swift zero0": with_zero(COMMON | {"steps_per_print": 2000}, stage=0, **BUCKETS),
    "ms-swift zero1": with_zero(COMMON | {"steps_per_print": 2000}, stage=1, offload_optimizer=NONE, **BUCKETS),
    "ms-swift zero2": with_zero(COMMON | {"steps_per_print": 2000}, stage=2, offload_optimizer=NONE, **BUCKETS),
    "ms-swift zero2_offload": with_zero(COMMON, stage=2, offload_optimizer=CPU, **BUCKETS),
    "ms-swift zero3": with_zero(
        COMMON, offload_optimizer=NONE, offload_param=NONE, zero_quantized_weights=False,
        zero_quantized_gradients=False, **STAGE3 | LIMITS,
    ),
    "ms-swift zero3_offload": with_zero(COMMON, offload_optimizer=CPU, offload_param=CPU, **STAGE3 | LIMITS),
    "accelerate default": with_zero(
        AUTO_BATCH | UNTESTED | {"steps_per_print": float("inf"), "fp16": {"enabled": False}},
        stage=2, offload_optimizer={"device": "cpu", "nvme_path": None},
        offload_param={"device": "none", "nvme_path": None}, stage3_gather_16bit_weights_on_model_save=False,
    ),
    "trl reference model": with_zero(AUTO_BATCH, stage=3)
    | {
        "zero_optimization.reduce_bucket_size": 4096,
        "zero_optimization.stage3_param_persistence_threshold": 640,
        "zero_optimization.stage3_prefetch_bucket_size": 0.9 * 64 * 64,
    },
}  # fmt: skip
UNKNOWN = {"llama-factory z3_fp8": ['comms_config = {"verbose":false}']}
REFUSED = {
    "llama-factory z2_autotp": "tensor_parallel.autotp_size = 2: tensor parallelism is not supported; allowed: an "
    "integer from 0 to 1"
}


def as_trainer_fills(value, hidden=64):
    """The values that transformers puts in the place of "auto" before it calls deepspeed.initialize."""
    known = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}
    known |= {"gradient_clipping": 1.0, "enabled": False, "reduce_bucket_size": hidden * hidden}
    known |= {"stage3_prefetch_bucket_size": int(0.9 * hidden * hidden)}
    known |= {"stage3_param_persistence_threshold": 10 * hidden}
    return {
        key: as_trainer_fills(item, hidden) if isinstance(item, dict) else known[key] if item == "auto" else item
        for key, item in value.items()
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations(name):
    settings = as_trainer_fills(PUBLISHED[name])
    if name in REFUSED:
        with pytest.raises(zeroshard.Error) as error:
            parse_config(settings, world_size=2)
        assert str(error.value) == REFUSED[name]
        return
    parsed = parse_config(settings, world_size=2)
    assert parsed.config.stage == PUBLISHED[name]["zero_optimization"]["stage"]
    assert parsed.config.train_batch_size == 8
    assert parsed.unknown == UNKNOWN.get(name, [])
    values = {path: json.loads(value) for path, value, _ in parsed.values}
    offload = PUBLISHED[name]["zero_optimization"].get("offload_param", {})
    assert values["zero_optimization.offload_param.device"] == offload.get("device", "none")
    assert not any(
        f"offload_{what}.device" in line for what in ("optimizer", "param") for line in parsed.without_effect
    )


def test_the_keys_that_trl_adds_count():
    values = {path: value for path, value, _ in parse_config(
        as_trainer_fills(PUBLISHED["trl reference model"]), world_size=2).values}  # fmt: skip
    assert values["zero_optimization.stage3_prefetch_bucket_size"] == "3686"
    assert values["zero_optimization.stage3_param_persistence_threshold"] == "640"


def test_a_configuration_in_base64():
    text = json.dumps({"train_batch_size": 6, "gradient_clipping": 0.5, "?": "~~>>??"})
    for encoded in (base64.urlsafe_b64encode(text.encode()).decode(), base64.b64encode(b'{"train_batch_size": 6}')):
        encoded = encoded if isinstance(encoded, str) else encoded.decode()
        assert parse_config(encoded, world_size=1).config.train_batch_size == 6
    for text in ("e30", "__8=", base64.b64encode(b"[1]").decode()):  # no base64, no text, no object
        with pytest.raises(zeroshard.Error, match="cannot read"):
            parse_config(text, world_size=1)


def test_a_file_as_deepspeed_reads_it(tmp_path):
    path = tmp_path / "zero.json"
    path.write_text('{\n  // of all ranks\n  "train_batch_size": 4, # four\n  "note": 1,\n}\n')
    parsed = parse_config(path, world_size=2)
    assert (parsed.config.train_batch_size, parsed.unknown) == (4, ["note = 1"])
    path.write_text('{"train_batch_size": 4, "note": 1, "note": 2}')
    with pytest.raises(zeroshard.Error, match=r"zero.json: note: this key is given twice"):
        parse_config(path, world_size=2)


class Odd:
    def __repr__(self):
        return "odd"


def test_a_dict_that_json_cannot_hold():
    loop = {"train_batch_size": 1}
    loop["fp16"] = {"again": loop}
    for settings, place in [
        ({"fp16": {"loss_scale": Odd()}}, "config['fp16']['loss_scale'] is odd, an Odd"),
        ({"a": [1, {"b": {1, 2}}]}, "config['a'][1]['b'] is {1, 2}, a set"),
        ({(1, 2): 3}, "a key of config is (1, 2), a tuple"),
        (loop, "config['fp16']['again'] is {"),
    ]:
        with pytest.raises(ValueError, match="a configuration holds what JSON can") as error:
            parse_config(settings, world_size=1)
        assert str(error.value).startswith(place)


def test_wrong_batch_sizes_are_told_as_deepspeed_tells_them():
    with pytest.raises(zeroshard.Error) as error:
        parse_config(
            {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2},
            world_size=2,
        )
    assert (
        "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * "
        "world_size 16 != 3 * 2 * 2"
    ) in str(error.value)
    with pytest.raises(zeroshard.Error, match=r"(?s)needs to be a number.*train_batchsize = 16.*'train_batch_size'"):
        parse_config({"train_batchsize": 16}, world_size=2)


def step_once(changes, of_rank_1=None):
    changes = of_rank_1 if of_rank_1 is not None and world.rank() == 1 else changes
    config = models.configuration(3, optimizer=models.adamw(1e-2)) | changes
    config["zero_optimization"] = {"stage": 3} | changes.get("zero_optimization", {})
    engine, *_ = zeroshard.initialize(model=models.stack(), config=config)
    x, y = models.vectors(0, world.rank(), 2)
    engine.backward(((engine(x) - y) ** 2).mean())
    engine.step()
    return engine.parameter_digest()


def test_unknown_keys_warn_on_rank_0_alone():
    plain = world.run(2, step_once, changes={})
    changes = {"comms_config": {"verbose": False}, "gradient_cliping": 1.0}
    ranks = world.run_ranks(2, step_once, changes=changes)
    assert [rank.value for rank in ranks] == plain
    told = (
        '[zeroshard] warning: unknown keys, ignored as DeepSpeed does: comms_config = {"verbose":false}; '
        "gradient_cliping = 1.0: did you mean 'gradient_clipping'?\n"
    )
    assert [rank.log.count(told) for rank in ranks] == [1, 0]


def test_a_key_misspelt_on_one_rank_is_a_difference_between_ranks():
    right, wrong = {"gradient_clipping": 1.0}, {"gradient_cliping": 1.0}
    ranks = world.run_ranks(2, step_once, changes=right, of_rank_1=wrong)
    for rank in ranks:
        assert rank.error is not None and "gradient_clipping" in rank.error, rank.log


def test_offload_to_host_memory_changes_nothing_on_cpu_ranks():
    plain = world.run(2, step_once, changes={})
    offload = {"zero_optimization": {"offload_optimizer": CPU, "offload_param": CPU}}
    ranks = world.run_ranks(2, step_once, changes=offload)
    assert [rank.value for rank in ranks] == plain
    assert not any("offload_param" in rank.log for rank in ranks)


def test_deepspeeds_keys_of_parameters_on_nvme_have_their_effect():
    offload = {
        "device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True, "buffer_count": 5, "buffer_size": 1e8,
        "max_in_cpu": 1e9,
    }  # fmt: skip
    settings = {"train_batch_size": 1, "zero_optimization": {"stage": 3, "offload_param": offload}}
    parsed = parse_config(settings, world_size=1)
    assert not parsed.without_effect
    values = {path: json.loads(value) for path, value, _ in parsed.values}
    for name in ("buffer_count", "buffer_size", "max_in_cpu"):
        assert values[f"zero_optimization.offload_param.{name}"] == offload[name]
