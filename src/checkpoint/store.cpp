#include "checkpoint/store.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>

#include "base/check.h"
#include "base/log.h"

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
  return !tag.empty() && tag.size() <= kMaxTag && is_alphanumeric(tag[0]) &&
         std::all_of(tag.begin(), tag.end(),
                     [](char c) { return is_alphanumeric(c) || c == '.' || c == '_' || c == '-'; });
}

// Without dots, so that the parts of a private name can be told apart.
std::string host_name() {
  std::array<char, 256> buffer{};
  ::gethostname(buffer.data(), buffer.size() - 1);
  std::string name(buffer.data());
  for (char& c : name)
    if (!is_alphanumeric(c)) c = '-';
  return name;
}

// Whether a private name is of a process of this host that is no more.
bool is_abandoned(std::string_view name) {
  if (!name.starts_with(kTemporary) && !name.starts_with(kTrash)) return false;
  const size_t number = name.rfind('.');
  const size_t process = number == std::string_view::npos ? number : name.rfind('.', number - 1);
  const size_t host = process == std::string_view::npos ? process : name.rfind('.', process - 1);
  if (host == std::string_view::npos || name.substr(host + 1, process - host - 1) != host_name()) return false;
  const std::string_view digits = name.substr(process + 1, number - process - 1);
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), pid);
  if (error != std::errc() || end != digits.data() + digits.size() || pid <= 0) return false;
  return ::kill(pid, 0) != 0 && errno == ESRCH;
}

void discard(Directory& root, const std::string& tag) {
  const std::string trash = private_name(kTrash, tag);
  root.rename(tag, trash);  // at once: no half-deleted directory looks whole
  root.sync();
  root.remove_tree(trash);
}

}  // namespace

void check_tag(std::string_view tag) {
  ZS_CHECK(is_tag(tag), "'", tag.substr(0, kMaxTag), "' cannot be the tag of a checkpoint: use 1 to ", kMaxTag,
           " letters, digits, '.', '_' and '-', the first a letter or a digit");
}

std::string private_name(std::string_view prefix, std::string_view tag) {
  static std::atomic<int> next{0};
  return concat(prefix, tag, ".", host_name(), ".", ::getpid(), ".", next.fetch_add(1));
}

Manifest read_manifest(const Directory& root, const std::string& tag) {
  check_tag(tag);
  const Directory directory = root.open_directory(tag);
  const std::string name(kManifestName);
  return parse_manifest(read_small_file(directory, name, kMaxManifestBytes), concat(directory.path(), "/", name));
}

StoreListing list_store(const Directory& root) {
  StoreListing listing;
  for (const std::string& name : root.list()) {
    if (!is_tag(name)) continue;
    try {
      const Directory directory = root.open_directory(name);
      if (!directory.exists(std::string(kManifestName))) continue;
    } catch (const IoError&) {
      continue;  // not a directory, or a link to one
    }
    try {
      const Manifest manifest = read_manifest(root, name);
      listing.committed.push_back({name, manifest.step, manifest.latest});
    } catch (const Error& error) {
      listing.bad.emplace_back(name, error.what());
    }
  }
  std::sort(listing.committed.begin(), listing.committed.end(),
            [](const auto& a, const auto& b) { return a.step != b.step ? a.step > b.step : a.tag > b.tag; });
  std::sort(listing.bad.begin(), listing.bad.end());
  const std::string latest(kLatestName);
  try {
    if (root.exists(latest)) {
      std::string tag = read_small_file(root, latest, kMaxLatestBytes);
      while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' ')) tag.pop_back();
      if (is_tag(tag)) {
        listing.latest = tag;
      } else {
        log(LogLevel::kWarning, concat(root.path(), "/", latest, " names no checkpoint and is ignored"));
      }
    }
  } catch (const IoError& error) {
    log(LogLevel::kWarning, concat("ignored: ", error.what()));
  }
  return listing;
}

void commit(Directory& root, const std::string& temporary, const std::string& tag) {
  if (root.exists(tag)) {
    root.exchange(temporary, tag);
    root.sync();
    root.remove_tree(temporary);
  } else {
    root.rename(temporary, tag);
    root.sync();
  }
}

void write_latest(Directory& root, const std::string& tag) {
  write_small_file(root, std::string(kLatestName), tag);
}

void retain(Directory& root, int keep, const std::string& except) {
  if (keep <= 0) return;
  const StoreListing listing = list_store(root);
  for (size_t i = size_t(keep); i < listing.committed.size(); ++i)
    if (listing.committed[i].tag != except) discard(root, listing.committed[i].tag);
}

void sweep(Directory& root) {
  for (const std::string& name : root.list())
    if (is_abandoned(name)) root.remove_tree(name);
}

}  // namespace zeroshard
