// What a tokenizer gives, for comparison with another implementation of it, and how fast:
//   run_tokenizer serve TOKENIZER < requests > answers
//   run_tokenizer time TOKENIZER SECONDS < texts     prints MB/s and the number of ids of each pass over all texts
//   run_tokenizer info TOKENIZER                     prints vocabulary size, bos, eos (-1: none), digest
// Everything is framed by its length, an int64. A request is a frame "encode [special] [parse]" or "decode [skip]", a
// frame with an int64 n, and n frames: texts, or int32 ids. Its answer is n frames.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "zeroshard/error.h"
#include "zeroshard/tokenizer.h"

namespace {

// False at the end of the input.
bool read_frame(std::string& frame) {
  int64_t bytes = 0;
  if (!std::cin.read(reinterpret_cast<char*>(&bytes), sizeof bytes)) return false;
  frame.resize(static_cast<size_t>(bytes));
  if (!std::cin.read(frame.data(), bytes)) throw zeroshard::ValueError("a frame is cut");
  return true;
}

void write_frame(const void* data, size_t bytes) {
  const auto length = static_cast<int64_t>(bytes);
  std::cout.write(reinterpret_cast<const char*>(&length), sizeof length);
  std::cout.write(static_cast<const char*>(data), length);
}

std::string encode(const zeroshard::Tokenizer& tokenizer, const std::string& text, bool add_special, bool parse) {
  const std::vector<int32_t> ids = tokenizer.encode(text, add_special, parse);
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)};
}

std::string decode(const zeroshard::Tokenizer& tokenizer, const std::string& frame, bool skip) {
  std::vector<int32_t> ids(frame.size() / sizeof(int32_t));
  frame.copy(reinterpret_cast<char*>(ids.data()), ids.size() * sizeof(int32_t));
  return tokenizer.decode(ids, skip);
}

void serve(const zeroshard::Tokenizer& tokenizer) {
  std::string request, frame;
  while (read_frame(request)) {
    const auto has = [&](const char* flag) { return request.find(flag) != request.npos; };
    int64_t count = 0;
    if (!read_frame(frame) || frame.size() != sizeof count) throw zeroshard::ValueError("a request is cut");
    std::memcpy(&count, frame.data(), sizeof count);
    std::vector<std::string> items(static_cast<size_t>(count));
    for (std::string& item : items)
      if (!read_frame(item)) throw zeroshard::ValueError("a request is cut");
    // Only now: the other end reads when it has written all.
    for (const std::string& item : items) {
      const std::string answer =
          has("encode") ? encode(tokenizer, item, has("special"), has("parse")) : decode(tokenizer, item, has("skip"));
      write_frame(answer.data(), answer.size());
    }
    std::cout.flush();
  }
}

void measure(const zeroshard::Tokenizer& tokenizer, double seconds) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::string> texts;
  for (std::string text; read_frame(text);) texts.push_back(text);
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
  const std::string& task = arguments[0];
  const auto tokenizer = zeroshard::load_tokenizer(arguments[1]);
  if (task == "serve") {
    serve(*tokenizer);
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
