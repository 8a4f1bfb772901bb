#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/save.h"
#include "checkpoint/uploader.h"
#include "comm/comm.h"
#include "file/io.h"

namespace zeroshard {

struct LoadRequest {
  std::string root;
  std::optional<std::string> tag;  // unset: the newest checkpoint
  // Matters only without a tag. If true, the load fails if there is no checkpoint, or if a damaged checkpoint might be
  // the newest. If false, the newest whole checkpoint is loaded.
  bool strict = false;
  // Returns the slices that this rank needs of a checkpoint, with the memory to fill. The load calls this function for
  // each checkpoint that it tries, after it has read the manifest. The function must throw ValueError if the checkpoint
  // does not match this run (other parameters, other shapes). Such an error does not count as damage, so the load tries
  // no older checkpoint, and throws.
  std::function<std::vector<StateSlice>(const Manifest&, const TensorIndex&)> wanted;
  // If set, the load calls this function on every rank directly before it overwrites the wanted memory with the
  // contents of checkpoint `tag`.
  std::function<void(const std::string& tag)> overwriting = {};
  std::string options = {};  // options of the caller as text, which must be equal on all ranks
  // Fills the slices that are not in host memory. It may be null if there are no such slices. If a checkpoint turns out
  // to be damaged, the load does not call finish() for it. The uploader can then make the remaining uploads of the
  // damaged checkpoint later, but only before those of the checkpoint that is tried next.
  Uploader* uploader = nullptr;
  bool may_be_first = false;  // true: the run can be new, so rank 0 does not log that a directory has no checkpoint
};

struct LoadedCheckpoint {
  std::string tag;
  Manifest manifest;
};

// Loads the checkpoint with the requested tag into the memory that `wanted` returns. If no tag is requested, loads the
// newest checkpoint that was saved with `latest` true and is whole on every rank. The checkpoint can come from any
// number of ranks. Reads only the pieces that this rank needs, and checks each piece before it is used. Converts values
// to the wanted dtype like convert(). Collective: all ranks load the same checkpoint, or all throw. `comm` must move
// host memory. If there is no checkpoint and the request has neither a tag nor `strict`, returns nothing, and rank 0
// logs why (but see `may_be_first`). Throws IoError or ValueError on every rank if the requested checkpoint is missing
// or damaged, if all checkpoints are damaged, or if the ranks ask for different things or see different files. Throws
// StateError on every rank if one rank has too little memory. If an error comes after reading has begun, the wanted
// memory is partly filled.
std::optional<LoadedCheckpoint> load_checkpoint(const LoadRequest& request, Comm& comm, Io& io);

}  // namespace zeroshard
