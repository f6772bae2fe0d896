"""The public names of Bushel: which modules have a page in the reference, and which names each of them exports.

`python docs/_ext/public_names.py` counts them, by the library that has given the name. It needs Grain and cyreal.
"""

import collections
import functools
import importlib
import inspect
import types
from dataclasses import dataclass

MODULES = {
    "bushel": "Datasets, loaders, options and errors",
    "bushel.sources": "Where records come from",
    "bushel.transforms": "Transformations as classes",
    "bushel.device": "Batches on accelerators",
    "bushel.jit": "The loader inside jit",
    "bushel.jit.datasets": "Small data sets for the loader inside jit",
    "bushel.jit.datasets.time_utils": "Windows over time series",
    "bushel.jit.cereal": "The names of cereal",
    "bushel.trajectory": "Episodes of robots",
    "bushel.trajectory.oxe": "Open X-Embodiment by name",
    "bushel.trajectory.oxe.crossformer": "The tables of CrossFormer",
    "bushel.trajectory.oxe.octo": "The tables of Octo",
    "bushel.trajectory.oxe.openvla": "The tables of OpenVLA",
    "bushel.trajectory.oxe.xgym": "The tables of X-Gym",
    "bushel.trajectory.traj_transforms": "Functions of whole trajectories",
    "bushel.trajectory.obs_transforms": "Functions of the images of a frame",
    "bushel.trajectory.goal_relabeling": "Goals from the future of a step",
    "bushel.trajectory.task_augmentation": "Goals and instructions changed at random",
    "bushel.trajectory.text_processing": "Instructions as tokens",
    "bushel.trajectory.data_utils": "Helpers for trees, grippers and mixtures",
    "bushel.checkpoint": "Iterators in Orbax checkpoints",
    "bushel.ray": "Jobs on a Ray cluster",
    "bushel.view": "Look at your data in a browser",
    "bushel.testing": "Checks for your own pipelines",
    "bushel.prometheus": "Figures for Prometheus",
    "bushel.experimental": "What Grain keeps under grain.experimental",
    "bushel.samplers": "Samplers of a DataLoader",
    "bushel.sharding": "Shards of a DataLoader",
    "bushel.multiprocessing": "Shared memory and options of workers",
    "bushel.constants": "Names of the fields of a record",
    "bushel.python": "What Grain keeps under grain.python",
    "bushel.python.experimental": "The same as bushel.experimental",
    "bushel.engine": "Executors of your own",
}
"""Every public module, with a title. Add new public modules here; a test finds one that is missing."""


@dataclass(frozen=True, eq=False)
class Name:
    """One exported name: `module.name`, and what it stands for."""

    module: str
    name: str
    value: object

    @property
    def full(self) -> str:
        """The name as a user writes it."""
        return f"{self.module}.{self.name}"

    @property
    def kind(self) -> str:
        """The directive of the Python domain that describes it: class, exception, function, module or data."""
        if isinstance(self.value, types.ModuleType):
            return "module"
        if inspect.isclass(self.value):
            return "exception" if issubclass(self.value, BaseException) else "class"
        return "function" if inspect.isroutine(self.value) else "data"


@functools.cache
def names_of(module_name: str) -> list[Name]:
    """The exported names of a module."""
    module = importlib.import_module(module_name)
    listed = module.__all__
    extras = module._EXTRAS if module_name == "bushel" else ()
    return [
        Name(module_name, name, getattr(module, name))
        for name in sorted({*listed, *extras}, key=lambda name: (name.lower(), name))
    ]


def all_names() -> list[Name]:
    """Every exported name of every public module."""
    return [name for module in MODULES for name in names_of(module)]


def homes() -> dict[int, Name]:
    """The one name under which each class and function is described, by `id`; elsewhere the reference refers to it.

    A class is described under its own name rather than under another one, and in the first module of the list.
    """
    described: dict[int, Name] = {}
    for name in all_names():
        if name.kind in ("module", "data"):
            continue
        before = described.get(id(name.value))
        if before is None or (_is_own(name) and not _is_own(before)):
            described[id(name.value)] = name
    return described


def value_home(name: Name) -> str:
    """The first public module that has this value under this name: the value is described there."""
    same = [other for module in MODULES for other in names_of(module) if other.name == name.name]
    return next(other.full for other in same if other.value is name.value)


def page_names(described: dict[int, Name]) -> dict[Name, str]:
    """The file name of the page of each described name, without its ending.

    Two names that differ in case alone would be one file on macOS, so a function gets another one.
    """
    pages: dict[Name, str] = {}
    for name in sorted(described.values(), key=lambda name: (name.kind == "function", name.full)):
        taken = {page.lower() for page in pages.values()}
        pages[name] = name.full if name.full.lower() not in taken else f"{name.full}-{name.kind}"
    return pages


def _is_own(name: Name) -> bool:
    return getattr(name.value, "__name__", None) == name.name


GRAINS = [
    *("grain", "grain.transforms", "grain.sources", "grain.samplers", "grain.sharding", "grain.multiprocessing"),
    *("grain.checkpoint", "grain.experimental", "grain.python", "grain.constants"),
]
CYREALS = ["loader", "sources", "transforms", "rl", "datasets", "datasets.time_utils"]
CROSSFORMERS = {
    "bushel.trajectory": """
        CLIPTextProcessor HFTokenizer ModuleSpec NormalizationType TextProcessor apply_frame_transforms
        apply_trajectory_transforms augment_image create_validation_dataset data_utils get_dataset_statistics
        goal_relabeling make_dataset_from_rlds make_interleaved_dataset make_oxe_dataset_kwargs
        make_oxe_dataset_kwargs_and_weights make_single_dataset normalize_action_and_proprio obs_transforms oxe
        process_text resize_depth_image resize_image task_augmentation text_processing traj_transforms
    """,
    "bushel.trajectory.traj_transforms": """
        add_head_action_mask add_pad_mask_dict chunk_act_obs pad_actions_and_proprio subsample zero_out_future_proprio
    """,
    "bushel.trajectory.obs_transforms": "augment decode_and_resize image_dropout",
    "bushel.trajectory.goal_relabeling": "uniform",
    "bushel.trajectory.task_augmentation": """
        Rephraser delete_and_rephrase delete_task_conditioning rephrase_instruction
    """,
    "bushel.trajectory.text_processing": """
        CLIPTextProcessor HFTokenizer MuseEmbedding TextProcessor UniversalSentenceEncoder
    """,
    "bushel.trajectory.data_utils": """
        allocate_threads binarize_gripper_actions combine_dataset_statistics filter_eval_datasets filter_success_droid
        invert_gripper_actions pprint_data_mixture rel2abs_gripper_actions relabel_actions sample_match_keys_uniform
        to_padding tree_map tree_merge
    """,
}
"""Names of CrossFormer, Octo, OpenVLA, X-Gym and dlimp, by the module that has them here."""


def find_giver(name: Name) -> str:
    """The library whose name this is: a program written for that library finds it here. "Bushel" for all others."""
    if name.module == "bushel.jit.cereal" or (name.module.startswith("bushel.jit") and name.name in _names_in_cyreal()):
        return "cyreal"
    if name.module.startswith("bushel.trajectory.oxe") or name.name in CROSSFORMERS.get(name.module, "").split():
        return "CrossFormer"
    if not name.module.startswith(("bushel.jit", "bushel.trajectory")) and name.name in _names_in_grain():
        return "Grain"
    return "Bushel"


@functools.cache
def _names_in_grain() -> set[str]:
    modules = [importlib.import_module(module) for module in GRAINS]
    doors = {module.__name__.removeprefix("grain.") for module in modules}
    return {name for module in modules for name in dir(module) if not name.startswith("_")} | doors


@functools.cache
def _names_in_cyreal() -> set[str]:
    modules = [importlib.import_module(f"cyreal.{module}") for module in CYREALS]
    return {name for module in modules for name in dir(module) if not name.startswith("_")} | {"datasets", "cereal"}


if __name__ == "__main__":
    for module in MODULES:
        print(f"{len(names_of(module)):4} {module}")
    names = all_names()
    print(f"{len(names):4} names in {len(MODULES)} modules, of {len({id(n.value) for n in names})} objects")
    for giver, count in collections.Counter(map(find_giver, names)).most_common():
        print(f"{count:4} of {giver}")
