#include "file/disk_probe.h"

#include <sys/vfs.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "file/direct_buffer.h"
#include "file/swap_file.h"
#include "file/transfer_queue.h"

namespace zeroshard {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = BlockRequest::Kind;

// The bytes of a record. Each record is moved by one transfer. It is about as large as the record of a chunk with three
// fp32 values for each element (12 MiB).
constexpr int64_t kRecordBytes = int64_t{8} << 20;
constexpr int64_t kBlocks[] = {int64_t{256} << 10, int64_t{1} << 20, int64_t{4} << 20};
constexpr int kDepths[] = {8, 32};
constexpr int kRounds = 2;
constexpr size_t kBuffers = 4;  // how many records are transferred at a time
constexpr int64_t kLeastBytes = int64_t{64} << 20;

std::string name_of_file_system(int fd) {
  struct statfs found {};
  if (::fstatfs(fd, &found) != 0) return "unknown";
  static constexpr std::pair<uint32_t, const char*> kNames[] = {
      {0xef53, "ext4"},        {0x58465342, "xfs"},  {0x9123683e, "btrfs"},  {0x01021994, "tmpfs"},
      {0x794c7630, "overlay"}, {0x6969, "nfs"},      {0x65735546, "fuse"},   {0x2fc12fc1, "zfs"},
      {0x01021997, "9p"},      {0xff534d42, "cifs"}, {0x0bd00bd0, "lustre"}, {0xf2f52010, "f2fs"}};
  for (const auto& [magic, name] : kNames)
    if (uint32_t(found.f_type) == magic) return name;
  return concat("type ", found.f_type);
}

// A file, and memory for the records that are being transferred.
class Probe {
 public:
  Probe(const std::string& directory, const DiskProbeOptions& options, int64_t bytes, Io& io)
      : options_(options), io_(io), file_(io, directory, bytes) {
    for (DirectBuffer& buffer : buffers_) {
      buffer = allocate_direct(kRecordBytes);
      std::memset(buffer.get(), 1, size_t(kRecordBytes));
    }
  }
  const SwapFile& file() const { return file_; }

  // Writes the records of the file in order, each once, until all are written, or until `seconds` have passed and
  // kLeastBytes are written. Returns the bytes of the written records. Only these records are measured later, because
  // space that is only reserved is slow (see ChunkStore::fill_files()).
  int64_t fill(double seconds, DiskReport& report) {
    const auto all = size_t(file_.bytes() / kRecordBytes), least = size_t(kLeastBytes / kRecordBytes);
    move(kBlocks[1], kDepths[1], report, [&](size_t next, double elapsed) -> std::optional<Next> {
      if (next == all || (next >= least && elapsed >= seconds)) return std::nullopt;
      records_ = next + 1;
      return Next{Kind::kWrite, next};
    });
    return int64_t(records_) * kRecordBytes;
  }
  // Reads and writes records in turn for `seconds`. Returns the bytes per second.
  double measure(int64_t block_bytes, int depth, double seconds, DiskReport& report) {
    return move(block_bytes, depth, report, [&](size_t next, double elapsed) -> std::optional<Next> {
      if (elapsed >= seconds) return std::nullopt;
      // Reads are ahead of writes by half the number of records.
      const bool reads = next % 2 == 0;
      return Next{reads ? Kind::kRead : Kind::kWrite, (next / 2 + (reads ? records_ / 2 : 0)) % records_};
    });
  }

 private:
  struct Next {
    Kind kind = Kind::kRead;
    size_t record = 0;
  };

  // Reads and writes the records that `choose` returns, until `choose` returns nothing. `choose` gets the number of
  // earlier records, and the seconds since move() began. Notes in `report` which queue was used. Returns the bytes per
  // second.
  template <typename Choose>
  double move(int64_t block_bytes, int depth, DiskReport& report, const Choose& choose) {
    TransferQueue transfers(make_queue(depth, report), io_, {{file_.fd(), file_.path(), file_.direct()}}, kBuffers,
                            depth, block_bytes);
    const Clock::time_point begin = Clock::now();
    const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    for (size_t count = 0; const std::optional<Next> next = choose(count, elapsed()); ++count) {
      const size_t owner = count % kBuffers;
      while (!transfers.is_idle(owner)) transfers.advance(/*wait=*/true);
      transfers.begin(
          {next->kind, 0, buffers_[owner].get(), kRecordBytes, int64_t(next->record) * kRecordBytes, owner});
    }
    while (!transfers.is_idle()) transfers.advance(/*wait=*/true);
    return double(transfers.bytes_moved(Kind::kRead) + transfers.bytes_moved(Kind::kWrite)) / elapsed();
  }
  std::unique_ptr<BlockQueue> make_queue(int depth, DiskReport& report) {
    QueueFiles shared{{file_.fd()}, {}, depth};
    for (const DirectBuffer& buffer : buffers_) shared.buffers.push_back({buffer.get(), size_t(kRecordBytes)});
    int why = 0;
    std::unique_ptr<BlockQueue> queue;
    if (options_.ring != nullptr) queue = make_ring_queue(shared, *options_.ring, why);
    if (!queue && options_.ring != nullptr) report.refusal = std::strerror(-why);
    if (!queue) queue = make_thread_queue(shared, io_, options_.thread_count);
    report.queue = queue->name();
    return queue;
  }

  const DiskProbeOptions& options_;
  Io& io_;
  SwapFile file_;
  DirectBuffer buffers_[kBuffers];
  size_t records_ = 0;  // how many records have been written
};

}  // namespace

DiskReport::Rate DiskReport::best() const {
  return *std::max_element(rates.begin(), rates.end(),
                           [](const Rate& a, const Rate& b) { return a.bytes_per_second < b.bytes_per_second; });
}

DiskReport probe_disk(const std::string& directory, const DiskProbeOptions& options, Io& io) {
  ZS_CHECK(options.seconds > 0, "the time to measure must be positive, got ", options.seconds);
  DiskReport report;
  {
    const SwapFile empty(io, directory, 0);
    report.file_system = name_of_file_system(empty.fd());
    report.free_bytes = io.free_bytes(empty.fd());
  }
  int64_t bytes = options.file_bytes;
  if (report.free_bytes >= 0) bytes = std::min(bytes, report.free_bytes / 4);
  bytes = std::max(bytes, kLeastBytes) / kRecordBytes * kRecordBytes;
  Probe probe(directory, options, bytes, io);
  report.direct = probe.file().direct();
  report.in_memory = probe.file().on_tmpfs();
  report.file_bytes = probe.fill(options.seconds, report);
  for (const int64_t block_bytes : kBlocks)
    for (const int depth : kDepths) report.rates.push_back({.block_bytes = block_bytes, .queue_depth = depth});
  // Each round measures all sizes, so that a disturbance by another program is spread over several sizes.
  const double each = options.seconds / double(kRounds * report.rates.size());
  for (int round = 0; round < kRounds; ++round) {
    for (DiskReport::Rate& rate : report.rates) {
      const double now = probe.measure(rate.block_bytes, rate.queue_depth, each, report);
      rate.least = round == 0 ? now : std::min(rate.least, now);
      rate.highest = std::max(rate.highest, now);
      rate.bytes_per_second += now / kRounds;
    }
  }
  return report;
}

}  // namespace zeroshard
