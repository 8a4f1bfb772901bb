#include <ATen/core/Tensor.h>

#include "base/check.h"
#include "checkpoint/agreement.h"
#include "device/safetensors_dtype.h"
#include "engine/impl.h"
#include "file/durable.h"
#include "file/safetensors.h"

namespace zeroshard {
namespace {

// A file of weights that rank 0 writes while all ranks gather unit after unit.
class WeightFile {
 public:
  void declare(const std::string& name, const std::vector<int64_t>& shape, at::ScalarType type) {
    int64_t bytes = int64_t(c10::elementSize(type));
    for (const int64_t size : shape) bytes *= size;
    entries_.push_back({name, safetensors_dtype(type), shape, bytes_, bytes_ + bytes});
    bytes_ += bytes;
  }
  void open(const std::string& directory, const std::string& name) {
    directory_ = Directory::create(posix_io(), directory);
    name_ = name;
    temporary_ = temporary_name(name);
    const std::string header = make_safetensors_header(entries_, {{"format", "pt"}});
    writer_ = std::make_unique<FileWriter>(*directory_, temporary_, int64_t(header.size()) + bytes_);
    writer_->append(header.data(), int64_t(header.size()));
  }
  void append(const at::Tensor& tensor) {
    const at::Tensor host = tensor.detach().cpu().contiguous();
    writer_->append(host.const_data_ptr(), int64_t(host.nbytes()));
  }
  void finish() {
    writer_->finish();
    directory_->rename(temporary_, name_);
    directory_->sync();
  }
  void discard() noexcept {
    writer_.reset();
    if (!directory_) return;
    try {
      directory_->remove_tree(temporary_);
    } catch (const Error&) {  // the error that led here matters more
    }
  }

 private:
  std::vector<SafetensorsEntry> entries_;
  int64_t bytes_ = 0;
  std::optional<Directory> directory_;
  std::string name_, temporary_;
  std::unique_ptr<FileWriter> writer_;
};

}  // namespace

void Engine::save_weights(const std::string& directory, const std::string& name, bool exclude_frozen,
                          const std::vector<TensorState>& buffers) {
  Impl& impl = *impl_;
  wait_for_checkpoint();
  Comm& comm = impl.checkpoint_comm();
  const bool leads = comm.rank() == 0;
  const auto exported = [&](const ParamSpec& param) { return param.requires_grad || !exclude_frozen; };
  WeightFile file;
  const auto phase = [&](const std::function<void()>& step) {
    try {
      together(comm, "save_weights", [&] {
        if (leads) step();
      });
    } catch (const Error&) {
      file.discard();
      throw;
    }
  };
  phase([&] {
    for (const UnitLayout& layout : impl.layouts)
      for (const ParamSpec& param : layout.params)
        if (exported(param)) file.declare(param.name(), param.shape, to_scalar_type(param.dtype));
    for (const TensorState& buffer : buffers) file.declare(buffer.name, buffer.shape, buffer.tensor.scalar_type());
    file.open(directory, name);
  });
  for (size_t u = 0; u < impl.layouts.size(); ++u) {
    const UnitLayout& layout = impl.layouts[u];
    gather({u});
    phase([&] {
      for (size_t i = 0; i < layout.params.size(); ++i)
        if (exported(layout.params[i])) file.append(impl.executor->unit(u).tensors(i).front());
    });
    release({u});
  }
  phase([&] {
    for (const TensorState& buffer : buffers) file.append(buffer.tensor);
    file.finish();
  });
}

}  // namespace zeroshard
