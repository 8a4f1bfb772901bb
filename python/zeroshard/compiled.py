"""Importing this module makes ``zeroshard._C`` the one of the core that was compiled for this torch."""

from __future__ import annotations

import torch

from . import __path__ as package
from .core import find_core

package.append(str(find_core(package, torch.__version__, torch.version.cuda)))
