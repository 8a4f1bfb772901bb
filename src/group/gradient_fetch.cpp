#include "group/gradient_fetch.h"

#include <algorithm>
#include <utility>

#include "device/cut.h"

namespace zeroshard {

void GradientFetch::will_need(const at::Tensor& grads, Range range) {
  if (range.size() == 0) return;
  mover_.follow();
  Wanted* const last = wanted_.empty() ? nullptr : &wanted_.back();
  if (last != nullptr && last->grads.const_data_ptr() == grads.const_data_ptr() && last->range.end == range.begin) {
    last->range.end = range.end;
  } else {
    wanted_.push_back({grads, range});
  }
  begin_pieces();
}

// Starts to copy announced pieces while slots are free.
void GradientFetch::begin_pieces() {
  while (!wanted_.empty() && under_way_.size() < mover_.num_slots()) {
    const at::Tensor grads = wanted_.front().grads;
    Range& left = wanted_.front().range;
    const Range range{left.begin, std::min(left.begin + mover_.piece_numel(), left.end)};
    at::Tensor values = mover_.next_slot().memory.view(grads.scalar_type(), 0, range.size());
    mover_.move(values, cut(grads, range));
    under_way_.push_back({grads.const_data_ptr(), range, std::move(values), mover_.record()});
    left.begin = range.end;
    if (left.size() == 0) wanted_.pop_front();
  }
}

// Waits for the piece that contains the first element of the range, and returns it. If that piece is not the next
// announced one, forgets all announcements and fetches the range now.
const GradientFetch::Piece& GradientFetch::arrived(const at::Tensor& grads, Range range) {
  const auto is_next = [&] {
    if (under_way_.empty()) return false;
    const Piece& piece = under_way_.front();
    return piece.grads == grads.const_data_ptr() && piece.range.begin <= range.begin && range.begin < piece.range.end;
  };
  if (!is_next()) {
    end();
    will_need(grads, range);
  }
  Piece& piece = under_way_.front();
  piece.arrived.synchronize();
  return piece;
}

void GradientFetch::lend(const at::Tensor& grads, Range range, const Use& use) {
  for (int64_t at = range.begin; at < range.end;) {
    const Piece& piece = arrived(grads, {at, range.end});
    const int64_t first = piece.range.begin, end = piece.range.end;
    const Range part{at, std::min(end, range.end)};
    use(part, cut(piece.values, part - first));
    at = part.end;
    if (at < end) continue;
    under_way_.pop_front();
    begin_pieces();
  }
}

void GradientFetch::end() {
  wanted_.clear();
  for (Piece& piece : under_way_) piece.arrived.synchronize();
  under_way_.clear();
}

}  // namespace zeroshard
