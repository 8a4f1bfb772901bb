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
  std::optional<std::string> tag;  // unset: the newest
  // Without a tag: an error when there is no checkpoint, or when one is damaged that may be the newest, instead of a
  // reason to take the newest whole one.
  bool strict = false;
  // This rank's request: memory to fill, with the elements and the dtype it needs. Throws ValueError if the checkpoint
  // does not fit this run (other parameters, other shapes). Its exceptions are not treated as damage: no older
  // checkpoint is taken instead.
  std::function<std::vector<StateSlice>(const Manifest&, const TensorIndex&)> wanted;
  // Called on every rank right before the wanted memory is overwritten with what the checkpoint `tag` has.
  std::function<void(const std::string& tag)> overwriting = {};
  std::string options = {};  // the caller's own, as text: all ranks must ask for the same
  // Fills the slices that are not in the host's memory; may be null where there are none. What it was given by a
  // checkpoint that turned out to be damaged goes before what it is given later.
  Uploader* uploader = nullptr;
  bool may_be_first = false;  // a directory without any checkpoint is how a run starts, and is not logged
};

struct LoadedCheckpoint {
  std::string tag;
  Manifest manifest;
};

// Fills the memory that `wanted` names, from the newest checkpoint that is whole on every rank; the number of ranks
// that wrote it does not matter. Reads only the pieces that it needs, each checked before it is used; floating-point
// values are converted to the dtype asked for. Collective: every rank takes the same checkpoint, or throws. Nothing is
// returned, and rank 0 logs why, when there is no checkpoint and no tag was given; when there are only damaged ones,
// that is an error. Throws IoError or ValueError on every rank alike, also when the ranks ask for different things or
// see different files; when reading has begun, the memory is then partly filled.
std::optional<LoadedCheckpoint> load_checkpoint(const LoadRequest& request, Comm& comm, Io& io);

}  // namespace zeroshard
