"""`python -m edgepart` is the console script."""

from edgepart.cli.main import main

if __name__ == "__main__":
    main()
