#pragma once

namespace CLI {
class App;
}

namespace zeroshard {
struct LaunchOptions;
}

namespace zeroshard::cli {

// Adds the options for watching, ending and restarting ranks. All commands that start ranks have the same ones. The
// values go to `options`, which must live as long as `app`.
void add_supervisor_options(CLI::App& app, LaunchOptions& options);

}  // namespace zeroshard::cli
