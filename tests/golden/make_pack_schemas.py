"""Write docs/spec/evidence-pack.schema.json: `python tests/golden/make_pack_schemas.py`."""

from __future__ import annotations

import json
from pathlib import Path

from kvassay.pack.schemas import pack_schemas

COMMAND = "python tests/golden/make_pack_schemas.py"
SCHEMA = Path(__file__).parents[2] / "docs" / "spec" / "evidence-pack.schema.json"


def schema_text() -> str:
    return json.dumps(pack_schemas(), indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema_text())
