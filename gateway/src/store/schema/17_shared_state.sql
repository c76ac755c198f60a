-- What several gateways share beside resources: documents that are changed as a whole, each by one at a time. Sealed by
-- the key outside the database.
CREATE TABLE documents (
    name {text} NOT NULL PRIMARY KEY,
    -- Rises with every change.
    version BIGINT NOT NULL,
    sealed {bytes} NOT NULL
);
-- What somebody was given and may show again before it ends, such as a code. The key and the alias are hashes.
CREATE TABLE tickets (
    kind {text} NOT NULL,
    ticket_key {text} NOT NULL,
    -- Another name, under which one of its kind is found.
    alias {text},
    -- Whoever has a share of the tickets of a kind, and where they were: hashes with a key.
    owner {text} NOT NULL,
    place {text} NOT NULL,
    -- Of one owner the lowest gives way first.
    rank BIGINT NOT NULL,
    -- From then on it may be deleted, in seconds since 1970.
    ends BIGINT NOT NULL,
    sealed {bytes} NOT NULL,
    PRIMARY KEY (kind, ticket_key)
);
CREATE UNIQUE INDEX tickets_by_alias ON tickets (kind, alias);
CREATE INDEX tickets_by_owner ON tickets (kind, owner, rank, ticket_key);
CREATE INDEX tickets_by_end ON tickets (kind, ends);
-- How often something happened within a time, such as failed sign-ins from an address.
CREATE TABLE counts (
    name {text} NOT NULL PRIMARY KEY,
    owner {text} NOT NULL,
    count BIGINT NOT NULL,
    ends BIGINT NOT NULL
);
CREATE INDEX counts_by_owner ON counts (owner, ends, name);
CREATE INDEX counts_by_end ON counts (ends);
