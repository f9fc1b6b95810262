"""Plain data: specs, formats, geometry, ledger, contract, records. No torch, no engine."""
