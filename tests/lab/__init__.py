"""A laboratory: a cluster's worth of hosts on one Linux machine (docs/laboratory.md)."""
