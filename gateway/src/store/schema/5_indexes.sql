-- What is asked of a cluster or of a resource group is found without reading what happened to all others.
ALTER TABLE events ADD COLUMN group_key {text} NOT NULL DEFAULT '';
UPDATE events SET group_key = {group_of_resource_key};
CREATE INDEX events_by_cluster ON events (resource_key, number);
CREATE INDEX events_by_group ON events (group_key, number);

-- Whose status is another one than was told, without looking at everybody (beside agents_by_status).
CREATE INDEX agents_by_end ON agents (told_status, certificate_ends_ms);
CREATE INDEX agents_by_key ON agents (told_status, agentless);

CREATE INDEX deleted_identities_by_time ON deleted_identities (deleted_ms);
