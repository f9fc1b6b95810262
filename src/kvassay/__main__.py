"""`python -m kvassay`."""

from kvassay.cli import main

main()
