"""The Azure SDKs for extensions and extension types against a gateway, unmodified (docs/features.md E1, E2).

Arguments and standard input: those of azure_common.py.
The gateway's catalogue has example.web 1.0.0 and 1.1.0 (Stable) and 2.0.0 (Preview). The cluster has no agent.
Each line that is printed names a step that held.
"""

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.kubernetesconfiguration.extensions import KubernetesConfigurationExtensionsMgmtClient
from azure.mgmt.kubernetesconfiguration.extensiontypes import KubernetesConfigurationExtensionTypesMgmtClient

from azure_common import SUBSCRIPTION, cluster, create_cluster, credential, held, options

AT = cluster("Edge", "shop")


def main():
    own = credential()
    create_cluster(own, "Edge", "shop")

    types = KubernetesConfigurationExtensionTypesMgmtClient(own, SUBSCRIPTION, **options()).extension_types
    assert [one.name for one in types.location_list("eastus")] == ["example.web"]
    assert list(types.location_list("eastus", publisher_id="nobody")) == []
    assert [one.name for one in types.list(*AT, release_train="Preview")] == ["example.web"]
    shown = types.location_get("eastus", "example.web").properties
    scopes = shown.supported_scopes
    assert scopes.default_scope == "cluster", shown
    assert scopes.cluster_scope_settings.properties.default_release_namespace == "web", shown
    assert not scopes.cluster_scope_settings.properties.allow_multiple_instances, shown
    assert types.get(*AT, "Example.Web").name == "example.web"
    held("types")

    versions = [one.properties.version for one in types.list_versions("eastus", "example.web")]
    assert versions == ["2.0.0", "1.1.0", "1.0.0"], versions
    newest = types.cluster_list_versions(*AT, "example.web", release_train="Stable", major_version="1", show_latest=True)
    assert [one.name for one in newest] == ["1.1.0"]
    assert types.get_version("eastus", "example.web", "1.0.0").properties.version == "1.0.0"
    assert types.cluster_get_version(*AT, "example.web", "2.0.0").properties.version == "2.0.0"
    try:
        types.location_get("eastus", "example.none")
        raise AssertionError("it is not there")
    except ResourceNotFoundError as error:
        assert error.error.code == "ExtensionTypeNotFound", error
    held("versions")

    extensions = KubernetesConfigurationExtensionsMgmtClient(own, SUBSCRIPTION, **options()).extensions
    body = {
        "identity": {"type": "SystemAssigned"},
        "properties": {
            "extensionType": "example.web",
            "autoUpgradeMinorVersion": True,
            "releaseTrain": "Stable",
            "scope": {"cluster": {"releaseNamespace": "web"}},
            "configurationSettings": {"a.b": "1", "c": "2"},
            "configurationProtectedSettings": {"password": "geheim"},
        },
    }
    # Without an agent the cluster never says that it is done.
    extensions.begin_create(*AT, "web", body, polling=False)
    made = extensions.get(*AT, "web")
    assert made.properties.provisioning_state == "Creating", made
    assert made.identity.principal_id, made
    assert not made.properties.configuration_protected_settings, made
    assert [one.name for one in extensions.list(*AT)] == ["web"]
    change = {"properties": {"configurationSettings": {"c": "3"}}}
    extensions.begin_update(*AT, "web", change, polling=False)
    assert extensions.get(*AT, "web").properties.configuration_settings == {"a.b": "1", "c": "3"}
    body["properties"]["version"] = "1.0.0"
    try:
        extensions.begin_create(*AT, "web", body, polling=False)
        raise AssertionError("a version pins")
    except HttpResponseError as error:
        assert error.status_code == 400, error
    extensions.begin_delete(*AT, "web", force_delete=True).result()
    assert list(extensions.list(*AT)) == []
    held("extensions")


main()
