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

// Returns a name for a temporary directory, or one to be deleted, that no other process uses or has used: prefix + tag,
// process_name(), number.
std::string private_name(std::string_view prefix, std::string_view tag);

struct FoundCheckpoint {
  std::string tag;
  int64_t step = 0;
  bool latest = true;
  int64_t sequence = 0;
  // Its step is later than that of a newer commit, because the run went back to an earlier checkpoint.
  bool left_behind = false;
};

struct StoreListing {
  std::vector<FoundCheckpoint> committed;  // newest commit first, those left behind last
  // Tags of damaged checkpoints, and why their manifests cannot be used.
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
// Returns whether the name does not exist any more. A run may delete old checkpoints while others look at them.
bool has_vanished(const Directory& root, const std::string& tag);
// Returns the sequence at the beginning of a checkpoint's manifest, even if the checkpoint is damaged; 0: none. Throws
// IoError.
int64_t peek_sequence(const Directory& root, const std::string& tag);
// The same, but returns -1 for a checkpoint that does not exist or cannot be read.
int64_t sequence_of(const Directory& root, const std::string& tag);
// Returns whether a checkpoint whose sequence_of() was `sequence` has been neither deleted nor replaced since. If so,
// the part of it that could not be read is damaged.
bool is_as_it_was(const Directory& root, const std::string& tag, int64_t sequence);
// Returns the sequence of the next commit: one more than the largest of all checkpoints. A checkpoint that cannot be
// read does not count, because it cannot be loaded either.
int64_t next_sequence(const Directory& root);

// Returns whether a checkpoint `tag` exists, sound or damaged, which a new one would replace. Throws ValueError if the
// name belongs to anything else.
bool replaces(const Directory& root, const std::string& tag);
// Renames the directory `temporary`, whose contents are durable, to `tag`, durably. Returns whether `temporary` is now
// the previous checkpoint of that tag. Throws like replaces().
bool commit(Directory& root, const std::string& temporary, const std::string& tag);
void write_latest(Directory& root, const std::string& tag);
// Deletes all but the `keep` newest checkpoints, but never `except`; 0 keeps all. Checkpoints of later steps than
// `except` do not count and are not deleted, because a run that went back has not reached these steps again. When the
// run has passed their steps, they do not take the place of its own checkpoints.
void retain(Directory& root, int keep, const std::string& except);
// The same before a save of `step` with the tag `except`: deletes the checkpoints that a killed process did not delete.
void retain_before(Directory& root, int keep, int64_t step, const std::string& except);
// Says whether invisible processes of a host with this name may be saving to `root`. They may be in another container,
// or from before the host restarted. They cannot be saving while this process has `root` locked.
enum class Others { kMayLive, kAreDead };
// Deletes temporary files of dead processes of this host. It cannot know which processes of other hosts are dead.
void sweep(Directory& root, Others others);

}  // namespace zeroshard
