#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include "data/parquet_reader.h"
#include "data/support.h"
#include "data/toy_tokenizer.h"

namespace zeroshard {

// A stand-in for the plug-in's. The file says what it does, a word per line: names of columns, then "rows", then rows.
// A line that begins with "!" is a failure of the call that comes to it.
struct ParquetRows {
  std::vector<std::string> columns, rows;
  std::string selected, error;
  size_t row = 0;
};

namespace {

namespace fs = std::filesystem;
using testing::message_of;
using testing::put;
using testing::TemporaryDirectory;
using Format = TokenizeOptions::Format;

int64_t open_count(int change) {
  static int64_t count = 0;
  return count += change;
}

ParquetRows* fake_open(int fd) {
  auto* const rows = new ParquetRows;
  open_count(1);
  std::string text(1000, '\0');
  text.resize(size_t(std::max<ssize_t>(::read(fd, text.data(), text.size()), 0)));
  ::close(fd);
  std::vector<std::string>* into = &rows->columns;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line == "rows") {
      into = &rows->rows;
    } else if (into == &rows->columns && line.starts_with("!")) {
      rows->error = line.substr(1);
    } else {
      into->push_back(line);
    }
  }
  return rows;
}

const char* fake_error(const ParquetRows* rows) {
  return rows->error.empty() ? nullptr : rows->error.c_str();
}

const char* fake_column(const ParquetRows* rows, size_t index) {
  return index < rows->columns.size() ? rows->columns[index].c_str() : nullptr;
}

int fake_select(ParquetRows* rows, const ParquetColumn* columns, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    rows->selected += concat(columns[i].name, "(");
    for (size_t j = 0; j < columns[i].field_count; ++j) rows->selected += concat(columns[i].fields[j], " ");
    rows->selected += ")";
  }
  if (columns[0].name != std::string("number")) return 0;
  rows->error = "column 'number' holds none";
  return -1;
}

// "selected": what was.
int fake_next(ParquetRows* rows, const char** json, size_t* bytes) {
  if (rows->row == rows->rows.size()) return 0;
  std::string& line = rows->rows[rows->row++];
  if (line == "selected") line = rows->selected;
  if (line.starts_with("!")) {
    rows->error = line.substr(1);
    return -1;
  }
  *json = line.data();
  *bytes = line.size();
  return 1;
}

void fake_close(ParquetRows* rows) {
  open_count(-1);
  delete rows;
}

constexpr ParquetPlugin kFake{kParquetPluginVersion, fake_open, fake_error, fake_column,
                              fake_select,           fake_next, fake_close};

// The lines of a file for the stand-in, or the message of what is thrown; nothing stays open.
template <typename Thrown = ValueError>
std::vector<std::string> rows_of(const std::string& text, const TokenizeOptions& options) {
  const TemporaryDirectory root;
  put(root / "in.parquet", text);
  std::vector<std::string> rows;
  const std::string message = message_of<Thrown>([&] {
    ParquetReader reader(kFake, root / "in.parquet", options);
    std::string_view line;
    while (reader.next(line, options.max_document_bytes)) {
      rows.emplace_back(line);
      EXPECT_EQ(reader.line(), int64_t(rows.size()));
    }
    EXPECT_EQ(reader.bytes(), int64_t(text.size()));
  });
  EXPECT_EQ(open_count(0), 0);
  if (!message.empty()) {
    EXPECT_NE(message.find(root / "in.parquet"), message.npos) << message;
    rows.push_back(message);
  }
  return rows;
}

std::vector<std::string> selected(Format format, const std::string& columns, const std::string& field = "") {
  TokenizeOptions options;
  options.format = format;
  options.field = field;
  return rows_of(columns + "rows\nselected\n", options);
}

TEST(Parquet, SelectsWhatTheFormatNeeds) {
  using Rows = std::vector<std::string>;
  EXPECT_EQ(selected(Format::kAuto, "id\ntext\n"), Rows{"text()"});
  EXPECT_EQ(selected(Format::kText, "id\ntext\n", "id"), Rows{"id()"});
  EXPECT_EQ(selected(Format::kChat, "messages\n"), Rows{"messages(role content )"});
  EXPECT_EQ(selected(Format::kChat, "messages\nturns\n", "turns"), Rows{"turns(role content )"});
  EXPECT_EQ(selected(Format::kInstruct, "prompt\ncompletion\nx\n"), Rows{"prompt()completion()"});
  EXPECT_EQ(selected(Format::kInstruct, "prompt\ninstruction\noutput\n"), Rows{"instruction()output()"});
  EXPECT_EQ(selected(Format::kInstruct, "output\ninput\ninstruction\n"), Rows{"instruction()input()output()"});
}

TEST(Parquet, NamesTheColumnsThereAre) {
  using ::testing::ElementsAre;
  using ::testing::HasSubstr;
  EXPECT_THAT(selected(Format::kJsonl, "a\nb\n"),
              ElementsAre(HasSubstr("in.parquet: there is no column 'text'; the file has 'a', 'b'")));
  EXPECT_THAT(selected(Format::kJsonl, ""), ElementsAre(HasSubstr("there is no column 'text'; the file has none")));
  EXPECT_THAT(selected(Format::kInstruct, "instruction\n"), ElementsAre(HasSubstr("there is no column 'output'")));
  EXPECT_THAT(selected(Format::kInstruct, "prompt\n"), ElementsAre(HasSubstr("there is no column 'completion'")));
  EXPECT_THAT(selected(Format::kJsonl, "number\n", "number"), ElementsAre(HasSubstr("column 'number' holds none")));
}

TEST(Parquet, FailuresTellFileAndRow) {
  using ::testing::ElementsAre;
  using ::testing::EndsWith;
  EXPECT_THAT(rows_of<IoError>("!damaged\n", {}), ElementsAre(EndsWith("in.parquet as Parquet: damaged")));
  EXPECT_THAT(rows_of<IoError>("text\nrows\n!cut\x1b[ off\n", {}), ElementsAre(EndsWith("as Parquet: cut?[ off")));
  EXPECT_THAT(rows_of<IoError>("text\nrows\n{}\n{}\n!bad page\n", {}),
              ElementsAre("{}", "{}", EndsWith("in.parquet as Parquet, after row 2: bad page")));
  TokenizeOptions options;
  options.max_document_bytes = 4;
  EXPECT_THAT(rows_of("text\nrows\n{  }\n{   }\n{}\n", options),
              ElementsAre("{  }", EndsWith("in.parquet:2: the row has more than 4 bytes as JSON, too many for one "
                                           "document: divide it, or allow more")));
}

TEST(Parquet, StopsWhenAsked) {
  const TemporaryDirectory root;
  put(root / "in.parquet", "text\nrows\n{}\n{}\n");
  std::atomic<bool> stop{false};
  TokenizeOptions options;
  options.stop = &stop;
  ParquetReader reader(kFake, root / "in.parquet", options);
  std::string_view line;
  EXPECT_TRUE(reader.next(line, 10));
  stop = true;
  EXPECT_EQ(message_of<Error>([&] { reader.next(line, 10); }), "interrupted");
}

TEST(Parquet, OnlyFilesAreRead) {
  const TemporaryDirectory root;
  ASSERT_EQ(::mkfifo((root / "pipe.parquet").c_str(), 0600), 0);
  const auto open = [&](const std::string& path) { ParquetReader(kFake, path, {}); };
  EXPECT_NE(message_of<ValueError>([&] { open(root / "pipe.parquet"); }).find("this is a pipe"), std::string::npos);
  EXPECT_THROW(open(root.path()), IoError);
  EXPECT_THROW(open(root / "none.parquet"), IoError);
}

// What lies beside this program has no reader of Parquet.
TEST(Parquet, WithoutItsReaderTheFileIsNamedAndTheWayOut) {
  const TemporaryDirectory root;
  const testing::ToyTokenizer tokenizer({"<s>", "</s>"}, {"ab"});
  put(root / "a.jsonl", "{\"text\": 1}\n");
  put(root / "b.parquet", "PAR1");
  const std::string message = message_of<ValueError>([&] {
    tokenize_files(tokenizer, {root / "a.jsonl", root / "b.parquet"}, root / "out", {});
  });
  EXPECT_THAT(message, ::testing::StartsWith("cannot read " + (root / "b.parquet") + ", because "));
  EXPECT_THAT(message, ::testing::HasSubstr("libzeroshard_parquet.so"));
  EXPECT_THAT(message,
              ::testing::EndsWith("Install the Python package pyarrow and build zeroshard again, or convert the "
                                  "file to JSON lines"));
  EXPECT_EQ(std::distance(fs::directory_iterator(root.path()), fs::directory_iterator()), 2);
}

TEST(Parquet, IsNotReadAsText) {
  const TemporaryDirectory root;
  const testing::ToyTokenizer tokenizer({"<s>", "</s>"}, {"ab"});
  put(root / "a.txt", "PAR1\x15\x04\x15\n");
  EXPECT_EQ(message_of<ValueError>([&] { tokenize_files(tokenizer, {root / "a.txt"}, root / "out", {}); }),
            (root / "a.txt") + " is Parquet, which is read from files alone whose names end in .parquet");
  put(root / "b.txt", "PAR1 is its magic\nPAR1\x15");
  EXPECT_EQ(tokenize_files(tokenizer, {root / "b.txt"}, root / "out", {}).documents, 1);
}

}  // namespace
}  // namespace zeroshard
