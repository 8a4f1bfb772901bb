#include "zeroshard/tokenize.h"

#include <thread>

#include "data/support.h"
#include "data/toy_tokenizer.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using testing::message_of;
using testing::put;
using testing::TemporaryDirectory;
using testing::ToyTokenizer;

using Format = TokenizeOptions::Format;
using Split = TokenizeOptions::Split;

const ToyTokenizer& tokenizer() {
  static const ToyTokenizer kTokenizer({"<s>", "</s>", "<|im_start|>", "<|im_end|>"}, {"ab"});
  return kTokenizer;
}

// Each document as text.
std::vector<std::string> texts_of(const std::string& path) {
  const TokenFile file(path);
  std::vector<std::string> documents;
  int64_t begin = 0;
  for (int64_t i = 0; i < file.info().documents; ++i) {
    std::vector<int32_t> ids(size_t(file.document_end(i) - begin));
    file.read(begin, ids);
    begin = file.document_end(i);
    documents.push_back(tokenizer().decode(ids, false));
  }
  return documents;
}

struct Texts {
  const char* text;
  Split split;
  std::vector<std::string> documents;
};

TEST(Tokenize, DividesTexts) {
  const TemporaryDirectory root;
  const std::vector<Texts> cases{
      {"one\ntwo\n\nthree\n", Split::kFile, {"one\ntwo\n\nthree\n"}},
      {"one\ntwo\n\n \t\n\nthree\n", Split::kBlankLines, {"one\ntwo", "three"}},
      {"\n\none\r\n\r\ntwo", Split::kBlankLines, {"one", "two"}},
      {"one\n\ntwo\n<end>\nthree\n<end>\n", Split::kLine, {"one\n\ntwo", "three"}},
      {"<end>\n<end>\none <end>\n<end>\r\n<end>x\n", Split::kLine, {"one <end>", "<end>x"}},
      {"no newline", Split::kLine, {"no newline"}},
      {"</s>", Split::kFile, {"</s>"}},  // as text
  };
  for (const Texts& texts : cases) {
    SCOPED_TRACE(texts.text);
    put(root / "in.txt", texts.text);
    TokenizeOptions options;
    options.split = texts.split;
    options.separator = "<end>";
    options.append_eos = false;
    const TokenizeReport report = tokenize_files(tokenizer(), {root / "in.txt"}, root / "out", options);
    EXPECT_EQ(texts_of(root / "out"), texts.documents);
    EXPECT_EQ(report.documents, int64_t(texts.documents.size()));
    EXPECT_EQ(report.bytes, int64_t(std::string(texts.text).size()));
    options.append_eos = true;
    EXPECT_EQ(tokenize_files(tokenizer(), {root / "in.txt"}, root / "out", options).tokens,
              report.tokens + report.documents);
    std::vector<std::string> ended = texts.documents;
    for (std::string& document : ended) document += "</s>";
    EXPECT_EQ(texts_of(root / "out"), ended);
  }
}

TEST(Tokenize, TextInADocumentNeverBecomesASpecialToken) {
  const TemporaryDirectory root;
  put(root / "in.txt", "a</s>b");
  tokenize_files(tokenizer(), {root / "in.txt"}, root / "out", {});
  const TokenFile file(root / "out");
  EXPECT_EQ(file.info().tokens, 7);
  EXPECT_EQ(file.info().tokenizer, tokenizer().digest());
  EXPECT_EQ(file.info().vocab_size, tokenizer().vocab_size());
}

TEST(Tokenize, ReadsRecords) {
  const TemporaryDirectory root;
  put(root / "a.jsonl",
      "{\"text\": \"one\\nline\"}\n\n  \r\n{\"id\": 3, \"text\": \"\\u00e9\", \"x\": [1]}\n{\"text\": \"\"}\n");
  put(root / "b.txt", "{\"text\": 1}\n");
  TokenizeOptions options;
  options.append_eos = false;
  const TokenizeReport report = tokenize_files(tokenizer(), {root / "a.jsonl", root / "b.txt"}, root / "out", options);
  EXPECT_EQ(texts_of(root / "out"), (std::vector<std::string>{"one\nline", "é", "{\"text\": 1}\n"}));
  EXPECT_EQ(report.empty, 1);
  put(root / "c", "{\"body\": \"x\", \"text\": 1}");
  options.format = Format::kJsonl;
  options.field = "body";
  tokenize_files(tokenizer(), {root / "c"}, root / "out", options);
  EXPECT_EQ(texts_of(root / "out"), std::vector<std::string>{"x"});
}

TEST(Tokenize, LearnsAnswersAlone) {
  const TemporaryDirectory root;
  const std::string answer = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nab!<|im_end|>\n";
  put(root / "chat", R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "ab!"}]})");
  put(root / "instruct", R"({"prompt": "q", "completion": "ab!"})"
                         "\n"
                         R"({"instruction": "q", "input": null, "output": "ab!"})"
                         "\n"
                         R"({"instruction": "q", "input": "i", "output": "ab!"})");
  TokenizeOptions options;
  options.format = Format::kChat;
  EXPECT_EQ(tokenize_files(tokenizer(), {root / "chat"}, root / "out", options).learned, 3);
  EXPECT_EQ(texts_of(root / "out"), std::vector<std::string>{answer});
  const TokenFile file(root / "out");
  ASSERT_TRUE(file.info().masked);
  std::vector<int32_t> ids(size_t(file.info().tokens)), learned;
  file.read(0, ids);
  for (int64_t i = 0; i < file.info().tokens; ++i)
    if (file.learned(i)) learned.push_back(ids[size_t(i)]);
  EXPECT_EQ(tokenizer().decode(learned, false), "ab!<|im_end|>");
  options.format = Format::kInstruct;
  EXPECT_EQ(tokenize_files(tokenizer(), {root / "instruct"}, root / "out", options).learned, 9);
  std::string with_input = answer;
  with_input.replace(with_input.find('q'), 1, "q\n\ni");
  EXPECT_EQ(texts_of(root / "out"), (std::vector<std::string>{answer, answer, with_input}));
}

struct Bad {
  const char* line;
  Format format;
  const char* message;
};

TEST(Tokenize, NamesFileLineAndFieldOfABadRecord) {
  const TemporaryDirectory root;
  const std::vector<Bad> cases{
      {"{\"text\": 1}", Format::kJsonl, "field 'text' must be a string, it is 1"},
      {"{\"txt\": \"a\", \"b\": 1}", Format::kJsonl, "there is no field 'text'; the record has 'b', 'txt'"},
      {"[1]", Format::kJsonl, "the line must be a JSON object, it is [1]"},
      {"{\"text\": \"a\"", Format::kJsonl, "this is not JSON in UTF-8, at byte 13"},
      {"{\"text\": \"\xff\"}", Format::kJsonl, "this is not JSON in UTF-8"},
      {"{\"text\": \"POISON\"}", Format::kJsonl, "cannot be encoded"},
      {"{}", Format::kChat, "there is no field 'messages'; the record has none"},
      {"{\"messages\": []}", Format::kChat, "field 'messages' must be a list of messages"},
      {"{\"messages\": {}}", Format::kChat, "field 'messages' must be a list of messages"},
      {"{\"messages\": [1]}", Format::kChat, "field 'messages[0]' must be an object, it is 1"},
      {R"({"messages": [{"role": "user"}]})", Format::kChat, "there is no field 'content'; the record has 'role'"},
      {R"({"messages": [{"role": "bot", "content": "x"}]})", Format::kChat, "field 'messages[0].role' is 'bot'"},
      {R"({"messages": [{"role": "user", "content": ["x"]}]})", Format::kChat,
       "field 'messages[0].content' must be a string, it is [\"x\"]"},
      {R"({"messages": [{"role": "user", "content": "x"}]})", Format::kChat, "no message of 'assistant'"},
      {R"({"prompt": "x"})", Format::kInstruct, "there is no field 'completion'"},
      {R"({"instruction": "x", "input": 2, "output": "y"})", Format::kInstruct, "field 'input' must be a string"},
      {R"({"question": "x"})", Format::kInstruct, "there is no field 'prompt'"},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.line);
    const bool chat = bad.format == Format::kChat;
    const std::string fine = chat ? R"({"messages": [{"role": "assistant", "content": "x"}]})"
                             : bad.format == Format::kInstruct ? R"({"prompt": "x", "completion": "y"})"
                                                               : R"({"text": "x"})";
    put(root / "in", fine + "\n\n" + bad.line + "\n" + fine + "\n");
    TokenizeOptions options;
    options.format = bad.format;
    const std::string message =
        message_of<ValueError>([&] { tokenize_files(tokenizer(), {root / "in"}, root / "out", options); });
    EXPECT_TRUE(message.starts_with(root / "in:3: ")) << message;
    EXPECT_NE(message.find(bad.message), message.npos) << message;
    EXPECT_EQ(std::distance(fs::directory_iterator(root.path()), fs::directory_iterator()), 1);
  }
}

// The text of an error is made by a function that calls itself for each level.
TEST(Tokenize, ARecordThatIsNestedTooDeeplyIsNamed) {
  const TemporaryDirectory root;
  constexpr size_t kLevels = 500'000;
  const std::string deep = std::string(kLevels, '[') + std::string(kLevels, ']');
  for (const std::string& line : {deep, concat(R"({"text": )", deep, "}"), concat(R"({"x": [1, )", deep, "]}")}) {
    put(root / "in", "{\"text\": \"[[\"}\n" + line + "\n");
    for (const Format format : {Format::kJsonl, Format::kChat, Format::kInstruct}) {
      TokenizeOptions options;
      options.format = format;
      options.field = "text";
      if (format != Format::kJsonl) put(root / "in", "\n" + line + "\n");
      EXPECT_EQ(message_of<ValueError>([&] { tokenize_files(tokenizer(), {root / "in"}, root / "out", options); }),
                concat(root / "in", ":2: the line has more than 500 brackets inside each other"));
    }
  }
  put(root / "in", concat(R"({"text": "a", "x": )", std::string(400, '['), std::string(400, ']'), "}\n"));
  TokenizeOptions options;
  options.format = Format::kJsonl;
  EXPECT_EQ(tokenize_files(tokenizer(), {root / "in"}, root / "out", options).documents, 1);
}

TEST(Tokenize, DocumentsThatAreTooLongAreErrors) {
  const TemporaryDirectory root;
  put(root / "in", "short\n" + std::string(2000, 'x') + "\n");
  put(root / "lines", "short\n\nsome\nlines\ntogether\n");
  TokenizeOptions options;
  options.max_document_bytes = 2001;
  options.format = Format::kText;
  options.split = Split::kBlankLines;
  EXPECT_NE(message_of<ValueError>([&] {
              tokenize_files(tokenizer(), {root / "in"}, root / "out", options);
            }).find("/in:1: the document that begins here has more than 2001 bytes"),
            std::string::npos);
  options.max_document_bytes = 2000;
  EXPECT_NE(message_of<ValueError>([&] {
              tokenize_files(tokenizer(), {root / "in"}, root / "out", options);
            }).find("/in:2: the line has more than 2000 bytes"),
            std::string::npos);
  options.max_document_bytes = 11;
  EXPECT_NE(message_of<ValueError>([&] {
              tokenize_files(tokenizer(), {root / "lines"}, root / "out", options);
            }).find("/lines:3: the document that begins here"),
            std::string::npos);
  options.max_document_bytes = 20;
  EXPECT_EQ(tokenize_files(tokenizer(), {root / "lines"}, root / "out", options).documents, 2);
}

TEST(Tokenize, WrongArgumentsAreNamed) {
  const TemporaryDirectory root;
  put(root / "in", "x");
  put(root / "empty", "");
  const ToyTokenizer without_eos({}, {});
  TokenizeOptions options;
  const auto refused = [&](const Tokenizer& with, const std::vector<std::string>& inputs) {
    return message_of<ValueError>([&] { tokenize_files(with, inputs, root / "out", options); });
  };
  EXPECT_NE(refused(without_eos, {root / "in"}).find("names no eos token"), std::string::npos);
  EXPECT_NE(refused(tokenizer(), {}).find("no input"), std::string::npos);
  EXPECT_NE(refused(tokenizer(), {root / "empty"}).find("there is no token to write"), std::string::npos);
  options.threads = -1;
  EXPECT_NE(refused(tokenizer(), {root / "in"}).find("threads must be"), std::string::npos);
  options.threads = 0;
  options.split = Split::kLine;
  EXPECT_NE(refused(tokenizer(), {root / "in"}).find("the separator is empty"), std::string::npos);
  options.split = Split::kFile;
  EXPECT_THROW(tokenize_files(tokenizer(), {root / "none"}, root / "out", options), IoError);
  EXPECT_THROW(tokenize_files(tokenizer(), {root.path()}, root / "out", options), IoError);
  EXPECT_EQ(std::distance(fs::directory_iterator(root.path()), fs::directory_iterator()), 2);
}

std::string many_records(uint64_t seed, int64_t count) {
  testing::Random random(seed);
  std::string lines;
  for (int64_t i = 0; i < count; ++i)
    lines += concat("{\"text\": \"", i, " ", std::string(random() % (random() % 50 == 0 ? 30'000 : 300), 'a'), "\"}\n");
  return lines;
}

TEST(Tokenize, ThreadsChangeNothing) {
  const TemporaryDirectory root;
  put(root / "in.jsonl", many_records(1, 5000));
  TokenizeOptions options;
  options.threads = 1;
  const TokenizeReport report = tokenize_files(tokenizer(), {root / "in.jsonl"}, root / "one", options);
  EXPECT_EQ(report.documents, 5000);
  for (const int threads : {2, 3, 7}) {
    options.threads = threads;
    EXPECT_EQ(tokenize_files(tokenizer(), {root / "in.jsonl"}, root / "many", options).tokens, report.tokens);
    EXPECT_TRUE(testing::contents_of(root / "many") == testing::contents_of(root / "one")) << threads;
  }
}

TEST(Tokenize, ABadRecordFarBehindIsNamedWithAnyNumberOfThreads) {
  const TemporaryDirectory root;
  put(root / "in.jsonl", many_records(2, 3000) + "{\"text\": \"POISON\"}\n" + many_records(3, 3000));
  for (const int threads : {1, 4}) {
    TokenizeOptions options;
    options.threads = threads;
    const std::string message =
        message_of<ValueError>([&] { tokenize_files(tokenizer(), {root / "in.jsonl"}, root / "out", options); });
    EXPECT_TRUE(message.starts_with(root / "in.jsonl:3001: ")) << message;
    EXPECT_EQ(std::distance(fs::directory_iterator(root.path()), fs::directory_iterator()), 1);
  }
}

TEST(Tokenize, StopsWhenAsked) {
  const TemporaryDirectory root;
  put(root / "in.jsonl", many_records(2, 3000));
  std::atomic<bool> stop{true};
  TokenizeOptions options;
  options.stop = &stop;
  EXPECT_EQ(message_of<Error>([&] { tokenize_files(tokenizer(), {root / "in.jsonl"}, root / "out", options); }),
            "interrupted");
  EXPECT_EQ(std::distance(fs::directory_iterator(root.path()), fs::directory_iterator()), 1);
}

TEST(Tokenize, AFullDiskLeavesNothing) {
  const TemporaryDirectory root;
  put(root / "in.jsonl", many_records(2, 4000));
  for (int64_t nth = 1;; ++nth) {
    FaultyIo io(posix_io());
    io.fail({IoOp::kWrite, nth, ENOSPC, true});
    const auto run = [&] { tokenize_files(io, tokenizer(), {root / "in.jsonl"}, root / "out", {}); };
    const std::string message = message_of<IoError>(run);
    EXPECT_EQ(io.open_files(), 0);
    if (!io.has_failed()) {
      EXPECT_GT(nth, 4);
      EXPECT_EQ(message, "");
      break;
    }
    EXPECT_NE(message.find(root.path()), message.npos) << nth << message;
    EXPECT_EQ(std::distance(fs::directory_iterator(root.path()), fs::directory_iterator()), 1);
  }
}

}  // namespace
}  // namespace zeroshard
