#include "comm_c10d/c10d_bootstrap.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/interrupt.h"
#include "comm_c10d/c10d_names.h"

namespace zeroshard {

C10dBootstrap::C10dBootstrap(c10::intrusive_ptr<c10d::ProcessGroup> group, const CommOptions& options)
    : group_(std::move(group)),
      timeout_ms_(options.timeout_ms),
      number_(options.numbers.of(group_->getRank())),
      watch_(options.processes, options.stall_timeout_ms, options.wait_listener, options.numbers) {}

std::vector<std::string> C10dBootstrap::all_gather(std::string_view mine) {
  const at::Tensor size = at::empty({1}, at::kLong);
  *size.mutable_data_ptr<int64_t>() = static_cast<int64_t>(mine.size());
  const at::Tensor sizes = gather(size);
  const int64_t longest = std::max<int64_t>(sizes.max().item<int64_t>(), 1);
  const at::Tensor padded = at::zeros({longest}, at::kByte);
  if (!mine.empty()) std::memcpy(padded.mutable_data_ptr(), mine.data(), mine.size());
  const at::Tensor rows = gather(padded);
  std::vector<std::string> all;
  for (int rank = 0; rank < world_size(); ++rank)
    all.emplace_back(static_cast<const char*>(rows.const_data_ptr()) + rank * longest,
                     static_cast<size_t>(sizes.const_data_ptr<int64_t>()[rank]));
  return all;
}

void C10dBootstrap::await(c10d::Work& work) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms_);
  auto looked = Clock::now();
  try {
    while (!work.isCompleted()) {
      const auto now = Clock::now();
      if (now > deadline)
        throw CommError(concat("rank ", number_, ": not all ranks made the group within ", timeout_ms_, " ms"));
      if (const std::string trouble = watch_.check_all(); !trouble.empty() && !work.isCompleted())
        throw CommError(concat("rank ", number_, ": ", trouble, " while ranks were connected"));
      if (now - looked > std::chrono::milliseconds(100)) {
        check_interrupt();
        looked = now;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  } catch (const std::exception&) {
    // Takes a reference that is never released, so that the group is never destroyed. The destructor of a Gloo group
    // joins threads that wait for the rank that does not answer.
    c10::raw::intrusive_ptr::incref(group_.get());
    throw;
  }
}

// Gathers the tensor `mine` of every rank. Returns one flat tensor that has these tensors in rank order.
at::Tensor C10dBootstrap::gather(const at::Tensor& mine) {
  const at::Tensor out = at::empty({world_size() * mine.numel()}, mine.options());
  c10d_names::WorkPtr work;
  const auto explained = [this](const auto& step) {
    try {
      step();
    } catch (const Error&) {
      throw;
    } catch (const c10::Error& error) {
      fail(error.what_without_backtrace());
    } catch (const std::exception& error) {  // an error of Gloo
      fail(error.what());
    }
  };
  explained([&] { work = c10d_names::all_gather(*group_, out, mine); });
  await(*work);  // the exception of an interrupt passes as it is
  explained([&] { work->wait(); });
  return out;
}

// Throws CommError with the text `error`, and with what watch_ finds wrong with the peers within about a second. Looks
// repeatedly, because the connections of a dying process break before the process is gone.
void C10dBootstrap::fail(const std::string& error) {
  for (int attempt = 0; attempt < 10 && watch_.world_size() > 0; ++attempt) {
    if (const std::string trouble = watch_.check_all(); !trouble.empty())
      throw CommError(concat("rank ", number_, ": ", trouble, " while ranks were connected: ", error));
    std::this_thread::sleep_for(std::chrono::milliseconds(110));
  }
  throw CommError(concat("rank ", number_, ": cannot reach the other ranks: ", error));
}

}  // namespace zeroshard
