"""Damaged files of every format: the same records, or an error that names the file, or what the documents allow.

Files, damages and what is allowed are in `damaged_files.py`. Files are read in a process of their own, since libraries
may end it, or loop; it also has a limit of memory.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from helpers.case_counts import cases
from helpers.damaged_files import FAULTY, SILENT, TABLE, Format, share

TESTS = Path(__file__).parent.parent
HANGS_S = 60
SOME, MANY = cases(100, 200), 5_000

Outcome = tuple[int, str, str]
"""Number of the damage, what came of it, and more."""


class Reading:
    """A process that reads damaged files; a new one where it ended."""

    def __init__(self, hangs_s: float = HANGS_S):
        self._hangs_s = hangs_s
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def outcomes(self, name: str, low: int, high: int) -> list[Outcome]:
        """What came of each of the damages [low, high)."""
        found: list[Outcome] = []
        while low + len(found) < high:
            process = self._process = self._process or self._started()
            assert process.stdin and process.stdout
            process.stdin.write(f"{low + len(found)} {high} {name}\n")
            process.stdin.flush()
            before = len(found)
            for line in process.stdout:
                if (answer := json.loads(line)) == "end":
                    return found
                found.append(tuple(answer))
            code, self._process = process.wait(), None
            process.stdin.close()
            process.stdout.close()
            self._errors.seek(0)
            told = f"the process ended with {code}: {self._errors.read()[-2_000:]}"
            assert len(found) > before or not _never_began(told), told
            found.append((low + len(found), "crash", told))
        return found

    def _started(self) -> subprocess.Popen[str]:
        self._errors.seek(0)
        self._errors.truncate()
        command = [sys.executable, str(TESTS / "programs" / "read_damaged.py"), str(self._hangs_s)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True)

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin and self._process.stdout
            self._process.stdin.close()
            self._process.wait(HANGS_S)
            self._process.stdout.close()
        self._errors.close()


def _never_began(told: str) -> bool:
    """Whether the process failed by itself, not in a library."""
    return "ended with 1:" in told and "Timeout" not in told


def offences(form: Format, outcomes: list[Outcome]) -> list[Outcome]:
    """Outcomes that must not be."""
    allowed = SILENT[: SILENT.index(form.silent) + 1]
    kinds = ("error", *allowed, *(["crash"] if form.may_crash else []))
    return [outcome for outcome in outcomes if outcome[1] not in kinds]


@pytest.fixture(scope="module")
def reading():
    process = Reading()
    yield process
    process.close()


@pytest.mark.parametrize("name", TABLE)
def test_damage_is_told_or_harmless_or_documented(name, reading):
    assert offences(TABLE[name], reading.outcomes(name, 0, share(name, SOME))) == []


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", TABLE)
def test_much_damage_is_told_or_harmless_or_documented(name, reading):
    assert offences(TABLE[name], reading.outcomes(name, SOME, SOME + share(name, MANY))) == []


@pytest.fixture(scope="module")
def impatient_reading():
    process = Reading(hangs_s=2)
    yield process
    process.close()


@pytest.mark.parametrize("name", FAULTY)
def test_what_must_not_be_is_noticed(name, impatient_reading):
    found = impatient_reading.outcomes(name, 0, 1)
    assert [number for number, _, _ in found] == [0]
    assert offences(FAULTY[name], found) == found


LEVELS = dict(zip(SILENT, ("nothing", "whole records", "values", "values, names, types", "anything"), strict=True))
DOCUMENTED = {
    "ArrayRecord, `verify=True`": r"array_record .*verified",
    "ArrayRecord": r"array_record (?!.*verified).*",
    "TFRecord, also with gzip or zlib": r"tfrecord(?!.*unverified).*",
    "TFRecord, `verify=False` or no package of CRC32C": r"tfrecord.*unverified",
    "`.npz`, compressed": r"npz compressed",
    "`.npy`, `.npz`, safetensors": r"npy|npz|npz inside|safetensors",
    "Parquet": r"parquet.*",
    "Arrow": r"arrow.*",
    'HDF5 with `libver="latest"` and `fletcher32`': r"hdf5 latest fletcher32",
    "HDF5": r"hdf5(?! latest).*",
    "Zarr with a checksum codec: its chunks": r"zarr crc32c",
    "Zarr": r"zarr \d",
    "Lance": r"lance",
    "WebDataset (tar)": r"tar .*",
    "Bagz, text": r"bagz?( .*)?|lines",
    "`tf.train.Example`, images, sounds": r"example|image .*|sound .*",
    "files of `write_checksums`": r"checksums",
}


def test_what_may_change_without_an_error_is_documented():
    """Each row of the table in docs/sources/README.md, and each format of damaged_files.py, says the same."""
    page = (TESTS.parent / "docs" / "sources" / "README.md").read_text(encoding="utf-8")
    text = page.partition("## Damage")[2].partition("\n## ")[0]
    rows = {label: level for label, level, _ in re.findall(r"^\| (.+?) \| (.+?) \| ?(.*?) ?\|$", text, re.MULTILINE)}
    assert set(rows) - {"format", "---"} == set(DOCUMENTED)
    for name, form in TABLE.items():
        labels = [label for label, pattern in DOCUMENTED.items() if re.fullmatch(pattern, name)]
        assert [rows[label] for label in labels] == [LEVELS[form.silent]], name
