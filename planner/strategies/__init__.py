"""One file for each published strategy and baseline, `auto`, and the registry that knows them by name.

May import: planner/cost, planner/errors, planner/figures, planner/layers, planner/layerwise, planner/layout,
planner/model, planner/placing, planner/placing/engine, planner/placing/problem, planner/region, planner/search,
planner/vocabulary.
"""

__all__ = ["auto", "bbgrap", "out_of_memory", "pipeline", "registry", "replicas"]
