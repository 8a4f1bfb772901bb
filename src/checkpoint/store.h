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

// A name for a temporary or doomed directory that no other process uses or has used: prefix + tag, process_name(),
// number.
std::string private_name(std::string_view prefix, std::string_view tag);

struct FoundCheckpoint {
  std::string tag;
  int64_t step = 0;
  bool latest = true;
  int64_t sequence = 0;
  bool left_behind = false;  // of a later step than one that was committed after it: the run went back before it
};

struct StoreListing {
  std::vector<FoundCheckpoint> committed;                // newest commit first, those left behind last
  std::vector<std::pair<std::string, std::string>> bad;  // damaged ones, and why: their manifests cannot be used
  std::optional<std::string> latest;                     // what the hint says, when it is a valid tag
  std::string latest_problem;                            // why that is no checkpoint, not even a damaged one; or empty

  // The newest of those that count as the newest; null: none does.
  const FoundCheckpoint* newest() const;
  // All that cannot be used: tag and why.
  std::vector<std::pair<std::string, std::string>> problems() const;
};

// Reads and checks the manifest of one checkpoint. Throws ValueError or IoError.
Manifest read_manifest(const Directory& root, const std::string& tag);
// Whether a directory is one checkpoint, damaged or not, and not the root of several.
bool holds_checkpoint(const Directory& directory);
// Every checkpoint whose manifest is sound. Directories without a manifest, files and links are not mentioned, unless
// the hint names them.
StoreListing list_store(const Directory& root);
// Whether nothing has this name any more: a run deletes old checkpoints while others look at them.
bool has_vanished(const Directory& root, const std::string& tag);
// The sequence that the manifest of a checkpoint, damaged or not, begins with; 0: none. Throws IoError.
int64_t peek_sequence(const Directory& root, const std::string& tag);
// The same, but -1 for one that is not there or cannot be read.
int64_t sequence_of(const Directory& root, const std::string& tag);
// Whether a checkpoint that had that sequence_of() was neither deleted nor replaced by another of its tag since. If so,
// the part that could not be read is damaged.
bool is_as_it_was(const Directory& root, const std::string& tag, int64_t sequence);
// The sequence of the next commit: one more than any checkpoint has. What cannot be read does not count, nor load.
int64_t next_sequence(const Directory& root);

// Whether a checkpoint `tag` is there, sound or damaged, for a new one to replace. Throws ValueError when anything else
// has the name.
bool replaces(const Directory& root, const std::string& tag);
// Puts the directory `temporary`, whose contents are durable, in the place of `tag`, durably. Returns whether
// `temporary` is now the checkpoint that was there before. Throws as replaces().
bool commit(Directory& root, const std::string& temporary, const std::string& tag);
void write_latest(Directory& root, const std::string& tag);
// Deletes all but the `keep` newest checkpoints, never `except`; 0 keeps all. Checkpoints of later steps than `except`
// neither count nor are deleted: a run that went back has not come that far yet. Once it has passed their steps, they
// do not take the place of its own.
void retain(Directory& root, int keep, const std::string& except);
// The same before a save of `step` under the tag `except`: deletes what a process that died has not deleted.
void retain_before(Directory& root, int keep, int64_t step, const std::string& except);
// Whether processes of a host of this name that this one cannot see (in another container, or before the host was
// started again) may be saving to `root`: not while this process has it locked.
enum class Others { kMayLive, kAreDead };
// Deletes what processes of this host left behind when they died; of other hosts it cannot be known.
void sweep(Directory& root, Others others);

}  // namespace zeroshard
