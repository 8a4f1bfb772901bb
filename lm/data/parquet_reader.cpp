#include "data/parquet_reader.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <vector>

#include "base/check.h"
#include "file/shown.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using Format = TokenizeOptions::Format;

[[noreturn]] void throw_no_plugin(const std::string& path, const std::string& reason) {
  throw ValueError(
      concat("cannot read ", path, ", because ", kParquetPluginFile, " cannot be used (", reason,
             "). A build of zeroshard makes this library only if it finds pyarrow. Install the Python package pyarrow "
             "and build zeroshard again, or convert the file to JSON lines"));
}

std::string library() {
  std::error_code none;
  const fs::path beside = fs::read_symlink("/proc/self/exe", none).parent_path() / kParquetPluginFile;
  return fs::exists(beside, none) ? beside.string() : kParquetPluginFile;
}

std::vector<std::string> columns_of(const ParquetPlugin& plugin, const ParquetRows* rows) {
  std::vector<std::string> names;
  while (const char* name = plugin.column(rows, names.size())) names.emplace_back(name);
  return names;
}

// Returns the columns that DocumentEncoder reads from a record. `there` is the list of the file's columns. The result
// can have columns that the file lacks.
std::vector<std::string> wanted_columns(const TokenizeOptions& options, const std::vector<std::string>& there) {
  const auto has = [&](const char* name) { return std::find(there.begin(), there.end(), name) != there.end(); };
  if (options.format == Format::kInstruct) {
    if (!has("instruction")) return {"prompt", "completion"};
    if (!has("input")) return {"instruction", "output"};
    return {"instruction", "input", "output"};
  }
  if (!options.field.empty()) return {options.field};
  return {options.format == Format::kChat ? "messages" : "text"};
}

}  // namespace

bool is_parquet(const std::string& path) {
  return path.ends_with(".parquet");
}

void refuse_parquet(std::string_view beginning, const std::string& path) {
  // A Parquet file begins with its magic "PAR1" and a page header, whose first byte is 0x15. No text begins with these
  // bytes, because 0x15 is a control character.
  if (!beginning.starts_with("PAR1\x15")) return;
  throw ValueError(concat(path, " is Parquet, which is read from files alone whose names end in .parquet"));
}

const ParquetPlugin& load_parquet_plugin(const std::string& path) {
  const std::string file = library();
  // Never unloads the library, because Arrow has threads and state that are still there after the last file is closed.
  void* const loaded = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (loaded == nullptr) throw_no_plugin(path, shown(::dlerror()));
  const auto get = reinterpret_cast<GetParquetPlugin>(::dlsym(loaded, kParquetPluginSymbol));
  const ParquetPlugin* const plugin = get == nullptr ? nullptr : get();
  if (plugin == nullptr || plugin->version != kParquetPluginVersion)
    throw_no_plugin(path, concat("the one in ", file, " belongs to another version of zeroshard"));
  return *plugin;
}

ParquetReader::ParquetReader(const ParquetPlugin& plugin, const std::string& path, const TokenizeOptions& options)
    : LineSource(path), plugin_(plugin), stop_(options.stop), rows_(nullptr, plugin.close) {
  OpenFd fd = open_input(path, O_NONBLOCK, stop_);  // O_NONBLOCK: does not wait for a pipe without a writer
  struct stat found;
  check_io(::fstat(fd.get(), &found) < 0 ? -errno : 0, "read", path);
  ZS_CHECK(S_ISREG(found.st_mode), "cannot read ", path,
           ": Parquet is read from files alone, and this is a pipe or device");
  // Duplicates the descriptor, because plugin_.open() takes ownership of its argument, and `fd` cannot give up its
  // descriptor.
  const int for_rows = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0);
  check_io(for_rows < 0 ? -errno : 0, "open", path);
  rows_.reset(plugin_.open(for_rows));
  if (!rows_) throw std::bad_alloc();
  if (plugin_.error(rows_.get()) != nullptr) fail();
  select(options);
  bytes_ = found.st_size;
}

void ParquetReader::select(const TokenizeOptions& options) {
  const std::vector<std::string> there = columns_of(plugin_, rows_.get());
  const std::vector<std::string> names = wanted_columns(options, there);
  constexpr const char* kFieldsOfMessages[] = {"role", "content"};
  std::vector<ParquetColumn> columns;
  for (const std::string& name : names) {
    if (std::find(there.begin(), there.end(), name) == there.end()) {
      std::string list;
      for (const std::string& column : there) list += concat(list.empty() ? "'" : ", '", shown(column), "'");
      throw ValueError(
          concat(path_, ": there is no column '", name, "'; the file has ", list.empty() ? "none" : shown(list)));
    }
    const bool messages = options.format == Format::kChat;
    columns.push_back({name.c_str(), messages ? kFieldsOfMessages : nullptr, messages ? size_t{2} : size_t{0}});
  }
  if (plugin_.select(rows_.get(), columns.data(), columns.size()) != 0)
    throw ValueError(concat(path_, ": ", shown(plugin_.error(rows_.get()))));
}

void ParquetReader::fail() const {
  const std::string reason = shown(plugin_.error(rows_.get()));
  if (line_ == 0) throw IoError(concat("cannot read ", path_, " as Parquet: ", reason));
  throw IoError(concat("cannot read ", path_, " as Parquet, after row ", line_, ": ", reason));
}

bool ParquetReader::next(std::string_view& line, int64_t max_bytes) {
  check_stop(stop_);
  const char* json = nullptr;
  size_t bytes = 0;
  const int got = plugin_.next(rows_.get(), &json, &bytes);
  if (got < 0) fail();
  if (got == 0) return false;
  ++line_;
  ZS_CHECK(int64_t(bytes) <= max_bytes, path_, ":", line_, ": the row has more than ", max_bytes,
           " bytes as JSON, too many for one document: divide it, or allow more");
  line = std::string_view(json, bytes);
  return true;
}

}  // namespace zeroshard
