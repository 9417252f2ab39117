"""`python -m recsys_moe`, the same as `recsys-moe`."""

from recsys_moe.cli import main

main()
