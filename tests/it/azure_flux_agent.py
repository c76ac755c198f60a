"""The Azure SDK for flux configurations, unmodified, reads and changes those of a cluster with real agents (docs/features.md
G1, G6).

Arguments: those of azure_common.py, resource group, cluster, commit, names of all configurations with commas. The
cluster has the configuration `charts` with the kustomizations `charts` (a HelmRelease) and `maps` (a ConfigMap), which
complies at the commit, and the configuration `artifact` of an OCI registry.
Each line that is printed names a step that held.
"""

import datetime

from azure.mgmt.kubernetesconfiguration.fluxconfigurations import KubernetesConfigurationFluxConfigurationsMgmtClient
from azure.mgmt.kubernetesconfiguration.fluxconfigurations.models import (
    FluxConfigurationPatch,
    FluxConfigurationPatchProperties,
    KustomizationPatchDefinition,
)

from azure_common import MORE, SUBSCRIPTION, cluster, credential, held, options

GROUP, CLUSTER, COMMIT, NAMES = MORE
AT = cluster(GROUP, CLUSTER)


def main():
    client = KubernetesConfigurationFluxConfigurationsMgmtClient(credential(), SUBSCRIPTION, **options())
    flux = client.flux_configurations

    shown = flux.get(*AT, "charts").properties
    assert (shown.provisioning_state, shown.compliance_state) == ("Succeeded", "Compliant"), shown
    assert shown.source_synced_commit_id == f"main@sha1:{COMMIT}", shown.source_synced_commit_id
    assert not shown.error_message, shown.error_message
    now = datetime.datetime.now(datetime.timezone.utc)
    for time in (shown.source_updated_at, shown.status_updated_at):
        assert isinstance(time, datetime.datetime) and abs(now - time) < datetime.timedelta(hours=1), time
    held("state")

    statuses = {(one.kind, one.name): one for one in shown.statuses}
    expected = {
        ("GitRepository", "charts"),
        ("Kustomization", "charts-charts"),
        ("Kustomization", "charts-maps"),
        ("HelmRelease", "site"),
        ("ConfigMap", "one"),
    }
    assert set(statuses) == expected, sorted(statuses)
    assert all(one.compliance_state == "Compliant" and one.namespace == "gitops" for one in shown.statuses), shown.statuses
    assert statuses["ConfigMap", "one"].applied_by.name == "charts-maps", statuses["ConfigMap", "one"]
    (ready,) = [one for one in statuses["GitRepository", "charts"].status_conditions if one.type == "Ready"]
    assert ready.status == "True" and isinstance(ready.last_transition_time, datetime.datetime), ready
    chart = statuses["HelmRelease", "site"].helm_release_properties
    assert (chart.last_revision_applied, chart.failure_count, chart.helm_chart_ref.name) == (3, 0, "gitops-site"), chart
    held("objects")

    listed = {one.name: one.properties for one in flux.list(*AT)}
    assert set(listed) == set(NAMES.split(",")), sorted(listed)
    artifact = listed["artifact"]
    assert artifact.source_kind == "OCIRepository" and artifact.compliance_state == "Compliant", artifact
    assert "@sha256:" in artifact.source_synced_commit_id, artifact.source_synced_commit_id
    held("listed")

    # The operation ends when the agents have done it.
    patch = FluxConfigurationPatch(
        properties=FluxConfigurationPatchProperties(
            kustomizations={"maps": KustomizationPatchDefinition(sync_interval_in_seconds=20)}
        )
    )
    changed = flux.begin_update(*AT, "charts", patch, polling_interval=1).result().properties
    assert changed.provisioning_state == "Succeeded", changed
    assert changed.kustomizations["maps"].sync_interval_in_seconds == 20, changed
    held("changed")


main()
