#include "checkpoint/told.h"

#include <iomanip>
#include <sstream>

#include "base/format.h"
#include "base/log.h"
#include "checkpoint/attempt.h"

namespace zeroshard {
namespace {

std::string size_and_speed(int64_t bytes, double seconds) {
  const double megabytes = double(bytes) / 1e6;
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << megabytes << " MB in " << std::setprecision(2) << seconds << " s";
  if (seconds > 0) text << ", " << std::setprecision(1) << megabytes / seconds << " MB/s";
  return text.str();
}

}  // namespace

void tell_saved(const SaveRequest& request, const Saved& saved) {
  if (saved.bytes == 0) return;
  const auto tell = [&] {
    log(LogLevel::kInfo, concat("saved ", request.root, "/", request.tag, " (step ", request.step,
                                "): ", size_and_speed(saved.bytes, saved.seconds)));
  };
  attempt(tell, [](const std::string& reason) { return "a save is not told: " + reason; });
}

void tell_loaded(const std::string& root, const std::string& tag, const Manifest& manifest, double seconds) {
  log(LogLevel::kInfo, concat("loaded ", root, "/", tag, " (step ", manifest.step,
                              "): ", size_and_speed(manifest.file_bytes(), seconds)));
}

}  // namespace zeroshard
