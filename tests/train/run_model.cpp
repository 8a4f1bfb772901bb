// What a model computes, for comparison with another implementation of it:
//   run_model DIRECTORY INPUT OUTPUT [ADAPTER]
// INPUT has int64 tensors [batch, length], the raw bytes behind one another: ids, documents, labels (-100: no loss);
// before them two int64: batch, length. OUTPUT gets the fp32 bytes of the logits, and of every parameter's gradient of
// the mean loss, in the order of the parameters, whose names and sizes go to stdout; with a directory with an adapter,
// of the adapter's parameters alone.
#include <ATen/ops/cross_entropy_loss.h>

#include <cstdio>
#include <fstream>

#include "zeroshard/causal_lm.h"
#include "zeroshard/error.h"
#include "zeroshard/lora.h"

namespace {

void write(std::ofstream& file, const at::Tensor& tensor) {
  const at::Tensor whole = tensor.to(at::kFloat).contiguous();
  file.write(static_cast<const char*>(whole.data_ptr()), static_cast<std::streamsize>(whole.nbytes()));
}

at::Tensor read(std::ifstream& file, at::IntArrayRef shape) {
  const at::Tensor tensor = at::empty(shape, at::kLong);
  file.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  if (!file) throw zeroshard::ValueError("INPUT is too short");
  return tensor;
}

void run(const std::string& directory, const std::string& input, const std::string& output,
         const std::string& adapter) {
  std::ifstream in(input, std::ios::binary);
  const at::Tensor shape = read(in, {2});
  const std::vector<int64_t> sizes = {shape[0].item<int64_t>(), shape[1].item<int64_t>()};
  zeroshard::TokenBatch batch;
  batch.ids = read(in, sizes);
  batch.documents = read(in, sizes);
  const at::Tensor labels = read(in, sizes);
  if (batch.documents.eq(1).all().item<bool>()) batch.documents = at::Tensor();
  const auto model =
      adapter.empty() ? zeroshard::load_causal_lm(directory) : zeroshard::load_causal_lm(directory, adapter);
  model->eval();
  const at::Tensor logits = model->logits(batch);
  at::cross_entropy_loss(logits.flatten(0, 1), labels.flatten()).backward();
  std::ofstream out(output, std::ios::binary);
  write(out, logits.detach());
  for (const auto& item : model->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    std::printf("%s %lld\n", item.key().c_str(), static_cast<long long>(item.value().numel()));
    write(out, item.value().grad().defined() ? item.value().grad() : at::zeros_like(item.value()));
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4 && argc != 5) throw zeroshard::ValueError("usage: run_model DIRECTORY INPUT OUTPUT [ADAPTER]");
  run(argv[1], argv[2], argv[3], argc == 5 ? argv[4] : "");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
