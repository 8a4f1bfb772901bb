#include "checkpoint/load.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <set>

#include "base/check.h"
#include "base/log.h"
#include "base/suggest.h"
#include "checkpoint/agreement.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"

namespace zeroshard {
namespace {

// Returns whether the damaged checkpoint `tag` counts as older than the newest whole one. Returns false if there is no
// whole one, or if the hint (the file "latest") names `tag`. Otherwise compares the commit number at the beginning of
// the damaged manifest, which can be missing or wrong, with the number of the newest whole checkpoint. If the hint
// names this whole checkpoint, returns true unless the damaged one has a larger number. If the hint does not name it,
// returns true only if the damaged one has a number, and a smaller one.
bool is_older(const Directory& root, const StoreListing& listing, const std::string& tag) {
  const FoundCheckpoint* const whole = listing.newest();
  if (whole == nullptr || listing.latest == tag) return false;
  try {
    const int64_t sequence = peek_sequence(root, tag);
    if (listing.latest == whole->tag) return sequence <= whole->sequence;
    return sequence > 0 && sequence < whole->sequence;
  } catch (const IoError&) {  // for example because this user may not read the manifest
    return listing.latest == whole->tag;
  }
}

// Logs each warning only once, even if the checkpoints are listed several times.
class Warnings {
 public:
  void give(const std::string& text) {
    if (given_.insert(text).second) log(LogLevel::kWarning, text);
  }

 private:
  std::set<std::string> given_;
};

// Returns the checkpoints to try, the newest first. Warns of damaged ones. Throws IoError if there are damaged ones and
// none to try, or if `strict` is true and a damaged one might be the newest.
std::vector<FoundCheckpoint> candidates(const Directory& root, const StoreListing& listing, bool strict,
                                        Warnings& warnings) {
  std::string not_older;
  for (const auto& [tag, reason] : listing.problems()) {
    if (strict && !is_older(root, listing, tag))
      not_older += concat("\n  ", tag, ": ", reason);
    else
      warnings.give(concat("checkpoint '", tag, "' is passed over: ", reason));
  }
  if (!not_older.empty())
    throw IoError(concat("what may be the newest checkpoint in ", root.path(), " cannot be used. Load without strict ",
                         "to take the newest whole one. The reasons:", not_older));
  std::vector<FoundCheckpoint> usable;
  for (const FoundCheckpoint& found : listing.committed)
    if (found.latest) usable.push_back(found);
  if (usable.empty() && !listing.bad.empty()) {
    std::string reasons;
    for (const auto& [tag, reason] : listing.bad) reasons += concat("\n  ", tag, ": ", reason);
    throw IoError(concat("no checkpoint in ", root.path(), " is whole:", reasons));
  }
  // Nothing is logged here if the hint names a checkpoint that is not in `usable`. Such a checkpoint is damaged, which
  // was logged above, or was saved with `latest` false.
  const auto named = std::find_if(usable.begin(), usable.end(),
                                  [&](const FoundCheckpoint& found) { return found.tag == listing.latest; });
  if (named != usable.end() && named != usable.begin())
    warnings.give(concat("the file latest names '", named->tag, "'; '", usable.front().tag,
                         "' is newer and is loaded: pass a tag to choose another"));
  return usable;
}

// Returns a text that says where a checkpoint was looked for, and what was found there. `root` is null if the directory
// does not exist.
std::string nothing_found(const std::string& path, const Directory* root, const StoreListing& listing) {
  std::error_code no_working_directory;
  std::filesystem::path full = std::filesystem::absolute(path, no_working_directory);
  if (root != nullptr && !no_working_directory) full = std::filesystem::canonical(full, no_working_directory);
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

std::string without_digits(std::string name) {
  std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
  return name;
}

std::filesystem::path without_last_slash(const std::string& path) {
  std::error_code error;
  std::filesystem::path full = std::filesystem::absolute(path, error);
  if (error) return {};
  return full.has_filename() ? full : full.parent_path();
}

// Returns a remark that the parent of a missing directory is missing, too. Returns "" if the parent exists.
std::string missing_parent(const std::string& path) {
  const std::filesystem::path parent = without_last_slash(path).parent_path();
  std::error_code error;
  if (parent.empty() || std::filesystem::is_directory(parent, error)) return "";
  return concat(", nor ", parent.string(), ": is the path mistyped?");
}

// Returns a remark that names an existing directory which the user might have meant instead of the missing one. If the
// parent is missing, returns missing_parent(). Returns "" if there is nothing to remark. Names that differ only in a
// number ("run-1", "run-2") are not suggested, because they belong to several runs.
std::string meant_instead_of(const std::string& path) {
  std::error_code error;
  const std::filesystem::path full = without_last_slash(path);
  if (std::string parent = missing_parent(path); !parent.empty()) return parent;
  const std::string name = full.filename().string();
  std::vector<std::string> near;
  for (std::filesystem::directory_iterator entry(full.parent_path(), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string other = entry->path().filename().string();
    std::error_code unknown;
    if (entry->is_directory(unknown) && without_digits(other) != without_digits(name)) near.push_back(other);
  }
  std::sort(near.begin(), near.end());
  return suggest_word(name, near);
}

void fill(CheckpointReader& reader, const std::vector<StateSlice>& slices, Uploader* uploader) {
  std::vector<WantedElements> wanted;
  for (const StateSlice& slice : slices) {
    if (slice.elements.size() == 0) continue;
    const TensorRecord* const tensor = reader.index().find(slice.name, slice.kind);
    ZS_ASSERT(tensor != nullptr, "a tensor is wanted that the checkpoint does not have");
    std::byte* const out = slice.on_host();
    ZS_ASSERT(out != nullptr || uploader != nullptr, "what is not in the host's memory needs an uploader");
    wanted.push_back({tensor, slice.elements, slice.dtype, out});
    if (out == nullptr) wanted.back().elsewhere = {slice.data, slice.offset};
  }
  reader.read(wanted, uploader);
  if (uploader != nullptr) uploader->finish();
}

// One load. All ranks go through its phases together.
class Load {
 public:
  Load(const LoadRequest& request, Comm& comm, Io& io) : request_(request), comm_(comm), io_(io) {}

  std::optional<LoadedCheckpoint> run() {
    agree();
    while (const std::optional<std::string> tag = agree_on_next()) {
      const auto damage = read(*tag);
      if (!damage) {
        if (request_.tag) warn_of_newer();
        return LoadedCheckpoint{*tag, reader_->manifest()};
      }
      failed_.push_back({*tag, sequence_, *damage});
    }
    return std::nullopt;
  }

 private:
  struct Failed {
    std::string tag;
    int64_t sequence;  // only on rank 0
    std::string why;
  };

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

  // Returns the checkpoint to try next, or nothing if there is none. Rank 0 chooses it, so that all ranks try the same
  // checkpoints in the same order.
  std::optional<std::string> agree_on_next() {
    std::string tag;
    together(comm_, "load", [&] {
      if (comm_.rank() == 0) tag = request_.tag ? choose_asked() : choose_newest();
    });
    tag = broadcast_text(comm_, tag, 0, "load");
    ZS_CHECK(root_ || !request_.tag, "there is no directory ", request_.root, meant_instead_of(request_.root));
    if (tag.empty()) return std::nullopt;
    return tag;
  }

  // Returns the requested tag. If a try to read its checkpoint has failed, returns the tag again only if another
  // checkpoint has taken the tag since then. Otherwise, and after kMaxTries, throws IoError.
  std::string choose_asked() {
    const int64_t now = root_ ? sequence_of(*root_, *request_.tag) : -1;
    const bool replaced = !failed_.empty() && now >= 0 && now != failed_.back().sequence;
    if (!failed_.empty() && (!replaced || failed_.size() == kMaxTries)) throw_damaged();
    sequence_ = now;
    return *request_.tag;
  }

  // Returns the tag of the newest listed checkpoint that this load has not tried yet. Returns "" if there is nothing to
  // load and the load is not strict. If the checkpoint that was tried last was deleted or replaced while this job read
  // it, the function lists the checkpoints again, because another job might have saved newer ones. It also lists them
  // again when every checkpoint of the list has been tried. Throws IoError if all checkpoints are damaged. A strict
  // load also throws IoError if there is nothing to load, if the checkpoint that it tried is damaged, or if another
  // damaged one might be the newest.
  std::string choose_newest() {
    if (!failed_.empty() && is_as_it_was(*root_, failed_.back().tag, failed_.back().sequence)) {
      if (request_.strict) throw_damaged();
      warnings_.give(concat("checkpoint '", failed_.back().tag, "' is passed over: ", failed_.back().why));
      if (const auto next = take_untried()) return *next;
    }
    const StoreListing listing = root_ ? list_store(*root_) : StoreListing{};
    if (root_) usable_ = candidates(*root_, listing, request_.strict, warnings_);
    if (failed_.size() < kMaxTries)
      if (const auto next = take_untried()) return *next;
    if (!failed_.empty()) throw_none_whole();
    const std::string nothing = nothing_found(request_.root, root_ ? &*root_ : nullptr, listing);
    if (request_.strict) throw IoError(root_ ? nothing : nothing + meant_instead_of(request_.root));
    const bool is_first = listing.committed.empty() && (!root_ || !holds_checkpoint(*root_));
    if (is_first && request_.may_be_first) return {};
    // A missing directory alone is no reason for a warning, because it is missing when a run starts for the first time.
    // The parent directory exists even then.
    const std::string meant = root_ ? "" : missing_parent(request_.root);
    log(root_ || !meant.empty() ? LogLevel::kWarning : LogLevel::kInfo,
        concat("nothing is loaded, training starts from the beginning: ", nothing, meant));
    return {};
  }

  std::optional<std::string> take_untried() {
    for (const FoundCheckpoint& each : usable_) {
      const bool tried = std::any_of(failed_.begin(), failed_.end(), [&](const Failed& other) {
        return other.tag == each.tag && other.sequence == each.sequence;
      });
      if (tried) continue;
      sequence_ = each.sequence;
      return each.tag;
    }
    return std::nullopt;
  }

  [[noreturn]] void throw_damaged() const {
    throw IoError(concat("checkpoint '", failed_.back().tag, "': ", failed_.back().why));
  }

  [[noreturn]] void throw_none_whole() const {
    std::string reasons;
    for (const Failed& each : failed_) reasons += concat("\n  ", each.tag, ": ", each.why);
    throw IoError(concat("no checkpoint in ", request_.root, " is whole:", reasons));
  }

  // Reads the checkpoint. Returns nothing if the checkpoint was read on every rank. Otherwise returns why it could not
  // be read. For example, it is damaged, or another job has deleted or replaced it.
  std::optional<std::string> read(const std::string& tag) {
    const auto open = [&] {
      try {
        reader_.emplace(*root_, tag);
      } catch (const ValueError& error) {
        throw IoError(error.what());
      }
    };
    if (const auto damage = damage_in(open)) return damage;
    if (const auto replaced = check_manifest(tag)) return replaced;
    std::vector<StateSlice> wanted;
    together(comm_, "load", [&] { wanted = request_.wanted(reader_->manifest(), reader_->index()); });
    if (request_.overwriting) request_.overwriting(tag);
    return damage_in([&] { fill(*reader_, wanted, request_.uploader); });
  }

  std::optional<std::string> damage_in(const std::function<void()>& step) {
    try {
      together(comm_, "load", [&] {
        try {
          step();
        } catch (const std::bad_alloc&) {  // no damage: an older checkpoint would need the same memory
          throw StateError(concat("there is not enough memory to load ", request_.root));
        }
      });
      return std::nullopt;
    } catch (const IoError& error) {
      return error.what();
    }
  }

  // Returns nothing if all ranks have read the same manifest. If the manifests differ because another job has replaced
  // the checkpoint since rank 0 chose it, returns the reason to try again. Otherwise a file system is not shared, or
  // shows an old version to some ranks. The function then throws IoError, because ranks would load different runs.
  std::optional<std::string> check_manifest(const std::string& tag) {
    const std::string mine = std::to_string(reader_->manifest().text_hash);
    const std::string first = broadcast_text(comm_, mine, 0, "load");
    if (all_of_ranks(comm_, mine == first, "load")) return std::nullopt;
    const bool unchanged = comm_.rank() != 0 || sequence_of(*root_, tag) == sequence_;
    if (!all_of_ranks(comm_, unchanged, "load")) return "it was replaced while it was read";
    together(comm_, "load", [&] {
      if (mine == first) return;
      throw IoError(concat(root_->path_of(tag), "/", kManifestName, " is another one than on rank 0 (step ",
                           reader_->manifest().step, " here)", kSameFiles));
    });
    return std::nullopt;
  }

  // Warns a user who loads an older checkpoint by its tag, because a restart without a tag would load a newer one.
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

  // The limit of tries. A load reaches it only if a job deletes checkpoints faster than they can be read.
  static constexpr size_t kMaxTries = 1000;
  static constexpr std::string_view kSameFiles = ": every rank must see the same file system";

  const LoadRequest& request_;
  Comm& comm_;
  Io& io_;
  std::optional<Directory> root_;
  std::optional<CheckpointReader> reader_;
  std::vector<FoundCheckpoint> usable_;  // only on rank 0
  std::vector<Failed> failed_;
  int64_t sequence_ = 0;  // commit number of the checkpoint that is tried; only on rank 0
  Warnings warnings_;
};

}  // namespace

std::optional<LoadedCheckpoint> load_checkpoint(const LoadRequest& request, Comm& comm, Io& io) {
  std::optional<LoadedCheckpoint> loaded;
  or_abort(comm, [&] { loaded = Load(request, comm, io).run(); });
  return loaded;
}

}  // namespace zeroshard
