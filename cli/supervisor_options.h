#pragma once

namespace CLI {
class App;
}

namespace zeroshard {
struct LaunchOptions;
}

namespace zeroshard::cli {

// Adds the options that say how ranks are watched, ended and started again: the same for every command that starts
// them. They go to `options`, which must live as long as `app`.
void add_supervisor_options(CLI::App& app, LaunchOptions& options);

}  // namespace zeroshard::cli
