"""The judge: contract, arms, ledgers and rows in, verdicts out. A pure function; no torch, no engine, no clock."""

from kvassay.judge.verdicts import judge

__all__ = ["judge"]
