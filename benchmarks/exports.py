"""Makes the missing models that torch exports, so that they can be tried on machines without torch.

    python -m benchmarks.exports [NAME ...]

Prints which models cannot be made here, and why. Exits with 1 if an export fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.models import zoo_model
from benchmarks.models.exported import EXPORTS
from edgepart.cli.output import note, say
from edgepart.planner.errors import UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exports", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*EXPORTS, []], default=[], metavar="NAME")
    failed = 0
    for name in parser.parse_args(arguments).names or EXPORTS:
        try:
            say(f"{name}: {zoo_model(name).path}")
        except UsageError as error:
            note(str(error))
        except RuntimeError as error:  # the type of the errors that torch's exporter raises
            failed += 1
            note(f"{name} is not made: {str(error)[-500:]}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
