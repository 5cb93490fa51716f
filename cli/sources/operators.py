"""Descriptions of operators in a user's Python file (docs/tdl.md). The file is run here, with all that the user may do;
what becomes of it is data. Door: files."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from edgepart.planner.errors import UsageError

if TYPE_CHECKING:
    from edgepart.planner.tdl.description import OperatorDescription


def read_operators(file: Path | None) -> tuple[OperatorDescription, ...]:
    """The descriptions that a Python file makes; () for None. Raises UsageError, with the line, if the file cannot be run
    or makes none, or if it describes an operator twice for inputs of the same ranks."""
    if file is None:
        return ()
    from edgepart.planner.tdl.description import OperatorDescription

    made = _run(file).values()
    found = tuple(dict.fromkeys(one for one in made if isinstance(one, OperatorDescription)))
    if not found:
        raise UsageError(
            f"{file} describes no operator: put @operator(DOMAIN, TYPE) of edgepart.tdl before a function"
        )
    first: dict[object, OperatorDescription] = {}
    for one in found:
        if first.setdefault((one.key, one.form), one) is not one:
            raise UsageError(
                f"{file} describes {one.op_type} of {one.domain!r} twice for inputs of these ranks"
            )
    return found


def _run(file: Path) -> dict[str, object]:
    """The names that the file defines. Modules beside it can be imported, as in a script."""
    if not file.is_file():
        raise UsageError(f"there is no file {str(file)!r}; --operators is a Python file with descriptions")
    sys.path.insert(0, str(file.parent.absolute()))
    try:
        return runpy.run_path(str(file))
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{_place(file, error)}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.parent.absolute()))


def _place(file: Path, error: BaseException) -> str:
    """The line of the file that raised the error, or in which Python cannot read it."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f"{file}:{error.lineno}"
    lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == str(file)]
    return f"{file}:{lines[-1]}" if lines else str(file)
