#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "comm/comm.h"
#include "zeroshard/error.h"

// What ranks tell each other while they save or load. Collective; `comm` moves host memory.
namespace zeroshard {

// Rank `root`'s text on every rank.
std::string broadcast_text(Comm& comm, const std::string& text, int root, std::string_view tag);

// Runs `step` on this rank and waits until every rank has done so. When it threw anywhere, throws the first failing
// rank's message on every rank, prefixed with that rank: ValueError or StateError for one, IoError for anything else.
void together(Comm& comm, std::string_view tag, const std::function<void()>& step);

// Throws ValueError on every rank unless all ask for the same: "rank 1: VERB 'MINE', rank 0 'FIRST': ...".
void check_same(Comm& comm, std::string_view verb, const std::string& mine, std::string_view tag);

// Runs `all`, which ranks go through together. An exception that is no Error, such as std::bad_alloc, happens on this
// rank alone: then `comm` is aborted, so that no other rank waits for this one, and the exception is rethrown.
void or_abort(Comm& comm, const auto& all) {  // no std::function: it may need memory
  try {
    all();
  } catch (const Error&) {
    throw;
  } catch (...) {
    comm.abort("this rank has no memory left for a checkpoint");
    throw;
  }
}

// Whether `mine` is true on every rank.
bool all_of_ranks(Comm& comm, bool mine, std::string_view tag);

}  // namespace zeroshard
