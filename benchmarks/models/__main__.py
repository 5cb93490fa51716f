"""`python -m benchmarks.models NAME -o FILE`."""

import sys

from benchmarks.models.command import main

if __name__ == "__main__":
    sys.exit(main())
