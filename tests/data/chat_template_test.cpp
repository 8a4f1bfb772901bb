#include "data/chat_template.h"

#include "data/support.h"
#include "data/toy_tokenizer.h"

namespace zeroshard {
namespace {

using testing::message_of;
using testing::ToyTokenizer;

const std::vector<std::string> kSpecials{"<s>",
                                         "</s>",
                                         "<|im_start|>",
                                         "<|im_end|>",
                                         "<|begin_of_text|>",
                                         "<|start_header_id|>",
                                         "<|end_header_id|>",
                                         "<|eot_id|>",
                                         "<start_of_turn>",
                                         "<end_of_turn>"};

const std::vector<Message> kChat{
    {Role::kUser, " Hi "}, {Role::kAssistant, "Hello!"}, {Role::kUser, "Bye"}, {Role::kAssistant, " See you\n"}};

std::vector<Message> with_system(std::vector<Message> messages) {
  messages.insert(messages.begin(), {Role::kSystem, "Be kind."});
  return messages;
}

// What is learned between [[ and ]].
std::string marked(const std::vector<TextPiece>& pieces) {
  std::string text;
  for (const TextPiece& piece : pieces) text += piece.learn ? "[[" + piece.text + "]]" : piece.text;
  return text;
}

std::string marked(const EncodedDocument& document, const Tokenizer& tokenizer) {
  std::string text;
  for (size_t i = 0; i < document.ids.size(); ++i) {
    if (document.learn[i] && (i == 0 || !document.learn[i - 1])) text += "[[";
    text += tokenizer.token(document.ids[i]);
    if (document.learn[i] && (i + 1 == document.ids.size() || !document.learn[i + 1])) text += "]]";
  }
  return text;
}

TEST(ChatTemplate, RendersTheFormsOfModels) {
  const ToyTokenizer tokenizer(kSpecials, {});
  const auto rendered = [&](const char* name, const std::vector<Message>& messages) {
    const std::vector<TextPiece> pieces = ChatTemplate(name, tokenizer).render(messages);
    // The ids are those of the whole text, and what is learned is the same there.
    std::string text;
    for (const TextPiece& piece : pieces) text += piece.text;
    const EncodedDocument document = encode_pieces(pieces, tokenizer);
    EXPECT_EQ(document.ids, tokenizer.encode(text, false, true)) << name;
    EXPECT_EQ(marked(document, tokenizer), marked(pieces)) << name;
    return marked(pieces);
  };
  EXPECT_EQ(rendered("chatml", with_system(kChat)),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n"
            "[[Hello!<|im_end|>]]\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n[[ See you\n<|im_end|>]]\n");
  EXPECT_EQ(rendered("llama3", with_system(kChat)),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[[Hello!<|eot_id|>]]"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[[See you<|eot_id|>]]");
  EXPECT_EQ(
      rendered("llama2", with_system(kChat)),
      "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\n Hi [/INST][[ Hello! </s>]]<s>[INST] Bye [/INST][[ See you </s>]]");
  EXPECT_EQ(rendered("mistral", kChat), "<s>[INST]  Hi  [/INST][[Hello!</s>]][INST] Bye [/INST][[ See you\n</s>]]");
  EXPECT_EQ(rendered("mistral", with_system(kChat)),
            "<s>[INST] Be kind.\n\n Hi  [/INST][[Hello!</s>]][INST] Bye [/INST][[ See you\n</s>]]");
  EXPECT_EQ(rendered("gemma", kChat),
            "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n[[Hello!<end_of_turn>]]\n"
            "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n[[See you<end_of_turn>]]\n");
  EXPECT_EQ(rendered("plain", kChat), " Hi [[Hello!</s>]]Bye[[ See you\n</s>]]");
  EXPECT_EQ(rendered("alpaca", with_system(kChat)),
            "Be kind.\n\n### Instruction:\n Hi \n\n### Response:\n[[Hello!</s>]]\n\n### Instruction:\nBye\n\n"
            "### Response:\n[[ See you\n</s>]]");
}

TEST(ChatTemplate, AlpacaPutsAnInputUnderItsOwnHeading) {
  const ToyTokenizer tokenizer(kSpecials, {}, /*adds_bos=*/true);
  const ChatTemplate alpaca("alpaca", tokenizer), chatml("chatml", tokenizer);
  EXPECT_EQ(
      marked(alpaca.render(alpaca.instruction("Add.", "1 2", "3"))),
      "<s>Below is an instruction that describes a task, paired with an input that provides further context. Write a "
      "response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### "
      "Response:\n[[3</s>]]");
  EXPECT_EQ(
      marked(alpaca.render(alpaca.instruction("Go.", "", "Ok"))),
      "<s>Below is an instruction that describes a task. Write a response that appropriately completes the request."
      "\n\n### Instruction:\nGo.\n\n### Response:\n[[Ok</s>]]");
  EXPECT_EQ(marked(chatml.render(chatml.instruction("Add.", "1 2", "3"))),
            "<|im_start|>user\nAdd.\n\n1 2<|im_end|>\n<|im_start|>assistant\n[[3<|im_end|>]]\n");
}

// Where a token lies in what is given and in the answer, it is learned: the model has to produce it.
TEST(ChatTemplate, ATokenAcrossTheBoundaryBelongsToTheAnswer) {
  const ToyTokenizer tokenizer(kSpecials, {"\n\n", "t\n\n", "] ", "ab"});
  const ChatTemplate chatml("chatml", tokenizer), llama("llama2", tokenizer);
  std::vector<TextPiece> pieces = chatml.render({{Role::kUser, "x"}, {Role::kAssistant, "\nab"}});
  EXPECT_EQ(marked(encode_pieces(pieces, tokenizer), tokenizer),
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistan[[t\n\nab<|im_end|>]]\n");
  pieces = llama.render({{Role::kUser, "x"}, {Role::kAssistant, "ab"}});
  EXPECT_EQ(marked(encode_pieces(pieces, tokenizer), tokenizer), "<s>[INST] x [/INST[[] ab </s>]]");
}

TEST(ChatTemplate, NamesWhatDoesNotSuit) {
  const ToyTokenizer tokenizer(kSpecials, {}), bare({}, {}), no_bos({"</s>"}, {});
  const auto refused = [](const auto& call) { return message_of<ValueError>(call); };
  const auto has = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), message.npos) << message;
  };
  has(refused([&] { ChatTemplate("chatlm", tokenizer); }), "the template 'chatlm' is not known; there are chatml,");
  has(refused([&] { ChatTemplate("chatml", bare); }), "needs the token '<|im_start|>'");
  has(refused([&] { ChatTemplate("llama3", bare); }), "needs the token '<|begin_of_text|>'");
  has(refused([&] { ChatTemplate("gemma", bare); }), "needs the token '<start_of_turn>'");
  has(refused([&] { ChatTemplate("plain", bare); }), "needs the tokenizer's eos token");
  has(refused([&] { ChatTemplate("mistral", no_bos); }), "needs the tokenizer's bos token");
  ChatTemplate("plain", no_bos);
  const auto render = [&](const char* name, const std::vector<Message>& messages) {
    return refused([&] { ChatTemplate(name, tokenizer).render(messages); });
  };
  has(render("chatml", {}), "no message of 'assistant'");
  has(render("chatml", {{Role::kUser, "x"}}), "no message of 'assistant'");
  has(render("gemma", with_system(kChat)), "message 0 is of 'system', which the template 'gemma' does not have");
  for (const char* const name : {"llama2", "mistral", "gemma", "alpaca"}) {
    has(render(name, {{Role::kAssistant, "x"}}), "message 0 is of 'assistant'");
    has(render(name, {{Role::kUser, "x"}, {Role::kUser, "y"}, {Role::kAssistant, "z"}}), "message 1 is of 'user'");
    has(render(name, {{Role::kUser, "x"}, {Role::kTool, "y"}, {Role::kAssistant, "z"}}), "message 1 is of 'tool'");
  }
}

}  // namespace
}  // namespace zeroshard
