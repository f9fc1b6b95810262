"""One error tree. A message says what was found, what was expected, and the way out.

The command line turns every `KvassayError` into one line on stderr and exit code 2.
"""

from __future__ import annotations

KEPT = "what was measured is kept as an aborted pack"
"""Begins a note of an error that ended a run after rows were measured; the path follows."""
KEPT_CELLS = "finished cells are kept, and the same command goes on from them"
KEPT_PACKS = "the packs that were merged are kept"
STAYS = (KEPT, KEPT_CELLS, KEPT_PACKS)
"""Beginnings of notes that say what an ended command leaves; without one it left nothing."""


class KvassayError(Exception):
    """Base of every error that a user can cause and mend."""


class UsageError(KvassayError):
    """A command line that cannot be read."""


class FormatError(KvassayError):
    """A format string, spec or option that names no usable KV format."""


class GeometryError(KvassayError):
    """A cache shape that cannot be read, or that a format cannot serve."""


class NonFiniteError(KvassayError):
    """NaN or infinity in keys or values; the message counts and places them."""


class RangeError(KvassayError):
    """Finite values that the format cannot represent (saturation, metadata overflow)."""


class CalibrationError(KvassayError):
    """A format with static scales has none, or has unusable ones."""


class ForeignFormatError(KvassayError):
    """Packed bytes were offered to a decoder of another format."""


class CacheStateError(KvassayError, RuntimeError):
    """An operation that the cache cannot do in the state it is in; nothing was changed."""


class KernelError(KvassayError, RuntimeError):
    """A compiled kernel that was asked for is not there, or cannot serve."""


class ContainerError(KvassayError):
    """A file of arrays that cannot be written, or is no whole safetensors file with kvassay's header."""


class PrefixStoreError(KvassayError):
    """A folder of shared prefixes that cannot be written or read."""


class PackedKVError(KvassayError):
    """A packed-KV file that cannot be written, read or trusted."""


class SavedCacheError(KvassayError):
    """A file of a saved cache that cannot be written, read or trusted, or that belongs to another cache."""


class ContractError(KvassayError):
    """A contract file that cannot be read as a contract; the message names the field path."""


class ModelError(KvassayError):
    """A model that is missing, incomplete, or of an unsupported architecture."""


class WorkloadError(KvassayError):
    """A corpus or task that is missing, empty, or too short for the contract."""


class PackError(KvassayError):
    """An evidence pack or output folder that cannot be written, read or trusted."""


class SigningError(KvassayError):
    """A key that cannot be made or read, or a folder that cannot be signed."""


class SearchError(KvassayError):
    """A search for a format that cannot begin: no format left, a budget below the least, a file of another model."""


class MatrixError(KvassayError):
    """A matrix file that cannot be read as one, or that asks for what cannot be split into cells."""


class ExecutorError(KvassayError):
    """A scheduler that cannot be reached, or whose workers end without getting anything done."""


class StoreError(KvassayError):
    """A store of cells that cannot be written, read or trusted."""


class CapacityError(KvassayError):
    """A memory budget that the machine cannot give, or a run at one that did not come to its end."""


class MissingExtraError(KvassayError):
    """A command needs packages of an extra that is not installed."""


def printable(text: str) -> str:
    """`text` on one line, with control, direction-changing and unpaired surrogate characters escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
