#include <array>
#include <type_traits>

#include "config/keys.h"

namespace zeroshard {
namespace {

constexpr std::array<std::string_view, 5> kSchedulerNames{"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle",
                                                          "LRRangeTest"};
const Number kRate{.min = 0};
const Number kRates{.min = 0, .per_group = true};
const Number kMomenta{.min = 0, .max = 1, .per_group = true};

template <auto Member>
struct MemberOf;
template <typename Schedule, typename Value, Value Schedule::*Member>
struct MemberOf<Member> {
  using Class = Schedule;
};

template <typename T>
struct Unwrap {
  using type = T;
};
template <typename T>
struct Unwrap<std::optional<T>> {
  using type = T;
};

template <typename T>
T read(const Json& value) {
  if constexpr (std::is_same_v<T, PerGroup>) {
    if (value.is_array()) return PerGroup(value.get<std::vector<double>>());
    return value.get<double>();
  } else {
    return value.get<T>();
  }
}

template <auto Member>
Key scheduler_param(const char* name, Allowed allowed, Json default_value, const char* help) {
  Key key{std::string("scheduler.params.") + name, std::move(allowed), std::move(default_value), help};
  key.apply = [](Config& config, const Json& value) {
    auto& schedule = std::get<typename MemberOf<Member>::Class>(*config.scheduler);
    schedule.*Member = read<typename Unwrap<std::remove_cvref_t<decltype(schedule.*Member)>>::type>(value);
  };
  return key;
}

// Returns `key` as a required key, for which neither a missing value nor "auto" is allowed.
Key required(Key key) {
  key.required = true;
  key.when_auto = Auto::kRefuse;
  return key;
}

template <typename Schedule>
void add_warmup(std::vector<Key>& keys) {
  keys.push_back(
      scheduler_param<&Schedule::warmup_num_steps>("warmup_num_steps", at_least(1), 1000, "steps of the warm-up"));
  Key type{"scheduler.params.warmup_type", Text{}, "log", "how the warm-up rises: linear, or log for any other text"};
  type.apply = [](Config& config, const Json& value) {
    std::get<Schedule>(*config.scheduler).log_warmup = lower(value.get<std::string>()) != "linear";
  };
  keys.push_back(std::move(type));
}

std::vector<Key> warmup_keys() {
  using C = WarmupLRConfig;
  std::vector<Key> keys{
      scheduler_param<&C::warmup_min_lr>("warmup_min_lr", kRates, 0.0, "learning rate at the start"),
      scheduler_param<&C::warmup_max_lr>("warmup_max_lr", kRates, nullptr,
                                         "after the warm-up; unset: the param group's"),
  };
  add_warmup<C>(keys);
  return keys;
}

std::vector<Key> warmup_decay_keys() {
  using C = WarmupDecayLRConfig;
  std::vector<Key> keys{
      required(
          scheduler_param<&C::total_num_steps>("total_num_steps", at_least(1), nullptr, "steps until the rate is 0")),
      scheduler_param<&C::warmup_min_lr>("warmup_min_lr", kRates, 0.0, "learning rate at the start"),
      scheduler_param<&C::warmup_max_lr>("warmup_max_lr", kRates, 1e-3, "learning rate after the warm-up"),
  };
  keys.back().when_auto = Auto::kDefaultTold;
  add_warmup<C>(keys);
  return keys;
}

std::vector<Key> warmup_cosine_keys() {
  using C = WarmupCosineLRConfig;
  std::vector<Key> keys{
      required(scheduler_param<&C::total_num_steps>("total_num_steps", at_least(1), nullptr,
                                                    "steps until the rate is lowest")),
      scheduler_param<&C::warmup_min_ratio>("warmup_min_ratio", kRate, 0.0,
                                            "start, as a part of the param group's rate"),
      scheduler_param<&C::cos_min_ratio>("cos_min_ratio", kRate, 1e-4, "end, as a part of the param group's rate"),
  };
  add_warmup<C>(keys);
  return keys;
}

std::vector<Key> one_cycle_keys() {
  using C = OneCycleConfig;
  return {
      required(scheduler_param<&C::cycle_min_lr>("cycle_min_lr", kRates, nullptr, "lowest learning rate of the cycle")),
      required(
          scheduler_param<&C::cycle_max_lr>("cycle_max_lr", kRates, nullptr, "highest learning rate of the cycle")),
      scheduler_param<&C::decay_lr_rate>("decay_lr_rate", kRate, 0.0, "decay of the learning rate after the cycle"),
      scheduler_param<&C::cycle_first_step_size>("cycle_first_step_size", at_least(1), 2000,
                                                 "steps of the rising half"),
      scheduler_param<&C::cycle_second_step_size>("cycle_second_step_size", at_least(0), nullptr,
                                                  "steps of the falling half; unset: as the first"),
      scheduler_param<&C::cycle_first_stair_count>("cycle_first_stair_count", at_least(0), 0,
                                                   "stairs of the rising half"),
      scheduler_param<&C::cycle_second_stair_count>("cycle_second_stair_count", at_least(0), nullptr,
                                                    "stairs of the falling half; unset: as the first"),
      scheduler_param<&C::decay_step_size>("decay_step_size", at_least(0), 0, "steps of one decay; 0: no decay"),
      scheduler_param<&C::cycle_momentum>("cycle_momentum", Bool{}, true,
                                          "move beta1 against the learning rate; beta2 is 0.99"),
      scheduler_param<&C::cycle_min_mom>("cycle_min_mom", kMomenta, 0.8, "lowest beta1"),
      scheduler_param<&C::cycle_max_mom>("cycle_max_mom", kMomenta, 0.9, "highest beta1"),
      scheduler_param<&C::decay_mom_rate>("decay_mom_rate", Number{}, 0.0, "change of beta1 after the cycle"),
  };
}

std::vector<Key> range_test_keys() {
  using C = LRRangeTestConfig;
  return {
      scheduler_param<&C::min_lr>("lr_range_test_min_lr", kRates, 1e-3, "learning rate at the start"),
      scheduler_param<&C::step_size>("lr_range_test_step_size", at_least(1), 2000, "steps of one interval"),
      scheduler_param<&C::step_rate>("lr_range_test_step_rate", Number{}, 1.0,
                                     "rise per interval, as a part of the start"),
      scheduler_param<&C::staircase>("lr_range_test_staircase", Bool{}, false, "rise in steps"),
  };
}

}  // namespace

std::span<const std::string_view> scheduler_names() {
  return kSchedulerNames;
}

SchedulerConfig make_scheduler(size_t index) {
  switch (index) {
    case 0:
      return WarmupLRConfig{};
    case 1:
      return WarmupDecayLRConfig{};
    case 2:
      return WarmupCosineLRConfig{};
    case 3:
      return OneCycleConfig{};
    default:
      return LRRangeTestConfig{};
  }
}

std::vector<Key> scheduler_keys(size_t index) {
  using Make = std::vector<Key> (*)();
  constexpr std::array<Make, 5> kTables{warmup_keys, warmup_decay_keys, warmup_cosine_keys, one_cycle_keys,
                                        range_test_keys};
  std::vector<Key> keys = kTables.at(index)();
  keys.push_back(unsupported("scheduler.params.last_batch_iteration", Only{-1}, -1,
                             "a schedule goes on where the loaded checkpoint stopped"));
  return keys;
}

}  // namespace zeroshard
