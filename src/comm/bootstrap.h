#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// Lets ranks exchange data before a transport exists. Every rank must make the same sequence of calls.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Returns what each rank passed as `mine`, in rank order. Throws CommError if a rank does not call it in time.
  virtual std::vector<std::string> all_gather(std::string_view mine) = 0;
};

// Creates bootstraps for ranks that are threads of this process. Element r belongs to rank r. A message has at most
// 1,000 bytes.
std::vector<std::unique_ptr<Bootstrap>> make_thread_bootstraps(int world_size, int64_t timeout_ms = 30'000);

// Creates bootstraps for ranks that this process will fork(). Each child has a copy of the vector, of which rank r uses
// element r. A message has at most 1,000 bytes.
std::vector<std::unique_ptr<Bootstrap>> make_fork_bootstraps(int world_size, int64_t timeout_ms = 30'000);

}  // namespace zeroshard
