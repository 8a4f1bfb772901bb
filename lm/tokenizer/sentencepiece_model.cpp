#include "tokenizer/sentencepiece_model.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

// Reads the wire format of protocol buffers, which is a sequence of fields. Each field has a number, a wire type and a
// value.
class Wire {
 public:
  Wire(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  // Reads the next field. Returns false at the end of the bytes.
  bool next() {
    if (at_ == bytes_.size()) return false;
    const uint64_t key = varint();
    field_ = key >> 3;
    type_ = static_cast<unsigned>(key & 7);
    if (field_ == 0 || field_ > UINT32_MAX) fail("a field number is wrong");
    switch (type_) {
      case 0:
        value_ = varint();
        break;
      case 1:
        text_ = take(8);
        break;
      case 2:
        text_ = take(varint());
        break;
      case 5:
        text_ = take(4);
        break;
      default:
        fail(concat("wire type ", type_, " is not supported"));
    }
    return true;
  }

  uint64_t field() const { return field_; }
  Wire message() const { return {text(), name_}; }
  std::string_view text() const {
    expect(2);
    return text_;
  }
  bool boolean() const {
    expect(0);
    return value_ != 0;
  }
  int32_t integer() const {
    expect(0);
    return static_cast<int32_t>(static_cast<uint32_t>(value_));  // a negative number is stored as 64 bits
  }
  float number() const {
    expect(5);
    uint32_t bits = 0;
    for (size_t i = 0; i < 4; ++i) bits |= uint32_t{static_cast<unsigned char>(text_[i])} << (8 * i);
    return std::bit_cast<float>(bits);
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw ValueError(concat("'", name_, "' is not a SentencePiece model: ", problem));
  }

 private:
  void expect(unsigned type) const {
    if (type_ != type) fail(concat("field ", field_, " has wire type ", type_, " instead of ", type));
  }
  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) fail(concat("it ends inside field ", field_));
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  uint64_t varint() {
    uint64_t result = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) fail("it ends inside a number");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      result |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return result;
    }
    fail("a number has more than ten bytes");
  }

  std::string_view bytes_;
  const std::string& name_;
  size_t at_ = 0;
  uint64_t field_ = 0, value_ = 0;
  unsigned type_ = 0;
  std::string_view text_;
};

SentencePieceModel::Piece read_piece(Wire wire) {
  SentencePieceModel::Piece piece;
  while (wire.next()) {
    if (wire.field() == 1) piece.text = wire.text();
    if (wire.field() == 2) piece.score = wire.number();
    if (wire.field() == 3) {
      const int32_t type = wire.integer();
      if (type < 1 || type > 6) wire.fail(concat("a piece has type ", type));
      piece.type = static_cast<SentencePieceModel::Type>(type);
    }
  }
  if (piece.text.empty() || !is_valid_utf8(piece.text)) wire.fail("a piece is empty or not UTF-8");
  if (std::isnan(piece.score)) wire.fail("a piece has no number as its score");
  return piece;
}

void read_trainer_spec(Wire wire, SentencePieceModel& model) {
  while (wire.next()) {
    switch (wire.field()) {
      case 3: {
        const int32_t kind = wire.integer();
        if (kind < 1 || kind > 4) wire.fail(concat("the model type is ", kind));
        model.kind = static_cast<SentencePieceModel::Kind>(kind);
        break;
      }
      case 24:
        model.treat_whitespace_as_suffix = wire.boolean();
        break;
      case 35:
        model.byte_fallback = wire.boolean();
        break;
      case 44:
        model.unk_surface = wire.text();
        break;
      case 46:
        model.bos_piece = wire.text();
        break;
      case 47:
        model.eos_piece = wire.text();
        break;
      default:  // fields that are used only in training
        break;
    }
  }
}

void read_normalizer_spec(Wire wire, SentencePieceModel& model) {
  while (wire.next()) {
    if (wire.field() == 2) model.charsmap = wire.text();
    if (wire.field() == 3) model.add_dummy_prefix = wire.boolean();
    if (wire.field() == 4) model.remove_extra_whitespaces = wire.boolean();
    if (wire.field() == 5) model.escape_whitespaces = wire.boolean();
  }
}

bool has_charsmap(Wire wire) {
  bool found = false;
  while (wire.next()) found = found || (wire.field() == 2 && !wire.text().empty());
  return found;
}

}  // namespace

SentencePieceModel parse_sentencepiece(std::string_view bytes, const std::string& name) {
  SentencePieceModel model;
  Wire wire(bytes, name);
  while (wire.next()) {
    if (wire.field() == 1) model.pieces.push_back(read_piece(wire.message()));
    if (wire.field() == 2) read_trainer_spec(wire.message(), model);
    if (wire.field() == 3) read_normalizer_spec(wire.message(), model);
    if (wire.field() == 5) model.has_denormalizer = has_charsmap(wire.message());
  }
  if (model.pieces.empty()) wire.fail("it has no pieces");
  return model;
}

}  // namespace zeroshard
