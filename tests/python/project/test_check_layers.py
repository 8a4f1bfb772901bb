"""tools/check_layers.py finds planted violations, and the repository itself has none."""

import subprocess
import sys

import pytest
from built import REPOSITORY


def check(root):
    result = subprocess.run(
        [sys.executable, REPOSITORY / "tools/check_layers.py", root], capture_output=True, text=True, timeout=60
    )
    return result.returncode, result.stdout + result.stderr


def plant(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


ENGINE = "class Engine:\n" + "".join(f"    def f{n}(self): ...\n" for n in range(15)) + "    def _f(self): ...\n"

# Twelve members in every form that the code has, and all that is none.
CPP_CLASS = """class Part final : public Base<int> {
 public:
  explicit Part(int a) : a_(a), list_{1, 2}, call_([] { return 1; }) {}
  ~Part();
  int a() const { return a_; }
  template <typename T>
  void take(std::vector<T>&& values);
  bool operator==(const Part&) const = default;
  static constexpr int kSize = 3;
  using Names = std::map<std::string, std::pair<int, int>>;
  friend class Other;
  enum class Kind { kOne, kTwo };

 private:
  struct Inner {
    int first = 0, second = 0;
  };
  void go(int a, int b = 2);  // int no, member;
  int a_, b_ = 0;
  std::function<int(int, char)> call_;
  std::map<int, std::pair<int, int>> pairs_;
  std::vector<int> list_{1, 2};
  mutable std::mutex mutex_;
  const char* text_ = "; int b; }";
  int (*pointer_)(int, int) = nullptr;
  Kind kind_ = Kind::kOne;
  std::function<int()> other_ = [] { return 1; };
  Inner inner_;
  [[maybe_unused]] char separator_ = '"';
"""


def test_repository_is_clean():
    assert check(REPOSITORY) == (0, "layers: clean\n")


def test_allowed_includes_are_clean(tmp_path):
    plant(
        tmp_path,
        {
            "include/zeroshard/error.h": "#include <string>\n",
            "src/base/check.h": '#include "zeroshard/error.h"\n',
            "src/layout/layout.h": '#include "base/check.h"\n#include "layout/range.h"\n',
            "src/layout/range.h": "#pragma once\n",
            "src/hooks/hooks.h": "#include <torch/csrc/autograd/function.h>\n",
            "src/CMakeLists.txt": "zs_module(base)\nzs_module(layout DEPS base LIBS x)\n",
            "lm/CMakeLists.txt": "if(X)\n  zs_module(train TORCH DEPS hooks data)\nendif()\n",
            "lm/include/zeroshard/data.h": '#include "zeroshard/error.h"\n',
            "lm/data/data.cpp": '#include "base/check.h"\n#include "zeroshard/data.h"\n',
            "lm/train/train.cpp": '#include "hooks/hooks.h"\n#include "zeroshard/data.h"\n',
            "src/unit/unit.cpp": '#include <ATen/core/Tensor.h>\n#include "layout/layout.h"\n#include "unit.h"\n',
            "src/unit/unit.h": "#pragma once\n",
            "src/placement/placement.cpp": "bool shards = options.stage == 3;\n",
            "src/unit/stage.h": 'out << "at stage " << config.stage;  // stage == 3\nuploads.stage(wanted);\n',
            "cli/main.cpp": '#include "layout/layout.h"\n#include "zeroshard/data.h"\n',
            "python/zeroshard/engine.py": ENGINE + "    @property\n    def f15(self): ...\n",
            "python/zeroshard/compat/a.py": "from ..engine import Engine\n\nsharded = config.stage == 3\n",
            "src/unit/part.h": CPP_CLASS + "};\n",
            "src/unit/options.h": "struct AnyOptions {\n" + "".join(f"  int a{n} = 0;\n" for n in range(13)) + "};\n",
            "python/zeroshard/__init__.py": "from ._C import Error\nfrom .other import f\n",
            "python/zeroshard/other.py": "from . import _C\nfrom .third import f\nimport torch\n",
            "python/zeroshard/third.py": "from zeroshard import _C\n",
        },
    )
    assert check(tmp_path) == (0, "layers: clean\n")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"src/layout/a.h": '\n#include "unit/u.h"\n', "src/unit/u.h": ""},
            "src/layout/a.h:2: layout (level 1) includes unit/u.h (level 3): include lower levels only",
        ),
        (
            {"src/unit/a.h": '#include "optim/o.h"\n', "src/optim/o.h": ""},
            "src/unit/a.h:1: unit (level 3) includes optim/o.h (level 3): include lower levels only",
        ),
        (
            {"src/unit/a.h": "if (options.stage == 3) {}\n"},
            "src/unit/a.h:1: a stage is compared: read the table of placements",
        ),
        (
            {"src/engine/a.cpp": "\nreturn 0 < config.stage;\n"},
            "src/engine/a.cpp:2: a stage is compared: read the table of placements",
        ),
        (
            {"include/zeroshard/a.h": '#include "base/b.h"\n', "src/base/b.h": ""},
            "include/zeroshard/a.h:1: a public header includes base/b.h, which is private",
        ),
        (
            {"src/config/a.cpp": "#include <ATen/core/Tensor.h>\n"},
            "src/config/a.cpp: 'config' is torch-free, but includes ATen/core/Tensor.h",
        ),
        (
            {"src/plan/a.cpp": '#include "zeroshard/e.h"\n', "include/zeroshard/e.h": "#include <c10/core/Device.h>\n"},
            "src/plan/a.cpp: 'plan' is torch-free, but includes zeroshard/e.h -> c10/core/Device.h",
        ),
        (
            {"lm/data/a.cpp": "#include <arrow/array.h>\n", "lm/parquet_plugin/a.cpp": "#include <arrow/array.h>\n"},
            "lm/data/a.cpp:1: includes arrow/array.h: Arrow belongs into lm/parquet_plugin alone",
        ),
        (
            {"src/engine/a.cpp": '#include "launch/heartbeat.h"\n', "src/launch/heartbeat.h": ""},
            "src/engine/a.cpp:1: engine (level 5) includes launch/heartbeat.h (level 5): include lower levels only",
        ),
        (
            {"src/engine/a.cpp": "#include <torch/csrc/autograd/function.h>\n"},
            "src/engine/a.cpp:1: includes torch/csrc/autograd/function.h: "
            "autograd belongs into src/hooks and lm/ops alone",
        ),
        (
            {"src/engine/a.cpp": '#include "data/d.h"\n', "lm/data/d.h": ""},
            "src/engine/a.cpp:1: includes data/d.h of lm: the library is built without it",
        ),
        (
            {"include/zeroshard/a.h": '#include "zeroshard/data.h"\n', "lm/include/zeroshard/data.h": ""},
            "include/zeroshard/a.h:1: includes zeroshard/data.h of lm: the library is built without it",
        ),
        (
            {"lm/include/zeroshard/a.h": '#include "data/d.h"\n', "lm/data/d.h": ""},
            "lm/include/zeroshard/a.h:1: a public header includes data/d.h, which is private",
        ),
        (
            {"lm/tokenizer/a.h": '#include "data/d.h"\n', "lm/data/d.h": ""},
            "lm/tokenizer/a.h:1: tokenizer (level 1) includes data/d.h (level 2): include lower levels only",
        ),
        (
            {
                "src/CMakeLists.txt": "zs_module(layout DEPS base config LIBS x)",
                "src/layout/a.h": '#include "base/b.h"\n',
            }
            | {"src/base/b.h": ""},
            "src/CMakeLists.txt: layout links config and includes nothing of it",
        ),
        (
            {"src/CMakeLists.txt": "zs_module(unit TORCH DEPS base)", "src/unit/a.h": '#include "base/b.h"\n'}
            | {"src/base/b.h": "", "src/unit/b.cpp": '#include "layout/l.h"\n', "src/layout/l.h": ""},
            "src/CMakeLists.txt: unit includes layout/l.h and does not link layout: add it to DEPS",
        ),
        (
            {"lm/CMakeLists.txt": "zs_module(train DEPS data)", "lm/train/a.h": '#include "zeroshard/nn.h"\n'}
            | {"lm/train/b.h": '#include "zeroshard/data.h"\n'},
            "lm/CMakeLists.txt: train includes zeroshard/nn.h and does not link nn: add it to DEPS",
        ),
        ({"src/data/a.h": ""}, "src/data/a.h: module 'data' is not in the table of tools/check_layers.py"),
        ({"src/misc/a.h": ""}, "src/misc/a.h: module 'misc' is not in the table of tools/check_layers.py"),
        (
            {"src/base/a.h": '#include "in_memory.h"\nTier tier = Tier::kHost;  // or Tier::kFile\n'},
            "src/base asks 1 times where something lies, and the limit is 0 (tools/tier_questions.py): "
            "let an Array, a placement or a rule answer",
        ),
        ({"bench/a.py": "x = 1\n" * 601}, "bench/a.py: 601 lines, the limit is 600: split it"),
        (
            {"python/zeroshard/a.py": "def f(run):\n    return run.config.stage == 3\n"},
            "python/zeroshard/a.py:2: a stage is compared: ask the core for placements",
        ),
        (
            {
                "python/zeroshard/a.py": "from . import b\n",
                "python/zeroshard/b.py": "if TYPE_CHECKING:\n    from .c import C\n",
                "python/zeroshard/c.py": "def f():\n    from .b import g\n",
            },
            "python/zeroshard/b.py imports itself: "
            "python/zeroshard/b.py -> python/zeroshard/c.py -> python/zeroshard/b.py",
        ),
        (
            {
                "python/zeroshard/__init__.py": "from .a import f\n",
                "python/zeroshard/a.py": "def g():\n    from . import f\n",
            },
            "python/zeroshard/__init__.py imports itself: "
            "python/zeroshard/__init__.py -> python/zeroshard/a.py -> python/zeroshard/__init__.py",
        ),
        (
            {"python/zeroshard/a.py": "import zeroshard.b\n", "python/zeroshard/b.py": "from zeroshard import a\n"},
            "python/zeroshard/a.py imports itself: "
            "python/zeroshard/a.py -> python/zeroshard/b.py -> python/zeroshard/a.py",
        ),
        (
            {
                "python/zeroshard/a.py": "from zeroshard.sub.b import f\n",
                "python/zeroshard/sub/__init__.py": "",
                "python/zeroshard/sub/b.py": "from ..a import g\n",
            },
            "python/zeroshard/a.py imports itself: "
            "python/zeroshard/a.py -> python/zeroshard/sub/b.py -> python/zeroshard/a.py",
        ),
        (
            {
                "python/zeroshard/a.py": "def f():\n    from .compat.b import g\n",
                "python/zeroshard/compat/b.py": "from ..c import h\n",
                "python/zeroshard/c.py": "",
            },
            "python/zeroshard/a.py imports python/zeroshard/compat/b.py: zeroshard must run without compat/",
        ),
        (
            {
                "python/zeroshard/a.py": "from zeroshard import importing\n",
                "python/zeroshard/compat/c.py": "from .. import importing\n",
                "python/zeroshard/convert.py": "from .importing import g\n",
                "python/zeroshard/importing/__init__.py": "from .b import g\n",
                "python/zeroshard/importing/b.py": "",
            },
            "python/zeroshard/a.py imports python/zeroshard/importing/__init__.py: "
            "zeroshard must run without importing/",
        ),
        (
            {"python/zeroshard/importing/a.py": "from ..compat.b import g\n", "python/zeroshard/compat/b.py": ""},
            "python/zeroshard/importing/a.py imports python/zeroshard/compat/b.py: zeroshard must run without compat/",
        ),
        (
            {"src/unit/part.h": CPP_CLASS + "  bool one_more_ = false;\n};\n"},
            "src/unit/part.h:1: Part has 13 data members, the limit is 12: split its state, or give the reason in "
            "tools/class_limits.py",
        ),
        (
            {"src/unit/unit.h": "class Unit {\n  int a_ = 0;\n};\n"},
            "src/unit/unit.h:1: Unit has 1 data members, so tools/class_limits.py need not list it",
        ),
        (
            {
                "python/zeroshard/a.py": "class A:\n    def __init__(self):\n        self.a = self.b = 1\n"
                + "".join(f"        self.a{n} = {n}\n" for n in range(11))
            },
            "python/zeroshard/a.py:1: A has 13 data members, the limit is 12: split its state, or give the reason in "
            "tools/class_limits.py",
        ),
        (
            {"python/zeroshard/engine.py": ENGINE + "    def f15(self): ...\n"},
            "python/zeroshard/engine.py: Engine has 16 public methods, the limit is 15: what only scripts for other "
            "libraries call belongs into compat",
        ),
    ],
)
def test_planted_violation_is_found(tmp_path, files, message):
    plant(tmp_path, files)
    assert check(tmp_path) == (1, message + "\n")
