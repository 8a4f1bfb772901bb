#include "checkpoint/store.h"

#include <algorithm>
#include <atomic>
#include <tuple>

#include "base/check.h"
#include "base/log.h"
#include "base/process_name.h"
#include "checkpoint/rank_file.h"
#include "file/hash.h"
#include "file/shown.h"

namespace zeroshard {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{1} << 32;
constexpr int64_t kMaxLatestBytes = 256;
constexpr size_t kMaxTag = 128;
constexpr std::string_view kTemporary = ".tmp-", kTrash = ".trash-";

bool is_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_tag(std::string_view tag) {
  return !tag.empty() && tag.size() <= kMaxTag && tag != kLatestName && is_alphanumeric(tag[0]) &&
         std::all_of(tag.begin(), tag.end(),
                     [](char c) { return is_alphanumeric(c) || c == '.' || c == '_' || c == '-'; });
}

// Returns whether `name` is a private name (see private_name()) of a dead process of this host. If `others` is
// kAreDead, this also holds for a process whose name has this host's HOST but another PLACE, which is another boot or
// namespace (see process_name()).
bool is_abandoned(std::string_view name, Others others) {
  if (!name.starts_with(kTemporary) && !name.starts_with(kTrash)) return false;
  const size_t number = name.rfind('.');
  const size_t process = number == std::string_view::npos ? number : name.rfind('.', number - 1);
  const size_t host = process == std::string_view::npos ? process : name.rfind('.', process - 1);
  if (host == std::string_view::npos) return false;
  const std::string_view process_name = name.substr(host + 1, number - host - 1);
  return has_ended(process_name) || (others == Others::kAreDead && is_of_another_place(process_name));
}

// Returns the status of an entry of the root, or nothing if the entry does not exist. Throws IoError if it cannot be
// looked up.
std::optional<FileStatus> status_of(const Directory& root, const std::string& name) {
  FileStatus status;
  const int result = retry_interrupted([&] { return root.io().stat_at(root.fd(), name, status); });
  if (result == -ENOENT) return std::nullopt;
  check_io(result, "look up", root.path_of(name));
  return status;
}

// Returns whether a directory is a checkpoint, damaged or not. A checkpoint has a manifest, and the file of rank 0 or a
// manifest that begins like every manifest. The manifest's name alone is not enough, because other directories can
// contain a file of that name.
bool is_checkpoint(const Directory& directory) {
  const std::string manifest(kManifestName);
  if (!directory.exists(manifest)) return false;
  if (directory.exists(rank_file_name(0))) return true;
  return starts_like_manifest(read_small_file(directory, manifest, kMaxManifestBytes));
}

// Throws IoError if the header of the first file does not have the checksum in the manifest. The manifest then belongs
// to other files than those next to it. Called if the manifest's tag differs from the name of the directory, because
// then either the checkpoint was renamed, or its manifest was replaced.
void check_fits(const Manifest& manifest, const Directory& directory) {
  if (manifest.files.empty()) return;
  const FileRecord& file = manifest.files.front();
  const FileReader reader(directory, file.name);
  std::string header(size_t(std::min(file.header_bytes, reader.size())), '\0');
  reader.read(0, header.data(), int64_t(header.size()));
  if (hash_bytes(header.data(), int64_t(header.size())) == file.header_hash) return;
  throw IoError(
      concat(directory.path(), "/", kManifestName, " is the manifest of the checkpoint '", shown(manifest.tag),
             "', but does not fit the files beside it. Restore the files of that checkpoint, or load another"));
}

// Returns whether `name` is still the entry that had the status `before`. It is another entry if a run has replaced the
// checkpoint. Returns true if `name` cannot be looked up any more.
bool is_same(const Directory& root, const std::string& name, const FileStatus& before) {
  FileStatus now;
  return root.io().stat_at(root.fd(), name, now) != 0 || (now.device == before.device && now.inode == before.inode);
}

// Adds the checkpoint `name` to the whole or to the damaged checkpoints of the listing. Adds nothing if `name` is no
// directory, is no checkpoint, or disappears during the call. A directory without a manifest is no checkpoint, unless
// the hint names the directory (`named`) and it has rank 0's file. It is then a damaged checkpoint. If a run replaces
// the directory during the call, looks at the new directory.
void add_to(StoreListing& listing, const Directory& root, const std::string& name, bool named) {
  constexpr int kMaxTries = 100;
  for (int tries = 1;; ++tries) {
    FileStatus status;
    const int looked = retry_interrupted([&] { return root.io().stat_at(root.fd(), name, status); });
    if (looked == -ENOENT) return;
    try {
      check_io(looked, "look up", root.path_of(name));
      if (status.kind != FileStatus::Kind::kDirectory) return;
      const Directory directory = root.open_directory(name);
      if (!(named ? holds_checkpoint(directory) : directory.exists(std::string(kManifestName)))) {
        if (!is_same(root, name, status) && tries < kMaxTries) continue;
        return;
      }
      const Manifest manifest = read_manifest(root, name);
      listing.committed.push_back({name, manifest.step, manifest.latest, manifest.sequence});
      return;
    } catch (const Error& error) {
      if (has_vanished(root, name)) return;
      if (looked == 0 && !is_same(root, name, status) && tries < kMaxTries) continue;
      listing.bad.emplace_back(name, error.what());
      return;
    }
  }
}

// Returns the tag in the hint, the file "latest". Returns nothing if the file is missing. If it cannot be read or
// contains no valid tag, logs a warning and returns nothing.
std::optional<std::string> read_latest(const Directory& root) {
  const std::string latest(kLatestName);
  try {
    if (!root.exists(latest)) return std::nullopt;
    std::string tag = read_small_file(root, latest, kMaxLatestBytes);
    while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' ')) tag.pop_back();
    if (is_tag(tag)) return tag;
    log(LogLevel::kWarning, concat(root.path(), "/", latest, " names no checkpoint and is ignored"));
  } catch (const IoError& error) {
    log(LogLevel::kWarning, concat("ignored: ", error.what()));
  }
  return std::nullopt;
}

bool has(const StoreListing& listing, const std::string& tag) {
  const auto& [committed, bad, latest, problem] = listing;
  return std::any_of(committed.begin(), committed.end(), [&](const auto& each) { return each.tag == tag; }) ||
         std::any_of(bad.begin(), bad.end(), [&](const auto& each) { return each.first == tag; });
}

// Adds the hint, and the checkpoint that it names if the listing does not have it. The hint must be read after the
// other entries were listed. A run first commits a checkpoint, then names it in the hint, and then deletes older
// checkpoints. If all this happens during the listing, the listing can lack both the new and the older checkpoints.
void add_latest(StoreListing& listing, const Directory& root) {
  while ((listing.latest = read_latest(root)) && !has(listing, *listing.latest)) {
    const std::string tag = *listing.latest;
    add_to(listing, root, tag, /*named=*/true);
    if (has(listing, tag)) return;
    if (read_latest(root) != tag) continue;
    listing.latest_problem =
        concat("the file ", kLatestName, " names it, and ", root.path_of(tag), " is no checkpoint of zeroshard");
    return;
  }
}

// Sorts the checkpoints, the newest commit first, and sets `left_behind`. The checkpoints that a run left behind when
// it went back to an earlier checkpoint come last, because they are not part of the run's history. Among copies of one
// checkpoint, which have the same commit number and step, the copy that the hint names comes first.
void put_in_order(std::vector<FoundCheckpoint>& committed, const std::optional<std::string>& latest) {
  const auto age = [&](const FoundCheckpoint& each) {
    return std::tuple(each.sequence, each.step, each.tag == latest, std::string_view(each.tag));
  };
  std::sort(committed.begin(), committed.end(), [&](const auto& a, const auto& b) { return age(a) > age(b); });
  int64_t step = INT64_MAX;  // step of the last checkpoint that is part of the history
  for (FoundCheckpoint& each : committed) {
    each.left_behind = each.step > step;
    if (!each.left_behind) step = each.step;
  }
  std::stable_partition(committed.begin(), committed.end(), [](const auto& each) { return !each.left_behind; });
}

void discard(Directory& root, const std::string& tag) {
  const std::string trash = private_name(kTrash, tag);
  root.rename(tag, trash);  // atomic, so that no half-deleted directory looks whole
  root.sync();
  root.remove_tree(trash);
}

// Deletes the checkpoints that retain() does not keep. Checkpoints of later steps than `step` do not count and stay.
// Checkpoints with `latest` false do not count and stay, too, because a run does not continue from them by itself, so a
// user saved them for another purpose.
void delete_older(Directory& root, StoreListing& listing, int keep, int64_t step, const std::string& except) {
  std::erase_if(listing.committed, [&](const FoundCheckpoint& found) { return found.step > step || !found.latest; });
  for (size_t i = size_t(keep); i < listing.committed.size(); ++i)
    if (listing.committed[i].tag != except) discard(root, listing.committed[i].tag);
}

}  // namespace

void check_tag(std::string_view tag) {
  ZS_CHECK(tag != kLatestName, "'", tag, "' cannot be the tag of a checkpoint: a file of that name has the newest tag");
  ZS_CHECK(is_tag(tag), "'", tag.substr(0, kMaxTag), "' cannot be the tag of a checkpoint: use 1 to ", kMaxTag,
           " letters, digits, '.', '_' and '-', the first a letter or a digit");
}

std::string private_name(std::string_view prefix, std::string_view tag) {
  static std::atomic<int64_t> next{0};
  return concat(prefix, tag, ".", process_name(), ".", next.fetch_add(1));
}

const FoundCheckpoint* StoreListing::newest() const {
  const auto found = std::find_if(committed.begin(), committed.end(), [](const auto& each) { return each.latest; });
  return found == committed.end() ? nullptr : &*found;
}

std::vector<std::pair<std::string, std::string>> StoreListing::problems() const {
  std::vector<std::pair<std::string, std::string>> all = bad;
  if (!latest_problem.empty()) all.emplace_back(*latest, latest_problem);
  return all;
}

bool has_vanished(const Directory& root, const std::string& tag) {
  FileStatus status;
  return root.io().stat_at(root.fd(), tag, status) == -ENOENT;
}

bool holds_checkpoint(const Directory& directory) {
  return directory.exists(std::string(kManifestName)) || directory.exists(rank_file_name(0));
}

Manifest read_manifest(const Directory& root, const std::string& tag) {
  check_tag(tag);
  const Directory directory = root.open_directory(tag);
  const std::string name(kManifestName), where = concat(directory.path(), "/", name);
  Manifest manifest = parse_manifest(read_small_file(directory, name, kMaxManifestBytes), where);
  if (!manifest.tag.empty() && manifest.tag != tag) check_fits(manifest, directory);
  return manifest;
}

StoreListing list_store(const Directory& root) {
  StoreListing listing;
  for (const std::string& name : root.list())
    if (is_tag(name)) add_to(listing, root, name, /*named=*/false);
  add_latest(listing, root);
  put_in_order(listing.committed, listing.latest);
  std::sort(listing.bad.begin(), listing.bad.end());
  return listing;
}

int64_t peek_sequence(const Directory& root, const std::string& tag) {
  const FileReader manifest(root.open_directory(tag), std::string(kManifestName));
  std::string start(size_t(std::min(manifest.size(), kSequenceEnd)), '\0');
  manifest.read(0, start.data(), int64_t(start.size()));
  return peek_sequence(start);
}

int64_t sequence_of(const Directory& root, const std::string& tag) {
  try {
    return peek_sequence(root, tag);
  } catch (const IoError&) {
    return -1;
  }
}

bool is_as_it_was(const Directory& root, const std::string& tag, int64_t sequence) {
  return !has_vanished(root, tag) && sequence_of(root, tag) == sequence;
}

int64_t next_sequence(const Directory& root) {
  int64_t highest = 0;
  for (const std::string& name : root.list()) {
    // Tries twice, because a checkpoint that is unreadable only for a moment would otherwise not count, and this commit
    // might get no larger number than that checkpoint has.
    for (int tries = 0; is_tag(name) && tries < 2; ++tries) {
      try {
        highest = std::max(highest, peek_sequence(root, name));
        break;
      } catch (const IoError&) {  // no checkpoint, or one that cannot be loaded either
      }
    }
  }
  return std::min(highest, INT64_MAX - 1) + 1;
}

bool replaces(const Directory& root, const std::string& tag) {
  const auto status = status_of(root, tag);
  if (!status) return false;
  ZS_CHECK(status->kind == FileStatus::Kind::kDirectory && is_checkpoint(root.open_directory(tag)), root.path_of(tag),
           " is no checkpoint of zeroshard, and is not replaced by one: choose another tag or directory, or move it "
           "away first");
  return true;
}

bool commit(Directory& root, const std::string& temporary, const std::string& tag) {
  const bool exchanged = replaces(root, tag);
  if (exchanged) {
    root.exchange(temporary, tag);
    root.sync();
  } else {
    root.rename(temporary, tag);
    root.sync();
  }
  return exchanged;
}

void write_latest(Directory& root, const std::string& tag) {
  write_small_file(root, std::string(kLatestName), tag);
}

void retain(Directory& root, int keep, const std::string& except) {
  if (keep <= 0) return;
  StoreListing listing = list_store(root);
  const auto saved = std::find_if(listing.committed.begin(), listing.committed.end(),
                                  [&](const FoundCheckpoint& found) { return found.tag == except; });
  if (saved == listing.committed.end()) return;
  delete_older(root, listing, keep, saved->step, except);
}

void retain_before(Directory& root, int keep, int64_t step, const std::string& except) {
  if (keep <= 0) return;
  const std::vector<std::string> names = root.list();
  const auto tags = std::count_if(names.begin(), names.end(), [](const std::string& name) { return is_tag(name); });
  if (tags <= keep) return;  // the usual case, in which no manifest needs to be read
  StoreListing listing = list_store(root);
  // Neither counts nor deletes checkpoints of later steps than the newest commit, because the run has not passed these
  // steps again if the present save fails.
  if (!listing.committed.empty()) step = std::min(step, listing.committed.front().step);
  delete_older(root, listing, keep, step, except);
}

void sweep(Directory& root, Others others) {
  for (const std::string& name : root.list())
    if (is_abandoned(name, others)) root.remove_tree(name);
}

}  // namespace zeroshard
