-- What clusters tell of what is wanted in them, apart from the resources: none of it is a change of one.
CREATE TABLE statuses (
    resource_key {text} NOT NULL PRIMARY KEY,
    -- What is told is about this generation of what is wanted.
    generation BIGINT NOT NULL,
    told_ms BIGINT NOT NULL,
    status {text} NOT NULL,
    events {text} NOT NULL
);
-- Until when the protected settings of a resource are kept.
CREATE TABLE protected_until (resource_key {text} NOT NULL PRIMARY KEY, until_ms BIGINT NOT NULL);
CREATE INDEX protected_by_end ON protected_until (until_ms);
-- The operations of a resource are looked at when it is changed, and when something is told of it.
CREATE INDEX operations_by_resource ON operations (resource_key, status);
-- What has changed of a kind at one parent.
CREATE INDEX resources_by_change ON resources (parent_key, kind, revision);
-- Whether something happened that an operation waits for while a process has it.
ALTER TABLE operations ADD COLUMN woken BIGINT NOT NULL DEFAULT 0;
