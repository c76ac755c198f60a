-- What has happened to clusters' connectivity, oldest first, so many at most.
CREATE TABLE events (
    number       BIGINT NOT NULL PRIMARY KEY,
    resource_key {text} NOT NULL,
    id           {text} NOT NULL,
    -- created, connectivity, deleted.
    kind         {text} NOT NULL,
    at_ms        BIGINT NOT NULL,
    status       {text},
    before       {text}
);

-- The number of the newest event. One row, which is also the lock that puts those who tell in order.
CREATE TABLE event_numbers (
    newest BIGINT NOT NULL
);
INSERT INTO event_numbers (newest) VALUES (0);

-- Clusters that were deleted, until that is told.
CREATE TABLE departed (
    revision     BIGINT NOT NULL,
    resource_key {text} NOT NULL,
    id           {text} NOT NULL,
    told_status  {text},
    PRIMARY KEY (revision, resource_key)
);

-- Up to which event each webhook (by a digest of its address) has been told.
CREATE TABLE webhooks (
    webhook {text} NOT NULL PRIMARY KEY,
    number  BIGINT NOT NULL
);
