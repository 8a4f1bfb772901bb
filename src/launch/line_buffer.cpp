#include "launch/line_buffer.h"

namespace zeroshard {
namespace {

std::string_view last_state(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const size_t at = line.rfind('\r');
  return at == line.npos ? line : line.substr(at + 1);
}

}  // namespace

void LineBuffer::emit(std::string_view line, std::string& out) const {
  out += prefix_;
  out += last_state(line);
  out += '\n';
}

void LineBuffer::append(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const size_t room = kMaxLineBytes - line_.size();
    if (end == bytes.npos && bytes.size() < room) {
      line_ += bytes;
      return;
    }
    const bool cut = end == bytes.npos || end > room;
    const size_t size = cut ? room : end;
    line_ += bytes.substr(0, size);
    bytes.remove_prefix(cut ? size : size + 1);
    emit(line_, out);
    line_.clear();
  }
}

void LineBuffer::flush(std::string& out) {
  if (!line_.empty()) emit(line_, out);
  line_.clear();
}

void Tail::append(std::string_view bytes) {
  constexpr size_t kKeepBytes = 32 << 10;
  if (bytes.size() > kKeepBytes) bytes.remove_prefix(bytes.size() - kKeepBytes);
  bytes_ += bytes;
  if (bytes_.size() > 2 * kKeepBytes) bytes_.erase(0, bytes_.size() - kKeepBytes);
}

std::vector<std::string> Tail::lines(size_t count) const {
  constexpr size_t kMaxBytes = 500;
  std::vector<std::string> found;
  std::string_view rest = bytes_;
  while (!rest.empty() && found.size() < count) {
    if (rest.back() == '\n') rest.remove_suffix(1);
    const size_t begin = rest.rfind('\n') == rest.npos ? 0 : rest.rfind('\n') + 1;
    const std::string_view line = last_state(rest.substr(begin));
    found.emplace_back(line.substr(0, kMaxBytes));
    if (line.size() > kMaxBytes) found.back() += "...";
    rest = rest.substr(0, begin);
  }
  return {found.rbegin(), found.rend()};
}

}  // namespace zeroshard
