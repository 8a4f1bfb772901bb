#include "checkpoint/load.h"

#include <algorithm>
#include <new>

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
  if (tags.empty() && !listing.bad.empty()) {
    std::string reasons;
    for (const auto& [tag, reason] : listing.bad) reasons += concat("\n  ", tag, ": ", reason);
    throw IoError(concat("no checkpoint in ", root.path(), " is whole:", reasons));
  }
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

// One load: the phases that all ranks go through together.
class Load {
 public:
  Load(const LoadRequest& request, Comm& comm, Io& io) : request_(request), comm_(comm), io_(io) {}

  std::optional<LoadedCheckpoint> run() {
    agree();
    const std::vector<std::string> tags = agree_on_tags();
    std::string reasons;
    for (const std::string& tag : tags) {
      const auto damage = read(tag);
      if (!damage) {
        if (request_.tag) warn_of_newer();
        return LoadedCheckpoint{tag, reader_->manifest()};
      }
      if (request_.tag || request_.strict) throw IoError(concat("checkpoint '", tag, "': ", *damage));
      if (comm_.rank() == 0) log(LogLevel::kWarning, concat("checkpoint '", tag, "' is passed over: ", *damage));
      reasons += concat("\n  ", tag, ": ", *damage);
    }
    if (!tags.empty()) throw IoError(concat("no checkpoint in ", request_.root, " is whole:", reasons));
    return std::nullopt;
  }

 private:
  void agree() {
    check_same(comm_, "loads",
               concat(request_.root, " / ", request_.tag ? "tag " + *request_.tag : "the newest",
                      request_.strict ? " / strict" : "", request_.options.empty() ? "" : " / ", request_.options),
               "load");
    together(comm_, "load", [&] {
      if (request_.tag) check_tag(*request_.tag);
      root_ = Directory::open_if_there(io_, request_.root);
    });
    const std::string here = root_ ? "there" : "not there", first = broadcast_text(comm_, here, 0, "load");
    together(comm_, "load", [&] {
      if (here == first) return;
      throw IoError(concat(request_.root, " is ", here, ", and on rank 0 it is ", first, kSameFiles));
    });
  }

  // Rank 0's list, so that all try the same ones in the same order.
  std::vector<std::string> agree_on_tags() {
    std::string lines;
    together(comm_, "load", [&] {
      if (comm_.rank() != 0 || !root_) return;
      for (const std::string& tag : candidates(*root_, request_)) lines += tag + "\n";
    });
    std::vector<std::string> tags = split_lines(broadcast_text(comm_, lines, 0, "load"));
    ZS_CHECK(root_ || !request_.tag, "there is no directory ", request_.root);
    return tags;
  }

  // Returns what is damaged.
  std::optional<std::string> read(const std::string& tag) {
    const auto open = [&] {
      try {
        reader_.emplace(*root_, tag);
      } catch (const ValueError& error) {
        throw IoError(error.what());
      }
    };
    if (const auto damage = damage_in(open)) return damage;
    check_manifest(tag);
    std::vector<StateSlice> wanted;
    together(comm_, "load", [&] { wanted = request_.wanted(reader_->manifest(), reader_->index()); });
    if (request_.overwriting) request_.overwriting(tag);
    return damage_in([&] { fill(*reader_, wanted); });
  }

  std::optional<std::string> damage_in(const std::function<void()>& step) {
    try {
      together(comm_, "load", [&] {
        try {
          step();
        } catch (const std::bad_alloc&) {  // no sign of damage: an older checkpoint needs as much
          throw StateError(concat("there is not enough memory to load ", request_.root));
        }
      });
      return std::nullopt;
    } catch (const IoError& error) {
      return error.what();
    }
  }

  // A file system that is not shared, or shows an old version to some, would make ranks of different runs.
  void check_manifest(const std::string& tag) {
    const std::string mine = std::to_string(reader_->manifest().text_hash);
    const std::string first = broadcast_text(comm_, mine, 0, "load");
    together(comm_, "load", [&] {
      if (mine == first) return;
      throw IoError(concat(root_->path_of(tag), "/", kManifestName, " is another one than on rank 0 (step ",
                           reader_->manifest().step, " here)", kSameFiles));
    });
  }

  // Whoever takes an older one should know what a restart without a tag would load.
  void warn_of_newer() {
    if (comm_.rank() != 0) return;
    try {
      const StoreListing listing = list_store(*root_);
      for (const FoundCheckpoint& found : listing.committed) {
        if (found.tag == *request_.tag) return;
        if (!found.latest) continue;
        log(LogLevel::kWarning, concat("'", found.tag, "' in ", request_.root, " (step ", found.step,
                                       ") is newer: without a tag it is the one that is loaded, until this run has "
                                       "saved there"));
        return;
      }
    } catch (const std::exception& error) {
      log(LogLevel::kWarning, concat("newer checkpoints could not be looked for: ", error.what()));
    }
  }

  static constexpr std::string_view kSameFiles = ": every rank must see the same file system";

  const LoadRequest& request_;
  Comm& comm_;
  Io& io_;
  std::optional<Directory> root_;
  std::optional<CheckpointReader> reader_;
};

}  // namespace

std::optional<LoadedCheckpoint> load_checkpoint(const LoadRequest& request, Comm& comm, Io& io) {
  std::optional<LoadedCheckpoint> loaded;
  or_abort(comm, [&] { loaded = Load(request, comm, io).run(); });
  return loaded;
}

}  // namespace zeroshard
