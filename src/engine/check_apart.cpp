#include <algorithm>
#include <string>
#include <tuple>

#include "base/check.h"
#include "zeroshard/engine.h"

namespace zeroshard {
namespace {

struct AddressSpan {
  std::string device;
  uintptr_t begin = 0, end = 0;
  const std::string* name = nullptr;
};

bool has_gaps(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return last + 1 != tensor.numel();
}

bool has_memory(const at::Tensor& tensor) {
  return !tensor.is_meta() && tensor.numel() > 0 && tensor.unsafeGetTensorImpl()->storage_initialized();
}

}  // namespace

void check_apart(const std::vector<std::pair<std::string, at::Tensor>>& params) {
  std::vector<AddressSpan> spans;
  for (const auto& [name, tensor] : params) {
    if (!has_memory(tensor) || has_gaps(tensor)) continue;
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    spans.push_back({tensor.device().str(), begin, begin + tensor.nbytes(), &name});
  }
  std::sort(spans.begin(), spans.end(), [](const AddressSpan& a, const AddressSpan& b) {
    return std::tie(a.device, a.begin, a.end, *a.name) < std::tie(b.device, b.begin, b.end, *b.name);
  });
  for (size_t i = 1; i < spans.size(); ++i) {
    const AddressSpan &a = spans[i - 1], &b = spans[i];
    ZS_CHECK(a.device != b.device || b.begin >= a.end, "parameters '", *a.name, "' and '", *b.name,
             "' share memory, but are not the same elements in the same order: each would train apart. Let one module "
             "have the parameter, and compute the other from it in forward");
  }
}

}  // namespace zeroshard
