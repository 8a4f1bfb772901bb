#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace zeroshard {

class RankObserver;

// The rank of this process, according to its launcher.
struct RankEnvironment {
  int rank = 0, world_size = 1;
  int local_rank = 0;        // rank among the ranks of this host; `rank` if the launcher does not say
  int local_world_size = 1;  // ranks on this host; 0: the launcher does not say
  std::string source;        // the launcher: "torchrun", "Open MPI", ...; empty: none, so there is one rank
};

// Reads the variables of torchrun (and zeroshard run), or else of Open MPI, MVAPICH2, MPICH/Intel MPI, Slurm or PMIx.
// There is one rank if none of these variables is set, or if this process is the script of a Slurm batch job. An empty
// variable counts as unset. Throws a ValueError that names the variables if a value is not a whole number, if a
// variable is missing, or if the values contradict one another.
RankEnvironment rank_environment();
// Does the same with variables from another source than the environment. `variable` returns the value of a variable, or
// nothing if the variable is unset. Throws ValueError for an empty value.
RankEnvironment rank_environment(const std::function<std::optional<std::string>(const char*)>& variable);

// Returns a new observer that reports this rank's progress to `zeroshard run`. If another launcher or none started this
// rank, the observer does nothing. The result is never null.
std::shared_ptr<RankObserver> launcher_observer();

}  // namespace zeroshard
