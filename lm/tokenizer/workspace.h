#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tokenizer/regex.h"
#include "tokenizer/subword_model.h"

namespace zeroshard {

// The working memory of encode(), for one call at a time.
struct Workspace {
  Regex::Scratch regex;
  SubwordScratch model;
  std::string well_formed, normalized, spare;
  std::vector<std::string> steps;  // by step of the pre-tokenizer: the text that the step made
};

// A pool of workspaces. Each call of encode() takes one and gives it back, so the caches of a workspace survive the
// call, and no two threads use a workspace at the same time. Thread-safe.
class WorkspacePool {
 public:
  class Lease {
   public:
    explicit Lease(WorkspacePool& pool) : pool_(pool), workspace_(pool.take()) {}
    ~Lease() { pool_.give_back(std::move(workspace_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Workspace& operator*() const { return *workspace_; }

   private:
    WorkspacePool& pool_;
    std::unique_ptr<Workspace> workspace_;
  };

 private:
  std::unique_ptr<Workspace> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Workspace> workspace = std::move(free_.back());
        free_.pop_back();
        return workspace;
      }
    }
    return std::make_unique<Workspace>();
  }
  void give_back(std::unique_ptr<Workspace> workspace) noexcept {
    const std::lock_guard lock(mutex_);
    if (free_.size() < kMost) free_.push_back(std::move(workspace));
  }

  static constexpr size_t kMost = 64;  // most free workspaces that the pool keeps
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_ = reserved();
  static std::vector<std::unique_ptr<Workspace>> reserved() {
    std::vector<std::unique_ptr<Workspace>> result;
    result.reserve(kMost);  // so that push_back() in give_back() cannot throw
    return result;
  }
};

}  // namespace zeroshard
