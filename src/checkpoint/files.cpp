#include "zeroshard/checkpoint_files.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/log.h"
#include "base/shape_text.h"
#include "checkpoint/convert.h"
#include "checkpoint/export_names.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "file/durable.h"
#include "file/safetensors.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

constexpr char kWeight[] = "weight", kBuffer[] = "buffer";

// The checkpoint that a path names. The path leads to the checkpoint itself, or to a root, which stands for its newest
// checkpoint.
struct Named {
  std::string path, tag;  // of the checkpoint; if all checkpoints of a root are damaged: the root's path, and ""
  Directory root;
  int64_t sequence = -1;   // the checkpoint's commit number; -1: unknown
  StoreListing listing{};  // the root's checkpoints, if the path names a root

  // Returns whether the path might now name another checkpoint, because a run has replaced this checkpoint, or because
  // the path names a root and a run has deleted this checkpoint.
  bool has_moved() const {
    if (tag.empty()) return false;
    const bool may_vanish = !listing.committed.empty();
    return may_vanish ? !is_as_it_was(root, tag, sequence)
                      : !has_vanished(root, tag) && sequence_of(root, tag) != sequence;
  }
};

// Returns the checkpoint that `path` names. If `path` is a root, returns the newest checkpoint that was saved with
// `latest` true, or the newest of all if there is no such checkpoint. If all checkpoints of a root are damaged, `tag`
// is empty. Throws ValueError if there is no checkpoint.
Named find_checkpoint(const std::string& path) {
  Directory directory = Directory::open(posix_io(), path);
  // Resolves links and ".." in the path, as the kernel does, because the last component must be the directory's own
  // name.
  const std::filesystem::path given = std::filesystem::canonical(path);
  if (holds_checkpoint(directory)) {
    const std::string tag = given.filename().string();
    check_tag(tag);
    Directory root = Directory::open(posix_io(), given.parent_path().string());
    const int64_t sequence = sequence_of(root, tag);
    return {given.string(), tag, std::move(root), sequence};
  }
  StoreListing listing = list_store(directory);
  if (listing.committed.empty()) {
    ZS_CHECK(!listing.problems().empty(), path, " is no checkpoint, and there is none in it");
    return {given.string(), "", std::move(directory), -1, std::move(listing)};
  }
  const FoundCheckpoint* const newest = listing.newest();
  const FoundCheckpoint& chosen = newest ? *newest : listing.committed.front();
  const std::string tag = chosen.tag;
  const int64_t sequence = chosen.sequence;
  return {(given / tag).string(), tag, std::move(directory), sequence, std::move(listing)};
}

struct Opened {
  std::string path, tag;
  CheckpointReader reader;
};

// Calls `use` with the checkpoint that `path` names, and returns the result of `use`. If `use` throws an Error and
// Named::has_moved() is true, looks `path` up and calls `use` again, at most kMaxTries times. Rethrows any other error.
auto with_checkpoint(const std::string& path, const auto& use) {
  constexpr int kMaxTries = 100;
  for (int tries = 1;; ++tries) {
    const Named named = find_checkpoint(path);
    try {
      return use(named);
    } catch (const Error&) {
      if (tries == kMaxTries || !named.has_moved()) throw;
    }
  }
}

// Opens a checkpoint for reading. Logs which damaged checkpoints of the root were passed over. Throws IoError if all
// checkpoints of the root are damaged.
Opened open_named(const Named& named) {
  const auto problems = named.listing.problems();
  if (named.tag.empty())
    throw IoError(concat("no checkpoint in ", named.path,
                         " is whole. `zeroshard checkpoint list` shows what is wrong with each; the problem of '",
                         problems[0].first, "' is: ", problems[0].second));
  for (const auto& [tag, why] : problems)
    log(LogLevel::kWarning, concat("'", tag, "' is left out, '", named.tag, "' is taken: ", why));
  return {named.path, named.tag, CheckpointReader(named.root, named.tag)};
}

Opened open_checkpoint(const std::string& path) {
  return with_checkpoint(path, open_named);
}

CheckpointSummary summarise(const std::string& tag, const Manifest& manifest) {
  return {tag, manifest.step, manifest.world_size(), manifest.file_bytes(), manifest.latest, {}};
}

bool is_converted(const std::string& dtype) {
  return convertible(dtype, "F32");
}

// Calls `function` with consecutive ranges that cover the tensor. Each range has at most kPieceBytes.
template <typename Function>
void for_each_piece(const TensorRecord& tensor, Function&& function) {
  const int64_t step = kPieceBytes / 8;  // elements; no dtype has more than 8 bytes
  for (int64_t at = 0; at < tensor.numel(); at += step) function(Range{at, std::min(at + step, tensor.numel())});
}

// Reads the values of an export from a checkpoint, and makes the changes of ExportOptions::change.
class ExportSource {
 public:
  ExportSource(CheckpointReader& reader, const ExportOptions& options) : reader_(reader), options_(options) {}

  // Reads the elements `range` of `tensor` as `dtype`. Only tensors that is_converted() accepts are changed. Throws
  // ValueError if the conversion to `dtype` makes a finite value infinite.
  void read(const TensorRecord& tensor, Range range, const std::string& dtype, void* out) {
    if (!is_converted(tensor.dtype)) return reader_.read(tensor, range, dtype, out);
    if (!options_.change) return read_converted(tensor, range, dtype, out);
    wide_.resize(static_cast<size_t>(range.size()));
    read_converted(tensor, range, "F32", wide_.data());
    options_.change(tensor.name, range.begin, range.end, wide_.data(),
                    [this](const std::string& name, int64_t begin, int64_t end, float* to) {
                      const TensorRecord* const found = reader_.index().find(name, kWeight);
                      ZS_CHECK(found && begin >= 0 && begin <= end && end <= found->numel(), "the checkpoint has no '",
                               name, "' with elements ", begin, " to ", end);
                      reader_.read(*found, Range{begin, end}, "F32", to);
                    });
    if (dtype == "F32") {
      std::memcpy(out, wide_.data(), wide_.size() * sizeof(float));
    } else {
      convert(wide_.data(), "F32", out, dtype, range.size());
      check_finite(tensor, range, dtype, out, wide_.data());
    }
  }

 private:
  void read_converted(const TensorRecord& tensor, Range range, const std::string& dtype, void* out) {
    reader_.read(tensor, range, dtype, out);
    if (dtype == tensor.dtype || all_finite(out, dtype, range.size())) return;
    std::vector<double> exact(static_cast<size_t>(range.size()));
    reader_.read(tensor, range, "F64", exact.data());
    check_finite(tensor, range, dtype, out, exact.data());
  }

  // Throws ValueError if a value that is finite in `values` is not finite in `rounded`. `rounded` has the same values,
  // converted to `dtype`.
  template <typename Float>
  void check_finite(const TensorRecord& tensor, Range range, const std::string& dtype, const void* rounded,
                    const Float* values) const {
    if (all_finite(rounded, dtype, range.size())) return;
    for (int64_t i = 0; i < range.size(); ++i) {
      const void* const own = static_cast<const std::byte*>(rounded) + i * dtype_bytes(dtype);
      if (!std::isfinite(values[i]) || all_finite(own, dtype, 1)) continue;
      throw ValueError(concat("'", tensor.name, "' has the value ", values[i], " at element ", range.begin + i, " of ",
                              tensor.numel(), ", too large for ", dtype, ", which would make it infinite: ",
                              dtype == "F16"    ? "export in BF16 or F32"
                              : dtype == "BF16" ? "export in F32"
                                                : "no dtype of an export can hold it"));
    }
  }

  CheckpointReader& reader_;
  const ExportOptions& options_;
  std::vector<float> wide_;
};

// One file of an export. The file has a temporary name until place() renames it. The destructor deletes a file that was
// not placed.
class ExportFile {
 public:
  explicit ExportFile(Directory& directory) : directory_(directory) {}
  ExportFile(const ExportFile&) = delete;
  ExportFile& operator=(const ExportFile&) = delete;
  ~ExportFile() {
    if (temporary_.empty()) return;
    try {
      directory_.remove_tree(temporary_);
    } catch (const Error&) {  // the earlier error is more important
    }
  }

  int64_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }
  void add(const TensorRecord& tensor, const std::string& name, const std::string& dtype) {
    const int64_t end = bytes_ + tensor.numel() * dtype_bytes(dtype);
    entries_.push_back({name, dtype, tensor.shape, bytes_, end});
    tensors_.push_back(&tensor);
    bytes_ = end;
  }
  void write(std::string name, ExportSource& source) {
    name_ = std::move(name);
    const std::string header = make_safetensors_header(entries_, {{"format", "pt"}});
    temporary_ = temporary_for(directory_, name_);
    FileWriter writer(directory_, temporary_, int64_t(header.size()) + bytes_);
    writer.append(header.data(), int64_t(header.size()));
    std::vector<std::byte> piece(static_cast<size_t>(kPieceBytes));
    for (size_t i = 0; i < tensors_.size(); ++i) {
      for_each_piece(*tensors_[i], [&](Range range) {
        source.read(*tensors_[i], range, entries_[i].dtype, piece.data());
        writer.append(piece.data(), range.size() * dtype_bytes(entries_[i].dtype));
      });
    }
    writer.finish();
  }
  void place() {
    directory_.rename(temporary_, name_);
    temporary_.clear();
  }
  template <typename Map>
  void list(Map& weight_map) const {
    for (const SafetensorsEntry& entry : entries_) weight_map[entry.name] = name_;
  }

 private:
  Directory& directory_;
  std::string name_, temporary_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<const TensorRecord*> tensors_;
  int64_t bytes_ = 0;
};

using ExportFiles = std::vector<std::unique_ptr<ExportFile>>;

// Distributes the weights and buffers of a checkpoint among files, in order, except those that ExportOptions::rename
// gives no name. A file has at most ExportOptions::max_file_bytes of values, or a single larger tensor.
ExportFiles distribute(const Manifest& manifest, const ExportOptions& options, Directory& out) {
  ExportFiles files;
  for (const TensorRecord& tensor : manifest.tensors) {
    if (tensor.kind != kWeight && tensor.kind != kBuffer) continue;
    const std::string name = options.rename ? options.rename(tensor.name) : tensor.name;
    if (name.empty()) continue;
    const std::string dtype = is_converted(tensor.dtype) ? options.dtype : tensor.dtype;
    const int64_t bytes = tensor.numel() * dtype_bytes(dtype);
    if (files.empty() || (files.back()->bytes() > 0 && files.back()->bytes() + bytes > options.max_file_bytes))
      files.push_back(std::make_unique<ExportFile>(out));
    files.back()->add(tensor, name, dtype);
  }
  return files;
}

// Writes all exported tensors to files with temporary names. Throws ValueError if there are none.
ExportFiles write_files(Opened& opened, const ExportOptions& options, Directory& out) {
  ExportFiles files = distribute(opened.reader.manifest(), options, out);
  ZS_CHECK(!files.empty(), opened.path, " has no weights");
  const size_t count = files.size();
  ExportSource source(opened.reader, options);
  for (size_t i = 0; i < count; ++i)
    files[i]->write(count == 1 ? export_name(options.file_stem) : export_name(options.file_stem, i, count), source);
  return files;
}

// Renames the written files, writes their index if there are several, and deletes the files of an earlier export.
// Returns the paths of the new files. A reader that prefers the single file to the index finds the old model, the new
// model or no model at any time, but never files of both, because the steps are in this order.
std::vector<std::string> place(ExportFiles& files, const std::string& stem, Directory& out) {
  std::set<std::string> names;
  for (const auto& file : files) names.insert(file->name());
  const std::string index = export_index_name(stem);
  const bool in_the_way = std::any_of(names.begin(), names.end(), [&](const auto& name) { return out.exists(name); });
  if (files.size() > 1 && in_the_way && out.exists(index)) {
    out.remove(index);
    out.sync();
  }
  nlohmann::json weight_map = nlohmann::json::object();
  int64_t total = 0;
  std::vector<std::string> paths;
  for (const auto& file : files) {
    file->place();
    file->list(weight_map);
    total += file->bytes();
    paths.push_back(out.path_of(file->name()));
  }
  out.sync();
  if (files.size() > 1) {
    const nlohmann::json json{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    write_small_file(out, index, json.dump(2) + "\n");
    names.insert(index);
    paths.push_back(out.path_of(index));
  }
  remove_earlier_export(out, stem, names);
  return paths;
}

std::vector<CheckpointSummary> summarise_all(const Directory& root, const StoreListing& listing) {
  std::vector<CheckpointSummary> summaries;
  for (const FoundCheckpoint& found : listing.committed) {
    try {
      summaries.push_back(summarise(found.tag, CheckpointReader(root, found.tag).manifest()));
    } catch (const Error& error) {
      if (has_vanished(root, found.tag)) continue;
      summaries.push_back({.tag = found.tag, .step = found.step, .problem = error.what()});
    }
  }
  for (const auto& [tag, problem] : listing.problems()) summaries.push_back({.tag = tag, .problem = problem});
  return summaries;
}

// Checks one checkpoint, as CheckpointReader::verify() does. Returns one line for each error.
std::vector<std::string> verify_one(const Directory& root, const std::string& tag) {
  std::vector<std::string> wrong;
  try {
    wrong = CheckpointReader(root, tag).verify();
  } catch (const Error& error) {
    wrong = {error.what()};
  }
  return wrong;
}

std::vector<std::string> verify_named(const Named& named) {
  std::vector<std::string> wrong;
  if (!named.tag.empty()) wrong = verify_one(named.root, named.tag);
  if (!wrong.empty() && named.has_moved()) throw IoError(wrong.front());
  for (const CheckpointSummary& other : summarise_all(named.root, named.listing))
    if (!other.problem.empty() && other.tag != named.tag) wrong.push_back(concat("'", other.tag, "': ", other.problem));
  return wrong;
}

// Returns how two tensors with the same name, kind and shape differ in dtype, in bits or in `updates`. Returns nothing
// if they are equal. If both dtypes are among F64, F32, F16 and BF16, it is no difference that they differ, and the
// values are compared as F64.
std::optional<std::string> difference(const TensorRecord& a, CheckpointReader& first, const TensorRecord& b,
                                      CheckpointReader& second) {
  if (a.dtype != b.dtype && !(is_converted(a.dtype) && is_converted(b.dtype)))
    return concat("dtype ", a.dtype, " and ", b.dtype);
  const std::string dtype = a.dtype == b.dtype ? a.dtype : "F64";
  const bool compare_values = is_converted(dtype);
  std::vector<std::byte> left(static_cast<size_t>(kPieceBytes)), right(left.size());
  std::vector<double> x(static_cast<size_t>(kPieceBytes / 8)), y(x.size());
  int64_t differing = 0;
  double largest = 0;
  for_each_piece(a, [&](Range range) {
    first.read(a, range, dtype, left.data());
    second.read(b, range, dtype, right.data());
    const int64_t width = dtype_bytes(dtype);
    if (std::memcmp(left.data(), right.data(), size_t(range.size() * width)) == 0) return;
    if (compare_values) {
      convert(left.data(), dtype, x.data(), "F64", range.size());
      convert(right.data(), dtype, y.data(), "F64", range.size());
    }
    for (int64_t i = 0; i < range.size(); ++i) {
      if (std::memcmp(left.data() + i * width, right.data() + i * width, size_t(width)) == 0) continue;
      ++differing;
      if (compare_values) largest = std::max(largest, std::abs(x[size_t(i)] - y[size_t(i)]));
    }
  });
  if (differing == 0 && a.updates == b.updates) return std::nullopt;
  if (differing == 0) return concat("updated ", a.updates, " and ", b.updates, " times");
  return concat(differing, " of ", a.numel(), " elements differ",
                compare_values ? concat(", by at most ", largest) : std::string());
}

std::vector<std::string> differences(Opened first, Opened second) {
  std::vector<std::string> lines;
  const auto line = [&](const TensorRecord& tensor, const std::string& what) {
    lines.push_back(concat(tensor.name, " (", tensor.kind, "): ", what));
  };
  for (const TensorRecord& tensor : first.reader.manifest().tensors) {
    const TensorRecord* const match = second.reader.index().find(tensor.name, tensor.kind);
    if (match == nullptr) {
      line(tensor, concat("only in ", first.path));
    } else if (match->shape != tensor.shape) {
      line(tensor, concat("shape ", shape_text(tensor.shape), " and ", shape_text(match->shape)));
    } else if (const auto what = difference(tensor, first.reader, *match, second.reader)) {
      line(tensor, *what);
    }
  }
  for (const TensorRecord& tensor : second.reader.manifest().tensors)
    if (first.reader.index().find(tensor.name, tensor.kind) == nullptr) line(tensor, concat("only in ", second.path));
  return lines;
}

}  // namespace

std::vector<CheckpointSummary> list_checkpoints(const std::string& path) {
  const Directory root = Directory::open(posix_io(), path);
  std::vector<CheckpointSummary> summaries = summarise_all(root, list_store(root));
  ZS_CHECK(!summaries.empty() || !holds_checkpoint(root), path,
           " is itself a checkpoint: list the directory that it is in, or inspect this one");
  std::stable_partition(summaries.begin(), summaries.end(), [](const auto& each) { return each.problem.empty(); });
  return summaries;
}

namespace {

CheckpointDetails details_of(const Opened& opened) {
  const Manifest& manifest = opened.reader.manifest();
  CheckpointDetails details{
      summarise(opened.tag, manifest), opened.path, manifest.config_digest, manifest.state, manifest.versions, {}};
  for (const TensorRecord& tensor : manifest.tensors)
    details.tensors.push_back({tensor.name, tensor.kind, tensor.dtype, tensor.aliases, tensor.shape, tensor.trainable,
                               tensor.updates, tensor.numel() * dtype_bytes(tensor.dtype)});
  return details;
}

}  // namespace

CheckpointDetails inspect_checkpoint(const std::string& path) {
  return details_of(open_checkpoint(path));
}

struct StoredCheckpoint::Impl {
  Opened opened;
  CheckpointDetails details;
};

StoredCheckpoint::StoredCheckpoint(const std::string& path) {
  Opened opened = open_checkpoint(path);
  CheckpointDetails details = details_of(opened);
  impl_ = std::make_unique<Impl>(Impl{std::move(opened), std::move(details)});
}

StoredCheckpoint::~StoredCheckpoint() = default;

const CheckpointDetails& StoredCheckpoint::details() const {
  return impl_->details;
}

void StoredCheckpoint::read(const std::string& name, const std::string& kind, const std::string& dtype, void* out) {
  CheckpointReader& reader = impl_->opened.reader;
  const TensorRecord* const tensor = reader.index().find(name, kind);
  ZS_CHECK(tensor, impl_->details.path, " has no '", name, "' (", kind, ")");
  ZS_CHECK(convertible(tensor->dtype, dtype), "'", name, "' is ", tensor->dtype, " and cannot be read as ", dtype);
  reader.read(*tensor, Range{0, tensor->numel()}, dtype, out);
}

std::vector<std::string> verify_checkpoint(const std::string& path) {
  return with_checkpoint(path, verify_named);
}

std::vector<std::string> export_weights(const std::string& path, const std::string& directory,
                                        const ExportOptions& options) {
  ZS_CHECK(options.dtype == "F32" || options.dtype == "BF16" || options.dtype == "F16", "dtype '", options.dtype,
           "': an export is in F32, BF16 or F16");
  ZS_CHECK(options.max_file_bytes > 0, "the largest size of a file is ", options.max_file_bytes, " bytes");
  check_tag(options.file_stem);
  std::optional<Directory> out;
  ExportFiles files = with_checkpoint(path, [&](const Named& named) {
    Opened opened = open_named(named);
    if (!out) out = Directory::create(shared_posix_io(), directory);
    return write_files(opened, options, *out);
  });
  return place(files, options.file_stem, *out);
}

std::vector<std::string> diff_checkpoints(const std::string& one, const std::string& other) {
  return with_checkpoint(one, [&](const Named& named) {
    return with_checkpoint(other, [&](const Named& with) { return differences(open_named(named), open_named(with)); });
  });
}

}  // namespace zeroshard
