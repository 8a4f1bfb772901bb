#include "zeroshard/token_file.h"

#include <sys/stat.h>

#include "data/support.h"
#include "data/token_format.h"
#include "file/hash.h"
#include "support/random.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using testing::bytes_of_numbers;
using testing::contents_of;
using testing::Document;
using testing::message_of;
using testing::put;
using testing::SeededRandom;
using testing::seeds;
using testing::TemporaryDirectory;
using testing::write_tokens;

std::vector<int32_t> ids_of(const TokenFile& file) {
  std::vector<int32_t> ids(size_t(file.info().tokens));
  file.read(0, ids);
  return ids;
}

std::vector<Document> documents_of(const TokenFile& file) {
  std::vector<Document> documents;
  int64_t begin = 0;
  for (int64_t i = 0; i < file.info().documents; ++i) {
    const int64_t end = file.document_end(i);
    Document& document = documents.emplace_back();
    document.ids.resize(size_t(end - begin));
    file.read(begin, document.ids);
    for (; begin < end; ++begin) document.learn.push_back(file.learned(begin));
  }
  return documents;
}

TEST(TokenFile, HasWhatWasWritten) {
  const TemporaryDirectory root;
  for (const uint64_t seed : seeds(60)) {
    SeededRandom random(seed);
    const int64_t vocab_size = random() % 2 ? 65536 - int64_t(random() % 2) * 60000 : 65537 + int64_t(random() % 1000);
    std::vector<Document> documents =
        testing::random_documents(random, int64_t(1 + random() % 50), int64_t(1 + random() % 100), vocab_size);
    const bool masked = random() % 2 == 0;
    if (random() % 4 == 0) documents[0].ids[0] = int32_t(vocab_size - 1);
    write_tokens(root / "f", documents, {vocab_size, masked, random() % 2 ? "0123456789abcdef" : ""});
    const TokenFile file(root / "f");
    int64_t tokens = 0, learned = 0, max_id = -1, max_position = 0;
    for (const Document& document : documents) {
      for (const int32_t id : document.ids) {
        if (id > max_id) max_position = tokens;
        max_id = std::max<int64_t>(max_id, id);
        ++tokens;
      }
      for (const uint8_t learn : document.learn) learned += learn;
    }
    EXPECT_EQ(file.info().tokens, tokens);
    EXPECT_EQ(file.info().id_bytes, vocab_size <= 65536 ? 2 : 4);
    EXPECT_EQ(file.info().vocab_size, vocab_size);
    EXPECT_EQ(file.info().max_id, max_id);
    EXPECT_EQ(file.info().max_position, max_position);
    EXPECT_EQ(file.info().masked, masked);
    EXPECT_EQ(file.info().learned, masked ? learned : tokens);
    EXPECT_EQ(file.verify(), std::vector<std::string>());
    const std::vector<Document> read = documents_of(file);
    ASSERT_EQ(read.size(), documents.size());
    for (size_t i = 0; i < read.size(); ++i) {
      ASSERT_EQ(read[i].ids, documents[i].ids);
      ASSERT_EQ(read[i].learn, masked ? documents[i].learn : std::vector<uint8_t>(documents[i].ids.size(), 1));
    }
  }
}

TEST(TokenFile, LargeOnesHaveSeveralPiecesAndTheDamagedOneIsNamed) {
  const TemporaryDirectory root;
  SeededRandom random(7);
  const std::vector<Document> documents = testing::random_documents(random, 30'000, 100, 50'000);
  write_tokens(root / "f", documents, {50'000, true, ""});
  {
    const TokenFile file(root / "f");
    ASSERT_GT(file.info().bytes, 3 * kPieceBytes);
    EXPECT_EQ(file.verify(), std::vector<std::string>());
    const std::vector<Document> read = documents_of(file);
    for (size_t i = 0; i < read.size(); ++i) ASSERT_EQ(read[i].learn, documents[i].learn) << i;
    for (size_t i = 0; i < read.size(); ++i) ASSERT_EQ(read[i].ids, documents[i].ids) << i;
  }
  std::string bytes = contents_of(root / "f");
  bytes[size_t(kPieceBytes) + 77] ^= 1;
  put(root / "f", bytes);
  EXPECT_EQ(TokenFile(root / "f").verify(),
            std::vector<std::string>{
                concat(root / "f", ": the checksum of bytes ", kPieceBytes, " to ", 2 * kPieceBytes, " is wrong")});
}

// Of a file this small all is in the piece of the index, so that nothing changes unnoticed.
TEST(TokenFile, EveryCutAndEveryChangedByteIsNoticed) {
  const TemporaryDirectory root;
  write_tokens(root / "f", {{{1, 2, 3}, {1, 0, 1}}, {{4}, {1}}}, {100, true, "0123456789abcdef"});
  const std::string whole = contents_of(root / "f");
  ASSERT_LT(whole.size(), 1000u);
  EXPECT_EQ(TokenFile(root / "f").info().tokens, 4);
  for (size_t size = 0; size < whole.size(); ++size) {
    put(root / "cut", whole.substr(0, size));
    const std::string message = message_of<ValueError>([&] { TokenFile file(root / "cut"); });
    ASSERT_NE(message.find(root / "cut"), message.npos) << size << message;
  }
  for (const size_t more : {size_t{1}, size_t{64}, whole.size()}) {
    put(root / "long", whole + whole.substr(0, more));
    EXPECT_THROW(TokenFile(root / "long"), ValueError);
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = char(changed[at] ^ (1 << at % 8));
    put(root / "flipped", changed);
    const std::string message = message_of<ValueError>([&] { TokenFile file(root / "flipped"); });
    ASSERT_NE(message.find(root / "flipped"), message.npos) << at << message;
  }
}

// Reading mapped memory behind the end of a file kills the process.
TEST(TokenFile, OneThatIsCutWhileItIsOpenIsNamed) {
  const TemporaryDirectory root;
  const std::vector<int32_t> many(20'000, 7);
  write_tokens(root / "own", {{many, {}}, {many, {}}}, {100, false, ""});
  put(root / "plain.u16", std::string(80'000, '\1'));
  for (const char* name : {"own", "plain.u16"}) {
    SCOPED_TRACE(name);
    const TokenFile file(root / name);
    std::vector<int32_t> ids(5000);
    file.read(35'000, ids);
    const int64_t bytes = file.info().bytes;
    std::filesystem::resize_file(root / name, 4096);
    const std::string told = concat(root / name, " was cut from ", bytes, " to 4096 bytes while it was open");
    EXPECT_EQ(message_of<IoError>([&] { file.read(35'000, ids); }).substr(0, told.size()), told);
    EXPECT_EQ(message_of<IoError>([&] { file.check_ids(2000); }).substr(0, told.size()),
              file.info().max_id < 0 ? told : "");
    if (name == std::string("own")) {
      EXPECT_EQ(message_of<IoError>([&] { file.verify(); }).substr(0, told.size()), told);
    }
  }
}

// A file that gets the name of another does not change the other, and neither does deletion.
TEST(TokenFile, OneThatIsReplacedWhileItIsOpenIsReadToTheEnd) {
  const TemporaryDirectory root;
  put(root / "a.u16", std::string(80'000, '\1'));
  const TokenFile file(root / "a.u16");
  put(root / "b.u16", std::string(8, '\1'));
  std::filesystem::rename(root / "b.u16", root / "a.u16");
  std::vector<int32_t> ids(40'000);
  file.read(0, ids);
  std::filesystem::remove(root / "a.u16");
  file.read(0, ids);
  EXPECT_EQ(ids.back(), 257);
}

// Checksums that are right, of a foot that is not.
std::string with_foot(std::string file, const TokenFoot& foot) {
  const auto bytes = make_token_foot(foot);
  file.replace(file.size() - bytes.size(), bytes.size(), reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return file;
}

TEST(TokenFile, HostileFeetAreRefused) {
  const TemporaryDirectory root;
  write_tokens(root / "f", {{{1, 2, 3}, {1, 0, 1}}, {{4}, {1}}}, {100, true, ""});
  const std::string whole = contents_of(root / "f");
  const TokenFoot right = parse_token_foot(whole, "f");
  put(root / "same", with_foot(whole, right));
  EXPECT_EQ(TokenFile(root / "same").info().tokens, 4);
  const auto refused = [&](const char* expected, const auto& change) {
    TokenFoot foot = right;
    change(foot);
    put(root / "hostile", with_foot(whole, foot));
    const std::string message = message_of<ValueError>([&] { TokenFile file(root / "hostile"); });
    EXPECT_NE(message.find(root / "hostile"), message.npos) << expected;
    EXPECT_NE(message.find(expected), message.npos) << message;
  };
  for (const int64_t value : {INT64_MIN, int64_t{-1}, int64_t{0}, INT64_MAX, INT64_MAX / 2, INT64_MAX / 8 + 1}) {
    refused("number of tokens is", [&](TokenFoot& foot) { foot.tokens = value; });
    refused("number of documents is", [&](TokenFoot& foot) { foot.documents = value; });
    refused("vocab_size is", [&](TokenFoot& foot) { foot.vocab_size = value; });
    if (value != 0) {
      refused("largest id is", [&](TokenFoot& foot) { foot.max_id = value; });
      refused("position of the largest id is", [&](TokenFoot& foot) { foot.max_position = value; });
      refused("number of learned tokens is", [&](TokenFoot& foot) { foot.learned = value; });
    }
  }
  refused("largest id is 100", [&](TokenFoot& foot) { foot.max_id = 100; });
  refused("id_bytes is 3", [&](TokenFoot& foot) { foot.id_bytes = 3; });
  refused("its foot tells of", [&](TokenFoot& foot) { foot.tokens = 64; });
  refused("its foot tells of", [&](TokenFoot& foot) { foot.masked = false, foot.learned = 4; });
  refused("table of checksums", [&](TokenFoot& foot) { ++foot.table_hash; });
  refused("hexadecimal", [&](TokenFoot& foot) { foot.tokenizer = "0123456789abcdeX"; });
}

TEST(TokenFile, HostileIndexesAreRefused) {
  const TemporaryDirectory root;
  write_tokens(root / "f", {{{1, 2, 3}, {}}, {{4, 5}, {}}}, {100, false, ""});
  const std::string whole = contents_of(root / "f");
  TokenFoot foot = parse_token_foot(whole, "f");
  const TokenSections at = token_sections(foot);
  const std::vector<std::pair<uint64_t, uint64_t>> cases{
      {0, 5}, {5, 5}, {6, 5}, {3, 4}, {3, 6}, {UINT64_MAX, 5}, {3, UINT64_MAX}, {uint64_t{1} << 63, 5}};
  for (const auto& [first, second] : cases) {
    std::string file = whole;
    file.replace(size_t(at.ends), 16, bytes_of_numbers<uint64_t>({first, second}));
    const uint64_t hash = hash_bytes(file.data(), at.body_end);
    file.replace(size_t(at.table), 8, bytes_of_numbers<uint64_t>({hash}));
    foot.table_hash = hash_bytes(file.data() + at.table, at.foot - at.table);
    put(root / "hostile", with_foot(file, foot));
    const std::string message = message_of<ValueError>([&] { TokenFile hostile(root / "hostile"); });
    EXPECT_NE(message.find("document"), message.npos) << first << " " << second << message;
  }
}

TEST(TokenFile, IdsAreCheckedWhenTheyAreRead) {
  const TemporaryDirectory root;
  write_tokens(root / "f", {{{1, 99, 3}, {}}}, {100, false, ""});
  const TokenFile file(root / "f");
  std::vector<int32_t> ids(2);
  file.read(0, ids, 100);
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 99}));
  EXPECT_THROW(file.read(0, ids, 99), ValueError);
  EXPECT_THROW(file.read(2, ids), ValueError);
  EXPECT_THROW(file.read(-1, ids), ValueError);
  EXPECT_THROW(file.document_end(1), ValueError);
  EXPECT_THROW(file.learned(3), ValueError);
  file.check_ids(100);
  EXPECT_THROW(file.check_ids(99), ValueError);
}

// --- of other programs

std::string llmc(int32_t magic, int32_t version, int32_t tokens, const std::string& ids) {
  std::vector<int32_t> head(256);
  head[0] = magic;
  head[1] = version;
  head[2] = tokens;
  return bytes_of_numbers(head) + ids;
}

std::string numpy(int major, std::string header, const std::string& data) {
  header += "\n";
  std::string file = "\x93NUMPY";
  file += char(major);
  file += '\0';
  const auto size = uint32_t(header.size());
  file.append(reinterpret_cast<const char*>(&size), major == 1 ? 2 : 4);
  return file + header + data;
}

TEST(ForeignTokens, AreRead) {
  const TemporaryDirectory root;
  const std::vector<int32_t> ids{5, 0, 7, 0, 60'000};
  const std::string short_ids = bytes_of_numbers<uint16_t>({5, 0, 7, 0, 60'000});
  const std::string long_ids = bytes_of_numbers(ids);
  const std::string longer_ids = bytes_of_numbers<int64_t>({5, 0, 7, 0, 60'000});
  const auto header = [](const char* dtype) {
    return concat("{'descr': '", dtype, "', 'fortran_order': False, 'shape': (5,), }     ");
  };
  const std::vector<std::pair<std::string, std::string>> files{
      {"a.bin", llmc(20240520, 1, 5, short_ids)},
      {"b.bin", llmc(20240801, 7, 5, long_ids)},
      {"c.npy", numpy(1, header("<u2"), short_ids)},
      {"d.npy", numpy(2, header("<i4"), long_ids)},
      {"e.npy", numpy(3, header("<u4"), long_ids)},
      {"f.npy", numpy(1, header("<i8"), longer_ids)},
      {"g.npy", numpy(1, R"({"shape": (5,), "descr": "<u2", "fortran_order": False})", short_ids)},
      {"h.u16", short_ids},
  };
  for (const auto& [name, contents] : files) {
    SCOPED_TRACE(name);
    put(root / name, contents);
    const TokenFile file(root / name);
    EXPECT_EQ(ids_of(file), ids);
    EXPECT_EQ(file.info().documents, 1);
    EXPECT_EQ(file.info().max_id, -1);
    EXPECT_FALSE(file.info().masked);
    EXPECT_TRUE(file.learned(4));
    const TokenFile divided(root / name, 0);
    ASSERT_EQ(divided.info().documents, 3);
    EXPECT_EQ(divided.document_end(0), 2);
    EXPECT_EQ(divided.document_end(1), 4);
    EXPECT_EQ(divided.document_end(2), 5);
    EXPECT_EQ(TokenFile(root / name, 60'000).info().documents, 1);  // the last token ends no empty one
    EXPECT_EQ(file.identity(), divided.identity());
    for (size_t size = 0; size < contents.size(); size += name.ends_with(".bin") ? 31 : 1) {
      put(root / ("cut" + name), contents.substr(0, size));
      if (name == "h.u16" && size > 0 && size % 2 == 0) {
        EXPECT_EQ(TokenFile(root / ("cut" + name)).info().tokens, int64_t(size / 2));
      } else {
        ASSERT_THROW(TokenFile(root / ("cut" + name)), ValueError) << size;
      }
    }
    put(root / ("long" + name), contents + "x");
    EXPECT_THROW(TokenFile(root / ("long" + name)), ValueError);
  }
}

TEST(ForeignTokens, HostileOnesAreRefused) {
  const TemporaryDirectory root;
  const std::string ids = bytes_of_numbers<uint16_t>({5, 6});
  struct Case {
    std::string contents;
    const char* message;
  };
  const std::string fine = "'descr': '<u2', 'fortran_order': False, 'shape': (2,)";
  const std::vector<Case> cases{
      {llmc(20240520, 2, 2, ids), "version in its llm.c header is 2"},
      {llmc(20240801, 1, 1, ids), "version in its llm.c header is 1"},
      {llmc(20240520, 1, 3, ids), "tells of 3 tokens"},
      {llmc(20240520, 1, -2, ids), "tells of -2 tokens"},
      {llmc(20240520, 1, INT32_MIN, ids), "tells of -2147483648 tokens"},
      {llmc(20240520, 1, 0, ""), "holds no tokens"},
      {numpy(4, "{" + fine + "}", ids), "version of its .npy format is 4"},
      {numpy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", ids), "dtype is '<f4'"},
      {numpy(1, "{'descr': '>u2', 'fortran_order': False, 'shape': (2,)}", ids), "dtype is '>u2'"},
      {numpy(1, "{'descr': '<u2', 'fortran_order': True, 'shape': (2,)}", ids), "fortran_order is True"},
      {numpy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (1, 2)}", ids), "one dimension"},
      {numpy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': ()}", ids), "one dimension"},
      {numpy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (-2,)}", ids), "one dimension"},
      {numpy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (2)}", ids), "',' is missing"},
      {numpy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (9223372036854775809,)}", ids), "one dimension"},
      {numpy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (9223372036854775807,)}", ids), "tells of 922"},
      {numpy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (0,)}", ""), "holds no tokens"},
      {numpy(1, "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (2,)}", ids), "''' is missing"},
      {numpy(1, "{'descr': '<u2', 'shape': (2,)}", ids), "it lacks"},
      {numpy(1, "{" + fine + ", 'shape': (2,)}", ids), "there twice"},
      {numpy(1, "{" + fine + ", 'x': (2,)}", ids), "the key 'x' is not known"},
      {numpy(1, "{" + fine + "} x", ids), "more behind its '}'"},
      {numpy(1, "{" + fine, ids), "'}' is missing"},
      {numpy(1, "", ids), "'{' is missing"},
      {numpy(1, "{'descr", ids), "a string does not end"},
      {std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff{}", 14), "has 4294967295 bytes, but 2 follow"},
      {"", "is empty"},
      {"text", "is no file of tokens"},
      {std::string(5000, '\0'), "is no file of tokens"},
      {"zstokens", "it is cut off"},
  };
  for (const Case& hostile : cases) {
    put(root / "f.bin", hostile.contents);
    const std::string message = message_of<ValueError>([&] { TokenFile file(root / "f.bin"); });
    EXPECT_TRUE(message.starts_with(root / "f.bin")) << message;
    EXPECT_NE(message.find(hostile.message), message.npos) << message << " instead of " << hostile.message;
  }
  put(root / "negative.npy",
      numpy(1, "{'descr': '<i8', 'fortran_order': False, 'shape': (2,)}", bytes_of_numbers<int64_t>({3, -1})));
  const TokenFile negative(root / "negative.npy");
  EXPECT_NE(message_of<ValueError>([&] { ids_of(negative); }).find("token 1 is -1"), std::string::npos);
  put(root / "wide.npy", numpy(1, "{'descr': '<i8', 'fortran_order': False, 'shape': (2,)}",
                               bytes_of_numbers<int64_t>({3, (int64_t{1} << 32) + 3})));
  const TokenFile wide(root / "wide.npy");
  EXPECT_NE(message_of<ValueError>([&] { ids_of(wide); }).find("token 1 is 4294967299"), std::string::npos);
  EXPECT_THROW(wide.check_ids(1000), ValueError);
}

// --- writing

TEST(TokenFileWriter, RefusesWhatIsNotAllowed) {
  const TemporaryDirectory root;
  const std::string path = root / "f";
  EXPECT_THROW(TokenFileWriter(path, {0, false, ""}), ValueError);
  EXPECT_THROW(TokenFileWriter(path, {(INT64_C(1) << 31) + 1, false, ""}), ValueError);
  EXPECT_THROW(TokenFileWriter(path, {5, false, "xyz"}), ValueError);
  EXPECT_THROW(TokenFileWriter(root.path() + "/", {5, false, ""}), ValueError);
  EXPECT_THROW(TokenFileWriter(root / "none/f", {5, false, ""}), IoError);
  const std::vector<int32_t> ids{1, 2}, past{1, 5}, negative{-1};
  const std::vector<uint8_t> marks{1, 1};
  {
    TokenFileWriter writer(path, {5, false, ""});
    writer.append({});  // no document
    EXPECT_EQ(writer.documents(), 0);
    EXPECT_THROW(writer.append(ids, marks), ValueError);  // it has no mask
    writer.append(ids);
    EXPECT_EQ(writer.tokens(), 2);
    const std::string message = message_of<ValueError>([&] { writer.append(past); });
    EXPECT_NE(message.find("token 3 for " + path + " is 5, but the vocabulary has 5 ids"), message.npos) << message;
    EXPECT_THROW(writer.finish(), ValueError);
  }
  {
    TokenFileWriter writer(path, {5, true, ""});
    EXPECT_THROW(writer.append(ids, std::span(marks).first(1)), ValueError);
    EXPECT_THROW(writer.append(negative), ValueError);
  }
  {
    TokenFileWriter writer(path, {5, true, ""});
    EXPECT_THROW(writer.finish(), ValueError);  // no tokens
  }
  EXPECT_TRUE(fs::is_empty(root.path()));
}

// A rename would replace it, /dev/null of a superuser among others.
TEST(TokenFileWriter, WhatIsNoRegularFileIsNotReplaced) {
  const TemporaryDirectory root;
  put(root / "file", "mine");
  fs::create_symlink("file", root / "link");
  fs::create_symlink("nowhere", root / "dangling");
  fs::create_directory(root / "directory");
  ASSERT_EQ(::mkfifo((root / "fifo").c_str(), 0600), 0);
  for (const char* name : {"link", "dangling", "directory", "fifo"}) {
    const std::string message = message_of<IoError>([&] { TokenFileWriter(root / name, {100, false, ""}); });
    EXPECT_TRUE(message.starts_with("cannot replace " + root / name + ": it is ")) << message;
  }
  EXPECT_TRUE(fs::is_symlink(root / "link") && fs::is_symlink(root / "dangling") && fs::is_fifo(root / "fifo"));
  EXPECT_EQ(contents_of(root / "file"), "mine");
  EXPECT_EQ(std::distance(fs::directory_iterator(root.path()), fs::directory_iterator()), 5);
}

TEST(TokenFileWriter, AnyFailingCallLeavesTheOldOrTheNewFileAndNothingElse) {
  SeededRandom random(1);
  const std::vector<Document> documents = testing::random_documents(random, 40, 20, 100);
  const TemporaryDirectory root;
  const std::string path = root / "f";
  write_tokens(path, documents, {100, true, ""});
  const std::string whole = contents_of(path);
  int64_t failures = 0, kept = 0;
  for (const int error : {ENOSPC, EIO}) {
    for (int64_t nth = 1;; ++nth) {
      SCOPED_TRACE(concat(nth, "-th call, error ", error));
      put(path, "before");
      FaultyIo io(posix_io());
      io.fail({std::nullopt, nth, error, false});
      std::string message;
      try {
        write_tokens(io, path, documents, {100, true, ""});
      } catch (const IoError& failed) {
        message = failed.what();
      }
      const bool done = !io.has_failed();
      io.heal();
      const std::string now = contents_of(path);
      ASSERT_TRUE(now == "before" || now == whole);
      if (message.empty()) {
        ASSERT_EQ(now, whole);
      } else {
        ASSERT_NE(message.find(root.path()), message.npos) << message;
        ++failures;
        kept += now == "before";
      }
      // What could not be deleted because deleting fails is all that may be left.
      const auto left = std::distance(fs::directory_iterator(root.path()), fs::directory_iterator());
      ASSERT_LE(left, message.empty() ? 2 : 1);
      for (const auto& entry : fs::directory_iterator(root.path()))
        if (entry.path() != path) fs::remove(entry.path());
      ASSERT_EQ(io.open_files(), 0);
      ASSERT_TRUE(io.early_renames().empty());
      if (done) break;
    }
  }
  EXPECT_GT(failures, 40);
  EXPECT_GE(kept, failures - 2);  // but for the last fsync of the directory
}

TEST(TokenFileWriter, IsDurableBeforeItsNameIsAndThenItsName) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  write_tokens(io, root / "f", {{{1, 2, 3}, {}}}, {100, false, ""});
  EXPECT_TRUE(io.early_renames().empty());
  for (const std::string& path : io.not_durable()) EXPECT_NE(path, root / "f");
  const std::vector<IoCall> log = io.log();
  size_t renamed = 0, synced = 0;
  for (size_t i = 0; i < log.size(); ++i) {
    if (log[i].op == IoOp::kRename) renamed = i;
    if (log[i].op == IoOp::kSync && log[i].path == root.path()) synced = i;
  }
  EXPECT_GT(renamed, 0u);
  EXPECT_GT(synced, renamed);
}

TEST(TokenFileWriter, WhatAnEarlierProcessLeftIsDeleted) {
  const TemporaryDirectory root;
  std::string name = temporary_name("f");
  const size_t dash = name.rfind('-');
  name.replace(dash + 1, 16, std::string(16, '0'));  // this process's number, of another life
  put(root / name, "left");
  put(root / temporary_name("f"), "of this process");
  put(root / ".tmp-f.other", "of somebody");
  write_tokens(root / "f", {{{1, 2, 3}, {}}}, {100, false, ""});
  EXPECT_FALSE(fs::exists(root / name));
  EXPECT_EQ(std::distance(fs::directory_iterator(root.path()), fs::directory_iterator()), 3);
}

}  // namespace
}  // namespace zeroshard
