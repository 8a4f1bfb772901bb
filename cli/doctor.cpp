// `zeroshard doctor`: measures what this host offers for offloading. The files that it writes are gone when it ends.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "commands.h"
#include "file/disk_probe.h"
#include "format.h"
#include "memory/copy_rate.h"
#include "memory/host_memory.h"
#include "numbers.h"
#include "plan/memory_limits.h"
#include "zeroshard/error.h"

namespace zeroshard::cli {
namespace {

using Json = nlohmann::ordered_json;

struct DoctorArguments {
  std::string path;
  int nproc = 1;
  double seconds = 2;
  bool json = false;
};

struct Diagnosis {
  HostMemory memory;
  std::optional<MemoryLimit> of_rank;
  std::optional<int64_t> locked_limit;  // ulimit -l
  int copy_threads = 1;
  double copy_rate = 0;
  std::optional<DiskReport> disk;
};

std::string amount(int64_t bytes) {
  const double value = double(bytes);
  if (value >= 1024. * 1024 * 1024) return format("%.1f GiB", value / (1024. * 1024 * 1024));
  return value >= 1024. * 1024 ? format("%.1f MiB", value / (1024. * 1024)) : format("%.0f KiB", value / 1024);
}

Diagnosis examine(const DoctorArguments& arguments) {
  constexpr int kMostThreads = 16;
  Diagnosis found;
  found.memory = read_host_memory();
  found.of_rank = limit_of_host(found.memory, arguments.nproc);
  rlimit locked{};
  if (::getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
    found.locked_limit = int64_t(locked.rlim_cur);
  DiskProbeOptions options;
  options.seconds = arguments.seconds;
  options.ring = &kernel_ring();
  if (!arguments.path.empty()) {  // probed first, so that a wrong path is reported at once
    try {
      found.disk = probe_disk(arguments.path, options, posix_io());
    } catch (const IoError& error) {
      throw ValueError(std::string("--path: ") + error.what());
    }
  }
  found.copy_threads = std::clamp(int(std::thread::hardware_concurrency()), 1, kMostThreads);
  found.copy_rate = copy_rate(found.copy_threads, std::min(arguments.seconds, 0.5));
  return found;
}

void line(const char* name, const std::string& text) {
  std::cout << format("%-14s", name) << text << "\n";
}

void print_disk(const std::string& path, const DiskReport& disk) {
  line("directory",
       path + ": " + disk.file_system + (disk.free_bytes < 0 ? "" : ", " + amount(disk.free_bytes) + " free"));
  if (disk.in_memory) line("", "WARNING: a tmpfs lies in memory: states there save none");
  line("access", std::string(disk.direct ? "past the page cache (O_DIRECT)" : "through the page cache: no O_DIRECT") +
                     ", by " + disk.queue + (disk.refusal.empty() ? "" : ": io_uring is refused: " + disk.refusal));
  const DiskReport::Rate best = disk.best();
  line("read + write",
       format("%.2f GB/s at once, in a file of %s: a step takes %.2f s for each 10^9 parameters of a "
              "rank in bf16 with AdamW",
              best.bytes_per_second / 1e9, amount(disk.file_bytes).c_str(), 24e9 / best.bytes_per_second));
  line("best", format("\"aio\": {\"block_size\": %lld, \"queue_depth\": %d}", static_cast<long long>(best.block_bytes),
                      best.queue_depth));
  for (const DiskReport::Rate& rate : disk.rates)
    line("", format("block %8lld, depth %2d: %6.2f GB/s", static_cast<long long>(rate.block_bytes), rate.queue_depth,
                    rate.bytes_per_second / 1e9));
}

void print(const DoctorArguments& arguments, const Diagnosis& found) {
  const HostMemory& memory = found.memory;
  line("memory", amount(memory.total) + " of this machine, " + amount(memory.available) + " available");
  line("control group",
       memory.cgroup_limit ? amount(*memory.cgroup_limit) + ", " + amount(memory.cgroup_used) + " used" : "no limit");
  line("ulimit -v", memory.address_limit ? amount(*memory.address_limit) : "no limit");
  line("ulimit -l", found.locked_limit ? amount(*found.locked_limit) + ": what may be pinned" : "no limit");
  if (found.of_rank)
    line("each rank", format("%s at most, with %d on this host (--nproc)",
                             amount(int64_t(found.of_rank->bytes)).c_str(), arguments.nproc));
  line("copies", format("%.1f GB/s within memory, by %d threads", found.copy_rate / 1e9, found.copy_threads));
  if (found.disk) {
    print_disk(arguments.path, *found.disk);
  } else {
    line("directory", "--path DIR measures the disk of one");
  }
}

Json or_null(const std::optional<int64_t>& value) {
  return value ? Json(*value) : Json();
}

Json as_json(const DoctorArguments& arguments, const Diagnosis& found) {
  Json json{{"memory_total_bytes", found.memory.total},
            {"memory_available_bytes", found.memory.available},
            {"cgroup_limit_bytes", or_null(found.memory.cgroup_limit)},
            {"address_limit_bytes", or_null(found.memory.address_limit)},
            {"locked_limit_bytes", or_null(found.locked_limit)},
            {"ranks", arguments.nproc},
            {"rank_bytes", found.of_rank ? Json(int64_t(found.of_rank->bytes)) : Json()},
            {"copy_bytes_per_second", int64_t(found.copy_rate)},
            {"copy_threads", found.copy_threads}};
  if (!found.disk) return json;
  const DiskReport& disk = *found.disk;
  const auto rate_of = [](const DiskReport::Rate& rate) {
    return Json{{"block_size", rate.block_bytes},
                {"queue_depth", rate.queue_depth},
                {"bytes_per_second", int64_t(rate.bytes_per_second)}};
  };
  json["disk"] = {{"path", arguments.path},        {"file_system", disk.file_system},  {"free_bytes", disk.free_bytes},
                  {"file_bytes", disk.file_bytes}, {"in_memory", disk.in_memory},      {"direct", disk.direct},
                  {"queue", disk.queue},           {"io_uring_refused", disk.refusal}, {"best", rate_of(disk.best())}};
  for (const DiskReport::Rate& rate : disk.rates) json["disk"]["rates"].push_back(rate_of(rate));
  return json;
}

void run(const DoctorArguments& arguments) {
  if (arguments.seconds <= 0 || arguments.seconds > 60)
    throw ValueError(format("--seconds must be above 0 and at most 60, got %g", arguments.seconds));
  const Diagnosis found = examine(arguments);
  if (arguments.json) {
    std::cout << json_text(as_json(arguments, found));
  } else {
    print(arguments, found);
  }
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  auto arguments = std::make_shared<DoctorArguments>();
  CLI::App* doctor = app.add_subcommand("doctor", "Says what memory and disk of this host give to offload");
  doctor->add_option("--path", arguments->path,
                     "A directory for swap files: reads and writes a file without a name there, of at most 512 MiB");
  add_int(*doctor, "--nproc", kRanksPerHost, arguments->nproc, "Ranks that share this host (default: 1)");
  add_seconds(*doctor, "--seconds", arguments->seconds, "How long the disk is measured (default: 2)");
  doctor->add_flag("--json", arguments->json, "Print JSON");
  doctor->callback([arguments] { run(*arguments); });
}

}  // namespace zeroshard::cli
