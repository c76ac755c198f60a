-- What is known of each connected cluster's agents, one row for each cluster, made and deleted with it. Apart from
-- resources, because a sign of life is no change of a resource: it takes no revision.
CREATE TABLE agents (
    resource_key          {text} NOT NULL PRIMARY KEY,
    -- 1: the resource has no public key, so that no agent can come with one.
    agentless             BIGINT NOT NULL,
    -- Milliseconds since 1970, by this program's clock.
    first_seen_ms         BIGINT,
    last_seen_ms          BIGINT,
    -- The newest certificate of the cluster's identity, and the fingerprint of the public key that it was issued for.
    certificate_begins_ms BIGINT,
    certificate_ends_ms   BIGINT,
    certificate_serial    {text},
    certificate_key       {text},
    -- UID of the namespace kube-system: a cluster is one resource.
    kube_system_uid       {text},
    -- What agents told of their cluster: JSON.
    facts                 {text},
    -- The status that events have told of last, and when; none before the first one.
    told_status           {text},
    told_ms               BIGINT
);
CREATE UNIQUE INDEX agents_by_uid ON agents (kube_system_uid);
-- What the status is computed from.
CREATE INDEX agents_by_status ON agents (told_status, last_seen_ms, certificate_ends_ms, agentless);

INSERT INTO agents (resource_key, agentless, told_status)
    SELECT resource_key, 0, 'Connecting' FROM resources WHERE kind = 'microsoft.kubernetes/connectedclusters';
UPDATE agents SET agentless = 1 WHERE resource_key IN
    (SELECT resource_key FROM resources WHERE kind = 'microsoft.kubernetes/connectedclusters'
     AND body LIKE '%"agentPublicKeyCertificate":""%');
