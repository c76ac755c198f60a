"""The Azure SDKs for Python against a gateway, unmodified: what they send, and what they make of the answers.

Arguments and standard input: those of azure_common.py.
Each line that is printed names a step that held.
"""

import time
import uuid

from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.mgmt.authorization import AuthorizationManagementClient
from azure.mgmt.hybridkubernetes import ConnectedKubernetesClient
from azure.mgmt.resource.resources import ResourceManagementClient
from azure.mgmt.resource.subscriptions import SubscriptionClient

from azure_common import SUBSCRIPTION, TENANT, credential, held, options

CLUSTER_USER = "00493d72-78f6-4148-b6c5-d3ce8e4799dd"


def refused(kind, code, call):
    try:
        call()
    except kind as error:
        assert error.error is not None and error.error.code == code, (code, error)
        return error
    raise AssertionError(f"{code} was expected")


def cluster(**properties):
    return {
        "location": "eastus",
        "tags": {"site": "one"},
        "identity": {"type": "SystemAssigned"},
        "properties": {"agentPublicKeyCertificate": "", "distribution": "k3s", **properties},
    }


def main():
    own = credential()
    subscriptions = SubscriptionClient(own, **options())
    found = [one.subscription_id for one in subscriptions.subscriptions.list()]
    assert found == [SUBSCRIPTION], found
    assert subscriptions.subscriptions.get(SUBSCRIPTION).state == "Enabled"
    assert [one.tenant_id for one in subscriptions.tenants.list()] == [TENANT]
    held("subscriptions")

    resources = ResourceManagementClient(own, SUBSCRIPTION, **options())
    group = resources.resource_groups.create_or_update("Edge", {"location": "eastus", "tags": {"a": "b"}})
    assert (group.name, group.properties.provisioning_state) == ("Edge", "Succeeded"), group
    assert resources.resource_groups.check_existence("edge")
    assert not resources.resource_groups.check_existence("none")
    assert resources.resource_groups.update("Edge", {"tags": {"c": "d"}}).tags == {"c": "d"}
    assert [one.name for one in resources.resource_groups.list()] == ["Edge"]
    assert resources.providers.get("Microsoft.Kubernetes").registration_state == "Registered"
    resources.providers.register("Microsoft.Kubernetes")
    held("resource groups and providers")

    client = ConnectedKubernetesClient(own, SUBSCRIPTION, **options())
    clusters = client.connected_cluster
    begin = clusters.begin_create_or_replace
    # Row R11.
    gone = resources.providers.unregister("Microsoft.Kubernetes")
    assert gone.registration_state == "Unregistered", gone
    create = lambda: begin("Edge", "c0", cluster()).result()  # noqa: E731
    refused(ResourceExistsError, "MissingSubscriptionRegistration", create)
    resources.providers.register("Microsoft.Kubernetes")
    made = create()
    assert made.properties.provisioning_state == "Succeeded" and made.properties.distribution == "k3s", made
    assert made.identity.principal_id and made.identity.tenant_id == TENANT
    assert made.system_data.created_at is not None
    for n in range(1, 8):
        begin("Edge", f"c{n}", cluster()).wait()
    shown = clusters.get("edge", "C0")
    assert shown.id == made.id and shown.tags == {"site": "one"}
    names = [one.name for one in clusters.list_by_resource_group("Edge")]
    assert names == [f"c{n}" for n in range(8)], names
    assert len(list(clusters.list_by_subscription())) == 8
    patch = {"tags": {"x": "y"}, "properties": {"azureHybridBenefit": "True"}}
    changed = clusters.begin_update_async("Edge", "c0", patch).result()
    assert changed.tags == {"x": "y"} and changed.properties.azure_hybrid_benefit == "True", changed
    body = {"authenticationMethod": "AAD", "clientProxy": False}
    credentials = clusters.list_cluster_user_credential("Edge", "c0", body)
    assert b"server: " in credentials.kubeconfigs[0].value or b'"server"' in credentials.kubeconfigs[0].value
    body["clientProxy"] = True
    connection = clusters.list_cluster_user_credential("Edge", "c0", body).hybrid_connection_config
    assert connection.expiration_time > time.time() and connection.token and connection.relay, connection
    assert connection.hybrid_connection_name.startswith("microsoft.kubernetes/connectedclusters/"), connection
    found = [one.name for one in resources.resource_groups.list(filter="tagName eq 'a' and tagValue eq 'none'")]
    assert found == [], found
    found = [one.name for one in resources.resources.list(filter="tagName eq 'x' and tagValue eq 'y'")]
    assert found == ["c0"], found
    held("connected clusters")

    refused(ResourceNotFoundError, "ResourceNotFound", lambda: clusters.get("Edge", "none"))
    refused(ResourceNotFoundError, "ResourceGroupNotFound", lambda: begin("none", "c", cluster()).result())
    refused(HttpResponseError, "InvalidResourceName", lambda: begin("Edge", "a'b", cluster()).result())
    refused(
        HttpResponseError, "InvalidRequestContent", lambda: begin("Edge", "c", cluster(distribution=7)).result()
    )
    refused(
        ResourceExistsError,
        "InvalidResourceLocation",
        lambda: begin("Edge", "c0", {**cluster(), "location": "westeurope"}).result(),
    )
    try:
        ConnectedKubernetesClient(credential("wrong" * 8), SUBSCRIPTION, **options()).connected_cluster.get("Edge", "c0")
        raise AssertionError("a wrong secret signs in")
    except ClientAuthenticationError:
        pass
    held("refusals")

    rights = AuthorizationManagementClient(own, SUBSCRIPTION, **options())
    owner = list(rights.role_definitions.list(f"/subscriptions/{SUBSCRIPTION}", filter="roleName eq 'Owner'"))
    assert len(owner) == 1 and owner[0].role_type == "BuiltInRole", owner
    someone, name = str(uuid.uuid4()), str(uuid.uuid4())
    given = {
        "properties": {
            "roleDefinitionId": f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/{CLUSTER_USER}",
            "principalId": someone,
            "principalType": "ServicePrincipal",
        }
    }
    assignments = rights.role_assignments
    assignment = assignments.create(made.id, name, given)
    assert assignment.name == name and assignment.scope == made.id, assignment
    assert [one.name for one in assignments.list_for_scope(made.id, filter="atScope()")] == [name]
    by_principal = assignments.list_for_scope(f"/subscriptions/{SUBSCRIPTION}", filter=f"principalId eq '{someone}'")
    assert [one.name for one in by_principal] == [name]
    refused(ResourceExistsError, "RoleAssignmentExists", lambda: assignments.create(made.id, str(uuid.uuid4()), given))
    assert assignments.delete(made.id, name).name == name
    assert assignments.delete(made.id, name) is None
    held("role definitions and assignments")

    clusters.begin_delete("Edge", "c0").result()
    refused(ResourceNotFoundError, "ResourceNotFound", lambda: clusters.get("Edge", "c0"))
    resources.resource_groups.begin_delete("Edge").result()
    assert list(clusters.list_by_subscription()) == []
    held("deletions")


main()
