// Times AdamW over states in swap files, and the transfer of the same bytes at once, interleaved, JSON to stdout. Run
// by bench/offload.py.
//   bench_chunk_store DIRECTORY [millions of elements = 64] [rounds = 5] [buffer_count = 4] [io_uring | threads]
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "file/chunk_store.h"
#include "kernels/kernels.h"
#include "timing.h"

namespace {

using namespace zeroshard;
using bench::median;
using bench::time_of;
using Kind = BlockRequest::Kind;

constexpr int kSlots = 3;
constexpr int64_t kRecordBytes = kChunkNumel * kSlots * int64_t{sizeof(float)};

// Reads and writes every chunk of a file once, with as many buffers and requests as a store: no arithmetic, no order
// but that of the disk.
class Probe {
 public:
  Probe(const std::string& directory, int64_t chunks, const ChunkStore::Options& options)
      : chunks_(chunks), file_(posix_io(), directory, chunks * kRecordBytes) {
    QueueFiles files{{file_.fd()}, {}, options.queue_depth};
    for (int i = 0; i < options.buffer_count; ++i) {
      memory_.push_back(allocate_direct(kRecordBytes));
      std::fill_n(memory_.back().get(), kRecordBytes, std::byte{0});
      files.buffers.push_back({memory_.back().get(), size_t(kRecordBytes)});
    }
    auto queue = make_block_queue(files, options.ring, posix_io(), options.thread_count);
    transfers_ = std::make_unique<TransferQueue>(
        std::move(queue), posix_io(), std::vector<TransferQueue::File>{{file_.fd(), file_.path(), file_.direct()}},
        memory_.size(), options.queue_depth, options.block_bytes);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) move(Kind::kWrite, chunk, size_t(chunk) % memory_.size());
    drain();
  }

  // Of every chunk.
  void read_and_write() {
    const size_t half = std::max<size_t>(memory_.size() / 2, 1);  // of the buffers reads, the other half writes
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      move(Kind::kRead, chunk, size_t(chunk) % half);
      move(Kind::kWrite, (chunk + chunks_ / 2) % chunks_, memory_.size() - 1 - size_t(chunk) % half);
    }
    drain();
  }

 private:
  void move(Kind kind, int64_t chunk, size_t buffer) {
    while (!transfers_->is_idle(buffer)) transfers_->advance(/*wait=*/true);
    transfers_->begin({kind, 0, memory_[buffer].get(), kRecordBytes, chunk * kRecordBytes, buffer});
  }
  void drain() {
    while (!transfers_->is_idle()) transfers_->advance(/*wait=*/true);
  }

  int64_t chunks_;
  SwapFile file_;
  std::vector<DirectBuffer> memory_;
  std::unique_ptr<TransferQueue> transfers_;
};

// AdamW, on as many threads as there are processors.
void update(ChunkStore& store, int64_t numel, const float* grads, uint16_t* params, int64_t step) {
  const auto threads = int64_t(std::max(1U, std::thread::hardware_concurrency()));
  store.lend(0, {0, numel}, ChunkStore::Access::kModify, [&](Range part, std::span<float* const> values) {
    const auto run = [&](int64_t begin, int64_t end) {
      const kernels::StepBuffers buffers{.master = values[0] + begin,
                                         .grad = grads + part.begin + begin,
                                         .param = params + part.begin + begin,
                                         .numel = end - begin};
      kernels::adam(buffers, values[1] + begin, values[2] + begin, {.step = step});
    };
    std::vector<std::thread> crew;
    for (int64_t i = 1; i < threads; ++i)
      crew.emplace_back(run, part.size() * i / threads, part.size() * (i + 1) / threads);
    run(0, part.size() / threads);
    for (std::thread& each : crew) each.join();
  });
  store.flush();
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::cerr << "usage: bench_chunk_store DIRECTORY [millions of elements] [rounds] [buffers] [io_uring | threads]\n";
    return 2;
  }
  const int64_t chunks = argc > 2 ? std::atoll(argv[2]) : 64, rounds = argc > 3 ? std::atoll(argv[3]) : 5;
  ChunkStore::Options options;
  options.directories = {argv[1]};
  options.buffer_count = argc > 4 ? std::atoi(argv[4]) : 4;
  options.ring = argc > 5 && std::string(argv[5]) == "threads" ? nullptr : &kernel_ring();
  const int64_t numel = chunks * kChunkNumel;
  const std::vector<ChunkGroup> groups = {{numel, kSlots}};
  std::vector<float> grads(size_t(numel), 0.5F);
  std::vector<uint16_t> params(static_cast<size_t>(numel));
  std::vector<double> fill;
  std::unique_ptr<ChunkStore> store;
  fill.push_back(time_of([&] { store = std::make_unique<ChunkStore>(groups, options, posix_io()); }));
  Probe probe(argv[1], chunks, options);
  std::vector<double> updates, probes;
  for (int64_t round = 0; round <= rounds; ++round) {  // the first warms up
    const double probe_s = time_of([&] { probe.read_and_write(); });
    const double update_s = time_of([&] { update(*store, numel, grads.data(), params.data(), round + 1); });
    if (round == 0) continue;
    probes.push_back(probe_s);
    updates.push_back(update_s);
  }
  std::vector<double> ratios;
  for (size_t i = 0; i < probes.size(); ++i) ratios.push_back(probes[i] / updates[i]);
  const double moved_gb = 2e-9 * double(store->layout().total_bytes());
  std::cout << "{\"numel\": " << numel << ", \"rounds\": " << rounds << ", \"buffer_count\": " << options.buffer_count
            << ", \"queue\": \"" << store->queue_name() << "\", \"direct\": " << store->files()[0].direct()
            << ", \"fill_s\": " << fill[0] << ", \"probe_gb_per_s\": " << moved_gb / median(probes)
            << ", \"update_gb_per_s\": " << moved_gb / median(updates) << ", \"ratio\": " << median(ratios)
            << ", \"least_ratio\": " << *std::min_element(ratios.begin(), ratios.end())
            << ", \"highest_ratio\": " << *std::max_element(ratios.begin(), ratios.end()) << "}\n";
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
