"""The JSON Schema of a saved cache's header: `python tests/golden/make_saved_cache_schema.py` writes it anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from kvassay.core.saved_header import SavedHeader

SCHEMA = Path(__file__).parents[2] / "docs" / "spec" / "saved-cache.schema.json"


def schema_text() -> str:
    schema = SavedHeader.model_json_schema(mode="serialization")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "kvassay saved-cache header, version 1"}
    return json.dumps({**head, **{key: value for key, value in schema.items() if key not in head}}, indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema_text())
