#include "checkpoint/agreement.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "base/check.h"
#include "base/out_of_memory.h"

namespace zeroshard {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 18;  // small, because some transports first copy each message
constexpr int64_t kMaxMessage = 2000;              // bytes of an error message that other ranks get

enum Outcome : int64_t { kDone = 0, kWrongValue = 1, kWrongState = 2, kFailed = 3 };

int64_t all_reduce_max(Comm& comm, int64_t value, std::string_view tag) {
  comm.all_reduce({&value, 1, DType::kOther8}, ReduceOp::kMax, tag)->wait();
  return value;
}

struct Failure {
  int64_t outcome = kDone;
  std::string message;
};

Failure failure_of(const std::function<void()>& step) {
  try {
    step();
    return {};
  } catch (const CommError&) {
    throw;  // after a failed collective, this rank cannot tell the other ranks about it
  } catch (const ValueError& error) {
    return {kWrongValue, error.what()};
  } catch (const StateError& error) {
    return {kWrongState, error.what()};
  } catch (const OutOfMemory& error) {
    return {kFailed, error.what()};
  } catch (const std::bad_alloc&) {
    return {kFailed, "out of memory"};  // so short that std::string allocates no memory
  } catch (const std::exception& error) {
    return {kFailed, error.what()};
  }
}

}  // namespace

std::string broadcast_text(Comm& comm, const std::string& text, int root, std::string_view tag) {
  const int64_t bytes = all_reduce_max(comm, comm.rank() == root ? int64_t(text.size()) : 0, tag);
  std::string result = comm.rank() == root ? text : std::string(size_t(bytes), '\0');
  for (int64_t at = 0; at < bytes; at += kChunkBytes) {
    const int64_t size = std::min(kChunkBytes, bytes - at);
    comm.broadcast({result.data() + at, size, DType::kOther1}, root, tag)->wait();
  }
  return result;
}

void together(Comm& comm, std::string_view tag, const std::function<void()>& step) {
  or_abort(comm, [&] {
    Failure failure = failure_of(step);
    // One all-reduce says whether any rank failed, and which is the lowest rank that failed.
    const int64_t first = -all_reduce_max(comm, failure.outcome == kDone ? -comm.world_size() : -comm.rank(), tag);
    if (first == comm.world_size()) return;
    const int root = int(first);
    std::string message = broadcast_text(comm, failure.message.substr(0, kMaxMessage), root, tag);
    const int64_t outcome = all_reduce_max(comm, comm.rank() == root ? failure.outcome : 0, tag);
    if (comm.world_size() > 1) message = concat("rank ", root, ": ", message);
    if (outcome == kWrongValue) throw ValueError(message);
    if (outcome == kWrongState) throw StateError(message);
    throw IoError(message);
  });
}

void check_same(Comm& comm, std::string_view verb, const std::string& mine, std::string_view tag) {
  const std::string first = broadcast_text(comm, mine, 0, tag);
  together(comm, tag,
           [&] { ZS_CHECK(mine == first, verb, " '", mine, "', rank 0 '", first, "': pass the same on every rank"); });
}

bool all_of_ranks(Comm& comm, bool mine, std::string_view tag) {
  return all_reduce_max(comm, mine ? 0 : 1, tag) == 0;
}

}  // namespace zeroshard
