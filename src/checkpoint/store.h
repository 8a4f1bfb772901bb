#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "file/durable.h"

// The directory that holds the checkpoints of a run:
//   TAG/manifest.json and TAG/rank-NNNNN.safetensors   a committed checkpoint
//   latest                                              the newest tag: a hint for people and other tools
//   .tmp-TAG.HOST.PID-RANDOM.N                          one that is being written, or was when its process died
//   .trash-TAG.HOST.PID-RANDOM.N                        one that is being deleted
namespace zeroshard {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kLatestName = "latest";

// Throws ValueError unless `tag` is 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit, and not
// "latest".
void check_tag(std::string_view tag);

// Returns a name that no other process uses or has used, for a directory that is temporary or to be deleted. It
// consists of prefix, tag, process_name() and a number.
std::string private_name(std::string_view prefix, std::string_view tag);

struct FoundCheckpoint {
  std::string tag;
  int64_t step = 0;
  bool latest = true;
  int64_t sequence = 0;
  // A newer commit has an earlier step, because the run went back to an earlier checkpoint.
  bool left_behind = false;
};

struct StoreListing {
  std::vector<FoundCheckpoint> committed;  // newest commit first, those left behind last
  // Tags of damaged checkpoints, each with the reason why its manifest cannot be used.
  std::vector<std::pair<std::string, std::string>> bad;
  std::optional<std::string> latest;  // contents of the hint, if it is a valid tag
  std::string latest_problem;         // why `latest` names no checkpoint, not even a damaged one; or empty

  // Returns the newest checkpoint that counts as latest; null if there is none.
  const FoundCheckpoint* newest() const;
  // Returns the tags of all checkpoints that cannot be used, each with the reason.
  std::vector<std::pair<std::string, std::string>> problems() const;
};

// Reads and checks the manifest of one checkpoint. Throws ValueError or IoError.
Manifest read_manifest(const Directory& root, const std::string& tag);
// Returns whether a directory is one checkpoint, damaged or not, rather than the root of several.
bool holds_checkpoint(const Directory& directory);
// Lists every checkpoint with a sound manifest. Directories without a manifest, files and links are left out, unless
// the hint names them.
StoreListing list_store(const Directory& root);
// Returns whether the checkpoint has been deleted meanwhile, because a run may delete old checkpoints while other
// processes look at them.
bool has_vanished(const Directory& root, const std::string& tag);
// Returns the commit number (Manifest::sequence) at the beginning of a checkpoint's manifest, even if the checkpoint is
// damaged; 0 if there is none. Throws IoError.
int64_t peek_sequence(const Directory& root, const std::string& tag);
// Returns the same number, but -1 for a checkpoint that does not exist or cannot be read.
int64_t sequence_of(const Directory& root, const std::string& tag);
// Returns whether a checkpoint whose sequence_of() was `sequence` has been neither deleted nor replaced since. If it
// has not, and a part of it could not be read, then this part is damaged.
bool is_as_it_was(const Directory& root, const std::string& tag, int64_t sequence);
// Returns the number of the next commit: one more than the largest number of all checkpoints. A checkpoint that cannot
// be read does not count, because it cannot be loaded either.
int64_t next_sequence(const Directory& root);

// Returns whether a new checkpoint `tag` would replace an existing one, sound or damaged. Throws ValueError if the name
// belongs to anything else.
bool replaces(const Directory& root, const std::string& tag);
// Renames the directory `temporary` to `tag`, durably; its contents must be durable already. If there was a checkpoint
// of that tag, the two directories change places, and the function returns true. Throws like replaces().
bool commit(Directory& root, const std::string& temporary, const std::string& tag);
void write_latest(Directory& root, const std::string& tag);
// Deletes all but the `keep` newest checkpoints, but never `except`; 0 keeps all. Checkpoints of later steps than
// `except` are neither counted nor deleted, because a run that went back to an earlier step has not reached these steps
// again. When the run has passed these steps, its own checkpoints are newer and count first.
void retain(Directory& root, int keep, const std::string& except);
// Does the same before a save of `step` with the tag `except`. It deletes the checkpoints that a killed process did not
// delete.
void retain_before(Directory& root, int keep, int64_t step, const std::string& except);
// Says whether processes that this process cannot see may be saving to `root`, on a host with this host's name. Such
// processes are in another container, or ran before the host restarted. They cannot be saving while this process has
// `root` locked.
enum class Others { kMayLive, kAreDead };
// Deletes temporary files of dead processes of this host. Files of other hosts stay, because this process cannot know
// which processes there are dead.
void sweep(Directory& root, Others others);

}  // namespace zeroshard
