#include "tokenizer/special_ids.h"

#include "tokenizer/normalizer.h"

namespace zeroshard {
namespace {

class Reader {
 public:
  explicit Reader(int64_t vocab_size) : vocab_size_(vocab_size) {}

  SpecialIds read(const JsonField& field, int depth) const {
    const std::string type = field.type();
    SpecialIds ids;
    if (type == "ByteLevel") {
      field.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // these keys affect only offsets
    } else if (type == "TemplateProcessing") {
      ids = read_template(field);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      field.allow_only({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
      ids = {{pair_id(field["cls"])}, {pair_id(field["sep"])}};
    } else if (type == "Sequence") {
      field.allow_only({"type", "processors"});
      if (depth == kMaxSequenceDepth) field.refuse("too many sequences inside each other");
      field["processors"].each([&](const JsonField& step) { put_around(ids, read(step, depth + 1)); });
    } else {
      field["type"].refuse(
          "of post-processors, Sequence, ByteLevel, TemplateProcessing, BertProcessing and RobertaProcessing are");
    }
    return ids;
  }

 private:
  // Puts the ids of a later step around the ids of the earlier steps.
  static void put_around(SpecialIds& ids, const SpecialIds& outer) {
    ids.before.insert(ids.before.begin(), outer.before.begin(), outer.before.end());
    ids.after.insert(ids.after.end(), outer.after.begin(), outer.after.end());
  }

  int32_t id(const JsonField& field) const { return static_cast<int32_t>(field.integer(0, vocab_size_ - 1)); }

  // Returns the id in a pair like ["</s>", 2].
  int32_t pair_id(const JsonField& field) const {
    if (!field.json().is_array() || field.json().size() != 2) field.refuse("it must be a token and its id");
    return id(field.element(1));
  }

  SpecialIds read_template(const JsonField& field) const {
    field.allow_only({"type", "single", "pair", "special_tokens"});
    SpecialIds ids;
    int sequences = 0;
    field["single"].each([&](const JsonField& piece) {
      piece.allow_only({"SpecialToken", "Sequence"});
      if (piece.has("Sequence")) {
        if (piece["Sequence"]["id"].string() != "A" || ++sequences > 1) piece.refuse("one sequence A is");
        return;
      }
      const std::string& name = piece["SpecialToken"]["id"].string();
      auto& side = sequences == 0 ? ids.before : ids.after;
      field["special_tokens"][name.c_str()]["ids"].each([&](const JsonField& one) { side.push_back(id(one)); });
    });
    if (sequences == 0) field["single"].refuse("it must have the sequence A");
    return ids;
  }

  int64_t vocab_size_;
};

}  // namespace

SpecialIds read_post_processor(const JsonField& field, int64_t vocab_size) {
  return field.is_null() ? SpecialIds{} : Reader(vocab_size).read(field, 0);
}

}  // namespace zeroshard
