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
  // Counts only without a tag. true: a missing checkpoint, or a damaged one that may be the newest, is an error. false:
  // the newest whole checkpoint is loaded.
  bool strict = false;
  // Returns this rank's request: the memory to fill, each piece with its elements and dtype. Throws ValueError if the
  // checkpoint does not match this run (other parameters, other shapes). Such an exception does not count as damage, so
  // no older checkpoint is tried.
  std::function<std::vector<StateSlice>(const Manifest&, const TensorIndex&)> wanted;
  // Called on every rank directly before the wanted memory is overwritten with the contents of checkpoint `tag`.
  std::function<void(const std::string& tag)> overwriting = {};
  std::string options = {};  // options of the caller as text, which must be equal on all ranks
  // Fills the slices that are not in host memory; may be null if there are none. If a checkpoint turns out to be
  // damaged, the uploads from it still run before the uploads from an older checkpoint.
  Uploader* uploader = nullptr;
  bool may_be_first = false;  // the run may be new, so a directory without any checkpoint is not logged
};

struct LoadedCheckpoint {
  std::string tag;
  Manifest manifest;
};

// Fills the memory that `wanted` returns, from the newest checkpoint that is whole on every rank. Any number of ranks
// may have written the checkpoint. Reads only the pieces that this rank needs, and checks each piece before it is used.
// Converts floating-point values to the wanted dtype. Collective: all ranks load the same checkpoint, or all throw. If
// there is no checkpoint and no tag was given, returns nothing, and rank 0 logs why. Throws IoError or ValueError on
// every rank alike if there are only damaged checkpoints, and if the ranks ask for different things or see different
// files. If reading had begun, the memory is then partly filled.
std::optional<LoadedCheckpoint> load_checkpoint(const LoadRequest& request, Comm& comm, Io& io);

}  // namespace zeroshard
