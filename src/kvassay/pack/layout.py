"""What an evidence pack holds: its schema id, file names, and its manifest's further fields."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict

from kvassay.pack.manifest import Manifest, Sha256, UtcTime
from kvassay.pack.tables import TABLE_COLUMNS, table_file

PACK_SCHEMA = "kvassay.pack/1"
ABORTED_SCHEMA = "kvassay.aborted-pack/1"
"""A kind of its own, so that no reader of packs takes an aborted run for a judged one."""

CONTRACT_JSON = "contract.json"
CONTRACT_TOML = "contract.toml"
PLAN = "plan.json"
ARMS = "arms.json"
VERDICTS = "verdicts.json"
LEDGERS = "ledgers.json"
ENVIRONMENT = "environment.json"
SUBJECT = "subject.json"
REPORT = "report.html"
ABORTED = "aborted.json"
ROW_FILES = tuple(table_file(table) for table in TABLE_COLUMNS)
REQUIRED_FILES = (
    CONTRACT_JSON,
    CONTRACT_TOML,
    PLAN,
    ARMS,
    VERDICTS,
    LEDGERS,
    ENVIRONMENT,
    SUBJECT,
    *ROW_FILES,
)
ABORTED_FILES = (CONTRACT_JSON, CONTRACT_TOML, PLAN, ABORTED, *ROW_FILES)
"""All of an aborted pack; what had been written besides is removed, verdicts above all."""

_CHART = re.compile(r"charts/[A-Za-z0-9_-]+\.json")


def chart_file(name: str) -> str:
    return f"charts/{name}.json"


def is_pack_file(name: str) -> bool:
    """True for a file that a pack may hold."""
    return name in REQUIRED_FILES or name == REPORT or _CHART.fullmatch(name) is not None


class EarlierRun(BaseModel):
    """A run under the same contract that its user names as having gone before."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    root: Sha256
    aborted: bool
    created_utc: UtcTime


class PackManifest(Manifest):
    contract_sha256: Sha256
    row_counts: dict[str, dict[str, int]]
    """Rows of each arm, by table."""
    after: list[EarlierRun]
    """Earlier runs under this contract, those that they name themselves included, so that trying again is seen."""
