"""Tests of installations: of what `make deb` made, on machines that have nothing of edgepart. `make install-check` runs
them."""
