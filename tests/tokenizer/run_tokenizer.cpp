// What a tokenizer gives, for comparison with another implementation of it, and how fast:
//   run_tokenizer encode TOKENIZER [special] [parse] < texts > ids
//   run_tokenizer decode TOKENIZER [skip] < ids > texts
//   run_tokenizer time TOKENIZER SECONDS < texts     prints MB/s of each pass over all texts
//   run_tokenizer info TOKENIZER                     prints vocabulary size, bos, eos (-1: none), digest
// Texts are framed by their length, an int64; so are lists of int32 ids.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "zeroshard/error.h"
#include "zeroshard/tokenizer.h"

namespace {

std::vector<std::string> read_frames() {
  std::vector<std::string> frames;
  int64_t bytes = 0;
  while (std::cin.read(reinterpret_cast<char*>(&bytes), sizeof bytes)) {
    frames.emplace_back(static_cast<size_t>(bytes), '\0');
    if (!std::cin.read(frames.back().data(), bytes)) throw zeroshard::ValueError("a frame is cut");
  }
  return frames;
}

void write_frame(const void* data, size_t bytes) {
  const auto length = static_cast<int64_t>(bytes);
  std::cout.write(reinterpret_cast<const char*>(&length), sizeof length);
  std::cout.write(static_cast<const char*>(data), length);
}

void measure(const zeroshard::Tokenizer& tokenizer, double seconds) {
  using Clock = std::chrono::steady_clock;
  const std::vector<std::string> texts = read_frames();
  size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  const auto start = Clock::now();
  do {
    const auto begin = Clock::now();
    size_t ids = 0;
    for (const std::string& text : texts) ids += tokenizer.encode(text, false, true).size();
    const std::chrono::duration<double> took = Clock::now() - begin;
    std::printf("%.6f %zu\n", static_cast<double>(bytes) / 1e6 / took.count(), ids);
  } while (std::chrono::duration<double>(Clock::now() - start).count() < seconds);
}

void run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 2) throw zeroshard::ValueError("usage: see the head of run_tokenizer.cpp");
  const std::set<std::string> flags(arguments.begin() + 2, arguments.end());
  const std::string& task = arguments[0];
  const auto tokenizer = zeroshard::load_tokenizer(arguments[1]);
  if (task == "encode") {
    for (const std::string& text : read_frames()) {
      const std::vector<int32_t> ids = tokenizer->encode(text, flags.contains("special"), flags.contains("parse"));
      write_frame(ids.data(), ids.size() * sizeof(int32_t));
    }
  } else if (task == "decode") {
    for (const std::string& frame : read_frames()) {
      std::vector<int32_t> ids(frame.size() / sizeof(int32_t));
      frame.copy(reinterpret_cast<char*>(ids.data()), frame.size());
      const std::string text = tokenizer->decode(ids, flags.contains("skip"));
      write_frame(text.data(), text.size());
    }
  } else if (task == "time") {
    measure(*tokenizer, std::stod(arguments.at(2)));
  } else if (task == "info") {
    std::printf("%lld %d %d %s\n", static_cast<long long>(tokenizer->vocab_size()), tokenizer->bos().value_or(-1),
                tokenizer->eos().value_or(-1), tokenizer->digest().c_str());
  } else {
    throw zeroshard::ValueError("unknown task '" + task + "'");
  }
}

}  // namespace

int main(int argc, char** argv) try { run({argv + 1, argv + argc}); } catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
