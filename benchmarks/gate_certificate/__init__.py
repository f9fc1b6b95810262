"""Certificate of the gate: wrong verdicts on real differences whose truth is controlled."""
