-- The revision of the last write, and the one up to which deletions are forgotten. One row, which is also the lock that
-- puts writers in order.
CREATE TABLE revisions (
    revision  BIGINT NOT NULL,
    forgotten BIGINT NOT NULL
);
INSERT INTO revisions (revision, forgotten) VALUES (0, 0);

-- Resources of every kind. Keys are ids in lower case; `id` keeps the case in which it was created.
CREATE TABLE resources (
    resource_key {text} NOT NULL PRIMARY KEY,
    -- The full type in lower case: microsoft.kubernetes/connectedclusters.
    kind         {text} NOT NULL,
    -- The key of what holds it (a resource group, a subscription, a cluster), empty at the top.
    parent_key   {text} NOT NULL,
    id           {text} NOT NULL,
    revision     BIGINT NOT NULL,
    -- The resource as JSON, without what is only written, and without what is computed when it is read.
    body         {text} NOT NULL,
    -- Protected settings, encrypted.
    protected    {bytes}
);
CREATE INDEX resources_by_kind ON resources (kind, resource_key);
CREATE INDEX resources_by_parent ON resources (parent_key, kind, resource_key);
CREATE UNIQUE INDEX resources_by_revision ON resources (revision, resource_key);

-- What was deleted, for those who follow changes.
CREATE TABLE tombstones (
    revision     BIGINT NOT NULL,
    resource_key {text} NOT NULL,
    kind         {text} NOT NULL,
    PRIMARY KEY (revision, resource_key)
);

-- Long-running operations.
CREATE TABLE operations (
    operation_id {text} NOT NULL PRIMARY KEY,
    resource_key {text} NOT NULL,
    -- InProgress, Succeeded, Failed, Canceled.
    status       {text} NOT NULL,
    begun_ms     BIGINT NOT NULL,
    ended_ms     BIGINT,
    -- What goes on with it after a restart, and the error of a failed one: JSON.
    work         {text} NOT NULL,
    error        {text}
);
CREATE INDEX operations_by_status ON operations (status, begun_ms, operation_id);
CREATE INDEX operations_by_end ON operations (ended_ms);
