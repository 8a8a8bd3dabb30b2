"""`python -m selfadapt` is the same program as `selfadapt`."""

from selfadapt.cli.app import main

main()
