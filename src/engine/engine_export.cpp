#include <ATen/core/Tensor.h>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/export_names.h"
#include "device/safetensors_dtype.h"
#include "engine/impl.h"
#include "file/durable.h"
#include "file/safetensors.h"

namespace zeroshard {
namespace {

constexpr std::string_view kExport = "save_16bit_model";

// A file of weights, which rank 0 writes while all ranks gather one unit after another. The destructor deletes a file
// that finish() has not completed.
class WeightFile {
 public:
  WeightFile() = default;
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;
  ~WeightFile() {
    writer_.reset();
    if (temporary_.empty()) return;
    try {
      directory_->remove_tree(temporary_);
    } catch (const Error&) {  // the earlier error matters more
    }
  }

  void declare(const std::string& name, const std::vector<int64_t>& shape, at::ScalarType type) {
    int64_t bytes = int64_t(c10::elementSize(type));
    for (const int64_t size : shape) bytes *= size;
    entries_.push_back({name, safetensors_dtype(type), shape, bytes_, bytes_ + bytes});
    bytes_ += bytes;
  }
  void open(const std::string& directory, const std::string& name) {
    const std::string header = make_safetensors_header(entries_, {{"format", "pt"}});
    directory_ = Directory::create(shared_posix_io(), directory);
    name_ = name;
    temporary_ = temporary_for(*directory_, name);
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
    temporary_.clear();
    directory_->sync();
    const std::string_view stem = std::string_view(name_).substr(0, name_.rfind(kExtension));
    if (name_.ends_with(kExtension)) remove_earlier_export(*directory_, stem, {name_});
  }

 private:
  static constexpr std::string_view kExtension = ".safetensors";

  std::vector<SafetensorsEntry> entries_;
  int64_t bytes_ = 0;
  std::optional<Directory> directory_;
  std::string name_, temporary_;  // `temporary_` is empty before open() and after finish()
  std::unique_ptr<FileWriter> writer_;
};

// Gathers units, and releases them at the end of its scope. So they do not stay gathered after an exception.
class Gathered {
 public:
  Gathered(Engine& engine, std::vector<size_t> units) : engine_(engine), units_(std::move(units)) {
    engine_.gather(units_);
  }
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;
  ~Gathered() {
    try {
      engine_.release(units_);
    } catch (const std::exception& error) {  // only frees memory, so the error is not passed on
      log(LogLevel::kError, concat("parameters stay gathered: ", error.what()));
    }
  }

 private:
  Engine& engine_;
  std::vector<size_t> units_;
};

}  // namespace

void Engine::save_weights(const std::string& directory, const std::string& name, bool exclude_frozen,
                          const std::vector<TensorState>& buffers) {
  Impl& impl = *impl_;
  impl.check_in_use();
  const bool leads = impl.ranks.checkpoint().rank() == 0;
  const auto exported = [&](const ParamSpec& param) { return param.requires_grad || !exclude_frozen; };
  run_together(kExport, [&] {
    impl.check_whole();
    // Between micro-batches, an export does not publish a delayed update, because the gradients of the current step
    // belong to the present parameters.
    if (impl.update->is_pending() && !on_any_rank(impl.ranks.all, has_pending_gradients(), "pending gradients"))
      publish_update();
    impl.writes->take_all(UserWrites::OfMaster::kNone);  // the export only reads the parameters
  });
  WeightFile file;
  const auto phase = [&](const std::function<void()>& step) {
    run_together(kExport, [&] {
      if (leads) step();
    });
  };
  phase([&] {
    for (size_t u = 0; u < impl.plan.layouts.size(); ++u) {
      const std::vector<ParamSpec>& params = impl.plan.layouts[u].params;
      for (size_t i = 0; i < params.size(); ++i)
        if (exported(params[i]))
          file.declare(params[i].name(), params[i].shape, impl.executor->unit(u).tensors(i).front().scalar_type());
    }
    for (const TensorState& buffer : buffers) file.declare(buffer.name, buffer.shape, buffer.tensor.scalar_type());
    file.open(directory, name);
  });
  for (size_t u = 0; u < impl.plan.layouts.size(); ++u) {
    const UnitLayout& layout = impl.plan.layouts[u];
    const Gathered gathered(*this, {u});
    phase([&] {
      for (size_t i = 0; i < layout.params.size(); ++i)
        if (exported(layout.params[i])) file.append(impl.executor->unit(u).tensors(i).front());
    });
  }
  phase([&] {
    for (const TensorState& buffer : buffers) file.append(buffer.tensor);
    file.finish();
  });
}

}  // namespace zeroshard
