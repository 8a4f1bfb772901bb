#include "engine/agreement.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/text_hash.h"

namespace zeroshard {
namespace {

// Returns the text `mine` of every rank, in rank order. All texts must have the same length.
std::vector<std::string> all_gather_text(Comm& comm, const std::string& mine) {
  const auto size = int64_t(mine.size());
  const auto received = comm.allocate(size * comm.world_size(), "agreement");
  comm.all_gather({received->data(), received->bytes(), DType::kOther1}, {mine.data(), size, DType::kOther1},
                  "agreement")
      ->wait();
  comm.barrier("agreement");  // `mine` must not change until every rank has read it
  const char* const data = static_cast<const char*>(received->data());
  std::vector<std::string> texts;
  for (int rank = 0; rank < comm.world_size(); ++rank) texts.emplace_back(data + rank * size, size_t(size));
  return texts;
}

std::string encode(const NamedValues& values) {
  std::string text;
  for (const auto& [name, value] : values) text += name + '\x1f' + value + '\x1e';
  return text;
}

NamedValues decode(const std::string& text) {
  NamedValues values;
  size_t at = 0;
  while (at < text.size() && text[at] != '\0') {
    const size_t middle = text.find('\x1f', at), end = text.find('\x1e', middle);
    values.emplace_back(text.substr(at, middle - at), text.substr(middle + 1, end - middle - 1));
    at = end + 1;
  }
  return values;
}

std::optional<std::string> first_difference(const NamedValues& a, const NamedValues& b, int rank) {
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i < a.size() && i < b.size() && a[i] == b[i]) continue;
    const auto show = [&](const NamedValues& values) {
      return i < values.size() ? concat("'", values[i].first, "' is ", values[i].second)
                               : std::string("there is nothing more");
    };
    return concat("on rank 0 ", show(a), ", on rank ", rank, " ", show(b));
  }
  return std::nullopt;
}

}  // namespace

void check_agreement(Comm& comm, const std::string& what, const NamedValues& values) {
  if (comm.world_size() == 1) return;
  std::string mine = encode(values);
  const uint64_t summary[2] = {hash_text(mine), mine.size()};
  const auto summaries =
      all_gather_text(comm.host(), std::string(reinterpret_cast<const char*>(summary), sizeof summary));
  if (std::all_of(summaries.begin(), summaries.end(), [&](const auto& other) { return other == summaries[0]; })) return;
  uint64_t longest = 0;
  for (const std::string& other : summaries) {
    uint64_t fields[2];
    std::memcpy(fields, other.data(), sizeof fields);
    longest = std::max(longest, fields[1]);
  }
  mine.resize(longest, '\0');
  const auto texts = all_gather_text(comm.host(), mine);
  const NamedValues first = decode(texts[0]);
  for (int rank = 1; rank < comm.world_size(); ++rank) {
    const auto difference = first_difference(first, decode(texts[size_t(rank)]), rank);
    ZS_CHECK(!difference, "the ranks disagree on the ", what, ": ", *difference, ". Start every rank with the same ",
             what);
  }
}

}  // namespace zeroshard
