"""The Azure SDKs for flux and source control configurations against a gateway, unmodified (docs/features.md G1, G2, G10).

Arguments and standard input: those of azure_common.py.
The gateway's catalogue has microsoft.flux. The cluster has no agent.
Each line that is printed names a step that held.
"""

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.kubernetesconfiguration import SourceControlConfigurationClient
from azure.mgmt.kubernetesconfiguration.extensions import KubernetesConfigurationExtensionsMgmtClient
from azure.mgmt.kubernetesconfiguration.fluxconfigurations import KubernetesConfigurationFluxConfigurationsMgmtClient
from azure.mgmt.kubernetesconfiguration.fluxconfigurations.models import (
    AzureBlobDefinition,
    FluxConfiguration,
    FluxConfigurationPatch,
    FluxConfigurationPatchProperties,
    FluxConfigurationProperties,
    GitRepositoryDefinition,
    KustomizationDefinition,
    KustomizationPatchDefinition,
    PostBuildDefinition,
    RepositoryRefDefinition,
    SubstituteFromDefinition,
)

from azure_common import SUBSCRIPTION, cluster, create_cluster, credential, held, options

AT = cluster("Edge", "shop")


def configuration(**more):
    return FluxConfiguration(
        properties=FluxConfigurationProperties(
            scope="namespace",
            namespace="team",
            source_kind="GitRepository",
            git_repository=GitRepositoryDefinition(
                url="https://example.com/shop.git",
                https_user="me",
                repository_ref=RepositoryRefDefinition(branch="main"),
            ),
            kustomizations={
                "infra": KustomizationDefinition(path="./infra", prune=True),
                "apps": KustomizationDefinition(
                    depends_on=["infra"],
                    post_build=PostBuildDefinition(
                        substitute={"region": "north"},
                        substitute_from=[SubstituteFromDefinition(kind="ConfigMap", name="values")],
                    ),
                ),
            },
            configuration_protected_settings={"httpsKey": "Z2VoZWlt"},
            wait_for_reconciliation=True,
            reconciliation_wait_duration="PT5M",
            **more,
        )
    )


def refused(step, status, code):
    try:
        step()
    except HttpResponseError as error:
        assert error.status_code == status and error.error.code == code, error
        return error.error
    raise AssertionError(f"{code} is not refused")


def source_control(credential, version=None):
    """With the client's own api-version, or another one."""
    client = SourceControlConfigurationClient(credential, SUBSCRIPTION, api_version=version, **options())
    client = client.source_control_configurations
    wanted = {
        "repository_url": "https://example.com/shop.git",
        "operator_namespace": "old",
        "operator_instance_name": "shop-operator",
        "operator_type": "Flux",
        "operator_params": "--git-branch=main --git-path=apps --git-readonly",
        "operator_scope": "namespace",
        "configuration_protected_settings": {"httpsUser": "bWU=", "httpsKey": "Z2VoZWlt"},
        "enable_helm_operator": False,
    }
    # Without one the client has this api-version.
    model = SourceControlConfigurationClient.models(version or "2023-05-01").SourceControlConfiguration
    client.create_or_update(*AT, "old", model(**wanted))
    made = client.get(*AT, "old")
    assert (made.provisioning_state, made.compliance_status.compliance_state) == ("Accepted", "Pending"), made
    assert made.operator_instance_name == "shop-operator" and not made.configuration_protected_settings, made
    assert [one.name for one in client.list(*AT)] == ["old"]
    wanted["operator_params"] = "--git-exec=sh"
    error = refused(lambda: client.create_or_update(*AT, "old", model(**wanted)), 400, "InvalidOperatorParams")
    assert "--git-exec" in error.message, error
    client.begin_delete(*AT, "old").result()
    assert list(client.list(*AT)) == []
    held(f"source control {version or ''}")


def main():
    own = credential()
    create_cluster(own, "Edge", "shop")

    client = KubernetesConfigurationFluxConfigurationsMgmtClient(own, SUBSCRIPTION, **options())
    flux = client.flux_configurations
    # Without an agent the cluster never says that it is done.
    begun = flux.begin_create_or_update(
        *AT,
        "shop",
        configuration(),
        polling=False,
        cls=lambda answer, *_: answer.http_response.headers["Azure-AsyncOperation"],
    )
    operation = begun.result().split("?")[0].rsplit("/", 1)[1]
    status = client.flux_config_operation_status.get(*AT, "shop", operation)
    assert (status.name, status.status) == (operation, "InProgress"), status
    made = flux.get(*AT, "shop").properties
    assert (made.provisioning_state, made.compliance_state) == ("Creating", "Pending"), made
    assert (made.scope, made.namespace, made.suspend) == ("namespace", "team", False), made
    assert made.git_repository.sync_interval_in_seconds == 600, made
    assert made.git_repository.https_user == "me" and not made.configuration_protected_settings, made
    assert made.kustomizations["infra"].name == "infra" and made.kustomizations["infra"].wait, made
    assert made.kustomizations["apps"].post_build.substitute_from[0].optional is False, made
    assert made.statuses == [] and made.source_synced_commit_id is None, made
    assert [one.name for one in flux.list(*AT)] == ["shop"]
    held("created")

    extensions = KubernetesConfigurationExtensionsMgmtClient(own, SUBSCRIPTION, **options()).extensions
    assert extensions.get(*AT, "flux").properties.extension_type == "microsoft.flux"
    error = refused(lambda: extensions.begin_delete(*AT, "flux", polling=False), 409, "ExtensionInUse")
    assert "shop" in error.message, error
    held("extension")

    patch = FluxConfigurationPatch(
        properties=FluxConfigurationPatchProperties(
            suspend=True, kustomizations={"apps": KustomizationPatchDefinition(path="./apps", prune=True)}
        )
    )
    flux.begin_update(*AT, "shop", patch, polling=False)
    changed = flux.get(*AT, "shop").properties
    assert changed.suspend and changed.kustomizations["apps"].path == "./apps", changed
    assert changed.kustomizations["apps"].depends_on == ["infra"], changed
    flux.begin_update(*AT, "shop", {"properties": {"kustomizations": {"apps": None}}}, polling=False)
    assert list(flux.get(*AT, "shop").properties.kustomizations) == ["infra"]
    held("changed")

    moved = configuration()
    moved.properties.namespace = "other"
    error = refused(
        lambda: flux.begin_create_or_update(*AT, "shop", moved, polling=False), 400, "PropertyChangeNotAllowed"
    )
    assert error.target == "properties.namespace", error
    both = configuration(azure_blob=AzureBlobDefinition(url="https://account.example.com", container_name="c"))
    error = refused(lambda: flux.begin_create_or_update(*AT, "shop", both, polling=False), 400, "InvalidSource")
    assert error.target == "properties.azureBlob", error
    held("refused")

    # Where no agent was ever seen there is nothing to take down.
    flux.begin_delete(*AT, "shop").result()
    assert list(flux.list(*AT)) == []
    try:
        flux.get(*AT, "shop")
        raise AssertionError("it is not there")
    except ResourceNotFoundError as error:
        assert error.error.code == "ResourceNotFound", error
    flux.begin_create_or_update(*AT, "shop", configuration(), polling=False)
    flux.begin_delete(*AT, "shop", force_delete=True).result()
    assert list(flux.list(*AT)) == []
    assert [one.name for one in extensions.list(*AT)] == ["flux"]
    held("deleted")
    source_control(own)
    source_control(own, "2021-03-01")


main()
