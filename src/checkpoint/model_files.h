#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "file/durable.h"
#include "file/safetensors.h"

namespace zeroshard {

// The tensors of a Hugging Face model directory. They are in the files that the index STEM.safetensors.index.json
// names, or in STEM.safetensors if there is no index. Links are followed, because the directories of a download cache
// consist of links.
class ModelFiles {
 public:
  struct Tensor {
    SafetensorsEntry entry;
    size_t file = 0;  // index of the tensor's file
    int64_t numel() const;
  };

  // Reads the index and the headers of the files. Throws IoError or ValueError if a file is missing, truncated or
  // malformed, or if the index lists other tensors than the files have. Also throws if STEM.safetensors exists and the
  // index names other files, because other programs would read STEM.safetensors. The message names the file. It also
  // names the tensor if the problem concerns a tensor.
  explicit ModelFiles(const std::string& directory, const std::string& stem = "model");

  const std::string& directory() const { return directory_; }
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;
  // Reads elements [begin, end), in row-major order, as `dtype`. If the file has another dtype, converts like
  // convert(), which needs 4 MiB in addition to `out`. Throws ValueError if the tensor does not have the elements, or
  // if they cannot be converted.
  void read(const Tensor& tensor, int64_t begin, int64_t end, std::string_view dtype, void* out) const;
  std::string name_of(const Tensor& tensor) const;  // tensor and file, for messages
  // Returns a text that is equal for files whose tensors have the same names, dtypes and positions. Values and shapes
  // do not count. The text contains no paths, because paths can differ among hosts.
  std::string identity() const;

 private:
  struct File {
    std::string name;
    FileReader reader;
    int64_t data_begin;
  };
  void add_file(const std::string& name);
  void add_indexed_files(const std::string& stem);

  std::string directory_;
  std::vector<File> files_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace zeroshard
