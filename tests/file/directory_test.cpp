#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>

#include "file/support.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using testing::contents_of;
using testing::message_of;
using testing::put;
using testing::TemporaryDirectory;
using ::testing::Test;

mode_t mode_of(const std::string& path) {
  struct stat found {};
  EXPECT_EQ(::lstat(path.c_str(), &found), 0) << path;
  return found.st_mode & 07777;
}

// What lies outside must be neither read nor changed through the directory, whatever the names.
class Confined : public ::testing::TestWithParam<Confinement> {
 protected:
  static std::string prepare(const TemporaryDirectory& root) {
    fs::create_directories(root / "in/sub");
    fs::create_directories(root / "out");
    put(root / "out/secret", "secret");
    put(root / "in/sub/file", "inside");
    fs::create_symlink("../out", root / "in/up");
    fs::create_symlink("../out/secret", root / "in/link");
    fs::create_symlink("sub", root / "in/alias");  // even one that stays inside
    fs::create_symlink("sub/file", root / "in/shortcut");
    fs::create_symlink(root / "out/secret", root / "in/absolute");
    return root / "in";
  }

  TemporaryDirectory root_;
  std::unique_ptr<Io> io_ = make_posix_io(GetParam());
  Directory directory_ = Directory::open(*io_, prepare(root_));
};

TEST_P(Confined, HostileNamesOpenNothing) {
  const std::string names[] = {"../out/secret",
                               "sub/../../out/secret",
                               "..",
                               "",
                               ".",
                               "/etc/passwd",
                               "up/secret",
                               "link",
                               "absolute",
                               "alias/file",
                               "shortcut",
                               "sub//file",
                               "./sub/file",
                               "sub/",
                               std::string("sub/file\0x", 10),
                               root_ / "out/secret"};
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    EXPECT_THROW(FileReader(directory_, name), IoError);
    EXPECT_THROW(directory_.open_directory(name), IoError);
    EXPECT_THROW(directory_.create_file(name), IoError);
    EXPECT_THROW(directory_.create_directory(name), IoError);
    EXPECT_THROW(write_small_file(directory_, name + "/new", "x"), IoError);
  }
  for (const std::string name : {"up/secret", "../out/secret"}) {
    EXPECT_THROW(directory_.remove(name), IoError);
    EXPECT_THROW(directory_.remove_tree(name), IoError);
    EXPECT_THROW(directory_.exists(name), IoError);
    EXPECT_THROW(directory_.file_size(name), IoError);
    EXPECT_THROW(directory_.rename("sub/file", name), IoError);
    EXPECT_THROW(directory_.rename(name, "stolen"), IoError);
    EXPECT_THROW(directory_.exchange(name, "sub/file"), IoError);
  }
  EXPECT_EQ(contents_of(root_ / "out/secret"), "secret");
  EXPECT_EQ(contents_of(root_ / "in/sub/file"), "inside");
  EXPECT_FALSE(fs::exists(root_ / "out/new"));
}

TEST_P(Confined, NamesOfSeveralComponentsWork) {
  EXPECT_EQ(read_small_file(directory_, "sub/file", 100), "inside");
  write_small_file(directory_, "sub/other", "more");
  EXPECT_EQ(contents_of(root_ / "in/sub/other"), "more");
  directory_.create_directory("sub/deep");
  directory_.rename("sub/other", "sub/deep/moved");
  EXPECT_EQ(directory_.file_size("sub/deep/moved"), 4);
  directory_.exchange("sub/deep/moved", "sub/file");
  EXPECT_EQ(contents_of(root_ / "in/sub/file"), "more");
  EXPECT_EQ(directory_.open_directory("sub/deep").list(), std::vector<std::string>{"moved"});
  directory_.remove_tree("sub");
  EXPECT_FALSE(directory_.exists("sub"));
}

// What is no regular file is refused at once: opening a FIFO for reading would wait for a writer.
TEST_P(Confined, OnlyRegularFilesAreOpened) {
  ASSERT_EQ(::mkfifo((root_ / "in/fifo").c_str(), 0600), 0);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  struct sockaddr_un address {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (root_ / "in/socket").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  for (const std::string name : {"fifo", "socket", "sub"}) {
    const std::string message = message_of<IoError>([&] { FileReader(directory_, name); });
    EXPECT_NE(message.find(root_ / "in/" + name + ": it is not a regular file"), message.npos) << message;
    EXPECT_THROW(directory_.file_size(name), IoError);
  }
  ::close(listener);
  Directory devices = Directory::open(*io_, "/dev");
  EXPECT_THROW(FileReader(devices, "null"), IoError);
  EXPECT_THROW(FileReader(devices, "zero"), IoError);
}

TEST_P(Confined, DeletingATreeFollowsNoLink) {
  fs::create_symlink(root_ / "out", root_ / "in/sub/link");
  fs::create_directory_symlink(root_ / "out", root_ / "in/tree");
  ASSERT_EQ(::mkfifo((root_ / "in/sub/fifo").c_str(), 0600), 0);
  directory_.remove_tree("sub");
  directory_.remove_tree("tree");  // the link alone
  directory_.remove_tree("is not there");
  EXPECT_FALSE(directory_.exists("sub"));
  EXPECT_FALSE(directory_.exists("tree"));
  EXPECT_EQ(contents_of(root_ / "out/secret"), "secret");
}

TEST_P(Confined, ModesDoNotDependOnTheUmask) {
  const mode_t before = ::umask(0);
  {
    Directory made = Directory::create(*io_, root_ / "new/deep");
    made.create_directory("folder");
    FileWriter(made, "large", 10).finish();
    write_small_file(made, "small", "x");
  }
  ::umask(before);
  for (const char* const name : {"new", "new/deep", "new/deep/folder"}) EXPECT_EQ(mode_of(root_ / name), 0700) << name;
  for (const char* const name : {"new/deep/large", "new/deep/small"}) EXPECT_EQ(mode_of(root_ / name), 0600) << name;
}

INSTANTIATE_TEST_SUITE_P(Directory, Confined, ::testing::Values(Confinement::kKernel, Confinement::kByComponent));

TEST(Directory, OpensOnlyWhatIsThere) {
  const TemporaryDirectory root;
  EXPECT_FALSE(Directory::open_if_there(posix_io(), root / "none"));
  EXPECT_NE(message_of<IoError>([&] { Directory::open(posix_io(), root / "none"); }).find(root / "none"),
            std::string::npos);
  put(root / "file", "x");
  EXPECT_THROW(Directory::open_if_there(posix_io(), root / "file"), IoError);
  EXPECT_THROW(Directory::create(posix_io(), root / "file/below"), IoError);
  EXPECT_THROW(Directory::open(posix_io(), ""), ValueError);
}

TEST(Directory, CreatedParentsAreDurable) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  Directory::create(io, root / "a/b//c/");
  EXPECT_TRUE(fs::is_directory(root / "a/b/c"));
  EXPECT_EQ(io.not_durable(), std::set<std::string>{});
  EXPECT_EQ(io.calls(IoOp::kMkdir), 3);
}

TEST(Directory, IsCreatedOrFailsWhateverCallFails) {
  for (const bool sticky : {false, true}) {
    for (int64_t n = 1;; ++n) {
      SCOPED_TRACE(concat("sticky ", sticky, ", call ", n));
      const TemporaryDirectory root;
      FaultyIo io(posix_io());
      io.fail({{}, n, EIO, sticky});
      const std::string message = message_of<IoError>([&] { Directory::create(io, root / "a/b"); });
      if (message.empty()) {
        EXPECT_TRUE(fs::is_directory(root / "a/b"));
        EXPECT_EQ(io.not_durable(), std::set<std::string>{});
      }
      EXPECT_EQ(io.open_files(), 0);
      const bool failed = io.has_failed();
      io.heal();
      EXPECT_NO_THROW(Directory::create(io, root / "a/b"));
      if (!failed) break;
    }
  }
}

TEST(Directory, ATreeMayNotBeTooDeep) {
  const TemporaryDirectory root;
  std::string path = root / "0";
  for (int depth = 0; depth < 200; ++depth) path += "/d";
  fs::create_directories(path);
  Directory directory = Directory::open(posix_io(), root.path());
  EXPECT_NE(message_of<IoError>([&] { directory.remove_tree("0"); }).find("too deeply"), std::string::npos);
}

TEST(Directory, MessagesNamePathReasonAndWayOut) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  Directory directory = Directory::open(io, root.path());
  io.fail({IoOp::kMkdir, 1, ENOSPC, true});
  const std::string message = message_of<IoError>([&] { directory.create_directory("x"); });
  EXPECT_EQ(message, "cannot create the directory " + root / "x" +
                         ": No space left on device. Free some space there, or choose another directory");
}

}  // namespace
}  // namespace zeroshard
