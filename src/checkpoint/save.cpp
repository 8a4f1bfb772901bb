#include "checkpoint/save.h"

#include <chrono>
#include <optional>
#include <utility>

#include "base/check.h"
#include "checkpoint/agreement.h"
#include "checkpoint/attempt.h"
#include "checkpoint/rank_file.h"
#include "checkpoint/store.h"

namespace zeroshard {
namespace {

constexpr int64_t kMaxTableBytes = int64_t{1} << 32;

constexpr std::string_view kOneWriter =
    "What one saves would go when the other deletes old checkpoints. Wait until it ends, or choose another directory";
constexpr std::string_view kOneEngine =
    "What one engine saves would go when the other deletes old checkpoints. Choose a directory for each";

std::string table_name(int rank) {
  return concat("table-", rank, ".json");
}

// One save. All ranks go through its phases together.
class Save {
 public:
  Save(const SaveRequest& request, Comm& comm, Io& io) : request_(request), comm_(comm), io_(io) {}

  Saved run() {
    try {
      const std::string asked = concat(request_.root, " / ", request_.tag, " / step ", request_.step);
      check_same(comm_, "saves", asked, "save");
      together(comm_, "save", [&] { prepare(); });
      temporary_ = broadcast_text(comm_, temporary_, 0, "save");
      together(comm_, "save", [&] { write_own(); });
      together(comm_, "save", [&] { commit_all(); });
    } catch (...) {
      discard();
      throw;
    }
    if (comm_.rank() == 0) tidy();
    return saved_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool leads() const { return comm_.rank() == 0; }

  // Returns whether several engines of the process may save to the directory in turn. They may if the save deletes no
  // older checkpoints and the tag is not the default "global_stepSTEP". The caller has then chosen a tag for each
  // engine, as Accelerate does for several models, and engines do not touch one another's checkpoints.
  bool shares() const { return request_.keep == 0 && request_.tag != concat("global_step", request_.step); }

  void prepare() {
    check_tag(request_.tag);
    if (!leads()) return;
    root_ = Directory::create(io_, request_.root);
    replaces(*root_, request_.tag);  // throws before any work if something else has the name
    DirectoryLock& lock = (request_.locks ? *request_.locks : own_locks_).of(*root_, kOneWriter);
    turn_ = lock.take_turn(kOneEngine, shares());
    // The sweep comes first, because files of dead processes might have filled the disk.
    attempt([&] { sweep(*root_, lock.is_sure() ? Others::kAreDead : Others::kMayLive); });
    attempt([&] { retain_before(*root_, request_.keep, request_.step, request_.tag); });
    sequence_ = next_sequence(*root_);
    std::string name = private_name(".tmp-", request_.tag);
    root_->create_directory(name);
    temporary_ = std::move(name);  // set now, so that discard() deletes the directory
    root_->sync();
  }

  void write_own() {
    if (!root_) root_ = Directory::open(io_, request_.root);
    Directory directory = root_->open_directory(temporary_);
    RankTable table = write_rank_file(directory, rank_file_name(comm_.rank()), request_);
    table.state = request_.rank_state;
    write_small_file(directory, table_name(comm_.rank()), to_text(table));  // also syncs the directory
  }

  void commit_all() {
    if (!leads()) return;
    Directory directory = root_->open_directory(temporary_);
    Manifest manifest;
    manifest.tag = request_.tag;
    manifest.step = request_.step;
    manifest.sequence = sequence_;
    manifest.latest = request_.latest;
    manifest.config_digest = request_.config_digest;
    manifest.versions = request_.versions;
    manifest.state = request_.state;
    std::vector<RankTable> tables;
    for (int rank = 0; rank < comm_.world_size(); ++rank)
      tables.push_back(parse_rank_table(read_small_file(directory, table_name(rank), kMaxTableBytes),
                                        concat(directory.path(), "/", table_name(rank))));
    merge(std::move(tables), manifest);
    for (int rank = 0; rank < comm_.world_size(); ++rank) directory.remove(table_name(rank));
    write_small_file(directory, std::string(kManifestName), to_text(manifest));
    placed_ = true;  // set before the exchange, after which `temporary_` names the replaced checkpoint
    replaced_ = commit(*root_, temporary_, request_.tag);
    saved_.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    saved_.bytes = manifest.file_bytes();
  }

  // Deletes the replaced checkpoint, writes the hint (the file "latest") unless `latest` is false, and deletes older
  // checkpoints. An error does not fail the save, because the checkpoint has been committed.
  void tidy() {
    if (replaced_) attempt([&] { root_->remove_tree(temporary_); });
    if (request_.latest) attempt([&] { write_latest(*root_, request_.tag); });
    attempt([&] { retain(*root_, request_.keep, request_.tag); });
  }

  // Runs a step whose failure is logged as a warning and does not fail the save.
  void attempt(const auto& step) const noexcept {
    zeroshard::attempt(step, [&](const std::string& reason) {
      return placed_ ? concat("checkpoint '", request_.tag, "' is saved, but: ", reason) : reason;
    });
  }

  void discard() noexcept {
    if (!leads() || !root_ || temporary_.empty() || placed_) return;
    zeroshard::attempt([&] { root_->remove_tree(temporary_); },
                       [](const std::string& reason) { return concat("left behind: ", reason); });
  }

  const SaveRequest& request_;
  Comm& comm_;
  Io& io_;
  std::optional<Directory> root_;
  DirectoryLocks own_locks_;
  std::unique_lock<std::mutex> turn_;  // rank 0's turn among the engines of its process
  std::string temporary_;
  int64_t sequence_ = 0;
  Saved saved_;
  Clock::time_point start_ = Clock::now();
  bool placed_ = false;
  bool replaced_ = false;  // whether `temporary_` is now the checkpoint that had the tag before
};

}  // namespace

Saved save_checkpoint(const SaveRequest& request, Comm& comm, Io& io) {
  Saved saved;
  or_abort(comm, [&] { saved = Save(request, comm, io).run(); });
  return saved;
}

}  // namespace zeroshard
