#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "comm/comm.h"
#include "zeroshard/error.h"

// Lets ranks agree while they save or load. Collective; `comm` moves host memory.
namespace zeroshard {

// Returns the text of rank `root` on every rank.
std::string broadcast_text(Comm& comm, const std::string& text, int root, std::string_view tag);

// Runs `step` on this rank and waits until every rank has done the same. If it throws on some rank, every rank throws
// the message of the first failing rank, prefixed with that rank. ValueError and StateError keep their type; other
// errors become IoError.
void together(Comm& comm, std::string_view tag, const std::function<void()>& step);

// Throws ValueError on every rank unless all pass the same text: "rank 1: VERB 'MINE', rank 0 'FIRST': ...".
void check_same(Comm& comm, std::string_view verb, const std::string& mine, std::string_view tag);

// Runs `all`, in which ranks proceed together. An exception that is not an Error, such as std::bad_alloc, occurs on
// this rank only. So `comm` is aborted, because otherwise other ranks would wait for this one, and the exception is
// rethrown.
void or_abort(Comm& comm, const auto& all) {  // not a std::function, which may need memory
  try {
    all();
  } catch (const Error&) {
    throw;
  } catch (...) {
    comm.abort("this rank has no memory left for a checkpoint");
    throw;
  }
}

// Returns whether `mine` is true on every rank.
bool all_of_ranks(Comm& comm, bool mine, std::string_view tag);

}  // namespace zeroshard
