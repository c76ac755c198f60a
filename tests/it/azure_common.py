"""What the programs that drive a gateway by the Azure SDKs have in common: arguments, credential and clients.

Arguments: URL, CA file, tenant, subscription, client id; what follows is in MORE. The client secret is read from standard
input.
"""

import sys

from azure.identity import ClientSecretCredential

URL, CA, TENANT, SUBSCRIPTION, CLIENT, *MORE = sys.argv[1:]
SECRET = sys.stdin.readline().strip()


def credential(secret=SECRET):
    return ClientSecretCredential(
        TENANT, CLIENT, secret, authority=URL, disable_instance_discovery=True, connection_verify=CA
    )


def options():
    """How any client reaches the gateway."""
    return {
        "base_url": URL,
        "credential_scopes": [URL + "/.default"],
        "connection_verify": CA,
        "retry_total": 0,
    }


def cluster(group, name):
    """What clients of extensions and configurations name a cluster by."""
    return (group, "Microsoft.Kubernetes", "connectedClusters", name)


def create_cluster(own, group, name):
    """Creates a cluster, which never has an agent, and its resource group."""
    from azure.mgmt.hybridkubernetes import ConnectedKubernetesClient
    from azure.mgmt.resource.resources import ResourceManagementClient

    resources = ResourceManagementClient(own, SUBSCRIPTION, **options())
    resources.resource_groups.create_or_update(group, {"location": "eastus"})
    clusters = ConnectedKubernetesClient(own, SUBSCRIPTION, **options())
    wanted = {
        "location": "eastus",
        "identity": {"type": "SystemAssigned"},
        "properties": {"agentPublicKeyCertificate": "", "distribution": "k3s"},
    }
    clusters.connected_cluster.begin_create_or_replace(group, name, wanted).result()


def held(step):
    print("held:", step, flush=True)
