#include <signal.h>
#include <sys/resource.h>

#include <cstring>

#include "file/direct_buffer.h"
#include "file/hash.h"
#include "file/read_ahead.h"
#include "file/support.h"
#include "support/random.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using testing::contents_of;
using testing::message_of;
using testing::put;
using testing::Random;
using testing::random_bytes;
using testing::SeededRandom;
using testing::TemporaryDirectory;

constexpr int64_t kBuffer = FileWriter::kBufferBytes;

DirectBuffer aligned_copy(const std::string& data) {
  DirectBuffer copy = allocate_direct(int64_t(data.size() / kDirectAlignment + 1) * kDirectAlignment);
  std::memcpy(copy.get(), data.data(), data.size());
  return copy;
}

// Appends `data` in pieces of random sizes, whole pages or not, some as stable memory.
void write_file(Directory& directory, const std::string& name, const std::string& data, int64_t expected,
                Random& random) {
  const DirectBuffer memory = aligned_copy(data);
  FileWriter writer(directory, name, expected);
  for (size_t at = 0; at < data.size();) {
    size_t piece = size_t(random()) % (data.size() / 3 + 2);
    if (random() % 2 == 0) piece = piece / size_t{kDirectAlignment} * size_t{kDirectAlignment};
    piece = std::min(data.size() - at, piece);
    if (random() % 3 == 0) {
      writer.append(memory.get() + at, int64_t(piece));
    } else {
      writer.append_stable(memory.get() + at, int64_t(piece));
    }
    at += piece;
  }
  writer.finish();
}

TEST(FileWriter, WritesWhatWasAppended) {
  const TemporaryDirectory root;
  Directory directory = Directory::open(posix_io(), root.path());
  SeededRandom random(1);
  const std::string data = random_bytes(random, 3 * kBuffer + 5000);
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{4097}, int64_t{100'000},
                             kBuffer - 1, kBuffer, kBuffer + 1, 2 * kBuffer, 3 * kBuffer + 4999}) {
    for (const int64_t expected : {size, size / 2, size + 12345}) {
      SCOPED_TRACE(concat("size ", size, ", expected ", expected));
      const std::string part = data.substr(0, size_t(size));
      write_file(directory, "file", part, expected, random);
      ASSERT_EQ(int64_t(fs::file_size(root / "file")), size);
      EXPECT_TRUE(contents_of(root / "file") == part);
      directory.remove("file");
    }
  }
}

TEST(FileWriter, WritesAlignedStableMemoryFromWhereItLies) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  Directory directory = Directory::open(io, root.path());
  SeededRandom random(5);
  const std::string data = random_bytes(random, 5 * kBuffer + 4100);
  const DirectBuffer memory = aligned_copy(data);
  FileWriter writer(directory, "file", int64_t(data.size()));
  writer.append(memory.get(), 4096);
  for (int64_t at = 4096; at < int64_t(data.size()); at += 1'000'000)
    writer.append_stable(memory.get() + at, std::min(int64_t{1'000'000}, int64_t(data.size()) - at));
  writer.finish();
  EXPECT_TRUE(contents_of(root / "file") == data);
  EXPECT_EQ(io.calls(IoOp::kWrite), 5);  // a page, 16 MiB twice, what is left of whole pages, the last 4 bytes
}

TEST(FileWriter, ShortWritesAndInterruptionsChangeNothing) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  Directory directory = Directory::open(io, root.path());
  SeededRandom random(2);
  const std::string data = random_bytes(random, kBuffer + 77'777);
  for (const int64_t most : {int64_t{3 << 20}, int64_t{1'000'001}, int64_t{4096 * 40}}) {
    io.limit_transfers(most);
    write_file(directory, "file", data, int64_t(data.size()), random);
    EXPECT_TRUE(contents_of(root / "file") == data) << most;
    directory.remove("file");
  }
  io.limit_transfers(-1);
  for (int64_t n = 1;; ++n) {
    SCOPED_TRACE(n);
    io.fail({{}, n, EINTR, false});
    write_file(directory, "file", data, int64_t(data.size()), random);
    if (!io.has_failed()) break;
    EXPECT_TRUE(contents_of(root / "file") == data);
    EXPECT_EQ(io.open_files(), 1);
    io.heal();
    directory.remove("file");
  }
}

TEST(FileWriter, WritesThroughThePageCacheWhereItMust) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  Directory directory = Directory::open(io, root.path());
  SeededRandom random(3);
  const std::string data = random_bytes(random, 2 * kBuffer + 777);
  // No O_DIRECT; O_DIRECT, but the device wants another alignment, from the first write or a later one.
  for (const IoFault& fault : {IoFault{IoOp::kSetDirect, 1, EINVAL, true}, IoFault{IoOp::kWrite, 1, EINVAL, false},
                               IoFault{IoOp::kWrite, 2, EINVAL, false}}) {
    io.fail(fault);
    write_file(directory, "file", data, int64_t(data.size()), random);
    EXPECT_TRUE(io.has_failed());
    EXPECT_TRUE(contents_of(root / "file") == data);
    io.heal();
    directory.remove("file");
  }
}

// A single failure too: of the background thread's writes nobody else would learn.
TEST(FileWriter, ReportsEveryError) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  Directory directory = Directory::open(io, root.path());
  SeededRandom random(4);
  const std::string data = random_bytes(random, 2 * kBuffer + 777);
  const auto fails = [&](const IoFault& fault) {
    SCOPED_TRACE(
        concat("operation ", int(*fault.op), ", call ", fault.nth, ", error ", fault.error, ", ", fault.sticky));
    io.fail(fault);
    const int64_t expected = int64_t(data.size()) + 10;
    const std::string message = message_of<IoError>([&] { write_file(directory, "file", data, expected, random); });
    const bool failed = io.has_failed();
    EXPECT_EQ(!message.empty(), failed);
    if (failed) {
      EXPECT_NE(message.find(root / "file"), message.npos) << message;
    }
    EXPECT_EQ(io.open_files(), 1);
    EXPECT_LE(io.calls(IoOp::kSync), 1);  // never again after an error
    io.heal();
    directory.remove_tree("file");
    return failed;
  };
  for (const IoOp op : {IoOp::kCreate, IoOp::kAllocate, IoOp::kWrite, IoOp::kTruncate, IoOp::kSync, IoOp::kClose}) {
    for (const int error : {EIO, ENOSPC}) {
      for (int64_t n = 1; fails({op, n, error, /*sticky=*/true}); ++n) {
      }
      for (int64_t n = 1; fails({op, n, error, /*sticky=*/false}); ++n) {
      }
    }
  }
}

TEST(FileWriter, IsOfNoUseAfterAnError) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  Directory directory = Directory::open(io, root.path());
  FileWriter writer(directory, "file", 10);
  writer.append("0123456789", 10);
  io.fail({IoOp::kSync, 1, EIO, false});
  EXPECT_THROW(writer.finish(), IoError);
  EXPECT_THROW(writer.finish(), ValueError);  // a second fsync would succeed, and hide that data is lost
  EXPECT_THROW(writer.append("x", 1), ValueError);
  EXPECT_EQ(io.calls(IoOp::kSync), 1);
}

TEST(FileWriter, AFullDiskIsNoticedBeforeTheFirstByte) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  Directory directory = Directory::open(io, root.path());
  io.fail({IoOp::kAllocate, 1, ENOSPC, true});
  const std::string message = message_of<IoError>([&] { FileWriter(directory, "file", 5'000'000); });
  EXPECT_NE(message.find("No space left on device"), message.npos) << message;
  EXPECT_NE(message.find("needs 5000000 bytes, "), message.npos) << message;
  EXPECT_NE(message.find(" are free"), message.npos) << message;
  EXPECT_EQ(io.calls(IoOp::kWrite), 0);
  // A file system that cannot reserve at least tells what is free.
  io.fail({IoOp::kAllocate, 1, EOPNOTSUPP, true});
  EXPECT_THROW(FileWriter(directory, "huge", int64_t{1} << 60), IoError);
  FileWriter writer(directory, "small", 3);
  writer.append("abc", 3);
  writer.finish();
  EXPECT_EQ(contents_of(root / "small"), "abc");
}

// The kernel would end the process with SIGXFSZ.
TEST(FileWriter, ALimitOfFileSizesIsAnError) {
  const TemporaryDirectory root;
  Directory directory = Directory::open(posix_io(), root.path());
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit limited { 1 << 20, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
  const std::string data((2 << 20) + 5, 'x');
  EXPECT_THROW(FileWriter(directory, "reserved", 2 << 20), IoError);
  const std::string message = message_of<IoError>([&] {
    FileWriter writer(directory, "surprising", 0);
    writer.append(data.data(), int64_t(data.size()));
    writer.finish();
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_NE(message.find("ulimit -f"), message.npos) << message;
}

TEST(FileWriter, DoesNotTouchWhatIsThere) {
  const TemporaryDirectory root;
  put(root / "file", "old");
  fs::create_symlink("file", root / "link");
  Directory directory = Directory::open(posix_io(), root.path());
  EXPECT_THROW(FileWriter(directory, "file", 10), IoError);
  EXPECT_THROW(FileWriter(directory, "link", 10), IoError);
  EXPECT_EQ(contents_of(root / "file"), "old");
}

TEST(FileWriter, DestructionWithoutFinishEndsQuietly) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  Directory directory = Directory::open(io, root.path());
  const std::string data(size_t(2 * kBuffer + 1), 'x');
  io.fail({IoOp::kWrite, 1, EIO, true});
  {
    FileWriter writer(directory, "file", int64_t(data.size()));
    try {
      writer.append(data.data(), int64_t(data.size()));
    } catch (const IoError&) {
    }
  }
  EXPECT_EQ(io.open_files(), 1);
  EXPECT_TRUE(fs::exists(root / "file"));
}

TEST(FileReader, ReadsAnyStretch) {
  const TemporaryDirectory root;
  SeededRandom random(5);
  const std::string data = random_bytes(random, 100'003);
  put(root / "file", data);
  FaultyIo io(posix_io());
  const Directory directory = Directory::open(io, root.path());
  io.limit_transfers(777);
  const FileReader reader(directory, "file");
  ASSERT_EQ(reader.size(), int64_t(data.size()));
  for (int i = 0; i < 50; ++i) {
    const auto begin = size_t(random()) % data.size(), size = size_t(random()) % (data.size() - begin + 1);
    std::string read(size, '\0');
    reader.read(int64_t(begin), read.data(), int64_t(size));
    EXPECT_TRUE(read == data.substr(begin, size));
  }
  io.fail({IoOp::kRead, 3, EINTR, false});
  std::string all(data.size(), '\0');
  reader.read(0, all.data(), reader.size());
  EXPECT_TRUE(all == data);
}

TEST(FileReader, NamesFileAndOffsetWhenTheFileIsShort) {
  const TemporaryDirectory root;
  put(root / "file", "0123456789");
  const Directory directory = Directory::open(posix_io(), root.path());
  const FileReader reader(directory, "file");
  char data[20];
  const std::string message = message_of<IoError>([&] { reader.read(4, data, 7); });
  EXPECT_EQ(message, root / "file is too short: it ends at byte 10, and 7 bytes were to be read at 4");
  fs::resize_file(root / "file", 3);  // while it is open
  EXPECT_THROW(reader.read(0, data, 10), IoError);
  EXPECT_THROW(reader.read(-1, data, 1), ValueError);
}

// Files "a" and "b", and stretches of both in order, some overlapping.
struct Stretches {
  explicit Stretches(const TemporaryDirectory& root) {
    SeededRandom random(11);
    for (std::string* data : {&a, &b}) *data = random_bytes(random, 300'001);
    put(root / "a", a);
    put(root / "b", b);
    for (const char* name : {"a", "b"})
      for (int64_t at = 0; at < int64_t(a.size()); at += int64_t(random() % 50'000))
        list.push_back({name, at, std::min(int64_t(a.size()) - at, int64_t(1 + random() % 60'000))});
  }
  std::string expected(const ReadAhead::Stretch& stretch) const {
    return (stretch.file == "a" ? a : b).substr(size_t(stretch.offset), size_t(stretch.bytes));
  }
  std::string a, b;
  std::vector<ReadAhead::Stretch> list;
};

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(ReadAhead, GivesEveryStretchWhateverTheFileSystemCanDo) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  const Directory directory = Directory::open(io, root.path());
  const Stretches stretches(root);
  const std::vector<std::optional<IoFault>> faults = {
      std::nullopt,
      IoFault{IoOp::kSetDirect, 1, EINVAL, true},
      IoFault{IoOp::kRead, 1, EINVAL, false},
      IoFault{IoOp::kRead, 4, EINTR, false},
  };
  for (const int64_t most : {int64_t{-1}, int64_t{10'000}}) {
    io.limit_transfers(most);
    for (const auto& fault : faults) {
      if (fault) io.fail(*fault);
      {
        ReadAhead ahead(directory, stretches.list);
        for (const ReadAhead::Stretch& each : stretches.list)
          ASSERT_TRUE(text_of(ahead.next()) == stretches.expected(each)) << each.file << " at " << each.offset;
      }
      if (fault) {
        EXPECT_TRUE(io.has_failed());
      }
      EXPECT_EQ(io.open_files(), 1);
      io.heal();
    }
  }
}

TEST(ReadAhead, AStretchThatFailsLeavesTheOthers) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  const Directory directory = Directory::open(io, root.path());
  const Stretches stretches(root);
  for (const IoOp op : {IoOp::kRead, IoOp::kOpen}) {
    for (int64_t n = 1;; ++n) {
      SCOPED_TRACE(concat("operation ", int(op), ", call ", n));
      io.fail({op, n, EIO, false});
      size_t failed = 0;
      ReadAhead ahead(directory, stretches.list);
      for (const ReadAhead::Stretch& each : stretches.list) {
        try {
          ASSERT_TRUE(text_of(ahead.next()) == stretches.expected(each)) << each.file << " at " << each.offset;
        } catch (const IoError& error) {
          ++failed;
          EXPECT_NE(std::string(error.what()).find(root / std::string(each.file)), std::string::npos) << error.what();
        }
      }
      EXPECT_EQ(failed, io.has_failed() ? 1u : 0u);
      const bool more = io.has_failed();
      io.heal();
      if (!more) break;
    }
  }
}

TEST(ReadAhead, NamesTheFileThatEndsEarly) {
  const TemporaryDirectory root;
  const Directory directory = Directory::open(posix_io(), root.path());
  put(root / "file", std::string(10'000, 'x'));
  ReadAhead ahead(directory, {{"file", 9'000, 1'000}, {"file", 9'000, 1'001}, {"file", 20'000, 1}});
  EXPECT_EQ(ahead.next().size(), 1'000u);
  for (int i = 0; i < 2; ++i) {
    const std::string message = message_of<IoError>([&] { ahead.next(); });
    EXPECT_NE(message.find(root / "file is too short"), message.npos) << message;
  }
}

TEST(SmallFile, HasTheOldOrTheNewContentsWhateverFails) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  Directory directory = Directory::open(io, root.path());
  for (const bool sticky : {false, true}) {
    for (const int error : {EIO, ENOSPC, EINTR}) {
      for (int64_t n = 1;; ++n) {
        SCOPED_TRACE(concat("sticky ", sticky, ", error ", error, ", call ", n));
        put(root / "file", "old");
        io.fail({{}, n, error, sticky});
        const std::string message = message_of<IoError>([&] { write_small_file(directory, "file", "new"); });
        const bool failed = io.has_failed();
        EXPECT_EQ(message.empty(), !failed || (error == EINTR && !sticky)) << message;
        const std::string contents = contents_of(root / "file");
        EXPECT_TRUE(contents == "new" || (failed && contents == "old")) << contents;
        EXPECT_EQ(io.open_files(), 1);
        io.heal();
        if (!sticky) {
          EXPECT_EQ(directory.list(), std::vector<std::string>{"file"});
        }
        for (const std::string& name : directory.list()) directory.remove(name);
        if (!failed) break;
      }
    }
  }
}

TEST(SmallFile, IsDurableBeforeItsNameIsAndThenItsName) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  Directory directory = Directory::create(io, root / "sub");
  write_small_file(directory, "file", "contents");
  Directory above = Directory::open(io, root.path());
  write_small_file(above, "sub/other", "contents");
  EXPECT_EQ(io.early_renames(), std::vector<std::string>{});
  EXPECT_EQ(io.not_durable(), std::set<std::string>{});
  EXPECT_EQ(io.calls(IoOp::kRename), 2);
}

TEST(SmallFile, ReplacesRegularFilesAlone) {
  const TemporaryDirectory root;
  Directory directory = Directory::open(posix_io(), root.path());
  put(root / "file", "mine");
  fs::create_symlink("file", root / "link");
  fs::create_symlink("nowhere", root / "dangling");
  fs::create_directory(root / "directory");
  for (const char* name : {"link", "dangling", "directory"}) {
    const std::string message = message_of<IoError>([&] { write_small_file(directory, name, "new"); });
    EXPECT_TRUE(message.starts_with("cannot replace " + root / name + ": it is ")) << message;
  }
  EXPECT_TRUE(fs::is_symlink(root / "link") && fs::is_symlink(root / "dangling"));
  EXPECT_EQ(contents_of(root / "file"), "mine");
  EXPECT_EQ(directory.list().size(), 4u);
  write_small_file(directory, "file", "new");
  EXPECT_EQ(contents_of(root / "file"), "new");
}

TEST(SmallFile, IsReadUpToItsLimit) {
  const TemporaryDirectory root;
  Directory directory = Directory::open(posix_io(), root.path());
  write_small_file(directory, "file", std::string_view("a\0b", 3));
  EXPECT_EQ(read_small_file(directory, "file", 3), std::string("a\0b", 3));
  EXPECT_THROW(read_small_file(directory, "file", 2), IoError);
  EXPECT_THROW(read_small_file(directory, "none", 2), IoError);
  write_small_file(directory, "file", "");
  EXPECT_EQ(read_small_file(directory, "file", 0), "");
}

// The power-failure bookkeeping itself, which other tests rely on.
TEST(FaultyIo, KnowsWhatAPowerFailureLoses) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  Directory directory = Directory::open(io, root.path());
  const OpenFd fd = directory.create_file("a");
  EXPECT_EQ(io.not_durable(), (std::set<std::string>{root.path(), root / "a"}));
  directory.rename("a", "b");
  EXPECT_EQ(io.early_renames(), std::vector<std::string>{root / "a"});
  EXPECT_EQ(io.not_durable(), (std::set<std::string>{root.path(), root / "b"}));
  EXPECT_EQ(io.fdatasync(fd.get()), 0);
  EXPECT_EQ(io.not_durable(), std::set<std::string>{root.path()});
  directory.sync();
  EXPECT_EQ(io.not_durable(), std::set<std::string>{});
}

TEST(Hash, IsXxh3) {
  EXPECT_EQ(hash_bytes(nullptr, 0), 0x2D06800538D394C2ULL);
  SeededRandom random(6);
  std::string data = random_bytes(random, 1000);
  const uint64_t before = hash_bytes(data.data(), 1000);
  for (size_t bit = 0; bit < 8000; ++bit) {
    data[bit / 8] = char(data[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(hash_bytes(data.data(), 1000), before);
    data[bit / 8] = char(data[bit / 8] ^ (1 << bit % 8));
  }
  EXPECT_EQ(hash_bytes(data.data(), 1000), before);
}

}  // namespace
}  // namespace zeroshard
