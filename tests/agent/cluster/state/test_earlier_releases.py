"""What members of earlier releases are told takes nothing away from those that know more."""

from __future__ import annotations

from edgepart.agent.cluster.state.deployments import DeploymentMap
from edgepart.agent.cluster.state.earlier_releases import without_candidates, without_versions
from edgepart.agent.cluster.state.model_versions import number_of
from edgepart.agent.wire.control import Deployment, Deployments
from edgepart.agent.wire.inference import DeployOptions
from tests.agent.cluster.state.test_candidates import SHADOW, tried


def test_a_member_that_knows_no_versions_takes_none_away() -> None:
    """It tells entries back as it got them: without the numbers, and with the version by which maps are merged."""
    here = DeploymentMap()
    here.put("a", "net", "m1", 1, DeployOptions(keep=3), DeployOptions(keep=3, bindings=1))
    entry = here.put("a", "net", "m2", 1, DeployOptions(keep=3))
    told = without_versions(Deployments((entry,)))
    assert isinstance(told, Deployments)
    assert told.entries == (Deployment("net", "m2", 1, DeployOptions(), entry.version),)
    assert here.merge(told.entries) == ()
    assert here.get("net") == entry
    there = DeploymentMap(told.entries)
    assert there.merge([entry]) == (entry,)
    assert there == here
    alone = DeploymentMap(told.entries)
    assert number_of(alone.list_live()[0]) == 1
    assert alone.put("a", "net", "m3", 1, DeployOptions()).number == 2


def test_a_member_that_knows_no_candidates_takes_none_away() -> None:
    here = tried()
    entry = here.set_share("a", "net", SHADOW)
    for told in (without_candidates(Deployments((entry,))), without_versions(Deployments((entry,)))):
        assert isinstance(told, Deployments) and told.entries[0].candidacy is None
        assert here.merge(told.entries) == () and here.candidate("net") == entry
        there = DeploymentMap(told.entries)
        assert there.merge([entry]) == (entry,), "it learns of the candidacy once it is updated"
