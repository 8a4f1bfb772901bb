"""A plugin of pytest, `--sample`: what `make test` runs. `make test-all` runs everything.

A test with a table runs so many of its cases that every value of every parameter occurs, but none that would make it
run longer than TEST_S: of a test that takes longer by itself one case. Which ones depends on the test's name and its
parameters, so that tests of one feature meet different stages, numbers of ranks and devices. Tests in LEFT_OUT are left
out as a whole, because another test checks the same promise in less time.

seconds.json has the seconds of a case of each test; `pytest --write-seconds` writes those of the tests that it runs.
"""

import json
import random
from collections import defaultdict
from pathlib import Path

import pytest

SECONDS = Path(__file__).with_name("seconds.json")  # of cases that take at least SHORT_S
SHORT_S = 0.05
TEST_S = 0.5

# A key is a test that takes long, its value the test that stands in for it.
# ruff: noqa: E501
LEFT_OUT = {
    # trainers and examples of other libraries, each another start of several interpreters
    "test_compat_trainer.py": {
        "test_four_ranks": "test_compat_transformers.py::test_trainer_trains_saves_and_continues",
        "test_adalora_reads_gradients_after_the_step_and_takes_ranks_away": "test_compat_trl.py::test_trainers_of_trl",
        "test_adalora_in_bf16": "test_compat_trl.py::test_trainers_of_trl",
        "test_ranks_use_different_experts_and_bf16_has_adapters_in_fp32": "test_other_units.py::test_layers_that_some_ranks_leave_out_are_trained",
    },
    "test_compat_trl.py": {"test_grpo_has_the_losses_of_ranks_without_deepspeed": "test_trainers_of_trl"},
    "test_compat_examples.py": {
        "test_trainer_from_scratch": "test_compat_transformers.py::test_trainer_trains_saves_and_continues",
        "test_lora_on_the_trained_model": "test_compat_trl.py::test_trainers_of_trl",
        "test_instruction_tuning": "test_compat_trl.py::test_trainers_of_trl",
        "test_fine_tuning_in_a_loop_of_ones_own": "test_a_plain_loop",
    },
    "test_sequence_trainer.py": {
        "test_trainer_with_two_groups_of_two": "test_sequence_parallel.py::test_a_checkpoint_is_continued_with_another_size",
        "test_a_file_of_accelerate_configures_the_same": "test_trainer",
    },
    "test_sequence_parallel.py": {
        "test_groups_that_share_rows_of_two_replicas": "test_one_digest_at_every_stage_over_every_transport_and_in_replicas",
    },
    "test_train_sequence.py": {
        "test_replicas_change_nothing": "test_sequence_parallel.py::test_one_digest_at_every_stage_over_every_transport_and_in_replicas",
    },
    "test_activations.py": {
        "test_a_loss_in_8_tiles_takes_a_fifth_of_the_memory": "test_the_planned_total_of_tiles_is_the_peak_of_a_step",
    },
    "test_sequence_activations.py": {
        "test_two_ranks_that_share_rows_take_half_of_the_memory": "test_planned_and_kept_bytes_of_a_rank",
    },
    "test_compat_start.py": {
        "test_a_script_may_end_while_a_thread_of_it_waits_in_torch": "test_a_script_may_end_without_ending_its_groups",
    },
    "test_compat_schedules.py": {
        "test_the_loss_scale_is_deepspeeds_over_5000_steps": "test_parity.py::test_fp16_with_overflows",
    },
    "test_distributed.py": {
        "test_torchrun_starts_the_same_job": "test_compat_accelerate.py::test_accelerate_launch",
    },
    # hosts that are namespaces, each with an sshd of its own
    "test_hostfile.py": {
        "test_the_code_and_one_report_of_a_rank_that_fails": "test_what_is_killed_ends_the_job_on_all_hosts",
        "test_a_host_that_vanishes_ends_the_job": "test_what_is_killed_ends_the_job_on_all_hosts",
        "test_a_job_ends_with_the_host_of_its_command": "test_what_is_killed_ends_the_job_on_all_hosts",
        "test_a_signal_saves_once_and_stops_all_hosts": "test_a_signal_reaches_the_ranks_of_all_hosts",
        "test_a_job_may_be_suspended": "test_a_signal_reaches_the_ranks_of_all_hosts",
        "test_two_jobs_at_once": "test_one_command_trains_with_the_bits_of_one_host",
        "test_a_host_by_itself_may_be_another_one": "test_one_command_trains_with_the_bits_of_one_host",
    },
    "test_clusters.py": {
        "test_the_launcher_starts_the_ranks_of_an_allocation": "test_hostfile.py::test_other_launchers_start_the_hosts",
        "test_kubeflow_starts_torchrun": "test_slurm_starts_the_ranks",
        "test_skypilot_starts_a_launcher_on_each_node": "test_hosts.py::test_hosts_train_with_the_bits_of_one",
    },
    "test_hosts_again.py": {
        "test_a_job_that_fails_goes_on_from_its_checkpoint_on_all_hosts": "test_a_job_goes_on_with_the_hosts_that_are_left",
        "test_a_job_does_not_start_again_without_a_host_that_it_needs": "test_a_job_goes_on_with_the_hosts_that_are_left",
        "test_a_signal_is_the_end_of_a_job_with_restarts": "test_a_signal_leaves_every_rank_the_time_to_save",
    },
    "test_compat_pains.py": {
        "test_deepspeed_has_the_names_that_the_guide_says": "test_compat_alias.py::test_every_name_that_the_libraries_use_is_there",
    },
    "test_compile.py": {
        "test_the_default_backend": "test_compiled_units_train_alike",
        "test_what_the_caller_has_compiled_trains_alike": "test_compiled_units_train_alike",
        "test_compiled_blocks_of_a_language_model_are_recomputed": "test_compiled_units_train_alike",
    },
    # other tiers and devices: the C++ tests of the simulated device train the same there
    "test_offload_activations.py": {
        "test_the_key_alone_does_it_under_the_trainer": "test_results_are_those_of_memory",
    },
    "test_activations_elsewhere.py": {
        "test_inputs_of_ranks_that_share_rows": "test_inputs_lie_on_the_host_or_in_files_beside_a_device",
        "test_several_micro_batches_may_be_under_way_on_a_device": "test_offload_activations.py::test_several_micro_batches_may_be_under_way",
        "test_runs_without_python_give_the_same_bits": "test_inputs_lie_on_the_host_or_in_files_beside_a_device",
    },
    "test_offload.py": {
        "test_weights_that_are_put_back_count": "test_a_users_write_is_the_master_weight",
    },
    "test_other_passes.py": {"test_on_devices_too": "test_a_step_is_that_of_plain_torch"},
    "test_parity.py": {"test_optimizers_of_the_caller_on_devices": "test_optimizers_of_the_caller"},
    "test_simulated_device.py": {
        "test_a_model_of_hugging_face_has_one_digest": "test_digest.py::test_one_digest_on_devices",
    },
    "test_reshard.py": {
        "test_another_number_of_devices_loads_at_another_stage": "test_any_number_of_ranks_at_any_stage_loads",
    },
    # larger tables, and long jobs
    "test_models.py": {"test_checkpointing_changes_no_bit": "test_models_train_as_in_pytorch"},
    "test_supervisor.py": {
        "test_a_rank_killed_at_any_time": "test_checkpoint_faults.py::test_a_run_that_was_killed_goes_on_bit_by_bit",
        "test_a_run_under_nohup_outlives_its_terminal": "test_a_signal_ends_in_one_whole_checkpoint",
    },
    "test_digest.py": {
        "test_digests_for_comparing_builds": "test_digest_sees_a_changed_bit",
        "test_one_digest_where_one_backward_is_of_two_forwards": "test_two_forwards.py::test_equal_steps_have_equal_gradients",
    },
    "test_placement.py": {
        "test_a_unit_that_is_whole_may_enter_the_loss_on_some_ranks_alone": "test_other_units.py::test_a_module_that_enters_the_loss_on_some_ranks_is_trained",
    },
    "test_takeover.py": {
        "test_a_module_is_taken_over_after_a_failed_collective_where_it_is_whole": "test_an_engine_whose_collective_failed_is_destroyed",
    },
    "test_many_units.py": {
        "test_a_thousand_units_train_at_every_stage": "test_many_units_train_over_a_process_group",
    },
    "test_tokenizer.py": {"test_shakespeare_as_unigram_of_tokenizers": "test_all_of_shakespeare"},
    "test_soak.py": {
        "test_a_long_job_that_is_killed_again_and_again": "test_checkpoint_faults.py::test_a_run_that_was_killed_goes_on_bit_by_bit",
    },
    # several hosts, each a launcher and interpreters in namespaces of its own
    "test_hosts.py": {
        "test_ranks_of_other_launchers_train_with_the_bits_of_one_host": "test_the_interface_is_the_one_that_leads_to_the_master",
        "test_zeroshard_train_has_the_losses_of_one_host": "test_hosts_train_with_the_bits_of_one",
        "test_a_rank_that_was_asked_to_stop_is_no_failure": "test_a_signal_on_any_host_ends_in_one_whole_checkpoint",
    },
    "test_forks.py": {"test_a_forked_child_ends_by_itself": "test_workers_of_a_data_loader_are_unharmed"},
    "test_faults.py": {"test_a_rank_that_dies_or_stops_with_default_timeouts": "test_a_rank_that_dies_or_stops"},
    "test_start.py": {
        "test_the_launcher_names_a_rank_that_ends_well_before_it_has_come": "test_ranks_that_never_come_are_named",
        "test_ranks_of_zeroshard_train_name_one_that_never_comes": "test_ranks_that_never_come_are_named",
    },
    # what CI and the GPU machine run
    "test_docs.py": {"test_the_site_has_every_page_and_no_broken_link": "test_links_lead_somewhere"},
    "test_again.py": {
        "test_a_test_is_run_again_while_no_worker_runs_another": "test_flaky_tests_of_pytest_are_named_and_fail_no_run",
    },
    "test_on_gpu_script.py": {"test_steps_pass_and_leave_their_results": "test_a_step_that_fails_says_so"},
}


def pytest_addoption(parser):
    parser.addoption("--sample", action="store_true", help="what `make test` runs: of each table some cases")
    parser.addoption("--write-seconds", action="store_true", help=f"write what cases took to {SECONDS.name}")


def pytest_configure(config):
    if config.getoption("--write-seconds") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Seconds(), "seconds")


class Seconds:
    """Writes what a case of each test took, with its fixtures. Alone among the processes of pytest-xdist."""

    def __init__(self):
        self.took = defaultdict(dict)

    def pytest_runtest_logreport(self, report):
        cases = self.took[name_of(report.nodeid)]
        cases[report.nodeid] = cases.get(report.nodeid, 0) + report.duration

    def pytest_sessionfinish(self):
        seconds = known_seconds()
        for test, cases in self.took.items():
            seconds[test] = round(sum(cases.values()) / len(cases), 2)
        long = {test: took for test, took in sorted(seconds.items()) if took >= SHORT_S}
        SECONDS.write_text(json.dumps(long, indent=0) + "\n")


def known_seconds():
    return json.loads(SECONDS.read_text())


def name_of(nodeid):
    """The file and the function of a case: what keys of seconds.json and LEFT_OUT have."""
    return nodeid.partition("[")[0].rpartition("/")[2]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if not config.getoption("--sample"):
        return
    cases = defaultdict(list)  # of each test
    for item in items:
        cases[name_of(item.nodeid)].append(item)
    seconds = known_seconds()
    chosen = set()
    for test, of_test in cases.items():
        path, _, name = test.partition("::")
        if name not in LEFT_OUT.get(path, ()):
            found = sampled(test, [values_of(item) for item in of_test], seconds.get(test, 0))
            chosen |= {of_test[i].nodeid for i in found}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [item for item in items if item.nodeid in chosen]


def values_of(item):
    """The parameters of a case, each a name with a value."""
    if not hasattr(item, "callspec"):
        return {("", "")}
    return {(name, repr(value)) for name, value in item.callspec.params.items()}


def sampled(test, cases, seconds):
    """Positions of cases that have all values which occur in `cases`, as far as TEST_S allows at `seconds` a case.

    The next one is always the case with most values that are new.
    """
    order = list(range(len(cases)))
    random.Random(test).shuffle(order)  # else the first values of all parameters would always come together
    missing = set().union(*cases)
    found = []
    while missing and (not found or (len(found) + 1) * seconds <= TEST_S):
        best = max(order, key=lambda i: len(cases[i] & missing))
        found.append(best)
        missing -= cases[best]
    return found
