"""What an evidence pack holds: its schema id, file names, and its manifest's further fields."""

from __future__ import annotations

import re

from kvassay.pack.manifest import Manifest, Sha256
from kvassay.pack.tables import TABLE_COLUMNS, table_file

PACK_SCHEMA = "kvassay.pack/1"

CONTRACT_JSON = "contract.json"
CONTRACT_TOML = "contract.toml"
PLAN = "plan.json"
ARMS = "arms.json"
VERDICTS = "verdicts.json"
LEDGERS = "ledgers.json"
ENVIRONMENT = "environment.json"
SUBJECT = "subject.json"
REPORT = "report.html"
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

_CHART = re.compile(r"charts/[A-Za-z0-9_-]+\.json")


def chart_file(name: str) -> str:
    return f"charts/{name}.json"


def is_pack_file(name: str) -> bool:
    """True for a file that a pack may hold."""
    return name in REQUIRED_FILES or name == REPORT or _CHART.fullmatch(name) is not None


class PackManifest(Manifest):
    contract_sha256: Sha256
    row_counts: dict[str, dict[str, int]]
    """Rows of each arm, by table."""
