"""Reads checkpoints of torch.distributed.checkpoint, whose ``.metadata`` says where each piece is in ``*.distcp``."""

from __future__ import annotations

import fnmatch
import math
import os
from collections.abc import Callable
from typing import Any

import torch

from .contents import GROUP_KEYS, MOMENTS, Contents, Entry, count
from .files import open_regular
from .pickles import Archive, Placeholder, load_pickle

_MODEL_KEYS = ("model", "module", "state_dict", "model_state_dict")
_REPEATED = 64  # a byte of the files may on average be in at most this many pieces
_STEP_KEYS = ("step", "global_step", "global_steps", "iteration")


def is_checkpoint(source: str) -> bool:
    return os.path.isfile(os.path.join(source, ".metadata"))


def read(directory: str, buffers: list[str]) -> Contents:
    """Reads a checkpoint.

    ``buffers`` are patterns for names of float buffers, which look like frozen parameters in DCP.
    """
    return _Import(_Store(directory), buffers).contents()


def _is_inside(name: str) -> bool:
    return not os.path.isabs(name) and ".." not in name.split("/")


class _Store:
    """The items of a checkpoint, by key."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        path = os.path.join(directory, ".metadata")
        with open_regular(path) as file:
            metadata = load_pickle(file.read(), path)
        fields = metadata.fields if isinstance(metadata, Placeholder) else {}
        items, places = fields.get("state_dict_metadata"), fields.get("storage_data")
        if not isinstance(items, dict) or not isinstance(places, dict):
            raise ValueError(f"{path} is no metadata of torch.distributed.checkpoint")
        self.items: dict[str, Placeholder] = items
        paths = fields.get("planner_data")
        paths = paths if isinstance(paths, dict) else {}
        self.paths = {key: tuple(paths.get(key, (key,))) for key in items}
        self._places = {}
        for index, place in places.items():
            offset = index.get("offset")
            self._places[index.get("fqn"), None if offset is None else tuple(offset)] = place
        self._check_lengths(path)

    def _check_lengths(self, path: str) -> None:
        """Raises ``ValueError`` if the pieces have many more bytes than the files."""
        lengths = [place.get("length") for place in self._places.values()]
        names = {place.get("relative_path") for place in self._places.values()}
        files = [os.path.join(self.directory, name) for name in names if isinstance(name, str) and _is_inside(name)]
        size = sum(os.path.getsize(file) for file in files if os.path.isfile(file))
        wanted = sum(length for length in lengths if isinstance(length, int) and length > 0)
        if wanted > _REPEATED * max(size, 1 << 20):
            raise ValueError(
                f"{path} names {wanted} bytes of pieces, and their files have only {size}. Files are missing, or the "
                "checkpoint is damaged or hostile"
            )

    def check(self, key: str) -> None:
        """Raises ``ValueError`` if the pieces of a tensor cannot cover it. Reads none of them."""
        begins, count = set(), 0
        for chunk in self.items[key].get("chunks"):
            sizes, offsets = tuple(chunk.get("sizes")), tuple(chunk.get("offsets"))
            if 0 in sizes:
                continue
            length = self._place(key, offsets).get("length")
            if offsets in begins:
                raise ValueError(f"{self.directory}: two pieces of '{key}' begin at {list(offsets)}")
            if isinstance(length, int) and math.prod(sizes) > length:
                raise ValueError(
                    f"{self.directory}: the piece of '{key}' at {list(offsets)} of the sizes {list(sizes)} is kept in "
                    f"{length} bytes"
                )
            begins.add(offsets)
            count += math.prod(sizes)
        if count != math.prod(self.shape(key)):
            raise ValueError(
                f"{self.directory}: the pieces of '{key}' have {count} of its {math.prod(self.shape(key))} elements"
            )

    def is_tensor(self, key: str) -> bool:
        return isinstance(self.items[key].get("chunks"), list)

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self.items[key].get("size"))

    def value(self, key: str) -> Any:
        return self.tensor(key) if self.is_tensor(key) else self._load(key, None)

    def tensor(self, key: str) -> torch.Tensor:
        self.check(key)
        out = torch.empty(self.shape(key), dtype=self.dtype(key))
        self.fill(key, out)
        return out

    def dtype(self, key: str) -> torch.dtype:
        for chunk in self.items[key].get("chunks"):
            return self._chunk(key, chunk)[0].dtype
        raise ValueError(f"{self.directory}: '{key}' has no pieces")

    def fill(self, key: str, out: torch.Tensor) -> None:
        """Copies the pieces of a tensor to where they belong in ``out``. Raises ``ValueError`` if they do not fit."""
        self.check(key)
        for chunk in self.items[key].get("chunks"):
            if 0 in chunk.get("sizes"):
                continue
            piece, begins = self._chunk(key, chunk)
            target = out
            for dim, (begin, size) in enumerate(zip(begins, piece.shape, strict=True)):
                target = target.narrow(dim, begin, size)  # raises if the piece is outside of the tensor
            target.copy_(piece)
            self._check_narrowed(key, piece, target)

    def _check_narrowed(self, key: str, piece: torch.Tensor, target: torch.Tensor) -> None:
        if piece.dtype != torch.float64 or target.dtype == torch.float64:
            return
        lost = piece[piece.isfinite() & ~target.isfinite()]
        if lost.numel():
            raise ValueError(
                f"{self.directory}: '{key}' has the value {lost[0].item():g}, which {target.dtype} cannot hold: what "
                "is trained is kept in float32. Scale the tensor, or leave it out, where it was saved"
            )

    def _chunk(self, key: str, chunk: Placeholder) -> tuple[torch.Tensor, tuple[int, ...]]:
        begins, sizes = tuple(chunk.get("offsets")), tuple(chunk.get("sizes"))
        piece = self._load(key, begins)
        if not isinstance(piece, torch.Tensor) or tuple(piece.shape) != sizes:
            raise ValueError(f"{self.directory}: the piece of '{key}' at {list(begins)} is no tensor of {list(sizes)}")
        return piece.detach(), begins

    def _place(self, key: str, offset: tuple[int, ...] | None) -> Placeholder:
        place = self._places.get((key, offset))
        if place is None:
            raise ValueError(f"{self.directory}: nothing says where '{key}' is kept")
        return place

    def _load(self, key: str, offset: tuple[int, ...] | None) -> Any:
        place = self._place(key, offset)
        name, begin, length = (place.get(field) for field in ("relative_path", "offset", "length"))
        if not isinstance(name, str) or not _is_inside(name):
            raise ValueError(
                f"{self.directory}: '{key}' is kept in {name!r}, which is outside of this directory and is not read"
            )
        if not isinstance(begin, int) or not isinstance(length, int):
            raise ValueError(f"{self.directory}: nothing says where in {name} '{key}' is kept")
        if place.get("transform_descriptors"):
            raise ValueError(f"{self.directory}: '{key}' is kept compressed or otherwise transformed: save it without")
        return Archive(os.path.join(self.directory, name), begin, length).load()


class _Import:
    def __init__(self, store: _Store, buffers: list[str]) -> None:
        self._store, self._buffers = store, buffers
        self._states: dict[str, dict[str, str]] = {}  # parameter -> kind -> key
        self._groups: dict[Any, dict[str, str]] = {}  # param group -> setting -> key
        self._rest: list[str] = []
        for key, path in store.paths.items():
            if not self._sort_in(key, path):
                self._rest.append(key)
        self._contents = Contents("PyTorch DCP", 0)

    def _sort_in(self, key: str, path: tuple[Any, ...]) -> bool:
        """Returns whether an item belongs to the optimizer. Records its key, except for flattened param groups."""
        kind, flattened = path[-1], str(path[-1])
        if len(path) >= 3 and path[-3] == "state" and isinstance(kind, str):
            self._states.setdefault(path[-2], {})[kind] = key
        elif len(path) >= 3 and path[-3] == "param_groups" and isinstance(path[-2], int):
            self._groups.setdefault(path[-2], {})[kind] = key
        elif flattened.startswith("state.") and flattened.rpartition(".")[2] in (*MOMENTS, "step"):
            name, _, kind = flattened.removeprefix("state.").rpartition(".")
            self._states.setdefault(name, {})[kind] = key
        else:
            return flattened.startswith("param_groups.")
        return True

    def contents(self) -> Contents:
        contents, store = self._contents, self._store
        if self._states and all(str(name).isdigit() for name in self._states):
            contents.notes.append(
                "the optimizer's states: it numbers its parameters (save what get_state_dict() of "
                "torch.distributed.checkpoint.state_dict returns, and they have names)"
            )
            self._states = {}
        weights = self._weights()
        for name, key in weights.items():
            states = self._states.get(name)
            tensor_dtype = store.dtype(key)
            floats = tensor_dtype.is_floating_point
            trainable = states is not None or (not self._states and floats)
            is_buffer = not floats or any(fnmatch.fnmatchcase(name, pattern) for pattern in self._buffers)
            self._add(name, key, "buffer" if is_buffer else "weight", trainable, states or {})
        self._find_ties(weights)
        missing = sorted(set(self._states) - set(weights))
        contents.notes += [f"the optimizer's states of '{name}', which is no parameter" for name in missing]
        self._add_rest(set(weights.values()))
        return contents

    def _weights(self) -> dict[str, str]:
        """Returns the keys of parameters and buffers by name.

        These are the tensors below one outer key. If the checkpoint has states of an optimizer, that is the key below
        which some tensors have the names of the states. Without states, it is the only outer key or, if there are
        several, the one whose name is in ``_MODEL_KEYS``. Raises ``ValueError`` unless exactly one key fits.
        """
        roots: dict[tuple[Any, ...], dict[str, str]] = {}
        for key in self._rest:
            path = self._store.paths[key]
            if self._store.is_tensor(key):
                roots.setdefault(path[:-1], {})[str(path[-1])] = key
        if self._states:
            chosen = [root for root, names in roots.items() if any(name in names for name in self._states)]
        else:
            chosen = list(roots) if len(roots) == 1 else [root for root in roots if root and root[-1] in _MODEL_KEYS]
        if len(chosen) != 1:
            raise ValueError(
                f"{self._store.directory}: which of {sorted(map(str, chosen or roots))} are the model's tensors is not "
                "clear; expected one key 'model', as in dcp.save({'model': ..., 'optim': ...})"
            )
        return roots[chosen[0]]

    def _add(self, name: str, key: str, kind: str, trainable: bool, states: dict[str, str]) -> None:
        store, entries = self._store, self._contents.entries
        store.check(key)
        updates = count(store.value(states["step"])) if "step" in states else 0
        more = {"trainable": trainable and kind == "weight", "updates": updates}
        dtype = torch.float32 if more["trainable"] else store.dtype(key)
        entries.append(Entry(name, kind, dtype, store.shape(key), self._filler(key), **more))
        for moment, where in states.items():
            if moment in MOMENTS and store.is_tensor(where):
                store.check(where)
                if store.shape(where) != store.shape(key):
                    raise ValueError(f"{store.directory}: '{where}' has another shape than '{key}'")
                entries.append(Entry(name, moment, torch.float32, store.shape(key), self._filler(where), **more))
            elif moment not in ("step", *MOMENTS):
                note = f"the optimizer's state '{moment}'"
                if note not in self._contents.notes:
                    self._contents.notes.append(note)

    def _filler(self, key: str) -> Callable[[torch.Tensor], None]:
        return lambda out: self._store.fill(key, out)

    def _find_ties(self, weights: dict[str, str]) -> None:
        """Makes the second name of a tied parameter an alias.

        DCP has a tied parameter under each of its names, and its states under only one name. So a weight without states
        is taken for tied if its values equal those of a trained one. Adds a note about other weights without states.
        """
        store, contents = self._store, self._contents
        if not self._states:
            return
        trained = [entry for entry in contents.entries if entry.kind == "weight" and entry.trainable]
        for other in [entry for entry in contents.entries if entry.kind == "weight" and not entry.trainable]:
            for entry in trained:
                if entry.shape != other.shape or store.dtype(weights[entry.name]) != other.dtype:
                    continue
                if torch.equal(store.tensor(weights[entry.name]), store.tensor(weights[other.name])):
                    entry.aliases.append(other.name)
                    contents.entries.remove(other)
                    break
        frozen = [entry.name for entry in contents.entries if entry.kind == "weight" and not entry.trainable]
        if frozen:
            contents.notes.append(
                f"whether {', '.join(frozen[:8])}{', ...' if len(frozen) > 8 else ''} are frozen parameters (taken as "
                "such) or buffers: name buffers with --buffer PATTERN"
            )

    def _add_rest(self, taken: set[str]) -> None:
        contents, store = self._contents, self._store
        steps = [entry.updates for entry in contents.entries]
        for key in self._rest:
            if key not in taken:
                contents.client[key] = store.value(key)
        named = [count(contents.client[key]) for key in _STEP_KEYS if key in contents.client]
        contents.step = named[0] if named else max(steps, default=0)
        contents.state = {"global_steps": contents.step, "micro_steps": contents.step, "lr_scheduler": None}
        if self._groups:
            contents.state["param_groups"] = [
                {setting: store.value(key) for setting, key in self._groups[group].items() if setting in GROUP_KEYS}
                for group in sorted(self._groups)
            ]
