"""The cluster's logic as state machines: events and a time go in, effects come out."""
