"""The Ray cluster that this process uses: connecting to it, its size, and whether strangers can use it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import ipaddress
import logging
import math
import warnings
from collections.abc import Mapping
from typing import Any

from bushel._src.base.errors import BushelWarning
from bushel._src.base.late_imports import DISTRIBUTION, import_package

logger = logging.getLogger("bushel")

OPEN_CLUSTER = (
    "This Ray cluster does not ask for a token ({where}). Everybody who can reach its ports can run any program on its "
    "machines, with your rights and your data. Stop the cluster, set RAY_AUTH_MODE=token on every machine, create a "
    "token with `ray get-auth-token --generate`, copy it to the other machines, and start the cluster again: see "
    '"Safety" in docs/many_machines.md.'
)

MIXED = (
    "This process has a token (RAY_AUTH_MODE=token). If the head of the cluster was started without it, everybody can "
    "use the head, and Ray ends each of your actors before it begins: start the head again with RAY_AUTH_MODE=token."
)
"""The likely reason if no actor starts and this process has a token. Ray itself names another reason."""


def connect() -> Any:
    """Return the module `ray`, connected to a cluster. Bushel never starts a cluster, because a cluster listens."""
    ray = import_package("ray", "ray", "Actors of a Ray cluster")
    from ray.util.client import ray as client

    if client.is_connected():
        raise RuntimeError(
            "This process uses Ray through `ray://`, which copies every result twice. Run the program on a machine of "
            "the cluster, and connect with ray.init(address='auto')."
        )
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=True)
        except ConnectionError as error:
            raise ConnectionError(
                "No Ray cluster was found. Start one with `ray start --head` and call ray.init(address=...), or call "
                "ray.init() for a cluster of this machine alone, before you iterate over ds.ray_prefetch(...)."
            ) from error
    _warn_if_open(ray)
    return ray


_warned: set[str] = set()


def _warn_if_open(ray: Any) -> None:
    """Warn once for each cluster that other machines can reach and that does not ask for a token."""
    address = ray.get_runtime_context().gcs_address
    if address in _warned or asks_for_token():
        return
    reachable = [node for node in list_nodes(ray) if not _is_loopback(node["NodeManagerAddress"])]
    if reachable:
        _warned.add(address)
        where = f"it listens at {address}"
        warnings.warn(OPEN_CLUSTER.format(where=where), BushelWarning, stacklevel=2)


def asks_for_token() -> bool:
    """Return whether the Ray of this process asks for a token. In an actor: whether its machine does."""
    with contextlib.suppress(ImportError):
        from ray._private.authentication.authentication_utils import is_token_auth_enabled

        return is_token_auth_enabled()
    return False  # a version of Ray before 2.52, which knows no tokens


def warn_of_open_node(host: str) -> None:
    """Log that a machine of the cluster does not ask for a token, although this process would send one."""
    logger.warning("%s", OPEN_CLUSTER.format(where=f"not at {host}, although this process has one"))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def read_version() -> str:
    """Return the version of Bushel that is installed for this process."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # it runs from a folder
        return "without a version"


def list_nodes(ray: Any) -> list[dict[str, Any]]:
    """Return the machines of the cluster that are alive, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def count_room(ray: Any, resources: Mapping[str, float]) -> int:
    """Return how many actors with these resources all machines have room for, if nothing else runs there."""
    wanted = {name: amount for name, amount in resources.items() if amount > 0}
    counts = [
        min((math.floor(node["Resources"].get(name, 0) / amount) for name, amount in wanted.items()), default=1)
        for node in list_nodes(ray)
    ]
    return sum(counts)


def measure_smallest_store(ray: Any) -> int:
    """Return the size in bytes of the smallest object store of the cluster."""
    sizes = [int(node["Resources"].get("object_store_memory", 0)) for node in list_nodes(ray)]
    return min([size for size in sizes if size], default=1 << 30)


def describe_room(ray: Any, resources: Mapping[str, float]) -> str:
    """Return how much of each resource that an actor needs the cluster has free, in words."""
    total, free = ray.cluster_resources(), ray.available_resources()
    return ", ".join(f"{name}: {free.get(name, 0):g} of {total.get(name, 0):g} free" for name in resources)
