#include "zeroshard/data.h"

#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "data/support.h"
#include "support/random.h"

namespace zeroshard {
namespace {

using testing::Document;
using testing::message_of;
using testing::Random;
using testing::SeededRandom;
using testing::seeds;
using testing::TemporaryDirectory;
using testing::write_tokens;

using Packing = DatasetOptions::Packing;
using Part = DatasetOptions::Part;

constexpr int32_t kNone = -100;

// Documents in which no id occurs twice, so that an id tells its position.
std::vector<Document> numbered(Random& random, int64_t count, int64_t max_tokens) {
  std::vector<Document> documents = testing::random_documents(random, count, max_tokens, 2);
  int32_t next = 0;
  for (Document& document : documents)
    for (int32_t& id : document.ids) id = next++;
  return documents;
}

struct Written {
  std::vector<std::string> files;
  std::vector<Document> documents;  // of all files
  std::map<int32_t, int32_t> next;  // of an id: the one that follows in its document, if that is learned
  std::vector<size_t> document_of;  // of an id
};

Written make_files(const TemporaryDirectory& root, Random& random) {
  Written written;
  const bool masked = random() % 2 == 0;
  written.documents =
      numbered(random, int64_t(1 + random() % (random() % 4 == 0 ? 3 : 60)), int64_t(1 + random() % 40));
  const size_t files = 1 + random() % std::min<size_t>(3, written.documents.size());
  size_t begin = 0;
  for (size_t i = 0; i < files; ++i) {
    const size_t end = i + 1 == files ? written.documents.size()
                                      : begin + 1 + random() % (written.documents.size() - begin - (files - i - 1));
    written.files.push_back(root / concat(random(), ".tokens"));
    write_tokens(written.files.back(),
                 {written.documents.begin() + int64_t(begin), written.documents.begin() + int64_t(end)},
                 {random() % 2 ? 5000 : 100'000, masked, ""});
    begin = end;
    if (begin == written.documents.size()) break;
  }
  for (size_t d = 0; d < written.documents.size(); ++d) {
    const Document& document = written.documents[d];
    written.document_of.insert(written.document_of.end(), document.ids.size(), d);
    for (size_t i = 0; i + 1 < document.ids.size(); ++i)
      if (!masked || document.learn[i + 1]) written.next[document.ids[i]] = document.ids[i + 1];
  }
  return written;
}

DatasetOptions random_options(Random& random) {
  DatasetOptions options;
  options.length = int64_t(1 + random() % 33);
  options.packing = Packing(random() % 3);
  options.shuffle = random() % 3 != 0;
  options.seed = random() % 5;
  options.vocab_size = random() % 2 ? 5000 : 0;
  return options;
}

std::vector<TokenRow> rows_of(Dataset& dataset, int64_t epoch) {
  std::vector<TokenRow> rows;
  const int64_t count = dataset.rows_in_epoch(epoch);
  for (int64_t i = 0; i < count; ++i) rows.push_back(dataset.row(epoch * count + i));
  return rows;
}

// Padding at the end alone, documents numbered as they come; returns the ids.
std::vector<int32_t> check_row(const TokenRow& row, const Written& written, int64_t length) {
  EXPECT_EQ(int64_t(row.ids.size()), length);
  EXPECT_EQ(row.targets.size(), row.ids.size());
  EXPECT_EQ(row.documents.size(), row.ids.size());
  std::vector<int32_t> ids;
  for (size_t i = 0; i < row.ids.size(); ++i) {
    if (row.documents[i] == 0) {
      EXPECT_EQ(row.ids[i], 0);
      EXPECT_EQ(row.targets[i], kNone);
      continue;
    }
    EXPECT_EQ(ids.size(), i) << "padding inside a row";
    ids.push_back(row.ids[i]);
    const size_t document = written.document_of.at(size_t(row.ids[i]));
    const bool goes_on = i > 0 && written.document_of.at(size_t(row.ids[i - 1])) == document;
    EXPECT_EQ(row.documents[i], i == 0 ? 1 : row.documents[i - 1] + !goes_on);
    if (goes_on) {
      EXPECT_EQ(row.ids[i], row.ids[i - 1] + 1);
    }
  }
  EXPECT_FALSE(ids.empty());
  return ids;
}

// Ids of an epoch, each once, with its target.
std::set<int32_t> check_epoch(Dataset& dataset, const Written& written, const DatasetOptions& options, int64_t epoch,
                              bool last_of_part_is_cut = false) {
  std::set<int32_t> seen;
  std::map<int32_t, int32_t> targets;
  for (const TokenRow& row : rows_of(dataset, epoch)) {
    const std::vector<int32_t> ids = check_row(row, written, options.length);
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_TRUE(seen.insert(ids[i]).second) << "token " << ids[i] << " twice";
      targets[ids[i]] = row.targets[i];
    }
  }
  for (const auto& [id, target] : targets) {
    const auto next = written.next.find(id);
    const bool has_next = next != written.next.end() && (!last_of_part_is_cut || seen.contains(next->second));
    EXPECT_EQ(target, has_next ? next->second : kNone) << "after token " << id;
  }
  return seen;
}

std::set<int32_t> all_ids(const Written& written) {
  std::set<int32_t> ids;
  for (size_t i = 0; i < written.document_of.size(); ++i) ids.insert(int32_t(i));
  return ids;
}

TEST(Dataset, EveryTokenAndTargetIsOnceInAnEpoch) {
  const TemporaryDirectory root;
  for (const uint64_t seed : seeds(50)) {
    SeededRandom random(seed);
    const Written written = make_files(root, random);
    const DatasetOptions options = random_options(random);
    Dataset dataset(written.files, options);
    EXPECT_EQ(dataset.tokens(), int64_t(written.document_of.size()));
    EXPECT_EQ(dataset.documents(), int64_t(written.documents.size()));
    for (const int64_t epoch : {0, 1, 7}) ASSERT_EQ(check_epoch(dataset, written, options, epoch), all_ids(written));
  }
}

TEST(Dataset, PartsAreDisjointAndComplete) {
  const TemporaryDirectory root;
  int64_t divided = 0;
  for (const uint64_t seed : seeds(50)) {
    SeededRandom random(seed);
    const Written written = make_files(root, random);
    DatasetOptions options = random_options(random);
    options.validation_share = double(1 + random() % 98) / 100;
    const bool cut = options.validation_share * double(written.documents.size()) < 1;
    divided += cut;
    std::set<int32_t> both;
    size_t tokens = 0;
    try {
      for (const Part part : {Part::kTraining, Part::kValidation}) {
        options.part = part;
        Dataset dataset(written.files, options);
        const std::set<int32_t> seen = check_epoch(dataset, written, options, 0, cut);
        ASSERT_EQ(check_epoch(dataset, written, options, 1, cut), seen) << "the parts depend on the epoch";
        ASSERT_EQ(int64_t(seen.size()), dataset.tokens());
        tokens += seen.size();
        both.insert(seen.begin(), seen.end());
      }
    } catch (const ValueError& error) {  // no token can be had for one of them
      EXPECT_NE(std::string(error.what()).find("part of"), std::string::npos) << error.what();
      EXPECT_TRUE(written.documents.size() == 1 || cut);
      continue;
    }
    ASSERT_EQ(both, all_ids(written));
    ASSERT_EQ(tokens, written.document_of.size());
  }
  EXPECT_TRUE(divided > 2 || testing::asked_seed());
}

TEST(Dataset, TheShareIsOfDocumentsOrOfTokens) {
  const TemporaryDirectory root;
  SeededRandom random(1);
  DatasetOptions options;
  options.part = Part::kValidation;
  options.validation_share = 0.1;
  write_tokens(root / "many", numbered(random, 200, 5), {5000, false, ""});
  EXPECT_EQ(Dataset({root / "many"}, options).documents(), 20);
  std::vector<Document> one(1);
  for (int32_t i = 0; i < 1000; ++i) one[0].ids.push_back(i);
  write_tokens(root / "one", one, {5000, false, ""});
  options.packing = Packing::kSeparate;
  options.length = 128;
  Dataset dataset({root / "one"}, options);
  EXPECT_EQ(dataset.tokens(), 100);
  EXPECT_EQ(dataset.row(0).ids[0], 900);  // its end
  options.validation_share = 0;
  EXPECT_THROW(Dataset({root / "one"}, options), ValueError);
  for (const double share : {-0.1, 1.0, std::nan("")}) {
    options.validation_share = share;
    EXPECT_THROW(Dataset({root / "one"}, options), ValueError);
  }
}

bool same(const TokenRow& one, const TokenRow& other) {
  return one.ids == other.ids && one.targets == other.targets && one.documents == other.documents;
}

TEST(Dataset, RowsDependOnNothingButTheirNumber) {
  const TemporaryDirectory root;
  for (const uint64_t seed : seeds(20)) {
    SeededRandom random(seed);
    const Written written = make_files(root, random);
    const DatasetOptions options = random_options(random);
    Dataset dataset(written.files, options), other(written.files, options);
    const int64_t count = 4 * dataset.rows_in_epoch(0);
    std::vector<TokenRow> rows;
    for (int64_t i = 0; i < count; ++i) rows.push_back(dataset.row(i));
    std::vector<std::thread> threads;
    std::vector<int> wrong(3);
    for (size_t t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([&, t] {
        Random mine(seed * 10 + t);
        for (int i = 0; i < 60; ++i) {
          const auto number = int64_t(mine() % uint64_t(count));
          wrong[t] += !same(other.row(number), rows[size_t(number)]);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(wrong.size()));
  }
}

TEST(Dataset, EpochsAndSeedsDifferAndAnUnshuffledOneDoesNot) {
  const TemporaryDirectory root;
  SeededRandom random(3);
  write_tokens(root / "f", numbered(random, 300, 30), {100'000, false, ""});
  for (const Packing packing : {Packing::kStream, Packing::kWhole, Packing::kSeparate}) {
    SCOPED_TRACE(int(packing));
    DatasetOptions options;
    options.length = 32;
    options.packing = packing;
    const auto first_ids = [&](int64_t epoch) {
      Dataset dataset({root / "f"}, options);
      std::vector<int32_t> ids;
      for (const TokenRow& row : rows_of(dataset, epoch)) ids.push_back(row.ids[0]);
      return ids;
    };
    const std::vector<int32_t> rows = first_ids(0);
    EXPECT_NE(rows, first_ids(1));
    EXPECT_NE(first_ids(1), first_ids(2));
    options.seed = 1;
    EXPECT_NE(rows, first_ids(0));
    options.shuffle = false;
    EXPECT_EQ(first_ids(0), first_ids(5));
    EXPECT_FALSE(std::is_sorted(rows.begin(), rows.end()));
    const std::vector<int32_t> plain = first_ids(0);
    EXPECT_TRUE(std::is_sorted(plain.begin(), plain.end()));  // ids are positions
  }
}

// Long documents: without an order of rows of its own, a batch would be of one document.
TEST(Dataset, RowsOfOneDocumentAreScattered) {
  const TemporaryDirectory root;
  std::vector<Document> one(1);
  for (int32_t i = 0; i < 6400; ++i) one[0].ids.push_back(i);
  write_tokens(root / "f", one, {100'000, false, ""});
  for (const Packing packing : {Packing::kStream, Packing::kWhole, Packing::kSeparate}) {
    DatasetOptions options;
    options.length = 64;
    options.packing = packing;
    Dataset dataset({root / "f"}, options);
    int neighbours = 0;
    for (int64_t i = 1; i < 100; ++i) neighbours += dataset.row(i).ids[0] == dataset.row(i - 1).ids[0] + 64;
    EXPECT_LT(neighbours, 10) << int(packing);
  }
}

// Pinned: orders must not change with a compiler, a library or a version, or runs would not go on as they began.
TEST(Dataset, TheOrderIsTheSameForEver) {
  const TemporaryDirectory root;
  std::vector<Document> documents;
  for (int32_t i = 0; i < 10; ++i) documents.push_back({{i, i}, {1, 1}});
  write_tokens(root / "f", documents, {100, false, ""});
  DatasetOptions options;
  options.length = 2;
  options.packing = Packing::kSeparate;
  options.seed = 42;
  Dataset dataset({root / "f"}, options);
  std::vector<int32_t> order;
  for (int64_t i = 0; i < 20; ++i) order.push_back(dataset.row(i).ids[0]);
  EXPECT_EQ(order, (std::vector<int32_t>{9, 7, 0, 2, 3, 6, 5, 8, 1, 4, 2, 1, 9, 5, 0, 6, 3, 8, 7, 4}));
  EXPECT_EQ(dataset.digest(), "5776ae09c1c5c97d");
}

TEST(Dataset, WholeDocumentsAreCutOnlyWhenTheyMustBe) {
  const TemporaryDirectory root;
  for (const uint64_t seed : seeds(60)) {
    SeededRandom random(seed);
    const Written written = make_files(root, random);
    DatasetOptions options = random_options(random);
    options.packing = Packing::kWhole;
    Dataset dataset(written.files, options);
    std::map<size_t, int64_t> rows_of_document;
    int64_t padding = 0;
    for (const TokenRow& row : rows_of(dataset, int64_t(seed))) {
      std::set<size_t> here;
      for (size_t i = 0; i < row.ids.size(); ++i) {
        padding += row.documents[i] == 0;
        if (row.documents[i] != 0) here.insert(written.document_of[size_t(row.ids[i])]);
      }
      for (const size_t document : here) ++rows_of_document[document];
    }
    for (const auto& [document, rows] : rows_of_document) {
      const auto length = int64_t(written.documents[document].ids.size());
      ASSERT_LE(rows, (length + options.length - 1) / options.length);
    }
    // Two rows that are half empty or more would have been one.
    const int64_t rows = dataset.rows_in_epoch(0);
    EXPECT_LE(padding, rows * options.length / 2 + options.length);
  }
}

TEST(Dataset, IsAsTightAsItCanBeOnASimpleCase) {
  const TemporaryDirectory root;
  std::vector<Document> documents;
  for (const size_t length : {6, 4, 7, 3, 5, 5, 9, 1, 8, 2}) documents.push_back({std::vector<int32_t>(length, 1), {}});
  write_tokens(root / "f", documents, {100, false, ""});
  DatasetOptions options;
  options.length = 10;
  options.packing = Packing::kWhole;
  EXPECT_EQ(Dataset({root / "f"}, options).rows_in_epoch(0), 5);
}

TEST(Dataset, DigestTellsWhatDecidesTheRows) {
  const TemporaryDirectory root;
  SeededRandom random(3);
  const std::vector<Document> documents = numbered(random, 20, 9);
  write_tokens(root / "f", documents, {5000, false, ""});
  write_tokens(root / "same", documents, {5000, false, ""});
  std::vector<Document> changed = documents;
  ++changed[3].ids[0];
  write_tokens(root / "other", changed, {5000, false, ""});
  DatasetOptions options;
  options.validation_share = 0.2;
  const auto digest = [&](const std::string& file) { return Dataset({root / file}, options).digest(); };
  std::set<std::string> seen{digest("f")};
  EXPECT_EQ(seen.begin()->size(), 16u);
  EXPECT_EQ(digest("same"), *seen.begin());
  options.vocab_size = 6000;
  EXPECT_EQ(digest("f"), *seen.begin());
  EXPECT_TRUE(seen.insert(digest("other")).second);
  options.length = 7;
  EXPECT_TRUE(seen.insert(digest("f")).second);
  options.packing = Packing::kWhole;
  EXPECT_TRUE(seen.insert(digest("f")).second);
  options.part = Part::kValidation;
  EXPECT_TRUE(seen.insert(digest("f")).second);
  options.validation_share = 0.3;
  EXPECT_TRUE(seen.insert(digest("f")).second);
  options.shuffle = false;
  EXPECT_TRUE(seen.insert(digest("f")).second);
  options.seed = 1;
  EXPECT_TRUE(seen.insert(digest("f")).second);
  options.eos = 3;
  EXPECT_TRUE(seen.insert(digest("f")).second);
}

TEST(Dataset, IdsPastTheVocabularyAreNamed) {
  const TemporaryDirectory root;
  write_tokens(root / "f", {{{1, 2, 30, 30, 4}, {}}}, {100, false, ""});
  testing::put(root / "g.u16", testing::bytes_of_numbers<uint16_t>({1, 2, 30, 30, 4}));
  DatasetOptions options;
  options.vocab_size = 31;
  for (const char* const file : {"f", "g.u16"}) {
    options.vocab_size = 31;
    EXPECT_EQ(Dataset({root / file}, options).tokens(), 5);
    options.vocab_size = 30;
    const std::string message = message_of<ValueError>([&] { Dataset({root / file}, options); });
    EXPECT_NE(message.find(concat(root / file, ": token 2 is 30, but the vocabulary has 30 ids")), message.npos)
        << message;
  }
}

// Those are not read through when they are opened.
TEST(Dataset, IdsOfLargeForeignFilesAreCheckedWhenTheyAreRead) {
  const TemporaryDirectory root;
  const std::string path = root / "large.u16";
  testing::put(path, testing::bytes_of_numbers<uint16_t>({1, 2, 30, 4}));
  std::filesystem::resize_file(path, uintmax_t{65} << 20);  // a hole: zeros
  DatasetOptions options;
  options.vocab_size = 30;
  options.shuffle = false;
  Dataset dataset({path}, options);
  EXPECT_EQ(dataset.row(1).ids[0], 0);
  const std::string message = message_of<ValueError>([&] { dataset.row(0); });
  EXPECT_NE(message.find(": token 2 is 30, but the vocabulary has 30 ids"), message.npos) << message;
}

// With an index of documents at its end, which rows and epochs are made from.
TEST(Dataset, AFileThatIsCutIsNamed) {
  for (const Packing packing : {Packing::kStream, Packing::kWhole, Packing::kSeparate}) {
    for (const double validation_share : {0.0, 1e-4}) {  // of documents, or of the tokens of each
      SCOPED_TRACE(concat(int(packing), ", ", validation_share));
      const TemporaryDirectory root;
      for (const char* name : {"cut", "whole"})
        write_tokens(root / name, std::vector<Document>(200, Document{std::vector<int32_t>(100, 7), {}}),
                     {100, false, ""});
      DatasetOptions options;
      options.length = 64;
      options.packing = packing;
      options.validation_share = validation_share;
      Dataset data({root / "whole", root / "cut"}, options);
      const int64_t rows = data.rows_in_epoch(0);
      data.row(0);
      std::filesystem::resize_file(root / "cut", 4096);
      const auto read_an_epoch = [&](int64_t epoch) {
        return message_of<IoError>([&] {
          for (int64_t i = 0; i < rows; ++i) data.row(epoch * rows + i);
        });
      };
      for (const int64_t epoch : {0, 1}) EXPECT_TRUE(read_an_epoch(epoch).starts_with(root / "cut was cut from "));
    }
  }
}

TEST(Dataset, RefusesWrongOptions) {
  const TemporaryDirectory root;
  write_tokens(root / "f", {{{1, 2}, {}}}, {100, false, ""});
  DatasetOptions options;
  EXPECT_THROW(Dataset({}, options), ValueError);
  EXPECT_THROW(Dataset({root / "none"}, options), IoError);
  EXPECT_THROW(Dataset({root.path()}, options), IoError);
  options.length = 0;
  EXPECT_THROW(Dataset({root / "f"}, options), ValueError);
  options.length = 8;
  Dataset dataset({root / "f"}, options);
  EXPECT_THROW(dataset.row(-1), ValueError);
  EXPECT_THROW(dataset.rows_in_epoch(-1), ValueError);
  EXPECT_EQ(dataset.epoch_of(3), 3);
  EXPECT_EQ(dataset.row(3).targets, (std::vector<int32_t>{2, kNone, kNone, kNone, kNone, kNone, kNone, kNone}));
}

}  // namespace
}  // namespace zeroshard
