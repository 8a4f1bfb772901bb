#include "checkpoint/rank_file.h"

#include <algorithm>
#include <map>

#include "base/format.h"
#include "file/direct_buffer.h"
#include "file/hash.h"
#include "file/safetensors.h"

namespace zeroshard {
namespace {

// Returns a name that describes the slice, for programs that do not read the manifest:
// "weight/model.norm.weight[0:128]".
std::string entry_name(const StateSlice& slice) {
  return concat(slice.kind, "/", slice.name, "[", slice.elements.begin, ":", slice.elements.end, "]");
}

// Calls end_reading() of each SliceData when the last slice that needs it has been read. The destructor calls it once
// more for every SliceData, because an error can end the reading earlier.
class Readings {
 public:
  explicit Readings(const std::vector<StateSlice>& slices) : slices_(slices) {
    for (size_t i = 0; i < slices.size(); ++i)
      if (slices[i].data) last_[slices[i].data.get()] = i;
  }
  ~Readings() {
    for (const auto& [data, last] : last_) data->end_reading();
  }
  Readings(const Readings&) = delete;
  Readings& operator=(const Readings&) = delete;

  void have_read(size_t slice) {
    SliceData* const data = slices_[slice].data.get();
    if (data != nullptr && last_.at(data) == slice) data->end_reading();
  }

 private:
  const std::vector<StateSlice>& slices_;
  std::map<SliceData*, size_t> last_;
};

// Appends the elements of a slice to a file, and returns the checksums of their pieces. `piece` is a buffer for data
// that is not in host memory.
std::vector<uint64_t> append_slice(FileWriter& writer, const StateSlice& slice, const SaveRequest& request,
                                   std::vector<std::byte>& piece) {
  std::vector<uint64_t> hashes;
  const std::byte* const data = slice.on_host();
  for (int64_t at = 0; at < slice.bytes(); at += kPieceBytes) {
    const int64_t size = std::min(kPieceBytes, slice.bytes() - at);
    if (data == nullptr) {
      piece.resize(size_t(size));
      slice.data->read(slice.offset + at, size, piece.data());
    } else if (request.wait_for_data) {
      request.wait_for_data(data + at + size);
    }
    const std::byte* const bytes = data != nullptr ? data + at : piece.data();
    hashes.push_back(hash_bytes(bytes, size));
    data != nullptr ? writer.append_stable(bytes, size) : writer.append(bytes, size);
  }
  return hashes;
}

}  // namespace

int64_t StateSlice::bytes() const {
  return elements.size() * dtype_bytes(dtype);
}

std::byte* StateSlice::on_host() const {
  std::byte* const first = data ? data->on_host() : nullptr;
  return first != nullptr ? first + offset : nullptr;
}

std::string rank_file_name(int rank) {
  const std::string digits = std::to_string(rank);
  return concat("rank-", std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0'), digits, ".safetensors");
}

RankTable write_rank_file(Directory& directory, const std::string& name, const SaveRequest& request) {
  const std::vector<StateSlice>& slices = request.slices;
  Readings readings(slices);
  std::vector<SafetensorsEntry> entries;
  int64_t bytes = 0;
  for (const StateSlice& slice : slices) {
    if (slice.elements.size() == 0) continue;
    entries.push_back({entry_name(slice), slice.dtype, {slice.elements.size()}, bytes, bytes + slice.bytes()});
    bytes += slice.bytes();
  }
  const std::map<std::string, std::string> about = {{"format", "zeroshard checkpoint"}, {"tag", request.tag}};
  const std::string header = make_safetensors_header(entries, about, kDirectAlignment);
  const auto header_bytes = int64_t(header.size());
  RankTable table;
  table.file = {name, header_bytes + bytes, header_bytes, hash_bytes(header.data(), header_bytes)};
  FileWriter writer(directory, name, table.file.size);
  writer.append(header.data(), header_bytes);
  std::vector<std::byte> piece;  // buffer for data that is not in host memory
  int64_t offset = header_bytes;
  for (size_t i = 0; i < slices.size(); ++i) {
    const StateSlice& slice = slices[i];
    TensorRecord record{slice.name,  slice.kind,      slice.dtype,   slice.aliases,
                        slice.shape, slice.trainable, slice.updates, {}};
    if (slice.elements.size() > 0) {
      record.slices.push_back({0, slice.elements, offset, append_slice(writer, slice, request, piece)});
      offset += slice.bytes();
    }
    readings.have_read(i);
    table.tensors.push_back(std::move(record));
  }
  writer.finish();
  return table;
}

}  // namespace zeroshard
