#pragma once
#include <cstring>

#include "kernels/half.h"

namespace zeroshard::kernels {
namespace {

// Handles tails for instruction sets without masks. A tail is loaded and stored through an array on the stack that has
// room for a whole vector, so that whole vectors can be used. The other lanes are loaded as 0. Derived is the vector
// type.
template <typename Derived, int kLanes>
struct PaddedTails {
  template <typename T>
  static auto load_tail(const void* from, int lanes) {
    T padded[kLanes] = {};
    std::memcpy(padded, from, sizeof(T) * static_cast<size_t>(lanes));
    return Derived::template load<T>(padded);
  }
  template <typename T, typename F>
  static void store_tail(void* to, F value, int lanes) {
    T padded[kLanes];
    Derived::template store<T>(padded, value);
    std::memcpy(to, padded, sizeof(T) * static_cast<size_t>(lanes));
  }
  // Copies the first `lanes` values of a vector of T.
  template <typename T, typename Vector>
  static void copy_tail(void* to, Vector values, int lanes) {
    std::memcpy(to, &values, sizeof(T) * static_cast<size_t>(lanes));
  }
};

}  // namespace
}  // namespace zeroshard::kernels
