#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// Lets ranks exchange data before a transport exists. Every rank makes the same sequence of calls.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Every rank's bytes, in rank order. Throws CommError when a rank does not arrive.
  virtual std::vector<std::string> all_gather(std::string_view mine) = 0;
};

// For ranks that are threads of this process: element r belongs to rank r.
std::vector<std::unique_ptr<Bootstrap>> make_thread_bootstraps(int world_size, int64_t timeout_ms = 30'000);

// For ranks that this process is about to fork(): rank r uses element r of its copy. At most 1,000 bytes a message.
std::vector<std::unique_ptr<Bootstrap>> make_fork_bootstraps(int world_size, int64_t timeout_ms = 30'000);

}  // namespace zeroshard
