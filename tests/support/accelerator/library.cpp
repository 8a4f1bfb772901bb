// What tests of the Python front load: tests/python/simulated.py.
#include "support/accelerator/device.h"
#include "support/accelerator/kernels.h"
#include "support/accelerator/streams.h"

using zeroshard::accelerator::Schedule;
using zeroshard::accelerator::Streams;

namespace {

std::string text;  // of the last answer

}  // namespace

extern "C" {

void simulated_start(int schedule, uint64_t seed) {
  zeroshard::accelerator::start();
  zeroshard::accelerator::use_own_kernels(true);
  Streams::get().set_schedule(static_cast<Schedule>(schedule), seed);
  Streams::get().races().forget();
}

// One line each: races, and operators that made the host wait.
const char* simulated_findings() {
  text.clear();
  for (const std::string& race : Streams::get().races().found()) text += race + "\n";
  for (const std::string& name : zeroshard::accelerator::operators_that_waited())
    text += "the host waited for " + name + "\n";
  return text.c_str();
}
}
