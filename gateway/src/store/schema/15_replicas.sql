-- Gateways that share this database, one row each. A later start of the same name has a higher generation.
CREATE TABLE replicas (
    name {text} NOT NULL PRIMARY KEY,
    generation BIGINT NOT NULL,
    address {text} NOT NULL,
    version {text} NOT NULL,
    started_ms BIGINT NOT NULL,
    -- When its lease was renewed last, by the database's clock.
    renewed_ms BIGINT NOT NULL,
    -- The newest revision that its decisions know.
    applied BIGINT NOT NULL,
    -- The number of the last change of its rows in tunnels, and of the last one of which no row may be left.
    changed BIGINT NOT NULL,
    forgotten BIGINT NOT NULL
);
-- How many tunnels of a cluster a replica has. A row without any is kept for a while, so that the others learn of it.
CREATE TABLE tunnels (
    replica {text} NOT NULL,
    cluster_key {text} NOT NULL,
    takes_users BIGINT NOT NULL,
    takes_none BIGINT NOT NULL,
    changed BIGINT NOT NULL,
    since_ms BIGINT NOT NULL,
    PRIMARY KEY (replica, cluster_key)
);
CREATE INDEX tunnels_by_change ON tunnels (replica, changed);
