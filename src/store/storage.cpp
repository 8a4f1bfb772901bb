#include "store/storage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/align.h"
#include "base/check.h"
#include "device/cut.h"

namespace zeroshard {
namespace {

constexpr int64_t kValueBytes = sizeof(float);  // bytes of an fp32 value in the files

// Converts `numel` bf16 values, which fill the second half of `memory`, to fp32 values, which fill all of it. Does not
// use LibTorch, because training uses LibTorch's threads at the same time.
void widen(float* memory, int64_t numel) {
  auto* const to = reinterpret_cast<std::byte*>(memory);
  const std::byte* const from = to + numel * 2;
  for (int64_t i = 0; i < numel; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, from + i * 2, sizeof half);
    const uint32_t bits = uint32_t{half} << 16;
    std::memcpy(to + i * 4, &bits, sizeof bits);
  }
}

class MemoryReader final : public ArrayReader {
 public:
  explicit MemoryReader(at::Tensor values) : values_(std::move(values)) {}
  void read(Range range, void* to) override {
    if (values_.scalar_type() == at::kByte) {
      std::copy_n(values_.const_data_ptr<uint8_t>() + range.begin, range.size(), static_cast<uint8_t*>(to));
    } else if (values_.scalar_type() == at::kFloat) {
      std::copy_n(values_.const_data_ptr<float>() + range.begin, range.size(), static_cast<float*>(to));
    } else {
      std::copy_n(values_.const_data_ptr<at::BFloat16>() + range.begin, range.size(), static_cast<float*>(to));
    }
  }

 private:
  at::Tensor values_;
};

class FileReader final : public ArrayReader {
 public:
  FileReader(ChunkReader reader, DType type, bool packed) : reader_(std::move(reader)), type_(type), packed_(packed) {}
  void read(Range range, void* to) override {
    const int64_t size = element_size(type_);
    if (packed_ || size == 1) return reader_.read_bytes({range.begin * size, range.end * size}, to);
    if (type_ == DType::kFloat32) return reader_.read(range, to);
    reader_.read(range, static_cast<std::byte*>(to) + range.size() * 2);
    widen(static_cast<float*>(to), range.size());
  }

 private:
  ChunkReader reader_;
  DType type_;
  bool packed_;
};

class CopyToDevice final : public ChunkStore::Reader {
 public:
  explicit CopyToDevice(c10::Event end) : end_(std::move(end)) {}
  bool is_done() override { return end_.query(); }
  void await() override { end_.synchronize(); }

 private:
  c10::Event end_;
};

// Returns a column for each optimizer state of `place`, the master weights first.
std::vector<FileStorage::Column> columns_of(const GroupPlacement& place) {
  std::vector<FileStorage::Column> columns;
  if (place.master_weights.extent != Extent::kNothing)
    columns.push_back({place.master_weights.dtype, Category::kMasterWeights});
  if (place.moments.extent != Extent::kNothing)
    columns.insert(columns.end(), size_t(place.moments.values), {place.moments.dtype, Category::kMoments});
  return columns;
}

}  // namespace

MemoryStorage::MemoryStorage(std::vector<at::Tensor> columns, std::vector<FlatBuffer> owned)
    : owned_(std::move(owned)),
      columns_(std::move(columns)),
      uses_(columns_.empty() ? at::Device(at::kCPU) : columns_.front().device()) {}

void MemoryStorage::lend(Range range, std::optional<int> column, Access access, const Use& use) {
  if (range.size() == 0) return;
  if (access != Access::kRead && reading_) {
    reading_->synchronize();
    reading_.reset();
  }
  access == Access::kRead ? uses_.share() : uses_.take();
  std::vector<at::Tensor> lent;
  if (column) lent.push_back(cut(columns_.at(size_t(*column)), range));
  if (!column)
    for (const at::Tensor& each : columns_) lent.push_back(cut(each, range));
  use(range, lent);
  if (access == Access::kRead) uses_.end();
}

std::unique_ptr<ArrayReader> MemoryStorage::reader(int column) {
  return std::make_unique<MemoryReader>(columns_.at(size_t(column)));
}

FileStorage::FileStorage(SwapSpace& space, Options options, Ledger& ledger)
    : space_(space), options_(std::move(options)), ledger_(ledger) {
  ZS_ASSERT(values_of({0, options_.numel}).end == space_.store().layout().numel(options_.group), "group ",
            options_.group, " of the swap files has another size");
  for (const Column& column : options_.columns)
    ledger_.add(column.category, Tier::kFile, options_.numel * element_size(column.dtype));
}

FileStorage::~FileStorage() {
  for (const Column& column : options_.columns)
    ledger_.remove(column.category, Tier::kFile, options_.numel * element_size(column.dtype));
}

Range FileStorage::values_of(Range range) const {
  if (!options_.packed) return range;
  if (range.size() == 0) return {};
  // A range that ends with the group's last element also gets the padding behind it, so that a borrower who overwrites
  // everything causes no read of the padding.
  const int64_t end = range.end == options_.numel ? space_.store().layout().numel(options_.group)
                                                  : ceil_div(range.end * element_bytes(), kValueBytes);
  return {range.begin * element_bytes() / kValueBytes, end};
}

// Returns whether the fp32 `values` of the files hold only elements of `range`, or padding after the group's last
// element. If not, lend() turns kOverwrite into kModify, which reads the values first, because the first or the last
// value also holds bytes of other elements.
bool FileStorage::is_whole(Range range, Range values) const {
  if (!options_.packed) return true;
  const int64_t size = element_bytes();
  return values.begin * kValueBytes == range.begin * size &&
         (range.end == options_.numel || values.end * kValueBytes == range.end * size);
}

void FileStorage::lend(Range range, std::optional<int> column, Access access, const Use& use) {
  const Range values = values_of(range);
  if (values.size() == 0) return;
  if (access == Access::kOverwrite && !is_whole(range, values)) access = Access::kModify;
  const int64_t size = element_bytes();
  const auto lend = [&](Range lent, std::span<float* const> slots) {
    Range part = lent;
    if (options_.packed)
      part = intersect(range, {lent.begin * kValueBytes / size, ceil_div(lent.end * kValueBytes, size)});
    if (part.size() == 0) return;  // this part is only padding
    const int64_t offset = options_.packed ? part.begin * size - lent.begin * kValueBytes : 0;
    std::vector<at::Tensor> columns;
    for (size_t i = 0; i < slots.size(); ++i) {
      char* const first = reinterpret_cast<char*>(slots[i]) + offset;
      columns.push_back(view_memory(first, part.size(), type(column ? *column : int(i)), at::kCPU));
    }
    use(part, columns);
  };
  space_.lend(options_.group, values, access, lend, column);
}

std::unique_ptr<ArrayReader> FileStorage::reader(int column) {
  return std::make_unique<FileReader>(space_.reader(options_.group, column), options_.columns.at(size_t(column)).dtype,
                                      options_.packed);
}

std::optional<ChunkStore::Announced> FileStorage::place_in_files(Range range) const {
  return ChunkStore::Announced{options_.group, values_of(range)};
}

void FileStorage::read_on(const SideStream& stream) {
  space_.read_on(std::make_shared<CopyToDevice>(stream.record()));
}

std::unique_ptr<Storage> states_on_host(int64_t numel, const GroupPlacement& place, at::Device device, bool pin,
                                        Ledger& ledger) {
  std::vector<FlatBuffer> memory;
  std::vector<at::Tensor> columns;
  for (const FileStorage::Column& column : columns_of(place)) {
    memory.push_back(FlatBuffer::on_host(numel * element_size(column.dtype), device, pin, ledger, column.category));
    columns.push_back(memory.back().view(to_scalar_type(column.dtype), 0, numel));
  }
  return std::make_unique<MemoryStorage>(std::move(columns), std::move(memory));
}

std::unique_ptr<Storage> states_in_files(SwapSpace& space, size_t group, int64_t numel, const GroupPlacement& place,
                                         Ledger& ledger) {
  return std::make_unique<FileStorage>(space, FileStorage::Options{group, numel, columns_of(place)}, ledger);
}

std::unique_ptr<Storage> values_in_files(SwapSpace& space, size_t group, const Stored& values,
                                         const ShardLayout& layout, Category category, Ledger& ledger) {
  return std::make_unique<FileStorage>(
      space, FileStorage::Options{group, values.numel(layout), {{values.dtype, category}}, /*packed=*/true}, ledger);
}

}  // namespace zeroshard
