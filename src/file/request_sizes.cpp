#include "file/request_sizes.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <span>
#include <sstream>
#include <thread>
#include <vector>

#include "base/boot_id.h"
#include "base/format.h"
#include "base/interrupt.h"
#include "file/disk_probe.h"
#include "file/durable.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

constexpr const char* kKnown = "disks";  // the name of a file in the cache, with a line for each disk
constexpr const char* kHeader = "# start of a machine, device, bytes of a request, requests at once\n";
constexpr const char* kLock = "disks.lock";  // the name of a file in the cache, which a process locks while it measures
constexpr int64_t kMostBytes = 64 << 10;     // the most bytes of the file kKnown
// The most disks in the file kKnown. If there are more, the latest ones stay. There can be many disks, because machines
// can share a home directory.
constexpr size_t kMostKnown = 200;
constexpr int64_t kProbeBytes = int64_t{128} << 20;
constexpr double kProbeSeconds = 1;  // DiskProbeOptions::seconds
// All sizes are measured twice. The fastest sizes replace the usual ones only if the slower of their two rates is at
// least this factor times the faster rate of the usual ones. Usual sizes that are not among the measured ones are
// always replaced.
constexpr double kGain = 1.1;
constexpr std::chrono::milliseconds kPoll{20};

// Identifies a disk by the start of the machine and the number of the device. The start is needed because a restart can
// change the numbers of devices.
struct Disk {
  std::string boot;
  uint64_t device = 0;

  bool operator==(const Disk&) const = default;
};

Disk disk_of(const std::string& directory, Io& io) {
  const Directory opened = Directory::open(io, directory);
  FileStatus status;
  check_io(io.fstat(opened.fd(), status), "look at", directory);
  const std::string boot = boot_id();
  return {boot.empty() ? "unknown" : boot, status.device};
}

struct Known {
  Disk disk;
  RequestSizes sizes;
};

// Reads a line of the file kKnown. Returns nothing if the line is not one that a measurement could have written.
std::optional<Known> parse(const std::string& line) {
  std::istringstream words(line);
  Known known;
  words >> known.disk.boot >> known.disk.device >> known.sizes.block_bytes >> known.sizes.queue_depth;
  const bool valid = words && known.sizes.block_bytes > 0 && known.sizes.block_bytes % 4096 == 0 &&
                     known.sizes.block_bytes <= kProbeBytes && known.sizes.queue_depth > 0 &&
                     known.sizes.queue_depth <= 4096;
  return valid ? std::optional(known) : std::nullopt;
}

std::vector<Known> read_known(const Directory& cache) {
  std::vector<Known> all;
  if (!cache.exists(kKnown)) return all;
  std::istringstream lines(read_small_file(cache, kKnown, kMostBytes));
  for (std::string line; std::getline(lines, line);)
    if (const std::optional<Known> known = parse(line)) all.push_back(*known);
  return all;
}

std::optional<RequestSizes> find(const Directory& cache, const Disk& disk) {
  for (const Known& known : read_known(cache))
    if (known.disk == disk) return known.sizes;
  return std::nullopt;
}

void write_known(Directory& cache, std::span<const Known> all) {
  std::string text = kHeader;
  for (const Known& known : all.last(std::min(all.size(), kMostKnown)))
    text += concat(known.disk.boot, " ", known.disk.device, " ", known.sizes.block_bytes, " ", known.sizes.queue_depth,
                   "\n");
  write_small_file(cache, kKnown, text);
}

RequestSizes measure(const std::string& directory, const RequestSizesOptions& options, Io& io) {
  DiskProbeOptions probe;
  probe.file_bytes = kProbeBytes;
  probe.seconds = kProbeSeconds;
  probe.thread_count = options.thread_count;
  probe.ring = options.ring;
  const DiskReport report = probe_disk(directory, probe, io);
  const auto is_usual = [&](const DiskReport::Rate& rate) {
    return RequestSizes{rate.block_bytes, rate.queue_depth} == options.usual;
  };
  const auto usual = std::find_if(report.rates.begin(), report.rates.end(), is_usual);
  const DiskReport::Rate best = report.best();
  if (usual != report.rates.end() && best.least < kGain * usual->highest) return options.usual;
  return {best.block_bytes, best.queue_depth};
}

}  // namespace

std::string cache_directory() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value != nullptr && value[0] == '/' ? value : "");
  };
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/zeroshard";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/zeroshard";
}

RequestSizes measured_sizes(const std::string& directory, const RequestSizesOptions& options, Io& io) {
  if (options.cache.empty()) throw IoError("neither XDG_CACHE_HOME nor HOME says where to keep what was measured");
  const Disk disk = disk_of(directory, io);
  Directory cache = Directory::create(io, options.cache);
  const std::string lock_path = cache.path_of(kLock);
  const OpenFd lock(io, io.open_or_create_at(cache.fd(), kLock));
  check_io(lock.get(), "open", lock_path);
  const auto end = std::chrono::steady_clock::now() + options.patience;
  while (true) {
    const int result = retry_interrupted([&] { return io.lock(lock.get()); });
    if (const std::optional<RequestSizes> known = find(cache, disk)) return *known;
    if (result == 0) break;
    if (result != -EAGAIN) throw_io_error("lock", lock_path, result);
    if (std::chrono::steady_clock::now() >= end)
      throw IoError(concat("another process has measured the disk of ", directory, " for more than ",
                           options.patience.count(), " ms: it has locked ", lock_path));
    check_interrupt();
    std::this_thread::sleep_for(kPoll);
  }
  std::vector<Known> all = read_known(cache);
  write_known(cache, all);  // tried before the measurement, which would be lost if the file could not be written
  all.push_back({disk, measure(directory, options, io)});
  write_known(cache, all);
  return all.back().sizes;
}

}  // namespace zeroshard
