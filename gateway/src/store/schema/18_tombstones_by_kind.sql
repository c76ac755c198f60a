-- What was deleted of a kind below a cluster is found without reading every deletion that is remembered: agents that begin
-- ask for it, and after a restart of the gateway all of them at once. The three columns are all that is read.
CREATE INDEX tombstones_by_kind ON tombstones (kind, resource_key, revision);
