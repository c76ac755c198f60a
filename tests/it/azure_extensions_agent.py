"""The Azure SDK for extensions, unmodified, waits with its pollers until a cluster with real agents has done what it asks
for (docs/features.md E1, E5, E9, E10).

Arguments: those of azure_common.py, resource group, cluster. The gateway's catalogue has example.web, whose chart makes a
ConfigMap in the namespace `sdk`.
Each line that is printed names a step that held.
"""

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.kubernetesconfiguration.extensions import KubernetesConfigurationExtensionsMgmtClient

from azure_common import MORE, SUBSCRIPTION, cluster, credential, held, options

GROUP, CLUSTER = MORE
AT = cluster(GROUP, CLUSTER)


def main():
    client = KubernetesConfigurationExtensionsMgmtClient(credential(), SUBSCRIPTION, **options())
    extensions = client.extensions
    body = {
        "identity": {"type": "SystemAssigned"},
        "properties": {
            "extensionType": "example.web",
            "version": None,
            "scope": {"cluster": {"releaseNamespace": "sdk"}},
            "configurationSettings": {"greeting": "one"},
            # What clients that have read an extension elsewhere send back.
            "aksAssignedIdentity": {"type": "SystemAssigned"},
        },
    }
    poller = extensions.begin_create(*AT, "sdk", body, polling_interval=1)
    address = poller.polling_method()._initial_response.http_response.headers["Azure-AsyncOperation"]
    made = poller.result()
    assert made.properties.provisioning_state == "Succeeded" and made.properties.current_version, made
    assert made.properties.aks_assigned_identity is None, made
    operation = address.split("?")[0].rsplit("/", 1)[1]
    status = client.operation_status.get(*AT, "sdk", operation)
    assert (status.name, status.status) == (operation, "Succeeded"), status
    held("created")

    # What was read may be written again as it is.
    again = extensions.begin_create(*AT, "sdk", extensions.get(*AT, "sdk"), polling_interval=1).result()
    assert again.properties.configuration_settings == {"greeting": "one"}, again
    change = {"properties": {"configurationSettings": {"greeting": "two"}}}
    changed = extensions.begin_update(*AT, "sdk", change, polling_interval=1).result()
    assert changed.properties.configuration_settings == {"greeting": "two"}, changed
    assert extensions.get(*AT, "sdk").properties.provisioning_state == "Succeeded"
    held("updated")

    body["properties"]["scope"] = {"cluster": {"releaseNamespace": "default"}}
    try:
        extensions.begin_create(*AT, "wrong", body, polling_interval=1).result()
        raise AssertionError("the agents' namespace takes no extension")
    except HttpResponseError as error:
        assert error.error.code == "NamespaceNotAllowed" and "the agents' own" in error.error.message, error
    failed = extensions.get(*AT, "wrong").properties
    assert (failed.provisioning_state, failed.error_info.code) == ("Failed", "NamespaceNotAllowed"), failed
    assert failed.statuses[0].level == "Error", failed
    held("failed")

    for name in ("wrong", "sdk"):
        extensions.begin_delete(*AT, name, polling_interval=1).result()
        try:
            extensions.get(*AT, name)
            raise AssertionError(f"{name} is gone")
        except ResourceNotFoundError:
            pass
    assert list(extensions.list(*AT)) == []
    held("deleted")


main()
