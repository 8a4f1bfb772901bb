#include "bindings.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The C++ core of zeroshard.";
  zeroshard::bind_errors(m);
  zeroshard::bind_config(m);
  zeroshard::bind_launch(m);
  zeroshard::bind_checkpoint_files(m);
  zeroshard::bind_meeting(m);
  zeroshard::bind_metrics(m);
  zeroshard::bind_world(m);
  zeroshard::bind_engine(m);
  zeroshard::bind_process(m);
  zeroshard::bind_signals(m);
  zeroshard::bind_sequence(m);
  zeroshard::bind_tiles(m);
}
