#include "tokenizer/tables.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tokenizer/token_list.h"

namespace zeroshard {
namespace {

size_t slots_for(size_t expected) {
  return std::bit_ceil(std::max<size_t>(expected + expected / 2, 8));
}

}  // namespace

uint64_t hash_text(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

std::string TokenizerDigest::text() const {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash_text(bytes_)));
  return text.data();
}

StringTable::StringTable(size_t expected) : slots_(slots_for(expected)) {}

size_t StringTable::slot_of(std::string_view text, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.id < 0) return at;
    if (slot.hash == hash && std::string_view(text_).substr(slot.begin, slot.bytes) == text) return at;
  }
}

void StringTable::insert(std::string_view text, int32_t id) {
  if ((count_ + 1) * 4 > slots_.size() * 3) grow();
  const auto hash = static_cast<uint32_t>(hash_text(text));
  Slot& slot = slots_[slot_of(text, hash)];
  if (slot.id < 0) {
    slot = {hash, id, text_.size(), text.size()};
    text_ += text;
    ++count_;
  }
  slot.id = id;
}

int32_t StringTable::find(std::string_view text) const {
  return slots_[slot_of(text, static_cast<uint32_t>(hash_text(text)))].id;
}

void StringTable::grow() {
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.size() * 2));
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    slots_[slot_of(std::string_view(text_).substr(slot.begin, slot.bytes), slot.hash)] = slot;
  }
}

MergeTable::MergeTable(size_t expected) : slots_(slots_for(expected)), mask_(slots_.size() - 1) {}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  if ((count_ + 1) * 4 > slots_.size() * 3) grow();
  const uint64_t key = key_of(left, right);
  size_t at = place_of(key);
  while (slots_[at].key != key && slots_[at].key != kEmpty) at = (at + 1) & mask_;
  if (slots_[at].key == kEmpty) ++count_;
  slots_[at] = {key, merge};
}

void MergeTable::grow() {
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.size() * 2));
  mask_ = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.key == kEmpty) continue;
    size_t at = place_of(slot.key);
    while (slots_[at].key != kEmpty) at = (at + 1) & mask_;
    slots_[at] = slot;
  }
}

uint32_t PrefixTrie::child(uint32_t node, char byte) const {
  for (const auto& [key, index] : nodes_[node].children)
    if (key == byte) return index;
  return 0;
}

bool PrefixTrie::insert(std::string_view text, int32_t value) {
  if (nodes_.empty()) nodes_.emplace_back();
  uint32_t node = 0;
  for (const char byte : text) {
    uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[node].children.emplace_back(byte, next);
      if (node == 0) first_[static_cast<unsigned char>(byte)] = next;
    }
    node = next;
  }
  if (nodes_[node].value >= 0) return false;
  nodes_[node].value = value;
  return true;
}

std::optional<PrefixTrie::Found> PrefixTrie::longest(std::string_view text) const {
  std::optional<Found> found;
  if (text.empty()) return found;
  uint32_t node = first_[static_cast<unsigned char>(text[0])];
  for (size_t at = 1; node != 0; ++at) {
    if (nodes_[node].value >= 0) found = Found{nodes_[node].value, at};
    if (at == text.size()) break;
    node = child(node, text[at]);
  }
  return found;
}

}  // namespace zeroshard
