"""What the originals made of trajectories of Open X-Embodiment, and RLDS folders with these trajectories."""

import functools
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bushel._src.trajectory.data_utils import nest_leaves
from bushel._src.trajectory.oxe.projects import PROJECTS
from bushel._src.trajectory.oxe.registry import read_table
from bushel._src.trajectory.rlds.writer import write_rlds
from helpers.golden_trajectories import GOLDEN

Leaves = dict[tuple[str, ...], np.ndarray]


@functools.cache
def _files() -> dict[str, bytes]:
    with tarfile.open(GOLDEN / "oxe.tar.xz") as archive:
        members = {Path(member.name).name: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: file.read() for name, file in members.items() if file is not None}


@functools.cache
def text(name: str) -> Any:
    """A golden JSON file: "MANIFEST" or "kwargs"."""
    return json.loads(_files()[f"{name}.json"])


@functools.cache
def arrays(data_set: str) -> dict[str, np.ndarray]:
    """The golden arrays of a data set by case|kind|path, strings as objects."""
    with np.load(io.BytesIO(_files()[f"{data_set}.npz"])) as file:
        return {key: leaf.astype(object) if leaf.dtype.kind == "S" else leaf for key, leaf in file.items()}


def leaves(data_set: str, case: str, kind: str) -> Leaves:
    """The arrays of a case: kind "in", or the project that gave them."""
    prefix = f"{case}|{kind}|"
    return {tuple(k.split("|")[2:]): leaf for k, leaf in arrays(data_set).items() if k.startswith(prefix)}


def outputs(data_set: str, project: str) -> Iterator[tuple[str, Leaves, Leaves | None]]:
    """Name, inputs and outputs of each case. None stands for an exception of the original."""
    entry = text("MANIFEST")["datasets"][data_set]
    known = entry["outputs"][project]
    stored = known.get("same_as", project)
    for case in (case["case"] for case in entry["cases"]):
        given = leaves(data_set, case, "in")
        if case in known.get("raises", {}):
            yield case, given, None
        else:
            unchanged = (tuple(path.split("|")) for path in entry["outputs"][stored]["unchanged"])
            yield case, given, {path: given[path] for path in unchanged} | leaves(data_set, case, stored)


def image_keys(data_set: str) -> set[str]:
    """The entries of the observation that are images, by the tables of all projects."""
    configs = [project.configs.get(data_set, {}) for project in PROJECTS.values()]
    kinds = ("image_obs_keys", "depth_obs_keys")
    return {key for config in configs for kind in kinds for key in config.get(kind, {}).values() if key}


def write(folder: Path, data_set: str, like: str | None = None, cases: str = "c0 c1 c3 c4 c6") -> str:
    """Writes the golden trajectories of a data set as an RLDS folder, with small images. Returns `folder` as a text.

    `like` is the data set whose trajectories are written; the last of them is the validation split.
    """
    rng = np.random.default_rng(len(data_set))
    episodes = []
    for case in cases.split():
        steps, metadata = {}, {}
        for path, leaf in leaves(like or data_set, case, "in").items():
            if path[0] == "traj_metadata":
                metadata[path[1:]] = leaf[0]
            elif path[0] == "observation" and path[-1] in image_keys(data_set) and leaf.dtype == object:
                steps[path] = rng.integers(0, 256, (len(leaf), 8, 8, 3), np.uint8)
            elif not path[0].startswith("_"):
                steps[path] = leaf
        episodes.append({"steps": nest_leaves(steps), **nest_leaves(metadata)})
    write_rlds({"train": episodes[:-1], "val": episodes[-1:]}, name=data_set, data_dir=folder)
    return str(folder)


def make_tables() -> str:
    """The tables of `docs/oxe.md`, from the registry. In the folder `tests`,
    `python -m helpers.oxe_data` writes them into the page."""
    tables = PROJECTS
    rows = []
    for name in read_table("datasets.json"):
        cameras: dict[str, list[str]] = {}
        having = {project: t.configs[name] for project, t in tables.items() if name in t.configs}
        for project, config in having.items():
            views = [view for view, key in config["image_obs_keys"].items() if key]
            cameras.setdefault(", ".join(views) or "none", []).append(project)
        first = next(iter(having.values()), {})
        state = first.get("proprio_encoding", first.get("state_encoding"))
        only = [project for project, t in tables.items() if name in t.transforms and name not in t.configs]
        functions = {t.transforms[name] for t in tables.values() if name in t.transforms}
        cells = [
            f"`{name}`",
            "; ".join(f"{', '.join(projects)}: {views}" for views, projects in cameras.items())
            or f"{', '.join(only)}: a function only",
            first["action_encoding"].name if first else "",
            state.name if state is not None else "",
            "yes" if all(map(keeps_words, functions)) else "octo, crossformer: none",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    lines = ["| data set | cameras | action | state | instruction |", "| --- | --- | --- | --- | --- |", *rows]
    lines += ["", "| mixture | project | data sets |", "| --- | --- | --- |"]
    for project, t in tables.items():
        single = [mix for mix, pairs in t.mixes.items() if len(pairs) == 1 and pairs[0][0] == mix]
        lines += [f"| `{mix}` | {project} | {len(pairs)} |" for mix, pairs in t.mixes.items() if mix not in single]
        if single:
            lines.append(f"| the names of {len(single)} data sets | {project} | 1 each |")
    return "\n".join(lines)


def keeps_words(function: Any) -> bool:
    """Whether a standardisation keeps the instructions."""
    statements = getattr(function, "statements", ())
    return not any(one[:2] == ("set", "language_instruction") and one[2][0] == "blank" for one in statements)


PAGE = Path(__file__).parents[2] / "docs" / "oxe.md"
MARKS = "<!-- made by tests/helpers/oxe_data.py -->\n", "\n<!-- end -->"


def replace_tables(page: str) -> str:
    """A page with the tables of today between the marks."""
    before, _, rest = page.partition(MARKS[0])
    return f"{before}{MARKS[0]}\n{make_tables()}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"


if __name__ == "__main__":
    PAGE.write_text(replace_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
