#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "comm/comm.h"
#include "zeroshard/error.h"

// Functions by which ranks agree while they save or load. All are collective, and `comm` must move host memory.
namespace zeroshard {

// Returns the `text` of rank `root` on every rank. The `text` of other ranks is ignored.
std::string broadcast_text(Comm& comm, const std::string& text, int root, std::string_view tag);

// Runs `step` on this rank, and waits until every rank has run its own `step`. If `step` throws on some rank, every
// rank throws the message of the lowest failing rank. With more than one rank, the message begins with the number of
// that rank. ValueError and StateError keep their type. Other errors become IoError. If `step` throws a CommError on a
// rank, this rank rethrows it without waiting for the others. Messages of more than 2000 bytes are cut.
void together(Comm& comm, std::string_view tag, const std::function<void()>& step);

// Throws ValueError on every rank if `mine` of some rank differs from `mine` of rank 0. The message is like "rank 1:
// VERB 'MINE', rank 0 'FIRST': ...".
void check_same(Comm& comm, std::string_view verb, const std::string& mine, std::string_view tag);

// Runs `all`, in which the ranks wait for one another by collectives. If `all` throws an exception that is not an
// Error, such as std::bad_alloc, the exception has occurred on this rank only. The function then aborts `comm`, because
// other ranks would wait for this one, and rethrows the exception. It rethrows an Error without aborting `comm`.
void or_abort(Comm& comm, const auto& all) {  // `all` is not a std::function, because creating one can need memory
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
