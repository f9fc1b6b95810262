"""The matrix file: models, formats, workloads and seeds, whose every combination is to be judged.

A workload is a contract file; the matrix puts its formats in place of the contract's candidates and each of its seeds
in place of the contract's. Bounds, text, tasks and controls stay as they are.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from kvassay.core.clauses.fields import Whole, contract_format
from kvassay.core.contract import MAX_CONTRACT_NBYTES, Contract, parse_contract, read_contract_text
from kvassay.core.digest import sha256_json
from kvassay.core.regular_file import read_once
from kvassay.errors import KvassayError, MatrixError
from kvassay.find.derived_contract import to_toml
from kvassay.pack.manifest import first_fault

SCHEMA = "kvassay.matrix/1"


class Device(BaseModel):
    """On what a cell runs. Part of a cell's identity, since matrix products of other hardware round otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threads: int = Field(default=1, ge=1, le=4096)
    """CPU threads of one cell. They change how sums are split and so the last bits of a result."""
    label: str | None = Field(default=None, min_length=1, max_length=60)
    """Names a class of machines that the user takes for equal; left out, it is the processor's instruction set, and a
    machine of another one refuses the cell."""


class Matrix(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: Literal["kvassay.matrix/1"] = Field(alias="schema")
    name: str = Field(min_length=1, max_length=100)
    models: tuple[str, ...] = Field(min_length=1, max_length=1000)
    formats: tuple[str, ...] = Field(min_length=1, max_length=1000)
    """From most to least conservative, as in a contract's candidates."""
    workloads: tuple[str, ...] = Field(min_length=1, max_length=1000)
    """Contract files; a relative path starts at the matrix file."""
    seeds: tuple[Whole, ...] = Field(default=(7,), min_length=1, max_length=1000)
    multiplicity: Literal["fixed-sequence", "holm"] = "holm"
    """Of the formats of one pack. A matrix asks about each of them, so it corrects and does not stop at the first."""
    device: Device = Device()

    @field_validator("formats")
    @classmethod
    def _known_formats(cls, formats: tuple[str, ...]) -> tuple[str, ...]:
        _refuse_twice("formats", [contract_format(text).digest for text in formats], formats)
        return formats

    @field_validator("models", "workloads", "seeds")
    @classmethod
    def _once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        _refuse_twice("values", values, values)
        return values


class Workload(NamedTuple):
    """One workload of a matrix at one seed."""

    name: str
    contract: Contract
    """With the matrix's formats and seed."""
    toml: str


class LoadedMatrix(NamedTuple):
    matrix: Matrix
    workloads: tuple[Workload, ...]
    """Of every contract file and seed, in the matrix's order."""


def is_matrix(text: str) -> bool:
    """Whether a TOML text says that it is a matrix; false for a contract, and for what is no TOML."""
    try:
        schema = tomllib.loads(text).get("schema")
    except (ValueError, RecursionError):
        return False
    return isinstance(schema, str) and schema.startswith("kvassay.matrix/")


def load_matrix(path: Path) -> LoadedMatrix:
    """Read a matrix file and its contracts; raises MatrixError or ContractError naming file and field."""
    try:
        data = read_once(path, MAX_CONTRACT_NBYTES + 1)
        text = data.decode()
    except FileNotFoundError as error:
        raise MatrixError(f"matrix {str(path)!r} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise MatrixError(f"matrix {str(path)!r} cannot be read: {error}") from error
    if len(data) > MAX_CONTRACT_NBYTES:
        raise MatrixError(f"matrix {str(path)!r} has more than {MAX_CONTRACT_NBYTES} bytes; is it a matrix?")
    matrix = parse_matrix(text, str(path))
    texts = {name: read_contract_text(path.parent / name) for name in matrix.workloads}
    return LoadedMatrix(matrix, _workloads(matrix, texts))


def parse_matrix(text: str, origin: str = "matrix") -> Matrix:
    try:
        fields = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise MatrixError(f"{origin}: not valid TOML: {error}") from error
    if fields.get("schema") != SCHEMA:
        raise MatrixError(f"{origin}: schema is {fields.get('schema')!r}, expected {SCHEMA!r}; is it a contract?")
    try:
        return Matrix.model_validate(fields)
    except ValidationError as error:
        raise MatrixError(f"{origin}: {first_fault(error)}") from error


def workload_sha256(contract: Contract, corpora: dict[str, str]) -> str:
    """What a cell measures, whichever formats stand beside it and however it is decided: bounds stay in it, since they
    are fixed before the run, and error rates and replicates, which only the judge reads, do not. `corpora` are the
    digests of the texts by name, which a name alone does not fix."""
    content: dict[str, Any] = dict(contract.to_json())
    for section in ("name", "candidates", "controls", "waivers"):
        del content[section]
    judged = ("alpha", "power", "bootstrap_replicates", "seed")
    content["inference"] = {key: value for key, value in content["inference"].items() if key not in judged}
    return sha256_json({"contract": content, "corpora": corpora})


def _workloads(matrix: Matrix, texts: dict[str, str]) -> tuple[Workload, ...]:
    found: list[Workload] = []
    for origin, text in texts.items():
        original = parse_contract(text, origin)
        if original.inference.design == "sequential":
            raise MatrixError(
                f'{origin}: inference.design is "sequential", which stops by looking at all formats together, and '
                'cells do not see each other; use "fixed"'
            )
        if not original.needs_run:
            raise MatrixError(f"{origin}: bounds bytes alone, which need no run: kvassay bytes computes them")
        found += [_derived(matrix, original, origin, text, seed) for seed in matrix.seeds]
    names = [workload.name for workload in found[:: len(matrix.seeds)]]
    _refuse_twice("names of contracts", names, names, MatrixError)
    return tuple(found)


def _derived(matrix: Matrix, original: Contract, origin: str, text: str, seed: int) -> Workload:
    fields = tomllib.loads(text)
    fields["candidates"] = {"order": list(matrix.formats), "multiplicity": matrix.multiplicity}
    fields["inference"] = {**fields.get("inference", {}), "seed": seed}
    toml = (
        f"# Derived by kvassay run from the contract with SHA-256 {original.sha256}:\n"
        f"# candidates and inference.seed are those of the matrix; all else is as it was.\n{to_toml(fields)}"
    )
    try:
        return Workload(original.name, parse_contract(toml, origin), toml)
    except KvassayError as error:
        raise MatrixError(f"{error}; with the matrix's formats and seed {seed}") from error


def _refuse_twice(what: str, keys: Any, shown: Any, error: type[Exception] = ValueError) -> None:
    if len(set(keys)) != len(keys):
        raise error(f"{what}: the same one stands twice in {list(shown)}; remove one")
