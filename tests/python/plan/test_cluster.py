"""`zeroshard plan --cluster`: what crosses the network between hosts in a step, and how long that takes."""

import json
import re
import subprocess

import pytest
from built import ZEROSHARD, needs

pytestmark = needs(ZEROSHARD)
PAYLOAD = 1448 / 1538 / 8  # bytes for a bit of a link
PARAMS = 1_000_000


def run(*args):
    return subprocess.run([ZEROSHARD, "plan", *map(str, args)], capture_output=True, text=True, timeout=60)


def plan(*args):
    result = run(*args, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def count(*args, dtype="fp32"):
    return ["--params", PARAMS, "--dtype", dtype, "--cpu", *args]


def write(path, own=None, **zero):
    path.write_text(
        json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero, "zeroshard": own or {}})
    )
    return path


@pytest.mark.parametrize(("cluster", "share"), [("2x2", 1 / 2), ("4x8", 3 / 4), ("1x4", 0), ("3x1", 2 / 3)])
def test_bytes_of_each_stage(cluster, share):
    parameters = 4 * PARAMS * share
    gathers = {0: {}, 1: {"refresh": 1}, 2: {"refresh": 1}, 3: {"forward": 1, "backward": 1}}
    gathers[0] = {"gradient_sums": 1}
    for stage, expected in gathers.items():
        network = plan(*count("--cluster", cluster, "--stage", stage))["network"]
        expected = {**dict.fromkeys(["forward", "backward", "gradient_sums", "refresh"], 0), **expected, "gradients": 1}
        for name, times in expected.items():
            assert network[f"{name}_bytes"] == pytest.approx(times * parameters), (stage, name)
        assert network["total_bytes"] == pytest.approx(sum(expected.values()) * parameters)
        assert "seconds" not in network


def test_the_table_says_the_bytes_and_their_time_at_this_rate():
    said = run(*count("--cluster", "2x4", "--network", "1Gbit")).stdout
    line = next(line for line in said.splitlines() if line.startswith("stage 3, 2 host(s) of 4 rank(s): "))
    seconds = f"{6e6 / (1e9 * PAYLOAD):.3g}"
    assert f"each host sends 6 MB a step and receives as much, in {seconds} s" in line
    assert line.endswith("gathers for forward 2, for backward 2, gradients 2")
    assert "nothing crosses the network" in run(*count("--cluster", "1x4")).stdout
    assert "crosses" not in run(*count("--world-size", 4)).stdout and "network" not in plan(*count("--world-size", 4))


@pytest.mark.parametrize("text", ["10Gbit", "10 gbit/s", "10000Mbit", "0.01Tbit/s", "1e10bit"])
def test_rates_as_people_write_them(text):
    network = plan(*count("--cluster", "2x4", "--stage", 2, "--network", text))["network"]
    assert network["seconds"] == pytest.approx(network["total_bytes"] / (10e9 * PAYLOAD))


def test_the_number_of_ranks_comes_from_the_cluster():
    said = plan(*count("--cluster", "2x4", "--stage", 3))
    assert said["world_size"] == 8 and said["cluster"] == {"hosts": 2, "ranks_per_host": 4}
    assert plan(*count("--cluster", "2x4", "--world-size", 8, "--stage", 3)) == said


def test_the_mesh_and_the_transport_of_the_configuration_count(tmp_path):
    def bytes_of(own=None, cluster="2x4", **zero):
        config = write(tmp_path / "ds.json", own, stage=3, **zero)
        return plan("--params", 1 << 20, "--config", config, "--cpu", "--cluster", cluster)["network"]

    whole = 4 << 20
    assert bytes_of({"mesh": {"shard": "host"}})["total_bytes"] == whole
    assert bytes_of({"mesh": {"shard": 2}})["total_bytes"] == whole
    assert bytes_of(mics_shard_size=4)["gradients_bytes"] == whole
    coded = bytes_of({"mesh": {"shard": "host"}}, zero_quantized_gradients=True)
    assert coded["total_bytes"] == pytest.approx(whole / 4 * (1 + 4 / 256))
    assert bytes_of({"mesh": {"shard": 8}}, "4x4")["forward_bytes"] == whole / 2
    flat = bytes_of({"transport": "process_group"}, "2x2")
    assert flat["forward_bytes"] == whole * 3 / 4 and flat["gradients_bytes"] == whole


def test_ranks_on_devices_leave_two_levels_out():
    on_device = plan("--params", PARAMS, "--dtype", "bf16", "--stage", 3, "--cluster", "2x8")["network"]
    assert on_device["forward_bytes"] == pytest.approx(2 * PARAMS * 15 / 16)
    assert on_device["gradients_bytes"] == pytest.approx(2 * PARAMS * 8 / 2)


def test_the_step_has_the_time_of_the_network(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2}))
    args = ["--model", tmp_path, "--stage", 3, "--sequence-length", 8, "--flops", "60e12", "--cluster", "2x1"]
    said = plan(*args, "--network", "1Gbit")
    step, network = said["step"], said["network"]
    assert step["network_s"] == pytest.approx(network["total_bytes"] / (1e9 * PAYLOAD))
    assert step["total_s"] == pytest.approx(step["network_s"])  # far more than computing
    assert said["not_counted"].count("communication between ranks") == 0 and step["efficiency"] < 0.01
    text = run(*args, "--network", "1Gbit").stdout
    assert re.search(r"a step takes \S+ s: max\(max\(forward \S+, network \S+\) \+ max\(backward \S+, network", text)
    assert "the device computes in 0 % of it" in text
    two = plan(*args[:-1], "2x2", "--network", "1Gbit")
    assert "communication within a host" in two["not_counted"] and two["step"]["efficiency"] is None
    fast = plan(*args, "--network", "900Tbit")["step"]
    assert fast["total_s"] == pytest.approx(fast["forward_s"] + fast["backward_s"], rel=1e-3)


HOSTS = "give the number of hosts and the ranks on each of them, such as 2x8"
NO_CLUSTERS = ("2", "x", "2x", "x2", "0x4", "4x0", "-2x2", "2x2x2", "2X2", "2 x 2", "1.5x2", "2000000x1", "2x2,2x3")
NO_RATES = ("10", "10GB", "-1Gbit", "0Gbit", "Gbit", "1Gbit/h", "infGbit", "nanGbit")
BITS = "as networks are sold, with their unit, such as 1Gbit or 100Gbit/s"


@pytest.mark.parametrize(
    ("args", "error"),
    [
        *[(["--cluster", text], f"--cluster is '{text}': {HOSTS}") for text in NO_CLUSTERS],
        *[(["--cluster", "2x2", "--network", text], f"--network is '{text}': give the bits") for text in NO_RATES],
        (["--cluster", "2x2", "--network", "10"], BITS),
        (["--network", "1Gbit", "--world-size", 4], "--network is of the link between hosts: give --cluster, too"),
        (["--cluster", "2x2", "--world-size", 8], "--world-size is 8, and --cluster 2x2 has 4 ranks: give one of both"),
        ([], "give --world-size"),
        (["--cluster", "2x2", "--gpu"], "--gpu and --cpu: give one of both"),
    ],
)  # fmt: skip
def test_bad_input_is_an_error_with_the_value(args, error):
    result = run(*count(*args))
    assert result.returncode == 2 and error in result.stderr and not result.stdout, result


def test_a_mesh_that_lies_across_hosts_is_an_error_before_anything_is_printed(tmp_path):
    config = write(tmp_path / "ds.json", {"mesh": {"shard": 3}})
    for cluster, shared in {"3x2": 2, "2x6": None, "3x4": 4}.items():
        result = run("--params", PARAMS, "--config", config, "--cluster", cluster)
        if shared is None:  # halves of a host
            assert result.returncode == 0
            continue
        expected = f"shared by 3 neighbouring ranks (zeroshard.mesh.shard), and hosts have {shared} ranks each: give a"
        assert result.returncode == 2 and expected in result.stderr and not result.stdout
    shared = write(tmp_path / "shared.json", {"mesh": {"shard": 4, "outer": "optimizer"}}, stage=3)
    result = run("--params", PARAMS, "--config", shared, "--cluster", "2x6")
    assert result.returncode == 2 and "(zeroshard.mesh.shard)" in result.stderr and not result.stdout, result
    result = run("--params", PARAMS, "--config", config, "--cluster", "2x2")
    assert result.returncode == 2 and "does not divide the 4 ranks" in result.stderr


def test_a_steps_time_over_hosts_needs_the_rate_of_the_link(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2}))
    args = ["--model", tmp_path, "--stage", 3, "--sequence-length", 8, "--flops", "60e12"]
    result = run(*args, "--cluster", "2x2")
    assert result.returncode == 2 and "the step's time needs --network" in result.stderr and not result.stdout
    assert run(*args, "--cluster", "1x2").returncode == 0
