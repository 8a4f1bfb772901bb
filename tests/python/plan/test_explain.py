"""`zeroshard config explain` of files as others publish them, written for those who fill in their "auto"."""

import json
import subprocess

import pytest
from built import ZEROSHARD, needs

pytestmark = needs(ZEROSHARD)

BATCH = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
AUTO = BATCH | {"gradient_accumulation_steps": "auto", "gradient_clipping": "auto"}
SCALING = {
    "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1,
}  # fmt: skip
DTYPES = {"fp16": {"enabled": "auto"} | SCALING, "bf16": {"enabled": "auto"}}
CPU = {"device": "cpu", "pin_memory": True}
SIZES = {
    "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
}  # fmt: skip
DECAY = {
    "type": "WarmupDecayLR",
    "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto"),
}
# By what they are of; the keys are those of the published files.
TEMPLATES = {
    "axolotl-1-compile": AUTO | DTYPES | {
        "zero_optimization": {"stage": 1, "overlap_comm": True}, "compile": {"disable": False, "backend": "inductor"},
        "wall_clock_breakdown": False,
    },
    "axolotl-3-offload": AUTO | {
        "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True, "bf16": {"enabled": True},
        "zero_optimization": SIZES | {
            "stage": 3, "offload_optimizer": CPU, "offload_param": CPU, "overlap_comm": True,
            "contiguous_gradients": True, "sub_group_size": 0, "max_live_parameters": 0, "max_reuse_distance": 0,
            "gather_16bit_weights_on_model_save": True,
        },
    },
    "llama-factory-2": AUTO | DTYPES | {
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": 2, "allgather_partitions": True, "allgather_bucket_size": 5e8, "overlap_comm": False,
            "reduce_scatter": True, "reduce_bucket_size": 5e8, "contiguous_gradients": True,
            "round_robin_gradients": True,
        },
    },
    "llama-factory-3-offload": AUTO | DTYPES | {
        "zero_allow_untested_optimizer": True,
        "zero_optimization": SIZES | {
            "stage": 3, "offload_optimizer": CPU, "offload_param": CPU, "overlap_comm": False, "sub_group_size": 1e9,
            "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "comms_config": {"verbose": False}, "monitor_config": {"enabled": True, "csv_monitor": {"enabled": False}},
    },
    "transformers-2": {
        "fp16": {"enabled": "auto"} | SCALING, "bf16": {"enabled": "auto"}, "steps_per_print": 2000,
        "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
        "scheduler": {
            "type": "WarmupLR", "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto"),
        },
        "zero_optimization": {"stage": 2, "offload_optimizer": CPU, "allgather_bucket_size": 2e8},
    } | AUTO,
    "transformers-3-tests": {  # has no batch size
        "fp16": {"enabled": True} | SCALING, "steps_per_print": 2000,
        "zero_optimization": {
            "stage": 3, "offload_optimizer": CPU, "offload_param": CPU, "sub_group_size": 1e14, "reduce_bucket_size": 0,
            "stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 0,
            "stage3_gather_fp16_weights_on_model_save": True,
        },
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999], "eps": 1e-8}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 3e-5, "warmup_num_steps": 500}},
    },
    "transformers-3-nvme": AUTO | {
        "bf16": {"enabled": "auto"}, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "zero_optimization": SIZES | {
            "stage": 3, "sub_group_size": 1e9,
            "offload_optimizer": CPU | {
                "device": "nvme", "nvme_path": "/local_nvme", "buffer_count": 4, "fast_init": False,
            },
            "offload_param": CPU | {
                "device": "nvme", "nvme_path": "/local_nvme", "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9,
            },
        },
        "aio": {
            "block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": False, "overlap_events": True,
        },
    },
    "accelerate-3-offload": BATCH | {
        "fp16": {"enabled": True} | SCALING, "gradient_accumulation_steps": 1, "gradient_clipping": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}, "scheduler": DECAY,
        "zero_optimization": SIZES | {
            "stage": 3, "offload_optimizer": CPU, "offload_param": CPU,
            "stage3_gather_16bit_weights_on_model_save": "auto",
        },
    },
    "accelerate-auto": BATCH | {
        "zero_optimization": {
            "stage": "auto", "offload_optimizer": {"device": "auto", "nvme_path": "auto"},
            "offload_param": {"device": "auto", "nvme_path": "auto"},
        },
    },
    "accelerate-sequence": BATCH | {
        "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}, "gradient_accumulation_steps": 1,
        "seq_parallel_communication_data_type": "bf16",
    },
}  # fmt: skip


def explain(path, *args):
    return subprocess.run(
        [ZEROSHARD, "config", "explain", path, *map(str, args)], capture_output=True, text=True, timeout=60, check=False
    )


def explained(tmp_path, config, *args):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config))
    done = explain(path, "--json", *args)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    return result | {"values": {value["path"]: value for value in result["values"]}}


def given_as_auto(config, path=""):
    for name, value in config.items():
        if isinstance(value, dict):
            yield from given_as_auto(value, f"{path}{name}.")
        elif value == "auto":
            yield path + name


@pytest.mark.parametrize("name", TEMPLATES)
def test_published_files_are_explained(name, tmp_path):
    config = TEMPLATES[name]
    for more in ((), ("--hidden-size", 64)):
        told = explained(tmp_path, config, "--world-size", 8, *more)
        assert (
            told["values"]["zero_optimization.stage"]["value"] == config["zero_optimization"]["stage"] or "auto" in name
        )
        for path in given_as_auto(config):
            if path not in told["values"] or path.endswith(".device"):
                continue
            origin = told["values"][path]["origin"]
            known = more and path.startswith("zero_optimization.stage3_")
            assert known or "fills it in: " in origin, (path, origin)
            if path in told["open"]:
                assert told["values"][path]["value"] == "auto" and origin.startswith("open: ")
        assert ("train_batch_size" in told["open"]) == (not isinstance(config.get("train_batch_size"), int))
    text = explain(tmp_path / "ds.json").stdout
    assert "Open values count here as their defaults." in text and "Where state lies, stage" in text


def test_sizes_that_follow_from_others_are_not_open(tmp_path):
    told = explained(tmp_path, AUTO | {"train_batch_size": 32}, "--world-size", "4")
    assert told["open"] == [] and told["values"]["train_micro_batch_size_per_gpu"]["value"] == 8
    assert "fills it in: per_device" in told["values"]["train_micro_batch_size_per_gpu"]["origin"]


def test_what_nobody_fills_in_is_an_error(tmp_path):
    path = tmp_path / "ds.json"
    for config, said in (
        ({"optimizer": {"type": "auto"}}, 'optimizer.type = "auto": only the caller can know this value'),
        ({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": "auto", "cycle_max_lr": 1}}}, "cycle_min_lr"),
        ({"zero_optimization": {"aio": {"block_size": 4096}}}, "'aio' belongs at the top level, outside of 'zero_opt"),
    ):
        path.write_text(json.dumps(AUTO | config))
        done = explain(path)
        assert done.returncode == 2 and said in done.stderr, done.stderr


def test_offload_that_ranks_refuse_is_told(tmp_path):
    late = {"zeroshard": {"offload": {"delayed_update": True}}, "zero_optimization": {"stage": 2}}
    refused = explained(tmp_path, AUTO | late)["refused"]
    assert "delayed_update = true" in refused["GPU"] and "set false" in refused["CPU"]
    assert "Ranks on a GPU refuse it: zeroshard.offload.delayed_update" in explain(tmp_path / "ds.json").stdout
    late["zero_optimization"]["offload_optimizer"] = CPU
    assert list(explained(tmp_path, AUTO | late)["refused"]) == ["CPU"]
