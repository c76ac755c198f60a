-- The object id of the identity that a row is of: what is told by the agents of a cluster that was deleted and created again
-- is not the new one's.
ALTER TABLE agents ADD COLUMN principal {text};

-- Identities whose clusters were deleted. Only who finds its own here is told so: a database that was emptied, or restored
-- from before a cluster was created, knows nothing of it, which is another thing.
CREATE TABLE deleted_identities (
    principal    {text} NOT NULL PRIMARY KEY,
    resource_key {text} NOT NULL,
    -- When that was noticed; null until then.
    deleted_ms   BIGINT
);
