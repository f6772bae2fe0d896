"""Finds the local file of paraphrases that Octo names by a repository of the Hugging Face hub. Downloads nothing."""

from __future__ import annotations

import os
from typing import Any

from bushel._src.sources.optional_packages import import_package


def find_paraphrases(paraphrases_repo: Any, paraphrases_filename: Any) -> str:
    """The local path of a file of paraphrases, in a folder or in the cache of the Hugging Face hub.

    Args:
      paraphrases_repo: a local folder, or the name of a data set on the hub that was downloaded before.
      paraphrases_filename: the name of the file in it.
    """
    for name, value in (("paraphrases_repo", paraphrases_repo), ("paraphrases_filename", paraphrases_filename)):
        if not isinstance(value, str | os.PathLike):
            raise TypeError(
                f"{name} must be a text, got {value!r}. paraphrases_repo and paraphrases_filename go together; "
                "for a file of your own pass its path as pickle_file_path."
            )
    repo, filename = os.fspath(paraphrases_repo), os.fspath(paraphrases_filename)
    if os.path.isdir(repo):
        path = os.path.join(repo, filename)
        if not os.path.isfile(path):
            raise FileNotFoundError(f"The folder {repo} (paraphrases_repo) has no file {filename!r}.")
        return path
    hub: Any = import_package("huggingface_hub", "robots", "Paraphrases by the name of a repository")
    try:
        cached = hub.try_to_load_from_cache(repo, filename, repo_type="dataset")
    except ValueError as error:  # a name that the hub does not allow
        raise FileNotFoundError(
            f"paraphrases_repo={repo!r} is neither a folder nor a name on the hub: {error}"
        ) from error
    if not isinstance(cached, str):
        raise FileNotFoundError(
            f"{filename} of {repo} is not on this machine, and Bushel does not download files that can run code. "
            f"Fetch it once with `hf download {repo} {filename} --repo-type dataset`, or pass the path of a file of "
            "your own as pickle_file_path."
        )
    return cached
