#include "checkpoint/load.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/agreement.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"

namespace zeroshard {
namespace {

// Newest first; a tag alone when one was given.
std::vector<std::string> candidates(Directory& root, const LoadRequest& request) {
  if (request.tag) return {*request.tag};
  const StoreListing listing = list_store(root);
  for (const auto& [tag, reason] : listing.bad) {
    ZS_CHECK(!request.strict, "checkpoint '", tag, "' cannot be used: ", reason,
             ". Without strict loading the newest whole one is taken");
    log(LogLevel::kWarning, concat("checkpoint '", tag, "' is passed over: ", reason));
  }
  std::vector<std::string> tags;
  for (const FoundCheckpoint& found : listing.committed)
    if (found.latest) tags.push_back(found.tag);
  if (listing.latest && !tags.empty() && *listing.latest != tags.front()) {
    const bool there = std::find(tags.begin(), tags.end(), *listing.latest) != tags.end();
    log(LogLevel::kWarning, there ? concat("the file latest names '", *listing.latest, "'; '", tags.front(),
                                           "' is newer and is loaded: pass a tag to choose another")
                                  : concat("the file latest names '", *listing.latest,
                                           "', which is no whole checkpoint: '", tags.front(), "' is loaded"));
  }
  return tags;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// Rank 0's list, so that all try the same ones in the same order.
std::vector<std::string> agree_on_candidates(Directory* root, const LoadRequest& request, Comm& comm) {
  std::string lines;
  together(comm, "load", [&] {
    if (comm.rank() != 0 || root == nullptr) return;
    for (const std::string& tag : candidates(*root, request)) lines += tag + "\n";
  });
  return split_lines(broadcast_text(comm, lines, 0, "load"));
}

void fill(CheckpointReader& reader, const std::vector<StateSlice>& slices) {
  std::vector<WantedElements> wanted;
  for (const StateSlice& slice : slices) {
    if (slice.elements.size() == 0) continue;
    const TensorRecord* const tensor = reader.index().find(slice.name, slice.kind);
    ZS_ASSERT(tensor != nullptr, "a tensor is wanted that the checkpoint does not have");
    wanted.push_back({tensor, slice.elements, slice.dtype, slice.data});
  }
  reader.read(wanted);
}

}  // namespace

std::optional<LoadedCheckpoint> load_checkpoint(const LoadRequest& request, Comm& comm, Io& io) {
  if (request.tag) check_tag(*request.tag);
  std::optional<Directory> root;
  together(comm, "load", [&] { root = Directory::open_if_there(io, request.root); });
  const std::vector<std::string> tags = agree_on_candidates(root ? &*root : nullptr, request, comm);
  std::string reasons;
  for (const std::string& tag : tags) {
    std::optional<CheckpointReader> reader;
    std::vector<StateSlice> wanted;
    // A checkpoint that is not for this run is an error, whatever older ones hold.
    std::string damage;
    const auto attempt = [&](const std::function<void()>& step) {
      try {
        together(comm, "load", step);
        return true;
      } catch (const IoError& error) {
        damage = error.what();
        return false;
      }
    };
    const bool whole = attempt([&] {
                         ZS_CHECK(root, "there is no directory ", request.root);
                         try {
                           reader.emplace(*root, tag);
                         } catch (const ValueError& error) {
                           throw IoError(error.what());  // damage
                         }
                       }) &&
                       attempt([&] { wanted = request.wanted(reader->manifest(), reader->index()); }) &&
                       attempt([&] { fill(*reader, wanted); });
    if (whole) return LoadedCheckpoint{tag, reader->manifest()};
    if (request.tag || request.strict) throw IoError(concat("checkpoint '", tag, "': ", damage));
    if (comm.rank() == 0) log(LogLevel::kWarning, concat("checkpoint '", tag, "' is passed over: ", damage));
    reasons += concat("\n  ", tag, ": ", damage);
  }
  if (!tags.empty()) throw IoError(concat("no checkpoint in ", request.root, " is whole:", reasons));
  return std::nullopt;
}

}  // namespace zeroshard
