#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "file/durable.h"

// Functions for the directory that holds the checkpoints of a run (its root). The directory contains:
// - TAG/manifest.json and TAG/rank-NNNNN.safetensors: a committed checkpoint.
// - latest: the newest tag, as a hint for people and other tools.
// - .tmp-TAG.HOST.PID-PLACE-RANDOM.N: a checkpoint that a process is writing, or was writing when it died.
//   HOST.PID-PLACE-RANDOM is the process_name(). After a checkpoint has replaced one with the same tag, the replaced
//   checkpoint has this name until it is deleted.
// - .trash-TAG.HOST.PID-PLACE-RANDOM.N: a checkpoint that is being deleted.
namespace zeroshard {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kLatestName = "latest";

// Throws ValueError if `tag` is not a valid tag. A tag has 1 to 128 letters, digits, '.', '_' and '-', begins with a
// letter or digit, and is not "latest".
void check_tag(std::string_view tag);

// Returns a name for a directory that is temporary or is to be deleted. Nobody else uses or has used the name, because
// it contains process_name() and a number that this process increments for each name.
std::string private_name(std::string_view prefix, std::string_view tag);

struct FoundCheckpoint {
  std::string tag;
  int64_t step = 0;
  bool latest = true;
  int64_t sequence = 0;
  // Whether a later commit has an earlier step, because the run went back to an earlier checkpoint.
  bool left_behind = false;
};

struct StoreListing {
  std::vector<FoundCheckpoint> committed;  // newest commit first; the checkpoints left behind come last
  // The tags of damaged checkpoints. Each has the reason why its manifest cannot be used.
  std::vector<std::pair<std::string, std::string>> bad;
  std::optional<std::string> latest;  // the tag in the hint; unset if the hint cannot be read or contains no valid tag
  std::string latest_problem;         // why `latest` names no checkpoint, whole or damaged; empty if it names one

  // Returns the first checkpoint in `committed` that was saved with `latest` true, or null if there is none.
  const FoundCheckpoint* newest() const;
  // Returns `bad`. If `latest_problem` is not empty, adds `latest` with this problem.
  std::vector<std::pair<std::string, std::string>> problems() const;
};

// Reads and checks the manifest of one checkpoint. Throws ValueError or IoError.
Manifest read_manifest(const Directory& root, const std::string& tag);
// Returns whether a directory has a manifest or the file of rank 0, so that it looks like one checkpoint, damaged or
// not. Other directories can be the root of several checkpoints.
bool holds_checkpoint(const Directory& directory);
// Lists every checkpoint of `root`, with damaged ones in `bad`. A checkpoint counts as damaged if its manifest is
// damaged, because only manifests are read. Leaves out files, links, directories without a manifest, and names that are
// no tags. But if the hint names a directory that has the file of rank 0 and no manifest, the directory is listed in
// `bad`. If the hint names anything else that is left out, `latest_problem` says so.
StoreListing list_store(const Directory& root);
// Returns whether the checkpoint does not exist any more. A run can delete old checkpoints while other processes look
// at them.
bool has_vanished(const Directory& root, const std::string& tag);
// Returns the commit number (Manifest::sequence) at the beginning of a checkpoint's manifest, even if the checkpoint is
// damaged. Returns 0 if the manifest has none. Throws IoError if the manifest cannot be read.
int64_t peek_sequence(const Directory& root, const std::string& tag);
// Returns the same number as peek_sequence(), or -1 if the manifest cannot be read.
int64_t sequence_of(const Directory& root, const std::string& tag);
// Returns whether a checkpoint whose sequence_of() was `sequence` still exists and has not been replaced since. If so,
// and if a part of the checkpoint could not be read, this part is damaged.
bool is_as_it_was(const Directory& root, const std::string& tag, int64_t sequence);
// Returns the number of the next commit, which is one more than the largest commit number of all checkpoints. A
// checkpoint that cannot be read does not count, because it cannot be loaded either.
int64_t next_sequence(const Directory& root);

// Returns whether a new checkpoint `tag` would replace an existing checkpoint, whole or damaged. Throws ValueError if
// something else has this name.
bool replaces(const Directory& root, const std::string& tag);
// Renames the directory `temporary` to `tag`, durably. The contents of `temporary` must be durable already. If there
// was a checkpoint of that tag, the two directories exchange their names, and the function returns true. Throws
// ValueError like replaces(), or IoError.
bool commit(Directory& root, const std::string& temporary, const std::string& tag);
void write_latest(Directory& root, const std::string& tag);
// Deletes undamaged checkpoints that were saved with `latest` true, except the `keep` newest ones and `except`. If
// `keep` is 0, or if `except` is damaged or missing, deletes nothing. Checkpoints of later steps than `except` are
// neither counted nor deleted. They exist if the run went back to an earlier step, and has not reached their steps
// again. When the run has passed their steps, they count as older than all others.
void retain(Directory& root, int keep, const std::string& except);
// Deletes checkpoints like retain(), but before a save of `step` with the tag `except`. This is needed because a killed
// process might not have deleted its older checkpoints. Checkpoints of later steps than the newest commit are neither
// counted nor deleted, because the save might still fail.
void retain_before(Directory& root, int keep, int64_t step, const std::string& except);
// Says whether processes with this host's name but another PLACE (see process_name()) might be saving to `root`. Such
// processes run in another container, or ran before the host restarted, and this process cannot see whether they live.
// If this process holds a lock of `root` that is_sure(), none of them is saving to `root`.
enum class Others { kMayLive, kAreDead };
// Deletes the files and directories whose names begin with .tmp- or .trash- and belong to dead processes of this host.
// Names of another PLACE count as dead if `others` is kAreDead. Names of other hosts stay, because this process cannot
// know which processes on these hosts are dead.
void sweep(Directory& root, Others others);

}  // namespace zeroshard
