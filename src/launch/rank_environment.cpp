#include "zeroshard/rank_environment.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace zeroshard {
namespace {

using Variable = std::function<std::optional<std::string>(const char*)>;

// The names of the variables of one launcher. nullptr means that the launcher has no such variable.
struct Source {
  const char* name;
  const char* rank;
  std::array<const char*, 2> world_size;  // the first of them that is set counts
  const char* local_rank;
  const char* local_world_size;
};

constexpr Source kSources[] = {
    {"torchrun", "RANK", {"WORLD_SIZE", nullptr}, "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     {"OMPI_COMM_WORLD_SIZE", nullptr},
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MVAPICH2",
     "MV2_COMM_WORLD_RANK",
     {"MV2_COMM_WORLD_SIZE", nullptr},
     "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "PMI_RANK", {"PMI_SIZE", nullptr}, "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, "SLURM_LOCALID", nullptr},
    {"PMIx", "PMIX_RANK", {"PMIX_SIZE", "SLURM_NTASKS"}, "PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE"},
};

struct Value {
  const char* name;
  int value;
};

std::optional<Value> read(const Variable& variable, const char* name) {
  if (name == nullptr) return {};
  const std::optional<std::string> text = variable(name);
  if (!text) return {};
  int value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  ZS_CHECK(error == std::errc{} && stop == end && value >= 0, name, " is '", *text, "', expected a whole number >= 0");
  return Value{name, value};
}

// Returns whether `source` is Slurm, and this process is the script of a batch job. Such a script has SLURM_PROCID=0
// and the job's SLURM_NTASKS, but is not a rank of the job.
bool is_batch_script(const Source& source, const Variable& variable) {
  return std::string_view(source.rank) == "SLURM_PROCID" && variable("SLURM_JOB_ID") && !variable("SLURM_STEP_ID");
}

void check_local(const Source& source, const RankEnvironment& result, const std::optional<Value>& local_rank,
                 const std::optional<Value>& local_size) {
  ZS_CHECK(result.local_rank <= result.rank, source.local_rank, "=", result.local_rank, " is above ", source.rank, "=",
           result.rank);
  if (!local_size) return;
  ZS_CHECK(local_size->value > 0 && local_size->value <= result.world_size, local_size->name, "=", local_size->value,
           " is not between 1 and the number of ranks, ", result.world_size);
  ZS_CHECK(local_rank || local_size->value == result.world_size, local_size->name, "=", local_size->value,
           " is set but ", source.local_rank, " is not: set it to the rank's number on its host");
  ZS_CHECK(result.local_rank < local_size->value, source.local_rank, "=", result.local_rank, " is not below ",
           local_size->name, "=", local_size->value);
}

std::optional<RankEnvironment> read(const Source& source, const Variable& variable) {
  const auto rank = read(variable, source.rank);
  if (!rank || is_batch_script(source, variable)) return {};
  auto world_size = read(variable, source.world_size[0]);
  if (!world_size) world_size = read(variable, source.world_size[1]);
  ZS_CHECK(world_size, source.rank, " is set to ", rank->value, " but ", source.world_size[0],
           " is not: set both, or neither to run one rank");
  ZS_CHECK(world_size->value > 0, world_size->name, " is 0, expected at least 1");
  ZS_CHECK(rank->value < world_size->value, source.rank, "=", rank->value, " is not below ", world_size->name, "=",
           world_size->value);
  const auto local_rank = read(variable, source.local_rank);
  const auto local_size = read(variable, source.local_world_size);
  // If the launcher sets no local rank, all ranks are assumed to run on one host.
  RankEnvironment result{.rank = rank->value,
                         .world_size = world_size->value,
                         .local_rank = local_rank ? local_rank->value : rank->value,
                         .local_world_size = local_size ? local_size->value : 0,
                         .source = source.name};
  check_local(source, result, local_rank, local_size);
  return result;
}

}  // namespace

RankEnvironment rank_environment(const Variable& variable) {
  for (const Source& source : kSources) {
    if (auto result = read(source, variable)) return *std::move(result);
  }
  const auto world_size = read(variable, "WORLD_SIZE");
  ZS_CHECK(!world_size || world_size->value <= 1, "WORLD_SIZE is ", world_size->value,
           " but RANK is not set: set it to this process's rank, or unset WORLD_SIZE to run one rank");
  return {};
}

RankEnvironment rank_environment() {
  return rank_environment([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);  // an empty value counts as if it were not set
    if (value == nullptr || *value == 0) return {};
    return value;
  });
}

}  // namespace zeroshard
