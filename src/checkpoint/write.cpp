#include <utility>

#include "base/check.h"
#include "checkpoint/save.h"
#include "comm/local_comm.h"
#include "zeroshard/checkpoint_files.h"

namespace zeroshard {

void write_checkpoint(const NewCheckpoint& checkpoint) {
  SaveRequest request;
  request.root = checkpoint.root;
  request.tag = checkpoint.tag;
  request.step = checkpoint.step;
  request.state = checkpoint.state;
  request.rank_state = checkpoint.rank_state;
  request.versions = checkpoint.versions;
  for (const NewTensor& tensor : checkpoint.tensors) {
    const StoredTensor& about = tensor.description;
    StateSlice slice;
    slice.name = about.name;
    slice.kind = about.kind;
    slice.dtype = about.dtype;
    slice.aliases = about.aliases;
    slice.shape = about.shape;
    slice.trainable = about.trainable;
    slice.updates = about.updates;
    int64_t numel = 1;
    for (const int64_t size : about.shape) numel *= size;
    ZS_CHECK(numel == 0 || tensor.data != nullptr, "'", about.name, "' (", about.kind, ") has no data");
    slice.elements = {0, numel};
    slice.data = host_data(const_cast<void*>(tensor.data));  // the cast is safe, because a save only reads the data
    request.slices.push_back(std::move(slice));
  }
  save_checkpoint(request, *make_single_comm(), posix_io());
}

}  // namespace zeroshard
