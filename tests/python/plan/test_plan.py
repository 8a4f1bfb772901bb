"""`zeroshard plan` from outside: shapes against transformers, golden numbers, bad input."""

import json
import random
import re
import subprocess

import pytest
from built import ZEROSHARD, needs

pytestmark = needs(ZEROSHARD)


def run(*args):
    return subprocess.run([ZEROSHARD, "plan", *map(str, args)], capture_output=True, text=True, timeout=60)


def plan(*args):
    result = run(*args, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


# --- shapes -----------------------------------------------------------------------------------------------------------

LLAMA_LIKE = {
    "llama": {"attention_bias": [False, True], "mlp_bias": [False, True], "head_dim": [None, 6]},
    "mistral": {"head_dim": [None, 6]},
    "qwen2": {},
    "qwen3": {"attention_bias": [False, True], "head_dim": [6, 10]},
    "gemma2": {"attention_bias": [False, True], "head_dim": [6, 10]},
    "mixtral": {"num_local_experts": [2, 3]},
}


def random_config(model_type, seed):
    """The keys of a small config of this family."""
    rng = random.Random(seed)
    tied = rng.choice([False, True])
    vocab = rng.randint(20, 90)
    if model_type == "gpt2":
        heads = rng.randint(1, 4)
        return {
            "vocab_size": vocab, "n_embd": heads * rng.randint(2, 9), "n_head": heads, "n_layer": rng.randint(1, 4),
            "n_positions": rng.randint(5, 40), "n_inner": rng.choice([None, 37]), "tie_word_embeddings": tied,
            "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip
    kv_heads = rng.randint(1, 3)
    heads = kv_heads * rng.randint(1, 3)
    config = {
        "vocab_size": vocab, "hidden_size": heads * rng.choice([4, 8]), "intermediate_size": rng.randint(5, 50),
        "num_hidden_layers": rng.randint(1, 4), "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "tie_word_embeddings": tied,
    }  # fmt: skip
    for key, values in LLAMA_LIKE[model_type].items():
        config[key] = rng.choice(values)
    return config


@pytest.mark.parametrize("model_type", [*LLAMA_LIKE, "gpt2"])
@pytest.mark.parametrize("seed", range(4))
def test_shapes_are_those_of_transformers(model_type, seed, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(model_type, **random_config(model_type, seed))
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)

    listed = plan("--model", tmp_path, "--list-params")
    params = [param for unit in listed["units"] for param in unit["params"]]
    # Same entries in the same order, a tied head being a second name of the embedding.
    assert [(param["names"][0], param["shape"]) for param in params] == [
        (name, list(param.shape)) for name, param in model.named_parameters()
    ]
    shared = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        shared.setdefault(id(param), []).append(name)
    assert sorted(param["names"] for param in params) == sorted(shared.values())
    assert listed["params"] == sum(param.numel() for param in model.parameters())
    units = pytest.importorskip("zeroshard.units")  # those of a run, by the same names
    assert [(unit["name"], [param["names"][0] for param in unit["params"]]) for unit in listed["units"]] == [
        (unit.name, [param.names[0] for param in unit.params]) for unit in units.find_units(model)
    ]


@pytest.mark.parametrize("model_type", [*LLAMA_LIKE, "gpt2"])
def test_defaults_are_those_of_transformers(model_type, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    listed = plan("--model", tmp_path / "config.json", "--list-params")
    params = [param for unit in listed["units"] for param in unit["params"]]
    assert [(param["names"][0], param["shape"]) for param in params] == [
        (name, list(param.shape)) for name, param in model.named_parameters()
    ]


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_count_is_the_exact_formula():
    one = plan("--params", "7.5e9", "--world-size", 64, "--stage", 3)
    assert one["model_states_bytes_per_rank"] == 1_875_000_000
    assert sum(one["breakdown"][key] for key in ("parameters", "gradients", "optimizer_states")) == 1_875_000_000
    every = plan("--params", "7.5B", "--world-size", 64)["stages"]
    assert [stage["model_states_bytes_per_rank"] for stage in every] == [
        120_000_000_000, 31_406_250_000, 16_640_625_000, 1_875_000_000,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("optimizer", "dtype", "per_param"),
    [
        ("adamw", "bf16", 16),
        ("adamw", "fp32", 16),
        ("lion", "bf16", 12),
        ("sgd-momentum", "fp16", 12),
        ("sgd", "bf16", 8),
    ],
)
def test_bytes_per_parameter(optimizer, dtype, per_param):
    planned = plan("--params", 1000, "--world-size", 1, "--stage", 0, "--optimizer", optimizer, "--dtype", dtype)
    assert planned["model_states_bytes_per_rank"] == 1000 * per_param


def test_llama_70b_does_not_fit_eight_small_devices():
    args = ("--params", "70e9", "--world-size", 8, "--stage", 3, "--device-memory", "24GB")
    text = run(*args).stdout
    assert "does not fit: needs 140.0 GB, 5.83 x the 24.00 GB" in text
    assert "smallest world size that fits at this stage: 47" in text
    assert "17.50" in text  # bf16 weights
    fit = plan(*args)["fit"]
    assert (fit["fits"], fit["smallest_world_size"], fit["lowest_stage"]) == (False, 47, None)


def test_model_counts_padding_and_rings(tmp_path):
    config = {"model_type": "llama", "num_hidden_layers": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    exact = plan("--model", tmp_path, "--world-size", 8, "--stage", 3)
    ideal = plan("--params", exact["params"], "--world-size", 8, "--stage", 3)
    padding = exact["model_states_bytes_per_rank"] - ideal["model_states_bytes_per_rank"]
    assert 0 <= padding <= 7 * 16 * 1024  # 7 units, a block of 1024 elements each
    # 4 layers share 3 slots; embeddings and head, of one size, have 2; the final norm is persistent.
    layer = 4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096
    embedding = 32000 * 4096
    assert exact["breakdown"]["gather_ring"] == 2 * (3 * layer + 2 * embedding + 8192)
    assert "activations" in exact["not_counted"]
    # fp32 weights and two moments of this rank's share, padded
    assert 0 <= exact["checkpoint_staging_host_bytes"] - ideal["checkpoint_staging_host_bytes"] <= 7 * 12 * 1024
    assert any("default of transformers" in note for note in exact["notes"])


PLACED = {
    "num_hidden_layers": 4,
    "vocab_size": 60,
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_attention_heads": 2,
}


def placed_model(tmp_path, rules, stage=3, **own):
    model, config = tmp_path / "config.json", tmp_path / "ds.json"
    model.write_text(json.dumps({"model_type": "llama", **PLACED}))
    zero = {"stage": stage, "stage3_param_persistence_threshold": 100}
    zeroshard = own | ({"placement": rules} if rules else {})
    config.write_text(json.dumps({"train_batch_size": 4, "zero_optimization": zero, "zeroshard": zeroshard}))
    return "--model", model, "--world-size", 4, "--config", config


def test_placements_of_units_are_told_and_counted(tmp_path):
    rules = [{"units": "layers.1-2", "parameters": "replicated"}, {"units": "model.norm", "parameters": "sharded"}]
    told = plan(*placed_model(tmp_path, rules), "--placement")["stages"][0]
    assert told["stage"] == 3
    parameters = {unit["unit"]: unit["parameters"].split()[0] for unit in told["units"]}
    layers = {f"model.layers.{layer}": "replicated" if layer in (1, 2) else "sharded" for layer in range(4)}
    assert parameters == {"model.embed_tokens": "sharded", **layers, "model.norm": "sharded", "lm_head": "sharded"}
    assert all(unit["gradients"].startswith("sharded") for unit in told["units"])
    planned = plan(*placed_model(tmp_path, rules))["breakdown"]
    states = sum(planned[name] for name in ("parameters", "gradients", "optimizer_states"))
    assert sum(unit["bytes_per_rank"] for unit in told["units"]) == states
    without = plan(*placed_model(tmp_path, []))["breakdown"]
    assert planned["parameters"] > without["parameters"] and planned["gradients"] == without["gradients"]
    table = run(*placed_model(tmp_path, rules), "--placement")
    assert table.returncode == 0, table.stderr
    assert any(line.split()[:3] == ["model.layers.1", "replicated", "fp32"] for line in table.stdout.splitlines())


def test_a_unit_says_the_placement_of_each_of_its_groups(tmp_path):
    """Moments of parameters with few elements stay fp32."""
    args = placed_model(tmp_path, [], moment_dtype="int8")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **PLACED, "hidden_size": 128}))
    units = {unit["unit"]: unit["moments"] for unit in plan(*args, "--placement")["stages"][0]["units"]}
    assert units["lm_head"] == "sharded 2 x 8-bit" and units["model.norm"] == "sharded 2 x fp32"
    assert units["model.layers.0"] == "sharded 2 x fp32; sharded 2 x 8-bit"


def test_placements_that_make_no_sense_exit_2_and_say_why(tmp_path):
    nowhere = run(*placed_model(tmp_path, [{"units": "layers.9", "parameters": "replicated"}]))
    assert nowhere.returncode == 2
    assert "names no unit of the model; its units are 'model.embed_tokens', 'model.layers.0'" in nowhere.stderr
    lower = run(*placed_model(tmp_path, [{"units": "layers.0", "parameters": "replicated"}], stage=1))
    assert lower.returncode == 2 and "zeroshard.placement" in lower.stderr and "is for stage 3" in lower.stderr
    count = run("--params", "1e6", "--world-size", 2, "--placement")
    assert count.returncode == 2 and "--placement needs --model" in count.stderr


def test_states_in_files_are_planned_for_ranks_on_the_cpu(tmp_path):
    """Such saves copy fp32 parameters alone that are whole on every rank."""
    config = tmp_path / "ds.json"
    config.write_text(json.dumps({
        "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}},
    }))  # fmt: skip
    arguments = ["--params", "7e9", "--world-size", 4, "--config", config]
    result = plan(*arguments)
    assert result["checkpoint_staging_host_bytes"] == 0
    text = run(*arguments).stdout
    assert "Checkpoints in the background read states from their files, and hold no copy." in text
    assert "host: " not in text and re.search(r"file: total +21\.00\n", text)
    with_parameters = json.loads(config.read_text())
    with_parameters["zero_optimization"]["offload_param"] = {"device": "nvme", "nvme_path": "/nvme", "max_in_cpu": 0}
    with_parameters["zero_optimization"]["stage"] = 3
    config.with_name("all.json").write_text(json.dumps(with_parameters))
    of_all = [*arguments[:-1], config.with_name("all.json")]
    assert (
        plan(*of_all)["checkpoint_staging_host_bytes"] == 0 == plan(*of_all, "--gpu")["checkpoint_staging_host_bytes"]
    )
    assert "Checkpoints in the background read states from their files, and hold no copy." in run(*of_all).stdout
    copies = {stage: plan(*arguments, "--dtype", "fp32", "--stage", stage) for stage in (2, 3)}
    assert copies[2]["checkpoint_staging_host_bytes"] == 7e9 and copies[3]["checkpoint_staging_host_bytes"] == 0
    settings = json.loads(config.read_text())
    settings["zero_optimization"]["offload_optimizer"]["ratio"] = 0.25
    config.write_text(json.dumps(settings))
    part = plan(*arguments)
    assert (part["file"]["total_bytes"], part["breakdown"]["optimizer_states"]) == (21e9 / 4, 21e9 * 3 / 4)
    assert part["total_bytes_per_rank"] == result["total_bytes_per_rank"] + 21e9 * 3 / 4
    assert re.search(r"file: total +5\.25\n", run(*arguments).stdout)


def test_files_beside_gpus_are_planned_when_asked_for(tmp_path):
    config = tmp_path / "ds.json"
    file = {"device": "nvme", "nvme_path": "/nvme"}
    zero = {"stage": 3, "offload_optimizer": file, "offload_param": file | {"max_in_cpu": 5e8}}
    config.write_text(json.dumps({"train_batch_size": 4, "bf16": {"enabled": True}, "zero_optimization": zero}))
    arguments = ["--params", "7e9", "--world-size", 4, "--config", config]
    planned = plan(*arguments, "--gpu")
    assert planned["total_bytes_per_rank"] == 0 and "swap" not in planned["breakdown"]
    host, file = planned["host"], planned["file"]
    assert (host["parameters"], host["gradients"]) == (1e9, 2 * 7e9 / 4)
    assert (file["parameters"], file["moments"]) == (2 * 7e9 / 4 - 1e9, 8 * 7e9 / 4)
    assert not any("ranks on the CPU" in note for note in planned["notes"])
    assert any("--gpu" in note for note in plan(*arguments)["notes"])


def test_moments_in_bf16(tmp_path):
    def planned(*more, **zero):
        config = tmp_path / "ds.json"
        config.write_text(json.dumps({
            "train_batch_size": 4, "bf16": {"enabled": True}, "zeroshard": {"offload": {"moment_dtype": "bf16"}},
            "zero_optimization": {"stage": 2, "offload_optimizer": zero},
        }))  # fmt: skip
        return plan("--params", "1e9", "--world-size", 4, "--config", config, *more)

    stay = planned()  # only ranks on the CPU take it
    assert stay["breakdown"]["optimizer_states"] == 1e9 * 8 / 4
    assert any("ranks on GPUs refuse what is asked for" in note for note in stay["notes"])
    with pytest.raises(AssertionError, match='moment_dtype = "bf16": beside a device'):
        planned("--gpu")
    host = planned(device="cpu")
    assert (host["host"]["moments"], host["host"]["master_weights"]) == (1e9, 1e9)
    assert not any("on the CPU, whose" in note for note in host["notes"])
    for gpu in ((), ("--gpu",)):
        file = planned(*gpu, device="nvme", nvme_path="/nvme")["file"]
        assert (file["moments"], file["master_weights"]) == (1e9, 1e9)


def limits_of(tmp_path, limits, offload=None, stage=2):
    config = tmp_path / "limits.json"
    config.write_text(json.dumps({
        "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage": stage} | ({"offload_optimizer": offload} if offload else {}),
        "zeroshard": {"offload": limits},
    }))  # fmt: skip
    return ["--params", "7e9", "--world-size", 1, "--config", config]


def test_limits_of_the_config_are_compared_on_both_tiers(tmp_path):
    # 7 B parameters on one GPU: 112 GB; with states and gradients on the host 14 GB and 98 GB beside it.
    args = limits_of(tmp_path, {"device_memory": "24GB", "host_memory": "100GB"})
    limits = plan(*args)["limits"]
    assert not limits["fits"] and limits["host_memory_bytes"] == 100e9
    assert "needs 112000000000 bytes" in limits["problem"] and "of the device's memory" in limits["problem"]
    assert limits["advice"].endswith('fits: zero_optimization.offload_optimizer.device = "cpu"')
    text = run(*args).stdout
    assert "stage 2, 1 ranks: does not fit: needs 112.0 GB, 4.67 x the 24.00 GB of a device; " in text
    assert (
        'Recommended: zero_optimization.offload_optimizer.device = "cpu": each rank needs 14.00 GB of the 24.00' in text
    )
    assert text.count("112.0 GB") == 1 and "112000000000" not in text
    # It is true, and the option counts more than the key.
    args = limits_of(tmp_path, {"device_memory": "24GB", "host_memory": "100GB"}, {"device": "cpu"})
    assert plan(*args)["limits"] == {"fits": True, "host_memory_bytes": 100e9}
    assert (
        "fits: needs 14.00 GB of the 24.00 GB of a device, and 98.00 GB of the 100.0 GB of the host"
        in run(*args).stdout
    )
    limits = plan(*args, "--host-memory", "80GB")["limits"]
    assert not limits["fits"] and "of the host's memory" in limits["problem"]
    assert limits["advice"].endswith('fits: zero_optimization.offload_optimizer.device = "nvme" with an nvme_path')
    # Ranks on the CPU, for which files are: both keys limit one memory.
    nvme = {"device": "nvme", "nvme_path": "/nvme"}
    for key in ("device_memory", "host_memory"):
        args = limits_of(tmp_path, {key: "20GB"}, nvme)
        result = plan(*args)
        assert result["fit"]["device_memory_bytes"] == 20e9 and not result["limits"]["fits"]
        assert "28000000000 bytes (28 GB) of memory" in result["limits"]["problem"]
    assert "limits" not in plan(*limits_of(tmp_path, {}))


def test_no_share_of_computing_is_told_where_communication_is_not_counted(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2}))
    args = ["--model", tmp_path, "--stage", 2, "--sequence-length", 512, "--flops", "60e12"]
    alone, several = run(*args, "--world-size", 1).stdout, run(*args, "--world-size", 4).stdout
    assert "the device computes in 100 % of it" in alone
    assert "computes in" not in several and "at most" in several
    assert "tokens/s a rank: communication between ranks is not counted" in several
    assert plan(*args, "--world-size", 1)["step"]["efficiency"] == 1
    result = plan(*args, "--world-size", 4)
    assert result["step"]["efficiency"] is None and "communication between ranks" in result["not_counted"]


def llama_70b(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000, "tie_word_embeddings": False,
    }))  # fmt: skip
    return ["--model", tmp_path, "--world-size", 8, "--device-memory", "24GB"]


def test_llama_70b_fits_eight_small_devices_beside_a_large_host(tmp_path):
    args = [*llama_70b(tmp_path), "--host-memory", "2TB"]
    changes = {
        "zero_optimization.stage": 3, "zero_optimization.offload_optimizer.device": "cpu",
        "zero_optimization.offload_param.device": "cpu",
    }  # fmt: skip
    recommended = plan(*args)["recommended"]
    assert recommended["changes"] == changes
    assert (recommended["device_bytes_per_rank"] // 1e9, recommended["host_bytes_per_rank"] // 1e9) == (11, 137)
    text = run(*args).stdout
    assert text.count("Recommended: ") == 1 and "nvme" not in text and "each rank needs 11.12 GB" in text
    # Each need is in the table, and once in the answer; no stage repeats another's.
    answer = text[text.index("\nstage 0, 8 ranks") :]
    assert [answer.count(need) for need in ("1103.7 GB", "379.4 GB", "263.2 GB", "148.6 GB")] == [1, 1, 1, 1]
    # The small host takes a part of it.
    changes["zero_optimization.offload_optimizer.device"] = "nvme"
    assert plan(*llama_70b(tmp_path), "--host-memory", "100GB", "--stage", 2)["recommended"]["changes"] == changes


def test_the_recommended_configuration_is_written(tmp_path):
    args = llama_70b(tmp_path)
    written = tmp_path / "recommended.json"
    assert run(*args, "--write", written).returncode == 0
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    assert json.loads(written.read_text())["zero_optimization"] == zero
    assert plan(*args, "--config", written)["recommended"]["changes"] == {}  # it fits
    # Of a file, all else stays; flat keys give way.
    given = tmp_path / "given.json"
    given.write_text("""{"train_batch_size": 8, "zero_optimization.stage": 2,  // a comment
        "bf16": {"enabled": true}, "optimizer": {"type": "Lion"}, "gradient_clipping": 0.5, }""")
    printed = run(*args, "--config", given, "--write", "-").stdout
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    assert json.loads(printed) == {
        "train_batch_size": 8, "bf16": {"enabled": True}, "optimizer": {"type": "Lion"}, "gradient_clipping": 0.5,
        "zero_optimization": zero,
    }  # fmt: skip
    # What "auto" becomes is written.
    zero = {"stage": 3, "offload_optimizer": {"device": "auto"}, "offload_param": {"device": "auto"}}
    given.write_text(json.dumps({"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": zero}))
    limits = ["--device-memory", "5GB", "--host-memory", "20GB"]
    printed = run("--params", "7e9", "--world-size", 8, "--config", given, *limits, "--write", "-").stdout
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "none"}}
    assert json.loads(printed)["zero_optimization"] == zero
    # Files need a directory.
    refused = run(*args, "--host-memory", "20GB", "--write", written)
    assert refused.returncode == 2 and "give --nvme-path" in refused.stderr, refused.stderr
    assert run(*args, "--host-memory", "20GB", "--write", written, "--nvme-path", "/nvme").returncode == 0
    assert json.loads(written.read_text())["zero_optimization"]["offload_optimizer"]["nvme_path"] == "/nvme"
    assert plan(*args, "--host-memory", "20GB", "--config", written, "--gpu")["recommended"]["changes"] == {}
    for more in (["--device-memory", "1MB"], ["--device-memory", "24GB", "--dtype", "fp32", "--config", given]):
        refused = run(*args[:-2], *more, "--write", written)
        assert refused.returncode == 2 and "written" in refused.stderr, refused.stderr
    refused = run(*args[:-2], "--write", written)
    assert refused.returncode == 2 and "--write needs one --stage" in refused.stderr
    assert "cannot be written" in run(*args, "--write", tmp_path).stderr


def test_a_file_is_planned_for_the_stage_that_is_asked_for(tmp_path):
    config = tmp_path / "ds.json"
    offload = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    zero = {"stage": 2} | offload
    config.write_text(json.dumps({"train_batch_size": 4, "bf16": {"enabled": True}, "zero_optimization": zero}))
    args = ["--params", "8e9", "--world-size", 4, "--config", config]
    own, two, three = plan(*args), plan(*args, "--stage", 2), plan(*args, "--stage", 3)
    assert own == two and any("offload_param" in note for note in own["notes"])
    assert three["breakdown"]["parameters"] == 0 and three["host"]["parameters"] == 2 * 8e9 / 4
    assert not any("offload_param" in note for note in three["notes"])
    every = plan(*args, "--stage", "all")
    assert [stage["total_bytes_per_rank"] for stage in every["stages"]] == [128e9, 16e9, 16e9, 0]
    assert every["stages"][2]["host"] == own["host"] and "host" not in every["stages"][0]


def test_auto_becomes_the_first_that_fits(tmp_path):
    auto = {"device": "auto"}
    for device_memory, becomes in (("112GB", "none"), ("24GB", "cpu")):
        args = limits_of(tmp_path, {"device_memory": device_memory, "host_memory": "100GB"}, auto)
        result = plan(*args)
        assert result["limits"]["fits"]
        assert any(f'"auto" becomes "{becomes}"' in note for note in result["notes"]), result["notes"]
    text = run(*args).stdout
    assert "without, each rank needs 112000000000 bytes (112 GB) of the device's memory" in text
    # The option counts more than the key, here too.
    assert any('becomes "none"' in note for note in plan(*args, "--device-memory", "112GB")["notes"])
    # Nothing fits: planned as the last, and refused.
    limits = plan(*args, "--host-memory", "80GB")["limits"]
    assert not limits["fits"] and "of the host's memory" in limits["problem"]


def test_config_sets_stage_dtype_and_optimizer(tmp_path):
    config = tmp_path / "ds.json"
    config.write_text(json.dumps({
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "fp16": {"enabled": True},
        "zero_optimization": {"stage": 2}, "optimizer": {"type": "Lion", "params": {"lr": 1e-4}},
    }))  # fmt: skip
    planned = plan("--params", 8000, "--world-size", 8, "--config", config)
    assert (planned["stage"], planned["dtype"], planned["optimizer"]) == (2, "fp16", "lion")
    assert planned["checkpoint_staging_host_bytes"] == (4 + 4) * 1000
    # fp16 weights; fp32 accumulated gradients, master weights and one moment, sharded
    assert planned["model_states_bytes_per_rank"] == 2 * 8000 + (4 + 4 + 4) * 1000
    assert plan("--params", 8000, "--world-size", 8, "--config", config, "--stage", 3)["stage"] == 3


def test_replicas_are_planned_by_the_ranks_that_shard_them(tmp_path):
    config = tmp_path / "ds.json"
    config.write_text(json.dumps({
        "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW"}, "zeroshard": {"mesh": {"shard": 2}},
    }))  # fmt: skip
    arguments = ["--params", 8000, "--world-size", 8, "--config", config]
    planned = plan(*arguments)
    assert planned["world_size"] == 8
    assert planned["model_states_bytes_per_rank"] == (2 + 2 + 4 + 8) * 8000 / 2
    assert planned["checkpoint_staging_host_bytes"] == (4 + 8) * 8000 / 8  # each replica saves a part
    said = run(*arguments, "--device-memory", "60KB").stdout
    assert "4 replicas of the states, each sharded over 2 rank(s)" in said
    assert "Larger replicas (zeroshard.mesh.shard), or one for all ranks, need less" in said


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--params", "-1", "--world-size", 8], "-1"),
        (["--params=-1", "--world-size", 8], "'-1' is not a number of parameters"),
        (["--params", "7.5x", "--world-size", 8], "7.5x"),
        (["--params", "1e9", "--world-size", 0], "--world-size is '0', expected a whole number >= 1"),
        (["--params", "1e9", "--world-size", "many"], "many"),
        (["--params", "1e9"], "--world-size"),
        (["--world-size", 8], "--params"),
        (["--params", "1e9", "--model", ".", "--world-size", 8], "either"),
        (["--params", "1e9", "--world-size", 8, "--stage", 4], "--stage must be one of"),
        (["--params", "1e9", "--world-size", 8, "--dtype", "int8"], "--dtype must be one of"),
        (["--params", "1e9", "--world-size", 8, "--optimizer", "adamm"], "--optimizer must be one of"),
        (["--params", "1e9", "--world-size", 8, "--device-memory", "24XB"], "24XB"),
        (["--params", "1e9", "--world-size", 8, "--host-memory", "24"], "24GB"),
        (["--params", "1e9", "--world-size", 8, "--config", "/nonexistent.json"], "/nonexistent.json"),
        (["--params", "1e9", "--world-size", 8, "--list-params"], "--list-params needs --model"),
        (["--model", "/nonexistent", "--world-size", 8], "/nonexistent"),
    ],
)
def test_bad_arguments_exit_2_and_say_why(args, message):
    result = run(*args)
    assert result.returncode == 2, result.stdout + result.stderr
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "llama", "hidden_si', "is not valid JSON"),
        ('{"model_type": "mamba"}', "llama, mistral, qwen2, qwen3, gemma2, mixtral, gpt2"),
        ('{"model_type": "llama", "hidden_size": -8}', '"hidden_size" must be a whole number'),
        ("{}", "model_type"),
    ],
)
def test_bad_model_configs_exit_2_and_say_why(text, message, tmp_path):
    (tmp_path / "config.json").write_text(text)
    result = run("--model", tmp_path, "--world-size", 2)
    assert result.returncode == 2
    assert message in result.stderr
    assert str(tmp_path / "config.json") in result.stderr
