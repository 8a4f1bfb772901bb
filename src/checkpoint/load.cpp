#include "checkpoint/load.h"

#include <algorithm>
#include <filesystem>
#include <new>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/agreement.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"

namespace zeroshard {
namespace {

// Whether a damaged checkpoint can be told to be older than the newest whole one. A damaged manifest may begin with any
// number: it counts only when it agrees with the hint.
bool is_older(const Directory& root, const StoreListing& listing, const std::string& tag) {
  const FoundCheckpoint* const whole = listing.newest();
  if (whole == nullptr || listing.latest == tag) return false;
  try {
    const int64_t sequence = peek_sequence(root, tag);
    if (listing.latest == whole->tag) return sequence <= whole->sequence;
    return sequence > 0 && sequence < whole->sequence;
  } catch (const IoError&) {  // such as one without permission to be read
    return listing.latest == whole->tag;
  }
}

// Newest first.
std::vector<std::string> candidates(const Directory& root, const StoreListing& listing, bool strict) {
  std::string not_older;
  for (const auto& [tag, reason] : listing.problems()) {
    if (strict && !is_older(root, listing, tag))
      not_older += concat("\n  ", tag, ": ", reason);
    else
      log(LogLevel::kWarning, concat("checkpoint '", tag, "' is passed over: ", reason));
  }
  if (!not_older.empty())
    throw IoError(concat("what may be the newest checkpoint in ", root.path(), " cannot be used (without strict ",
                         "loading the newest whole one is taken):", not_older));
  std::vector<std::string> tags;
  for (const FoundCheckpoint& found : listing.committed)
    if (found.latest) tags.push_back(found.tag);
  if (tags.empty() && !listing.bad.empty()) {
    std::string reasons;
    for (const auto& [tag, reason] : listing.bad) reasons += concat("\n  ", tag, ": ", reason);
    throw IoError(concat("no checkpoint in ", root.path(), " is whole:", reasons));
  }
  // One that is not among them was passed over, or saved not to count.
  const auto named = listing.latest ? std::find(tags.begin(), tags.end(), *listing.latest) : tags.end();
  if (named != tags.end() && named != tags.begin())
    log(LogLevel::kWarning, concat("the file latest names '", *named, "'; '", tags.front(),
                                   "' is newer and is loaded: pass a tag to choose another"));
  return tags;
}

// Where was looked for a checkpoint, and what is there instead; `root` is null when it is not there.
std::string nothing_found(const std::string& path, const Directory* root, const StoreListing& listing) {
  std::error_code no_working_directory;
  std::filesystem::path full = std::filesystem::absolute(path, no_working_directory).lexically_normal();
  if (no_working_directory) full = path;
  if (!full.has_filename()) full = full.parent_path();
  const std::string where = full.string();
  if (root == nullptr) return concat("there is no directory ", where);
  if (holds_checkpoint(*root))
    return concat(where, " is itself a checkpoint: pass ", full.parent_path().string(), " and the tag '",
                  full.filename().string(), "'");
  if (listing.committed.empty()) return concat("there is no checkpoint in ", where);
  return concat("the checkpoints in ", where,
                " are loaded by their tags alone (they were saved with latest = false): pass one, such as '",
                listing.committed.front().tag, "'");
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
      if (comm_.rank() != 0) return;
      if (request_.tag) {
        lines = *request_.tag + "\n";
        return;
      }
      const StoreListing listing = root_ ? list_store(*root_) : StoreListing{};
      if (root_)
        for (const std::string& tag : candidates(*root_, listing, request_.strict)) lines += tag + "\n";
      if (!lines.empty()) return;
      const std::string nothing = nothing_found(request_.root, root_ ? &*root_ : nullptr, listing);
      if (request_.strict) throw IoError(nothing);
      // A directory that is not there yet is what a first start finds.
      log(root_ ? LogLevel::kWarning : LogLevel::kInfo,
          concat("nothing is loaded, training starts from the beginning: ", nothing));
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
