"""`edgepart apply`, `diff`, and `export` without a model: a cluster as a file has it. Door: files and the network."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepart.agent.options import parse_bytes
from edgepart.agent.wire.inference import DeployOptions
from edgepart.agent.wire.trials import candidate_name
from edgepart.cli.deploying import (
    DeployPatience,
    check_chosen_devices,
    deploy_files,
    promote_it,
    roll_back,
    share_it,
    undeploy_it,
)
from edgepart.cli.deployment import DownloadLimit, Timeout
from edgepart.cli.describe.changes import (
    DEPLOY,
    DISCARD,
    PROMOTE,
    PROPOSE,
    ROLL_BACK,
    SHARE,
    UNDEPLOY,
    Change,
    DeployedState,
    DescribedVersion,
    TriedVersion,
    find_changes,
    names_of,
    read_deployed,
)
from edgepart.cli.options import Agent, Json, State, parse_duration
from edgepart.cli.output import DIFFERS, console, note, print_json, say, table
from edgepart.cli.query import fetch
from edgepart.cli.sources.download import is_url
from edgepart.cli.sources.model import USUAL_DOWNLOAD_LIMIT, LocalModel, model_at
from edgepart.cli.sources.quantising import quantised
from edgepart.client.model_files import check_shapes
from edgepart.client.target import AgentTarget, target_of
from edgepart.planner.errors import EdgepartError, InternalError, UsageError

if TYPE_CHECKING:
    from edgepart.cli.describe.description import DescribedDeployment

Description = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="The YAML file that describes the deployments; - is standard input."),
]
Prune = Annotated[
    bool, typer.Option("--prune", help="Undeploy what the file does not describe. Lists it and asks first.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be changed, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --prune undeploys something.")]


@dataclass(frozen=True)
class Comparison:
    """A description beside what is deployed."""

    changes: tuple[Change, ...]
    unchanged: tuple[str, ...]
    models: Mapping[str, LocalModel]
    """The models to deploy, by the deployment's name."""
    described: Mapping[str, DescribedDeployment]

    @property
    def document(self) -> dict[str, Any]:
        rows = [{"name": c.name, "change": c.kind, "why": list(c.why), "to": c.to} for c in self.changes]
        return {"changes": rows, "unchanged": list(self.unchanged)}


def apply(
    file: Description,
    dry_run: DryRun = False,
    prune: Prune = False,
    yes: Yes = False,
    timeout: Timeout = "10m",
    download_limit: DownloadLimit = USUAL_DOWNLOAD_LIMIT,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Make the deployments what FILE describes. What is so already is left alone, and so is what the file does not
    describe. Exits with 3 when the time to wait for a deployment is up."""
    patience = DeployPatience(parse_duration(timeout, "--timeout"), timeout)
    target = target_of(agent, state)
    with compared(file, target, download_limit, prune=prune) as found:
        if not as_json:
            _print(found)
        if not dry_run and found.changes:
            _confirm(found, yes=yes, as_json=as_json)
            _carry_out(found, target, patience)
        if as_json:
            print_json(found.document | {"applied": not dry_run})
        elif not dry_run and found.changes:
            say(f"Done: {names_of(found.changes)}.", prose=True)


def diff(
    file: Description,
    prune: Prune = False,
    download_limit: DownloadLimit = USUAL_DOWNLOAD_LIMIT,
    state: State = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Say what `apply` would change. Exits with 0 if nothing, and with 5 if something."""
    with compared(file, target_of(agent, state), download_limit, prune=prune) as found:
        if as_json:
            print_json(found.document)
        else:
            _print(found)
    if found.changes:
        raise typer.Exit(DIFFERS)


def print_description(state: Path | None, agent: str | None, *, as_json: bool) -> None:
    """Prints the description of what is deployed, which `apply` takes. Models are named by their digests."""
    from edgepart.cli.describe.description import write_description

    there = read_deployed(fetch(target_of(agent, state), "/api/deployments"))
    text = write_description(there)
    if as_json:
        print_json({"description": text})
    else:
        sys.stdout.write(text)


@contextmanager
def compared(file: Path, target: AgentTarget, download_limit: str, *, prune: bool) -> Iterator[Comparison]:
    """The description compared with what is deployed. Models that were downloaded are there as long as the block lasts.
    Raises UsageError and ModelError before anything is changed."""
    from edgepart.cli.describe.description import read_description

    most_bytes = parse_bytes(download_limit, option="--download-limit")
    described = read_description(_read(file), str(file))
    there = read_deployed(fetch(target, "/api/deployments"))
    every = [each for one in described for each in (one, one.candidate) if each is not None]
    check_chosen_devices(target, [device for one in every for device in one.options.devices])
    models: dict[str, LocalModel] = {}
    wanted: dict[str, DescribedVersion] = {}
    trials: dict[str, TriedVersion] = {}
    with ExitStack() as stack:
        for one in described:
            for each in filter(None, (one, one.candidate)):
                if (digest := _known(each, there.get(one.name))) is None:
                    given = each.model if is_url(each.model) else str(_folder(file) / each.model)
                    note(f"reading {each.model}")
                    at = model_at(given, each.digest, most_bytes, each.options, with_digest=True)
                    model = models[each.name] = stack.enter_context(at)
                    check_shapes(model.graph, each.options.shapes)
                    digest = model.digest
                version = DescribedVersion(digest, each.options)
                if each.share is None:
                    wanted[one.name] = version
                else:
                    trials[one.name] = TriedVersion(version, each.share)
        changes = find_changes(wanted, there, trials, prune=prune)
        _check_sendable(changes, models)
        changed = {change.name for change in changes}
        unchanged = tuple(name for name in wanted if name not in changed)
        yield Comparison(tuple(changes), unchanged, models, {one.name: one for one in described})


def _known(one: DescribedDeployment, there: DeployedState | None) -> str | None:
    """The digest of the described model if the cluster stores it, so that the model itself is not needed; None if it is
    needed. Raises UsageError if it is needed and not described."""
    versions = [] if there is None else [there.now, *there.kept.values()]
    if there is not None and there.candidate is not None:
        versions.append(there.candidate.version)
    stored = one.digest and DescribedVersion(one.digest, one.options) in versions
    if stored and (not one.model or is_url(one.model)):
        return one.digest
    if one.model:
        return None
    raise UsageError(
        f"{one.place}: {one.name}: no deployment of that name with these options has the model sha256:{one.digest}, so "
        "that it has to be sent: give `model`, a path or an https:// URL. Nothing was changed"
    )


def _check_sendable(changes: list[Change], models: Mapping[str, LocalModel]) -> None:
    """Raises UsageError if a model has to be sent that is described only by what the cluster stores of it."""
    for change in changes:
        name = candidate_name(change.name) if change.kind == PROPOSE else change.name
        if change.kind in (DEPLOY, PROPOSE) and name not in models:
            raise UsageError(
                f"{change.name}: its model has to be sent again, as another version or under another name: give `model`, a "
                "path or an https:// URL. Nothing was changed"
            )


def _carry_out(found: Comparison, target: AgentTarget, patience: DeployPatience) -> None:
    """Make the changes one after the other. If one fails, those after it are not made, and the user is told. Weights are
    quantised before the first of them."""
    sent = {change: _sent(change, found) for change in found.changes if change.kind in (DEPLOY, PROPOSE)}
    for number, change in enumerate(found.changes):
        note(f"{change.name}: {change.kind}")
        try:
            _make(change, found, sent.get(change), target, patience)
        except EdgepartError:
            made, left = names_of(found.changes[:number]), names_of(found.changes[number + 1 :])
            note(f"done before {change.name}: {made}; not begun: {left}. Applying again goes on from here")
            raise


def _sent(change: Change, found: Comparison) -> tuple[LocalModel, DeployOptions]:
    """The model that the change sends, and its options."""
    one: DescribedDeployment | None = found.described[change.name]
    if change.kind == PROPOSE and one is not None:
        one = one.candidate
    if one is None:
        raise InternalError(f"{change.name}: the description of what is to be sent is missing")
    return quantised(found.models[one.name], one.options)


def _make(
    change: Change,
    found: Comparison,
    sent: tuple[LocalModel, DeployOptions] | None,
    target: AgentTarget,
    patience: DeployPatience,
) -> None:
    name, one = change.name, found.described.get(change.name)
    trial = None if one is None else one.candidate
    share = None if trial is None else trial.share
    if sent is not None:
        model, options = sent
        deploy_files(target, name, model.files, options, patience, share if change.kind == PROPOSE else None)
    elif change.kind == ROLL_BACK:
        roll_back(target, name, change.to, patience)
    elif change.kind == PROMOTE:
        promote_it(target, name, patience)
    elif change.kind == SHARE and share is not None:
        share_it(target, name, share)
    else:
        undeploy_it(target, name, candidate=change.kind == DISCARD)


def _confirm(found: Comparison, *, yes: bool, as_json: bool) -> None:
    """Ask before anything is undeployed. Raises UsageError if nobody can be asked, and Abort if the user does not agree."""
    doomed = [change for change in found.changes if change.kind == UNDEPLOY]
    if not doomed or yes:
        return
    if as_json or not sys.stdin.isatty():
        raise UsageError(
            f"--prune would undeploy {names_of(doomed)}: add --yes where nobody can be asked. Nothing was changed"
        )
    typer.confirm(f"Undeploy {names_of(doomed)}?", abort=True)


def _print(found: Comparison) -> None:
    rows = [(change.name, _describe(change), "; ".join(change.why)) for change in found.changes]
    rows += [(name, "unchanged", "") for name in found.unchanged]
    if rows:
        console().print(table(("deployment", "change", "why"), rows))
    if not found.changes:
        say("Nothing to do: all that is described is deployed so.")


def _describe(change: Change) -> str:
    return f"{change.kind} to version {change.to}" if change.kind == ROLL_BACK else change.kind


def _read(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read ({error}). Nothing was changed") from error


def _folder(file: Path) -> Path:
    """The folder to which paths in the description are relative."""
    return Path() if str(file) == "-" else file.parent
