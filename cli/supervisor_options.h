#pragma once

namespace CLI {
class App;
}

namespace zeroshard {
struct LaunchOptions;
}

namespace zeroshard::cli {

// Adds the options that say how ranks are watched, ended and restarted, bound to NUMA nodes, and logged. `zeroshard
// run` and `zeroshard train` have these options. The values go to `options`, which must live as long as `app`.
void add_supervisor_options(CLI::App& app, LaunchOptions& options);

}  // namespace zeroshard::cli
